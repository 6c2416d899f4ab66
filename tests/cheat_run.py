"""Judges entries of the cheat suite, several tasks side by side, and makes the table of what found what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from engine.evaluate.measure import Effort
from engine.records import Evaluation
from tests.cheat_tasks import Entry, contract_of
from tests.evaluate_harness import DATA, Bench, failed

TIMED = Effort(budget_s=0.5, blocks=8, audits=8)
# What hangs is waited for so long; everything else gets a minute a call.
HANGS = {"hangs": 4.0, "sleeps": 4.0}
SIDE_BY_SIDE, AT_ONCE = 2, 24


async def judge_all(
    chosen: Sequence[tuple[str, Entry]], folder: Path, side_by_side: int = SIDE_BY_SIDE
) -> dict[Entry, Evaluation | BaseException]:
    """Verdicts on (source, entry) pairs. What the evaluator raises is kept in the place of a verdict."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for source, entry in chosen:
        groups.setdefault((source, entry.task), []).append(entry)
    parts = [(source, task, members[i:i + AT_ONCE])
             for (source, task), members in groups.items() for i in range(0, len(members), AT_ONCE)]
    verdicts: dict[Entry, Evaluation | BaseException] = {}
    lanes = asyncio.Semaphore(side_by_side)
    building = asyncio.Lock()

    async def judge(number: int, source: str, task: str, members: list[Entry]) -> None:
        async with lanes:
            contract, groundtruth = contract_of(task)
            async with building:  # Parts of one source share one build.
                bench = await Bench.make(folder / f"{task}-{number}", contract, groundtruth, (DATA / source).read_text())
            try:
                for entry in members:
                    try:
                        verdicts[entry] = await bench.judge(
                            entry.name, TIMED if entry.timed else None, call_s=HANGS.get(entry.name))
                    except Exception as error:  # noqa: BLE001 - one broken verdict must not hide the others.
                        verdicts[entry] = error
            finally:
                await bench.evaluator.close()

    await asyncio.gather(*(judge(i, *part) for i, part in enumerate(parts)))
    return verdicts


def problem(entry: Entry, verdict: Evaluation | BaseException) -> str:
    """What is wrong with the verdict on this entry, or nothing."""
    if isinstance(verdict, BaseException):
        return f"the evaluator raised {type(verdict).__name__}: {verdict}"
    if verdict.verification is None:
        return f"no verdict: {verdict.failure}"
    found = failed(verdict)
    if not entry.checks:
        accepted = verdict.failure is None and verdict.verification.accepts("match")
        return "" if accepted and not found else f"not accepted: {sorted(found)}, {verdict.failure}"
    if verdict.failure is None or verdict.verification.accepts("match"):
        return f"accepted; checks that failed: {sorted(found)}"
    if not entry.checks & found:
        return f"found by {sorted(found)}, not by {sorted(entry.checks)}: {verdict.failure.reason}"
    return ""

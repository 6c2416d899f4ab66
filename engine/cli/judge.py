"""`hiera contract`, `hiera evaluate`, `hiera profile`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ConfigError, HieraError, InputError
from engine import local, report
from engine.agents import Situation
from engine.agents.expert import ExpertAgent
from engine.cli import common
from engine.own_names import named
from engine.planning.catalog import load_catalog
from engine.records import Candidate, Evaluation, Failure, Verification
from engine.trajectory import Event, Job, Note, Trajectory, candidate_id

ACCEPTED, REJECTED, COULD_NOT = 0, 1, 2
READ = "read"  # The stage at which a file fails that is no text.


def contract(arguments: argparse.Namespace) -> int:
    """The contract folder, with a first candidate as `cuda_source.cu`."""
    job = common.job_of(arguments)
    out = Path(arguments.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("the output folder exists and is not empty", hint="give a new or empty folder", file=out)

    async def main(_cancel: asyncio.Event) -> list[str]:
        services = local.LocalServices()
        async with contextlib.AsyncExitStack() as end:
            made = end.enter_context(tempfile.TemporaryDirectory(prefix="hiera-"))
            end.push_async_callback(services.close)
            device = await services.device(job)
            task = await services.task(job, Path(made) / "contract", device)
            if task.source is None:
                catalog = load_catalog(job.planning)
                situation = Situation(contract=task.contract, reduced=None, device=device, catalog=catalog,
                                      workload=services.workload(task.contract, device), round=1, locked=job.space,
                                      trajectory=Trajectory(run=""))
                agent = ExpertAgent()
                plan = await agent.decide_space_and_scores(situation)
                strategy = await agent.plan_strategy(situation, plan, 1)
                async for candidate in agent.propose(situation, plan, strategy, 1):
                    common.write_text(task.folder / "cuda_source.cu", candidate.source)
            try:
                shutil.copytree(task.folder, out, dirs_exist_ok=True)
            except OSError as error:
                raise ConfigError(f"cannot write there: {error}", hint="choose another place", file=out) from None
            return [f"contract {task.contract.name} ({task.contract.id}) in {out}", *task.contract.notes, *task.notes]

    print("\n".join(common.run(main, stop_at_once=True)))
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Judge candidates: 0 all accepted, 1 one was rejected, 2 one could not be judged."""
    trajectory = _judge(arguments, arguments.candidate or [], profile=False)
    for candidate in trajectory.candidates:
        print(_verdict(trajectory, candidate), file=sys.stderr if arguments.json == "-" else sys.stdout)
    common.write_json(arguments.json, report.document(trajectory))
    return _status(trajectory)


def profile(arguments: argparse.Namespace) -> int:
    """Counters, bound, roofline position and the hottest source lines of candidates; status as for `evaluate`."""
    trajectory = _judge(arguments, arguments.candidate or [], profile=True)
    common.write_json(arguments.json, report.document(trajectory))
    if arguments.json != "-":
        for candidate in trajectory.candidates:
            print(_verdict(trajectory, candidate))
            print("\n".join(report.profile_lines(trajectory, trajectory.evaluations[candidate.id])))
    return _status(trajectory)


def _status(trajectory: Trajectory) -> int:
    if any(_no_verdict(evaluation) for evaluation in trajectory.evaluations.values()):
        return COULD_NOT
    return ACCEPTED if all(trajectory.accepted(c.id) for c in trajectory.candidates) else REJECTED


def _judge(arguments: argparse.Namespace, files: Sequence[str], *, profile: bool) -> Trajectory:
    common.check_writable(arguments.json)
    job = common.job_of(arguments)
    if not Path(job.file).is_dir():
        raise InputError("this is no contract folder", hint="make one with `hiera contract FILE --out DIR`",
                         file=job.file)
    paths = [Path(file) for file in files] or [Path(job.file) / "cuda_source.cu"]
    sources = [_read(path) for path in paths]
    if not any(source.text is not None for source in sources):
        raise InputError(sources[0].problem, hint="check the path, or write the folder's cuda_source.cu",
                         file=sources[0].path)

    async def main(_cancel: asyncio.Event) -> Trajectory:
        return await _evaluate(job, sources, profile)

    return common.run(main, stop_at_once=True)


async def _evaluate(job: Job, sources: Sequence[Source], profile: bool) -> Trajectory:
    """Judge all: they are built side by side, judged one at a time, and none costs another its verdict."""
    services, trajectory = local.LocalServices(), Trajectory(run="")

    def apply(kind: str, value: object) -> None:
        trajectory.apply(Event(kind, 0.0, value))

    async with contextlib.AsyncExitStack() as end:
        made = end.enter_context(tempfile.TemporaryDirectory(prefix="hiera-"))
        end.push_async_callback(services.close)
        apply("job", job)
        apply("device", device := await services.device(job))
        task = await services.task(job, Path(made) / "contract", device)
        apply("contract", task.contract)
        apply("workload", workload := services.workload(task.contract, device))
        evaluator = await services.evaluator(job, task, device, workload, lambda text: apply("note", Note(text=text)))
        try:
            apply("baseline", await evaluator.baseline())
            candidates = _candidates(job, task.contract.id, sources, apply)

            async def one(candidate: Candidate) -> None:
                evaluation = named(await evaluator.evaluate(task.contract, candidate), candidate.title)
                if profile and evaluation.failure is None:
                    evaluation = await evaluator.profiled(task.contract, candidate, evaluation)
                apply("evaluation", evaluation)

            async with asyncio.TaskGroup() as group:
                for candidate in candidates:
                    group.create_task(one(candidate))
        except* HieraError as errors:
            raise errors.exceptions[0] from None  # The machine cannot judge: one such error says it all.
        finally:
            await evaluator.close()
    return trajectory


def _candidates(job: Job, contract_id: str, sources: Sequence[Source], apply: Callable[[str, object], None]
                ) -> list[Candidate]:
    """Every source is told as a candidate; those to judge are returned: readable ones, each text once."""
    names = Counter(source.path.name for source in sources)
    texts: dict[str, Candidate] = {}
    for source in sources:
        title = source.path.name if names[source.path.name] == 1 else str(source.path)
        text = source.text if source.text is not None else f"unreadable: {source.path}"
        identity = candidate_id(contract_id, text)
        if identity in texts:
            apply("note", Note(text=f"{title} has the same text as {texts[identity].title}"))
            continue
        texts[identity] = candidate = Candidate(id=identity, source=source.text or "", round=0, author="user",
                                                space=job.space or "cuda_libs_torch", title=title)
        apply("candidate", candidate)
        if source.text is None:
            apply("evaluation", Evaluation(candidate_id=identity, stage="proposed",
                                           failure=Failure(stage=READ, reason=source.problem)))
            del texts[identity]
    return list(texts.values())


def _verdict(trajectory: Trajectory, candidate: Candidate) -> str:
    """One candidate in a line or a few: where, space, time, and how exact it is or why it was rejected."""
    evaluation = trajectory.evaluations[candidate.id]
    time, speedup = report.times(evaluation)
    verification = evaluation.verification
    error = _error_words(verification)
    if trajectory.accepted(candidate.id):
        where = verification.where if verification else ""
        return f"{candidate.title}: accepted ({where}) in space {candidate.space}, {time}, {speedup}{error}"
    failure = evaluation.failure
    if failure is not None and failure.stage == READ:
        return f"{candidate.title}: {failure.reason}"
    reason = f"at {failure.stage}: {failure.reason}" if failure else report.why_not(trajectory, evaluation)
    lines = [f"{candidate.title}: rejected in space {candidate.space} {reason}{error}"]
    if verification is not None and verification.where.endswith("at reduced size") and any(
            check.name == "runs" and check.status == "fail" for check in verification.checks):
        lines.append("  It ran at the sizes in the folder's `reduced`, for there is no GPU. If it is written for the "
                     "real ones alone, judge it on a GPU, or without that folder, which can take long.")
    if failure:
        lines += [f"  line {at.line}: {at.message}" for at in failure.errors[:5] if at.line is not None]
    return "\n".join(lines)


def _error_words(verification: Verification | None) -> str:
    """How far the outputs are from fp64, in units of what fp32 itself is off by."""
    worst = verification.metrics.get("rms_ratio") if verification else None
    return "" if worst is None else f", error {worst:.3g} times fp32's own"


def _no_verdict(evaluation: Evaluation) -> bool:
    """True where the machine or the file, not the kernel, was the trouble."""
    if evaluation.failure is not None and evaluation.failure.stage == READ:
        return True
    return evaluation.failure is None and evaluation.verification is None


@dataclass(frozen=True, slots=True)
class Source:
    """A candidate's file: its text, or why it has none."""

    path: Path
    text: str | None
    problem: str = ""


def _read(path: Path) -> Source:
    try:
        return Source(path, path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Source(path, None, "there is no such candidate")
    except UnicodeDecodeError:
        return Source(path, None, "the candidate is not UTF-8 text")
    except OSError as error:
        return Source(path, None, f"the candidate cannot be read: {error.strerror}")

"""A second opinion on a winner, in a process that the search has never touched.

The candidate is judged again with fresh seeds by a new judge, and timed again; then KernelBench's own
protocol is run on it, whose numbers are reported and decide nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contracts.errors import HieraError
from engine.bench.protocol import Place, Protocol
from engine.devices import find_device
from engine.evaluate import measure
from engine.evaluate.build import Builder
from engine.evaluate.local import CONFIRM_LIMITS, EMULATED_LIMITS, LocalEvaluator, Settings
from engine.extract import read_folder
from engine.records import Build, Evaluation
from engine.store import Store, cache_root
from engine.toolchain import find_toolchain


async def check(run: Path, *, python: str, file: Path) -> dict[str, Any]:
    """Judge the best candidate of a run afresh.

    Args:
        run: The run's folder.
        python: The interpreter with torch.
        file: The task's file, for KernelBench's protocol.

    Returns:
        `reverified` (accepted, reason, speed-up with interval) and `kernelbench` (or None without a GPU).

    Raises:
        HieraError: This machine cannot judge.
    """
    trajectory = Store().load(str(run))
    best = trajectory.best
    assert best is not None, "there is nothing to check"
    assert trajectory.job is not None
    device = await find_device(trajectory.job.device)
    found = await read_folder(run / "contract", python=python)
    toolchain = await find_toolchain(python)
    emulated = device.kind != "cuda"
    settings = Settings(limits=EMULATED_LIMITS if emulated else CONFIRM_LIMITS, search=measure.WINNER,
                        compile_baseline="off")
    evaluator = LocalEvaluator(
        toolchain, device, found.contract, found.folder, Builder(toolchain, cache_root() / "builds"),
        reduced=found.reduced if emulated and trajectory.reduced is not None else None,
        reduced_folder=found.reduced_folder, settings=settings)
    try:
        evaluation = await evaluator.evaluate(found.contract, best)
    finally:
        await evaluator.close()
    row = {"id": best.id, **_verdict(evaluation, trajectory.precision, measured=not emulated)}
    if emulated or evaluation.build is None or not row["accepted"]:
        return {"reverified": row, "kernelbench": None}
    place = Place(python=python, device=f"cuda:{device.index}", environment={})
    return {"reverified": row, "kernelbench": {"id": best.id, **await _kernelbench(
        place, file, found.folder, best.source, evaluation.build)}}


def _verdict(evaluation: Evaluation, precision: Any, *, measured: bool) -> dict[str, Any]:
    verification, timing = evaluation.verification, evaluation.timing
    accepted = (evaluation.failure is None and verification is not None and verification.accepts(precision)
                and (timing is not None or not measured))
    reason = f"{evaluation.failure.stage}: {evaluation.failure.reason}" if evaluation.failure else None
    return {"accepted": accepted, "reason": reason if not accepted else None,
            "speedup": timing.speedup if timing else None, "ci95": list(timing.ci95) if timing else None}


async def _kernelbench(place: Place, file: Path, folder: Path, source: str, build: Build) -> dict[str, Any]:
    """KernelBench's verdict and times; the reason where it has none."""
    protocol = Protocol(place, file)
    try:
        await protocol.open()
        await protocol.candidate(folder, source, build)
        verdict = await protocol.validate("candidate")
        return {**verdict, **await protocol.times("candidate"), "note": None}
    except HieraError as error:
        return {"valid": None, "note": error.problem.splitlines()[0][:300]}
    finally:
        await protocol.close()

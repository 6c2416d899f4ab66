"""`hiera optimize` and `hiera resume`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from contracts.errors import ConfigError, InputError
from engine import report
from engine.cli import common
from engine.cli.progress import Progress
from engine.optimize import optimize as run_job
from engine.presets import limits
from engine.requests import earlier_run
from engine.store import Store
from engine.trajectory import Job, Trajectory

INTERRUPTED = 130
FILES = ("torch_demo.py", "cpp_source.cpp", "groundtruth.py", "params_semantics.json", "cuda_source.cu")


def optimize(arguments: argparse.Namespace) -> int:
    """The whole job."""
    job = common.job_of(arguments)
    _check_outputs(arguments)
    store = Store()
    if not arguments.fresh and (answered := earlier_run(job, store)) is not None:
        return _finish(arguments, store, answered, again=True)
    return _work(arguments, job, store, resume=None)


def resume(arguments: argparse.Namespace) -> int:
    """Go on where a run stopped."""
    _check_outputs(arguments)
    store = Store()
    trajectory = store.load(arguments.run)
    if trajectory.job is None:
        raise InputError("the run ended before it began", hint="start it again with `hiera optimize`",
                         file=store.find(arguments.run))
    job = _more(trajectory.job, arguments)
    if trajectory.stopped is not None and trajectory.stopped.complete and arguments.budget is None:
        print(f"run {trajectory.run} is complete; --budget N lets it go on", file=sys.stderr)
        return _finish(arguments, store, trajectory, again=True)
    return _work(arguments, job, store, resume=arguments.run)


def _more(job: Job, arguments: argparse.Namespace) -> Job:
    """The stored job with the limits of the command line; a larger budget means more rounds of the same size."""
    rounds, budget = limits(job)
    wanted = arguments.rounds or rounds
    if arguments.budget and not arguments.rounds:
        wanted = max(rounds, -(-arguments.budget // -(-budget // rounds)))
    return replace(job, budget=arguments.budget or job.budget, rounds=wanted, seconds=arguments.seconds or job.seconds,
                   tokens=arguments.tokens or job.tokens)


def _work(arguments: argparse.Namespace, job: Job, store: Store, *, resume: str | None) -> int:
    rounds, budget = limits(job)

    async def main(cancel: asyncio.Event) -> Trajectory:
        with Progress(rounds=rounds, budget=budget) as progress:
            return await run_job(job, on_event=progress, store=store, resume=resume, cancel=cancel)

    trajectory = common.run(main)
    return _finish(arguments, store, trajectory, again=False)


def _finish(arguments: argparse.Namespace, store: Store, trajectory: Trajectory, *, again: bool) -> int:
    folder = store.root / "runs" / trajectory.run
    if arguments.json != "-":
        if again:
            print(f"answered from run {trajectory.run}; --fresh starts anew", file=sys.stderr)
        print(report.text(trajectory, folder=folder))
    common.write_json(arguments.json, report.document(trajectory, folder=folder))
    if arguments.out:
        _write_folder(Path(arguments.out), folder / "contract", trajectory)
    if trajectory.stopped is not None and trajectory.stopped.reason == "cancelled":
        print(f"hiera: interrupted; go on with `hiera resume {trajectory.run}`", file=sys.stderr)
        return INTERRUPTED
    return 0


def _check_outputs(arguments: argparse.Namespace) -> None:
    common.check_writable(arguments.json)
    out = Path(arguments.out) if arguments.out else None
    if out is not None and out.exists() and (not out.is_dir() or _foreign(out)):
        raise ConfigError("the output folder exists and is not a contract folder", file=out,
                          hint="give an empty or new folder, or one that HIERA wrote")


def _foreign(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return bool(names) and not {"cuda_source.cu", "groundtruth.py"} <= names


def _ours(runs: Path, name: str, text: bytes) -> bool:
    """Is this the text of a file that some run wrote? Then nothing is lost with it."""
    stored = [*runs.glob(f"*/contract/{name}"), *(runs.glob("*/sources/*.cu") if name == "cuda_source.cu" else ())]
    return any(path.stat().st_size == len(text) and path.read_bytes() == text for path in stored)


def _kept(path: Path) -> Path:
    """A file put beside its place under the first free name: what stands there may be the user's work."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return path.rename(aside)


def _write_folder(out: Path, contract: Path, trajectory: Trajectory) -> None:
    """The contract folder with the best candidate's source; without one, the contract alone."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        best = trajectory.best
        texts = {path.name: path.read_bytes() for path in contract.iterdir() if path.is_file()}
        if best is not None:
            texts["cuda_source.cu"] = best.source.encode()
        for name, text in texts.items():
            if (out / name).is_file() and (before := (out / name).read_bytes()) != text and not _ours(
                    contract.parent.parent, name, before):
                print(f"hiera: {name} was another one: kept as {_kept(out / name).name}", file=sys.stderr)
            common.write_bytes(out / name, text)
    except OSError as error:
        raise ConfigError(f"cannot write the output folder: {error.strerror}", hint="choose another place",
                          file=out) from None
    print(f"wrote {out}" + ("" if best else " (no candidate was accepted)"), file=sys.stderr)

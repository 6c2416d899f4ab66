"""`hiera contract`, `hiera evaluate`, `hiera profile`."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from contracts.errors import ConfigError, InputError
from engine import local, report
from engine.agents import Situation
from engine.agents.expert import ExpertAgent
from engine.cli import common
from engine.planning.catalog import load_catalog
from engine.records import Candidate, Evaluation
from engine.trajectory import Event, Job, Note, Trajectory, candidate_id

ACCEPTED, REJECTED, COULD_NOT = 0, 1, 2


def contract(arguments: argparse.Namespace) -> int:
    """The contract folder, with a first candidate as `cuda_source.cu`."""
    job = common.job_of(arguments)
    out = Path(arguments.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("the output folder exists and is not empty", hint="give a new or empty folder", file=out)

    async def main(_cancel: asyncio.Event) -> list[str]:
        services = local.LocalServices()
        with tempfile.TemporaryDirectory(prefix="hiera-") as made:
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
    """Judge candidates: 0 all accepted, 1 one was rejected, 2 could not judge."""
    trajectory = _judge(arguments, arguments.candidate or [], profile=False)
    for candidate in trajectory.candidates:
        print(_verdict(trajectory, candidate), file=sys.stderr if arguments.json == "-" else sys.stdout)
    common.write_json(arguments.json, report.document(trajectory))
    accepted = [trajectory.accepted(candidate.id) for candidate in trajectory.candidates]
    unjudged = [e for e in trajectory.evaluations.values() if _no_verdict(e)]
    return COULD_NOT if unjudged else ACCEPTED if all(accepted) else REJECTED


def profile(arguments: argparse.Namespace) -> int:
    """Counters, bound, roofline position and the hottest source lines of one candidate."""
    given = [arguments.candidate] if arguments.candidate else []
    trajectory = _judge(arguments, given, profile=True)
    common.write_json(arguments.json, report.document(trajectory))
    candidate = trajectory.candidates[0]
    evaluation = trajectory.evaluations[candidate.id]
    if arguments.json != "-":
        print(_verdict(trajectory, candidate))
        print("\n".join(report.profile_lines(trajectory, evaluation)))
    return ACCEPTED if trajectory.accepted(candidate.id) else REJECTED


def _judge(arguments: argparse.Namespace, files: Sequence[str], *, profile: bool) -> Trajectory:
    common.check_writable(arguments.json)
    job = common.job_of(arguments)
    if not Path(job.file).is_dir():
        raise InputError("this is no contract folder", hint="make one with `hiera contract FILE --out DIR`",
                         file=job.file)
    paths = [Path(file) for file in files] or [Path(job.file) / "cuda_source.cu"]
    sources = [(path, _read(path)) for path in paths]

    async def main(_cancel: asyncio.Event) -> Trajectory:
        return await _evaluate(job, sources, profile)

    return common.run(main, stop_at_once=True)


async def _evaluate(job: Job, sources: Sequence[tuple[Path, str]], profile: bool) -> Trajectory:
    services, trajectory = local.LocalServices(), Trajectory(run="")

    def apply(kind: str, value: object) -> None:
        trajectory.apply(Event(kind, 0.0, value))

    with tempfile.TemporaryDirectory(prefix="hiera-") as made:
        apply("job", job)
        apply("device", device := await services.device(job))
        task = await services.task(job, Path(made) / "contract", device)
        apply("contract", task.contract)
        apply("workload", workload := services.workload(task.contract, device))
        evaluator = await services.evaluator(job, task, device, workload, lambda text: apply("note", Note(text=text)))
        try:
            apply("baseline", await evaluator.baseline())
            for path, text in sources:
                candidate = Candidate(id=candidate_id(task.contract.id, text), source=text, round=0, author="user",
                                      space=job.space or "cuda_libs_torch", title=path.name)
                apply("candidate", candidate)
                apply("evaluation", evaluation := await evaluator.evaluate(task.contract, candidate))
                if profile and evaluation.failure is None:
                    apply("evaluation", await evaluator.profiled(task.contract, candidate, evaluation))
        finally:
            await evaluator.close()
    return trajectory


def _verdict(trajectory: Trajectory, candidate: Candidate) -> str:
    evaluation = trajectory.evaluations[candidate.id]
    time, speedup = report.times(evaluation)
    if trajectory.accepted(candidate.id):
        where = evaluation.verification.where if evaluation.verification else ""
        return f"{candidate.title}: accepted ({where}), {time}, {speedup}"
    failure = evaluation.failure
    reason = f"at {failure.stage}: {failure.reason}" if failure else report.why_not(trajectory, evaluation)
    lines = [f"{candidate.title}: rejected {reason}"]
    if failure:
        lines += [f"  line {error.line}: {error.message}" for error in failure.errors[:5]]
    return "\n".join(lines)


def _no_verdict(evaluation: Evaluation) -> bool:
    """True where the machine, not the candidate, was the trouble."""
    return evaluation.failure is None and evaluation.verification is None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("there is no such candidate", hint="check the path, or write the folder's cuda_source.cu",
                         file=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the candidate cannot be read: {error}", hint="give a UTF-8 text file", file=path) from None


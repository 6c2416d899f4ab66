"""One candidate's evidence as plain texts: what compilers and judge said, counters, the talk with a model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine import report
from engine.records import Build, Candidate, Evaluation, Verification
from engine.trajectory import Exchange, Trajectory

# Roles of a conversation, in words.
ROLES = {"system": "Instructions", "user": "Question", "assistant": "Answer"}


def build_log(trajectory: Trajectory, candidate: Candidate) -> str:
    """How a candidate was built and judged, and what the tools said."""
    evaluation = trajectory.evaluations.get(candidate.id)
    lines = [f"candidate {candidate.id}, round {candidate.round}, space {candidate.space}"
             + (f", direction {candidate.direction}" if candidate.direction else ""), report.titled(candidate)]
    if evaluation is None:
        return "\n".join([*lines, "", "It was not judged."]) + "\n"
    lines.append(f"{report.state(trajectory, evaluation)}, "
                 + ("judged in an earlier run" if evaluation.cached else f"judged in {evaluation.seconds:.1f} s"))
    lines += _failed(evaluation)
    lines += _built(evaluation.build)
    lines += _judged(evaluation.verification)
    return "\n".join(lines).rstrip() + "\n"


def counters_text(trajectory: Trajectory, candidate: Candidate) -> str:
    """Roof, compiler's facts and counters of a candidate."""
    evaluation = trajectory.evaluations.get(candidate.id)
    lines = report.profile_lines(trajectory, evaluation) if evaluation else ["counters not measured: it was not judged"]
    return "\n".join([f"candidate {candidate.id}", *lines]) + "\n"


def conversation(exchanges: Sequence[tuple[Exchange, Sequence[tuple[str, str]]]]) -> str:
    """Questions and answers as Markdown. Texts are fenced, whatever fences they hold themselves."""
    parts = []
    for exchange, messages in exchanges:
        head = f"# {exchange.about}, round {exchange.round}"
        parts.append(head + (f"\n\nThe answer could not be used: {exchange.problem}" if exchange.problem else ""))
        parts += [f"## {ROLES.get(role, role)}\n\n{_fenced(text)}" for role, text in messages]
    return "\n\n".join(parts) + "\n"


def _failed(evaluation: Evaluation) -> list[str]:
    failure = evaluation.failure
    if failure is None:
        return []
    lines = ["", f"slower: {failure.reason}" if evaluation.slower else f"rejected at {failure.stage}: {failure.reason}"]
    lines += [f"  line {error.line}: {error.message}" if error.line is not None else f"  {error.message}"
              for error in failure.errors]
    return [*lines, "", "the tool's last lines:", failure.log_tail] if failure.log_tail else lines


def _built(build: Build | None) -> list[str]:
    if build is None:
        return []
    target = f" for sm_{build.compiled_for}" if build.compiled_for else ""
    lines = ["", f"built in {build.seconds:.1f} s ({build.tier}{', from the cache' if build.cached else ''}){target}"]
    for kernel in build.kernels:
        occupancy = f", occupancy {kernel.occupancy:.0%}" if kernel.occupancy is not None else ""
        lines.append(f"  {kernel.name}: {kernel.registers} registers, {kernel.shared_bytes} bytes shared, "
                     f"{kernel.spill_bytes} bytes spilled{occupancy}")
    return [*lines, *(f"  warning: {warning}" for warning in build.warnings)]


def _judged(verification: Verification | None) -> list[str]:
    if verification is None:
        return []
    lines = ["", f"verified {verification.where} ({verification.isolation})"]
    lines += [f"  {check.name}: {check.status}" + (f" ({check.detail})" if check.detail else "")
              for check in verification.checks]
    return [*lines, *(f"  {name} = {value:.6g}" for name, value in verification.metrics.items())]


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"

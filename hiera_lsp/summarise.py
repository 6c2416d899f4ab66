"""From a run's whole record to the small picture that the editor shows. Used by jobs, not by the server."""

from __future__ import annotations

from pathlib import Path

from engine import report
from engine.records import Evaluation
from engine.report import usage_words
from engine.trajectory import Trajectory
from hiera_lsp.summary import CandidateSummary, HotLineSummary, Summary


def summarise(trajectory: Trajectory, folder: Path) -> Summary:
    """Take from a trajectory what the editor shows."""
    workload, best = trajectory.workload, trajectory.best
    evaluation = trajectory.evaluations.get(best.id) if best else None
    profiled = _profiled(trajectory)
    bound, evidence, how = _bottleneck(trajectory, profiled, evaluation)
    round_of_best = best.round if best else 0
    plan = next((p for p in trajectory.plans if p.round == round_of_best), next(iter(trajectory.plans[-1:]), None))
    verification = evaluation.verification if evaluation else None
    counters = evaluation.counters if evaluation else None
    return Summary(
        run=trajectory.run,
        folder=str(folder),
        name=trajectory.contract.name if trajectory.contract else "",
        entry=trajectory.contract.entry if trajectory.contract else "",
        measured=trajectory.measured,
        device=trajectory.device.name if trajectory.device else "",
        stop_reason=trajectory.stopped.reason if trajectory.stopped else "",
        wall_s=trajectory.wall_s,
        bound=bound,
        evidence=evidence,
        evidence_how=how,
        intensity=workload.intensity if workload and workload.arithmetic_known else None,
        floor_us=workload.floor_us if workload else None,
        roof_us=workload.roof_us if workload else None,
        eager_us=trajectory.baseline.eager_us,
        compile_us=trajectory.baseline.compile_us,
        space=best.space if best else plan.space if plan else "",
        space_reason=plan.space_reason if plan else "",
        direction=plan.direction if plan else "",
        move=best.direction if best else "",
        direction_reason=plan.reason if plan else "",
        scores={code: (score.value, score.reason) for code, score in plan.scores.items()} if plan else None,
        candidates=tuple(_candidate(trajectory, folder, i) for i in range(len(trajectory.candidates))),
        best=best.id if best else None,
        checks={check.name: check.status for check in verification.checks} if verification else None,
        where=verification.where if verification else "",
        isolation=verification.isolation if verification else "",
        hot_lines=tuple(
            HotLineSummary(line=hot.line, share=hot.share, stall=hot.stall)
            for hot in (profiled.counters.lines if profiled and profiled.counters else ())
        ),
        hot_candidate=profiled.candidate_id if profiled else "",
        notes=tuple(dict.fromkeys(trajectory.notes)),
        tokens=trajectory.usage.prompt_tokens + trajectory.usage.completion_tokens,
        model=usage_words(trajectory.usage),
        sm=trajectory.device.sm if trajectory.device else "",
        complete=trajectory.stopped is not None and trajectory.stopped.complete,
        profiled=counters.status if counters and counters.status != "measured" else "",
    )


def _profiled(trajectory: Trajectory) -> Evaluation | None:
    """Whose counters are shown: the user's own code as it is, else the best, else any candidate."""
    best = trajectory.best
    order = [c.id for c in trajectory.candidates if c.author == "user"] + ([best.id] if best else [])
    evaluations = [trajectory.evaluations.get(name) for name in order] + list(trajectory.evaluations.values())
    return next((e for e in evaluations if e and e.counters is not None and e.counters.bound is not None), None)


def _bottleneck(
    trajectory: Trajectory, profiled: Evaluation | None, best: Evaluation | None
) -> tuple[str, tuple[str, ...], str]:
    """Bound, evidence and where it comes from: counters, else the workload."""
    if profiled is not None and profiled.counters is not None and profiled.counters.bound is not None:
        candidate = trajectory.candidate(profiled.candidate_id)
        own = candidate is not None and candidate.author == "user"
        of = "your code" if own else f"candidate {profiled.candidate_id}"
        return profiled.counters.bound, profiled.counters.evidence[:3], f"measured on {of}"
    workload = trajectory.workload
    if workload is None:
        return "", (), "not available"
    every = [best, *trajectory.evaluations.values()]
    reasons = [e.counters.status for e in every if e is not None and e.counters is not None]
    moved = f"{workload.bytes / 1e6:.4g} MB must move"
    evidence = (
        (f"{moved}, {workload.flops / 1e9:.4g} GFLOP must be done", f"{workload.intensity:.3g} FLOP a byte")
        if workload.arithmetic_known else (moved, f"{report.ARITHMETIC_UNKNOWN}: only bytes were counted")
    )
    return workload.bound, evidence, f"estimated ({reasons[0]})" if reasons else "estimated"


def _candidate(trajectory: Trajectory, folder: Path, index: int) -> CandidateSummary:
    candidate = trajectory.candidates[index]
    evaluation = trajectory.evaluations.get(candidate.id)
    timing = evaluation.timing if evaluation else None
    failure = evaluation.failure if evaluation else None
    over_own = trajectory.over_own(candidate.id)
    return CandidateSummary(
        id=candidate.id,
        round=candidate.round,
        author=candidate.author,
        title=report.titled(candidate),
        space=candidate.space,
        direction=candidate.direction,
        state=report.state(trajectory, evaluation),
        source=str(folder / "sources" / f"{candidate.id}.cu"),
        accepted=trajectory.accepted(candidate.id),
        rejected=failure.reason if failure else "",
        median_us=timing.median_us if timing else None,
        speedup=timing.speedup if timing else None,
        ci95=timing.ci95 if timing else None,
        speedup_vs_compile=timing.speedup_vs_compile if timing else None,
        compile_ci95=timing.compile_ci95 if timing else None,
        planned=next((p.direction for p in trajectory.plans if p.round == candidate.round), ""),
        confirmed=evaluation.confirmed if evaluation else None,
        over=trajectory.reference_words,
        own_speedup=over_own[0] if over_own else None,
        own_ci95=over_own[1] if over_own else None,
    )

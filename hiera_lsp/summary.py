"""What the editor shows about a run: a small picture of a trajectory, safe to keep in memory and on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine import report
from engine.records import Evaluation
from engine.report import usage_words
from engine.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSummary:
    """One candidate. Times in microseconds; None where not measured.

    Attributes:
        source: Path of its stored cuda_source.cu.
        state: `verified`, `confirmed`, `rejected`, ... as `hiera show` says.
        rejected: Why it was rejected, or empty.
    """

    id: str
    round: int
    author: str
    title: str
    space: str
    direction: str
    state: str
    source: str
    accepted: bool
    rejected: str = ""
    median_us: float | None = None
    speedup: float | None = None
    ci95: tuple[float, float] | None = None
    speedup_vs_compile: float | None = None
    confirmed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLineSummary:
    """A line of the best candidate's text and its share of stall samples."""

    line: int
    share: float
    stall: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run as hover, diagnostics, lenses and code actions need it.

    Attributes:
        run: Run id.
        folder: The run's folder.
        name: Contract name.
        entry: Host function's name.
        measured: True where times come from a GPU.
        bound: `memory`, `compute` or `latency`.
        evidence: Sentences that prove the bound, with value and unit.
        evidence_how: `measured`, or `estimated`, or `not measured: reason`.
        scores: Direction to score and reason.
        checks: Check name to status, of the best candidate.
        where: How it was verified, such as `gpu`.
        sm: Compute capability of the device, such as `9.0`.
        complete: False where the run can be resumed.
        model: What a language model cost, in words; empty where none was asked.
        profiled: Why the counters of the best were not read; empty where they were, or nobody asked.
    """

    run: str
    folder: str
    name: str
    entry: str
    measured: bool
    device: str
    stop_reason: str
    wall_s: float
    bound: str = ""
    evidence: tuple[str, ...] = ()
    evidence_how: str = "estimated"
    intensity: float | None = None
    floor_us: float | None = None
    roof_us: float | None = None
    eager_us: float | None = None
    compile_us: float | None = None
    space: str = ""
    space_reason: str = ""
    direction: str = ""
    direction_reason: str = ""
    scores: Mapping[str, tuple[float, str]] | None = None
    candidates: tuple[CandidateSummary, ...] = ()
    best: str | None = None
    checks: Mapping[str, str] | None = None
    where: str = ""
    isolation: str = ""
    hot_lines: tuple[HotLineSummary, ...] = ()
    notes: tuple[str, ...] = ()
    tokens: int = 0
    model: str = ""
    sm: str = ""
    complete: bool = True
    profiled: str = ""

    @property
    def best_candidate(self) -> CandidateSummary | None:
        """The best accepted candidate."""
        return next((c for c in self.candidates if c.id == self.best), None)

    @property
    def is_faster(self) -> bool:
        """True when the best candidate's interval lies above 1: only then a speed-up is claimed."""
        best = self.best_candidate
        return best is not None and best.ci95 is not None and best.ci95[0] > 1.0


def summarise(trajectory: Trajectory, folder: Path) -> Summary:
    """Take from a trajectory what the editor shows."""
    workload, best = trajectory.workload, trajectory.best
    evaluation = trajectory.evaluations.get(best.id) if best else None
    bound, evidence, how = _bottleneck(trajectory, evaluation)
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
        intensity=workload.intensity if workload else None,
        floor_us=workload.floor_us if workload else None,
        roof_us=workload.roof_us if workload else None,
        eager_us=trajectory.baseline.eager_us,
        compile_us=trajectory.baseline.compile_us,
        space=best.space if best else plan.space if plan else "",
        space_reason=plan.space_reason if plan else "",
        direction=(best.direction if best else "") or (plan.direction if plan else ""),
        direction_reason=plan.reason if plan else "",
        scores={code: (score.value, score.reason) for code, score in plan.scores.items()} if plan else None,
        candidates=tuple(_candidate(trajectory, folder, i) for i in range(len(trajectory.candidates))),
        best=best.id if best else None,
        checks={check.name: check.status for check in verification.checks} if verification else None,
        where=verification.where if verification else "",
        isolation=verification.isolation if verification else "",
        hot_lines=tuple(
            HotLineSummary(line=hot.line, share=hot.share, stall=hot.stall)
            for hot in (counters.lines if counters else ())
        ),
        notes=tuple(dict.fromkeys(trajectory.notes)),
        tokens=trajectory.usage.prompt_tokens + trajectory.usage.completion_tokens,
        model=usage_words(trajectory.usage),
        sm=trajectory.device.sm if trajectory.device else "",
        complete=trajectory.stopped is not None and trajectory.stopped.complete,
        profiled=counters.status if counters and counters.status != "measured" else "",
    )


def with_profile(summary: Summary, profile: Summary) -> Summary:
    """An optimisation's summary with what a later profile found; speed-ups and candidates stay as they were."""
    return replace(
        summary, bound=profile.bound or summary.bound, evidence=profile.evidence or summary.evidence,
        evidence_how=profile.evidence_how, intensity=profile.intensity, floor_us=profile.floor_us,
        roof_us=profile.roof_us, hot_lines=profile.hot_lines, profiled=profile.profiled,
    )


def _bottleneck(trajectory: Trajectory, best: Evaluation | None) -> tuple[str, tuple[str, ...], str]:
    """Bound, evidence and where it comes from: counters of the best, else of any candidate, else the workload."""
    order = [best] if best else []
    order += [e for e in trajectory.evaluations.values() if e is not best]
    for evaluation in order:
        if evaluation is not None and evaluation.counters is not None and evaluation.counters.bound is not None:
            return evaluation.counters.bound, evaluation.counters.evidence[:3], "measured"
    workload = trajectory.workload
    if workload is None:
        return "", (), "not available"
    reasons = [e.counters.status for e in order if e is not None and e.counters is not None]
    evidence = (
        f"{workload.bytes / 1e6:.4g} MB must move, {workload.flops / 1e9:.4g} GFLOP must be done",
        f"{workload.intensity:.3g} FLOP a byte",
    )
    return workload.bound, evidence, f"estimated ({reasons[0]})" if reasons else "estimated"


def _candidate(trajectory: Trajectory, folder: Path, index: int) -> CandidateSummary:
    candidate = trajectory.candidates[index]
    evaluation = trajectory.evaluations.get(candidate.id)
    timing = evaluation.timing if evaluation else None
    failure = evaluation.failure if evaluation else None
    return CandidateSummary(
        id=candidate.id,
        round=candidate.round,
        author=candidate.author,
        title=candidate.title,
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
        confirmed=evaluation.confirmed if evaluation else None,
    )

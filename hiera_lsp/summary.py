"""What the editor shows about a run: a small picture of a trajectory, safe to keep in memory and on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSummary:
    """One candidate. Times in microseconds; None where not measured.

    Attributes:
        source: Path of its stored cuda_source.cu.
        state: `verified`, `confirmed`, `rejected`, `slower`, ... as `hiera show` says.
        rejected: Why it was rejected, or left as slower; or empty.
        direction: Direction of the move that made it; empty for a beginning.
        planned: Direction that its round's plan chose.
        compile_ci95: Interval of `speedup_vs_compile`.
        over: What it was timed against, in words.
        own_speedup: Over the user's own kernel, where that is a candidate and not the reference.
        own_ci95: Interval of `own_speedup`.
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
    compile_ci95: tuple[float, float] | None = None
    planned: str = ""
    confirmed: bool | None = None
    over: str = "eager"
    own_speedup: float | None = None
    own_ci95: tuple[float, float] | None = None

    @property
    def faster(self) -> bool:
        """True when it is faster than what the user has: the interval lies above 1."""
        interval = self.own_ci95 or self.ci95
        return self.author != "user" and interval is not None and interval[0] > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLineSummary:
    """A line of the profiled candidate's text and its share of stall samples."""

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
        evidence_how: `measured on ...`, or `estimated` with the reason.
        direction: Direction that the plan of the best candidate's round chose.
        move: Direction of the move that made the best candidate.
        hot_candidate: Candidate whose lines `hot_lines` are; empty for the best.
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
    hot_candidate: str = ""
    move: str = ""
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
    def profiled_candidate(self) -> CandidateSummary | None:
        """The candidate that the hot lines belong to."""
        wanted = self.hot_candidate or self.best
        return next((c for c in self.candidates if c.id == wanted), None) if self.hot_lines else None


def with_profile(summary: Summary, profile: Summary) -> Summary:
    """An optimisation's summary with what a later profile found; speed-ups and candidates stay as they were."""
    return replace(
        summary, bound=profile.bound or summary.bound, evidence=profile.evidence or summary.evidence,
        evidence_how=profile.evidence_how, intensity=profile.intensity, floor_us=profile.floor_us,
        roof_us=profile.roof_us, hot_lines=profile.hot_lines, profiled=profile.profiled,
        hot_candidate=profile.hot_candidate or profile.best or "",
    )

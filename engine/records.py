"""What the engine decides and finds, as frozen data. Units are in the names; samples are stored, summaries computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from contracts.contract import Space

Bound = Literal["memory", "compute", "latency"]
Stage = Literal["proposed", "screened", "built", "verified", "timed", "profiled", "confirmed"]
STAGES: tuple[Stage, ...] = (
    "proposed", "screened", "built", "verified", "timed", "profiled", "confirmed",
)
How = Literal["measured", "estimated", "emulated", "not available"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The GPU a job runs for. `kind` is `none` where no GPU is used; the rest is then the target.

    Attributes:
        kind: `cuda` where kernels really run on a GPU.
        name: Marketing name, such as `NVIDIA H200`.
        sm: Compute capability, such as `9.0`.
        driver: Driver version, or empty.
        index: CUDA device index.
        pci: PCI bus address, by which NVIDIA's management library finds the card; empty where unknown.
        sm_count: Multiprocessors.
        l2_bytes: Size of the L2 cache.
        memory_bytes: Device memory.
        dram_bytes_per_s: Peak DRAM bandwidth by the data sheet.
        copy_bytes_per_s: Bandwidth of a large device copy, read plus written; measured or from the table.
        flops_per_s: Peak by arithmetic: keys `fp64`, `fp32`, `tf32`, `fp16`, `bf16`.
        shared_bytes_per_block: Largest dynamic shared memory of a block (opt-in).
        launch_us: Time of an empty kernel.
        peaks: Where the rates come from.
    """

    kind: Literal["cuda", "none"]
    name: str
    sm: str
    driver: str = ""
    index: int = 0
    pci: str = ""
    sm_count: int = 0
    l2_bytes: int = 0
    memory_bytes: int = 0
    dram_bytes_per_s: float = 0.0
    copy_bytes_per_s: float = 0.0
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    shared_bytes_per_block: int = 0
    launch_us: float = 0.0
    peaks: Literal["data sheet", "estimated"] = "data sheet"

    @property
    def arch(self) -> str:
        """Architecture number as nvcc writes it: `90` for 9.0."""
        return self.sm.replace(".", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One operator's part in the module's time.

    Attributes:
        node: Graph node name.
        op: Operator, such as `aten.conv2d.default`.
        share: Fraction of the module's time, 0 to 1.
        us: Microseconds, where measured.
        how: Where the number comes from.
    """

    node: str
    op: str
    share: float
    us: float | None = None
    how: How = "estimated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Times of the reference, medians in microseconds; None where not measured."""

    eager_us: float | None = None
    compile_us: float | None = None
    compile_mode: str | None = None
    compile_s: float | None = None
    graph_us: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """What the work costs at least, independent of the implementation space.

    Attributes:
        bytes: Bytes that must be read and written once.
        flops: Floating-point operations of the operators as written.
        launches: Kernels an eager run launches (estimated from the graph, or measured).
        intensity: FLOPs per byte.
        bound: What limits an ideal implementation.
        floor_us: Time below which a result is physically implausible.
        roof_us: Time of an ideal implementation at measured copy bandwidth and allowed arithmetic.
        shares: Time per operator, largest first.
        arithmetic: The key of `Device.flops_per_s` the roof uses.
    """

    bytes: int
    flops: int
    launches: int
    intensity: float
    bound: Bound
    floor_us: float
    roof_us: float
    shares: tuple[Share, ...] = ()
    arithmetic: str = "fp32"

    @property
    def arithmetic_known(self) -> bool:
        """False where there was no operator to count operations of, so that `flops` says nothing."""
        return bool(self.flops or self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Relevance of one direction, 0 to 10, and one sentence why."""

    value: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One decision of the search-space decision agent (SSDA).

    Attributes:
        round: Counted from 1.
        space: Chosen implementation space.
        space_reason: Why, in one sentence.
        scores: Direction code to score, for every direction.
        direction: The primary direction.
        reason: Why the direction, in one sentence.
        transfer: What was learnt in another space and used here, one sentence each.
        author: `expert`, or a model's name.
    """

    round: int
    space: Space
    space_reason: str
    scores: Mapping[str, Score]
    direction: str
    reason: str
    transfer: tuple[str, ...] = ()
    author: str = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What the strategy planning agent (SPA) makes of a plan.

    Attributes:
        steps: Concrete transformation steps, in order.
        constraints: What the code must not do.
        moves: For the expert: changes of recipe, one mapping a candidate wanted.
        author: `expert`, or a model's name.
    """

    steps: tuple[str, ...]
    constraints: tuple[str, ...]
    moves: tuple[Mapping[str, object], ...] = ()
    author: str = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One `cuda_source.cu`.

    Attributes:
        id: First 12 hex digits of the SHA-256 of contract id and source.
        source: The text.
        space: The space it claims; the build enforces it.
        direction: Direction it follows; empty for a seed.
        round: Counted from 1; 0 for the reference file.
        author: `expert`, `user`, or a model's name.
        title: What is special about it, in a few words.
        parents: Ids it was made from.
        recipe: For the expert: the choices that made it.
        reduced_source: The same recipe at the reduced contract's sizes, for runs without a GPU.
    """

    id: str
    source: str
    space: Space
    direction: str = ""
    round: int = 1
    author: str = "expert"
    title: str = ""
    parents: tuple[str, ...] = ()
    recipe: Mapping[str, object] = field(default_factory=dict)
    reduced_source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """Static facts of one compiled kernel, from ptxas."""

    name: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int = 0
    occupancy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildError:
    """One compiler message. `line` counts in the user's own cuda_source.cu, None if it has no line."""

    line: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A build's evidence.

    Attributes:
        seconds: From text to shared object.
        tier: `light` (our headers), `torch` (PyTorch's headers), `emulated` (g++, no GPU), `cached`.
        kernels: Static facts, where nvcc ran.
        warnings: Compiler warnings worth showing.
        extension: Path of the importable extension, or None when only compiled.
        module: The extension's module name, for PyInit_.
        compiled_for: Architecture nvcc compiled for, or empty.
    """

    seconds: float
    tier: Literal["light", "torch", "emulated", "compile only"]
    kernels: tuple[KernelFacts, ...] = ()
    warnings: tuple[str, ...] = ()
    extension: str | None = None
    module: str = ""
    compiled_for: str = ""
    cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One named check of the verifier. `status` is `pass`, `fail`, or `not run: why`."""

    name: str
    status: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The judge's verdict.

    Attributes:
        match, strict, kernelbench: Verdict under each precision policy; None where not judged.
        checks: Every check by name.
        where: `gpu`, or `cpu emulation at full size`, or `cpu emulation at reduced size`.
        isolation: The sandbox that really was in force.
        metrics: Numbers of the error rule, such as `rms_ratio`, the worst over outputs and trials.
    """

    match: bool | None
    strict: bool | None
    kernelbench: bool | None
    checks: tuple[Check, ...]
    where: str
    isolation: str = "process"
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def unmet(self) -> tuple[Check, ...]:
        """Checks that stand against it: those that failed, and mandatory ones that did not run."""
        return tuple(c for c in self.checks if c.status == "fail" or (c.status != "pass" and c.name in MANDATORY))

    def accepts(self, precision: str) -> bool:
        """True when the policy is met and no mandatory check failed or was left out."""
        return getattr(self, precision) is True and all(c.status == "pass" for c in self.checks if c.name in MANDATORY)


# A skipped check of this list is a non-accept, not a pass (verification.md, 0.5).
MANDATORY = frozenset({"outputs", "numeric", "inputs untouched", "fresh inputs", "poison"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSample:
    """The card's state beside one pair of timed blocks; None where the driver does not tell."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Paired timing. Sample lists are microseconds a call, one median per block, in order.

    Attributes:
        candidate_us: Block medians of the candidate.
        reference_us: Block medians of the reference, interleaved with the candidate's.
        speedup: Reference over candidate, by the Hodges-Lehmann estimate over quads of blocks.
        ci95: Interval of `speedup`, never narrower than what the run can see: above 1 it claims a gain.
        minimum_detectable: Smallest difference the run could see, as a fraction.
        same_vs_same: Half width of the interval of blocks of one side against blocks of the same side, as a fraction:
            what the run would call a difference where there is none. None for timings from before it was taken.
        wall_us: Parent's wall-clock slope a call, None where not taken.
        speedup_vs_compile: Against the best torch.compile mode, None where not measured.
        compile_ci95: Its interval.
        warm_us: Median with warm caches, None where not taken.
        clock: What decided, such as `cuda events, cold L2`.
        notes: Sentences for the user, such as that events and wall clock disagree.
        clocks: The card's state after each pair of blocks; empty where the driver does not tell.
        strangers: Other processes that had the GPU open meanwhile.
    """

    candidate_us: tuple[float, ...]
    reference_us: tuple[float, ...]
    speedup: float
    ci95: tuple[float, float]
    minimum_detectable: float = 0.01
    same_vs_same: float | None = None
    wall_us: float | None = None
    speedup_vs_compile: float | None = None
    compile_ci95: tuple[float, float] | None = None
    warm_us: float | None = None
    clock: str = "cuda events, cold L2"
    notes: tuple[str, ...] = ()
    clocks: tuple[ClockSample, ...] = ()
    strangers: tuple[str, ...] = ()

    @property
    def median_us(self) -> float:
        """Median over blocks of the candidate's time."""
        return median(self.candidate_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One profiler value. `value` is None where the counter was not measured."""

    name: str
    value: float | None
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounters:
    """Counters of one launch."""

    kernel: str
    launch_index: int
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLine:
    """A line of cuda_source.cu and its share of stall samples."""

    line: int
    share: float
    stall: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What Nsight Compute found, or why there is nothing.

    Attributes:
        status: `measured`, or `not measured: reason`.
        tool: ncu's version, or empty.
        kernels: Per launch.
        lines: Hottest source lines, hottest first.
        bound: Attributed bottleneck of the whole call, None where it cannot be told.
        evidence: Sentences with value and unit that prove `bound`.
        limiter: Stable code of the bottleneck, such as `dram-bandwidth`; space-independent.
    """

    status: str
    tool: str = ""
    kernels: tuple[KernelCounters, ...] = ()
    lines: tuple[HotLine, ...] = ()
    bound: Bound | None = None
    evidence: tuple[str, ...] = ()
    limiter: str = ""


# What a candidate's failure is called that is right as far as it was looked at, but slower than the best so far.
SLOWER = "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a candidate went no further.

    Attributes:
        stage: The stage that stopped it: `screen`, `build`, `verify`, `time`, `profile`, `confirm`; or `SLOWER`, where
            nothing is known against it but that it is slower than another.
        reason: One sentence for a person; names the check.
        log_tail: The last lines of the tool's own output.
        errors: Compiler messages with the user's lines.
    """

    stage: str
    reason: str
    log_tail: str = ""
    errors: tuple[BuildError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All evidence about one candidate. Absent facts are None."""

    candidate_id: str
    stage: Stage
    failure: Failure | None = None
    build: Build | None = None
    verification: Verification | None = None
    timing: Timing | None = None
    counters: Counters | None = None
    estimate_us: float | None = None
    seconds: float = 0.0
    cached: bool = False
    confirmed: bool | None = None
    # Wall seconds of each part: `build`, `wait` for the judge or the GPU, `load`, `verify`, `time`.
    stage_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def slower(self) -> bool:
        """True where all that stands against it is that it is slower than another: its time is a brief one."""
        return self.failure is not None and self.failure.stage == SLOWER

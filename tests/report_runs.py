"""Records of runs as the loop would have made them, for tests of what shows them. No number here was measured."""

from __future__ import annotations

from dataclasses import replace

from engine.records import (
    Baseline,
    Build,
    Candidate,
    Check,
    Counters,
    Device,
    Evaluation,
    Failure,
    HotLine,
    KernelCounters,
    KernelFacts,
    Metric,
    Plan,
    Score,
    Share,
    Strategy,
    Timing,
    WorkloadProfile,
)
from engine.trajectory import Event, Job, Note, Stopped, Trajectory, candidate_id
from tests.fakes import accepted, contract_of

CONTRACT = contract_of(["relu", "exp"])
DEVICE = Device(kind="cuda", name="Test GPU", sm="9.0", driver="1", sm_count=132, dram_bytes_per_s=4.8e12,
                copy_bytes_per_s=4.3e12, flops_per_s={"fp32": 67e12, "tf32": 494e12})
WORK = WorkloadProfile(bytes=1 << 27, flops=1 << 28, launches=3, intensity=2.0, bound="memory", floor_us=28.0,
                       roof_us=31.2, shares=(Share(node="v0", op="aten.relu.default", share=0.6),
                                             Share(node="v1", op="aten.exp.default", share=0.4, how="measured", us=40.0)))
BASELINE = Baseline(eager_us=100.0, compile_us=64.0, compile_mode="max-autotune")
JOB = Job(file="model.py", name="Chain", preset="normal")


def candidate(number: int, *, round_: int = 1, direction: str = "M", **fields: object) -> Candidate:
    source = f"// candidate {number}\n__global__ void k() {{}}\n"
    made = Candidate(id=candidate_id(CONTRACT.id, source), source=source, space="cuda", direction=direction,
                     round=round_, title=f"idea {number}")
    return replace(made, **fields)


def timed(made: Candidate, speedup: float, *, confirmed: bool | None = None) -> Evaluation:
    us = 100.0 / speedup
    return Evaluation(
        candidate_id=made.id, stage="confirmed" if confirmed else "timed", confirmed=confirmed,
        build=Build(seconds=2.0, tier="light", warnings=("variable x was never used",),
                    kernels=(KernelFacts(name="k", registers=40, shared_bytes=0, spill_bytes=0, occupancy=0.75),)),
        verification=replace(accepted(), checks=(*accepted().checks, Check(name="guard bands", status="pass",
                                                                          detail="64 bytes either side"))),
        timing=Timing(candidate_us=(us,), reference_us=(100.0,), speedup=speedup,
                      ci95=(speedup * 0.97, speedup * 1.03), speedup_vs_compile=speedup * 0.64))


def rejected(made: Candidate, reason: str = "check numeric: 7 of 8 elements differ", stage: str = "verify") -> Evaluation:
    verification = replace(accepted(), match=False, strict=False, checks=(
        Check(name="outputs", status="pass"), Check(name="numeric", status="fail", detail=reason),
        Check(name="stream order", status="not run: the device has one stream"))) if stage == "verify" else None
    return Evaluation(candidate_id=made.id, stage="built" if verification else "screened", verification=verification,
                      failure=Failure(stage=stage, reason=reason, log_tail="error: line 3: no such type"))


def plan(number: int, direction: str = "M", **fields: object) -> Plan:
    scores = {code: Score(value=value, reason=f"reason for {code}")
              for code, value in zip("CPMRT", (2.0, 3.0, 8.5, 4.0, 0.0), strict=True)}
    made = Plan(round=number, space="cuda", space_reason="own kernels reach the roof", scores=scores,
                direction=direction, reason="DRAM is busy", transfer=("reads were not coalesced",) if number > 1 else ())
    return replace(made, **fields)


def run_of(*values: tuple[str, object], name: str = "20260102-030405-Chain-abcd") -> Trajectory:
    """A trajectory of events; times are those of a clock that ticks once an event."""
    trajectory = Trajectory(run=name)
    for number, (kind, value) in enumerate(values):
        trajectory.apply(Event(kind, float(number), value))
    return trajectory


def head(device: Device = DEVICE, work: WorkloadProfile = WORK) -> list[tuple[str, object]]:
    return [("job", JOB), ("contract", CONTRACT), ("device", device), ("workload", work)]


def measured_events(speedups: tuple[float | None, ...] = (1.2, None, 0.8, 1.9, 1.7, None, 2.6)) -> list[tuple[str, object]]:
    """A run on a GPU: one candidate for each speed-up, rejected where it is None; three in a round."""
    events = head()
    ids: list[tuple[float, Candidate]] = []
    for number, speedup in enumerate(speedups):
        round_ = 1 + number // 3
        if number % 3 == 0:
            events += [("plan", plan(round_)), ("strategy", Strategy(steps=("read 16 bytes a lane",),
                                                                     constraints=("keep the border",)))]
        made = candidate(number, round_=round_)
        events += [("candidate", made),
                   ("evaluation", timed(made, speedup) if speedup is not None else rejected(made))]
        if speedup is not None:
            ids.append((speedup, made))
    if ids:
        speedup, best = max(ids, key=lambda pair: pair[0])
        counters = Counters(
            status="measured", tool="2026.1", bound="memory", limiter="dram-bandwidth",
            evidence=("DRAM at 91 % of its peak",), lines=(HotLine(line=2, share=0.7, stall="long scoreboard", text="k()"),),
            kernels=(KernelCounters(kernel="k", launch_index=0, metrics=(
                Metric(name="dram_busy", value=91.0, unit="%"), Metric(name="l2_hit", value=None, unit="%"))),))
        events += [("baseline", BASELINE), ("evaluation", replace(timed(best, speedup, confirmed=True), counters=counters))]
    return [*events, ("note", Note(text="a note")), ("stopped", Stopped(reason="budget: all candidates made"))]


def unmeasured_events() -> list[tuple[str, object]]:
    """A run without a GPU: verified on the CPU, with static estimates only."""
    shares = tuple(replace(share, how="estimated", us=None) for share in WORK.shares)
    events = head(replace(DEVICE, kind="none", driver=""), replace(WORK, shares=shares))
    events.append(("plan", plan(1)))
    for number in range(3):
        made = candidate(number)
        found = rejected(made) if number == 1 else Evaluation(
            candidate_id=made.id, stage="verified", estimate_us=40.0 + number,
            verification=accepted("cpu emulation at reduced size"))
        events += [("candidate", made), ("evaluation", found)]
    return [*events, ("stopped", Stopped(reason="budget: all candidates made"))]

"""A trajectory as a document: the `--json` data (schema 1) and the text for a terminal.

Absent facts are null or left out, never invented; what was not measured says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from contracts import codec
from contracts.contract import Contract
from engine.records import SLOWER, Candidate, Device, Evaluation, Share, WorkloadProfile
from engine.trajectory import Trajectory, Usage

SCHEMA = 1
# Of a `.cu` file without a `// hiera: reference` line there is no operator graph to count operations in.
ARITHMETIC_UNKNOWN = "arithmetic not known"


def contract_document(contract: Contract | None) -> dict[str, Any] | None:
    """The `contract` object of the JSON document."""
    if contract is None:
        return None
    return {
        "name": contract.name, "id": contract.id, "entry": contract.entry, "mode": contract.mode,
        "precision": contract.precision, "arguments": [codec.to_data(a) for a in contract.arguments],
        "outputs": [codec.to_data(o) for o in contract.outputs], "variants": [v.name for v in contract.variants],
    }


def device_document(device: Device | None) -> dict[str, Any] | None:
    """The `device` object of the JSON document."""
    if device is None:
        return None
    return {"kind": device.kind, "name": device.name, "sm": device.sm, "driver": device.driver or None}


def _over_own(trajectory: Trajectory, candidate: Candidate) -> dict[str, Any]:
    over = trajectory.over_own(candidate.id)
    return {"speedup_vs_own": over[0] if over else None, "own_ci95": list(over[1]) if over else None}


def evaluation_document(evaluation: Evaluation | None) -> dict[str, Any]:
    """The evidence part of a candidate's object; all null where it was not evaluated."""
    build = evaluation.build if evaluation else None
    verification = evaluation.verification if evaluation else None
    timing = evaluation.timing if evaluation else None
    failure = evaluation.failure if evaluation else None
    left = failure if evaluation and evaluation.slower else None
    found = None if left else failure
    return {
        "stage": evaluation.stage if evaluation else "proposed",
        "rejected": found.reason if found else None,
        "rejected_at": found.stage if found else None,
        "slower": left.reason if left else None,
        "errors": [codec.to_data(e) for e in failure.errors] if failure else [],
        "build_s": build.seconds if build else None,
        "build_tier": build.tier if build else None,
        "kernels": [codec.to_data(k) for k in build.kernels] if build else None,
        "median_us": timing.median_us if timing else None,
        "wall_us": timing.wall_us if timing else None,
        "speedup": timing.speedup if timing else None,
        "ci95": list(timing.ci95) if timing else None,
        "speedup_vs_compile": timing.speedup_vs_compile if timing else None,
        "timing": codec.to_data(timing) if timing else None,
        "estimate_us": evaluation.estimate_us if evaluation else None,
        "verification": {
            "match": verification.match, "strict": verification.strict, "kernelbench": verification.kernelbench,
            "where": verification.where, "isolation": verification.isolation,
            "checks": {check.name: check.status for check in verification.checks},
            "metrics": codec.to_data(verification.metrics),
        } if verification else None,
        "counters": codec.to_data(evaluation.counters) if evaluation and evaluation.counters else None,
        "confirmed": evaluation.confirmed if evaluation else None,
        "cached": evaluation.cached if evaluation else None,
        "seconds": evaluation.seconds if evaluation else None,
        "stage_s": dict(evaluation.stage_s) if evaluation else None,
    }


def document(trajectory: Trajectory, *, folder: Path | None = None) -> dict[str, Any]:
    """The whole `--json` document of `optimize` (design §6, schema 1).

    Args:
        trajectory: The record.
        folder: The run's folder, for the paths of sources.
    """
    workload, baseline = trajectory.workload, trajectory.baseline
    best = trajectory.best
    timing = trajectory.evaluations[best.id].timing if best else None
    eager_us = baseline.eager_us
    if eager_us is None and timing is not None:
        # A job that ended early has no baseline of its own, but each timing is paired with the reference.
        eager_us = median(timing.reference_us)
    plans = {plan.round: plan for plan in trajectory.plans}
    return {
        "schema": SCHEMA,
        "run": trajectory.run,
        "contract": contract_document(trajectory.contract),
        "device": device_document(trajectory.device),
        "workload": {
            "bytes": workload.bytes, "flops": workload.flops, "launches": workload.launches,
            "intensity": codec.to_data(workload.intensity), "bound": workload.bound, "floor_us": workload.floor_us,
            "roof_us": workload.roof_us, "shares": [codec.to_data(s) for s in workload.shares],
        } if workload else None,
        "baseline": {"eager_us": eager_us, "compile_us": baseline.compile_us,
                     "compile_mode": baseline.compile_mode, "compile_s": baseline.compile_s,
                     "graph_us": baseline.graph_us},
        "plans": [codec.to_data(plan) for plan in trajectory.plans],
        "strategies": [codec.to_data(strategy) for strategy in trajectory.strategies],
        "candidates": [
            {
                "id": c.id, "round": c.round, "author": c.author, "title": c.title, "space": c.space,
                "direction": c.direction or None, "parents": list(c.parents),
                "scores": {code: score.value for code, score in plans[c.round].scores.items()}
                if c.round in plans else None,
                **evaluation_document(trajectory.evaluations.get(c.id)), **_over_own(trajectory, c),
                "source": str(folder / "sources" / f"{c.id}.cu") if folder else None,
            }
            for c in trajectory.candidates
        ],
        "best": best.id if best else None,
        "measured": trajectory.measured,
        "stop_reason": trajectory.stopped.reason if trajectory.stopped else None,
        "wall_s": trajectory.wall_s,
        "first_verified_s": trajectory.first_verified_s,
        "llm": codec.to_data(trajectory.usage),
        "notes": list(dict.fromkeys(trajectory.notes)),
    }


def progress_line(trajectory: Trajectory, *, rounds: int, budget: int) -> str:
    """One line about a running job, such as `round 2/3 · 9/18 · best 1.83x (verified) · direction M`."""
    done = sum(c.id in trajectory.evaluations for c in trajectory.candidates if c.round > 0)
    parts = []
    if trajectory.plans:
        parts.append(f"round {trajectory.plans[-1].round}/{rounds}")
    parts.append(f"{done}/{budget}")
    parts.append(best_words(trajectory))
    if trajectory.plans:
        parts.append(f"direction {trajectory.plans[-1].direction}")
    return " · ".join(parts)


def best_words(trajectory: Trajectory) -> str:
    """The best so far in a few words, with how sure it is."""
    best = trajectory.best
    if best is None:
        return "nothing verified yet" if trajectory.stopped is None else "nothing verified"
    evaluation = trajectory.evaluations[best.id]
    state = "confirmed" if evaluation.confirmed else "verified"
    if evaluation.timing is not None:
        return f"best {evaluation.timing.speedup:.2f}x ({state})"
    estimate = f", estimated {evaluation.estimate_us:.3g} us" if evaluation.estimate_us is not None else ""
    return f"best {best.id} ({state}, not measured{estimate})"


def text(trajectory: Trajectory, *, folder: Path | None = None) -> str:
    """The summary for a terminal."""
    lines = [*_task_lines(trajectory), "", *_plan_lines(trajectory), "", *_candidate_lines(trajectory), "",
             *_result_lines(trajectory, folder)]
    return "\n".join(lines)


def _task_lines(trajectory: Trajectory) -> list[str]:
    contract, device, workload, baseline = (trajectory.contract, trajectory.device, trajectory.workload,
                                            trajectory.baseline)
    lines = [f"run        {trajectory.run}"]
    if contract:
        tensors = ", ".join(f"{a.name}: {a.tensor}" for a in contract.tensor_arguments if a.role == "input")
        lines.append(f"contract   {contract.name} ({contract.id}), {contract.mode}, precision {contract.precision}")
        lines.append(f"inputs     {tensors or 'none'}; {sum(a.role == 'parameter' for a in contract.arguments)}"
                     f" parameters, {sum(a.role == 'buffer' for a in contract.arguments)} buffers")
        lines.append("outputs    " + ", ".join(map(str, contract.outputs)))
    if device:
        how = "measured on it" if device.kind == "cuda" else "no GPU here: nothing below is a measured time"
        lines.append(f"device     {device.name} sm_{device.arch} ({how})")
    if workload:
        work = f"{workload.flops / 1e9:.3g} GFLOP" if workload.arithmetic_known else ARITHMETIC_UNKNOWN
        lines.append(f"workload   {bound_words(workload)}, {workload.bytes / 1e6:.3g} MB, {work}, "
                     f"{workload.launches} launches, roof {workload.roof_us:.4g} us (estimated)")
        if workload.shares:
            lines.append("operators  " + ", ".join(f"{s.op} {s.share:.0%}" for s in operator_shares(workload)[:4])
                         + f" ({workload.shares[0].how})")
    if baseline.eager_us is not None:
        compiled = (f"torch.compile {baseline.compile_us:.4g} us ({baseline.compile_mode})"
                    if baseline.compile_us is not None else "torch.compile not measured")
        lines.append(f"baseline   eager {baseline.eager_us:.4g} us, {compiled}")
    return lines


def bound_words(workload: WorkloadProfile) -> str:
    """What limits an ideal implementation, and that only bytes were counted where that is so."""
    return f"{workload.bound} bound" + ("" if workload.arithmetic_known else " by its bytes alone")


def operator_shares(workload: WorkloadProfile) -> tuple[Share, ...]:
    """Shares of time for people, largest first: an operator that stands in several places is one."""
    found: dict[str, Share] = {}
    for share in workload.shares:
        before = found.get(share.op)
        found[share.op] = share if before is None else replace(before, share=before.share + share.share)
    return tuple(sorted(found.values(), key=lambda share: -share.share))


def _plan_lines(trajectory: Trajectory) -> list[str]:
    lines = []
    for plan, strategy in zip(trajectory.plans, [*trajectory.strategies, None], strict=False):
        scores = " ".join(f"{code}={score.value:g}" for code, score in plan.scores.items())
        by = f" (planned by {plan.author})" if plan.author != "expert" else ""
        lines.append(f"round {plan.round}{by}: space {plan.space}: {plan.space_reason}")
        lines.append(f"  direction {plan.direction or 'none'} ({scores or 'no scores'}): {plan.reason}")
        lines += [f"  learnt elsewhere: {sentence}" for sentence in plan.transfer]
        if strategy is not None:
            lines += [f"  - {step}" for step in strategy.steps[:3]]
    return lines or ["no round was planned"]


def _candidate_lines(trajectory: Trajectory) -> list[str]:
    lines = [f"{'candidate':14}{'round':6}{'space':17}{'move':5}{'state':12}{'time':>12}  {'speed-up':24}what"]
    for candidate in trajectory.candidates:
        evaluation = trajectory.evaluations.get(candidate.id)
        time, speedup = times(evaluation)
        what = titled(candidate)
        if evaluation and evaluation.failure:
            what = f"{what}: {evaluation.failure.reason}" if what else evaluation.failure.reason
        lines.append(f"{candidate.id:14}{candidate.round:<6}{candidate.space:17}{candidate.direction or '-':5}"
                     f"{state(trajectory, evaluation):12}{time:>12}  {speedup:24}{what}"[:200])
    return lines


def titled(candidate: Candidate) -> str:
    """A candidate's title with what it took over from its parents, and its author unless that is the expert."""
    if candidate.author not in ("expert", "user"):
        return f"{candidate.author}: {candidate.title}"
    choices = candidate.recipe.get("choices")
    earlier = [f"{key} = {value}" for key, value in choices.items() if not _names(candidate.title, key, value)] \
        if isinstance(choices, Mapping) else []
    return f"{candidate.title}, with {', '.join(earlier)}" if earlier and candidate.title else candidate.title


def _names(title: str, key: str, value: object) -> bool:
    """True when a title such as `every width = 2` or `a.unroll = 4` tells of the choice."""
    return f"{key} = {value}" in title or f"every {key.rpartition('.')[2]} = {value}" in title


def state(trajectory: Trajectory, evaluation: Evaluation | None) -> str:
    """How far a candidate came, in a word or two."""
    if evaluation is None:
        return "not judged"
    if evaluation.slower:
        return SLOWER
    if evaluation.failure is not None or not trajectory.accepted(evaluation.candidate_id):
        return "rejected"
    return "confirmed" if evaluation.confirmed else evaluation.stage


def times(evaluation: Evaluation | None) -> tuple[str, str]:
    """Time and speed-up in words; an estimate says that it is one."""
    if evaluation and evaluation.timing:
        timing = evaluation.timing
        return f"{timing.median_us:.4g} us", f"{timing.speedup:.2f}x [{timing.ci95[0]:.2f}, {timing.ci95[1]:.2f}]"
    if evaluation and evaluation.estimate_us is not None:
        return f"~{evaluation.estimate_us:.4g} us", "estimate, not measured"
    return "-", "-"


def usage_words(usage: Usage) -> str:
    """What a language model cost, in words; empty where none was asked."""
    if not usage.requests and not usage.cached_answers:
        return ""
    about = "about " if usage.estimated else ""
    cost = f", {usage.dollars:.3g} dollars" if usage.dollars is not None else ""
    cached = f", {usage.cached_answers} answers from the cache" if usage.cached_answers else ""
    return (f"{usage.model}: {usage.requests} requests, {about}{usage.prompt_tokens} tokens of prompts and "
            f"{usage.completion_tokens} of answers{cost}{cached}")


def _result_lines(trajectory: Trajectory, folder: Path | None) -> list[str]:
    lines = [f"note: {note}" for note in dict.fromkeys(trajectory.notes)]
    if words := usage_words(trajectory.usage):
        lines.append(f"model {words}")
    best = trajectory.best
    if trajectory.stopped:
        lines.append(f"stopped: {trajectory.stopped.reason}, after {trajectory.wall_s:.1f} s"
                     + ("" if trajectory.first_verified_s is None
                        else f" (first verified candidate after {trajectory.first_verified_s:.1f} s)"))
    if best is None:
        return [*lines, "result: no candidate was accepted"]
    evaluation = trajectory.evaluations[best.id]
    timing, verification = evaluation.timing, evaluation.verification
    if timing is None and trajectory.is_as_it_stands(best.id):
        lines.append(f"result: {best.id}, the file as it stands, is {best_state(evaluation)}; nothing better can be "
                     "told without a GPU")
    elif timing is None:
        lines.append(f"result: {best.id} is {best_state(evaluation)}; no GPU, so no speed-up is claimed")
    elif not trajectory.is_faster(best.id):
        lines.append(f"result: nothing faster was found; the best accepted candidate {best.id} runs at "
                     f"{gain_words(trajectory, best)}")
    else:
        lines.append(f"result: {best.id}, {gain_words(trajectory, best)} ({timing.clock}), {best_state(evaluation)}")
        if timing.speedup_vs_compile is not None:
            lines.append(f"        {timing.speedup_vs_compile:.2f}x over the best torch.compile mode")
    if timing is not None and (over := trajectory.over_own(best.id)) and timing.ci95[1] < 1.0:
        # Varying a kernel seldom reaches another algorithm: who has a faster one at hand is to be told.
        lines.append(f"        its reference is {1 / timing.speedup:.1f} times faster still, and "
                     f"{over[0] / timing.speedup:.1f} times faster than the file as it stands: call that instead?")
    if verification is not None:
        lines.append(f"verified {verification.where} ({verification.isolation}): "
                     + ", ".join(f"{c.name} {c.status}" for c in verification.checks))
    if evaluation.counters is not None:
        lines += [f"counters {evaluation.counters.status}", *[f"  {line}" for line in evaluation.counters.evidence]]
    lines += [f"note: {note}" for note in (timing.notes if timing else ())]
    if folder is not None:
        lines.append(f"source: {folder / 'sources' / (best.id + '.cu')}")
    return lines


def gain_words(trajectory: Trajectory, candidate: Candidate) -> str:
    """`1.83x [1.80, 1.86] over eager`; where the user has a kernel already, over that first. It must be timed."""
    timing = trajectory.evaluations[candidate.id].timing
    assert timing is not None

    def interval(speedup: float, ci95: tuple[float, float], over: str) -> str:
        return f"{speedup:.2f}x [{ci95[0]:.2f}, {ci95[1]:.2f}] over {over}"

    own = trajectory.over_own(candidate.id)
    reference = interval(timing.speedup, timing.ci95, trajectory.reference_words)
    return reference if own is None else f"{interval(*own, 'the file as it stands')}; {reference}, its reference"


def why_not(trajectory: Trajectory, evaluation: Evaluation) -> str:
    """Why a candidate without a failure is not accepted, naming the checks."""
    verification = evaluation.verification
    if verification is None:
        return "it was not verified"
    bad = [f"{check.name}: {check.status} {check.detail}".strip() for check in verification.unmet]
    if getattr(verification, trajectory.precision) is not True:
        bad.insert(0, f"precision {trajectory.precision} is not met")
    return "; ".join(bad) or "it was not timed"


def profile_lines(trajectory: Trajectory, evaluation: Evaluation) -> list[str]:
    """Counters, bound, roofline position and hot lines of one candidate, as text."""
    counters, workload, timing = evaluation.counters, trajectory.workload, evaluation.timing
    lines = []
    if workload is not None:
        lines.append(f"roof {workload.roof_us:.4g} us, the workload is {bound_words(workload)} (estimated)")
        if timing is not None and workload.roof_us > 0:
            lines.append(f"time {timing.median_us:.4g} us, {timing.median_us / workload.roof_us:.2f} times the roof")
    for kernel in evaluation.build.kernels if evaluation.build else ():
        occupancy = f", occupancy {kernel.occupancy:.0%} (by ptxas)" if kernel.occupancy is not None else ""
        lines.append(f"kernel {kernel.name}: {kernel.registers} registers, {kernel.shared_bytes} bytes shared, "
                     f"{kernel.spill_bytes} bytes spilled{occupancy}")
    if counters is None:
        return [*lines, "counters not measured: the candidate was not profiled"]
    lines.append(f"counters {counters.status}" + (f" (ncu {counters.tool})" if counters.tool else ""))
    if counters.bound:
        lines.append(f"bound {counters.bound}, limiter {counters.limiter or 'unknown'}")
    lines += [f"  {sentence}" for sentence in counters.evidence]
    for kernel in counters.kernels:
        lines.append(f"  launch {kernel.launch_index} {kernel.kernel}")
        lines += [f"    {m.name} = " + ("n/a" if m.value is None else f"{m.value:.6g} {m.unit}")
                  for m in kernel.metrics]
    lines += [f"  line {hot.line}: {hot.share:.0%} of stalls, {hot.stall}: {hot.text}" for hot in counters.lines]
    return lines


def best_state(evaluation: Evaluation) -> str:
    """`confirmed`, or how far it came."""
    return "confirmed in a fresh build" if evaluation.confirmed else "verified, not confirmed"

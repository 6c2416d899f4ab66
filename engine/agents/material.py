"""What a model is told about a situation, as texts; those that may be shortened in several forms, fullest first.

Only evidence of finished rounds and of the expert's seeds is told, and numbers are rounded, so that a repeated or
resumed run asks the same questions and is answered from the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from contracts.folder import declaration
from contracts.graph import Const, Graph, Node, Ref
from engine.agents import Situation
from engine.agents.own_file import own_file
from engine.agents.parsing import bare, fingerprint
from engine.agents.prompts import Prompts, data
from engine.evaluate.inputs import architecture
from engine.evaluate.occupancy import LIMITS, REGISTERS_PER_SM, WARP
from engine.planning.catalog import Note
from engine.records import Candidate, Evaluation, Plan, Strategy
from engine.report import why_not

PRECISION = {
    "match": "the error against a double-precision reference may be that of fp32 arithmetic in another order (tens of "
             "times the strict reference's is still accepted), or that of the reference as it runs, not of fewer bits",
    "strict": "the error against a double-precision reference must be that of careful fp32 arithmetic",
    "kernelbench": "every element must agree with the reference within 1e-4, absolute or relative",
}
LINES = 5


def contract(situation: Situation) -> str:
    """Interface, arguments with meaning, outputs, shapes to serve, precision."""
    found = situation.contract
    own = own_file(situation)
    place = "`cuda_source.cu` must define exactly this host function"
    if own is not None and own.adaptor:
        place = f"`cuda_source.cu` must define `{own.function}` as it is called for this host function"
    lines = [f"{place}:\n\n    {declaration(found)}\n",
             f"It stands for {found.name} in {found.mode} mode. Arguments, in order:"]
    for a in found.arguments:
        what = str(a.tensor) if a.tensor is not None else f"the number {a.value}"
        marks = [a.role, *(["must be written in place"] if a.mutable else []),
                 *([f"values from {a.low} to {a.high}"] if a.low is not None and a.high is not None else [])]
        if a.path.replace(".", "_") != a.name:
            marks.append(a.path)
        lines.append(f"- {a.name}: {what} ({', '.join(marks)})")
    lines.append("Outputs, in order: " + ", ".join(map(str, found.outputs)))
    for variant in found.variants[1:]:
        shapes = ", ".join(f"{name} {list(spec.shape)}" for name, spec in variant.tensors.items()
                           if spec != found.example.tensors.get(name))
        lines.append(f"It must also serve {variant.name}: {shapes}")
    if found.free_dims:
        free = "; ".join(" = ".join(f"{name}.size({dim})" for name, dim in group) for group in found.free_dims)
        lines.append(f"These sizes may differ from call to call: {free}")
    if found.flags:
        lines.append("The reference runs with " + ", ".join(f"{k} = {v}" for k, v in sorted(found.flags.items())))
    lines.append(f"Precision: {PRECISION[found.precision]}.")
    return "\n".join(lines)


def rules(prompts: Prompts, situation: Situation) -> str:
    """What every source must keep to, whatever the strategy."""
    text = prompts.text("rules", {})
    if (own := own_file(situation)) is not None:
        text += "\n" + own.told(situation)
    if situation.device.kind == "none":
        small, sizes = situation.reduced, ""
        if small is not None:
            shapes = ", ".join(f"{a.name} {list(a.tensor.shape)}" for a in small.tensor_arguments if a.tensor)
            sizes = f"- It is verified at these small sizes, so host code must take them too: {shapes}"
        text += "\n" + prompts.text("rules_no_gpu", {"sizes": sizes})
    return text


def reference(situation: Situation) -> tuple[str, ...]:
    """The user's own text, and without it."""
    text = situation.reference
    if situation.contract.reference == "cuda":
        own = next((c for c in situation.trajectory.candidates if c.round == 0), None)
        text = own.source if own else text
    return (data("the reference, for its meaning only", text), "") if text else ("",)


def graph(situation: Situation) -> tuple[str, ...]:
    """Operators with arguments and layouts; then operators only; then counts."""
    found = situation.contract.graph
    if found is None:
        return ("",)
    full = "\n".join(_node(node, found) for node in found.nodes)
    short = "\n".join(f"{node.out} = {node.base}({', '.join(node.refs())}) -> {_layouts(node, found)}"
                      for node in found.nodes)
    counts = ", ".join(f"{n} x {base}" for base, n in Counter(node.base for node in found.nodes).most_common())
    head = "Operators of the reference, in order:\n"
    return head + data("operator graph", full), head + data("operator graph", short), f"Operators: {counts}."


def workload(situation: Situation) -> str:
    """What the work costs at least, and where the reference's time goes."""
    w = situation.workload
    ideal = f"An ideal implementation is {w.bound} bound and takes {_short(w.roof_us)} us."
    work = (f" and {_short(w.flops / 1e9)} GFLOP ({w.arithmetic}) be done, {_short(w.intensity)} FLOP a byte"
            if w.arithmetic_known else "; how much arithmetic must be done is not known")
    lines = [f"At least {_short(w.bytes / 1e6)} MB must move{work}.",
             f"The reference makes {w.launches} launches. {ideal}"]
    if w.shares:
        lines.append(f"Share of the reference's time ({w.shares[0].how}): "
                     + ", ".join(f"{s.op} ({s.node}) {s.share:.0%}" for s in w.shares[:8]))
    timings = [t for c in ranked(situation) if (t := situation.trajectory.evaluations[c.id].timing) is not None]
    eager = situation.trajectory.baseline.eager_us
    if eager is None and timings:
        eager = median(timings[0].reference_us)  # Baselines come last, but every timing is paired with the reference.
    if eager is not None:
        lines.append(f"The reference takes {_short(eager)} us.")
    return "\n".join(lines)


def device(situation: Situation) -> str:
    """The GPU's facts."""
    d = situation.device
    rates = ", ".join(f"{key} {value / 1e12:.3g}" for key, value in d.flops_per_s.items())
    holds = LIMITS.get(d.sm)
    multiprocessor = "" if holds is None else (
        f"; a multiprocessor holds {REGISTERS_PER_SM} registers, {holds.warps * WARP} threads, {holds.blocks} blocks "
        f"and {holds.shared_bytes / 1024:.0f} KiB of shared memory, of which each block costs "
        f"{holds.reserved_shared_bytes} bytes more than it asks for")
    here = "at hand" if d.kind == "cuda" else "not at hand: no GPU is here"
    return (f"{d.name} (compiled for sm_{architecture(d.sm)}; {here}), {d.sm_count} multiprocessors, L2 "
            f"{d.l2_bytes / 2**20:.0f} MiB, a copy at {d.copy_bytes_per_s / 1e12:.2g} TB/s read plus written, "
            f"{d.shared_bytes_per_block / 1024:.0f} KiB shared memory a block at most, an empty launch "
            f"{_short(d.launch_us)} us{multiprocessor}" + (f"; TFLOP/s: {rates}" if rates else ""))


def space(situation: Situation, name: str) -> str:
    """What a space permits and forbids."""
    row = situation.catalog.spaces[name]
    inner = [situation.catalog.spaces[n] for n in situation.catalog.allowed(name)]
    permits = list(dict.fromkeys(item for r in reversed(inner) for item in r.permits))
    return "\n".join([f"{name}: {row.title}. Permitted: {'; '.join(permits)}.",
                      *(f"- {item}" for item in row.constraints)])


def decision(situation: Situation, plan: Plan) -> str:
    """The plan in words."""
    row = situation.catalog.directions[plan.direction]
    scores = ", ".join(f"{code} {score.value:g}" for code, score in plan.scores.items())
    return (f"Space {plan.space}: {plan.space_reason}\nDirection {plan.direction}, {row.title} (it addresses "
            f"{row.addresses}): {plan.reason}\nScores: {scores}\nUsual steps: {' '.join(row.steps)}")


def strategy(plan: Plan, chosen: Strategy) -> str:
    """Steps and constraints."""
    return "\n".join([f"Direction {plan.direction}: {plan.reason}", "Steps:", *(f"- {s}" for s in chosen.steps),
                      "Constraints:", *(f"- {c}" for c in chosen.constraints)])


def notes(found: Sequence[Note]) -> tuple[str, ...]:
    """Expert notes whole, then as lists, then none."""
    whole = "\n\n".join(note.text.partition("\n\n")[2].strip() for note in found[:6])
    lists = "\n".join(f"- {step}" for note in found[:3] for step in note.do)
    return whole or "none", lists or "none", "none"


def known(situation: Situation) -> list[Candidate]:
    """Candidates that may be told about: those of earlier rounds and the expert's of this one, once judged."""
    trajectory = situation.trajectory
    return [c for c in trajectory.candidates if c.id in trajectory.evaluations
            and (c.round < situation.round or c.author == "expert")]


def ranked(situation: Situation) -> list[Candidate]:
    """Accepted ones of `known`, fastest first."""
    told = {c.id for c in known(situation)}
    return [c for c in situation.trajectory.ranked() if c.id in told]


def tried(situation: Situation) -> tuple[str, ...]:
    """A line a candidate: all, the last ones, none."""
    lines = [_verdict(situation, c) for c in known(situation)]
    if not lines:
        return ("Nothing was tried yet.",)
    head = "Candidates so far:\n"
    return head + "\n".join(lines), head + "\n".join(lines[-6:]), f"{len(lines)} candidates were tried."


def failures(situation: Situation) -> tuple[str, ...]:
    """First errors of failed candidates, the newest first: five, two, none."""
    failed = [(c, situation.trajectory.evaluations[c.id]) for c in reversed(known(situation))
              if (e := situation.trajectory.evaluations[c.id]).failure is not None and not e.slower]
    texts = [data(f"why candidate {c.id} failed", failure(evaluation, most=2)) for c, evaluation in failed]
    return tuple("\n".join(texts[:n]) for n in ((5, 2, 0) if texts else (0,)))


def failure(evaluation: Evaluation, *, most: int = 8, source: str = "") -> str:
    """A failure's stage, reason and first errors, with the lines of `source` they are about."""
    found = evaluation.failure
    if found is None:
        return "It was judged, but not accepted."
    lines = [f"stage {found.stage}: {found.reason}"]
    text = source.splitlines()
    for error in found.errors[:most]:
        lines.append(f"line {error.line}: {error.message}" if error.line else error.message)
        if error.line and 0 < error.line <= len(text):
            lines.append(f"    {text[error.line - 1].strip()}")
    if not found.errors and found.log_tail:
        lines += found.log_tail.strip().splitlines()[-12:]
    for check in evaluation.verification.checks if evaluation.verification else ():
        if check.status == "fail":
            lines.append(f"check {check.name} failed: {check.detail}")
    return "\n".join(line[:400] for line in lines)


def evidence(situation: Situation) -> tuple[str, ...]:
    """Counters, kernel facts and hottest lines of the best candidate; then without lines; then none."""
    best = next(iter(ranked(situation)), None)
    if best is None:
        return ("",)
    found = situation.trajectory.evaluations[best.id]
    lines = []
    for k in found.build.kernels if found.build else ():
        occupancy = f", occupancy {k.occupancy:.0%}" if k.occupancy is not None else ""
        lines.append(f"kernel {k.name[:80]}: {k.registers} registers, {k.shared_bytes} bytes shared, {k.spill_bytes} "
                     f"bytes spilled{occupancy}")
    counters, hot = found.counters, []
    if counters is not None and counters.status == "measured":
        lines.append(f"bound {counters.bound}, limiter {counters.limiter or 'unknown'}")
        lines += counters.evidence
        hot = [f"line {h.line}: {h.share:.0%} of stalls ({h.stall}): {h.text.strip()[:100]}" for h in
               counters.lines[:LINES]]
    title = f"profile of the best candidate {best.id}"
    return data(title, "\n".join(lines + hot)), data(title, "\n".join(lines[:6])), ""


def best_source(situation: Situation) -> tuple[str, ...]:
    """The best accepted source whole, without comments, and only mentioned."""
    best = next(iter(ranked(situation)), None)
    if best is None:
        return ("No candidate was accepted yet.",)
    head = f"The best so far, {_verdict(situation, best)}. Its source:\n"
    title = f"source of candidate {best.id}"
    return head + data(title, best.source), head + data(title, bare(best.source)), head.partition(" Its source")[0]


def _verdict(situation: Situation, candidate: Candidate) -> str:
    found = situation.trajectory.evaluations[candidate.id]
    if found.slower and found.timing is not None:
        said = f"right as far as it was looked at, but slower: {found.timing.speedup:.2f}x"
    elif found.failure is not None:
        said = f"rejected at {found.failure.stage}"
    elif not situation.trajectory.accepted(candidate.id):
        said = f"not accepted: {why_not(situation.trajectory, found)[:100]}"
    elif found.timing is not None:
        said = f"{_short(found.timing.median_us)} us, {found.timing.speedup:.2f}x"
    elif found.estimate_us is not None:
        said = f"verified, estimated {_short(found.estimate_us)} us"
    else:
        said = "verified"
    title = " ".join(candidate.title.split())[:80]
    return (f"{candidate.id} (round {candidate.round}, {candidate.author}, {candidate.space}, "
            f"direction {candidate.direction or 'none'}): {said}; {title}")


def same_as(situation: Situation, source: str) -> Candidate | None:
    """The candidate whose text is the same but for comments and spaces, or None."""
    print_ = fingerprint(source)
    return next((c for c in situation.trajectory.candidates if fingerprint(c.source) == print_), None)


def spaces(situation: Situation) -> str:
    """The spaces to choose from."""
    return "\n".join(space(situation, name) for name in situation.spaces)


def directions(situation: Situation) -> str:
    """The directions to score."""
    return "\n".join(f"- {code}: {row.title}; for {row.addresses}" for code, row in
                     situation.catalog.directions.items())


def _node(node: Node, found: Graph) -> str:
    arguments = ", ".join(f"{name}={_value(value)}" for name, value in node.args.items() if value is not None)
    place = f"  # {node.module}" if node.module else ""
    return f"{node.out} = {node.op}({arguments}) -> {_layouts(node, found)}{place}"


def _layouts(node: Node, found: Graph) -> str:
    return ", ".join(str(found.values[name]) for name in node.outputs if name in found.values)


def _value(value: object) -> str:
    match value:
        case Ref(name=name):
            return name
        case Const(value=text):
            return text
        case tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return str(value)


def _short(value: float) -> str:
    """Three digits: noise of measurements must not make another question."""
    return f"{float(value):.3g}"

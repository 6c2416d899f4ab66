"""Role `judge`: secret inputs, references and comparison, in a process that never loads a candidate.

One judge serves one contract. Inputs lie in a shared slab (parameters and buffers first, then one
region per argument set); candidates copy outputs into a second one. Expected values stay private.
"""

import math
import time

import torch
from _hiera_worker import (
    blocks,
    judge_change,
    judge_compare,
    judge_facts,
    judge_formats,
    judge_inputs,
    judge_kept,
    judge_null,
    judge_state,
    slabs,
)
from _hiera_worker.judge_reference import Reference, rehearse
from _hiera_worker.judge_state import LARGE_BYTES, SLACK, State
from _hiera_worker.wire import Refusal

# Operators whose kernels assert that probabilities are some: on a GPU that ends every later call of the process.
ASSERTING = frozenset({"bernoulli", "binary_cross_entropy", "multinomial"})


def handle(kind, request, emit):
    """Serve one request; see the functions below for what each one does."""
    served = {
        "warm": warm, "open": open_contract, "draw": draw, "change": change, "expect": expect, "check": check,
        "sums": output_sums, "null_test": null_test, "fill_sets": fill_sets, "time": time_reference,
        "plain": plain, "audit": audit, "compile": compile_reference, "canary": canary, "busy": busy,
        "release": release, "wipe": wipe,
    }.get(kind)
    if served is None:
        raise Refusal(f"unknown request {kind!r}", "this is a fault of ours", kind="internal")
    try:
        return _with_room(served, request)
    except torch.OutOfMemoryError as error:
        release({})
        raise Refusal(f"input too large: the reference ran out of memory ({str(error).splitlines()[0]})",
                      "use smaller example inputs, or a device with more memory", kind="input") from error


def _with_room(served, request):
    """Serve; where memory is short because references are kept, once more without them."""
    try:
        return served(request)
    except torch.OutOfMemoryError:
        if not getattr(State, "kept", None):
            raise
    # Outside of the handler, which would hold the frames and their tensors.
    State.kept.clear()
    judge_state.release_cache(always=True)
    return served(request)


def warm(request):
    """Start torch and the device before there is a contract: it takes seconds, and extraction takes as long."""
    device = torch.device(request["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        one = torch.ones(32, 32, device=device)
        one @ one
    rehearse(device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return {}


def open_contract(request):
    """Load the reference, learn what inputs look like, and allocate the shared memory."""
    state = State
    state.contract = request["contract"]
    state.device = torch.device(request["device"])
    if state.device.type == "cuda":
        torch.cuda.set_device(state.device)
        # The user's own state: the reference is timed with the flags it ships with.
    else:
        torch.set_num_threads(request.get("threads", 1))
    state.reference = Reference(request["folder"], state.contract, state.device, request.get("extension"))
    state.tensors = [a for a in state.contract["arguments"] if a.get("tensor")]
    state.variants = state.contract["variants"]
    state.profiles = judge_facts.profiles()
    state.reference.leaves = []
    state.expected = state.wider = state.drawn = state.values = state.base = None
    state.changed = []
    state.known_places, state.kept, state.sets = {}, judge_kept.Kept(judge_state.keep_bytes()), []
    state.compiled = {}
    state.configurable = judge_facts.flags_matter(state.contract)
    state.spreads = state.configurable and judge_facts.may_multiply(state.contract)
    state.clock = None
    state.carrying = request.get("carrying", False)
    state.confined = request.get("confined", False)
    judge_state.release_cache()
    sizes = [judge_state.set_bytes(i) for i in range(len(state.variants))]
    fixed = max(judge_state.fixed_bytes(i) for i in range(len(state.variants)))
    state.set_bytes = max(sizes)
    budget = request["budget_bytes"]
    size = max(sum(judge_state.extent(s) + 2 * slabs.GUARD_BYTES + SLACK for s in v["outputs"]) for v in state.variants)
    # A timed block keeps the results of all its calls for the audit, so outputs count as well.
    state.set_count = int(max(1, min(request["sets"], (budget - fixed) // max(state.set_bytes + size, 1))))
    # Variants other than the example only ever use the first set.
    total = fixed + max(state.set_bytes, sizes[0] * state.set_count)
    state.fixed = fixed
    copies = request.get("host_copies", False)
    state.slab = slabs.Slab.create(request["shared"] + "/arguments", total, state.device, copies)
    state.out = slabs.Slab.create(request["shared"] + "/outputs", size + SLACK, state.device, copies)
    return {"arguments": state.slab.describe(), "outputs": state.out.describe(), "sets": state.set_count,
            "set_bytes": state.set_bytes, "output_bytes": size, "torch": torch.__version__}


def draw(request):
    """Fill one set with a family's values from a secret seed.

    Args (in the request):
        variant, family, seed, set, phase: Which, what, from where, and where to.
        fixed_seed: Seed of parameters and buffers; the same seed gives the same values again.
    """
    state = State
    state.drawn = dict(request)
    state.expected = state.base = state.wider = None
    state.changed = []
    state.slab.poison()
    places = judge_state.places(request["variant"], request["set"], request["phase"], request.get("odd", False))
    _fill(request, places)
    state.values = {p["name"]: state.slab.view(p["offset"], p["dtype"], p["shape"], p["stride"]) for p in places}
    state.places = places
    judge_state.sum_inputs()
    state.slab.publish()
    return {"arguments": judge_state.described(places), "confined": state.confined}


def change(request):
    """Change one argument in place, an earlier change taken back. The expectation must be made again."""
    state = State
    judge_state.restore_mutable()
    for tensor, old in state.changed:
        judge_change.undo(tensor, old)
    state.changed = []
    tensor = state.values[request["argument"]]
    generator = torch.Generator().manual_seed(request["seed"])
    done = judge_change.change(tensor, state.profiles[request["argument"]], request["where"], generator,
                               confined=state.confined)
    if done:
        state.changed.append((tensor, done))
    state.expected = None
    judge_state.sum_inputs()
    state.slab.publish()
    return {"changed": bool(done)}


def expect(request):
    """Run the references on what was drawn and keep what the outputs must be. Returns what that took, then or now."""
    state = State
    begin = time.perf_counter()
    # The reference may be a kernel that needs aligned inputs itself.
    values = {n: v.clone() for n, v in state.values.items()} if state.drawn.get("odd") else state.values
    state.wider, state.seed = None, request["seed"]
    usual, conditioned = request.get("keep_usual", False), request.get("conditioned", False)
    known = state.variants[0].get("graph") is not None  # Only a graph tells whether something is drawn in the call.
    key = (state.drawn["variant"], tuple(state.sums.values()), usual, conditioned,
           None if known and not state.contract.get("random") else request["seed"])
    found = state.kept.get(key)
    if found is None:
        found = (*_expectation(values, request["seed"], usual, conditioned), time.perf_counter() - begin)
        if state.slab.checksum(*state.range) != state.sum:
            raise Refusal("the reference changed its inputs in place", "mark them mutable in the contract")
        if request.get("keep"):
            state.kept.put(key, found)
    state.expected, note, seconds = found
    placed = judge_state.output_places(state.expected)
    state.outputs = placed
    judge_state.poison_out()
    judge_state.release_cache()
    shares = [e.blank_share for e in state.expected if e.is_float]
    if request.get("remember"):
        state.base = judge_state.small_copies(state.expected)
    return {"outputs": placed, "note": note, "blank_share": max(shares, default=0.0), "shows": _shows(),
            "seconds": seconds}


def _shows():
    """Would the outputs from before the change be refused now? None where nothing is remembered."""
    base = State.base
    if base is None or not State.changed:
        return None
    return any(judge_compare.judge_output(was, now, zero_mean=True)["match"] is False
               for was, now in zip(base, State.expected))


def check(request):
    """Compare what lies in the output slab, and what the call did to its arguments, with the truth."""
    state = State
    state.out.fetch()
    state.slab.fetch()
    zero_mean, loose = request["zero_mean"], request.get("loose", False)
    special, any_order = request.get("special", False), request.get("any_order", False)
    results = []
    for number, expected in enumerate(state.expected):
        if number < len(state.outputs):
            place = state.outputs[number]
            values = state.out.view(place["offset"], place["dtype"], place["shape"], place["stride"])
            name = f"output {number}" if len(state.outputs) > 1 else "output"
        else:
            argument = state.mutable[number - len(state.outputs)]
            values = state.values[argument]
            name = f"argument {argument} after the call"
        values = values.reshape(-1)
        found = judge_compare.judge_output(values, expected, zero_mean, loose)
        if expected.is_float and found["match"] is False and not special:
            found = judge_formats.judged_again(found, number, values, zero_mean, loose)
        if special:
            found["special"] = judge_compare.special_why(
                found, expected, local=not state.spreads, any_order=any_order, tiny=request.get("tiny", False))
        results.append({"name": name, **found})
    untouched, guards = judge_state.inputs_kept()
    return {"results": results, "untouched": untouched, "guards": guards and judge_state.out_guards_kept(),
            "sums": judge_state.output_sums()}


def output_sums(request):
    """Checksums of what lies in the output slab now."""
    State.out.fetch()
    return {"sums": judge_state.sums_of(request["outputs"])}


def null_test(request):
    """Does the task tell a kernel from a constant? Names the trivial answers that would pass."""
    passed = judge_null.null_test(request, draw, lambda seed: _expectation(State.values, seed, False)[0])
    judge_state.release_cache()
    return {"passed": sorted(passed), "carrying": State.carrying}


def fill_sets(request):
    """Fresh values for every argument set that timed calls use. Parameters come from `fixed_seed`.

    Where the sets lie is told with fresh parameters only; it stays the same otherwise.
    """
    state = State
    state.slab.poison() if request.get("poison") else None
    fixed = request.get("fixed", True) or not state.sets
    sets = [judge_state.places(0, number, 0) for number in range(state.set_count)]
    for number, places in enumerate(sets):
        _fill({**request, "variant": 0, "set": number, "seed": request["seed"] + number, "phase": 0}, places,
              fixed=number == 0 and fixed, direct=True)
    if fixed:
        state.sets = [{p["name"]: state.slab.view(p["offset"], p["dtype"], p["shape"], p["stride"]) for p in places}
                      for places in sets]
        state.reference.prepare_timing(state.sets[0])
        state.clock = state.clock or blocks.Clock(state.device)
    state.slab.publish()
    return {"sets": [judge_state.described(places) for places in sets] if fixed else []}


def time_reference(request):
    """Time one block of the reference. `which`: `eager` or a compiled form; `empty_us` is what events cost."""
    state = State
    call = _caller(request["which"])
    torch.manual_seed(request["seed"])
    with torch.no_grad():
        # A judge that holds a compiled reference may have room for fewer sets than the one that drew the order.
        times, _ = state.clock.block(call, [state.sets[i % len(state.sets)] for i in request["order"]])
    return {"times_us": times, "empty_us": state.clock.empty_us()}


def plain(request):
    """Many reference calls with nothing between, for the parent's own clock."""
    with torch.no_grad():
        issued = State.clock.plain(_caller(request["which"]), State.sets, request["count"])
    return {"issue_us": issued}


def audit(request):
    """Expect the outputs of one timed call again; `check` then compares as ever."""
    state = State
    state.values = state.sets[request["set"]]
    state.places = judge_state.places(0, request["set"], 0)
    state.drawn = {"variant": 0}
    judge_state.sum_inputs()
    reply = expect({"seed": request["seed"]})
    # Later calls went on changing mutable arguments: only the outputs can be told.
    state.expected = state.expected[:len(state.outputs)]
    state.reference.prepare_timing(state.sets[0])
    return reply


def compile_reference(request):
    """Compile the reference with torch.compile, or capture it in a CUDA graph. Returns seconds it took."""
    from _hiera_worker import judge_compile

    state = State
    begin = time.perf_counter()
    state.compiled[request["which"]] = judge_compile.make(request["which"], state.reference, state.sets[0])
    return {"seconds": time.perf_counter() - begin}


def busy(request):
    """Keep the device busy beside a candidate for a while: timing that a race depends on then changes."""
    device = State.device
    end = time.perf_counter() + request["seconds"]
    one = torch.ones(1024, 1024, device=device)
    while time.perf_counter() < end:
        for _ in range(8):
            one @ one
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return {}


def canary(_request):
    """A known kernel with a known answer: is the device still sound?"""
    device = State.device
    begin = time.perf_counter()
    values = torch.arange(1 << 20, device=device, dtype=torch.int64)
    sound = int((values * 3).sum().item()) == 3 * (1 << 19) * ((1 << 20) - 1)
    return {"sound": sound, "seconds": time.perf_counter() - begin}


def release(_request):
    """Give back every tensor that can be made again."""
    State.expected = State.base = State.wider = None
    if getattr(State, "kept", None):
        State.kept.clear()
    if getattr(State, "reference", None) is not None:
        State.reference.forget_wide()
    judge_state.release_cache(always=True)
    return {}


def wipe(_request):
    """Poison all shared memory: a candidate that is about to be loaded finds nothing that an earlier one left."""
    for slab in (State.slab, State.out):
        slab.poison()
        slab.publish()
    return {}


def _caller(which):
    state = State
    if which == "eager":
        return state.reference.call_plain
    return state.compiled[which]


def _expectation(values, seed, keep_usual, conditioned=False):
    state = State
    state.mutable = [a["name"] for a in state.tensors if a.get("mutable")]
    note = ""
    torch.manual_seed(seed)
    strict = state.reference.run(values, "strict")
    exact = None
    if state.contract["reference"] == "cuda":
        note = "no fp64 reference: the contract's reference is CUDA text"
    else:
        try:
            torch.manual_seed(seed)
            exact = state.reference.run(values, "double")
        except torch.OutOfMemoryError:
            if state.kept:
                raise  # Once more without what is kept: fp64 tells more.
            state.reference.forget_wide()
            judge_state.release_cache(always=True)
            note = "fp64 reference ran out of memory: compared with the strict reference"
        except (RuntimeError, TypeError, ValueError) as error:
            note = f"fp64 reference failed ({str(error).splitlines()[0][:200]}): compared with the strict reference"
    usual = None
    if keep_usual or (state.device.type == "cuda" and state.configurable):
        torch.manual_seed(seed)
        usual = state.reference.run(values, "configured")
    shaken = None
    if conditioned and exact is not None and state.set_bytes < LARGE_BYTES:
        torch.manual_seed(seed)
        shaken = state.reference.run(_shaken(values), "strict")
    strict = judge_state.near(strict)
    exact, usual, shaken = (runs and judge_state.near(runs) for runs in (exact, usual, shaken))
    chains = judge_state.longest_sums(values, [output.numel() for output in strict])
    made = []
    for number in range(len(strict)):
        # One output at a time, so that the three references of a large one die early.
        wide = None if exact is None else exact[number]
        made.append(judge_compare.Expected(wide, strict[number], None if usual is None else usual[number], keep_usual))
        made[-1].chain = chains[number]
        if shaken is not None:
            made[-1].allow_for(shaken[number])
        strict[number] = None
        if exact is not None:
            exact[number] = None
        if usual is not None:
            usual[number] = None
    return made, note


def _shaken(values):
    """The inputs, each element one rounding error off: what the task itself makes of such errors."""
    generator = torch.Generator(device=State.device).manual_seed(20407)
    inputs = {a["name"] for a in State.tensors if a["role"] == "input"}
    shaken = {}
    for name, value in values.items():
        unit = judge_compare.UNIT.get(value.dtype)
        if unit is None or name not in inputs:
            shaken[name] = value
            continue
        signs = torch.randint(0, 2, value.shape, generator=generator, device=value.device) * 2 - 1
        shaken[name] = value + value * (signs * (2 * unit)).to(value.dtype)
        if State.confined and value.numel():
            shaken[name] = shaken[name].clamp(value.min(), value.max())
    return shaken


def _possible(family):
    """The family to draw: the example's own where the module takes no other values, or none at all."""
    asserts = any(node["op"].split(".")[1] in ASSERTING for variant in State.variants
                  for node in (variant.get("graph") or {"nodes": ()})["nodes"])
    if (State.confined and family not in ("randn", "example")) or (asserts and family in judge_inputs.NOT_FINITE):
        raise Refusal("the module refuses values unlike its example's", "nothing: it is tested with values like those")
    return "example" if State.confined else family


def _fill(request, places, fixed=True, direct=False):
    state = State
    device = state.device
    inputs = torch.Generator(device=device).manual_seed(request["seed"])
    weights = torch.Generator(device=device).manual_seed(request["fixed_seed"])
    family = _possible(request["family"])
    real = []
    if family == "example" and request["variant"] == 0 and not direct and state.set_bytes < LARGE_BYTES:
        real = state.reference.example_inputs(request["seed"])
    position = 0
    for place, argument in zip(places, state.tensors):
        role = argument["role"]
        if role != "input" and not fixed:
            continue
        tensor = state.slab.view(place["offset"], place["dtype"], place["shape"], place["stride"])
        target = slabs.stored(tensor, place["stride"])
        if role == "input" and position < len(real):
            target.copy_(slabs.stored(real[position], place["stride"]))
            position += 1
            continue
        fan_in = max(1, math.prod(place["shape"][1:])) if role == "parameter" else 1
        judge_inputs.fill(target, family, state.profiles[place["name"]], inputs if role == "input" else weights, role,
                          fan_in, position, carrying=state.carrying)
        position += role == "input"

"""Role `judge`: secret inputs, references and comparison, in a process that never loads a candidate.

One judge serves one contract. Inputs lie in a shared slab (parameters and buffers first, then one
region per argument set); candidates copy outputs into a second one. Expected values stay private.
"""

import math
import time

import torch
from _hiera_worker import blocks, judge_compare, judge_inputs, slabs
from _hiera_worker.judge_reference import Reference
from _hiera_worker.wire import Refusal

PHASES = 16
PHASE_STEP = 256
SLACK = 1 << 16
LARGE_BYTES = 1 << 28


class _State:
    """What this judge holds between requests."""


def handle(kind, request, emit):
    """Serve one request; see the functions below for what each one does."""
    served = {
        "open": open_contract, "draw": draw, "perturb": perturb, "expect": expect, "check": check,
        "sums": output_sums, "null_test": null_test, "fill_sets": fill_sets, "time": time_reference,
        "plain": plain, "audit": audit, "compile": compile_reference, "canary": canary, "release": release,
    }.get(kind)
    if served is None:
        raise Refusal("unknown request %r" % kind, "this is a fault of ours", kind="internal")
    try:
        return served(request)
    except torch.OutOfMemoryError as error:
        release({})
        raise Refusal("input too large: the reference ran out of memory (%s)" % str(error).splitlines()[0],
                      "use smaller example inputs, or a device with more memory", kind="input") from error


def open_contract(request):
    """Load the reference, learn what inputs look like, and allocate the shared memory."""
    state = _State
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
    state.profiles = _profiles()
    state.reference.leaves = []
    state.expected = state.drawn = state.values = None
    state.compiled = {}
    state.clock = None
    _release_cache()
    sizes = [_set_bytes(i) for i in range(len(state.variants))]
    fixed = max(_fixed_bytes(i) for i in range(len(state.variants)))
    state.set_bytes = max(sizes)
    budget = request["budget_bytes"]
    state.set_count = int(max(1, min(request["sets"], (budget - fixed) // max(state.set_bytes, 1))))
    # Variants other than the example only ever use the first set.
    total = fixed + max(state.set_bytes, sizes[0] * state.set_count)
    state.fixed = fixed
    state.slab = slabs.Slab.create(request["shared"] + "/arguments", total, state.device)
    size = max(sum(_extent(s) + 2 * slabs.GUARD_BYTES + SLACK for s in v["outputs"]) for v in state.variants)
    state.out = slabs.Slab.create(request["shared"] + "/outputs", size + SLACK, state.device)
    return {"arguments": state.slab.describe(), "outputs": state.out.describe(), "sets": state.set_count,
            "set_bytes": state.set_bytes, "output_bytes": size, "torch": torch.__version__}


def draw(request):
    """Fill one set with a family's values from a secret seed.

    Args (in the request):
        variant, family, seed, set, phase: Which, what, from where, and where to.
        fixed_seed: Seed of parameters and buffers; the same seed gives the same values again.
    """
    state = _State
    state.drawn = dict(request)
    state.expected = None
    state.slab.poison()
    places = _places(request["variant"], request["set"], request["phase"])
    _fill(request, places)
    state.values = {p["name"]: state.slab.view(p["offset"], p["dtype"], p["shape"], p["stride"]) for p in places}
    state.places = places
    _sum_inputs()
    state.slab.publish()
    return {"arguments": _described(places)}


def perturb(request):
    """Change one element of one floating input in place. The expectation must be made again."""
    state = _State
    generator = torch.Generator().manual_seed(request["seed"])
    inputs = [a["name"] for a in state.tensors if a["role"] == "input"]
    usable = [n for n in inputs if state.values[n].dtype.is_floating_point and state.values[n].numel()]
    if not usable:
        return {"changed": False}
    name = usable[int(torch.randint(0, len(usable), (), generator=generator))]
    judge_inputs.perturb(state.values[name], generator)
    state.expected = None
    _restore_mutable()
    _sum_inputs()
    state.slab.publish()
    return {"changed": True}


def expect(request):
    """Run the references on what was drawn and keep what the outputs must be."""
    state = _State
    begin = time.perf_counter()
    state.expected, note = _expectation(state.values, request["seed"], request.get("keep_usual", False))
    placed = _output_places(state.expected)
    state.outputs = placed
    _poison_out()
    if state.slab.checksum(*state.range) != state.sum:
        raise Refusal("the reference changed its inputs in place", "mark them mutable in the contract")
    _release_cache()
    shares = [e.blank_share for e in state.expected if e.is_float]
    return {"outputs": placed, "note": note, "blank_share": max(shares, default=0.0),
            "seconds": time.perf_counter() - begin}


def check(request):
    """Compare what lies in the output slab, and what the call did to its arguments, with the truth."""
    state = _State
    state.out.fetch()
    state.slab.fetch()
    zero_mean = request["zero_mean"]
    results = []
    for number, expected in enumerate(state.expected):
        if number < len(state.outputs):
            place = state.outputs[number]
            values = state.out.view(place["offset"], place["dtype"], place["shape"], place["stride"]).reshape(-1)
            name = "output %d" % number if len(state.outputs) > 1 else "output"
        else:
            argument = state.mutable[number - len(state.outputs)]
            values = state.values[argument].reshape(-1)
            name = "argument %s after the call" % argument
        results.append({"name": name, **judge_compare.judge_output(values, expected, zero_mean)})
    untouched, guards = _inputs_kept()
    return {"results": results, "untouched": untouched, "guards": guards and _out_guards_kept(),
            "sums": _output_sums()}


def output_sums(request):
    """Checksums of what lies in the output slab now."""
    _State.out.fetch()
    return {"sums": _sums_of(request["outputs"])}


def null_test(request):
    """Does the task tell a kernel from a constant? Names the trivial answers that would pass."""
    state = _State
    passed = None
    for family in request["families"]:
        pair = []
        for seed in request["seeds"][:2]:
            draw({"variant": 0, "family": family, "seed": seed, "fixed_seed": request["seeds"][2], "set": 0, "phase": 0})
            pair.append(_expectation(state.values, request["seeds"][3], False)[0])
        if any(e.is_float and e.blank_share > 0.5 for e in pair[0]):
            continue
        count = len(pair[0]) - len(state.mutable)
        # One output that tells is enough for this family; every family must be blind for a verdict.
        blind = [judge_compare.passes_trivially(*both) for both in zip(pair[0][:count], pair[1][:count])]
        names = set.intersection(*(set(names) for names in blind)) if blind else set()
        passed = names if passed is None else passed & names
        del pair
        if not passed:
            break
    _release_cache()
    return {"passed": sorted(passed or ())}


def fill_sets(request):
    """Fresh values for every argument set that timed calls use. Parameters come from `fixed_seed`."""
    state = _State
    state.slab.poison() if request.get("poison") else None
    described, state.sets = [], []
    for number in range(state.set_count):
        places = _places(0, number, 0)
        _fill({**request, "variant": 0, "set": number, "seed": request["seed"] + number, "phase": 0}, places,
              fixed=number == 0 and request.get("fixed", True), direct=True)
        described.append(_described(places))
        state.sets.append({p["name"]: state.slab.view(p["offset"], p["dtype"], p["shape"], p["stride"])
                           for p in places})
    if request.get("fixed", True):
        state.reference.prepare_timing(state.sets[0])
        state.clock = state.clock or blocks.Clock(state.device)
    state.slab.publish()
    return {"sets": described}


def time_reference(request):
    """Time one block of the reference. `which` is `eager`, or a compiled form's name."""
    state = _State
    call = _caller(request["which"])
    torch.manual_seed(request["seed"])
    with torch.no_grad():
        times, _ = state.clock.block(call, [state.sets[i] for i in request["order"]])
    return {"times_us": times}


def plain(request):
    """Many reference calls with nothing between, for the parent's own clock."""
    with torch.no_grad():
        issued = _State.clock.plain(_caller(request["which"]), _State.sets, request["count"])
    return {"issue_us": issued}


def audit(request):
    """Expect the outputs of one timed call again; `check` then compares as ever."""
    state = _State
    state.values = state.sets[request["set"]]
    state.places = _places(0, request["set"], 0)
    state.drawn = {"variant": 0}
    _sum_inputs()
    reply = expect({"seed": request["seed"]})
    # Later calls went on changing mutable arguments: only the outputs can be told.
    state.expected = state.expected[:len(state.outputs)]
    return reply


def compile_reference(request):
    """Compile the reference with torch.compile, or capture it in a CUDA graph. Returns seconds it took."""
    from _hiera_worker import judge_compile

    state = _State
    begin = time.perf_counter()
    state.compiled[request["which"]] = judge_compile.make(request["which"], state.reference, state.sets[0])
    return {"seconds": time.perf_counter() - begin}


def canary(_request):
    """A known kernel with a known answer: is the device still sound?"""
    device = _State.device
    begin = time.perf_counter()
    values = torch.arange(1 << 20, device=device, dtype=torch.int64)
    sound = int((values * 3).sum().item()) == 3 * (1 << 19) * ((1 << 20) - 1)
    return {"sound": sound, "seconds": time.perf_counter() - begin}


def release(_request):
    """Give back every tensor that can be made again."""
    _State.expected = None
    if getattr(_State, "reference", None) is not None:
        _State.reference.forget_wide()
    _release_cache(always=True)
    return {}


def _caller(which):
    state = _State
    if which == "eager":
        return state.reference.call_plain
    return state.compiled[which]


def _expectation(values, seed, keep_usual):
    state = _State
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
            state.reference.forget_wide()
            _release_cache(always=True)
            note = "fp64 reference ran out of memory: compared with the strict reference"
        except (RuntimeError, TypeError, ValueError) as error:
            note = "fp64 reference failed (%s): compared with the strict reference" % str(error).splitlines()[0][:200]
    usual = None
    if state.device.type == "cuda" or keep_usual:
        torch.manual_seed(seed)
        usual = state.reference.run(values, "configured")
    made = []
    for number in range(len(strict)):
        # One output at a time, so that the three references of a large one die early.
        wide = None if exact is None else exact[number]
        made.append(judge_compare.Expected(wide, strict[number], None if usual is None else usual[number], keep_usual))
        strict[number] = None
        if exact is not None:
            exact[number] = None
        if usual is not None:
            usual[number] = None
    return made, note


def _profiles():
    state = _State
    found = {}
    inputs = [a for a in state.tensors if a["role"] == "input"]
    for argument, leaf in zip(inputs, state.reference.leaves):
        found[argument["name"]] = judge_inputs.profile(leaf, argument.get("low"), argument.get("high"))
    for argument in state.tensors:
        name = argument["name"]
        if name in found:
            continue
        if argument["role"] in ("parameter", "buffer") and state.reference.model is not None:
            live = state.reference.state(state.reference.model, argument["path"])
            found[name] = judge_inputs.profile(live)
        else:
            kind = argument["tensor"]["dtype"]
            integer = kind.startswith(("int", "uint"))
            found[name] = judge_inputs.Profile(
                "bool" if kind == "bool" else "integer" if integer else "normal",
                low=argument.get("low") or 0, high=argument.get("high") or 0, mean=0.5 if kind == "bool" else 0.0)
    return found


def _fill(request, places, fixed=True, direct=False):
    state = _State
    device = state.device
    inputs = torch.Generator(device=device).manual_seed(request["seed"])
    weights = torch.Generator(device=device).manual_seed(request["fixed_seed"])
    family = request["family"]
    real = []
    if family == "example" and request["variant"] == 0 and not direct:
        real = state.reference.example_inputs(request["seed"])
    position = 0
    for place, argument in zip(places, state.tensors):
        tensor = state.slab.view(place["offset"], place["dtype"], place["shape"], place["stride"])
        target = tensor
        if 0 in place["stride"] and tensor.numel():  # Broadcast on purpose: fill what really exists.
            target = tensor[tuple(slice(0, 1) if s == 0 else slice(None) for s in place["stride"])]
        role = argument["role"]
        if role == "input" and position < len(real):
            target.copy_(real[position] if target is tensor else real[position][tuple(
                slice(0, 1) if s == 0 else slice(None) for s in place["stride"])])
            position += 1
            continue
        if role != "input" and not fixed:
            continue
        fan_in = max(1, math.prod(place["shape"][1:])) if role == "parameter" else 1
        judge_inputs.fill(target, family, state.profiles[place["name"]], inputs if role == "input" else weights, role,
                          fan_in, position)
        position += role == "input"


def _places(variant, set_number, phase):
    """Where every tensor argument lies: parameters and buffers first, then the set's inputs."""
    state = _State
    tensors = state.variants[variant]["tensors"]
    layout = slabs.Layout()
    found = {}
    for argument in state.tensors:
        if argument["role"] != "input":
            found[argument["name"]] = layout.place(tensors[argument["name"]], phase * PHASE_STEP)
    layout = slabs.Layout(state.fixed + set_number * _set_bytes(variant))
    for argument in state.tensors:
        if argument["role"] == "input":
            found[argument["name"]] = layout.place(tensors[argument["name"]], phase * PHASE_STEP)
    return [{"name": a["name"], "offset": found[a["name"]][0], "size": found[a["name"]][1], **tensors[a["name"]]}
            for a in state.tensors]


def _described(places):
    by_name = {p["name"]: {k: p[k] for k in ("offset", "dtype", "shape", "stride")} for p in places}
    return [by_name.get(a["name"]) or {"value": a["value"]} for a in _State.contract["arguments"]]


def _set_bytes(variant):
    return _bytes(variant, lambda role: role == "input")


def _fixed_bytes(variant):
    return _bytes(variant, lambda role: role != "input")


def _bytes(variant, wanted):
    tensors = _State.variants[variant]["tensors"]
    layout = slabs.Layout()
    for argument in _State.tensors:
        if wanted(argument["role"]):
            layout.place(tensors[argument["name"]], PHASES * PHASE_STEP)
    return layout.next + slabs.GUARD_BYTES + PHASES * PHASE_STEP


def _sum_inputs():
    """Note checksums of the whole used range: data, gaps and guards of what must not change."""
    state = _State
    state.range = (min(p["offset"] for p in state.places) - slabs.GUARD_BYTES if state.places else 0,
                   max(p["offset"] + p["size"] for p in state.places) + slabs.GUARD_BYTES if state.places else 8)
    mutable = [p for p, a in zip(state.places, state.tensors) if a.get("mutable")]
    state.saved = {p["name"]: state.values[p["name"]].clone() for p in mutable}
    state.sum = state.slab.checksum(*state.range)
    state.sums = {p["name"]: state.slab.checksum(p["offset"], p["offset"] + p["size"]) for p in state.places}
    state.after = None


def _restore_mutable():
    for name, value in getattr(_State, "saved", {}).items():
        _State.values[name].copy_(value)


def _inputs_kept():
    """(arguments untouched, guard bands untouched). Mutable arguments are put back first."""
    state = _State
    _restore_mutable()
    whole = state.slab.checksum(*state.range) == state.sum
    if whole:
        state.slab.publish()
        return True, True
    touched = [n for n, s in state.sums.items() for p in state.places if p["name"] == n
               and state.slab.checksum(p["offset"], p["offset"] + p["size"]) != s]
    return not touched, bool(touched)


def _output_places(expected):
    count = len(expected) - len(_State.mutable)
    layout = slabs.Layout()
    places = []
    for one in expected[:count]:
        spec = {"dtype": str(one.dtype).replace("torch.", ""), "shape": list(one.shape)}
        stride, step = [], 1
        for size in reversed(one.shape):
            stride.insert(0, step)
            step *= max(size, 1)
        spec["stride"] = stride
        offset, size = layout.place(spec)
        if layout.next > _State.out.bytes.numel():
            raise Refusal("the reference's outputs are larger than the contract says",
                          "make the contract again from this groundtruth.py")
        places.append({"offset": offset, "size": size, **spec, "reference_stride": list(one.stride)})
    return places


def _poison_out():
    state = _State
    end = max([p["offset"] + p["size"] for p in state.outputs], default=0) + slabs.GUARD_BYTES
    state.out.poison(0, min((end + 15) // 16 * 16, state.out.bytes.numel()))
    state.out.publish()


def _out_guards_kept():
    state = _State
    return all(bool((state.out.bytes[p["offset"] - slabs.GUARD_BYTES:p["offset"]].view(torch.int32)
                     == slabs.POISON_WORD).all()) for p in state.outputs)


def _output_sums():
    return _sums_of(_State.outputs)


def _sums_of(places):
    return [_State.out.checksum(p["offset"], p["offset"] + p["size"]) for p in places]


def _extent(spec):
    return slabs.extent_bytes(spec["shape"], spec["stride"], slabs.item_bytes(slabs.DTYPES[spec["dtype"]]))


def _release_cache(always=False):
    if _State.device.type == "cuda" and (always or torch.cuda.memory_reserved() > LARGE_BYTES * 8):
        torch.cuda.empty_cache()

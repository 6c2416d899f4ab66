"""What the judge holds, where tensors lie in the shared memory, and whether that memory was left alone."""

import torch
from _hiera_worker import slabs
from _hiera_worker.wire import Refusal

PHASES = 16
PHASE_STEP = 256
SLACK = 1 << 16
LARGE_BYTES = 1 << 31
SMALL_BYTES = 1 << 28
# Share of the device's memory that torch's allocator may hold unused, and that kept references may take.
KEEP_SHARE, HOST_KEEP_BYTES = 1 / 16, 1 << 28
# Many outputs that are small are compared on the CPU: on a GPU each would cost dozens of launches and waits.
FEW_OUTPUTS, SMALL_ELEMENTS = 8, 1 << 16


class State:
    """What this judge holds between requests."""


def places(variant, set_number, phase, odd=False):
    """Where every tensor argument lies: parameters and buffers first, then the set's inputs.

    With `odd` each input begins one element behind an aligned address, as a view of a user's may.
    """
    state = State
    key = (variant, set_number, phase, odd)
    if key in state.known_places:
        return state.known_places[key]
    tensors = state.variants[variant]["tensors"]
    layout = slabs.Layout()
    found = {}
    for argument in state.tensors:
        if argument["role"] != "input":
            found[argument["name"]] = layout.place(tensors[argument["name"]], phase * PHASE_STEP)
    layout = slabs.Layout(state.fixed + set_number * set_bytes(variant))
    for argument in state.tensors:
        if argument["role"] == "input":
            spec = tensors[argument["name"]]
            step = slabs.item_bytes(slabs.DTYPES[spec["dtype"]]) if odd else 0
            found[argument["name"]] = layout.place(spec, phase * PHASE_STEP + step)
    made = [{"name": a["name"], "offset": found[a["name"]][0], "size": found[a["name"]][1], **tensors[a["name"]]}
            for a in state.tensors]
    state.known_places[key] = made
    return made


def described(places):
    by_name = {p["name"]: {k: p[k] for k in ("offset", "dtype", "shape", "stride")} for p in places}
    return [by_name.get(a["name"]) or {"value": a["value"]} for a in State.contract["arguments"]]


def set_bytes(variant):
    return _bytes_of(variant, lambda role: role == "input")


def fixed_bytes(variant):
    return _bytes_of(variant, lambda role: role != "input")


def _bytes_of(variant, wanted):
    tensors = State.variants[variant]["tensors"]
    layout = slabs.Layout()
    for argument in State.tensors:
        if wanted(argument["role"]):
            layout.place(tensors[argument["name"]], PHASES * PHASE_STEP)
    return layout.next + slabs.GUARD_BYTES + PHASES * PHASE_STEP


def sum_inputs():
    """Note checksums of the whole used range: data, gaps and guards of what must not change."""
    state = State
    state.range = (min(p["offset"] for p in state.places) // 8 * 8 - slabs.GUARD_BYTES if state.places else 0,
                   max(p["offset"] + p["size"] for p in state.places) + slabs.GUARD_BYTES if state.places else 8)
    mutable = [p for p, a in zip(state.places, state.tensors) if a.get("mutable")]
    state.saved = {p["name"]: state.values[p["name"]].clone() for p in mutable}
    state.sum, *sums = state.slab.checksums([state.range, *map(_span, state.places)])
    state.sums = {place["name"]: found for place, found in zip(state.places, sums)}
    state.after = None


def restore_mutable():
    for name, value in getattr(State, "saved", {}).items():
        State.values[name].copy_(value)


def inputs_kept():
    """(arguments untouched, guard bands untouched). Mutable arguments are put back first."""
    state = State
    restore_mutable()
    whole = state.slab.checksum(*state.range) == state.sum
    if whole:
        state.slab.publish()
        return True, True
    now = state.slab.checksums(list(map(_span, state.places)))
    touched = [p["name"] for p, found in zip(state.places, now) if found != state.sums[p["name"]]]
    return not touched, bool(touched)


def _span(place):
    # From a whole word on: at odd offsets a few bytes of the guard band count as well.
    return place["offset"] // 8 * 8, place["offset"] + place["size"]


def longest_sums(values, counts):
    """How many elements at most may be summed up for one element of each output: a dimension, or all there are.

    Args:
        values: The arguments.
        counts: Elements of each output.
    """
    longest = max((max(value.shape, default=1) for value in values.values()), default=1)
    total = sum(value.numel() for value in values.values())
    return [max(longest, total // max(count, 1)) for count in counts]


def keep_bytes():
    """Memory that references may take that are kept: on a small card little, for candidates need it."""
    if State.device.type != "cuda":
        return HOST_KEEP_BYTES
    return int(KEEP_SHARE * torch.cuda.get_device_properties(State.device).total_memory)


def near(tensors):
    """These results where they are compared: small ones on the CPU, if there are many."""
    if State.device.type != "cuda" or len(tensors) <= FEW_OUTPUTS:
        return tensors
    return [value.cpu() if value.numel() <= SMALL_ELEMENTS else value for value in tensors]


def output_places(expected):
    count = len(expected) - len(State.mutable)
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
        if layout.next > State.out.bytes.numel():
            raise Refusal("the reference's outputs are larger than the contract says",
                          "make the contract again from this groundtruth.py")
        places.append({"offset": offset, "size": size, **spec, "reference_stride": list(one.stride)})
    return places


def poison_out():
    # Guard bands among it, and what an earlier call of the candidate may have left beside.
    State.out.poison()
    State.out.publish()


def out_guards_kept():
    state = State
    return all(bool((state.out.bytes[p["offset"] - slabs.GUARD_BYTES:p["offset"]].view(torch.int32)
                     == slabs.POISON_WORD).all()) for p in state.outputs)


def output_sums():
    return sums_of(State.outputs)


def sums_of(places):
    return [State.out.checksum(p["offset"], p["offset"] + p["size"]) for p in places]


def small_copies(expected):
    """What the outputs were, to tell whether a change shows; None where that would take too much memory."""
    if State.out.bytes.numel() > SMALL_BYTES:
        return None
    return [one.exact.to(one.real) for one in expected]


def extent(spec):
    return slabs.extent_bytes(spec["shape"], spec["stride"], slabs.item_bytes(slabs.DTYPES[spec["dtype"]]))


def release_cache(always=False):
    if State.device.type == "cuda" and (always or torch.cuda.memory_reserved() > max(LARGE_BYTES, keep_bytes())):
        torch.cuda.empty_cache()

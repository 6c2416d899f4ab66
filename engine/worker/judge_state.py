"""What the judge holds, where tensors lie in the shared memory, and whether that memory was left alone."""

import torch
from _hiera_worker import slabs
from _hiera_worker.wire import Refusal

PHASES = 16
PHASE_STEP = 256
SLACK = 1 << 16
LARGE_BYTES = 1 << 31
SMALL_BYTES = 1 << 28


class State:
    """What this judge holds between requests."""


def places(variant, set_number, phase, odd=False):
    """Where every tensor argument lies: parameters and buffers first, then the set's inputs.

    With `odd` each input begins one element behind an aligned address, as a view of a user's may.
    """
    state = State
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
    return [{"name": a["name"], "offset": found[a["name"]][0], "size": found[a["name"]][1], **tensors[a["name"]]}
            for a in state.tensors]


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
    state.sum = state.slab.checksum(*state.range)
    state.sums = {p["name"]: _sum_of(p) for p in state.places}
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
    touched = [p["name"] for p in state.places if _sum_of(p) != state.sums[p["name"]]]
    return not touched, bool(touched)


def _sum_of(place):
    # From a whole word on: at odd offsets a few bytes of the guard band count as well.
    return State.slab.checksum(place["offset"] // 8 * 8, place["offset"] + place["size"])


def longest_sum(values, outputs):
    """How many elements at most may be summed up for one of `outputs` elements: a dimension, or all there are."""
    longest = max((max(value.shape, default=1) for value in values.values()), default=1)
    return max(longest, sum(value.numel() for value in values.values()) // max(outputs, 1))


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
    state = State
    end = max([p["offset"] + p["size"] for p in state.outputs], default=0) + slabs.GUARD_BYTES
    state.out.poison(0, min((end + 15) // 16 * 16, state.out.bytes.numel()))
    state.out.publish()


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
    return [one.exact.to(one.dtype) for one in expected]


def extent(spec):
    return slabs.extent_bytes(spec["shape"], spec["stride"], slabs.item_bytes(slabs.DTYPES[spec["dtype"]]))


def release_cache(always=False):
    if State.device.type == "cuda" and (always or torch.cuda.memory_reserved() > LARGE_BYTES):
        torch.cuda.empty_cache()

"""Role `shares`: how the reference's time on the GPU spreads over its operators, by torch's own profiler."""

import collections

import torch
from _hiera_worker import judge_reference
from _hiera_worker.wire import Refusal

MARK = "hiera_call"


class _State:
    reference = call = tensors = None
    on_gpu = False


def handle(kind, request, _emit):
    """Serve `open`, then `measure`; before them `warm`, where there is time for it."""
    served = {"warm": warm, "open": open_reference, "measure": measure}.get(kind)
    if served is None:
        raise Refusal(f"unknown request {kind!r}", "this is a fault of ours", kind="internal")
    return served(request)


def warm(request):
    """Start torch, the device and the profiler before there is a contract: together they take seconds."""
    device = torch.device(request["device"])
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    with torch.profiler.profile(activities=_activities(on_gpu)):
        one = torch.ones(32, 32, device=device)
        one @ one
        if on_gpu:
            torch.cuda.synchronize()
    return {}


def open_reference(request):
    """Load the reference and its example inputs on the device, and run it once."""
    device = torch.device(request["device"])
    _State.on_gpu = device.type == "cuda"
    if _State.on_gpu:
        torch.cuda.set_device(device)
    reference = judge_reference.Reference(request["folder"], request["contract"], device)
    if reference.model is None and reference.function is None:
        raise Refusal("the reference is no Python callable", "shares are then taken from the kernels' own times")
    _State.reference = reference
    _State.call = reference.function if reference.model is None else reference.model
    _State.tensors = {name: reference.leaves[place] for place, name in enumerate(_inputs(request["contract"]))}
    judge_reference.apply_flags(request["contract"].get("flags") or {})
    return {}


def measure(request):
    """Profile a few calls of the reference. The first, which warms up, does not count.

    Returns:
        `operators`: top-level operator calls in order, `{"op": "linear", "us": median device time}`;
        `launches`: kernels and copies a call; `device_us`: their time in all.
    """
    state = _State
    rounds = [_profiled(state.reference, state.call, state.tensors, state.on_gpu)
              for _ in range(request.get("calls", 3) + 1)][1:]
    # The kernels of a call are the same every time; if not, the shortest common list is what can be said.
    length = min(len(operators) for operators, _ in rounds)
    names = [name for name, _ in rounds[0][0][:length]]
    operators = []
    for place, name in enumerate(names):
        times = sorted(found[place][1] for found, _ in rounds)
        operators.append({"op": name, "us": times[len(times) // 2]})
    launches, device_us = sorted((launches for _, launches in rounds))[len(rounds) // 2]
    return {"operators": operators, "launches": launches, "device_us": device_us}


def _inputs(contract):
    return [a["name"] for a in contract["arguments"] if a["role"] == "input" and a.get("tensor")]


def _profiled(reference, call, tensors, on_gpu):
    """One call: its top-level operators with their device time, and (launches, device time)."""
    if on_gpu:
        torch.cuda.synchronize()
    inputs = reference.call_inputs(tensors)
    with torch.no_grad(), torch.profiler.profile(activities=_activities(on_gpu)) as profile:
        with torch.profiler.record_function(MARK):
            call(**inputs) if isinstance(inputs, dict) else call(*inputs)
        if on_gpu:
            torch.cuda.synchronize()
    events = list(profile.events())
    top = [e for e in events if e.cpu_parent is not None and e.cpu_parent.name == MARK and e.name.startswith("aten::")]
    top.sort(key=lambda e: e.time_range.start)
    operators = [(e.name.split("::")[1], _time_us(e, on_gpu)) for e in top]
    return operators, _launches(events, operators, on_gpu)


def _activities(on_gpu):
    kinds = torch.profiler.ProfilerActivity
    return [kinds.CPU, kinds.CUDA] if on_gpu else [kinds.CPU]


def _time_us(event, on_gpu):
    if not on_gpu:
        return float(event.cpu_time_total)
    total = getattr(event, "device_time_total", None)
    return float(event.cuda_time_total if total is None else total)


def _launches(events, operators, on_gpu):
    if not on_gpu:
        return (len(operators), sum(us for _, us in operators))
    seen = collections.OrderedDict()
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CUDA or event.name == MARK:
            continue
        seen[(event.name, event.time_range.start)] = event.time_range.elapsed_us()
    return (len(seen), float(sum(seen.values())))

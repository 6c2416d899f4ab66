"""Role `candidate`: one generated extension in a locked-down process.

From `load` on, nothing this process says is believed: it copies its outputs into memory that the
judge owns, and the judge looks at the bytes. What it reports about shapes or times is checked there
or against the parent's own clock.
"""

import os
import sys
import time
import warnings

import torch
from _hiera_worker import blocks, judge_reference, lockdown, slabs
from _hiera_worker.wire import Refusal

MAX_HELD_BYTES = 8 << 30
MAX_LATE_BYTES = 4 << 30


class _Held:
    """What this process keeps between requests."""

    def __init__(self):
        self.device = self.slab = self.out = self.entry = self.clock = self.last = None
        self.held, self.timed, self.sets, self.views, self.threads = [], [], [], {}, 0


_State = _Held()


def handle(kind, request, emit):
    """Serve one request; see the functions below for what each one does."""
    served = {"warm": warm, "start": start, "load": load, "call": call, "recopy": recopy, "drop": drop, "block": block,
              "plain": plain, "sets": sets}.get(kind)
    if served is None:
        raise Refusal(f"unknown request {kind!r}", "this is a fault of ours", kind="internal")
    return served(request)


def warm(request):
    """Start torch and the device before there is a contract to serve. Still trusted."""
    device = torch.device(request["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        _warm_libraries(device)
    return {}


def start(request):
    """Warm torch and the device, and map the shared memory. Still trusted."""
    _State.device = torch.device(request["device"])
    if _State.device.type == "cuda":
        torch.cuda.set_device(_State.device)
        _warm_libraries(_State.device)
    else:
        torch.set_num_threads(1)
        torch.ones(64, 64) @ torch.ones(64, 64)
    judge_reference.apply_flags(request.get("flags") or {})  # The user's program has them set as well.
    _State.slab = slabs.Slab.open(request["arguments"], _State.device)
    _State.out = slabs.Slab.open(request["outputs"], _State.device)
    _State.clock = blocks.Clock(_State.device)
    if _State.device.type == "cuda":
        slabs.checksum(_State.out.bytes[:1024])
        torch.cuda.synchronize()
    return {"torch": torch.__version__, "pid": os.getpid()}


def _warm_libraries(device):
    # Libraries start threads and open files on first use: before the doors close.
    one = torch.ones(32, 32, device=device)
    one @ one
    try:
        torch.nn.functional.conv2d(one.view(1, 1, 32, 32), one[:3, :3].reshape(1, 1, 3, 3))
    except RuntimeError as error:
        warnings.warn(f"cuDNN did not start: {error}", stacklevel=1)
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()


def load(request):
    """Lock the process down, then import the extension."""
    report = {}
    if request.get("lock", True):
        report = lockdown.lock(request["writable"], [os.path.dirname(request["extension"]), *request["readable"]])
    module = judge_reference.load_extension(request["extension"], request["module"])
    names = [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]
    name = request["entry"] if request["entry"] in names else (names[0] if len(names) == 1 else None)
    if name is None:
        raise Refusal("the extension has no function {!r}, it has {}".format(request["entry"], names or "none"),
                      "export the contract's entry in cpp_source.cpp")
    _State.entry = getattr(module, name)
    _State.threads = _threads()
    return {"lockdown": report, "function": name}


def call(request):
    """Run the entry once and copy its outputs into the judge's memory.

    The copy is enqueued on the current stream right after the return, without waiting for the
    device: work on a stream that was not joined shows as missing.
    """
    _State.slab.fetch()
    _State.out.fetch()
    if "reversed" in request:  # Read by the CPU execution of kernels at every launch.
        os.environ["HIERA_EMU_ORDER"] = "reversed" if request["reversed"] else "forward"
    arguments = _arguments(request["arguments"])
    _touch(arguments)
    shared = arguments
    _State.last = None  # Two results of a large call may be more than the device holds.
    size = sum(a.numel() * a.element_size() for a in arguments if isinstance(a, torch.Tensor))
    if request.get("late") and size <= MAX_LATE_BYTES:
        arguments = _late(arguments)
    torch.manual_seed(request["seed"])
    if request.get("poison", True):
        _poison_pool(request["outputs"])
    flags = _flags()
    begin = time.perf_counter()
    with torch.no_grad():
        try:
            result = _State.entry(*arguments)
        except Exception as error:  # The candidate refused or failed: that is a finding, not a fault of ours.
            return {"raised": f"{type(error).__name__}: {str(error)[:1000]}", "error": _last_error()[1]}
    left = _last_error()[1]  # Now: torch's own calls raise what they find pending, as if it were theirs.
    outputs = judge_reference.flat_tensors(result)
    described = [_describe(t, arguments) for t in outputs]
    copied = _copy_out(outputs, request["outputs"])
    if arguments is not shared:
        for original, copy in zip(shared, arguments):
            if isinstance(copy, torch.Tensor):
                _copy(original, copy)  # So that the judge sees what the call wrote.
    seconds = time.perf_counter() - begin
    later = _finish()
    _State.out.publish()
    _State.slab.publish()
    held = bool(request.get("hold")) and sum(t.numel() * t.element_size() for t in outputs) <= MAX_HELD_BYTES
    if held:
        _State.held.append(outputs)
    _State.last = outputs
    changed = [name for name, value in _flags().items() if flags[name] != value]
    return {"outputs": described, "copied": copied, "seconds": seconds, "error": left or later,
            "changed_flags": changed, "held": held,
            "new_threads": max(0, _threads() - _State.threads) if request.get("count_threads") else 0,
            "threads": _note_threads(request), "exact_types": all(type(t) is torch.Tensor for t in outputs)}


def recopy(request):
    """Copy a held result (`timed`: one of the last block; index -1: the last) into the judge's memory once more."""
    results = _State.timed if request.get("timed") else _State.held
    outputs = _State.last if request["index"] < 0 else results[request["index"]]
    _State.out.fetch()
    copied = _copy_out(outputs, request["outputs"])
    error = _finish()
    _State.out.publish()
    return {"copied": copied, "error": error}


def drop(request):
    """Let go of all held results, or of the last block's alone."""
    count = len(_State.held)
    _State.timed = []
    if not request.get("timed"):
        _State.held, _State.last = [], None
    if _State.device.type == "cuda":
        torch.cuda.empty_cache()
    return {"dropped": count}


def sets(request):
    """Remember the argument sets that timed blocks use."""
    _State.sets = [_arguments(arguments) for arguments in request["sets"]]
    for arguments in _State.sets:
        _touch(arguments)  # Weights among them: they were filled anew.
    return {}


def block(request):
    """Time one block; its results stay held for the audit, apart from those of calls, of which more may come."""
    _State.timed = []  # The last block's, audited by now. Allocating beside them would cost time in the first calls.
    _State.slab.fetch()
    _touch(_refilled())
    torch.manual_seed(request["seed"])
    chosen = [_State.sets[i] for i in request["order"]]
    with torch.no_grad():
        times, kept = _State.clock.block(_run, chosen, keep=request.get("keep", True))
    _State.timed = [judge_reference.flat_tensors(result) for result in kept]
    return {"times_us": times, "error": _last_error()[1]}


def plain(request):
    """Many calls with nothing between, for the parent's own clock."""
    with torch.no_grad():
        issued = _State.clock.plain(_run, _State.sets, request["count"])
    return {"issue_us": issued, "error": _last_error()[1]}


def _run(arguments):
    return _State.entry(*arguments)


def _arguments(described):
    made = []
    for item in described:
        if "value" in item:
            made.append(item["value"])
            continue
        key = (item["offset"], item["dtype"], tuple(item["shape"]), tuple(item["stride"]))
        if key not in _State.views:
            if len(_State.views) > 4096:
                _State.views.clear()
            # Views of one tensor share its version; by `data` each has its own, as separate tensors of a user's do.
            _State.views[key] = _State.slab.view(*key).data
        made.append(_State.views[key])
    return made


def _touch(arguments):
    # Another process wrote the values: who keeps what it made of a weight may ask torch whether it changed.
    increment = getattr(torch.autograd.graph, "increment_version", None)
    for value in arguments if increment else ():
        if isinstance(value, torch.Tensor):
            increment(value)


def _refilled():
    """Tensors that hold new values in every block: what all sets share are weights, which stay."""
    everywhere = set.intersection(*({id(a) for a in one} for one in _State.sets)) if len(_State.sets) > 1 else set()
    return [a for one in _State.sets for a in one if id(a) not in everywhere]


def _late(arguments):
    """Private copies that hold their values only after the current stream has caught up."""
    fresh = []
    for value in arguments:
        if isinstance(value, torch.Tensor):
            copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            fresh.append((copy, value))
        else:
            fresh.append((value, None))
    if _State.device.type == "cuda":
        torch.cuda._sleep(3_000_000)
    for copy, value in fresh:
        if isinstance(copy, torch.Tensor):
            _copy(copy, value)
    return [copy for copy, _ in fresh]


def _copy(to, value):
    slabs.stored(to, value.stride()).copy_(slabs.stored(value, value.stride()))


def _poison_pool(outputs):
    """Leave a recognisable pattern in the memory that `torch::empty` will hand out next."""
    made = []
    for spec in outputs:
        size = slabs.extent_bytes(spec["shape"], spec["stride"], slabs.item_bytes(slabs.DTYPES[spec["dtype"]]))
        for _ in range(4 if size <= 1 << 26 else 2 if size <= 1 << 28 else 1):
            try:
                filled = torch.empty((size + 3) // 4, dtype=torch.int32, device=_State.device)
            except torch.OutOfMemoryError:
                break  # The candidate may still fit: poisoning must not be what fails it.
            made.append(filled.fill_(slabs.POISON_WORD))
            del filled
    del made


def _describe(tensor, arguments):
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    aliases = [
        i for i, a in enumerate(arguments)
        if isinstance(a, torch.Tensor) and tensor.numel() and a.numel() and tensor.device == a.device
        and start <= a.data_ptr() < start + storage.nbytes()
    ] if tensor.device.type != "meta" else []
    inside = _State.slab.bytes
    in_slab = inside.data_ptr() <= tensor.data_ptr() < inside.data_ptr() + inside.numel()
    return {"dtype": str(tensor.dtype).replace("torch.", ""), "shape": list(tensor.shape),
            "stride": list(tensor.stride()), "device": tensor.device.type, "aliases": aliases, "in_inputs": in_slab}


def _copy_out(outputs, places):
    copied = []
    for tensor, place in zip(outputs, places):
        fits = list(tensor.shape) == list(place["shape"]) and tensor.dtype == slabs.DTYPES[place["dtype"]]
        if fits and tensor.numel():
            _State.out.view(place["offset"], place["dtype"], place["shape"], place["stride"]).copy_(tensor)
        copied.append(fits)
    return copied


def _finish():
    if _State.device.type == "cuda":
        pending = _last_error()
        torch.cuda.synchronize(_State.device)
        return pending[1] or _last_error()[1]
    return ""


def _last_error():
    if _State.device.type != "cuda":
        return 0, ""
    from _hiera_worker import cudart

    return cudart.last_error()


def _note_threads(request):
    now = _threads()
    if not request.get("count_threads"):
        _State.threads = max(_State.threads, now)
    return now


def _threads():
    return len(os.listdir("/proc/self/task")) if sys.platform.startswith("linux") else 0


def _flags():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found = {
        "cuda.matmul.allow_tf32": matmul.allow_tf32, "cudnn.allow_tf32": cudnn.allow_tf32,
        "cudnn.benchmark": cudnn.benchmark, "cudnn.deterministic": cudnn.deterministic,
        "cudnn.enabled": cudnn.enabled,
        "fp16 reduced precision": matmul.allow_fp16_reduced_precision_reduction,
        "bf16 reduced precision": matmul.allow_bf16_reduced_precision_reduction,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "default dtype": str(torch.get_default_dtype()), "threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
    }
    if _State.device.type == "cuda":
        found["current device"] = torch.cuda.current_device()
        found["current stream"] = torch.cuda.current_stream().cuda_stream
        from _hiera_worker import cudart

        found["persisting L2 bytes"] = cudart.persisting_l2()
    return found

"""A program of its own for the profiler: `python launch.py SPEC.json`.

Loads one built extension, makes random inputs by the contract's layouts, warms up, and makes exactly
one call between cudaProfilerStart and cudaProfilerStop, so that the profiler sees the candidate's
kernels and none of ours. Nothing here judges: the values are random, the result is dropped. The last
line on stdout is JSON: `{"ok": true, "warm_us": [...]}` or `{"ok": false, "problem": "..."}`.

SPEC: `extension`, `module`, `entry`, `device` (CUDA index), `warmup` (calls), and `arguments`, in
order: `{"tensor": {"dtype", "shape", "stride"}, "low", "high", "positive"}` or `{"value": ...}`.
"""

import importlib.util
import json
import os
import sys
import time
import traceback

FOLDER = os.path.dirname(os.path.abspath(__file__))


def main(path):
    """Run the one call; the exit status is 0 only when it was made."""
    # This folder's modules must not take the place of the user's.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != FOLDER]
    with open(path) as file:
        spec = json.load(file)
    # A torch that came without bytecode would be compiled anew in every run of a profiler.
    _start().keep_bytecode(os.environ.pop("HIERA_BYTECODE", ""))
    try:
        answer = {"ok": True, **_run(spec)}
    except BaseException as error:
        traceback.print_exc()
        answer = {"ok": False, "problem": f"{type(error).__name__}: {error}"[:2000]}
    sys.stderr.flush()
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    # Destructors of a half-broken extension must not change the answer.
    os._exit(0 if answer["ok"] else 3)


def _run(spec):
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"this torch ({torch.__version__}) sees no GPU")
    torch.cuda.set_device(spec["device"])
    entry = _entry(spec)
    torch.manual_seed(0)
    arguments = [make_argument(torch, argument) for argument in spec["arguments"]]
    warm_us = []
    with torch.no_grad():
        for _ in range(spec["warmup"]):
            begin = time.perf_counter()
            entry(*arguments)
            torch.cuda.synchronize()
            warm_us.append(round(1e6 * (time.perf_counter() - begin), 1))
        cudart = torch.cuda.cudart()
        cudart.cudaProfilerStart()
        result = entry(*arguments)
        torch.cuda.synchronize()
        cudart.cudaProfilerStop()
    del result
    return {"warm_us": warm_us}


def _entry(spec):
    """The extension's function; the file may export other names beside it."""
    loader = _load_package()
    module = loader.load_extension(spec["extension"], spec["module"])
    names = [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]
    name = spec["entry"] if spec["entry"] in names else (names[0] if len(names) == 1 else None)
    if name is None:
        raise RuntimeError("the extension has no function {!r}, it has {}".format(spec["entry"], names or "none"))
    return getattr(module, name)


def _start():
    spec = importlib.util.spec_from_file_location("_hiera_start", os.path.join(FOLDER, "main.py"))
    start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(start)
    return start


def _load_package():
    _start().load_package(FOLDER)
    from _hiera_worker import judge_reference

    return judge_reference


def make_argument(torch, argument, device="cuda"):
    """A tensor of the layout, filled with random values in the argument's range, or the plain value."""
    layout = argument.get("tensor")
    if layout is None:
        return argument["value"]
    dtype = getattr(torch, layout["dtype"])
    # A stride of 0 repeats: fill what is stored, then repeat it.
    stored = [1 if step == 0 else layout["shape"][axis] for axis, step in enumerate(layout["stride"])]
    tensor = torch.empty_strided(stored, layout["stride"], dtype=dtype, device=device)
    _fill(torch, tensor, dtype, argument)
    return tensor.expand(layout["shape"]) if stored != list(layout["shape"]) else tensor


def _fill(torch, tensor, dtype, argument):
    if dtype.is_floating_point:
        if argument.get("positive"):
            tensor.uniform_(0.5, 1.5)
        else:
            tensor.normal_(0.0, 1.0)
    elif dtype.is_complex:
        tensor.normal_(0.0, 1.0)
    elif dtype is torch.bool:
        tensor.bernoulli_(0.5)
    else:
        limits = torch.iinfo(dtype)
        low = argument.get("low")
        high = argument.get("high")
        low = max(0 if low is None else low, limits.min)
        high = min(low + 1 if high is None else high, limits.max)
        tensor.random_(low, max(high, low) + 1)


if __name__ == "__main__":
    main(sys.argv[1])

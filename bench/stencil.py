"""Stencils on a GPU: a step of a large grid by the kernel that a search finds, beside cuDNN, PyTorch and one copy.

    python bench/stencil.py [--size 10240] [--steps 4] [--seconds 1500] [--only NAME,NAME] [--json FILE]

Each case is a small module, `F.conv2d` with one channel or a sum of shifted slices, applied once or `--steps` times in a
call. HIERA searches; its best verified kernel is then timed a step, in a process of its own and in turn with: PyTorch
with cuDNN, PyTorch without it, cuDNN's fastest algorithm called directly, and one copy of the grid. Blocks of calls
between CUDA events, each call fed with the result of the one before; nothing is flushed in between, which matters only
for grids that fit the L2 cache. After 20 steps every one of them is compared with sums of shifted grids in fp64.
With --cpu the searches run without a GPU at a small size, and nothing is timed: a test of this program itself.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BLOCKS, BLOCK_S, MOST_CALLS = 15, 0.02, 20
VERIFIED_STEPS = 20
MEASURE_S = 40.0  # Kept back for the measurement of a case.

BOX = """
    def __init__(self):
        super().__init__()
        weight = torch.rand({taps}, {taps}, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
        self.register_buffer("weight", (weight / weight.sum()).to(torch.{dtype})[None, None])

    def forward(self, x):
        for _ in range({steps}):
            x = F.conv2d(x, self.weight, padding={radius})
        return x
"""
STAR = """
    def forward(self, x):
        height, width = x.shape[-2:]
        for _ in range({steps}):
            near = F.pad(x, ({radius}, {radius}, {radius}, {radius}))
            x = {middle} * x
            for far, factor in enumerate({factors}, 1):
                for down, right in ((far, 0), (-far, 0), (0, far), (0, -far)):
                    top, left = {radius} + down, {radius} + right
                    x = x + factor * near[..., top : top + height, left : left + width]
        return x
"""
MODULE = '''"""{name}: {steps} step(s) of a {shape} of radius {radius}, {dtype}, {size} x {size}."""

import torch
from torch import nn
from torch.nn import functional as F


class Stencil(nn.Module):{body}

def get_inputs():
    return [torch.rand(1, 1, {size}, {size}, dtype=torch.{dtype})]


def get_init_inputs():
    return []
'''


@dataclass(frozen=True)
class Case:
    """One stencil: its shape, how far it reaches, and how often a call applies it."""

    shape: str
    radius: int
    dtype: str
    steps: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.shape}{self.radius}-{self.dtype.replace('loat', '')}-x{self.steps}"

    def factors(self) -> list[float]:
        """Of a star: for the middle, then for each distance; all points together weigh 1."""
        parts = [1.0, *(0.5 / far for far in range(1, self.radius + 1))]
        total = parts[0] + 4 * sum(parts[1:])
        return [part / total for part in parts]

    def text(self) -> str:
        middle, *factors = self.factors()
        facts = {"radius": self.radius, "taps": 2 * self.radius + 1, "dtype": self.dtype, "steps": self.steps}
        body = BOX.format(**facts) if self.shape == "box" else STAR.format(middle=middle, factors=factors, **facts)
        return MODULE.format(name=self.name, shape=self.shape, size=self.size, body=body, **facts)


def cases(size: int, steps: int) -> list[Case]:
    """What is measured, most important first."""
    told = [("box", 3, "float64", 1), ("box", 3, "float64", steps), ("star", 3, "float64", 1),
            ("box", 3, "float32", 1), ("box", 1, "float64", steps), ("box", 2, "float64", 1),
            ("star", 3, "float64", steps), ("box", 3, "float32", steps), ("box", 1, "float64", 1)]
    return [Case(*one, size) for one in dict.fromkeys(told)]


# The search.


async def search(case: Case, scratch: Path, seconds: float | None, options: argparse.Namespace) -> dict[str, Any]:
    """Run a job on the case's module; gives what its best kernel is and where it lies."""
    from contracts.errors import HieraError
    from engine.optimize import optimize
    from engine.store import Store
    from engine.trajectory import Job

    file = scratch / f"{case.name.replace('-', '_')}.py"
    file.write_text(case.text())
    job = Job(file=str(file), name="Stencil", preset=options.preset, budget=options.budget, seconds=seconds,
              device="none" if options.cpu else "cuda", python=sys.executable, profile=False, confirm=not options.no_confirm)
    begin = time.perf_counter()
    try:
        found = await optimize(job, store=Store(scratch / "store"))
    except HieraError as error:
        return {"file": str(file), "failed": str(error)}
    row: dict[str, Any] = {"file": str(file), "search_s": round(time.perf_counter() - begin, 1)}
    row["stopped"] = found.stopped.reason if found.stopped else None
    row["candidates"] = [candidate_row(found, one) for one in found.candidates]
    row["baseline"] = asdict(found.baseline)
    row["roof_us"] = found.workload.roof_us if found.workload else None
    best = found.best
    if best is None or found.contract is None:
        return {**row, "failed": "no candidate was accepted"}
    build = found.evaluations[best.id].build
    arguments = [[a.role, a.path] for a in found.contract.tensor_arguments]
    return row | {"best": best.id, "space": best.space, "recipe": best.recipe, "source": best.source,
                  "extension": build.extension if build else None, "module": build.module if build else None,
                  "entry": found.contract.entry, "arguments": arguments}


def candidate_row(found: Any, one: Any) -> dict[str, Any]:
    judged = found.evaluations.get(one.id)
    row = {"id": one.id, "title": one.title, "space": one.space, "choices": dict(one.recipe or {}).get("choices")}
    if judged is None:
        return row
    timing, failure = judged.timing, judged.failure
    row["us"] = round(timing.median_us, 1) if timing else None
    row["speedup"] = round(timing.speedup, 3) if timing else None
    row["failure"] = f"{failure.stage}: {failure.reason}"[:300] if failure else None
    row["kernels"] = [asdict(kernel) for kernel in judged.build.kernels] if judged.build else []
    return row


# The measurement, in a process of its own.


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Time every form of a case in turn, and compare each with the reference."""
    import importlib.util

    import torch
    from torch.nn import functional as nn_functional

    case = Case(**request["case"])
    spec = importlib.util.spec_from_file_location("stencil_case", request["file"])
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    model = loaded.Stencil().cuda()
    x = torch.rand(1, 1, case.size, case.size, dtype=getattr(torch, case.dtype), device="cuda")
    others = [torch.empty_like(x), torch.empty_like(x)]
    weight = taps_of(case, model, x.device)

    def eager(*, cudnn: bool) -> Callable[[Any], Any]:
        def call(grid: Any) -> Any:
            with torch.backends.cudnn.flags(enabled=cudnn, allow_tf32=False):
                return model(grid)
        return call

    def copied(grid: Any) -> Any:
        others.reverse()  # A grid that is copied onto itself costs nothing.
        return others[0].copy_(grid)

    forms: dict[str, tuple[int, Callable[[Any], Any]]] = {"copy": (1, copied)}
    if request.get("extension"):
        forms["ours"] = (case.steps, ours(request, model))
    if case.shape == "box":
        forms["eager, cuDNN"] = (case.steps, eager(cudnn=True))
        if "eager, no cuDNN" not in request["without"]:
            forms["eager, no cuDNN"] = (case.steps, eager(cudnn=False))
    else:
        forms["eager"] = (case.steps, eager(cudnn=True))
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "failed": {}}
    with torch.no_grad():
        try:
            if "cuDNN, fastest" not in request["without"]:
                direct = Direct(x, weight.to(x.dtype))
                result["cudnn"] = direct.facts
                forms["cuDNN, fastest"] = (1, direct)
        except (AttributeError, OSError, RuntimeError) as error:
            result["failed"]["cuDNN, fastest"] = str(error)[:300]
        want = x.double()
        for _ in range(VERIFIED_STEPS):
            want = stepped(want, weight, nn_functional)
        result["errors"] = {}
        for name, (steps, form) in list(forms.items()):
            try:
                got = x
                for _ in range(VERIFIED_STEPS // steps):
                    got = form(got)
                torch.cuda.synchronize()
            except RuntimeError as error:
                result["failed"][name] = str(error).splitlines()[0][:300]
                del forms[name]
                continue
            if name != "copy" and VERIFIED_STEPS % steps == 0:
                result["errors"][name] = float(((got - want).abs() / want.abs()).max())
            del got
        del want
        result |= timed(forms, x)
    return result


def taps_of(case: Case, model: Any, device: Any) -> Any:
    """The factors of all neighbours as a square, in fp64."""
    import torch

    if case.shape == "box":
        return model.weight.double()
    width, factors = 2 * case.radius + 1, case.factors()
    taps = torch.zeros(1, 1, width, width, dtype=torch.float64, device=device)
    taps[..., case.radius, case.radius] = factors[0]
    for far, factor in enumerate(factors[1:], 1):
        for down, right in ((far, 0), (-far, 0), (0, far), (0, -far)):
            taps[..., case.radius + down, case.radius + right] = factor
    return taps


def stepped(grid: Any, weight: Any, functional: Any) -> Any:
    """One step by sums of shifted grids: no convolution of any library."""
    radius, (height, width) = weight.shape[-1] // 2, grid.shape[-2:]
    near, total = functional.pad(grid, (radius,) * 4), grid * 0
    for down, row in enumerate(weight[0, 0].tolist()):
        for right, factor in enumerate(row):
            total.add_(near[..., down : down + height, right : right + width], alpha=factor)
    return total


def ours(request: dict[str, Any], model: Any) -> Callable[[Any], Any]:
    """The search's kernel as a function of the grid."""
    import importlib.machinery
    import importlib.util

    name = request["module"]
    loader = importlib.machinery.ExtensionFileLoader(name, request["extension"])
    spec = importlib.machinery.ModuleSpec(name, loader, origin=request["extension"])
    built = importlib.util.module_from_spec(spec)
    loader.exec_module(built)
    function, state = getattr(built, request["entry"]), dict(model.named_buffers())
    given = [None if role == "input" else state[path] for role, path in request["arguments"]]

    def call(grid: Any) -> Any:
        return function(*(grid if one is None else one for one in given))

    return call


def timed(forms: dict[str, tuple[int, Callable[[Any], Any]]], x: Any) -> dict[str, Any]:
    """Milliseconds a step of every form: the median over blocks, which are taken in turn."""
    import torch

    def block(form: Callable[[Any], Any], calls: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        grid = x
        begin.record()
        for _ in range(calls):
            grid = form(grid)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / calls

    calls = {}
    for name, (_, form) in forms.items():
        block(form, 2)
        calls[name] = max(1, min(MOST_CALLS, int(BLOCK_S * 1e3 / block(form, 2)) + 1))
    blocks: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(BLOCKS):
        for name, (steps, form) in forms.items():
            blocks[name].append(block(form, calls[name]) / steps)
    return {"ms_per_step": {name: round(median(times), 5) for name, times in blocks.items()},
            "calls_a_block": calls,
            "spread": {name: round((max(times) - min(times)) / median(times), 4) for name, times in blocks.items()}}


# cuDNN without PyTorch in between.


class Performance(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t."""

    _fields_ = [("algorithm", ctypes.c_int), ("status", ctypes.c_int), ("time_ms", ctypes.c_float),
                ("memory", ctypes.c_size_t), ("determinism", ctypes.c_int), ("math", ctypes.c_int),
                ("reserved", ctypes.c_int * 3)]


class Direct:
    """The fastest algorithm that cudnnFindConvolutionForwardAlgorithm measures, for one grid and one window."""

    NAMES = ("implicit GEMM", "implicit precomputed GEMM", "GEMM", "direct", "FFT", "FFT tiling", "Winograd",
             "Winograd, not fused")

    def __init__(self, x: Any, weight: Any) -> None:
        import torch

        torch.backends.cudnn.version()  # Loads the library that this torch brings.
        self.library = ctypes.CDLL("libcudnn.so.9")
        self.weight = weight.contiguous()
        self.dtype, self.number = (0, ctypes.c_float) if x.dtype == torch.float32 else (1, ctypes.c_double)
        self.handle, self.grid = ctypes.c_void_p(), ctypes.c_void_p()
        self.window, self.convolution = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("Create", ctypes.byref(self.handle))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._do("SetStream", self.handle, stream)
        self._do("CreateTensorDescriptor", ctypes.byref(self.grid))
        self._do("SetTensor4dDescriptor", self.grid, 0, self.dtype, *x.shape)
        self._do("CreateFilterDescriptor", ctypes.byref(self.window))
        self._do("SetFilter4dDescriptor", self.window, self.dtype, 0, *weight.shape)
        self._do("CreateConvolutionDescriptor", ctypes.byref(self.convolution))
        pad = weight.shape[-1] // 2
        self._do("SetConvolution2dDescriptor", self.convolution, pad, pad, 1, 1, 1, 1, 1, self.dtype)
        self._do("SetConvolutionMathType", self.convolution, 3)  # FMA: no TF32.
        torch.cuda.empty_cache()
        asked, count = (Performance * len(self.NAMES))(), ctypes.c_int()
        self._do("FindConvolutionForwardAlgorithm", self.handle, self.grid, self.window, self.convolution, self.grid,
                 len(self.NAMES), ctypes.byref(count), asked)
        names = dict(enumerate(self.NAMES))
        self.facts = [{"algorithm": names.get(one.algorithm, one.algorithm), "status": one.status, "ms": round(one.time_ms, 4),
                       "workspace": one.memory} for one in asked[: count.value]]
        able = [one for one in asked[: count.value] if one.status == 0]
        if not able:
            raise RuntimeError(f"no algorithm works: {self.facts}")
        self.algorithm = able[0].algorithm
        self.workspace = torch.empty(max(able[0].memory, 1), dtype=torch.uint8, device="cuda")
        self.results = [torch.empty_like(x), torch.empty_like(x)]

    def __call__(self, grid: Any) -> Any:
        self.results.reverse()
        out = self.results[0]
        one, zero = self.number(1.0), self.number(0.0)
        place = ctypes.c_void_p
        self._do("ConvolutionForward", self.handle, ctypes.byref(one), self.grid, place(grid.data_ptr()), self.window,
                 place(self.weight.data_ptr()), self.convolution, self.algorithm, place(self.workspace.data_ptr()),
                 ctypes.c_size_t(self.workspace.numel()), ctypes.byref(zero), self.grid, place(out.data_ptr()))
        return out

    def _do(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, f"cudnn{name}")(*arguments)
        if status:
            self.library.cudnnGetErrorString.restype = ctypes.c_char_p
            why = self.library.cudnnGetErrorString(status).decode()
            raise RuntimeError(f"cudnn{name}: {why}")


# The program.


def told(case: Case, row: dict[str, Any]) -> str:
    """One line about a case, and one for each way to compute it."""
    lines = [f"{case.name} {case.size} x {case.size}: search {row.get('search_s', '-')} s, {row.get('failed') or row.get('stopped')}"]
    for name, ms in row.get("measured", {}).get("ms_per_step", {}).items():
        error = row["measured"]["errors"].get(name)
        lines.append(f"  {name:16s} {ms:9.4f} ms a step" + (f", error after {VERIFIED_STEPS} steps {error:.1e}" if error is not None else ""))
    lines += [f"  {name:16s} failed: {why}" for name, why in row.get("measured", {}).get("failed", {}).items()]
    lines += [f"    {one.get('us') or '-':>9} us  {one['title']}  {one.get('failure') or ''}"[:140] for one in row.get("candidates", ())]
    return "\n".join(lines)


def measured(row: dict[str, Any], case: Case) -> dict[str, Any]:
    """What a process of its own measured. A library that breaks the GPU's context breaks its process: again without it."""
    known = {key: row.get(key) for key in ("file", "extension", "module", "entry", "arguments")}
    failed: dict[str, str] = {}
    for without in ([], ["cuDNN, fastest"], ["cuDNN, fastest", "eager, no cuDNN"]):
        request = json.dumps({"case": asdict(case), "without": without, **known})
        done = subprocess.run([sys.executable, __file__, "--measure", request], capture_output=True, text=True, check=False)
        if not done.returncode:
            found = json.loads(done.stdout.splitlines()[-1])
            return {**found, "failed": {**failed, **found["failed"]}}
        failed[f"all but {without}"] = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1][:300]
    return {"failed": failed}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=10240, help="of the square grid's sides")
    parser.add_argument("--steps", type=int, default=4, help="in one call of the cases that apply several")
    parser.add_argument("--seconds", type=float, default=1500.0, help="for everything together")
    parser.add_argument("--only", default="", help="names of cases, with commas between")
    parser.add_argument("--preset", default="normal")
    parser.add_argument("--budget", type=int, help="candidates a case at most")
    parser.add_argument("--no-confirm", action="store_true", help="do not rebuild winners with PyTorch's own headers")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--cpu", action="store_true", help="searches only, without a GPU; takes a small --size")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(json.loads(options.measure))))
        return 0
    from engine.devices import query_driver
    from engine.evaluate import gpu_lock

    driver = await query_driver()
    if not options.cpu and not driver["devices"]:
        print(f"bench/stencil.py needs a GPU: {driver['problem'] or 'the driver shows none'}")
        return 2
    every = cases(options.size, options.steps)
    if not (wanted := [case for case in every if not options.only or case.name in options.only.split(",")]):
        parser.error(f"--only knows {', '.join(case.name for case in every)}")
    document: dict[str, Any] = {
        "what": "milliseconds a step of repeated stencils: median of blocks of calls between CUDA events, each call fed "
                "with the last result, caches as they are", "options": vars(options), "driver": driver,
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "cases": {}}
    begin, wrong = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(prefix="hiera-stencil-") as scratch:
        for done, case in enumerate(wanted):
            left = options.seconds - (time.perf_counter() - begin)
            share = left / (len(wanted) - done) - (0 if options.cpu else MEASURE_S)
            if share < 20:
                print(f"{case.name}: no time left")
                continue
            row = await search(case, Path(scratch), share, options)
            if not options.cpu:
                async with gpu_lock.exclusive(0):
                    row["measured"] = await asyncio.to_thread(measured, row, case)
            wrong += "failed" in row
            document["cases"][case.name] = row
            print(told(case, row), flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(document, indent=1, default=str) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""A whole candidate on a GPU, small and 4 GB, and the usual way beside it: load_inline, 5 x allclose, 100 timed runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu_check_evaluator import SCALE
from gpu_check_evaluator import contract as make_contract

from contracts.folder import write_folder
from engine.evaluate.build import Builder
from engine.evaluate.local import LocalEvaluator
from engine.records import Candidate, Device
from engine.toolchain import Toolchain

SHAPES = {"small": (32, 1024), "large": (16384, 65536)}
USUAL = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
from torch.utils.cpp_extension import load_inline
told = json.load(open(sys.argv[1]))
begin = time.perf_counter()
module = load_inline(name="usual", cpp_sources=[told["binding"]], cuda_sources=[told["cuda"]], functions=[told["entry"]],
                     build_directory=told["folder"])
entry = getattr(module, told["entry"])
build_s = time.perf_counter() - begin
for name, shape in told["shapes"].items():
    begin = time.perf_counter()
    right = all(torch.allclose(entry(x), torch.relu(x) * 2, atol=1e-4, rtol=1e-4)
                for x in (torch.rand(shape, device="cuda") for _ in range(5)))
    x, times = torch.rand(shape, device="cuda"), []
    for _ in range(3):
        entry(x)
    for _ in range(100):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(); entry(x); end.record(); torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    print(json.dumps({"size": name, "build_s": build_s, "seconds": build_s + time.perf_counter() - begin, "right": right,
                      "mean_us": sum(times) / 100}), flush=True)
"""


async def pipelines(toolchain: Toolchain, device: Device, scratch: Path, builder: Builder) -> dict[str, Any]:
    """Seconds of a candidate from text to time, by size; why not, where there is no GPU."""
    if device.kind != "cuda":
        return {"not_run": "no GPU: a candidate is neither timed nor verified on one here"}
    found: dict[str, Any] = {"how": "evaluate() of a text that no cache knows, the judge being open as in a search"}
    for name, shape in SHAPES.items():
        made, truth = make_contract("scale", shape, shape, {}, "pass", "torch.relu(x) * 2")
        folder = scratch / f"pipeline-{name}"
        write_folder(folder, made, groundtruth=truth, signature="x", source=SCALE)
        evaluator = LocalEvaluator(toolchain, device, made, folder, builder)
        try:
            begin = time.perf_counter()
            await evaluator.prepare()
            prepared_s = time.perf_counter() - begin
            rows = []
            for number in range(3):
                text = f"{SCALE}\n// {name} {number}\n"
                begin = time.perf_counter()
                judged = await evaluator.evaluate(made, Candidate(id=f"{name}{number}", source=text, space="cuda"))
                rows.append({"seconds": round(time.perf_counter() - begin, 2), "stage": judged.stage,
                             "failure": judged.failure.reason if judged.failure else None,
                             "stage_s": dict(judged.stage_s)})
        finally:
            await evaluator.close()
        found[name] = {"shape": shape, "prepared_s": round(prepared_s, 1), "rows": rows}
    usual = _usual(made.entry, scratch / "usual")
    for name in SHAPES:
        found[name]["usual_way"] = usual.get(name, usual)
    return found


def _usual(entry: str, folder: Path) -> dict[str, Any]:
    """The usual way by size, built once: its seconds count that build for each."""
    folder.mkdir()
    told = folder / "told.json"
    told.write_text(json.dumps({"binding": f"torch::Tensor {entry}(torch::Tensor x);", "cuda": SCALE, "entry": entry,
                                "shapes": SHAPES, "folder": str(folder)}))
    done = subprocess.run([sys.executable, "-c", USUAL, str(told)], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        return {"not_run": (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1][:300]}
    return {row.pop("size"): row for row in map(json.loads, done.stdout.splitlines()) if "size" in row}

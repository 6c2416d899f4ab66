"""How fast the evaluator is, beside `torch.utils.cpp_extension.load_inline` in the same run.

    python bench/evaluator.py --json bench/results/evaluator.json [--quick] [--peer-sources N]

Measures, each with how it was obtained: text to a loaded callable over a mixed corpus in three spaces; the time to
report a failed build, and whether the reported line is the faulty one; six candidates built in parallel against the
slowest of them alone; the usual way on the same sources; and on a GPU a whole candidate (build, verification, timing)
on a small tensor and on one of 4 GB, beside load_inline + 5 trials of allclose + 100 timed runs. What cannot be run is
named with the reason. The load average before and after is part of the result, and CPU seconds stand beside wall
seconds: on a busy machine only those mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from evaluator_corpus import Source, corpus, faulty, interpreter  # noqa: E402 - the path comes first.
from evaluator_pipeline import pipelines  # noqa: E402

from contracts.errors import HieraError  # noqa: E402
from engine.devices import find_device  # noqa: E402
from engine.evaluate import sandbox  # noqa: E402
from engine.evaluate.binding import read_binding  # noqa: E402
from engine.evaluate.build import Builder  # noqa: E402
from engine.evaluate.emulate import build_emulated  # noqa: E402
from engine.records import Build, Failure  # noqa: E402
from engine.toolchain import Toolchain, find_toolchain  # noqa: E402

ARCHITECTURE = "9.0"
BUSY = 0.5  # Load average a core above which a machine does not count as quiet.
TOGETHER = 6
PEER_S = 600
GOALS = {
    "load_s": "median at most 3 s on 2 cores and 15 times faster than load_inline",
    "failed_build_s": "at most 2 s, with the line of the user's own cuda_source.cu",
    "together": "six candidates in at most 1.5 times the time of the slowest",
    "small": "build, verification and timing at most 6 s", "large": "at most 15 s for a tensor of 4 GB",
}
# Imports torch once; a child of its own loads each extension, as a candidate's process does.
LOADER = """
import importlib.machinery, importlib.util, json, os, sys, time
import torch
for line in sys.stdin:
    told = json.loads(line)
    read, write = os.pipe()
    if os.fork() == 0:
        begin = time.perf_counter()
        try:
            loader = importlib.machinery.ExtensionFileLoader(told["module"], told["extension"])
            spec = importlib.machinery.ModuleSpec(told["module"], loader, origin=told["extension"])
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            said = {"seconds": time.perf_counter() - begin, "names": [n for n in dir(module) if n[0] != "_"]}
        except BaseException as error:
            said = {"problem": f"{type(error).__name__}: {error}"}
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 65536).decode(), flush=True)
    os.close(read)
    os.wait()
"""
PEER = """
import json, os, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
from torch.utils.cpp_extension import load_inline
told = json.load(open(sys.argv[1]))
begin = time.perf_counter()
load_inline(name=told["name"], cpp_sources=[told["binding"]], functions=told["functions"], verbose=False,
            build_directory=told["folder"], **({"cuda_sources": [told["cuda"]]} if told["cuda"] else {}))
print(json.dumps({"seconds": time.perf_counter() - begin}))
"""


class Loader:
    """A process that has imported torch."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([interpreter(), "-W", "ignore", "-c", LOADER], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)

    def load(self, build: Build) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"module": build.module, "extension": build.extension}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


async def one(builder: Builder, source: Source, *, emulated: bool) -> Build | Failure:
    if emulated:
        return await build_emulated(builder, source.folder, source.text, sm=ARCHITECTURE)
    return await builder.build(source.folder, source.text, space=source.space, sm=ARCHITECTURE)


async def loads(builder: Builder, sources: Sequence[Source], *, emulated: bool) -> list[dict[str, Any]]:
    """Text to callable, one after the other: builds of texts that no cache knows, then the import."""
    loader, rows = Loader(), []
    try:
        for number, source in enumerate(sources):
            begin, spent = time.perf_counter(), await built_seconds()
            built = await one(builder, source.fresh(number), emulated=emulated)
            build_s = time.perf_counter() - begin
            row: dict[str, Any] = {"source": source.name, "space": source.space, "written_by": source.written_by,
                                   "build_s": round(build_s, 3), "cpu_s": known(await built_seconds() - spent)}
            if isinstance(built, Failure):
                row["failed"] = built.reason[:300]
            else:
                loaded = loader.load(built)
                row |= {"tier": built.tier, "import_s": loaded.get("seconds"), "problem": loaded.get("problem")}
                row["seconds"] = None if row["problem"] else round(build_s + loaded["seconds"], 3)
            rows.append(row)
            print(f"  {row.get('seconds') or '-':>6} s  {source.space:15} {source.name}"
                  + (f": {row.get('failed') or row.get('problem')}"[:140] if not row.get("seconds") else ""), flush=True)
    finally:
        loader.close()
    return rows


async def failures(builder: Builder, sources: Sequence[Source], *, emulated: bool) -> list[dict[str, Any]]:
    """Builds of texts with one fault: how long until it is told, and at which line."""
    rows = []
    for number, (source, fault, line) in enumerate(faulty(list(sources))):
        begin, spent = time.perf_counter(), await built_seconds()
        found = await one(builder, source.fresh(number), emulated=emulated)
        seconds, spent = time.perf_counter() - begin, await built_seconds() - spent
        told = [error.line for error in found.errors] if isinstance(found, Failure) else None
        rows.append({"source": source.name, "fault": fault, "line": line, "seconds": round(seconds, 3),
                     "cpu_s": known(spent), "told_lines": told,
                     # A lost semicolon shows at the next token, which may stand on the next line.
                     "right_line": told is not None and bool({line, line + 1} & set(told))})
    return rows


async def together(builder: Builder, sources: Sequence[Source], *, emulated: bool) -> dict[str, Any]:
    """Six at once, against each of them alone."""
    alone = []
    for number, source in enumerate(sources):
        begin = time.perf_counter()
        await one(builder, source.fresh(1000 + number), emulated=emulated)
        alone.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    await asyncio.gather(*(one(builder, s.fresh(2000 + n), emulated=emulated) for n, s in enumerate(sources)))
    seconds = time.perf_counter() - begin
    return {"sources": [source.name for source in sources], "alone_s": [round(s, 3) for s in alone],
            "together_s": round(seconds, 3), "times_the_slowest": round(seconds / max(alone), 2)}


def peer(sources: Sequence[Source], scratch: Path, *, cuda: bool) -> list[dict[str, Any]]:
    """The usual way on the same sources; without a CUDA torch on C++ with the same headers, and named so."""
    rows = []
    for number, source in enumerate(sources):
        folder = scratch / f"peer-{number}"
        folder.mkdir()
        binding = (source.folder / "cpp_source.cpp").read_text()
        functions = None if "PYBIND11_MODULE" in binding else read_binding(source.folder / "cpp_source.cpp").exported
        text = source.text
        if not cuda:
            text, binding, functions = "", "#include <torch/extension.h>\nat::Tensor f(at::Tensor x) { return x.relu(); }", ["f"]
        told = folder / "told.json"
        told.write_text(json.dumps({"name": f"peer_{number}", "binding": binding, "functions": functions, "cuda": text,
                                    "folder": str(folder)}))
        spent = cpu_seconds()
        done = subprocess.run([interpreter(), "-c", PEER, str(told)], capture_output=True, text=True, timeout=PEER_S,
                              env={**os.environ, "TORCH_CUDA_ARCH_LIST": ARCHITECTURE}, check=False)
        row: dict[str, Any] = {"source": source.name if cuda else "relu, C++ only",
                               "cpu_s": known(cpu_seconds() - spent)}
        if done.returncode == 0:
            row["seconds"] = round(json.loads(done.stdout.splitlines()[-1])["seconds"], 3)
        else:
            said = done.stderr.strip().splitlines() or ["it wrote nothing"]
            row["not_run"] = next((line for line in said if "error" in line), said[-1])[:300]
        rows.append(row)
        print(f"  {row.get('seconds', '-'):>6} s  load_inline {row['source']} {row.get('not_run', '')}"[:160], flush=True)
        if not cuda:
            break
    return rows


async def built_seconds() -> float:
    """CPU time of all builds so far: what they cost, however busy the machine is.

    NaN where they run in bubblewrap: it does not hand on what the processes in its namespace used.
    """
    return math.nan if (await sandbox.find_isolation()).kind == "bubblewrap" else cpu_seconds()


def cpu_seconds() -> float:
    """CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds, 3)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = [row for row in rows if row.get("seconds") is not None]
    if not found:
        return {"count": 0}
    seconds = [row["seconds"] for row in found]
    return {"count": len(found), "median_s": round(median(seconds), 3), "least_s": min(seconds), "most_s": max(seconds),
            "median_cpu_s": round(median(row["cpu_s"] for row in found), 3) if found[0]["cpu_s"] is not None else None}


def machine(toolchain: Toolchain) -> dict[str, Any]:
    name = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith("model name")), platform.processor())
    return {"processor": name, "cores": len(os.sched_getaffinity(0)), "load_average_before": os.getloadavg(),
            "quiet": os.getloadavg()[0] <= BUSY * len(os.sched_getaffinity(0)), "python": toolchain.python_version,
            "torch": toolchain.torch_version, "nvcc": toolchain.nvcc_version or None, "g++": toolchain.gxx_version}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="every second source only")
    parser.add_argument("--peer-sources", type=int, default=3, metavar="N", help="sources of the usual way (default 3)")
    parser.add_argument("--device", default="auto", help="auto, cuda:N or none")
    parser.add_argument("--without-bubblewrap", action="store_true",
                        help="build behind Landlock instead: then CPU seconds are known")
    options = parser.parse_args()
    if options.without_bubblewrap and (chosen := await sandbox.find_isolation()).kind == "bubblewrap":
        await sandbox.distrust(chosen)
    toolchain, device = await find_toolchain(interpreter()), await find_device(options.device)
    emulated = toolchain.nvcc is None or bool(toolchain.nvcc_problem)
    how = "g++ against the emulator, as on machines without nvcc" if emulated else f"nvcc {toolchain.nvcc_version}"
    document: dict[str, Any] = {
        "what": "the evaluator's speed beside torch.utils.cpp_extension.load_inline", "goals": GOALS,
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "gpu": device.name if device.kind == "cuda" else None,
        "machine": machine(toolchain), "builds_by": how, "sandbox": (await sandbox.find_isolation()).name,
    }

    def save() -> None:
        # After each part: whoever stops the benchmark keeps what it has measured.
        if options.json:
            Path(options.json).write_text(json.dumps(document, indent=1) + "\n")

    with tempfile.TemporaryDirectory(prefix="hiera-bench-") as name:
        scratch = Path(name)
        sources, notes = await corpus(scratch, interpreter())
        sources = sources[::2] if options.quick else sources
        builder = Builder(toolchain, scratch / "cache")
        begin = time.perf_counter()
        for folder in dict.fromkeys(source.folder for source in sources):
            await builder.prepare(folder, emulated=emulated)
        document["prepared"] = {"bindings": len({s.folder for s in sources}),
                                "seconds": round(time.perf_counter() - begin, 1),
                                "how": "once per task and once per torch, beside other work in a job; not in load_s"}
        print(f"{len(sources)} sources, {how}")
        rows = await loads(builder, sources, emulated=emulated)
        good = [s for s, row in zip(sources, rows, strict=True) if row.get("seconds")]
        document["load_s"] = {
            "how": "wall seconds from text to an imported extension, in a process that has imported torch; no cache",
            "all": summary(rows), "by_space": {space: summary([r for r in rows if r["space"] == space])
                                               for space in sorted({r["space"] for r in rows})},
            "left_out": notes, "rows": rows}
        save()
        slowest = sorted((s for s in good), key=lambda s: -next(r["seconds"] for r in rows if r["source"] == s.name))
        failed = await failures(builder, good[:20], emulated=emulated)
        document["failed_build_s"] = {"how": "wall seconds until the fault is told", "all": summary(failed),
                                      "right_lines": sum(r["right_line"] for r in failed), "rows": failed}
        document["together"] = {"how": f"{TOGETHER} sources of the corpus, alone and at once; no cache",
                                **await together(builder, slowest[:TOGETHER], emulated=emulated)}
        save()
        cuda = not emulated and toolchain.torch_cuda is not None
        # What a hand wrote may rely on headers that only we include.
        by_codegen = sorted(good, key=lambda s: s.written_by != "codegen")
        chosen = [next(s for s in by_codegen if s.space == space) for space in sorted({s.space for s in good})]
        peers = peer(chosen[:options.peer_sources], scratch, cuda=cuda) if options.peer_sources else []
        document["load_inline_s"] = {
            "how": "load_inline of the same sources" if cuda else
                   "load_inline of one C++ function: this torch has no CUDA, so no .cu can be built with its headers",
            "all": summary(peers), "rows": peers}
        ours, theirs = document["load_s"]["all"].get("median_s"), document["load_inline_s"]["all"].get("median_s")
        document["times_faster"] = round(theirs / ours, 1) if ours and theirs else None
        ours, theirs = document["load_s"]["all"].get("median_cpu_s"), document["load_inline_s"]["all"].get("median_cpu_s")
        document["times_less_cpu"] = round(theirs / ours, 1) if ours and theirs else None
        save()
        try:
            document["pipeline"] = await pipelines(toolchain, device, scratch, builder)
        except (HieraError, subprocess.TimeoutExpired) as error:  # What was measured until now is worth keeping.
            document["pipeline"] = {"not_run": str(error)}
    document["machine"]["load_average_after"] = os.getloadavg()
    save()
    for key in ("load_s", "failed_build_s", "load_inline_s"):
        print(key, document[key]["all"])
    print("lines", f"{document['failed_build_s']['right_lines']}/{len(failed)}", "together", document["together"])
    print(f"times faster {document['times_faster']}, in CPU seconds {document['times_less_cpu']}")
    print("pipeline", document["pipeline"])
    if not document["machine"]["quiet"]:
        print(f"the machine was busy: load average {document['machine']['load_average_before']}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""Counters of one candidate's call by Nsight Compute, or the true reason why there are none.

`ncu` runs `worker/launch.py` under the user's interpreter, collects between cudaProfilerStart and
cudaProfilerStop, and writes a report that is then read as CSV. Clocks are left alone. Kernels are
replayed one by one with cold caches, so a counter of a kernel that lives from what the kernel before
left in L2 is on the high side. No candidate is lost here: trouble is a `Counters` with a status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contracts.contract import Argument, Contract
from contracts.errors import WorkerTimeoutError
from engine import processes
from engine.evaluate import attribution, sandbox
from engine.evaluate.ncu_csv import parse_raw, parse_source
from engine.records import Build, Counters, Device

LAUNCH = Path(__file__).parent.parent / "worker" / "launch.py"
# Emptied once ncu was seen to work here without the sandbox only, so that each profile does not fail first.
_may_be_shut_in = {"yes"}
WARM_CALLS = 2
MAX_LAUNCHES = 16  # A whole model has hundreds of kernels; each is replayed some ten times.
IMPORT_TIMEOUT_S = 60.0
FILTER = "kernels between cudaProfilerStart and cudaProfilerStop (--profile-from-start off)"
NCU_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/NVIDIA-Nsight-Compute*/ncu",
              "/opt/nvidia/nsight-compute/*/target/*/ncu")
PERMISSION_HINT = ("run as root, or set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia kernel module and reboot; "
                   "in a container add --cap-add SYS_ADMIN")


async def profile(
    toolchain: Any,
    *,
    contract: Contract,
    build: Build,
    source: str,
    device: Device,
    timeout_s: float = 120.0,
    raw_dir: str | Path | None = None,
    alone: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
) -> Counters:
    """Measure one call of a built candidate.

    Args:
        toolchain: Where the tools are; `python` (the user's interpreter) and, if it has one, `ncu` are used.
        contract: Gives layouts and ranges of the inputs.
        build: A build with an extension for this device.
        source: The candidate's text, for the wording of the hottest lines.
        device: Where to run.
        timeout_s: Limit for the measured run. Reading the report has its own.
        raw_dir: Keep the report and both CSV pages here.
        alone: Gives a context in which nobody else uses the device: the measured run happens in it.
    """
    if device.kind != "cuda":
        return _not_measured("no GPU is used")
    if build.extension is None or build.tier == "emulated":
        return _not_measured("the candidate was not built for a GPU")
    ncu = find_ncu(toolchain)
    if ncu is None:
        return _not_measured("ncu is not installed (install NVIDIA Nsight Compute or put it on the PATH)")
    with tempfile.TemporaryDirectory(prefix="hiera-ncu-") as folder:
        counters = await _measure(ncu, Path(folder), toolchain, contract, build, source, device, timeout_s, alone)
        if raw_dir is not None:
            _keep(Path(folder), Path(raw_dir))
    return counters


def find_ncu(toolchain: Any = None) -> str | None:
    """Path of the profiler: the toolchain's, the PATH's, then the usual places, newest first."""
    named = getattr(toolchain, "ncu", None)
    if named:
        return str(named)
    found = shutil.which("ncu")
    if found is not None:
        return found
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = ([f"{home}/bin/ncu"] if home else []) + list(NCU_PLACES)
    for place in places:
        matches = sorted(Path("/").glob(place.lstrip("/")), reverse=True)
        if matches:
            return str(matches[0])
    return None


async def ncu_version(ncu: str) -> str:
    """The version, such as `2025.3.1`; raises what running it raises."""
    done = await processes.run([ncu, "--version"], timeout_s=20)
    match = re.search(r"Version (\d[\d.]*\d)", done.output)
    return match[1] if match else ""


async def _measure(
    ncu: str, folder: Path, toolchain: Any, contract: Contract, build: Build, source: str, device: Device,
    timeout_s: float, alone: Callable[[], contextlib.AbstractAsyncContextManager[None]],
) -> Counters:
    spec = folder / "launch.json"
    spec.write_text(json.dumps(launch_spec(contract, build, device)), encoding="utf-8")
    report = folder / "report"
    program = [str(getattr(toolchain, "python", "python3")), "-u", str(LAUNCH), str(spec)]
    # Its own TMPDIR: ncu's lock file in a shared one may belong to another user.
    env = processes.child_environment({"TMPDIR": str(folder), "LC_ALL": "C", **processes.bytecode_cache("candidate")})
    assert build.extension is not None
    shown = [Path(build.extension).parent, Path(ncu).absolute().parent]
    shut_in = await sandbox.tool_prefix(folder, python=program[0], shown=shown) if _may_be_shut_in else []
    try:
        version = await ncu_version(ncu)
        extra: Sequence[str] = attribution.extra_metrics()
        while True:
            async with alone():
                done = await _run(shut_in, _command(ncu, report, extra, program), timeout_s, folder, env)
            unknown = _unknown_metrics(done.output)
            if unknown & set(extra):
                extra = [name for name in extra if name not in unknown]
            elif shut_in and not _report(folder) and '"ok": false' not in done.output:
                # Seen from here, a profiler that the sandbox breaks looks like one that is broken.
                shut_in = []
            else:
                break
        (folder / "ncu.log").write_text(done.output, encoding="utf-8")
        found = _report(folder)
        if found is not None and not shut_in:
            _may_be_shut_in.clear()
        trouble = explain(done.output, done.status, source, has_report=found is not None)
        if trouble or found is None:
            return _not_measured(trouble or f"ncu wrote no report: {_last_line(done.output)}", version)
        raw, lines = await asyncio.gather(
            _page(ncu, found, ["--page", "raw"], folder / "raw.csv", env),
            _page(ncu, found, ["--page", "source", "--print-source", "cuda,sass"], folder / "source.csv", env))
    except WorkerTimeoutError as error:
        return _not_measured(f"ncu did not finish within {error.timeout_s:g} s", tool="")
    except OSError as error:
        return _not_measured(f"ncu could not be started: {error}")
    return _counters(version, raw, lines, source)


async def _run(
    shut_in: Sequence[str], command: Sequence[str], timeout_s: float, folder: Path, env: dict[str, str]
) -> processes.Finished:
    """One run of ncu. One that hangs in the sandbox counts as failed: it is tried without."""
    try:
        return await processes.run([*shut_in, *command], timeout_s=timeout_s, cwd=folder, env=env)
    except WorkerTimeoutError as error:
        if not shut_in:
            raise
        return processes.Finished(124, "", error.problem)


def _report(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("report*.ncu-rep*"))), None)


def launch_spec(contract: Contract, build: Build, device: Device) -> dict[str, Any]:
    """What `launch.py` needs, as plain data."""
    layouts = contract.example.tensors
    return {
        "extension": build.extension, "module": build.module, "entry": contract.entry, "device": device.index,
        "warmup": WARM_CALLS, "arguments": [_argument(a, layouts) for a in contract.arguments],
    }


def explain(log: str, status: int, source: str, *, has_report: bool) -> str:
    """Why nothing was measured, in one sentence; empty when there is a report to read."""
    if "ERR_NVGPUCTRPERM" in log:
        return f"no permission to read the GPU's counters (ERR_NVGPUCTRPERM); to fix: {PERMISSION_HINT}"
    broken = re.search(r"LibraryNotLoaded|Failed to initialize the profiler|==ERROR==.*[Ff]ailed to load", log)
    if broken and not has_report:
        return f"ncu failed to load its profiler on this machine: {_error_line(log)}"
    refused = re.search(r'"ok": false, "problem": "((?:[^"\\]|\\.)*)"', log)
    if refused:
        return f"the call failed under the profiler: {refused[1]}"
    if "No kernels were profiled" in log or ("no kernels" in log.lower() and not has_report):
        graphs = "; the source launches a CUDA graph, which this ncu did not show" if "cudaGraph" in source else ""
        return f"no kernel was captured; filter: {FILTER}{graphs}"
    if has_report:
        return ""
    if re.search(r"another (instance|tool)|already (being )?profil|resource.*in use", log, re.IGNORECASE):
        return f"another profiler holds the GPU's counters: {_error_line(log)}"
    return f"ncu ended with status {status}: {_error_line(log)}"


def _counters(version: str, raw: str, lines: str, source: str) -> Counters:
    launches = parse_raw(raw)
    if not launches:
        return _not_measured(f"no kernel was captured; filter: {FILTER}", version)
    kernels = attribution.kernel_counters(launches)
    if not any(metric.value is not None for kernel in kernels for metric in kernel.metrics):
        return _not_measured("ncu returned no number for any counter (all n/a or NaN)", version)
    found = attribution.attribute(kernels)
    missing = sum(metric.value is None for kernel in kernels for metric in kernel.metrics)
    notes = [f"{missing} counters were n/a and are left out"] if missing > 4 * len(kernels) else []
    if "cudaGraph" in source:
        notes.append("the source uses a CUDA graph: its kernels were measured one by one, without their overlap")
    if len(kernels) >= MAX_LAUNCHES:
        notes.append(f"only the first {MAX_LAUNCHES} kernels of the call were measured")
    return Counters(status="measured", tool=version, kernels=kernels,
                    lines=attribution.hot_lines(parse_source(lines), source), bound=found.bound,
                    evidence=(*found.evidence, *notes), limiter=found.limiter)


def _command(ncu: str, report: Path, extra: Sequence[str], program: Sequence[str]) -> list[str]:
    sections = [word for section in attribution.table()["sections"] for word in ("--section", section)]
    return [
        ncu, "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all",
        "--launch-count", str(MAX_LAUNCHES), *sections, *(["--metrics", ",".join(extra)] if extra else []),
        "--import-source", "yes", "--force-overwrite", "--export", str(report), *program,
    ]


async def _page(ncu: str, report: Path, page: Sequence[str], keep_as: Path, env: dict[str, str]) -> str:
    """One CSV page of a report; empty where ncu can not make it."""
    done = await processes.run([ncu, "--import", str(report), "--csv", "--print-units", "base", *page],
                               timeout_s=IMPORT_TIMEOUT_S, env=env)
    keep_as.write_text(done.stdout, encoding="utf-8")
    return done.stdout


def _unknown_metrics(log: str) -> set[str]:
    """Names that this ncu or chip does not know: asking for them ends the run."""
    names: set[str] = set()
    for line in log.splitlines():
        if re.search(r"(failed to find|unknown|invalid|unsupported|could not find|not supported).*metric|"
                     r"metric.*(not found|unknown|invalid|not supported|unsupported)", line, re.IGNORECASE):
            names.update(name for name in attribution.extra_metrics() if name in line)
    return names


def _argument(argument: Argument, layouts: Any) -> dict[str, Any]:
    if argument.tensor is None:
        return {"value": argument.value}
    layout = layouts.get(argument.name, argument.tensor)
    return {
        "tensor": {"dtype": layout.dtype, "shape": list(layout.shape), "stride": list(layout.stride)},
        "low": argument.low, "high": argument.high,
        # Running variances and the like stand under square roots.
        "positive": argument.role == "buffer",
    }


def _not_measured(reason: str, tool: str = "") -> Counters:
    return Counters(status=f"not measured: {reason}", tool=tool)


def _error_line(log: str) -> str:
    errors = [line for line in log.splitlines() if line.startswith("==ERROR==")]
    return errors[0].removeprefix("==ERROR==").strip() if errors else _last_line(log)


def _last_line(log: str) -> str:
    return (log.strip().splitlines() or ["(it wrote nothing)"])[-1][:300]


def _keep(folder: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix in (".csv", ".log", ".json") or ".ncu-rep" in path.name:
            shutil.copy2(path, target / path.name)

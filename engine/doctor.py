"""What of GPU, compilers, profiler, torch, sandbox, cache and model works here, and the command that mends the rest."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from contracts.errors import HieraError, ToolError, WorkerTimeoutError
from engine import devices, nvml, processes
from engine.evaluate import sandbox
from engine.evaluate.profile import PERMISSION_HINT, find_ncu
from engine.llm.endpoint import resolve
from engine.settings import with_settings
from engine.store import cache_root
from engine.toolchain import Toolchain, find_python, find_toolchain
from engine.trajectory import Job

Status = Literal["ok", "warn", "missing"]
TORCH_TIMEOUT_S = 90.0
COUNTER_TEST_S = 10.0
LOW_SPACE_BYTES = 5 << 30
LANDLOCK_CREATE_RULESET = 444
_TORCH = """
import json, torch
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "path": torch.__file__,
                  "available": torch.cuda.is_available()}))
"""
_KERNEL = """
__global__ void hiera_doctor(float* x) { x[threadIdx.x] += 1.0f; }
int main() {
  float* x = nullptr;
  if (cudaMalloc(&x, 128 * sizeof(float)) != cudaSuccess) return 3;
  hiera_doctor<<<1, 128>>>(x);
  return cudaDeviceSynchronize() == cudaSuccess ? 0 : 4;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about this machine.

    Attributes:
        name: What was looked at.
        status: `ok`; `warn` where the tool still works, with less; `missing` where a main job cannot be done.
        detail: What was found.
        fix: The command or step that mends it; empty where nothing is to mend.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""


async def run(
    python: str | None = None, *, near: Path | None = None, device: str = "auto"
) -> tuple[Finding, ...]:
    """Look at everything. Takes seconds; starts no long work and changes nothing.

    Args:
        python: The interpreter that has the user's torch; found like a job finds it when None.
        near: Where to look for a virtual environment; the working directory when None.
        device: `none` leaves the GPU's tests out.
    """
    answer = await devices.query_driver() if device != "none" else {"devices": [], "driver": "", "problem": "left out"}
    chosen, interpreter = await _interpreter(near or Path.cwd(), python)
    toolchain = await _toolchain(chosen or sys.executable)
    torch, compilers, gpu_tools = await asyncio.gather(
        _torch(chosen, bool(answer["devices"])), _compilers(toolchain, bool(answer["devices"])),
        _gpu_tools(toolchain, answer),
    )
    return (
        _gpu(answer), *compilers, *interpreter, *torch, *gpu_tools, await _bubblewrap(cuda=bool(answer["devices"])),
        _kernel_locks(), _management_library(answer), _cache(),
        await _guarded("language model", _model(near or Path.cwd())),
    )


def exit_status(findings: tuple[Finding, ...]) -> int:
    """0 when nothing is missing, else 1."""
    return int(any(finding.status == "missing" for finding in findings))


def _gpu(answer: dict[str, object]) -> Finding:
    found = answer["devices"]
    assert isinstance(found, list)
    if not found:
        fix = "install the NVIDIA driver, or work without a GPU: kernels are then run on the CPU and never timed"
        return Finding(name="GPU", status="warn", detail=str(answer["problem"]), fix=fix)
    device = devices.from_driver(found[0], str(answer["driver"]))
    names = ", ".join(f"{d['name']} (sm {d['major']}.{d['minor']}, {d['memory_bytes'] / 2**30:.0f} GiB)" for d in found)
    detail = f"{names}; driver {answer['driver'] or 'of unknown version'}"
    if device.peaks == "estimated":
        return Finding(name="GPU", status="warn", detail=f"{detail}; its peaks are estimated",
                       fix="add the card to engine/data/devices.toml")
    return Finding(name="GPU", status="ok", detail=detail)


async def _interpreter(near: Path, python: str | None) -> tuple[str | None, list[Finding]]:
    try:
        path, why = await asyncio.to_thread(find_python, near, python)
    except HieraError as error:
        return None, [Finding(name="interpreter", status="missing", detail=error.problem, fix=error.hint)]
    return path, [Finding(name="interpreter", status="ok", detail=f"{path} ({why})")]


async def _toolchain(python: str) -> Toolchain | None:
    try:
        return await find_toolchain(python)
    except HieraError:
        return None  # `interpreter` and `torch` say why.


async def _torch(python: str | None, has_gpu: bool) -> list[Finding]:
    if python is None:
        return []
    try:
        # Really imported: a torch that is there but does not load is the usual trouble.
        done = await processes.run([python, "-c", _TORCH], timeout_s=TORCH_TIMEOUT_S, cwd="/")
        facts = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, WorkerTimeoutError) as error:
        return [Finding(name="torch", status="missing", detail=f"{python} cannot be run: {error}",
                        fix="choose another interpreter with --python")]
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        return [Finding(name="torch", status="missing", detail=f"{python} cannot import torch: {said}",
                        fix=f"{python} -m pip install torch")]
    detail = f"{facts['version']} (CUDA {facts['cuda'] or 'none'}) at {Path(facts['path']).parent}"
    if has_gpu and not facts["available"]:
        return [Finding(name="torch", status="missing", detail=f"{detail} does not see the GPU",
                        fix=f"{python} -m pip install --force-reinstall torch (a CUDA build that fits the driver)")]
    return [Finding(name="torch", status="ok", detail=detail)]


async def _compilers(toolchain: Toolchain | None, has_gpu: bool) -> list[Finding]:
    if toolchain is None:
        gxx = shutil.which("g++")
        return [Finding(name="g++", status="ok" if gxx else "missing", detail=gxx or "no C++ compiler",
                        fix="" if gxx else "apt install g++")]
    findings = []
    if toolchain.nvcc and not toolchain.nvcc_problem:
        findings.append(Finding(name="nvcc", status="ok", detail=_nvcc_words(toolchain)))
    else:
        # Without a GPU nvcc only checks that candidates compile; with one nothing works without it.
        try:
            toolchain.require_nvcc()
            fix = ""
        except ToolError as error:
            fix = error.hint
        findings.append(Finding(name="nvcc", status="missing" if has_gpu else "warn",
                                detail=toolchain.nvcc_problem or "nvcc was not found", fix=fix))
    if toolchain.gxx:
        findings.append(Finding(name="g++", status="ok", detail=f"{toolchain.gxx_version} at {toolchain.gxx}"))
    else:
        findings.append(Finding(name="g++", status="missing", detail="no C++ compiler found", fix="apt install g++"))
    return findings


def _nvcc_words(toolchain: Toolchain) -> str:
    fits = f"fits torch's CUDA {toolchain.torch_cuda}" if toolchain.torch_cuda else "this torch has no CUDA"
    return f"{toolchain.nvcc_version} at {toolchain.nvcc}, {fits}"


async def _gpu_tools(toolchain: Toolchain | None, answer: dict[str, object]) -> list[Finding]:
    """Nsight Compute and compute-sanitizer, tried on a real kernel where there is a GPU."""
    found = answer["devices"]
    assert isinstance(found, list)
    ncu = find_ncu(toolchain)
    sanitizer = (toolchain.compute_sanitizer if toolchain else None) or shutil.which("compute-sanitizer")
    with tempfile.TemporaryDirectory(prefix="hiera-doctor-") as folder:
        program, why = await _tiny_program(toolchain, found, Path(folder))
        return [await _try_ncu(ncu, program, why, Path(folder)), await _try_sanitizer(sanitizer, program, why)]


async def _tiny_program(toolchain: Toolchain | None, found: list[dict[str, int]], folder: Path) -> tuple[str, str]:
    """A compiled program with one small kernel, or an empty path and why there is none."""
    if not found:
        return "", "no GPU to try it on"
    if toolchain is None or toolchain.nvcc is None:
        return "", "no nvcc to make a test kernel"
    source = folder / "tiny.cu"
    source.write_text(_KERNEL, encoding="utf-8")
    program = folder / "tiny"
    arch = f"sm_{found[0]['major']}{found[0]['minor']}"
    try:
        done = await processes.run([toolchain.nvcc, f"-arch={arch}", "-o", str(program), str(source)], timeout_s=60)
    except (OSError, WorkerTimeoutError) as error:
        return "", f"the test kernel was not built: {error}"
    if done.status != 0:
        said = (done.output.strip().splitlines() or ["it wrote nothing"])[0]
        return "", f"the test kernel was not built: {said}"
    return str(program), ""


async def _try_ncu(ncu: str | None, program: str, why: str, folder: Path) -> Finding:
    name = "ncu and counters"
    if ncu is None:
        return Finding(name=name, status="warn", detail="Nsight Compute is not installed: results carry no counters",
                       fix="install NVIDIA Nsight Compute (part of the CUDA toolkit) and put ncu on the PATH")
    if not program:
        return Finding(name=name, status="warn", detail=f"{ncu}; not tried: {why}")
    env = processes.child_environment({"TMPDIR": str(folder)})
    metric = "gpu__time_duration.sum,smsp__inst_executed.sum"
    try:
        done = await processes.run([ncu, "--clock-control", "none", "--metrics", metric, "--csv", program],
                                   timeout_s=COUNTER_TEST_S, env=env)
    except (OSError, WorkerTimeoutError) as error:
        return Finding(name=name, status="warn", detail=f"{ncu} does not work: {error}", fix="reinstall Nsight Compute")
    if "ERR_NVGPUCTRPERM" in done.output:
        return Finding(name=name, status="warn", detail="counters unavailable: no permission (ERR_NVGPUCTRPERM)",
                       fix=PERMISSION_HINT)
    if "smsp__inst_executed.sum" in done.stdout:
        return Finding(name=name, status="ok", detail=f"{ncu}; counters of a test kernel were read")
    errors = [line for line in done.output.splitlines() if "ERROR" in line] or done.output.strip().splitlines()[-1:]
    return Finding(name=name, status="warn", detail=f"counters unavailable: {(errors or ['ncu wrote nothing'])[0]}",
                   fix="run the same as root, or update Nsight Compute to the driver's version")


async def _try_sanitizer(sanitizer: str | None, program: str, why: str) -> Finding:
    name = "compute-sanitizer"
    if sanitizer is None:
        return Finding(name=name, status="warn", detail="not installed: winners are not checked for memory errors",
                       fix="install compute-sanitizer (part of the CUDA toolkit) and put it on the PATH")
    if not program:
        return Finding(name=name, status="warn", detail=f"{sanitizer}; not tried: {why}")
    try:
        done = await processes.run([sanitizer, "--tool", "memcheck", "--error-exitcode", "97", program], timeout_s=30)
    except (OSError, WorkerTimeoutError) as error:
        return Finding(name=name, status="warn", detail=f"{sanitizer} does not work: {error}", fix="reinstall it")
    if done.status == 0 and "ERROR SUMMARY: 0 errors" in done.output:
        return Finding(name=name, status="ok", detail=f"{sanitizer}; a test kernel was checked")
    said = (done.output.strip().splitlines() or ["it wrote nothing"])[-1]
    return Finding(name=name, status="warn", detail=f"{sanitizer} failed on a test kernel: {said}",
                   fix="some virtual machines do not allow it; memory checks are then left out and said to be")


async def _bubblewrap(*, cuda: bool) -> Finding:
    """What shuts builds and candidates in here: what a verdict will name."""
    path = shutil.which("bwrap")
    works, why = await sandbox.candidate_sandbox(cuda=cuda)
    builds = f"builds run in {(await sandbox.find_isolation()).name}"
    if works:
        return Finding(name="bubblewrap", status="ok", detail=f"{path}; {builds}, candidates in bubblewrap")
    detail = f"{builds}, candidates with seccomp, Landlock and limits alone: {why}"
    if path is None:
        return Finding(name="bubblewrap", status="warn", detail=detail, fix="apt install bubblewrap")
    return Finding(name="bubblewrap", status="warn", detail=detail,
                   fix="sysctl kernel.unprivileged_userns_clone=1 (Ubuntu: "
                       "sysctl kernel.apparmor_restrict_unprivileged_userns=0)")


def _management_library(answer: Mapping[str, Any]) -> Finding:
    """Whether clocks, memory by process and other programs on the card can be told."""
    name = "GPU management library"
    if not answer["devices"]:
        return Finding(name=name, status="ok", detail="no GPU to ask about")
    gpu = nvml.find_gpu(devices.from_driver(answer["devices"][0], str(answer["driver"])))
    if gpu is None:
        return Finding(name=name, status="warn", fix="install the driver's libnvidia-ml.so.1",
                       detail=f"{nvml.LIBRARY} does not know the card: no clocks beside times, GPU memory not bounded")
    clocks = gpu.clocks()
    known = f"SM clock {clocks.sm_mhz} MHz" if clocks.sm_mhz else "clocks are not told"
    if gpu.processes():
        return Finding(name=name, status="ok", detail=f"{known}, memory by process")
    return Finding(name=name, status="ok", detail=f"{known}; processes are not shown (none runs, or this is a "
                                                  "container): then the card's memory is watched as a whole")


def _kernel_locks() -> Finding:
    """What the running kernel offers: seccomp and Landlock."""
    version = _landlock_version()
    try:
        seccomp = "Seccomp:" in Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        seccomp = False
    detail = f"seccomp {'there' if seccomp else 'absent'}, Landlock {f'version {version}' if version else 'absent'}"
    if seccomp and version:
        return Finding(name="seccomp, Landlock", status="ok", detail=detail)
    return Finding(name="seccomp, Landlock", status="warn", detail=f"{detail}: candidates are shut in less tightly",
                   fix="use Linux 5.13 or newer with Landlock enabled (lsm=landlock,... on the kernel's command line)")


def _landlock_version() -> int:
    if platform.machine() not in ("x86_64", "aarch64"):
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1))


def _cache() -> Finding:
    root = cache_root()
    fix = "set HIERA_CACHE to a folder that can be written"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root):
            free = shutil.disk_usage(root).free
    except OSError as error:
        return Finding(name="cache", status="missing", detail=f"{root} cannot be written: {error.strerror}", fix=fix)
    detail = f"{root}, {free / 2**30:.0f} GiB free"
    if free < LOW_SPACE_BYTES:
        return Finding(name="cache", status="warn", detail=detail, fix=f"free some space, or {fix}")
    return Finding(name="cache", status="ok", detail=detail)


async def _model(near: Path) -> Finding:
    """What settings and environment say about a model; it is not asked here."""
    name = "language model"
    try:
        options = with_settings(Job(file=""), near, {}).llm
        if not options.base_url and not options.name and not any(
                os.environ.get(key) for key in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "HIERA_MODEL")):
            return Finding(name=name, status="ok", detail="none configured; the built-in expert needs none")
        endpoint = resolve(options, os.environ)
    except HieraError as error:
        return Finding(name=name, status="warn", detail=error.problem, fix=error.hint)
    key = f"with the key in {endpoint.key_variable}" if endpoint.key else "without a key"
    detail = f"{endpoint} ({endpoint.provider.title}), {key}; not asked here"
    return Finding(name=name, status="ok", detail=detail, fix="`hiera llm-check` tries it")


async def _guarded(name: str, finding: Awaitable[Finding]) -> Finding:
    try:
        return await finding
    except Exception as error:  # noqa: BLE001 - a broken check must not hide the others.
        return Finding(name=name, status="warn", detail=f"could not be looked at: {type(error).__name__}: {error}")

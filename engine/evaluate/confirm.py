"""The last word on a winner: PyTorch's own headers, fresh processes and seeds, the sanitizer.

The fast build's headers could be laxer than PyTorch's, and a race may have been lucky so far. So the
contract's own `torch_demo.py` builds the source once more, the result is judged again in a new
process, and compute-sanitizer watches one call.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.contract import Contract
from contracts.errors import HieraError, WorkerTimeoutError
from engine import processes
from engine.evaluate.build import architecture
from engine.evaluate.profile import LAUNCH, launch_spec
from engine.processes import Worker
from engine.records import Build, Check, Device, Failure
from engine.toolchain import Toolchain

REBUILD_S = 600.0
SANITIZER_S = 150.0
SANITIZER_BYTES = 256 << 20
FOUND = 97  # Our own exit status for "the tool reported errors".


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The source built by torch_demo.py. `folder` must be removed by the caller."""

    build: Build
    folder: Path


async def rebuild(
    toolchain: Toolchain, contract: Contract, folder: Path, source: str, device: Device
) -> Rebuilt | Failure:
    """Build `source` by a copy of the contract folder's own torch_demo.py."""
    if not (folder / "torch_demo.py").exists():
        return Failure(stage="confirm", reason="the contract folder has no torch_demo.py to rebuild it with")
    copy = Path(tempfile.mkdtemp(prefix="hiera-confirm-"))
    begin = time.perf_counter()
    try:
        for path in folder.iterdir():
            if path.is_file():
                shutil.copy2(path, copy / path.name)
        (copy / "cuda_source.cu").write_text(source, encoding="utf-8")
        (copy / "extensions").mkdir()
        number = architecture(device.sm)
        arch = f"{number.rstrip('a')[:-1]}.{number.rstrip('a')[-1]}{'a' if number.endswith('a') else ''}"
        environment = {
            "TORCH_EXTENSIONS_DIR": str(copy / "extensions"), "TORCH_CUDA_ARCH_LIST": arch,
            "PATH": f"{Path(toolchain.python).parent}:{processes.child_environment().get('PATH', '')}",
            **({"CUDA_HOME": toolchain.cuda_home} if toolchain.cuda_home else {}),
        }
        worker = Worker("rebuild", python=toolchain.python, cwd=copy, env=environment)
        try:
            reply = await worker.call("rebuild", timeout_s=REBUILD_S, folder=str(copy), entry=contract.entry)
        finally:
            await worker.close()
    except HieraError as error:
        shutil.rmtree(copy, ignore_errors=True)
        return Failure(stage="confirm", reason=f"torch_demo.py did not build it: {error.problem}")
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    build = Build(seconds=time.perf_counter() - begin, tier="torch", extension=reply["extension"],
                  module=reply["module"], compiled_for=f"sm_{number}")
    return Rebuilt(build, copy)


async def memcheck(toolchain: Toolchain, contract: Contract, build: Build, device: Device) -> Check:
    """One call of the smallest variant under compute-sanitizer."""
    name = "sanitizer"
    tool = toolchain.compute_sanitizer
    if tool is None:
        return Check(name=name, status="not run: compute-sanitizer is not installed")
    smallest = min(contract.variants, key=lambda v: sum(s.size_bytes for s in (*v.tensors.values(), *v.outputs)))
    size = sum(s.size_bytes for s in (*smallest.tensors.values(), *smallest.outputs))
    if size > SANITIZER_BYTES:
        return Check(name=name, status=f"not run: the smallest shapes hold {size >> 20} MiB, which would take too long")
    with tempfile.TemporaryDirectory(prefix="hiera-sanitizer-") as folder:
        spec = Path(folder, "launch.json")
        told = launch_spec(replace(contract, variants=(smallest,)), build, device)
        spec.write_text(json.dumps(told), encoding="utf-8")
        command = [tool, "--tool", "memcheck", "--error-exitcode", str(FOUND), "--report-api-errors", "no",
                   "--print-limit", "5", toolchain.python, "-u", str(LAUNCH), str(spec)]
        # Without the cache every tensor has an allocation of its own, so that its bounds are known.
        environment = processes.child_environment({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TMPDIR": folder})
        try:
            done = await processes.run(command, timeout_s=SANITIZER_S, cwd=folder, env=environment)
        except WorkerTimeoutError:
            return Check(name=name, status=f"not run: it took longer than {SANITIZER_S:g} s")
        except OSError as error:
            return Check(name=name, status=f"not run: {error}")
    found = [line.strip("= ").strip() for line in done.output.splitlines() if line.startswith("=========")]
    errors = [line for line in found if line.startswith(("Invalid", "Error", "Misaligned", "Out-of-range"))]
    if done.status == FOUND or errors:
        return Check(name=name, status="fail", detail=(errors or found or ["memory errors"])[0][:300])
    if done.status != 0:
        return Check(name=name, status=f"not run: it ended with status {done.status}: {(found or [''])[-1][:200]}")
    return Check(name=name, status="pass", detail=f"memcheck on variant {smallest.name}")

"""The last word on a winner: PyTorch's own headers, fresh processes and seeds, the sanitizer.

The fast build's headers could be laxer than PyTorch's, and a race may have been lucky so far. So the
contract's own `torch_demo.py` builds the source once more, the result is judged again in a new
process and in one more, and compute-sanitizer watches one call with each of its tools.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from contracts.contract import Contract
from contracts.errors import HieraError
from engine import processes
from engine.evaluate.build import architecture
from engine.processes import Worker
from engine.records import Build, Check, Device, Evaluation, Failure
from engine.toolchain import Toolchain

REBUILD_S = 600.0


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


def second_process(evaluation: Evaluation) -> Check:
    """What another fresh process with other seeds made of it."""
    name = "second process"
    if evaluation.failure is None:
        return Check(name=name, status="pass", detail="accepted again with other seeds")
    if evaluation.verification is None:
        return Check(name=name, status=f"not run: {evaluation.failure.reason}")
    return Check(name=name, status="fail", detail=evaluation.failure.reason)

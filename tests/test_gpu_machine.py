"""What only a real card shows about clocks, memory by process and the sandbox around CUDA."""

import asyncio
import sys

import pytest

from engine import nvml, processes
from engine.devices import find_device
from engine.evaluate import gpu_lock, sandbox
from engine.evaluate.session import Session
from engine.toolchain import find_toolchain
from tests.evaluate_harness import softmax_contract

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
HOLD = """
import sys, time, torch
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
time.sleep(float(sys.argv[1]))
"""


async def card() -> nvml.Gpu:
    gpu = nvml.find_gpu(await find_device("cuda"))
    if gpu is None:
        pytest.skip("the driver's management library does not know this card")
    return gpu


async def test_the_card_tells_its_clocks():
    clocks = (await card()).clocks()
    assert clocks.sm_mhz is None or 100 < clocks.sm_mhz < 5000
    assert clocks.temperature_c is None or 0 < clocks.temperature_c < 120
    assert clocks.sm_mhz is not None or clocks.temperature_c is not None


async def test_a_process_that_takes_memory_is_seen_on_the_card():
    gpu = await card()
    before = gpu.memory()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, "60", stdout=asyncio.subprocess.PIPE)
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 120) == b"held\n"
        after, shown = gpu.memory(), gpu.processes()
        assert after.used_bytes - before.used_bytes >= 1 << 30
        if shown and child.pid in shown:  # A container may hide processes.
            assert shown[child.pid] is None or shown[child.pid] >= 1 << 30
            assert any(row.startswith(f"{child.pid} ") for row in gpu_lock.strangers(gpu))
    finally:
        child.kill()
        await child.wait()


async def test_cuda_works_in_the_candidates_sandbox(tmp_path):
    works, why = await sandbox.candidate_sandbox(cuda=True)
    if not works:
        pytest.skip(f"bubblewrap does not work on this machine: {why}")
    command = sandbox.candidate_command(tmp_path, cuda=True, python=sys.executable)
    done = await processes.run([*command, sys.executable, "-c", HOLD, "0"], timeout_s=120, cwd=tmp_path)
    assert done.stdout == "held\n", done.output


async def test_judge_and_candidate_share_memory_whatever_shuts_the_candidate_in(tmp_path):
    contract, groundtruth = softmax_contract()
    (tmp_path / "groundtruth.py").write_text(groundtruth)
    session = Session(await find_toolchain(sys.executable), contract, tmp_path, "cuda:0", budget_bytes=lambda: 1 << 26)
    try:
        await session.open()
        worker = await session._take({})
        drawn = await session.judge.call("draw", timeout_s=60, variant=0, family="randn", set=0, phase=0, seed=1, fixed_seed=1)
        assert (await worker.call("sets", timeout_s=60, sets=[drawn["arguments"]]))["ok"]
        assert await session.sound()
        transport = session.opened["arguments"]["transport"]
    finally:
        await session.close()
    report = await sandbox.candidate_report(cuda=True)
    if transport != "cuda ipc" or report["bubblewrap"] != "in force":
        pytest.skip(f"it works, but by {transport}; bubblewrap: {report['bubblewrap']}")

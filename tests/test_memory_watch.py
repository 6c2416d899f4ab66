"""The management library's answers, and the end of a process that takes too much memory. The library is a stand-in."""

# ruff: noqa: F811 - fixtures come by import.

import asyncio
import ctypes
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import WorkerError
from engine import nvml, processes
from engine.evaluate import watch
from engine.processes import Worker
from engine.records import ClockSample
from tests.fake_nvml import CARD, device, library, say  # noqa: F401 - fixtures.

ECHO = """
import json, os, subprocess, sys, time
reply = os.fdopen(int(sys.argv[2]), "w")
for line in sys.stdin:
    request = json.loads(line)
    if request["kind"] == "hoard":
        held = bytearray(request["size"])
        time.sleep(60)
    if request["kind"] == "child":
        subprocess.run([sys.executable, "-c", "import time; held = bytearray(%d); time.sleep(60)" % request["size"]])
    if request["kind"] == "wait":
        time.sleep(60)
    print(json.dumps({"id": request["id"], "ok": True, "pid": os.getpid()}), file=reply, flush=True)
"""


@pytest.fixture
async def worker(tmp_path, monkeypatch):
    main = tmp_path / "main.py"
    main.write_text(ECHO)
    monkeypatch.setattr(processes, "WORKER_MAIN", main)
    made = Worker("echo", python=sys.executable)
    await made.call("hello", timeout_s=20)
    yield made
    await made.close()


async def ended(worker: Worker, allowance: watch.Allowance, kind: str, change=None, **fields) -> str:
    """What the request in flight ends with under the watch."""
    watching = asyncio.create_task(watch.watch(worker, allowance))
    await asyncio.sleep(0.15)  # The watch has taken its first look, as it has before a candidate is loaded.
    asked = asyncio.create_task(worker.call(kind, timeout_s=30, **fields))
    await asyncio.sleep(0)
    if change is not None:
        change()
    try:
        with pytest.raises(WorkerError) as caught:
            await asked
    finally:
        watching.cancel()
    return caught.value.problem


@pytest.mark.parametrize("kind", ["hoard", "child"])
async def test_host_memory_is_bounded_also_in_a_child(worker, kind):
    said = await ended(worker, watch.Allowance(host_bytes=100 << 20), kind, size=400 << 20)
    assert "of host memory, 0.1 GiB are allowed" in said


async def test_device_memory_of_the_process_is_bounded(worker, say):
    say(CARD + f"process {worker.pid} 600000000\n")
    allowance = watch.Allowance(gpu=nvml.find_gpu(device()), gpu_bytes=4 << 30)
    assert allowance.how(worker.pid) == "GPU memory by process"
    said = await ended(worker, allowance, "wait", lambda: say(CARD + f"process {worker.pid} 9000000000\n"))
    assert "it took 7.8 GiB of GPU memory, 4.0 GiB are allowed" in said


async def test_another_process_is_no_reason(worker, say):
    say(CARD + f"process {worker.pid} 600000000\nprocess 1 90000000000\n")
    allowance = watch.Allowance(gpu=nvml.find_gpu(device()), gpu_bytes=4 << 30)
    watching = asyncio.create_task(watch.watch(worker, allowance))
    await asyncio.sleep(0.15)
    say(CARD + f"process {worker.pid} 900000000\nprocess 1 140000000000\n")
    await asyncio.sleep(0.4)
    assert (await worker.call("hello", timeout_s=20))["ok"]
    watching.cancel()


async def test_a_driver_that_hides_processes_leaves_the_whole_card(worker, say):
    hidden = "refuse processes\n"
    say(CARD + hidden)
    allowance = watch.Allowance(gpu=nvml.find_gpu(device()), gpu_bytes=4 << 30)
    assert allowance.how(worker.pid) == "GPU memory of the whole card"
    full = CARD.replace("151000000000 1000000000", "151000000000 150000000000") + hidden
    said = await ended(worker, allowance, "wait", lambda: say(full))
    assert "the GPU's memory ran full while it ran" in said


def test_what_the_library_says_of_the_card(say):
    say(CARD.replace("reasons 0", f"reasons {0x4 | 0x1 | 0x40}").replace("power 312500\n", ""))
    gpu = nvml.find_gpu(device())
    assert gpu.clocks() == ClockSample(sm_mhz=1980, memory_mhz=3201, temperature_c=41, power_w=None,
                                       throttled=("power cap", "thermal, by the hardware"))
    assert gpu.memory() == nvml.Memory(total_bytes=151_000_000_000, used_bytes=1_000_000_000)


def test_a_call_that_this_driver_does_not_have_is_an_answer_that_is_missing(say):
    gpu = nvml.Gpu(ctypes.CDLL("libm.so.6"), ctypes.c_void_p(1))
    assert gpu.clocks() == ClockSample()
    assert gpu.memory() is None
    assert gpu.processes() is None


def test_the_card_is_found_by_its_bus_address(say):
    assert nvml.find_gpu(device("0000:1B:00.0")) is not None
    assert nvml.find_gpu(device("0000:99:00.0")) is None
    assert nvml.find_gpu(replace(device(), index=9)) is None


def test_no_driver_and_no_gpu_are_no_error(monkeypatch):
    monkeypatch.setattr(nvml, "LIBRARY", "libnvidia-ml-is-not-here.so.1")
    assert nvml.find_gpu(device()) is None
    assert nvml.find_gpu(replace(device(), kind="none")) is None
    assert watch.Allowance().how(os.getpid()) == ""


@pytest.mark.parametrize("listed", [True, False])
def test_a_family_is_found_from_the_top(monkeypatch, listed):
    if not listed:  # As on a kernel without /proc/PID/task/TID/children.
        monkeypatch.setattr(watch, "_kernel_lists_children", lambda: False)
        monkeypatch.setattr(watch, "CHILDREN", "no such file")
    child = asyncio.run(_child_family())
    assert child


async def _child_family() -> bool:
    process = await asyncio.create_subprocess_exec("sh", "-c", "sleep 30 & wait", start_new_session=True)
    try:
        for _ in range(100):
            family = watch._family(process.pid)
            names = [Path("/proc", str(pid), "comm").read_text().strip() for pid in family]
            if "sleep" in names:
                return family[0] == process.pid
            await asyncio.sleep(0.05)
        return False
    finally:
        os.killpg(process.pid, 9)
        await process.wait()

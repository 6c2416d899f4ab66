"""Finding a device, with and without a driver."""

import json
import subprocess
import sys

import pytest

from contracts.errors import ConfigError, ToolError
from engine import devices
from engine.devices import from_driver, target_device

H200 = {
    "index": 0, "name": "NVIDIA H200", "memory_bytes": 150_000_000_000, "clock_khz": 1_980_000, "sm_count": 132,
    "memory_clock_khz": 3_201_000, "bus_bits": 6144, "l2_bytes": 62_914_560, "major": 9, "minor": 0,
    "shared_bytes_per_block": 232_448,
}


@pytest.fixture
def driver(monkeypatch):
    """Set what the driver is said to answer."""

    def set_answer(*facts, problem=""):
        async def answer():
            return {"devices": list(facts), "driver": "580.159.04" if facts else "", "problem": problem}

        monkeypatch.setattr(devices, "query_driver", answer)

    return set_answer


async def test_auto_takes_the_first_gpu(driver):
    driver(H200)
    device = await devices.find_device()
    assert (device.kind, device.name, device.sm, device.arch) == ("cuda", "NVIDIA H200", "9.0", "90")
    assert device.dram_bytes_per_s == 4.8e12
    assert device.driver == "580.159.04"
    assert device.peaks == "data sheet"


async def test_auto_without_a_gpu_is_the_target_and_says_so(driver):
    driver(problem="no NVIDIA driver")
    assert (await devices.find_device()).kind == "none"
    assert (await devices.find_device(target="L4")).name == "NVIDIA L4"


async def test_none_does_not_ask_the_driver(monkeypatch):
    async def never():
        raise AssertionError

    monkeypatch.setattr(devices, "query_driver", never)
    assert (await devices.find_device("none", "sm_80")).sm == "8.0"


async def test_an_absent_gpu_is_an_error_with_the_drivers_reason(driver):
    driver(problem="cuInit failed: CUDA_ERROR_NO_DEVICE (100)")
    with pytest.raises(ToolError, match="cuda:0 is not there: cuInit failed"):
        await devices.find_device("cuda:0")
    driver(H200)
    with pytest.raises(ToolError, match=r"cuda:3 is not there: the driver shows 1 GPU"):
        await devices.find_device("cuda:3")


@pytest.mark.parametrize("choice", ["gpu", "cuda:x", ""])
async def test_nonsense_is_refused(choice):
    with pytest.raises(ConfigError):
        await devices.find_device(choice)


def test_an_unknown_card_is_estimated_from_its_multiprocessors():
    device = from_driver({**H200, "name": "NVIDIA Something 9000"}, "1.0")
    assert device.peaks == "estimated"
    assert device.flops_per_s["fp32"] == pytest.approx(67e12, rel=0.02)
    assert device.flops_per_s["bf16"] == pytest.approx(1070e12, rel=0.02)
    assert device.dram_bytes_per_s == pytest.approx(4.9e12, rel=0.02)


def test_a_slice_of_a_card_is_not_given_the_whole_cards_peak():
    device = from_driver({**H200, "name": "NVIDIA H200 MIG 1g.18gb", "sm_count": 16}, "1.0")
    assert device.peaks == "estimated"
    assert device.flops_per_s["fp32"] < 10e12


@pytest.mark.parametrize(
    ("name", "sm_count", "key"),
    [("Tesla V100-SXM2-16GB", 80, "V100"), ("Tesla T4", 40, "T4"), ("NVIDIA A100-SXM4-40GB", 108, "A100-40"),
     ("NVIDIA A100 80GB PCIe", 108, "A100-80"), ("NVIDIA A10", 72, "A10"), ("NVIDIA L4", 58, "L4"),
     ("NVIDIA L40S", 142, "L40S"), ("NVIDIA GeForce RTX 3090", 82, "RTX3090"),
     ("NVIDIA GeForce RTX 4090", 128, "RTX4090"), ("NVIDIA GeForce RTX 5090", 170, "RTX5090"),
     ("NVIDIA H100 PCIe", 114, "H100-PCIe"), ("NVIDIA H100 80GB HBM3", 132, "H100-SXM"), ("NVIDIA B200", 148, "B200")],
)
def test_every_card_is_known_by_its_drivers_name(name, sm_count, key):
    wanted = target_device(key)
    found = from_driver({**H200, "name": name, "sm_count": sm_count}, "1.0")
    assert (found.peaks, found.flops_per_s, found.dram_bytes_per_s) == (
        "data sheet", wanted.flops_per_s, wanted.dram_bytes_per_s)


@pytest.mark.parametrize("target", ["h200", "NVIDIA H200", "sm_90", "9.0", "90", "sm_90a"])
def test_targets_by_key_name_or_architecture(target):
    assert target_device(target).sm == "9.0"


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(ConfigError, match="RTX4090"):
        target_device("GTX 480")


def test_peaks_are_plausible():
    for row in devices._table()["device"]:
        device = target_device(row["key"])
        assert 0.8 < device.copy_bytes_per_s / device.dram_bytes_per_s < 0.95
        assert device.flops_per_s["fp64"] <= device.flops_per_s["fp32"] <= device.flops_per_s["fp16"]


def test_the_query_answers_one_json_line_without_a_driver_too():
    done = subprocess.run([sys.executable, "-I", str(devices.QUERY)], capture_output=True, text=True, timeout=60)
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["devices"] or answer["problem"]


@pytest.mark.gpu
async def test_the_real_gpu_is_found():
    device = await devices.find_device("cuda:0")
    assert device.sm_count > 0
    assert device.driver

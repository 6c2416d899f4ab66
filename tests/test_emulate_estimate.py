"""Occupancy agrees with NVIDIA's own header, and the estimate moves the right way."""

import itertools
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from engine.evaluate.estimate import estimate
from engine.evaluate.occupancy import KIB, LIMITS, best_occupancy, limits_of, occupancy
from engine.records import Device, KernelFacts, WorkloadProfile

HEADER = Path("/usr/local/cuda/include/cuda_occupancy.h")
# Host code only: neither a driver nor a GPU is needed.
PROGRAM = r"""
#include <cuda_occupancy.h>
#include <cstdio>
int main() {
    int major, minor, warps, per_sm, per_block, reserved, registers, shared, threads;
    while (std::scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &warps, &per_sm, &per_block, &reserved, &registers,
                      &shared, &threads) == 9) {
        cudaOccDeviceProp p{};
        p.computeMajor = major; p.computeMinor = minor; p.maxThreadsPerBlock = 1024; p.warpSize = 32; p.numSms = 100;
        p.maxThreadsPerMultiprocessor = warps * 32; p.regsPerBlock = p.regsPerMultiprocessor = 65536;
        p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = per_sm; p.sharedMemPerBlockOptin = per_block;
        p.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes f{};
        f.maxThreadsPerBlock = 1024; f.numRegs = registers; f.partitionedGCConfig = PARTITIONED_GC_OFF;
        f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; f.maxDynamicSharedSizeBytes = per_block; f.numBlockBarriers = 1;
        cudaOccDeviceState s{};
        s.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult r{};
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, threads, shared);
        std::printf("%d\n", error ? -error : r.activeBlocksPerMultiprocessor);
    }
}
"""
H200 = Device(
    kind="none", name="NVIDIA H200", sm="9.0", sm_count=132, copy_bytes_per_s=4.2e12, dram_bytes_per_s=4.8e12,
    flops_per_s={"fp32": 67e12}, shared_bytes_per_block=227 * KIB, launch_us=2.0,
)
STREAM = WorkloadProfile(
    bytes=1 << 28, flops=1 << 26, launches=1, intensity=0.25, bound="memory", floor_us=56.0, roof_us=63.9
)
PLAIN = KernelFacts(name="k", registers=32, shared_bytes=0, spill_bytes=0)


@pytest.mark.skipif(not HEADER.exists() or shutil.which("g++") is None, reason="no cuda_occupancy.h or no g++")
def test_blocks_agree_with_nvidias_header(tmp_path):
    (tmp_path / "occupancy.cpp").write_text(PROGRAM)
    subprocess.run(
        ["g++", "-w", f"-I{HEADER.parent}", "occupancy.cpp", "-o", "occupancy"], cwd=tmp_path, check=True, timeout=60
    )
    header = HEADER.read_text()
    known = [sm for sm in LIMITS if f"case {sm.split('.')[0]}:" in header]
    cases = [
        (sm, registers, shared, threads)
        for sm, registers, shared, threads in itertools.product(
            known, (0, 16, 24, 32, 40, 64, 65, 96, 128, 168, 255), (0, 1000, 8192, 33000, 49000, 64000, 98000, 101000, 200000),
            (32, 33, 64, 128, 192, 256, 384, 512, 768, 1024),
        )
        if shared <= limits_of(sm).shared_bytes_per_block
    ]
    lines = []
    for sm, registers, shared, threads in cases:
        one, (major, minor) = limits_of(sm), sm.split(".")
        lines.append(
            f"{major} {minor} {one.warps} {one.shared_bytes} {one.shared_bytes_per_block} {one.reserved_shared_bytes} "
            f"{registers} {shared} {threads}"
        )
    done = subprocess.run(
        [tmp_path / "occupancy"], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=60
    )
    theirs = [int(line) for line in done.stdout.split()]
    ours = [occupancy(sm, registers=r, shared_bytes=s, threads=t).blocks for sm, r, s, t in cases]

    assert len(theirs) == len(cases) > 3000
    wrong = [(case, a, b) for case, a, b in zip(cases, ours, theirs, strict=True) if a != b]
    assert wrong == []


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "blocks", "limiter"),
    [
        (32, 0, 256, 8, "registers"), (16, 0, 256, 8, "warps"), (128, 0, 256, 2, "registers"),
        (32, 100 * KIB, 256, 2, "shared memory"), (16, 0, 32, 32, "blocks"), (256, 0, 256, 0, "registers"),
        (16, 0, 2048, 0, "warps"), (16, 228 * KIB, 32, 0, "shared memory"),
    ],
)
def test_limiter_is_named(registers, shared, threads, blocks, limiter):
    one = occupancy("9.0", registers=registers, shared_bytes=shared, threads=threads)

    assert (one.blocks, one.limiter) == (blocks, limiter)


def test_best_occupancy_finds_the_block_size():
    assert best_occupancy("8.6", registers=40, shared_bytes=0).fraction == 1.0
    assert best_occupancy("9.0", registers=168, shared_bytes=0).fraction == pytest.approx(0.1875)


def test_unknown_capability_is_refused():
    with pytest.raises(ConfigError, match=r"5\.2"):
        limits_of("5.2")


def test_estimate_of_a_streaming_kernel_is_its_roof_and_a_launch():
    one = estimate([PLAIN], STREAM, H200)

    assert one.how == "estimated"
    assert one.estimate_us == pytest.approx(63.9 + 2.0, rel=0.01)
    assert one.kernels[0].occupancy == 1.0


@pytest.mark.parametrize(
    "worse",
    [replace(PLAIN, spill_bytes=400), replace(PLAIN, registers=255), replace(PLAIN, shared_bytes=200 * KIB)],
)
def test_spills_registers_and_shared_memory_cost_time(worse):
    assert estimate([worse], STREAM, H200, threads=128).estimate_us > estimate([PLAIN], STREAM, H200).estimate_us


def test_launches_cost_time():
    more = estimate([PLAIN] * 3, STREAM, H200).estimate_us - estimate([PLAIN], STREAM, H200).estimate_us

    assert more == pytest.approx(4.0)


def test_kernel_that_cannot_be_launched_is_said():
    reasons = estimate([replace(PLAIN, registers=128)], STREAM, H200, threads=1024).reasons

    assert any("cannot be launched" in reason for reason in reasons)

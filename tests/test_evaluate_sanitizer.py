"""compute-sanitizer: what is asked of it, and how its answers are read. The outputs are as its versions print them."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.evaluate import sandbox, sanitizer
from engine.evaluate.sanitizer import FOUND, TOOLS, command, kernels_of, read
from engine.records import Build, Device
from engine.toolchain import find_toolchain
from tests.evaluate_harness import softmax_contract

MEMCHECK, INITCHECK, RACECHECK, SYNCCHECK = TOOLS
SOURCE = """
// __global__ void not_this_one(float*) {}
__global__ void scale(const float* x, float* y, int n) {}
template <int N> __global__ void __launch_bounds__(256, 2) wide_kernel(float* y) {}
static __global__ __launch_bounds__(128) void third(int* y) {}
"""
KERNELS = ("scale", "wide_kernel", "third")

OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale(const float *, float *, int)+0xf0 in cuda_source.cu:17
=========     by thread (33,0,0) in block (3,0,0)
=========     Access at 0x7f5b2c000c84 is out of bounds
=========     and is 133 bytes after the nearest allocation at 0x7f5b2c000000 of size 3,072 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:  [0x2e8d0e] in libcuda.so.1
=========
{"ok": true}
========= ERROR SUMMARY: 1 error
"""
OLD_FORM = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at 0x120 in cuda_source.cu:31:void wide_kernel<4>(float *)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f0000000004 is misaligned
========= ERROR SUMMARY: 1 error
"""
UNINITIALISED = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at {kernel}+0x80 in cuda_source.cu:9
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f37ca000000
=========
{"ok": true}
========= ERROR SUMMARY: 1 error
"""
# As printed where a small function was inlined: where it is, and the kernel as the frame around it.
INLINED = """========= COMPUTE-SANITIZER
========= Barrier error detected. Invalid arguments.
=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110
=========     by thread (0,0,0) in block (0,0,0)
=========         Device Frame: <unnamed>::{kernel}(float *, unsigned long)+0xb0 in cuda_source.cu:12
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: scale(float *) [0x2e8d0e] in bind.so
=========
{"ok": true}
========= ERROR SUMMARY: 1 error
"""
WRONG_FREE = """========= COMPUTE-SANITIZER
========= Malloc/Free error encountered : Double free
=========     at 0x79d8
=========     by thread (0,0,0) in block (0,0,0)
{"ok": true}
========= ERROR SUMMARY: 1 error
"""
# The program that it ran failed, which memcheck counts as an error too.
FAILED = """========= COMPUTE-SANITIZER
{"ok": false, "problem": "RuntimeError: only for other shapes"}
========= Target application returned an error
========= ERROR SUMMARY: 1 error
"""
UNKNOWN_DEVICE = """========= COMPUTE-SANITIZER
========= Device not supported. Please refer to the documentation
========= ERROR SUMMARY: 1 error
"""
ATEN = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, char *>(int, float)"
HAZARD = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at scale(const float *, float *, int)+0x1d0 in cuda_source.cu:21
=========     and Read access at scale(const float *, float *, int)+0x2a0 in cuda_source.cu:24 [960 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
SAME_VALUE = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at third(int *)+0x90 in cuda_source.cu:30
=========     and Write access at third(int *)+0x90 in cuda_source.cu:30 [31 hazards]
=========
{"ok": true}
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
BARRIER = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at third(int *)+0x160 in cuda_source.cu:12
=========     by thread (16,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\n{\"ok\": true}\n========= ERROR SUMMARY: 0 errors\n"
REFUSED = """========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
"""


@pytest.mark.parametrize(("tool", "status", "output", "told"), [
    (MEMCHECK, FOUND, OUT_OF_BOUNDS, "Invalid __global__ write of size 4 bytes in scale (cuda_source.cu:17)"),
    (MEMCHECK, FOUND, OLD_FORM, "Invalid __global__ read of size 16 bytes in wide_kernel (cuda_source.cu:31)"),
    (INITCHECK, FOUND, UNINITIALISED.replace("{kernel}", "scale(const float *, float *, int)"),
     "Uninitialized __global__ memory read of size 4 bytes in scale (cuda_source.cu:9)"),
    (RACECHECK, FOUND, HAZARD, "Error: Race reported between Write access at scale"),
    (SYNCCHECK, FOUND, BARRIER, "Barrier error detected. Divergent thread(s) in block in third (cuda_source.cu:12)"),
    (SYNCCHECK, FOUND, INLINED.replace("{kernel}", "third"),
     "Barrier error detected. Invalid arguments. in third (cuda_source.cu:12)"),
    (MEMCHECK, FOUND, WRONG_FREE, "Malloc/Free error encountered : Double free"),
], ids=lambda value: getattr(value, "name", ""))
def test_a_finding_in_the_candidates_kernel_fails_with_its_line(tool, status, output, told):
    check = read(tool, status, output, KERNELS, "example")
    assert (check.name, check.status) == (tool.check, "fail")
    assert check.detail.startswith(told)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_nothing_found_passes_and_a_tool_that_did_not_run_says_so(tool):
    assert read(tool, 0, CLEAN, KERNELS, "example").status == "pass"
    refused = read(tool, 255, "Error: no device\n", KERNELS, "example").status
    assert refused == "not run: it ended with status 255: Error: no device"
    assert read(tool, 0, '{"ok": true}', KERNELS, "example").status == "not run: it wrote no summary"


def test_what_torch_leaves_unwritten_does_not_count():
    check = read(INITCHECK, FOUND, UNINITIALISED.replace("{kernel}", ATEN), KERNELS, "example")
    assert check.status == "pass"
    assert "not the candidate's" in check.detail


def test_a_host_function_of_a_kernels_name_is_not_the_kernel():
    assert read(SYNCCHECK, FOUND, INLINED.replace("{kernel}", "of_aten"), KERNELS, "example").status == "pass"


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@pytest.mark.parametrize(("status", "output", "told"), [
    (0, CLEAN.replace('{"ok": true}\n', ""), "it ended with status 0: "),
    (3, FAILED, "the call failed under it: RuntimeError: only for other shapes"),
    (FOUND, FAILED, "the call failed under it: RuntimeError: only for other shapes"),
    (FOUND, UNKNOWN_DEVICE, "it ended with status 97: Device not supported."),
], ids=["nothing was run", "failed", "failed and counted", "unknown device"])
def test_a_tool_that_did_not_see_the_call_is_neither_a_pass_nor_a_finding(tool, status, output, told):
    assert read(tool, status, output, KERNELS, "example").status.startswith(f"not run: {told}")


def test_threads_that_write_the_same_value_are_no_race():
    assert read(RACECHECK, 0, SAME_VALUE, KERNELS, "example").status == "pass"


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@pytest.mark.parametrize("status", [0, 1, FOUND])
def test_a_sanitizer_that_sees_nothing_is_neither_a_pass_nor_a_finding(tool, status):
    found = read(tool, status, REFUSED, KERNELS, "example").status
    assert found.startswith(f"not run: it ended with status {status}: Error: Target application terminated")


def test_a_program_that_ends_badly_is_no_finding_of_memcheck():
    output = CLEAN.replace('{"ok": true}', "========= Error: process didn't terminate successfully")
    assert read(MEMCHECK, 1, output, KERNELS, "example").status.startswith("not run: it ended with status 1")


def test_kernels_are_found_in_the_text():
    assert kernels_of(SOURCE) == KERNELS


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_each_tool_is_asked_for_our_own_exit_status(tool):
    asked = command(tool, "/cuda/compute-sanitizer", "/env/python", Path("/w/launch.json"))
    assert asked[:3] == ["/cuda/compute-sanitizer", "--tool", tool.name]
    assert asked[asked.index("--error-exitcode") + 1] == str(FOUND)
    assert asked[-4:] == ["/env/python", "-u", str(sanitizer.LAUNCH), "/w/launch.json"]


def test_every_tool_has_a_check_of_its_own():
    from engine.evaluate.checks import NAMES, WINNER_ONLY

    assert {tool.check for tool in TOOLS} <= WINNER_ONLY <= set(NAMES)


FAKE = """#!{python}
import os, sys
try:
    open({outside!r}, "a").write("x")
except OSError:
    pass
if {only_without} and not os.path.exists({hidden!r}):
    sys.exit(255)
print({clean!r})
"""


@pytest.mark.parametrize("only_without", [False, True])
async def test_a_winner_is_shut_in_where_the_tools_work_so(tmp_path, only_without):
    works, why = await sandbox.candidate_sandbox(cuda=True)
    if not works:
        pytest.skip(f"bubblewrap does not work on this machine: {why}")
    outside, hidden = tmp_path / "outside", tmp_path / "hidden"  # Behind the /tmp that the sandbox hides.
    hidden.touch()
    program = tmp_path / "tool" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable, outside=str(outside), only_without=only_without,
                                   hidden=str(hidden), clean=CLEAN))
    program.chmod(0o755)
    toolchain = replace(await find_toolchain(sys.executable), compute_sanitizer=str(program))
    contract, _ = softmax_contract()
    build = Build(seconds=1.0, tier="light", extension=str(tmp_path / "tool" / "bind.so"), module="bind")
    checks = await sanitizer.run_all(toolchain, contract, build, SOURCE, Device(kind="cuda", name="H200", sm="9.0"))
    assert [(c.name, c.status) for c in checks] == [(tool.check, "pass") for tool in TOOLS]
    # Once the first tool was seen to work without only, the others do not fail first.
    assert (outside.read_text() if outside.exists() else "") == ("x" * len(TOOLS) if only_without else "")

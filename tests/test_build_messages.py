"""Compiler output as data."""

import pytest

from engine.evaluate import messages

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kILi4EEvPf' for 'sm_90a'
ptxas info    : Function properties for _Z1kILi4EEvPf
    48 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 48 bytes cumulative stack size, 4096 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 5.2 ms
ptxas info    : Function properties for _Z6helperf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'plain' for 'sm_90a'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""


def test_kernel_facts_hold_registers_shared_memory_and_spills():
    first, second = messages.kernel_facts(PTXAS, {"_Z1kILi4EEvPf": "k<4>"})
    assert (first.name, first.registers, first.shared_bytes) == ("k<4>", 32, 4096)
    assert (first.spill_bytes, first.stack_bytes) == (36, 48)
    assert (second.name, second.registers, second.shared_bytes, second.spill_bytes) == ("plain", 8, 0, 0)


def test_an_error_in_a_header_gets_the_users_line():
    log = """/x/hiera_mini/array_ref.h(36): error: static assertion failed with "no"
          detected during:
            instantiation of "void f<T>() [with T=int]" at line 12 of cuda_source.cu
            instantiation of class "g" at line 40 of cuda_source.cu

1 error detected in the compilation of "cuda_source.cu".
"""
    (error,) = messages.errors(log, "")
    assert error.line == 12
    assert error.message == 'static assertion failed with "no" (in array_ref.h)'


@pytest.mark.parametrize(
    ("log", "line", "word"),
    [
        ('cuda_source.cu(4): error: identifier "x" is undefined', 4, "undefined"),
        ("cuda_source.cu:3:10: fatal error: nope.h: No such file or directory", 3, "nope.h"),
        ("cuda_source.cu:9:5: error: expected ';' before 'y'", 9, "expected"),
        ("cuda_source.cu(7): catastrophic error: too many errors", 7, "too many"),
        ("cuda_source.cu(7): error #20-D: identifier \"y\" is undefined", 7, "undefined"),
        ("ptxas error   : Entry function '_Z4hugePf' uses too much shared data (0x4e200 bytes, 0x38c00 max)", 2, "shared"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_20'", None, "Unsupported"),
    ],
)
def test_every_tools_errors_are_found(log, line, word):
    (error,) = messages.errors(log, "\n__global__ void huge(float* p) {}\n")
    assert error.line == line
    assert word in error.message


def test_warnings_are_the_users_own():
    log = """cuda_source.cu(12): warning #177-D: variable "x" was declared but never referenced
/usr/include/y.h(3): warning #186-D: pointless comparison
cuda_source.cu(12): warning #177-D: variable "x" was declared but never referenced
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
"""
    assert messages.warnings(log) == (
        'line 12: variable "x" was declared but never referenced',
        "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
    )


def test_terminal_escapes_do_not_reach_people_or_models():
    assert messages.clean("a\x1b[31mred\x1b[0m\x07\x00\nb\tc") == "ared\nb\tc"
    assert len(messages.tail("x" * 100_000)) == messages.MAX_LOG_CHARS


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        ("void row<128, float>(float const*, float (*)(int))", "row<128, float>"),
        ("k(float*)", "k"),
        ("void ns::k<c10::Half, (int)4>(c10::Half*)", "ns::k<c10::Half, (int)4>"),
        ("plain", "plain"),
    ],
)
def test_kernel_names_are_short(demangled, short):
    assert messages.short_name(demangled) == short

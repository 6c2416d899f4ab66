"""Rows that clusters of blocks hold in shared memory: right values from one read, and launches that a device takes."""

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from engine.codegen import Recipe, write
from engine.codegen.rows_plan import RESERVED_SHARED_BYTES
from engine.planning.own_kernel import launches_of
from engine.records import Device
from tests.codegen_harness import H200, assert_close, compile_cubin, compiled, export_graph
from tests.program_harness import contract_of, program_of


def _from_largest(x):
    largest = x.amax(1, keepdim=True)
    return x - largest, largest


LONG = {
    "softmax in packs": (lambda x: torch.log_softmax(x, 1), [(2, 70000)]),
    "two dimensions, packs left over": (F.instance_norm, [(1, 2, 256, 300)]),
    "single elements": (lambda x: x / x.abs().mean(1, keepdim=True), [(2, 65535)]),
    "two inputs": (lambda x, y: F.layer_norm(x + y, x.shape[-1:]), [(1, 40960), (1, 40960)]),
    "one number a row beside it": (_from_largest, [(3, 40000)]),
    "two folds, one after the other": (lambda x: (x - x.amax(1, keepdim=True)) / x.exp().sum(1, keepdim=True), [(2, 65536)]),
}


def _choice(run):
    return next(t for code in run.codes for t in code.tunables if t.key.endswith(".cluster"))


@pytest.mark.parametrize("name", LONG)
def test_long_rows_stay_in_the_shared_memory_of_a_cluster(name):
    function, shapes = LONG[name]
    inputs = [torch.randn(shape) + 1 for shape in shapes]
    want = function(*inputs)
    choice = _choice(compiled(function, inputs)[0])
    assert choice.values[0] == 0
    for blocks in choice.values[1:]:
        run, _, _ = compiled(function, inputs, choices={choice.key: blocks})
        for got, expected in zip(run(*inputs), want if isinstance(want, tuple) else (want,), strict=True):
            assert_close(got, expected)
        # What is held is read from memory once.
        assert len(re.findall(r"load_pack<\d+>\(args_0|= args_0\[", run.text)) == 1, run.text
        assert ("cluster_reduce<" in run.text) == (blocks > 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_held_rows_of_other_dtypes(dtype):
    x = torch.randn(2, 50000, dtype=dtype)
    choice = _choice(compiled(lambda x: x.softmax(1), [x])[0])
    run, _, _ = compiled(lambda x: x.softmax(1), [x], choices={choice.key: choice.values[1]})
    assert_close(run(x)[0], x.softmax(1))


def test_the_launch_asks_for_what_the_kernel_holds():
    program, _, _ = program_of(nn.Softmax(1).eval(), [torch.randn(4, 393216)], space="cuda")
    key = next(t.key for t in program.tunables if t.key.endswith(".cluster"))
    held, _, _ = program_of(nn.Softmax(1).eval(), [torch.randn(4, 393216)], space="cuda", choices={key: 8})
    # A row of 1.5 MiB in eight parts.
    assert "launch_cluster(softmax_kernel, 8, 32, 1024, 196608, stream" in held.source
    assert "#include <cooperative_groups.h>" in held.source
    assert "launch_cluster" not in program.source


def test_no_block_asks_for_more_than_it_can_have():
    class Eight(nn.Module):
        def forward(self, *x):
            return sum(x).softmax(1)

    inputs = [torch.randn(2, 34816) for _ in range(8)]
    program, _, _ = program_of(Eight().eval(), inputs, space="cuda")
    cluster = next(t for t in program.tunables if t.key.endswith(".cluster"))
    chosen, _, _ = program_of(Eight().eval(), inputs, space="cuda", choices={cluster.key: 8})
    threads = next(t for t in chosen.tunables if t.key.endswith(".cluster_threads"))
    asked = []
    for value in threads.values:
        held, _, _ = program_of(Eight().eval(), inputs, space="cuda", choices={cluster.key: 8, threads.key: value})
        asked.append(int(re.search(r"(\d+) bytes of dynamic shared memory", held.source)[1]))
    assert max(asked) <= H200.shared_bytes_per_block - RESERVED_SHARED_BYTES
    assert len(asked) < 3, "1024 threads round a row up to more than fits"


def test_two_layers_share_a_kernel_that_holds_rows():
    class Two(nn.Module):
        def forward(self, x, y):
            return x.softmax(1), y.softmax(1)

    inputs = [torch.randn(4, 65536), torch.randn(4, 65536)]
    program, _, _ = program_of(Two().eval(), inputs, space="cuda")
    keys = [t.key for t in program.tunables if t.key.endswith(".cluster")]
    held, _, _ = program_of(Two().eval(), inputs, space="cuda", choices=dict.fromkeys(keys, 2))
    assert len(keys) == 2
    assert held.kernels == ("softmax_kernel", "softmax_kernel")
    assert held.source.count("launch_cluster(softmax_kernel, 2, 8,") == 2
    assert launches_of(held.source, "Net_forward") == 2


def test_kernels_that_hold_rows_compile_for_the_device():
    x = torch.randn(2, 70000)
    choice = _choice(compiled(lambda x: x.softmax(1), [x])[0])
    run, _, _ = compiled(lambda x: x.softmax(1), [x], choices={choice.key: choice.values[-1]})
    assert "0 bytes spill stores" in compile_cubin(run.text)


@pytest.mark.parametrize(
    ("device", "length", "values"),
    [
        (H200, 4096, None),  # Registers hold it.
        (H200, 50000, (0, 1, 2)),
        (H200, 393216, (0, 8)),
        (H200, 4_000_000, None),  # No cluster holds it.
        (Device(kind="none", name="A100", sm="8.0", sm_count=108, shared_bytes_per_block=166912), 36000, (0, 1)),
        (Device(kind="none", name="A100", sm="8.0", sm_count=108, shared_bytes_per_block=166912), 70000, None),
    ],
)
def test_clusters_are_offered_where_the_device_can(device, length, values):
    graph, _, _ = export_graph(nn.Softmax(1).eval(), [torch.randn(2, length)])
    program = write(contract_of(graph, 0), Recipe(space="cuda"), device)
    offered = [t.values for t in program.tunables if t.key.endswith(".cluster")]
    assert offered == ([values] if values else [])

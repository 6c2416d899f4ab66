"""What sources say: calls as people write them, no more work than the graph needs, refusals by name."""

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from engine.codegen import CannotWrite, Recipe, convolution, matmul, variant, write
from engine.codegen.cpp import Names, number
from engine.codegen.simplify import simplify
from tests.codegen_harness import H200, export_graph
from tests.program_harness import contract_of, program_of, two_sizes

AS_CALLS = {"fusion": "none"}


def body_of(function, *inputs, choices=AS_CALLS, space="cuda_libs_torch"):
    source = program_of(_module(function), inputs, choices=choices, space=space)[0].source
    return source[source.index("static", source.index("Net_variant") - 40):]


def _module(function):
    if isinstance(function, nn.Module):
        return function

    class Wrapped(nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    return Wrapped().eval()


def test_common_operators_are_written_as_people_write_them():
    text = body_of(lambda x: F.gelu(x.sum(1, keepdim=True) * 2, approximate="tanh"), torch.randn(3, 4))

    assert "at::sum(x_0, {1}, true)" in text or "at::sum(inputs_0, {1}, true)" in text
    assert ", 2)" in text
    assert 'at::gelu(mul, "tanh")' in text


def test_defaults_at_the_end_of_a_call_are_left_out():
    text = body_of(lambda x, y: torch.add(F.leaky_relu(x), y), torch.randn(3), torch.randn(3))

    assert "alpha" not in text
    assert "0.01" not in text


def test_devices_become_the_arguments_own():
    text = body_of(lambda x: x + torch.arange(4), torch.randn(4))

    assert ".options().dtype(at::kLong))" in text
    assert "kCPU" not in text


def test_many_allocations_share_what_they_allocate():
    def many(x):
        for _ in range(4):
            x = F.softmax(x, 1) @ x
        return x

    text = body_of(many, torch.randn(64, 64), choices={}, space="cuda_libs")

    assert text.count(".options()") == 1
    assert text.count(", float_options);") >= 4


def test_a_copy_in_another_order_is_given_back_after_its_last_use(monkeypatch):
    monkeypatch.setattr(variant, "RELEASE_FROM_BYTES", 0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.again = nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)

        def forward(self, x):
            return self.again(self.mix(x) + self.mix(F.max_pool2d(x, 3, stride=1, padding=1)))

    for weights in ("inside", "packed"):
        text = body_of(Net().eval(), torch.randn(2, 16, 48, 50), choices={"layout": "channels_last", "weights": weights})

        given_back = re.findall(r"release\((.*)\);", text)
        assert sum("x_channels_last" in line for line in given_back) == 1, "once, after all who read it"
        assert not any("weight_channels_last" in line for line in given_back), "they are small"
        assert "x_channels_last" not in text.rsplit("x_channels_last", 1)[1], "nothing reads it later"


def test_what_is_read_beside_windows_is_read_as_it_lies():
    def beside(x, y):
        return F.max_pool2d(F.relu(x) * 2, 3, stride=1, padding=1) + y

    image = torch.randn(2, 16, 48, 50)
    last = image.contiguous(memory_format=torch.channels_last)

    assert "_copy<<<" not in body_of(beside, last, image, choices={}), "no tap crosses orders"
    net = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(16, 16, 1)).eval()
    assert "input_channels_last_copy<<<" in body_of(net, image, choices={"layout": "channels_last"})


def test_dead_repeated_and_idle_calls_are_not_written():
    def wasteful(x):
        torch.exp(x)
        return torch.sin(x) + torch.sin(F.dropout(x, 0.5, training=False))

    text = body_of(wasteful, torch.randn(5))

    assert "at::exp" not in text
    assert text.count("at::sin") == 1
    assert "dropout" not in text


def test_random_calls_are_neither_merged_nor_dropped():
    graph, _, _ = export_graph(_module(lambda x: torch.rand_like(x) - torch.rand_like(x)), [torch.randn(3)])

    kept = [node.base for node in simplify(graph).nodes]

    assert kept.count("rand_like") + kept.count("rand") == 2


def test_a_view_of_an_argument_is_returned_as_a_copy_and_a_result_as_it_is():
    text = body_of(lambda x: (x.t(), x * 2), torch.randn(3, 4))

    assert "fresh_copy(" in text[text.index("return {"):]
    assert "with_strides(mul" in text[text.index("return {"):]


@pytest.mark.parametrize(("function", "shapes", "written"), [
    (lambda x: F.softmax(x, 0), [(64, 40_000_000)], "[p * 40000000L + row]"),
    (lambda x: x.sum(1) + x[:, 0], [(8, 400_000_000)], "[row * 400000000L]"),
    (lambda x, w: F.conv2d(x.mT, w, stride=(100, 1)), [(1, 4, 8, 400_000_000), (8, 4, 100, 1)],
     "+ int64_t(iW) * 400000000"),
], ids=["loop variable", "join of parts", "image"])
def test_offsets_beyond_32_bits_are_counted_in_64(function, shapes, written):
    program, _, _ = program_of(function, [torch.empty(shape, device="meta") for shape in shapes], space="cuda")

    assert written in program.source


def test_reading_one_element_of_a_row_does_not_spread_rows_over_lanes():
    program, _, _ = program_of(lambda x: x.sum(1) + x[:, 0], [torch.empty(8, 4096, device="meta")], space="cuda")

    assert "A block owns one row." in program.source


def test_a_convolution_of_more_pixels_than_own_kernels_count_is_the_librarys():
    inputs = [torch.empty(shape, device="meta") for shape in ((2048, 2, 1024, 1024), (2, 2, 1, 1))]

    program, _, _ = program_of(lambda x, w: F.conv2d(x, w), inputs)
    with pytest.raises(CannotWrite, match="no kernel in cuda"):
        program_of(lambda x, w: F.conv2d(x, w), inputs, space="cuda")

    assert program.torch_calls == ("conv2d",)


def test_every_shape_variant_has_a_function_and_others_are_refused():
    class Net(nn.Module):
        def forward(self, x):
            return x.relu()

    contract = two_sizes(Net().eval(), [torch.randn(4, 8)], [torch.randn(1, 8)])

    source = write(contract, Recipe(space="cuda_libs_torch"), H200).source

    assert "at::IntArrayRef({4, 8})" in source
    assert "at::IntArrayRef({1, 8})" in source
    assert "not among those served" in source


def test_own_space_refuses_an_operator_by_name():
    with pytest.raises(CannotWrite, match=r"aten\.sort"):
        body_of(lambda x: x.sort(1)[0], torch.randn(3, 9), space="cuda", choices={})


def test_space_without_aten_calls_no_operator():
    program = program_of(nn.Linear(32, 48).eval(), [torch.randn(16, 32)], space="cuda")[0]

    assert program.torch_calls == ()
    assert program.kernels
    assert "copy_(" not in program.source


def test_same_contract_and_recipe_give_the_same_text():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    graph, state, _ = export_graph(module, [torch.randn(1, 3, 8, 8)])
    contract = contract_of(graph, len(state))

    texts = {write(contract, Recipe(space=space), H200).source for space in ("cuda", "cuda", "cuda")}

    assert len(texts) == 1


def test_tunables_carry_directions_and_change_the_text():
    module, inputs = nn.Conv2d(32, 64, 3).eval(), [torch.randn(2, 32, 16, 16)]
    program = program_of(module, inputs)[0]
    layout = next(t for t in program.tunables if t.key == "layout")

    changed = program_of(module, inputs, choices={"layout": layout.values[1]})[0]

    assert {t.direction for t in program.tunables} <= set("CPMRT")
    assert changed.source != program.source


def test_algorithms_of_convolutions_are_measured_where_flags_leave_them_open():
    graph, state, _ = export_graph(nn.Conv2d(32, 64, 3).eval(), [torch.randn(2, 32, 16, 16)])

    def program(choices, **flags):
        contract = contract_of(graph, len(state), flags={f"cudnn.{name}": value for name, value in flags.items()})
        return write(contract, Recipe(space="cuda_libs_torch", choices=choices), H200)

    usual = program({})
    choice = next(t for t in usual.tunables if t.key == "algorithms")
    assert choice.values == ("heuristic", "measured")
    assert "at::convolution(" in usual.source
    for tf32 in (True, False):
        measured = program({"algorithms": "measured"}, allow_tf32=tf32).source
        assert "/*benchmark=*/true" in measured
        assert f"/*allow_tf32=*/{str(tf32).lower()}" in measured
    for settled in ("benchmark", "deterministic"):
        fixed = program({"algorithms": "measured"}, **{settled: True})
        assert "algorithms" not in {t.key for t in fixed.tunables}
        assert "at::_convolution" not in fixed.source


def test_strict_fp32_convolutions_keep_the_contiguous_format():
    net = nn.Sequential(nn.Conv2d(32, 64, 3), nn.GELU(), nn.Conv2d(64, 64, 3)).eval()
    graph, state, _ = export_graph(net, [torch.randn(2, 32, 16, 16)])
    strict = contract_of(graph, len(state), flags={"cudnn.allow_tf32": False})
    tf32 = contract_of(graph, len(state), flags={"cudnn.allow_tf32": True})

    assert "channels_last_copy" not in write(strict, Recipe(space="cuda_libs_torch"), H200).source
    assert "channels_last_copy" in write(tf32, Recipe(space="cuda_libs_torch"), H200).source


def test_a_convolution_alone_is_not_wrapped_in_format_conversions():
    graph, state, _ = export_graph(nn.Conv2d(32, 64, 3).eval(), [torch.randn(2, 32, 16, 16)])
    contract = contract_of(graph, len(state), flags={"cudnn.allow_tf32": True})

    plain = write(contract, Recipe(space="cuda_libs_torch"), H200)
    layout = next(t for t in plain.tunables if t.key == "layout")

    assert "channels_last_copy" not in plain.source
    assert layout.values == ("contiguous", "channels_last")


def test_kernels_that_differ_only_in_names_are_written_once():
    def twice(x, y):
        return torch.softmax(x + y, 1) @ torch.softmax(y + x.mT, 1).mT

    contract = program_of(twice, [torch.randn(16, 16), torch.randn(16, 16)])[1]
    program = write(contract, Recipe(space="cuda_libs_torch"), H200)

    def blocks(x):
        for _ in range(3):
            x = torch.softmax(x, 1) @ x
        return x

    repeated = program_of(blocks, [torch.randn(16, 16)])[0]
    assert repeated.source.count("__global__") == 1
    assert repeated.source.count("<<<") == len(repeated.kernels) == 3
    assert program.source.count("__global__") == 2, "these read memory in different orders"
    own = program_of(blocks, [torch.randn(16, 16)], space="cuda")[0]
    assert len(re.findall(r"^struct \w+_product", own.source, re.MULTILINE)) == 1


def test_a_long_host_function_is_not_optimised():
    def many(x):
        for _ in range(120):
            x = torch.softmax(x, 1) @ x
        return x

    assert 'optimize("O0")' in program_of(many, [torch.randn(16, 16)])[0].source
    assert "optimize(" not in program_of(torch.relu, [torch.randn(16, 16)])[0].source


def test_rows_that_follow_each_other_are_one_product():
    graph, _, _ = export_graph(nn.Linear(16, 24).eval(), [torch.randn(2, 5, 16)])

    problem = matmul.parse(graph.nodes[0], graph.values)

    assert (problem.m, problem.n, problem.k, problem.batch) == (10, 24, 16, ())


def test_convolution_geometry_is_spread_to_three_dimensions():
    graph, _, _ = export_graph(nn.Conv1d(4, 8, 3, stride=2, padding=1).eval(), [torch.randn(2, 4, 9)])

    conv = convolution.parse(graph.nodes[0], graph.values)

    assert (conv.kernel, conv.stride, conv.padding) == ((1, 1, 3), (1, 1, 2), (0, 0, 1))
    assert convolution.flops(conv) == 2 * 2 * 5 * 3 * 4 * 8


def test_identifiers_never_collide():
    names = Names({"x"})

    assert [names("x"), names("double"), names("a.b"), names("a_b"), names("x")] == [
        "x_2", "value_double", "a_b", "a_b_2", "x_2"]


def test_numbers_keep_their_type():
    assert [number(v) for v in (True, 3, 1e-5, float("-inf"), -(2**63))] == [
        "true", "3", "1e-05", "-std::numeric_limits<double>::infinity()", "std::numeric_limits<int64_t>::min()"]

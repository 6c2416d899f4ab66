"""Windows that a block takes on its way down the grid, one step or several in a kernel, agree with torch."""

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from engine.codegen.regions import plan_regions
from engine.codegen.shifted_sums import join_shifted_sums
from engine.codegen.simplify import simplify
from engine.codegen.streams import steps_of
from tests.codegen_harness import H200, Compiled, assert_close, compile_cubin, cuda_text, export_graph


class Box(nn.Module):
    """Steps of one stencil; `between` works on what a step gives and what it took."""

    def __init__(self, radius, steps, dtype, channels=1, between=None):
        super().__init__()
        width = 2 * radius + 1
        weight = torch.rand(channels, 1, width, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        self.register_buffer("weight", (weight / weight.sum() * channels).to(dtype))
        self.radius, self.steps = radius, steps
        self.between = between or (lambda new, old: new)

    def forward(self, x):
        for _ in range(self.steps):
            x = self.between(F.conv2d(x, self.weight, padding=self.radius, groups=self.weight.shape[0]), x)
        return x


def grid(*shape, dtype=torch.float64):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)


def streamed(module, x, steps=1, **choices):
    """The module's kernels with 32 threads a block, so that small grids have several blocks."""
    graph, state, _ = export_graph(module.eval(), [x])
    regions = plan_regions(graph, choices={"steps": steps}, device=H200)
    wanted = {"stream": True, "stream_threads": 32, **choices}
    run = Compiled(graph, regions, choices={f"{r.name}.{key}": value for r in regions for key, value in wanted.items()})
    with torch.no_grad():
        assert_close(run(*state, x)[0], module(x))
    return run


def heat(new, old):
    return torch.relu(old + 0.5 * (new - old))


float32, float64 = torch.float32, torch.float64
BOXES = {
    "radius 3, two steps": (Box(3, 2, float64), grid(1, 1, 37, 75), 2),
    "radius 3, two steps, even sizes": (Box(3, 2, float32), grid(1, 1, 40, 264, dtype=float32), 2),
    "radius 1, four steps": (Box(1, 4, float64), grid(1, 1, 33, 130), 4),
    "channels and batches": (Box(1, 2, float32, channels=3), grid(2, 3, 21, 36, dtype=float32), 2),
    "work between steps": (Box(2, 2, float64, between=lambda new, old: torch.relu(new - 0.4) * 1.5),
                           grid(1, 1, 30, 66), 2),
    "steps that add to what was, radius 1": (Box(1, 4, float32, between=heat), grid(1, 1, 20, 66, dtype=float32), 4),
    "steps that add to what was, radius 3": (Box(3, 2, float64, between=heat), grid(1, 1, 31, 67), 2),
    "a step that adds to what was": (Box(2, 1, float64, between=heat), grid(1, 2, 19, 68)[:, :1], 1),
    "two weights": (nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Tanh(), nn.Conv2d(1, 1, 3, padding=1)),
                    grid(1, 1, 19, 70, dtype=float32), 2),
}


@pytest.mark.parametrize(("module", "x", "steps"), BOXES.values(), ids=BOXES)
def test_steps_that_share_a_kernel(module, x, steps):
    run = streamed(module, x, steps, waves=1)

    assert len(run.regions) == 1
    assert f"Tunables   steps = {steps}" in run.text


SINGLE = {
    "no padding, a window higher than wide": (nn.Conv2d(1, 1, (5, 2)).double(), grid(1, 1, 41, 77)),
    "padding of more than the window's half": (nn.Conv2d(2, 2, 3, padding=2, groups=2), grid(1, 2, 20, 64, dtype=float32)),
    "mean of neighbours": (nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.SiLU()), grid(2, 2, 18, 33, dtype=float32)),
    "padded alike, a window of even sizes": (nn.Conv2d(1, 1, (4, 2), padding="same"), grid(1, 1, 20, 66, dtype=float32)),
    "radius 4": (Box(4, 1, float64), grid(1, 1, 25, 66)),
}


@pytest.mark.parametrize(("module", "x"), SINGLE.values(), ids=SINGLE)
def test_one_step(module, x):
    run = streamed(module, x, waves=4)

    assert "Tunables   steps = 1" in run.text


class Slices(nn.Module):
    """Steps of a star, or of any other shifts, as sums of slices."""

    def __init__(self, offsets, steps=1, pad=2):
        super().__init__()
        self.offsets, self.steps, self.pad = offsets, steps, pad

    def forward(self, x):
        for _ in range(self.steps):
            near = F.pad(x, (self.pad,) * 4)
            height, width = (size - 2 * self.pad for size in near.shape[-2:])
            total = 0.5 * x
            for number, (down, right) in enumerate(self.offsets, 1):
                top, left = self.pad + down, self.pad + right
                total = total - near[..., top : top + height, left : left + width] / (8 * number)
            x = total
        return x


STAR = tuple((far * down, far * right) for far in (1, 2) for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)))


@pytest.mark.parametrize(("offsets", "steps", "dtype"), [
    (STAR, 1, float64), (STAR, 2, float32), (((-2, -1), (-1, 1), (0, 2), (-2, 0)), 2, float64)])
def test_sums_of_slices_are_stencils(offsets, steps, dtype):
    x, module = grid(25, 70, dtype=dtype), Slices(offsets, steps)
    graph, _, _ = export_graph(module, [x])
    joined = join_shifted_sums(simplify(graph))
    (region,) = plan_regions(joined, choices={"steps": steps}, device=H200)

    for stream in (True, False) if steps == 1 else (True,):
        choices = {f"{region.name}.stream": stream, f"{region.name}.stream_threads": 32}
        run = Compiled(joined, (region,), choices=choices)
        assert ("__pipeline_memcpy_async" in run.text) == stream
        assert_close(run(x)[0], module(x))
    assert [node.base for node in joined.nodes] == ["shifted_sum"] * steps


def test_steps_whose_grid_has_two_dimensions_between_them_share_a_kernel():
    class Flat(Box):
        def forward(self, x):
            for _ in range(self.steps):
                x = F.conv2d(x[None, None], self.weight, padding="same")[0, 0]
            return x

    module, x = Flat(2, 2, float64), grid(25, 70)
    graph, state, _ = export_graph(module, [x])
    simple = simplify(graph)
    run = Compiled(simple, plan_regions(simple, choices={"steps": 2}, device=H200))

    assert len(run.regions) == 1
    assert_close(run(*state, x)[0], module(x))


def test_sums_of_several_tensors_and_of_what_is_needed_elsewhere_stay_apart():
    def both(x, y):
        near = F.pad(x, (1, 1, 1, 1))
        star = near[1:-1, :-2] + near[1:-1, 2:] + near[:-2, 1:-1] + near[2:, 1:-1]
        return star * 0.25 + y, star * x, near[2:, 2:] + near[:-2, :-2]

    inputs = [grid(9, 12), grid(9, 12)]
    graph, _, _ = export_graph(both, inputs)
    joined = join_shifted_sums(simplify(graph))

    assert [node.base for node in joined.nodes].count("shifted_sum") == 1
    run = Compiled(joined, plan_regions(joined, device=H200))
    for got, want in zip(run(*inputs), both(*inputs), strict=True):
        assert_close(got, want)


def test_every_choice_of_columns_and_threads_is_correct():
    for columns in (1, 2):
        for threads in (64, 32):
            streamed(Box(1, 2, float64), grid(1, 1, 24, 130), 2, columns=columns, stream_threads=threads)


@pytest.mark.parametrize(("radius", "steps", "dtype"), [(3, 2, float64), (3, 1, float64), (3, 1, float32)])
@pytest.mark.slow
def test_registers_hold_what_the_plan_says(radius, steps, dtype):
    x = torch.empty(1, 1, 2048, 2048, dtype=dtype)
    graph, _, _ = export_graph(Box(radius, steps, dtype), [x])
    (region,) = plan_regions(graph, device=H200)
    names = {value: value for value in (*region.inputs, *region.outputs)}
    code = region.emit(names, layouts=graph.values, choices={}, device=H200)

    report = compile_cubin(cuda_text([code]))

    assert " 0 bytes spill stores" in report, report
    threads, resident = map(int, re.search(r"__launch_bounds__\((\d+), (\d+)\)", code.device_code).groups())
    assert int(re.search(r"Used (\d+) registers", report)[1]) * threads * resident <= 65536


def test_steps_that_would_repeat_most_columns_stay_apart():
    wide = tuple((8 * down, 8 * right) for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)))
    graph, _, _ = export_graph(Slices(wide, 4, pad=8), [grid(40, 40)])

    assert len(plan_regions(join_shifted_sums(simplify(graph)), choices={"steps": 4}, device=H200)) > 1


def test_a_result_between_steps_that_is_wanted_keeps_them_apart():
    class Both(Box):
        def forward(self, x):
            first = F.conv2d(x, self.weight, padding=1)
            return F.conv2d(first, self.weight, padding=1), first

    graph, _, _ = export_graph(Both(1, 2, float64), [grid(1, 1, 9, 12)])

    assert len(plan_regions(graph, choices={"steps": 2}, device=H200)) == 2


def test_large_grids_take_as_many_steps_as_balance_arithmetic_and_memory():
    def steps(radius, size, count=4):
        graph, _, _ = export_graph(Box(radius, count, float64), [torch.empty(1, 1, size, size, dtype=float64)])
        return steps_of(graph)

    assert steps(3, 1024) == (2, 1, 4)
    assert steps(1, 1024) == (4, 1, 2)
    assert steps(1, 64) == (1, 2, 4)
    assert steps(3, 1024, count=1) == ()

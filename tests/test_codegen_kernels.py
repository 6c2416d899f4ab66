"""Generated kernels, run on the CPU, agree with torch: operators, dtypes, odd sizes, strides."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from contracts.tensors import TensorSpec, channels_last
from engine.codegen.regions import plan_regions
from tests.codegen_harness import H200, assert_close, check, compile_cubin, compiled, export_graph

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]

UNARY = [
    lambda x: x.abs(), torch.exp, torch.expm1, lambda x: x.abs().log1p(), lambda x: (x * x + 1).sqrt(),
    lambda x: (x * x + 1).rsqrt(), lambda x: (x.abs() + 1).reciprocal(), torch.sin, torch.tanh, torch.erf,
    torch.sigmoid, F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.relu, F.relu6, F.elu, F.selu, F.celu,
    F.mish, lambda x: F.softplus(x, beta=2.0, threshold=1.0), F.hardswish, F.hardsigmoid, F.hardtanh, F.logsigmoid,
    lambda x: F.leaky_relu(x, 0.2), lambda x: F.hardshrink(x, 0.3), lambda x: F.softshrink(x, 0.3), torch.floor,
    torch.ceil, torch.round, torch.trunc, torch.frac, torch.sign, lambda x: x.clamp(-0.5, 0.7), lambda x: x.clamp(min=0.1),
    lambda x: x**2, lambda x: x**3, lambda x: x.abs() ** 1.7, lambda x: x**-2, lambda x: 2 - x, torch.square,
    lambda x: torch.nan_to_num(x / 0), lambda x: F.threshold(x, 0.1, 20.0), torch.logical_not, lambda x: x > 0.1,
    torch.isnan, lambda x: x.to(torch.int32), lambda x: x.to(torch.float16).to(torch.float32), torch.neg,
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_operators(dtype):
    def every(x):
        return tuple(function(x) for function in UNARY)

    x = torch.randn(3, 37, generator=torch.Generator().manual_seed(1)).to(dtype)
    check(every, [x], everything_fused=False)


def test_binary_operators_promote_and_broadcast_as_torch_does():
    def every(x, y, n, m, b, h):
        return (
            x + y, x - 2 * y, torch.add(x, y, alpha=0.5), x * n, x / y, n / m, torch.div(x, y, rounding_mode="floor"),
            torch.div(n, m, rounding_mode="floor"), torch.div(n, m, rounding_mode="trunc"), n // m, n % m,
            torch.fmod(n, m), x % y, torch.fmod(x, y), torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y),
            torch.where(b, x, y), torch.where(b, n, 0), x.masked_fill(b, -1e9), x < y, n == m, n >= 2, b & (x > 0),
            b ^ (x > 0), ~b, n & m, n | m, n << 1, torch.atan2(x, y), torch.lerp(x, y, 0.3), torch.lerp(x, y, x),
            torch.addcmul(x, y, y, value=0.5), torch.addcdiv(x, y, y * y + 1), h + 1.5, h * x, h > 0.1,
            torch.clamp(x, y - 1, y + 1), x.pow(n.float()), torch.pow(n.abs(), 3), torch.logaddexp(x, y),
            torch.xlogy(x.abs(), y.abs()), torch.hypot(x, y), torch.copysign(x, y),
        )

    g = torch.Generator().manual_seed(2)
    x, y = torch.randn(4, 1, 33, generator=g), torch.randn(5, 33, generator=g)
    n, m = (torch.randint(1, 9, (5, 33), generator=g) * torch.tensor([1, -1, 1, -1, 1])[:, None] for _ in range(2))
    check(every, [x, y, n, m, torch.rand(5, 33, generator=g) > 0.5, torch.randn(33, generator=g).half()],
          everything_fused=False)


def test_nan_and_infinity_behave_as_in_torch():
    def every(x, y):
        return (x.relu(), x.clamp(0, 1), torch.maximum(x, y), torch.fmax(x, y), x.amax(1), x.argmax(1), x.argmin(1),
                x.max(1)[0], torch.logsumexp(x, 1), F.softmax(x, 1), x.sum(1), x.sign(), torch.isinf(x))

    x = torch.tensor([[1.0, float("nan"), 2.0, -1.0], [float("inf"), 1, 2, 3], [-float("inf")] * 4, [1, 2, 2, 1]])
    check(every, [x, x.flip(1).contiguous()], everything_fused=False)


@pytest.mark.parametrize("length", [2, 64, 50000], ids=["at once", "in registers", "by several blocks"])
def test_rows_with_infinities_end_as_in_torch(length):
    def every(x):
        return (F.softmax(x, 1), F.log_softmax(x, 1), torch.logsumexp(x, 1), x - torch.logsumexp(x, 1, keepdim=True))

    x = torch.randn(6, length, generator=torch.Generator().manual_seed(9))
    infinite, nothing = float("inf"), float("nan")
    x[0, 1], x[1], x[2, 0], x[3, 0] = infinite, -infinite, nothing, -infinite
    x[4, 0], x[4, 1], x[5, 0], x[5, 1] = infinite, -infinite, infinite, nothing
    check(every, [x])


def test_softmax_over_one_element_that_a_row_was_folded_to():
    def folded(x):
        mean = x.mean(1, keepdim=True)
        return F.softmax(mean, 1), F.log_softmax(mean, 1)

    check(folded, [torch.randn(5, 16)])


def test_folds_of_one_element_that_a_row_was_folded_to():
    def folded(x):
        one = x.sum(1, keepdim=True)
        return (F.layer_norm(one, [1]), one.var(1, unbiased=False), one.logsumexp(1), one.prod(1), one.argmax(1),
                F.rms_norm(one, [1], eps=1e-3), (one != 0).any(1))

    x = torch.randn(5, 16)
    x[1, 2], x[2, 3], x[3, 4] = float("inf"), -float("inf"), float("nan")
    check(folded, [x], everything_fused=False)


def test_the_mean_beside_a_variance_is_lost_to_an_infinity_as_in_torch():
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(4))
    x[0, 0], x[1, 2], x[2, 3] = float("inf"), -float("inf"), float("nan")
    check(lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, 1), x.mean(1)), [x], everything_fused=False)


def test_a_window_without_a_larger_value_gives_its_first_place():
    x = torch.full((1, 2, 6, 6), -float("inf"))
    x[0, 0, 3:, 3:] = 1
    check(lambda x: F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True), [x])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers_at_their_limits(dtype):
    limits = torch.iinfo(dtype)
    bits = torch.tensor([b for b in (0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 100, -1) if b >= limits.min], dtype=dtype)
    x = torch.tensor([limits.min, limits.max, 1, 5], dtype=dtype)[:, None]
    check(lambda x, bits: (x << bits, x >> bits, x.clamp(min=limits.min), x.clamp(max=limits.max)), [x, bits])


def test_views_fold_into_index_arithmetic():
    def every(x):
        a, b = x.chunk(2, dim=1)
        return (
            x.transpose(1, 2) + 1, x.permute(2, 0, 1).reshape(-1, 8) * 2, x[:, 2:7:2, 1:] - 1, x.select(1, 3).exp(),
            torch.cat([a, b * 2, a], 1), torch.stack([a, b], 2).relu(), F.pad(x, (1, 2, 0, 3), value=0.5) * 2,
            x.flip(1, 2) + x, x.repeat(1, 2, 1) + 1, torch.tril(x) + torch.triu(x, 1), torch.roll(x, 2, 1) * 2,
            x.unsqueeze(1).expand(4, 3, 8, 10) + 1, torch.arange(10) * x, torch.full((3,), 2.0) * 2,
            x.diagonal(0, 1, 2) * 2, F.pixel_shuffle(x.reshape(1, 8, 4, 10), 2) + 1, x.movedim(0, 2) * 2,
        )

    run = check(every, [torch.randn(4, 8, 10)], everything_fused=False)
    assert not [r for r in run.regions if "view" in r.kind]


def test_gathers():
    def every(table, index, x):
        return (F.embedding(index, table) * 2, table.index_select(1, index[0]) + 1, x.gather(1, index % 3) * 2,
                table[index] + 1, F.one_hot(index, 12) + 1, table[:, index[0]] * 2)

    g = torch.Generator().manual_seed(3)
    check(every, [torch.randn(12, 8, generator=g), torch.randint(0, 8, (3, 5), generator=g),
                  torch.randn(3, 5, generator=g)], everything_fused=False)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((6, 100), 1), ((5, 33), 1), ((7, 6, 5), 1), ((3, 2500), 1), ((70, 3), 0)])
def test_reductions(dtype, shape, dim):
    def every(x):
        return (
            F.softmax(x, dim), F.log_softmax(x, dim), torch.logsumexp(x, dim), x.sum(dim), x.mean(dim, keepdim=True) * 2,
            x.amax(dim), x.argmax(dim), x.max(dim)[1], x.var(dim), x.std(dim), F.normalize(x, dim=dim),
            x / x.abs().mean(dim, keepdim=True), (x > 0).any(dim), x.min(dim)[0] + 1, x.norm(p=1, dim=dim),
        )

    if dtype == torch.float16:
        shape = tuple(min(n, 200) for n in shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    check(every, [x], everything_fused=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_normalisations_fuse_with_their_surroundings(dtype):
    x = torch.randn(3, 8, 7, 9, generator=torch.Generator().manual_seed(5)).to(dtype)
    for module in (
        nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU()), nn.Sequential(nn.ReLU(), nn.InstanceNorm2d(8, affine=True)),
        nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).eval(), nn.LayerNorm((7, 9)), nn.RMSNorm(9),
    ):
        run = check(module.to(dtype).eval(), [x])
        assert len(run.regions) == 1


@pytest.mark.parametrize("shape", [(8, 4, 20, 25), (2, 4, 150, 150), (2500, 4, 2, 2)], ids=str)
def test_batch_norm_in_training_updates_its_statistics(shape):
    """Also where several blocks share a channel."""
    module = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()).train()
    x = torch.randn(shape)
    run, state, _ = compiled(module, [x])
    (got,) = run(*state, x)[-1:]
    assert_close(got, module(x))
    buffers = {f"b_{path.replace('.', '_')}": value for path, value in module.named_buffers()}
    written = [path for path in run.graph.mutations if path in buffers]
    assert len(written) >= 2
    for path in written:
        assert_close(run.env[run.graph.mutations[path]], buffers[path], path)


def test_few_long_rows_are_folded_by_several_blocks():
    for function, inputs in (
        (lambda x: torch.logsumexp(x, 1), [torch.randn(5, 40000)]),
        (lambda x, y: ((x - y) ** 2).mean(), [torch.randn(50, 701), torch.randn(50, 701)]),
        (lambda x: F.layer_norm(x, x.shape[1:]), [torch.randn(2, 30000) + 100]),
        (lambda x: x.argmax(1), [torch.randn(3, 40000)]),
        (lambda x: x.sum(0), [torch.rand(5000, 65)]),
    ):
        run = check(function, inputs)
        assert any(".splits" in t.key for code in run.codes for t in code.tunables)


def test_pooling_and_depthwise_convolution():
    x = torch.randn(2, 4, 13, 15)

    def every(x):
        return (
            F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (13, 5)), F.avg_pool1d(x[0], 4, 2, 1),
            F.max_pool3d(x[None], 2), *F.max_pool2d(x, 3, 2, return_indices=True), F.adaptive_max_pool2d(x, 1),
            F.interpolate(x, scale_factor=2), F.max_pool2d(torch.relu(x), 2).mean((2, 3)),
        )

    check(every, [x], everything_fused=False)
    check(nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4), nn.SiLU()), [x])
    check(nn.Conv1d(6, 6, 5, padding=4, dilation=2, groups=6), [torch.randn(2, 6, 31)])
    check(nn.Conv3d(1, 1, 3, padding=1).double(), [torch.randn(1, 1, 6, 7, 8).double()])


STRIPS = {
    "work before and after": (nn.Sequential(nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1, groups=4), nn.SiLU()),
                              torch.randn(2, 4, 13, 15)),
    "stride, channels-last": (nn.Conv2d(4, 4, 5, stride=(2, 1), padding=2, groups=4, bias=False),
                              torch.randn(2, 4, 13, 15).to(memory_format=torch.channels_last)),
    "three dimensions": (nn.Conv3d(1, 1, 3, padding=1).double(), torch.randn(1, 1, 6, 7, 8).double()),
    "maximum": (nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Tanh()), torch.randn(2, 4, 13, 15)),
    "mean": (nn.AvgPool3d(3, 2, 1), torch.randn(1, 2, 9, 9, 8)),
    "radius 3": (nn.Conv2d(1, 1, 7, padding=3, bias=False).double(), torch.randn(1, 1, 21, 40).double()),
}


@pytest.mark.parametrize(("module", "x"), STRIPS.values(), ids=STRIPS)
def test_strips_of_overlapping_windows(module, x):
    run, _, _ = compiled(module.eval(), [x])
    (strip,) = (t for code in run.codes for t in code.tunables if t.key.endswith(".strip"))

    run = check(module, [x], choices={strip.key: 4})

    assert strip.values[0] == 1, "the plain kernel stays the first candidate"
    assert "int r = 0; r < 4" in run.text


def test_losses():
    g = torch.Generator().manual_seed(6)
    a, b, c = (torch.randn(40, 10, generator=g) for _ in range(3))
    t = torch.randint(0, 10, (40,), generator=g)

    def every(a, b, c, t):
        return (
            F.mse_loss(a, b), F.l1_loss(a, b), F.smooth_l1_loss(a, b), F.huber_loss(a, b, delta=0.5),
            F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"), F.cross_entropy(a, t),
            F.cross_entropy(a, t, label_smoothing=0.1, ignore_index=3), F.cross_entropy(a, b.softmax(1)),
            F.cross_entropy(a, t, weight=b[0].abs(), reduction="mean"), F.nll_loss(a.log_softmax(1), t),
            F.binary_cross_entropy(a.sigmoid(), b.sigmoid()), F.binary_cross_entropy_with_logits(a, b.sigmoid()),
            F.cosine_embedding_loss(a, b, (t > 4).long() * 2 - 1), F.triplet_margin_loss(a, b, c),
            F.cosine_similarity(a, b), torch.mean(torch.clamp(1 - a * b, min=0)), F.pairwise_distance(a, b),
            F.soft_margin_loss(a, b.sign()), F.cross_entropy(a, t, reduction="none"),
        )

    check(every, [a, b, c, t])


def test_scans():
    def every(x, m):
        return (x.cumsum(1), x.cumsum(0), x.flip(1).cumsum(1).flip(1), (x * m).cumsum(1).relu(), x.sigmoid().cumprod(1))

    g = torch.Generator().manual_seed(7)
    check(every, [torch.randn(5, 1003, generator=g), torch.rand(5, 1003, generator=g) > 0.5], everything_fused=False)
    check(lambda x: x.cumsum(0), [torch.randn(700, 33, generator=g)])
    check(lambda x: x.cumsum(1), [torch.randint(-5, 5, (3, 41, 6), generator=g)])


def test_scans_of_rows_that_no_wide_access_fits_go_through_shared_memory():
    def every(x, m):
        return x.cumsum(1), (x * m).cumsum(1).relu() + x, m.long().cumsum(1)

    inputs = [torch.randn(5, 1003), torch.rand(5, 1003) > 0.5]
    run, _, _ = compiled(every, inputs)
    narrow = {t.key: 64 for code in run.codes for t in code.tunables if t.key.endswith(".threads")}
    run, _, _ = compiled(every, inputs, choices=narrow)
    items = [t.key for code in run.codes for t in code.tunables if t.key.endswith(".items")]
    assert len(items) >= 2

    for count in (4, 8):
        run = check(every, inputs, choices={**narrow, **dict.fromkeys(items, count)}, everything_fused=False)
        assert "tile_elements" in run.text


@pytest.mark.parametrize("make", [
    lambda x: x.to(memory_format=torch.channels_last), lambda x: x.transpose(2, 3), lambda x: x[:, ::2], lambda x: x,
], ids=["channels-last", "transposed", "gaps", "plain"])
def test_inputs_of_any_stride(make):
    x = make(torch.randn(2, 8, 5, 6))

    def every(x):
        return x * 2 + 1, F.softmax(x, 1), x.mean((2, 3)), F.max_pool2d(x, 2), F.group_norm(x, 2), x.sum(1)

    check(every, [x], everything_fused=False)


def test_layout_of_inputs_may_differ_from_the_graph():
    from tests.codegen_harness import Compiled

    x = torch.randn(2, 8, 6, 6)
    graph, _, _ = export_graph(lambda x: F.relu(x * 2), [x])
    spec = TensorSpec(dtype="float32", shape=x.shape, stride=channels_last(tuple(x.shape)))
    regions = plan_regions(graph, device=H200)

    run = Compiled(graph, regions, layouts={graph.inputs[0]: spec})
    (got,) = run(x)

    assert_close(got, F.relu(x * 2))
    assert run.layouts[regions[0].outputs[0]].is_channels_last, "the output follows the input, no transposition"


@pytest.mark.parametrize("choice", [".width", ".threads", ".threads_per_row", ".rows_per_block", ".unroll", ".packs"])
def test_every_value_of_a_tunable_is_correct(choice):
    x = torch.randn(12, 264)

    def both(x):
        return F.softmax(x * 2, 1), x.sigmoid() + 1

    run, _, _ = compiled(both, [x])
    tunables = [t for code in run.codes for t in code.tunables if t.key.endswith(choice)]
    for position in range(1, max((len(t.values) for t in tunables), default=0)):
        picked = {t.key: t.values[position] for t in tunables if position < len(t.values)}
        check(both, [x], choices=picked)


@pytest.mark.slow
def test_nvcc_accepts_the_text():
    def every(x, t):
        return (F.softmax(x.half(), 1), F.cross_entropy(x, t), x.cumsum(1), x.max(1), F.layer_norm(x, (100,)),
                torch.cat([x, x * 2], 1), F.gelu(x.double()), x.bfloat16().sum(0), (x > 0).all(1), x.var(1))

    run, _, _ = compiled(every, [torch.randn(40, 100), torch.randint(0, 100, (40,))])
    report = compile_cubin(run.text)
    assert "spill stores" in report
    assert all("0 bytes spill stores" in line for line in report.splitlines() if "spill stores" in line)

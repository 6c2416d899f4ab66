"""Programs run on the CPU and give what the module gives: every operator family, in every space that can."""

import shutil

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.program_harness import Lab, program_of

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    torch.manual_seed(0)
    return Lab(tmp_path_factory.mktemp("programs"))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return self.up(F.gelu(self.second(x) + x)), F.max_pool2d(x, 2).flatten(1).mean(1)


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.cache.mul_(0.5).add_(x.sum(0))
        self.calls += 1
        return {"scaled": x * self.cache, "calls": self.calls * 2}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.linear(self.norm(self.linear(x))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 6, 2, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(12, 5)

    def forward(self, x):
        return self.lstm(self.gru(x)[0])


def views(x):
    y = x * 2
    return x.t(), x[0], x.expand(2, 3, 4), x, y, y, y.t()


def in_place(x, y):
    x = x * 2
    x.add_(y).relu_()
    x[0] += y[1]
    return x


def indices(x, i, j):
    return x[i], x[:, i], x[i, j], x[:, i, j], x[i, :, j], torch.index_put(x, (i,), x[0], accumulate=True)


def integers(i):
    return i // 3, i % 3, i.float() / 2, i == 2, (i > 1).sum(), F.one_hot(i, 8), i.clamp(1, 3), i.argmax(1)


def products(a, b, v):
    return (
        a @ b, a.t() @ b.t()[:, :9].t() if a.shape[0] == 9 else b.t() @ a.t(), a @ v, torch.dot(v, v),
        torch.addmm(v[:17].expand(9, 17), a, b, beta=0.5, alpha=2.0), torch.bmm(a[None].repeat(3, 1, 1), b.expand(3, -1, -1)),
    )


CONVOLUTIONS = [
    (nn.Conv1d(4, 8, 3, stride=2, padding=1), (2, 4, 33)), (nn.Conv2d(3, 16, 3, padding=1), (2, 3, 13, 11)),
    (nn.Conv2d(8, 32, 3, groups=4, stride=2, dilation=2), (2, 8, 13, 11)),
    (nn.Conv3d(4, 8, (3, 1, 2), padding=(1, 0, 1)), (1, 4, 6, 7, 8)),
    (nn.ConvTranspose2d(6, 16, 4, stride=2, padding=1, groups=2), (2, 6, 7, 9)),
    (nn.ConvTranspose3d(4, 8, 3, stride=(1, 2, 1), padding=(0, 1, 2), dilation=(2, 1, 1)), (1, 4, 4, 5, 6)),
]


def test_convolutions_norms_and_pools_with_statistics_in_both_formats(lab):
    for layout in ("contiguous", "channels_last"):
        lab.check(Residual(), [torch.randn(2, 3, 12, 12)], choices={"layout": layout})


def test_format_copies_and_packed_weights_are_own_kernels(lab):
    """In the network, around a lone convolution, in three dimensions, with groups, transposed."""
    for module, shape in (
        (Residual(), (2, 3, 12, 12)), (nn.Conv2d(20, 36, 3, bias=False), (2, 20, 9, 40)),
        (nn.Sequential(nn.ConvTranspose3d(34, 18, 3, groups=2), nn.GELU()), (1, 34, 3, 4, 17)),
    ):
        inputs = [torch.randn(shape)]
        program = lab.check(module.eval(), inputs, choices={"layout": "channels_last", "weights": "packed"})

        assert any("pack_weights" in name for name in program.kernels)
        assert any(name.endswith("_copy") for name in program.kernels)
        assert ".contiguous(at::MemoryFormat" not in program.source


class PoolBesideConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.left, self.right = nn.Conv2d(16, 8, 1), nn.Conv2d(16, 8, 1)

    def forward(self, x):
        pooled = torch.nn.functional.max_pool2d(x, 3, stride=1, padding=1)
        return torch.cat([self.left(pooled), self.right(self.before(x))], 1)


def test_convolutions_with_measured_algorithms_give_the_same(lab):
    for module, shape in CONVOLUTIONS:
        program = lab.check(module.eval(), [torch.randn(shape)], choices={"algorithms": "measured"})
        assert "at::_convolution(" in program.source


def test_windows_read_images_in_the_order_that_they_write(lab):
    """Each tap would otherwise cross orders: lanes that write neighbours would read elements of other planes."""
    program = lab.check(PoolBesideConvolution().eval(), [torch.randn(2, 16, 48, 50)],
                        choices={"layout": "channels_last"})
    reads = [line for line in program.source.splitlines() if line.startswith("// Reads      x: ")]
    assert [", stride (38400, 1, 800, 16)" in line for line in reads] == [False, True, True], "the copy reads it as it is"
    assert program.source.count("x_channels_last_copy<<<") == 1, "one copy for both"
    small = lab.check(PoolBesideConvolution().eval(), [torch.randn(1, 16, 8, 9)], choices={"layout": "channels_last"})
    assert "x_channels_last_copy<<<" not in small.source


class LastDimensionFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(16, 16, 1)

    def forward(self, x):
        return self.mix(F.max_pool2d(torch.relu(x).permute(0, 3, 1, 2), 3, stride=1, padding=1))


def test_windows_over_a_permuted_image_read_it_as_it_is(lab):
    """It lies in their order already; a copy in what channels-last means before the permutation would be slower."""
    program = lab.check(LastDimensionFirst().eval(), [torch.randn(2, 48, 50, 16)], choices={"layout": "channels_last"})
    assert "_copy<<<" not in program.source.replace("conv2d_result_copy<<<", "")


class NamedLikeACopy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(16, 16, 1)

    def forward(self, x, x_channels_last, conv2d_result):
        return self.mix(F.max_pool2d(x, 3, stride=1, padding=1) + x_channels_last), self.mix(x) + conv2d_result


def test_copies_are_told_from_arguments_of_their_names(lab):
    inputs = [torch.randn(1, 16, 64, 80) for _ in range(3)]
    lab.check(NamedLikeACopy().eval(), inputs, choices={"layout": "channels_last"})


class Scaled(nn.Module):
    def forward(self, i, flat):
        return i * flat


class Softened(nn.Module):
    def forward(self, p, row):
        return torch.softmax(p + row, 1)


class Summed(nn.Module):
    def forward(self, place, tile):
        return (place * tile).cumsum(1)


class Strip(nn.Module):
    def forward(self, line, r, tap_h):
        return F.conv2d(line, r, padding=1, groups=4) + tap_h


@pytest.mark.parametrize(("module", "shapes", "choice"), [
    (Scaled(), [(6, 7), (6, 7)], None), (Softened(), [(5, 77), (5, 77)], None),
    (Summed(), [(5, 4099), (5, 4099)], ".items"), (Strip(), [(2, 4, 13, 15), (4, 1, 3, 3), (2, 4, 13, 15)], ".strip"),
], ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "")
def test_arguments_may_be_called_as_kernels_call_their_variables(lab, module, shapes, choice):
    inputs = [torch.randn(shape) for shape in shapes]
    program = lab.check(module.eval(), inputs, space="cuda")
    if choice:
        (tunable,) = (t for t in program.tunables if t.key.endswith(choice))
        lab.check(module.eval(), inputs, space="cuda", choices={tunable.key: tunable.values[1]})


def test_one_call_an_operator_is_right_too(lab):
    lab.check(Residual(), [torch.randn(2, 3, 12, 12)], choices={"fusion": "none"})


def test_transformer_block_with_dropout_draws_the_same_numbers(lab):
    lab.check(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.2), [torch.randn(2, 5, 16)])


def test_recurrent_networks(lab):
    lab.check(Recurrent().eval(), [torch.randn(2, 3, 4)])


def test_buffers_dicts_and_shared_weights(lab):
    lab.check(Stateful(), [torch.randn(3, 4)])
    lab.check(Shared(), [torch.randn(4, 8)])


def test_outputs_share_no_memory_with_arguments_or_each_other(lab):
    lab.check(views, [torch.randn(3, 4)])


def test_an_einsum_of_one_tensor_is_no_view_of_its_argument(lab):
    lab.check(lambda x: (torch.einsum("ijk->kji", x), torch.einsum("iij->ij", x)), [torch.randn(3, 3, 4)])


def test_in_place_operators(lab):
    lab.check(in_place, [torch.randn(4, 8), torch.randn(4, 8)])


def test_views_that_begin_between_wide_accesses(lab):
    """The emulator traps at a wide access of an address that no GPU would take."""
    lab.check(lambda x: torch.as_strided(x, (8, 8), (8, 1), 1) * 2, [torch.randn(100)])
    lab.check(lambda x: torch.view_as_real(torch.complex(x, x)[1:]) * 2, [torch.randn(101)])


def test_an_argument_written_in_place_begins_where_wide_accesses_may(lab):
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(64))

        def forward(self, x):
            self.total += x
            return self.total * 2

    program, contract, _ = program_of(Sums().eval(), [torch.randn(64)])
    function = lab.load(contract, program.source)
    total, x = torch.ones(65), torch.randn(65)

    with pytest.raises(RuntimeError, match=r"total is written in place: it must .* begin on 16 bytes"):
        function(total[1:], x[1:])
    assert torch.equal(function(total[:64], x[1:]), (1 + x[1:]) * 2)
    assert torch.equal(total[:64], 1 + x[1:])


class Buffers(nn.Module):
    """Two buffers, updated from each other or from themselves."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.register_buffer("now", torch.randn(6, 6))
        self.register_buffer("before", torch.randn(6, 6))

    def forward(self, x):
        if self.kind == "turned":
            self.now.copy_(self.now.t().clone())
        else:
            old = self.before.clone()
            self.before.copy_(self.now)
            self.now.copy_(old if self.kind == "swapped" else x)
        return x + self.before


@pytest.mark.parametrize("space", ["cuda", "cuda_libs_torch"])
@pytest.mark.parametrize("kind", ["turned", "swapped", "moved on"])
def test_updates_read_what_arguments_held_before_the_call(lab, kind, space):
    program = lab.check(Buffers(kind).eval(), [torch.randn(6, 6)], space=space)

    assert "fresh_copy(b_now" in program.source or "fresh_copy(t," in program.source


@pytest.mark.parametrize("space", ["cuda", "cuda_libs"])
def test_products_without_results_launch_nothing(lab, space):
    lab.check(nn.Linear(8, 4).eval(), [torch.randn(0, 8)], space=space)
    lab.check(nn.Conv2d(4, 4, 3).eval(), [torch.randn(0, 4, 8, 8)], space=space)


def test_indexing_by_tensors(lab):
    rows, columns = torch.tensor([0, -1, 3]), torch.tensor([2, 1, -2])
    for choices in ({}, {"fusion": "none"}):
        lab.check(indices, [torch.randn(5, 5, 5), rows, columns], choices=choices)


def test_a_single_number_has_dimensions_0_and_minus_1(lab):
    def folded(x):
        return (x.sum(-1), x.amax(0), x.argmax(-1), x.logsumexp(0), x.var(0, unbiased=False), x.max(0)[1], x.mean(-1),
                x.flip(0) + 1, x.index_select(0, torch.tensor([0])), x.cumsum(0), x.softmax(-1))

    lab.check(folded, [torch.randn(())])


def test_integer_and_boolean_results(lab):
    for choices in ({}, {"fusion": "none"}):
        lab.check(integers, [torch.randint(0, 7, (3, 4))], choices=choices)


@pytest.mark.parametrize("space", ["cuda", "cuda_libs"])
def test_matrix_products_without_aten(lab, space):
    program = lab.check(products, [torch.randn(9, 40), torch.randn(40, 17), torch.randn(40)], space=space)

    assert program.torch_calls == ()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_own_products_of_other_precisions(lab, dtype):
    tolerance = {torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 1e-1}[dtype]
    lab.check(nn.Linear(96, 72).to(dtype).eval(), [torch.randn(50, 96).to(dtype)], space="cuda", tolerance=tolerance)


@pytest.mark.parametrize(("module", "shape"), CONVOLUTIONS, ids=lambda v: type(v).__name__)
def test_own_convolutions(lab, module, shape):
    lab.check(module.eval(), [torch.randn(shape)], space="cuda", tolerance=1e-4)


def test_attention_without_aten(lab):
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    program = lab.check(attention, [torch.randn(2, 2, 7, 8) for _ in range(3)], space="cuda")

    assert program.torch_calls == ()


@pytest.mark.parametrize("join", [torch.stack, torch.cat], ids=["stack", "cat"])
def test_more_tensors_than_one_kernel_takes_are_joined_in_steps(lab, join):
    def steps(x):
        return join([x[i] * (i + 1) for i in range(130)], 1)

    program = lab.check(steps, [torch.randn(130, 3, 2)], space="cuda")
    assert not program.torch_calls


@pytest.mark.parametrize("space", ["cuda", "cuda_libs_torch"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_statistics_of_half_types_are_updated(lab, space, dtype, tolerance):
    module = nn.BatchNorm2d(4).to(dtype).train()
    lab.check(module, [(torch.randn(3, 4, 5, 6) + 1).to(dtype)], space=space, tolerance=tolerance)

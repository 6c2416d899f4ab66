"""FLOPs against torch's own counter, and traffic against hand counts."""

import importlib
from dataclasses import replace

import pytest

from contracts.contract import Argument, Contract, Variant
from contracts.graph import Const, Graph, Node, Ref
from contracts.tensors import TensorSpec
from engine.devices import target_device
from engine.workload import live_nodes, profile_workload
from engine.workload_costs import node_cost
from engine.workload_traffic import compulsory_bytes

torch = pytest.importorskip("torch")
nn = torch.nn
importlib.import_module("torch.nn.attention")
flop_counter = importlib.import_module("torch.utils.flop_counter")
sdpa_kernel = torch.nn.attention.sdpa_kernel
SDPBackend = torch.nn.attention.SDPBackend
H200 = target_device("H200")


def contract_of(module, *inputs, precision="match", flags=None, ranges=None):
    """A contract by torch.export, as plain as these tests need it."""
    torch.set_num_threads(1)
    program = torch.export.export(module.eval(), inputs)
    values, names, nodes = {}, [], []

    def spec(value):
        return TensorSpec(dtype=str(value.dtype)[6:], shape=tuple(value.shape), stride=tuple(value.stride()))

    def plain(value):
        if isinstance(value, torch.fx.Node):
            return Ref(value.name)
        if isinstance(value, (list, tuple)):
            return tuple(plain(item) for item in value)
        if isinstance(value, torch.dtype):
            return Const("dtype", str(value)[6:])
        return value if isinstance(value, (int, float, bool, str, type(None))) else str(value)

    parts = {}
    for node in program.graph.nodes:
        meta = node.meta.get("val")
        if node.op == "placeholder":
            values[node.name] = spec(meta)
            names.append(node.name)
        elif node.op == "call_function" and hasattr(node.target, "_schema"):
            schema = node.target._schema
            args = {a.name: plain(node.args[i] if i < len(node.args) else node.kwargs.get(a.name, a.default_value))
                    for i, a in enumerate(schema.arguments)}
            if isinstance(meta, (list, tuple)):
                outs = tuple(f"{node.name}_{i}" for i in range(len(meta)))
                values.update({name: spec(value) for name, value in zip(outs, meta, strict=True)})
                parts[node.name] = outs
            else:
                outs = (node.name,)
                values[node.name] = spec(meta)
            nodes.append(Node(name=node.name, op=str(node.target), args=args, outputs=outs))
        elif node.op == "call_function":
            source, index = node.args
            nodes.append(Node(name=node.name, op="aten.alias.default", args={"self": Ref(parts[source.name][index])},
                              outputs=(node.name,)))
            values[node.name] = spec(meta)
    (results,) = next(n for n in program.graph.nodes if n.op == "output").args
    outputs = tuple(Ref(value.name) for value in results)
    graph = Graph(inputs=tuple(names), nodes=tuple(nodes), outputs=outputs, mutations={}, values=values)
    arguments = tuple(
        Argument(name=name, role="input", tensor=values[name], **dict(zip(("low", "high"), (ranges or {}).get(name, ()),
                                                                        strict=False)))
        for name in names
    )
    variant = Variant(name="example", tensors={n: values[n] for n in names},
                      outputs=tuple(values[o.name] for o in outputs), graph=graph)
    return Contract(name="m", entry="m_forward", arguments=arguments, output_tree=0, variants=(variant,),
                    precision=precision, flags=flags or {})


class Attention(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Einsum(nn.Module):
    def forward(self, a, b):
        return torch.einsum("bhid,bhjd->bhij", a, b)


class BatchedEinsum(nn.Module):
    def forward(self, a, b):
        return torch.einsum("...id,de->...ie", a, b)


class Products(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b), torch.bmm(a, a.transpose(1, 2))


def rnn_products(module, x):
    return sum(2 * x.shape[0] * x.shape[1] * p.numel() for n, p in module.named_parameters() if "weight" in n)


COUNTED = [
    (nn.Linear(24, 40), (torch.randn(5, 7, 24),)),
    (nn.Conv2d(6, 12, 3, stride=2, padding=1), (torch.randn(2, 6, 15, 17),)),
    (nn.Conv2d(6, 12, 3, groups=3), (torch.randn(2, 6, 15, 17),)),
    (nn.Conv2d(8, 8, 3, groups=8, bias=False), (torch.randn(2, 8, 9, 9),)),
    (nn.Conv1d(4, 6, 5, dilation=2), (torch.randn(3, 4, 40),)),
    (nn.Conv3d(3, 5, (1, 3, 3)), (torch.randn(1, 3, 4, 9, 9),)),
    (nn.ConvTranspose2d(6, 10, 4, stride=2, padding=1), (torch.randn(2, 6, 8, 9),)),
    (nn.ConvTranspose2d(6, 12, 3, groups=2), (torch.randn(2, 6, 8, 9),)),
    (nn.ConvTranspose3d(2, 3, 3), (torch.randn(1, 2, 4, 5, 6),)),
    (Attention(), tuple(torch.randn(2, 4, 32, 16) for _ in range(3))),
    (Einsum(), (torch.randn(2, 4, 8, 16), torch.randn(2, 4, 9, 16))),
    (BatchedEinsum(), (torch.randn(2, 4, 8, 16), torch.randn(16, 9))),
    (Products(), (torch.randn(3, 8, 16), torch.randn(16, 10))),
    (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)), (torch.randn(2, 3, 8, 8),)),
]


@pytest.mark.parametrize(("module", "inputs"), COUNTED, ids=[type(module).__name__ for module, _ in COUNTED])
def test_matrix_flops_equal_torchs_counter(module, inputs):
    graph = contract_of(module, *inputs).graph
    ours = sum(node_cost(node, graph).matrix_flops for node in graph.nodes)
    # The CPU's flash attention is not in torch's table; its parts are.
    with flop_counter.FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        module(*inputs)
    assert ours == counter.get_total_flops()


@pytest.mark.parametrize("module", [nn.LSTM(8, 12, 2, batch_first=True), nn.GRU(8, 12, 2, bidirectional=True),
                                    nn.RNN(8, 12)], ids=["lstm", "gru", "rnn"])
def test_recurrences_count_every_weight_at_every_step(module):
    x = torch.randn(3, 5, 8)
    contract = contract_of(module, x)
    costs = [node_cost(node, contract.graph) for node in contract.graph.nodes]
    assert sum(cost.matrix_flops for cost in costs) == rnn_products(module, x)
    assert max(cost.serial_steps for cost in costs) >= 3


def test_causal_attention_counts_half():
    class Causal(nn.Module):
        def forward(self, q, k, v):
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    tensors = [torch.randn(1, 2, 64, 16) for _ in range(3)]
    full, half = contract_of(Attention(), *tensors).graph, contract_of(Causal(), *tensors).graph
    assert 2 * node_cost(half.nodes[-1], half).matrix_flops == node_cost(full.nodes[-1], full).matrix_flops


def test_pointwise_moves_input_and_output_once():
    profile = profile_workload(contract_of(nn.ReLU(), torch.randn(4096, 4096)), H200)
    assert profile.bytes == 2 * 4096 * 4096 * 4
    assert profile.bound == "memory"
    # verification.md, 3.3: hard 15.5 us, soft 31 us.
    assert profile.floor_us == pytest.approx((profile.bytes - 62_914_560) / 4.8e6, rel=1e-6)
    assert profile.roof_us == pytest.approx(31.2, abs=0.1)


def test_views_cost_nothing_and_dead_code_is_not_counted():
    class Views(nn.Module):
        def forward(self, x, unused):
            dead = unused.exp()  # noqa: F841
            return x.transpose(0, 1).unsqueeze(0).reshape(1, 8, 16)

    contract = contract_of(Views(), torch.randn(16, 8), torch.randn(500))
    read, written = compulsory_bytes(contract)
    assert read == 16 * 8 * 4
    assert written in (0, 16 * 8 * 4)  # The reshape may copy.
    assert not any("exp" in name for name in live_nodes(contract.graph))


def test_a_slice_needs_only_its_part():
    class Slice(nn.Module):
        def forward(self, x):
            return torch.relu(x)[:, :10]

    read, _ = compulsory_bytes(contract_of(Slice(), torch.randn(64, 1000)))
    assert read == 64 * 10 * 4


def test_a_slice_of_a_product_needs_all_weights_but_that_is_not_certain():
    class LastToken(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(64, 64, bias=False)

        def forward(self, x):
            return self.l(x)[:, -1]

    contract = contract_of(LastToken(), torch.randn(2, 50, 64))
    assert compulsory_bytes(contract, certain=False)[0] == (64 * 64 + 2 * 50 * 64) * 4
    assert compulsory_bytes(contract)[0] < 64 * 64
    profile = profile_workload(contract, H200)
    assert profile.bytes == (64 * 64 + 2 * 50 * 64 + 2 * 64) * 4


def test_without_a_graph_only_the_outputs_are_certain():
    whole = contract_of(nn.ReLU(), torch.randn(8, 8))
    contract = replace(whole, variants=(replace(whole.variants[0], graph=None),))
    assert compulsory_bytes(contract) == (0, 256)
    assert compulsory_bytes(contract, certain=False) == (256, 256)
    assert profile_workload(contract, H200).bytes == 512


def test_strided_convolution_reads_what_its_windows_touch():
    read, _ = compulsory_bytes(contract_of(nn.Conv2d(4, 4, 1, stride=2, bias=False), torch.randn(1, 4, 64, 64)))
    assert read == 4 * 32 * 32 * 4 + 16 * 4


def test_embedding_reads_expected_distinct_rows_only():
    table = nn.Embedding(50_000, 64)
    indices = torch.randint(0, 50_000, (100,))
    contract = contract_of(table, indices)
    read, written = compulsory_bytes(contract)
    assert 95 * 64 * 4 <= read - indices.numel() * 8 <= 100 * 64 * 4
    assert written == 100 * 64 * 4
    narrow = contract_of(table, indices, ranges={contract.graph.inputs[-1]: (3, 3)})
    assert compulsory_bytes(narrow)[0] == 64 * 4 + 800


def test_concatenation_needs_all_its_parts_only_when_all_is_used():
    class Cat(nn.Module):
        def forward(self, a, b):
            return torch.cat([a, b])

    class Head(nn.Module):
        def forward(self, a, b):
            return torch.cat([a, b])[:4]

    a, b = torch.randn(8, 4), torch.randn(8, 4)
    assert compulsory_bytes(contract_of(Cat(), a, b))[0] == 2 * 8 * 4 * 4
    assert compulsory_bytes(contract_of(Head(), a, b))[0] == 0  # Which part is read cannot be told.


def test_broadcast_inputs_count_their_storage_once():
    class Broadcast(nn.Module):
        def forward(self, x, bias):
            return x + bias

    bias = torch.randn(1, 16).expand(32, 16)
    assert compulsory_bytes(contract_of(Broadcast(), torch.randn(32, 16), bias))[0] == 32 * 16 * 4 + 16 * 4


@pytest.mark.parametrize(
    ("precision", "flags", "dtype", "key"),
    [("match", {}, torch.float32, "fp32"), ("match", {"cudnn.allow_tf32": True}, torch.float32, "tf32"),
     ("strict", {"cudnn.allow_tf32": True}, torch.float32, "fp32"), ("match", {}, torch.bfloat16, "bf16"),
     ("match", {}, torch.float16, "fp16"), ("match", {}, torch.float64, "fp64")],
)
def test_the_roof_uses_the_arithmetic_the_policy_allows(precision, flags, dtype, key):
    module = nn.Conv2d(64, 64, 3, bias=False).to(dtype)
    profile = profile_workload(contract_of(module, torch.randn(1, 64, 128, 128, dtype=dtype), precision=precision,
                                           flags=flags), H200)
    assert profile.arithmetic == key


def test_matmul_does_not_take_tf32_from_the_convolutions_flag():
    contract = contract_of(nn.Linear(512, 512), torch.randn(4096, 512), flags={"cudnn.allow_tf32": True})
    assert profile_workload(contract, H200).arithmetic == "fp32"


def test_depthwise_convolution_has_no_tensor_cores():
    module = nn.Conv2d(64, 64, 3, groups=64, bias=False)
    contract = contract_of(module, torch.randn(1, 64, 32, 32), flags={"cudnn.allow_tf32": True})
    assert profile_workload(contract, H200).arithmetic == "fp32"


def test_bounds():
    assert profile_workload(contract_of(nn.ReLU(), torch.randn(8)), H200).bound == "latency"
    big = contract_of(nn.Linear(2048, 2048), torch.randn(2048, 2048))
    assert profile_workload(big, H200).bound == "compute"
    assert profile_workload(contract_of(nn.GRU(8, 8), torch.randn(200, 1, 8)), H200).bound == "latency"


def test_shares_sum_to_one_and_name_the_heavy_operator():
    module = nn.Sequential(nn.Linear(1024, 1024), nn.GELU())
    found = profile_workload(contract_of(module, torch.randn(1024, 1024)), H200).shares
    assert sum(share.share for share in found) == pytest.approx(1)
    assert found[0].op.startswith("aten.linear")
    assert {share.how for share in found} == {"estimated"}

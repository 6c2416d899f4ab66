"""The probe on modules that people write: each graph, run with torch's operators, gives what the module gives."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.probe_harness import arguments_of, graph_of, load_user, probe, run_graph

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"

MODULES = {
    "linear chain": """
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, 2 * n)
    def forward(self, x):
        return torch.tanh(self.fc(x)) * 2
def get_inputs(): return [torch.randn(5, 6)]
def get_init_inputs(): return [6]
""",
    "batch norm in training writes its statistics": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
    def forward(self, x):
        return F.relu(self.bn(self.conv(x)), inplace=True)
def get_inputs(): return [torch.randn(2, 3, 8, 8)]
""",
    "evaluation mode": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.eval()
    def forward(self, x): return self.drop(self.bn(x))
def get_inputs(): return [torch.randn(3, 4)]
""",
    "dropout with probability 0 in training": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)
    def forward(self, x): return self.drop(x) + 1
def get_inputs(): return [torch.randn(3, 4)]
""",
    "nested outputs, a constant, integer results": """
class Model(nn.Module):
    def forward(self, x):
        values, places = x.topk(2)
        return {"values": values, "rest": (places, 7, [x.argmax(), None])}
def get_inputs(): return [torch.randn(3, 4)]
""",
    "nested inputs and a number": """
class Model(nn.Module):
    def forward(self, x, states, scale: float, flag=True):
        return x * scale + states[0] + states[1]["h"] if flag else x
def get_inputs(): return [torch.randn(3, 4), (torch.randn(4), {"h": torch.randn(3, 1)}), 0.5]
""",
    "plain tensors on the module, and literals in forward": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.arange(4.0)
    def forward(self, x):
        weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        return (x * self.scale)[:, :2] @ weights + torch.tensor(0.5) + torch.ones(2)
def get_inputs(): return [torch.randn(3, 4)]
""",
    "shared weights": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, i): return self.head(self.embed(i))
def get_inputs(): return [torch.randint(2, 9, (3, 5))]
""",
    "in-place on an input": """
class Model(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2
def get_inputs(): return [torch.randn(3)]
""",
    "views as outputs, the input itself": """
class Model(nn.Module):
    def forward(self, x): return x.t(), x[1:], x
def get_inputs(): return [torch.randn(3, 4)]
""",
    "channels last and an expanded input": """
class Model(nn.Module):
    def forward(self, x, y): return x * y
def get_inputs():
    return [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(3, 1, 1).expand(3, 4, 5)]
""",
    "half precision and double": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8).bfloat16()
    def forward(self, x, y): return self.fc(x).float() + y.half().float(), y.double().sum()
def get_inputs(): return [torch.randn(4, 8).bfloat16(), torch.randn(4, 8)]
""",
    "gru and lstm in one step": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, 2, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(8, 5, proj_size=2)
    def forward(self, x):
        out, state = self.gru(x)
        out, (h, c) = self.lstm(out)
        return out, h, c, state
def get_inputs(): return [torch.randn(2, 7, 3)]
""",
    "attention": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        split = lambda t: t.view(2, 5, 2, 4).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True)
        return y.transpose(1, 2).reshape(2, 5, 8)
def get_inputs(): return [torch.randn(2, 5, 8)]
""",
    "a nested class with ModuleList and ParameterList": """
class Outer:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
            self.scales = nn.ParameterList([nn.Parameter(torch.full((4,), 2.0))])
        def forward(self, x):
            for layer in self.layers:
                x = layer(x) * self.scales[0]
            return x
Model = Outer.Model
def get_inputs(): return [torch.randn(3, 4)]
""",
    "autocast inside, traced below autograd": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(4, 6), nn.BatchNorm1d(6)
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.fc(x)
        return {"out": self.bn(y.float()) + 1, "low": y}
def get_inputs(): return [torch.randn(3, 4)]
""",
    "a plain tensor that forward assigns": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.randn(3, 5)
        self.step = nn.Linear(9, 5)
    def forward(self, x, y):
        self.hidden.copy_(y)
        self.hidden = self.hidden.to(x.device)
        self.hidden = torch.tanh(self.step(torch.cat((x, self.hidden), dim=1)))
        return self.hidden * 2
def get_inputs(): return [torch.randn(3, 4), torch.randn(3, 5)]
""",
    "assigned tensors in what is traced below autograd": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.zeros(4)
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.t()
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.last = x[0] + self.last
        return y.float() + self.mean.sum()
def get_inputs(): return [torch.randn(3, 4)]
""",
    "checks of values": """
class Model(nn.Module):
    def forward(self, x, y):
        assert (x > -100).all() and 0 < y.min(), "small"
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        return F.gaussian_nll_loss(x, 2 * x, y)
def get_inputs(): return [torch.randn(3, 4), torch.rand(3, 4) + 1]
""",
    "the data of an input": """
class Model(nn.Module):
    def forward(self, x): return x + (2 * x - x).data
def get_inputs(): return [torch.randn(3, 4)]
""",
    "no_grad inside, keyword-only argument": """
class Model(nn.Module):
    def forward(self, x, *, y):
        with torch.no_grad():
            z = x.exp()
        return z + y
def get_inputs(): return {"y": torch.randn(3), "x": torch.randn(3)}
""",
}


@pytest.mark.parametrize("title", MODULES)
def test_the_graph_computes_what_the_module_computes(tmp_path: Path, title: str) -> None:
    reply = probe(tmp_path, HEAD + MODULES[title])
    user = load_user(tmp_path)
    torch.manual_seed(3)
    model = user.Model(*(user.get_init_inputs() if hasattr(user, "get_init_inputs") else []))
    inputs = user.get_inputs()
    kwargs = inputs if isinstance(inputs, dict) else {}
    args = [] if isinstance(inputs, dict) else inputs
    ordered = [kwargs[k] for k in ("x", "y")] if kwargs else args
    with torch.no_grad():
        before = arguments_of(reply, copy.deepcopy(model), copy.deepcopy(ordered))
        flat, mutated = run_graph(graph_of(reply), before)
        given = copy.deepcopy(args)
        expected = model(*given, **kwargs)
    wanted = [v for v in pytree.tree_leaves(expected) if isinstance(v, torch.Tensor)]
    assert len(flat) == len(wanted)
    for got, want in zip(flat, wanted, strict=True):
        torch.testing.assert_close(got, want)
    after = arguments_of(reply, model, given if not kwargs else ordered)
    for name, value in {**before, **mutated}.items():
        torch.testing.assert_close(value, after[name])
    marked = {a["name"] for a in reply["arguments"] if a["mutable"]}
    assert marked == set(mutated)
    assert same_tree(rebuilt(reply["output_tree"], wanted), expected)


def rebuilt(tree: Any, flat: list[Any]) -> Any:
    if isinstance(tree, int):
        return flat[tree]
    ((kind, inside),) = tree.items()
    if kind == "value":
        return inside
    if kind == "dict":
        return {k: rebuilt(v, flat) for k, v in inside.items()}
    return {"tuple": tuple, "list": list}[kind](rebuilt(v, flat) for v in inside)


def same_tree(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor):
        return a is b
    if isinstance(b, dict):
        return list(a) == list(b) and all(same_tree(a[k], b[k]) for k in b)
    if isinstance(b, (list, tuple)):
        return type(a) is type(b) and all(same_tree(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_roles_mode_and_flags(tmp_path: Path) -> None:
    reply = probe(tmp_path, HEAD + MODULES["batch norm in training writes its statistics"])
    roles = [(a["name"], a["role"], a["mutable"]) for a in reply["arguments"]]
    assert roles == [
        ("x", "input", False), ("conv_weight", "parameter", False), ("conv_bias", "parameter", False),
        ("bn_weight", "parameter", False), ("bn_bias", "parameter", False), ("bn_running_mean", "buffer", True),
        ("bn_running_var", "buffer", True), ("bn_num_batches_tracked", "buffer", True),
    ]
    assert reply["mode"] == "train"
    assert not reply["random"]
    assert reply["free_dims"] == [[["x", 0]], [["x", 2]], [["x", 3]]]
    assert "cudnn.allow_tf32" in reply["flags"]
    facts = {part["path"]: part["attributes"] for part in reply["modules"]}
    assert facts["bn"]["eps"] == 1e-5
    assert facts["conv"]["kernel_size"] == [3, 3]
    sources = {node.source for node in graph_of(reply).nodes}
    assert sources == {"user_model.py:11"}
    assert {node.module for node in graph_of(reply).nodes} == {"conv", "bn", ""}


def test_high_level_operators_are_kept(tmp_path: Path) -> None:
    gru = graph_of(probe(tmp_path, HEAD + MODULES["gru and lstm in one step"]))
    assert [n.op for n in gru.nodes if n.base in ("gru", "lstm")] == ["aten.gru.input", "aten.lstm.input"]
    ops = {n.op for n in graph_of(probe(tmp_path, HEAD + MODULES["attention"])).nodes}
    assert {"aten.linear.default", "aten.scaled_dot_product_attention.default"} <= ops


def test_dropout_in_training_is_random_and_without_effect_is_gone(tmp_path: Path) -> None:
    text = HEAD + MODULES["dropout with probability 0 in training"]
    assert [n.op for n in graph_of(probe(tmp_path, text)).nodes] == ["aten.add.Tensor"]
    assert probe(tmp_path, text.replace("0.0", "0.1"))["random"]


def test_a_check_of_values_is_taken_to_pass_and_noted(tmp_path: Path) -> None:
    reply = probe(tmp_path, HEAD + MODULES["checks of values"])
    notes = [note for note in reply["notes"] if "the check of values" in note]
    assert len(notes) == 3
    assert "functional.py" in notes[0]
    assert "user_model.py" in notes[1]


def test_shared_weights_are_one_argument_and_a_note(tmp_path: Path) -> None:
    reply = probe(tmp_path, HEAD + MODULES["shared weights"])
    assert [a["role"] for a in reply["arguments"]] == ["input", "parameter"]
    assert any("one tensor" in note for note in reply["notes"])
    index = reply["arguments"][0]
    assert 2 <= index["low"] <= index["high"] <= 8


def test_strides_of_inputs_are_kept(tmp_path: Path) -> None:
    reply = probe(tmp_path, HEAD + MODULES["channels last and an expanded input"])
    assert [a["tensor"]["stride"] for a in reply["arguments"]] == [[60, 1, 15, 3], [1, 0, 0]]


def test_numbers_become_attributes(tmp_path: Path) -> None:
    reply = probe(tmp_path, HEAD + MODULES["nested inputs and a number"])
    assert [(a["name"], a["path"], a["value"]) for a in reply["arguments"]] == [
        ("x", "x", None), ("states_0", "states[0]", None), ("states_1_h", "states[1]['h']", None),
        ("scale", "scale", 0.5),
    ]


def test_a_function_with_several_shapes(tmp_path: Path) -> None:
    text = HEAD + """
def gelu_gate(x, g):
    return F.gelu(x) * g
def get_inputs_variants():
    return [[torch.randn(4, 6), torch.randn(4, 6)], {"g": torch.randn(3, 8), "x": torch.randn(3, 8)}]
"""
    reply = probe(tmp_path, text, "gelu_gate")
    assert reply["kind"] == "function"
    assert [v["tensors"]["x"]["shape"] for v in reply["variants"]] == [[4, 6], [3, 8]]
    assert reply["free_dims"] == [[["x", 0], ["g", 0]], [["x", 1], ["g", 1]]]


def test_twelve_gigabytes_are_never_allocated(tmp_path: Path) -> None:
    text = HEAD + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(60000, 50000)
    def forward(self, x): return self.fc(x)
def get_inputs(): return [torch.rand(50000, 60000)]
"""
    reply = probe(tmp_path, text)
    assert reply["variants"][0]["outputs"][0]["shape"] == [50000, 50000]


def test_a_constructor_that_needs_values_is_built_in_memory(tmp_path: Path) -> None:
    text = HEAD + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = [r.item() for r in torch.linspace(0, 0.5, 3)]
        self.fc = nn.Linear(4, 4)
    def forward(self, x): return self.fc(x) * self.rates[2]
def get_inputs(): return [torch.randn(2, 4)]
"""
    reply = probe(tmp_path, text)
    assert graph_of(reply).nodes[-1].args["other"] == 0.5
    assert any("built in memory" in note for note in reply["notes"])


def test_a_module_that_asks_for_a_gpu_needs_none(tmp_path: Path) -> None:
    text = HEAD + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4).cuda()
        self.register_buffer("mask", torch.ones(4, device="cuda"))
    def forward(self, x): return self.fc(x.to("cuda:0")) * self.mask.cuda() + torch.arange(4, device=x.device)
def get_inputs(): return [torch.randn(2, 4, device="cuda").pin_memory()]
"""
    reply = probe(tmp_path, text)
    assert [a["name"] for a in reply["arguments"]] == ["x", "fc_weight", "fc_bias", "mask"]

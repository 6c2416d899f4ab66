"""The tasks of the evaluator's test-suite of cheats, and the entries that are judged on each.

Sources lie in `tests/data/evaluate/*.cu`. The comment before an entry says everything about it:

    // task | rows of the catalogue, or `honest` | checks one of which must fail | what it does

The checks are `-` for honest entries, `contained` where the sandbox refuses what the entry tries and its answer stays
right, `harmless` where nothing is gained; `timed: ` in front means that the fault shows in timed calls only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from contracts.contract import Argument, Contract, Variant
from contracts.tensors import TensorSpec
from tests.evaluate_harness import DATA, norm_contract, softmax_contract, spec

SOURCES = ("softmax.cu", "norm.cu", "product.cu", "rows.cu", "small.cu")
_ENTRY = re.compile(
    r"^// (?P<task>\w+) \| (?P<rows>[^|]+) \| (?P<checks>[^|]+) \| (?P<title>.+)\n(?:Tensor|Two) (?P<name>\w+)\(", re.M)


@dataclass(frozen=True, slots=True)
class Entry:
    """One function to judge. `checks` is empty where it must be accepted."""

    name: str
    task: str
    rows: tuple[int, ...]
    checks: frozenset[str]
    title: str
    timed: bool
    kind: str

    def __str__(self) -> str:
        return f"{self.task}-{self.name}"


def entries(path_name: str) -> list[Entry]:
    """All entries of one source."""
    found = []
    for match in _ENTRY.finditer((DATA / path_name).read_text()):
        rows, checks = match["rows"].strip(), match["checks"].strip()
        timed = checks.startswith("timed: ") or checks == "harmless"
        names = frozenset(c.strip() for c in checks.removeprefix("timed: ").split(","))
        accepted = names & {"-", "contained", "harmless"}
        found.append(Entry(
            match["name"], match["task"], () if rows == "honest" else tuple(map(int, rows.split(","))),
            frozenset() if accepted else names, match["title"], timed,
            "honest" if rows == "honest" else next(iter(accepted), "cheat")))
    return found


def contract_of(task: str) -> tuple[Contract, str]:
    """The contract and groundtruth.py of a task."""
    return _TASKS[task]()


def _softmax() -> tuple[Contract, str]:
    contract, text = softmax_contract()
    odd = spec("float32", 3, 133)
    variants = (*contract.variants, Variant(name="odd width", tensors={"x": odd}, outputs=(odd,)))
    return replace(contract, variants=variants), text


def _module(name: str, forward: str, inputs: str, arguments: tuple[Argument, ...], variants: tuple[Variant, ...], *,
            init: str = "pass", tree: object = 0, **more: object) -> tuple[Contract, str]:
    contract = Contract(name=name, entry="honest", arguments=arguments, output_tree=tree, variants=variants, **more)
    lines = "\n        ".join(forward.splitlines())
    return contract, f"""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {", ".join(a.path for a in arguments if a.role == "input")}):
        {lines}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


def _input(name: str, tensor: TensorSpec, **more: object) -> Argument:
    return Argument(name=name, role="input", tensor=tensor, path=name, **more)


def _variants(*shapes: tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]) -> tuple[Variant, ...]:
    return tuple(Variant(name=name, tensors=tensors, outputs=outputs) for name, tensors, outputs in shapes)


def _product() -> tuple[Contract, str]:
    w, b = spec("float32", 40, 96), spec("float32", 40)

    def at(name: str, rows: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        return name, {"x": spec("float32", rows, 96), "w": w, "b": b}, (spec("float32", rows, 40),)

    arguments = (_input("x", spec("float32", 24, 96)), Argument(name="w", role="parameter", tensor=w, path="a.weight"),
                 Argument(name="b", role="parameter", tensor=b, path="a.bias"))
    return _module("product", "return self.a(x)", "torch.randn(24, 96)", arguments,
                   _variants(at("example", 24), at("batch 1", 1), at("odd", 33)), init="self.a = torch.nn.Linear(96, 40)")


def _stats() -> tuple[Contract, str]:
    def at(name: str, *shape: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        return name, {"x": spec("float32", *shape)}, (spec("float32"), spec("float32", shape[0]))

    return _module("stats", "return x.mean(), x.var(1)", "torch.randn(64, 400)", (_input("x", spec("float32", 64, 400)),),
                   _variants(at("example", 64, 400), at("narrow", 7, 33)), tree={"tuple": [0, 1]})


def _pick() -> tuple[Contract, str]:
    def at(name: str, *shape: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        return name, {"x": spec("float32", *shape)}, (spec("float32", shape[0], 4), spec("int64", shape[0]))

    return _module("pick", "return x.topk(4, 1)[0], x.argmax(1)", "torch.randn(9, 700)",
                   (_input("x", spec("float32", 9, 700)),),
                   _variants(at("example", 9, 700), at("batch 1", 1, 700), at("narrow", 4, 31)), tree={"tuple": [0, 1]})


def _loss() -> tuple[Contract, str]:
    def at(name: str, rows: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        return name, {"x": spec("float32", rows, 2900), "target": spec("int64", rows)}, (spec("float32"),)

    arguments = (_input("x", spec("float32", 24, 2900)), _input("target", spec("int64", 24), low=0, high=2899))
    return _module("loss", "return torch.nn.functional.cross_entropy(x, target)",
                   "torch.randn(24, 2900), torch.randint(0, 2900, (24,))", arguments,
                   _variants(at("example", 24), at("batch 1", 1)))


def _scan() -> tuple[Contract, str]:
    def at(name: str, *shape: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        return name, {"x": spec("float32", *shape)}, (spec("float32", *shape),)

    return _module("scan", "return x.cumsum(1)", "torch.randn(5, 700)", (_input("x", spec("float32", 5, 700)),),
                   _variants(at("example", 5, 700), at("batch 1", 1, 700), at("narrow", 3, 129)))


def _gather() -> tuple[Contract, str]:
    table = spec("float32", 3000, 8)

    def at(name: str, rows: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        return name, {"index": spec("int64", rows), "table": table}, (spec("float32", rows, 8),)

    arguments = (_input("index", spec("int64", 200), low=0, high=2999),
                 Argument(name="table", role="parameter", tensor=table, path="a.weight"))
    return _module("gather", "return self.a(index)", "torch.randint(0, 3000, (200,))", arguments,
                   _variants(at("example", 200), at("few", 9)), init="self.a = torch.nn.Embedding(3000, 8)")


def _gate() -> tuple[Contract, str]:
    w = spec("float32", 44)

    def at(name: str, rows: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        x = TensorSpec(dtype="float32", shape=(rows, 44), stride=(1, rows))
        return name, {"x": x, "w": w}, (spec("float32", rows, 44),)

    first = at("example", 30)
    arguments = (_input("x", first[1]["x"]), Argument(name="w", role="parameter", tensor=w, path="w"))
    return _module("gate", "return (torch.relu(x) * self.w).contiguous()", "torch.randn(44, 30).t()", arguments,
                   _variants(first, at("odd", 7)), init="self.w = torch.nn.Parameter(torch.ones(44))")


def _inplace() -> tuple[Contract, str]:
    x = spec("float32", 8, 50)
    return _module("inplace", "x.add_(y)\nreturn x.sum(1)", "torch.randn(8, 50), torch.randn(8, 50)",
                   (_input("x", x, mutable=True), _input("y", x)),
                   _variants(("example", {"x": x, "y": x}, (spec("float32", 8),))))


def _saxpy() -> tuple[Contract, str]:
    def at(name: str, count: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        x = spec("float32", count)
        return name, {"x": x, "y": x}, (x,)

    x = spec("float32", 1000)
    arguments = (_input("x", x), _input("y", x), Argument(name="a", role="attribute", value=2.5))
    contract = Contract(name="saxpy", entry="saxpy", arguments=arguments, output_tree=0, reference="cuda",
                        variants=_variants(at("example", 1000), at("one", 1), at("odd", 131)))
    return contract, ""


def _dropout() -> tuple[Contract, str]:
    x = spec("float32", 16, 60)
    return _module("dropout", "return torch.nn.functional.dropout(x, 0.3, True)", "torch.randn(16, 60)",
                   (_input("x", x),), _variants(("example", {"x": x}, (x,))), mode="train", random=True)


def _nothing() -> tuple[Contract, str]:
    x = spec("float32", 6, 20)
    return _module("nothing", "return x - x", "torch.randn(6, 20)", (_input("x", x),),
                   _variants(("example", {"x": x}, (x,))))


def _scale() -> tuple[Contract, str]:
    def at(name: str, count: int) -> tuple[str, dict[str, TensorSpec], tuple[TensorSpec, ...]]:
        return name, {"x": spec("float32", count)}, (spec("float32", count),)

    return _module("scale", "return 2.0 * x + 1.0", f"torch.randn({1 << 22})", (_input("x", spec("float32", 1 << 22)),),
                   _variants(at("example", 1 << 22), at("odd", 100_003)))


def _flip() -> tuple[Contract, str]:
    x = spec("uint8", (1 << 31) + 1000)
    return _module("flip", "return x ^ 1", f"torch.randint(0, 256, ({(1 << 31) + 1000},), dtype=torch.uint8)",
                   (_input("x", x, low=0, high=255),), _variants(("example", {"x": x}, (x,))))


_TASKS = {
    "softmax": _softmax, "norm": norm_contract, "product": _product, "stats": _stats, "pick": _pick, "loss": _loss,
    "scan": _scan, "gather": _gather, "gate": _gate, "inplace": _inplace, "saxpy": _saxpy, "dropout": _dropout,
    "nothing": _nothing, "scale": _scale, "flip": _flip,
}

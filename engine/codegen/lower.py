"""Graph nodes as primitive values: the registry, and the element-wise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contracts.graph import Arg, Const, Graph, Node, Ref
from engine.codegen.prims import Coordinate, Fill, Load, Map, NotFusibleError, Prim
from engine.codegen.scalar_ops import canonical, scalar_op
from engine.codegen.scalar_types import SUPPORTED, category, promote, round_number

Lowered = Sequence[Prim | None]
Rule = Callable[["Lowering", Node], Lowered]


@dataclass(frozen=True, slots=True)
class Entry:
    """How one operator is lowered.

    Attributes:
        rule: Gives the primitive value of each output.
        role: `view` (repeated in every user, never a kernel of its own), `copy` (repeated in users; a kernel only
            if something outside needs it), `compute`.
    """

    rule: Rule
    role: str


LARGEST_HALF = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
RULES: dict[str, Entry] = {}


def lowers(*bases: str, role: str = "compute") -> Callable[[Rule], Rule]:
    """Register the rule of operators by base name."""

    def register(rule: Rule) -> Rule:
        for base in bases:
            RULES[base] = Entry(rule, role)
        return rule

    return register


def entry_of(node: Node) -> Entry | None:
    """The rule for a node, or None if only a library can do it."""
    load_rules()
    if not node.op.startswith(("aten.", "hiera.")):
        return None
    found = RULES.get(node.base)
    if found is None and scalar_op(node.base) is not None:
        return Entry(lower_pointwise, "compute")
    return found


def load_rules() -> None:
    """Import the modules that register rules."""
    from engine.codegen import (  # noqa: F401
        lower_losses,
        lower_norms,
        lower_reductions,
        lower_scans,
        lower_views,
        lower_windows,
        shifted_sums,
    )


@dataclass
class Lowering:
    """Primitive values of a graph's values, for one region.

    Args:
        graph: The operator graph.
        inside: Names of nodes that are computed here; values of all others are loaded.
    """

    graph: Graph
    inside: frozenset[str]
    _prims: dict[str, Prim] = field(default_factory=dict)
    _producers: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self._producers:
            self._producers = {name: node for node in self.graph.nodes for name in node.outputs if name is not None}

    def prim(self, value: str) -> Prim:
        """The primitive value of a graph value."""
        if value in self._prims:
            return self._prims[value]
        node = self._producers.get(value)
        if node is None or node.name not in self.inside:
            spec = self.graph.values[value]
            if spec.dtype not in SUPPORTED:
                raise NotFusibleError(f"{value} has dtype {spec.dtype}")
            self._prims[value] = Load(name=value, dtype=spec.dtype, shape=spec.shape, value=value)
            return self._prims[value]
        entry = entry_of(node)
        if entry is None:
            raise NotFusibleError(f"{node.op} has no kernel here")
        try:
            lowered = entry.rule(self, node)
        except ZeroDivisionError:
            # Of a single number, PyTorch takes dimensions 0 and -1; rules count from the end modulo the rank.
            raise NotFusibleError(f"{node.op} along a dimension of a single number") from None
        for name, prim in zip(node.outputs, lowered, strict=False):
            if name is not None and prim is not None:
                self._check(name, prim)
                self._prims[name] = prim
        if value not in self._prims:
            raise NotFusibleError(f"{node.op} gives no kernel for its output {value}")
        return self._prims[value]

    def _check(self, name: str, prim: Prim) -> None:
        spec = self.graph.values[name]
        if prim.shape != spec.shape or prim.dtype != spec.dtype:
            raise NotFusibleError(
                f"{name}: lowered to {prim.dtype}{list(prim.shape)}, the graph says {spec.dtype}{list(spec.shape)}"
            )

    # What rules use.

    def operand(self, node: Node, argument: str) -> Prim | None:
        """A tensor or number argument as a value; None if absent."""
        return self.as_prim(node.args.get(argument))

    def as_prim(self, value: Arg) -> Prim | None:
        """A reference or number as a value."""
        if isinstance(value, Ref):
            return self.prim(value.name)
        if isinstance(value, (bool, int, float)):
            dtype = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float64"
            return Fill(name="number", dtype=dtype, shape=(), number=value)
        return None

    def tensor(self, node: Node, argument: str = "self") -> Prim:
        """A tensor argument.

        Raises:
            NotFusibleError: It is absent or a number.
        """
        value = node.args.get(argument)
        if not isinstance(value, Ref):
            raise NotFusibleError(f"{node.op}: argument {argument} is not a tensor")
        return self.prim(value.name)

    def number(self, node: Node, argument: str, default: float = 0) -> float:
        """A number argument."""
        value = node.args.get(argument, default)
        if value is None:
            return default
        if not isinstance(value, (bool, int, float)):
            raise NotFusibleError(f"{node.op}: argument {argument} is not a number")
        return value

    def integers(self, node: Node, argument: str) -> tuple[int, ...]:
        """A list of integers; a single integer counts as a list of one."""
        value = node.args.get(argument)
        if isinstance(value, bool) or value is None:
            return ()
        if isinstance(value, int):
            return (value,)
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return tuple(int(item) for item in value)  # type: ignore[arg-type]
        raise NotFusibleError(f"{node.op}: argument {argument} is not a list of integers")

    def out_dtype(self, node: Node, position: int = 0) -> str:
        """The dtype of an output."""
        return self.graph.values[self.out_name(node, position)].dtype

    def out_shape(self, node: Node, position: int = 0) -> tuple[int, ...]:
        """Shape of an output."""
        return self.graph.values[self.out_name(node, position)].shape

    def out_name(self, node: Node, position: int = 0) -> str:
        """Name of an output.

        Raises:
            NotFusibleError: Nothing uses it.
        """
        name = node.outputs[position]
        if name is None:
            raise NotFusibleError(f"{node.op}: output {position} is unused")
        return name


def cast(prim: Prim, dtype: str, name: str | None = None) -> Prim:
    """`prim` converted to `dtype`. Numbers convert here."""
    if prim.dtype == dtype:
        return prim
    if isinstance(prim, Fill):
        number = prim.number
        if category(dtype) == 0:
            number = bool(number)
        elif category(dtype) == 1:
            number = int(number)
        return Fill(name=prim.name, dtype=dtype, shape=prim.shape, number=number)
    return Map(name=name or prim.name, dtype=dtype, shape=prim.shape, op="cast", args=(prim,), compute=dtype)


def widen(prim: Prim, dtype: str) -> Prim:
    """`prim` for computing in `dtype`: half types need no rounding on the way up."""
    return prim if prim.dtype == dtype else cast(prim, dtype)


def elementwise(name: str, op: str, *args: Prim | float | None, dtype: str, **options: object) -> Map:
    """An element-wise operator computed in `dtype`, giving `dtype`; numbers and shapes broadcast."""
    prims = [
        None if a is None else (a if isinstance(a, Prim) else Fill(name="number", dtype=dtype, shape=(), number=a))
        for a in args
    ]
    shape = broadcast_shapes([p.shape for p in prims if p is not None])
    return Map(name=name, dtype=dtype, shape=shape, op=op, compute=dtype, options=options,
               args=tuple(None if p is None else p if p.dtype == "bool" and op in ("where", "masked_fill")
                          else widen(p, dtype) for p in prims))


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """torch.broadcast_shapes."""
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for position, size in enumerate(reversed(shape), 1):
            if size != 1:
                out[-position] = size
    return tuple(out)


def lower_pointwise(low: Lowering, node: Node) -> Lowered:
    """An operator of `scalar_ops`."""
    base = canonical(node.base)
    row = scalar_op(base)
    if row is None:
        raise NotFusibleError(f"{node.op} is not element-wise")
    out, shape = low.out_dtype(node), low.out_shape(node)
    raw = [low.operand(node, argument) for argument in row.operands]
    if row.kind == "operands":
        tensors = [(p.dtype, len(p.shape)) for p, a in zip(raw, row.operands, strict=True)
                   if p is not None and isinstance(node.args.get(a), Ref)]
        numbers = [node.args[a] for a in row.operands if isinstance(node.args.get(a), (bool, int, float))]
        compute = promote(tensors, numbers)
    else:
        compute = out
    args: list[Prim | None] = []
    for argument, prim in zip(row.operands, raw, strict=True):
        if prim is None:
            args.append(None)
        elif (argument == "condition" and base == "where") or (argument == "mask" and base == "masked_fill"):
            args.append(cast(prim, "bool"))
        elif isinstance(prim, Fill) and row.kind == "operands":
            # PyTorch compares in the tensor's own dtype: 0.1 is rounded to half first.
            args.append(Fill(name="number", dtype=compute, shape=(), number=round_number(prim.number, compute)))
        else:
            args.append(widen(prim, compute))
    if base == "prelu" and args[1] is not None:
        args[1] = _per_channel(args[1], len(shape))
    options = {
        option: node.args[option] for option in row.options
        if node.args.get(option) is not None and not isinstance(node.args[option], (Ref, Const))
    }
    if base == "nan_to_num" and out in LARGEST_HALF:
        options = {"posinf": LARGEST_HALF[out], "neginf": -LARGEST_HALF[out], **options}
    if any(isinstance(node.args.get(option), Ref) for option in row.options):
        raise NotFusibleError(f"{node.op}: an option is a tensor")
    name = low.out_name(node)
    if base == "log_sigmoid":
        return (Map(name=name, dtype=out, shape=shape, op=base, args=tuple(args), compute=compute), None)
    return (Map(name=name, dtype=out, shape=shape, op=base, args=tuple(args), compute=compute, options=options),)


def _per_channel(weight: Prim, rank: int) -> Prim:
    from engine.codegen.lower_views import reshaped

    if weight.numel == 1:
        return reshaped(weight, (), weight.name)
    return reshaped(weight, (weight.numel, *([1] * (rank - 2))), weight.name)


@lowers("to", "_to_copy", "clone", "contiguous", "lift_fresh_copy", "type_as", "float", "double", "half", "bfloat16",
        role="copy")
def _copies(low: Lowering, node: Node) -> Lowered:
    return (_renamed(cast(low.tensor(node), low.out_dtype(node), low.out_name(node)), low.out_name(node)),)


def _renamed(prim: Prim, name: str) -> Prim:
    del name
    return prim


@lowers("dropout", "native_dropout", "feature_dropout", "alpha_dropout", role="copy")
def _dropout(low: Lowering, node: Node) -> Lowered:
    training = node.args.get("train", node.args.get("training", True))
    if training and low.number(node, "p", 0.5):
        raise NotFusibleError("dropout in training draws random numbers")
    return (low.tensor(node, "input"), None)


@lowers("full", "zeros", "ones", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
        "scalar_tensor", "empty", "empty_like", "new_empty", role="copy")
def _filled(low: Lowering, node: Node) -> Lowered:
    if "full" in node.base:
        number = node.args.get("fill_value", 0)
    elif node.base == "scalar_tensor":
        number = node.args.get("s", 0)
    else:
        number = 1 if "ones" in node.base else 0
    if not isinstance(number, (bool, int, float)):
        raise NotFusibleError(f"{node.op}: the fill value is a tensor")
    dtype = low.out_dtype(node)
    plain = Fill(name="number", dtype="float64", shape=low.out_shape(node), number=number)
    return (cast(plain, dtype),)


@lowers("arange", "eye", role="copy")
def _positions(low: Lowering, node: Node) -> Lowered:
    dtype, shape = low.out_dtype(node), low.out_shape(node)
    if node.base == "eye":
        from engine.codegen.prims import Within

        inside = Within(name="diagonal", dtype="bool", shape=shape, function=lambda i: i[0] - i[1], low=0, high=0)
        return (cast(inside, dtype),)
    start, step = node.args.get("start", 0) or 0, node.args.get("step", 1) or 1
    if isinstance(start, int) and isinstance(step, int):
        whole = Coordinate(name="position", dtype="int64", shape=shape,
                           function=lambda i: i[0] * step + start)
        return (cast(whole, dtype),)
    count = Coordinate(name="position", dtype="int64", shape=shape, function=lambda i: i[0])
    scaled = elementwise("position", "mul", cast(count, dtype), float(step), dtype=dtype)  # type: ignore[arg-type]
    return (elementwise(low.out_name(node), "add", scaled, float(start), dtype=dtype),)  # type: ignore[arg-type]

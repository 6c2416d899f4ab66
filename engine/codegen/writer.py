"""Turns primitive values into C++ statements, each in the outermost loop that knows its operands.

A kernel family opens scopes (block, row, item, lane element), names the loop variables each scope introduces, and
asks for elements. The writer emits every element once, as far out as it can, so values that do not change in an
inner loop are computed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from contracts.tensors import TensorSpec
from engine.codegen.index import Index, offset, opaque, reduced_test, to_cpp
from engine.codegen.naming import Namer
from engine.codegen.prims import (
    Choose,
    Coordinate,
    Field,
    Fill,
    Gather,
    Indices,
    Load,
    Map,
    NotFusibleError,
    Prim,
    Scan,
    View,
    Window,
    Within,
    broadcast_index,
)
from engine.codegen.scalar_ops import SCALAR_OPS
from engine.codegen.scalar_types import (
    COMPUTE_TYPE,
    compute_to_storage,
    convert,
    literal,
    storage_to_compute,
)

EXPENSIVE = 20  # Instructions above which a value is kept rather than computed again.
_BYTES = {"double": 8, "int64_t": 8, "float": 4, "int32_t": 4, "int16_t": 2, "int8_t": 1, "uint8_t": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class Scalar:
    """An element as C++ text, and the scope whose loop variables it needs."""

    text: str
    depth: int


@dataclass
class Scope:
    """Statements under the same loop variables."""

    variables: frozenset[str]
    lines: list[str] = field(default_factory=list)
    cache: dict[object, Scalar] = field(default_factory=dict)
    barrier: bool = False  # Nothing computed inside may move out (a branch: its loads may be out of bounds).


@dataclass
class Usage:
    """What a kernel body touched; collected while it is written."""

    loads: dict[str, None] = field(default_factory=dict)
    stores: dict[str, None] = field(default_factory=dict)
    accesses: list[tuple[str, Index, bool]] = field(default_factory=list)  # value, offset, is a store
    indices: list[Index] = field(default_factory=list)  # every other index used in tests and coordinates
    helpers: set[str] = field(default_factory=set)
    ops: dict[str, None] = field(default_factory=dict)
    cost: int = 0
    windows: int = 0  # Taps read around each output.
    keys: dict[object, set[int]] = field(default_factory=dict)  # resident candidates: passes that asked for them


@dataclass
class Lanes:
    """The innermost, unrolled loop: `name` counts neighbouring elements, `width` of them."""

    name: str = "k"
    width: int = 1


class Writer:
    """Writes one kernel's body.

    Args:
        layouts: Layout of every value that may be loaded or stored.
        namer: Gives unique identifiers; parameters are already reserved.
        lanes: The vector loop.
        field_of: Gives the element of a reduction's part at an index.
    """

    def __init__(
        self,
        layouts: Mapping[str, TensorSpec],
        namer: Namer,
        lanes: Lanes,
        field_of: Callable[[Field, Indices], Scalar] | None = None,
    ) -> None:
        self.layouts = layouts
        self.namer = namer
        self.lanes = lanes
        self.field_of = field_of
        self.scopes: list[Scope] = [Scope(frozenset())]
        self.usage = Usage()
        self.current_pass = 0
        self.resident: Mapping[object, object] = {}  # Keys to keep on the chip between passes.
        self.kept: dict[object, str] = {}  # Key to the array that holds it.
        self.kept_declarations: list[str] = []
        self.sharing = 0  # Threads of a block that keep them in shared memory; 0: each in its own registers.
        self.kept_bytes = 0  # Of that shared memory.
        self.staged: dict[tuple[str, Index], str] = {}  # Elements that lie in shared memory.
        self.folded: dict[int, Scalar] = {}  # Values that are there already, by id.
        self.item: str = ""  # Name of the item loop's variable, while one is open.
        self.item_count = 1

    # Scopes.

    def open(self, variables: frozenset[str] = frozenset(), *, barrier: bool = False) -> Scope:
        """Enter a scope that introduces loop variables."""
        scope = Scope(variables, barrier=barrier)
        self.scopes.append(scope)
        return scope

    def close(self) -> list[str]:
        """Leave the innermost scope; gives its statements."""
        return self.scopes.pop().lines

    def line(self, text: str) -> None:
        """Append a statement to the innermost scope."""
        self.scopes[-1].lines.append(text)

    def depth_of(self, variables: frozenset[str]) -> int:
        """The outermost scope in which all `variables` are known and no barrier is crossed."""
        depth = 0
        for position, scope in enumerate(self.scopes):
            if scope.barrier or scope.variables & variables:
                depth = position
        return depth

    def _cached(self, key: object) -> Scalar | None:
        for scope in reversed(self.scopes):
            if key in scope.cache:
                return scope.cache[key]
        return None

    def define(self, key: object, ctype: str, base: str, text: str, depth: int) -> Scalar:
        """Emit `ctype const base = text;` at `depth` and remember it under `key`."""
        barrier = max((i for i, scope in enumerate(self.scopes) if scope.barrier), default=0)
        depth = max(depth, barrier)
        name = self.namer.fresh(base)
        self.scopes[depth].lines.append(f"{ctype} const {name} = {text};")
        scalar = Scalar(name, depth)
        self.scopes[depth].cache[key] = scalar
        return scalar

    # Elements.

    def value(self, prim: Prim, index: Indices) -> Scalar:
        """The element of `prim` at `index`, in its compute type."""
        if id(prim) in self.folded:
            return self.folded[id(prim)]
        key = (id(prim), index)
        found = self._cached(key)
        if found is not None:
            return found
        if key in self.kept and self.item:
            return Scalar(self.kept[key], len(self.scopes) - 1)
        scalar = self._compute(prim, index, key)
        self.scopes[scalar.depth].cache[key] = scalar
        return scalar

    def _compute(self, prim: Prim, index: Indices, key: object) -> Scalar:
        if isinstance(prim, Fill):
            return Scalar(literal(prim.number, COMPUTE_TYPE[prim.dtype]), 0)
        if isinstance(prim, Load):
            return self._load(prim, index)
        if isinstance(prim, Map):
            return self._map(prim, index, key)
        if isinstance(prim, View):
            return self.value(prim.source, prim.forward(index))
        if isinstance(prim, Coordinate):
            return self._coordinate(prim, index, key)
        if isinstance(prim, Within):
            return self._within(prim, index, key)
        if isinstance(prim, Choose):
            from engine.codegen.branches import write_choice

            return write_choice(self, prim, index, key)
        if isinstance(prim, Gather):
            return self._gather(prim, index)
        if isinstance(prim, Field):
            if self.field_of is None:
                raise NotFusibleError(f"{prim.name}: a reduction inside an element-wise kernel")
            return self.field_of(prim, index)
        if isinstance(prim, Window):
            from engine.codegen.windows import write_window

            return write_window(self, prim, index, key)
        if isinstance(prim, Scan):
            if self.field_of is None:
                raise NotFusibleError(f"{prim.name}: a scan inside an element-wise kernel")
            return self.field_of(prim, index)  # type: ignore[arg-type]
        raise NotFusibleError(f"{prim.name} cannot be read element by element")

    def _map(self, prim: Map, index: Indices, key: object) -> Scalar:
        args = [None if a is None else self.value(a, broadcast_index(index, a.shape)) for a in prim.args]
        texts = [None if a is None else a.text for a in args]
        depth = max((a.depth for a in args if a is not None), default=0)
        ctype = COMPUTE_TYPE[prim.dtype]
        if prim.op == "cast":
            source = prim.args[0]
            text = convert(str(texts[0]), source.dtype, prim.dtype)  # type: ignore[union-attr]
            if text == texts[0]:
                return Scalar(text, depth)
            cost = 1
        else:
            row = SCALAR_OPS[prim.op]
            while texts and texts[-1] is None:
                texts.pop()
            text = row.build(COMPUTE_TYPE[prim.compute], *texts, **prim.options)
            self.usage.helpers.update(row.helpers)
            self.usage.ops[prim.op] = None
            cost = row.cost
            if text in texts:
                return Scalar(text, depth)
        self.usage.cost += cost
        if self.can_keep(depth):
            self.usage.keys.setdefault(key, set())
            if cost >= EXPENSIVE:
                self.usage.keys[key].add(self.current_pass)
            if key in self.resident:
                return self._keep(key, ctype, prim.name, text)
        return self.define(key, ctype, prim.name, text, depth)

    # Values kept in registers from one pass over a row to the next.

    def can_keep(self, depth: int) -> bool:
        """True where a value could stay in a register array until the next pass."""
        return bool(self.item) and depth == len(self.scopes) - 1 and not any(s.barrier for s in self.scopes)

    def kept_if_resident(self, key: object, ctype: str, base: str, scalar: Scalar) -> Scalar:
        """A costly value, stored for later passes where the kernel keeps its row in registers."""
        if not self.can_keep(scalar.depth):
            return scalar
        self.usage.keys.setdefault(key, set()).add(self.current_pass)
        return self._keep(key, ctype, base, scalar.text) if key in self.resident else scalar

    # Values kept in shared memory instead, where `sharing` says so.

    def _hold(self, key: object, ctype: str, bytes_: int, base: str, variable: str) -> str:
        """The statement that puts a value where later passes find it; neighbouring lanes hold neighbours."""
        name = self.namer.fresh(f"{base}_held")
        start = f"held + {self.kept_bytes}" if self.kept_bytes else "held"
        self.kept_declarations.append(f"{ctype}* const {name} = reinterpret_cast<{ctype}*>({start});")
        self.kept_bytes += -(-bytes_ * self.item_count * self.sharing // 16) * 16
        self.kept[key] = f"{name}[{self.item} * {self.sharing} + lane]"
        return f"{self.kept[key]} = {variable};"

    def _held_element(self, key: object, ctype: str, base: str, text: str, depth: int) -> Scalar:
        scalar = self.define(key, ctype, base, self.kept.get(key, text), depth)
        if key in self.resident and key not in self.kept:
            self.scopes[depth].lines.append(self._hold(key, ctype, _BYTES[ctype], base, scalar.text))
        return scalar

    def _keep(self, key: object, ctype: str, base: str, text: str) -> Scalar:
        name = self.namer.fresh(base)
        width = f"[{self.lanes.width}]" if self.lanes.width > 1 else ""
        self.kept_declarations.append(f"{ctype} {name}[{self.item_count}]{width};")
        place = f"{name}[{self.item}]" + (f"[{self.lanes.name}]" if self.lanes.width > 1 else "")
        self.line(f"{place} = {text};")
        self.kept[key] = place
        return Scalar(place, len(self.scopes) - 1)

    # Memory.

    def _load(self, prim: Load, index: Indices) -> Scalar:
        position = offset(index, self.layouts[prim.value].stride)
        return self.load_element(prim.value, prim.dtype, position, prim.name)

    def load_element(self, value: str, dtype: str, position: Index, base: str) -> Scalar:
        """The element of a value in memory, `position` elements from its start."""
        self.usage.loads[value] = None
        self.usage.accesses.append((value, position, False))
        key = (value, position)
        found = self._cached(key)
        if found is not None:
            return found
        pointer = self.namer.pointer(value)
        ctype = COMPUTE_TYPE[dtype]
        if key in self.staged:
            return self.define(key, ctype, base, storage_to_compute(self.staged[key], dtype),
                               self.depth_of(position.variables()))
        if self._packs(position):
            element = f"{self._pack(value, dtype, position.without(self.lanes.name), base)}.at[{self.lanes.name}]"
        else:
            element = f"{pointer}[{to_cpp(position)}]"
            depth = self.depth_of(position.variables())
            if self.item and self.can_keep(depth):
                self.usage.keys.setdefault(key, set()).add(self.current_pass)
                if self.sharing:
                    return self._held_element(key, ctype, base, storage_to_compute(element, dtype), depth)
                if key in self.kept:
                    return Scalar(self.kept[key], depth)
                if key in self.resident:
                    return self._keep(key, ctype, base, storage_to_compute(element, dtype))
        text = storage_to_compute(element, dtype)
        depth = self.depth_of(position.variables())
        if text == element and element.endswith("]") and ".at[" in element:
            scalar = Scalar(text, max(depth, self.barrier_depth()))
            self.scopes[scalar.depth].cache[key] = scalar
            return scalar
        return self.define(key, ctype, base, text, depth)

    def barrier_depth(self) -> int:
        """The innermost scope out of which nothing may move."""
        return max((i for i, scope in enumerate(self.scopes) if scope.barrier), default=0)

    def _packs(self, position: Index) -> bool:
        lanes = self.lanes
        if lanes.width == 1 or position.coefficient(lanes.name) != 1:
            return False
        rest = position.without(lanes.name)
        return lanes.name not in rest.variables() and rest.divisible(lanes.width)

    def _pack(self, value: str, dtype: str, start: Index, base: str) -> str:
        """The variable that holds `lanes.width` neighbouring elements."""
        key = ("pack", value, start)
        found = self._cached(key)
        if found is not None:
            return found.text
        from engine.codegen.cpp import CPP_TYPE

        self.usage.helpers.add("pack")
        width = self.lanes.width
        text = f"load_pack<{width}>({self.namer.pointer(value)} + {to_cpp(start)})"
        depth = max(self.depth_of(start.variables()), self.barrier_depth())
        in_item = bool(self.item) and depth == len(self.scopes) - 2 and not self.barrier_depth()
        if in_item:
            self.usage.keys.setdefault(key, set()).add(self.current_pass)
            if self.sharing:
                ctype = f"Pack<{CPP_TYPE[dtype]}, {width}>"
                pack = self.define(key, ctype, base + "_pack", self.kept.get(key, text), depth).text
                if key in self.resident and key not in self.kept:
                    self.scopes[depth].lines.append(
                        self._hold(key, ctype, width * self.layouts[value].item_bytes, base, pack))
                return pack
            if key in self.kept:
                return self.kept[key]
            if key in self.resident:
                name = self.namer.fresh(base + "_pack")
                self.kept_declarations.append(f"Pack<{CPP_TYPE[dtype]}, {width}> {name}[{self.item_count}];")
                place = f"{name}[{self.item}]"
                self.scopes[depth].lines.append(f"{place} = {text};")
                self.kept[key] = place
                self.scopes[depth].cache[key] = Scalar(place, depth)
                return place
        return self.define(key, f"Pack<{CPP_TYPE[dtype]}, {width}>", base + "_pack", text, depth).text

    def store(self, value: str, dtype: str, index: Indices, element: Scalar) -> tuple[str, str] | None:
        """Write an element. In the vector loop, elements gather in a pack.

        Returns:
            Declaration and final store of the pack, for the scopes around the vector loop; None if the element
            was stored directly.
        """
        from engine.codegen.cpp import CPP_TYPE

        position = offset(index, self.layouts[value].stride)
        self.usage.stores[value] = None
        self.usage.accesses.append((value, position, True))
        text = compute_to_storage(element.text, dtype)
        pointer = self.namer.pointer(value)
        if not self._packs(position):
            self.line(f"{pointer}[{to_cpp(position)}] = {text};")
            return None
        self.usage.helpers.add("pack")
        width = self.lanes.width
        name = self.namer.fresh(value + "_pack")
        self.line(f"{name}.at[{self.lanes.name}] = {text};")
        start = to_cpp(position.without(self.lanes.name))
        return f"Pack<{CPP_TYPE[dtype]}, {width}> {name};", f"store_pack<{width}>({pointer} + {start}, {name});"

    # Positions and choices.

    def index_text(self, index: Index) -> str:
        """C++ text of an index, recorded for the choice of loop variables."""
        self.usage.indices.append(index)
        return to_cpp(index)

    def _coordinate(self, prim: Coordinate, index: Indices, key: object) -> Scalar:
        position = prim.function(index)
        ctype = COMPUTE_TYPE[prim.dtype]
        text = self.index_text(position)
        if not position.terms:
            return Scalar(literal(position.constant, ctype), 0)
        return self.define(key, ctype, prim.name, f"{ctype}({text})", self.depth_of(position.variables()))

    def _within(self, prim: Within, index: Indices, key: object) -> Scalar:
        test = self.test_text([(prim.function(index), prim.low, None if prim.high is None else prim.high + 1)])
        if test in ("true", "false"):
            return Scalar(test, 0)
        return self.define(key, "bool", prim.name, test, self.depth_of(prim.function(index).variables()))

    def test_text(self, tests: list[tuple[Index, int | None, int | None]]) -> str:
        """C++ condition that every `low <= index < high`; parts that always hold are left out."""
        parts = []
        for index, low, high in tests:
            at_least, at_most = index.range
            if (low is not None and at_most < low) or (high is not None and at_least >= high):
                return "false"
            if low is not None and at_least < low:
                left, right = reduced_test(index, low)
                parts.append(f"{self.index_text(left)} >= {right}")
            if high is not None and at_most >= high:
                left, right = reduced_test(index, high)
                parts.append(f"{self.index_text(left)} < {right}")
        return " && ".join(parts) or "true"

    def _gather(self, prim: Gather, index: Indices) -> Scalar:
        positions = []
        for source, where, bound in zip(prim.indices, prim.index_of, prim.bounds, strict=True):
            at = where(index)
            scalar = self.value(source, at)
            text = scalar.text
            if prim.wrap:
                key = ("wrap", text, bound)
                found = self._cached(key)
                kind = "int64_t" if COMPUTE_TYPE[source.dtype] == "int64_t" else "int32_t"
                wrapped = found or self.define(key, kind, "position", f"{text} < 0 ? {text} + {bound} : {text}",
                                               scalar.depth)
                text = wrapped.text
            depends = frozenset().union(*(v.variables() for v in at)) if at else frozenset()
            positions.append(opaque(text, 0, max(bound - 1, 1), depends))
        return self.value(prim.source, prim.forward(index, tuple(positions)))

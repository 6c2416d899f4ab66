"""Which nodes share a region: grow groups along producer-consumer edges while one loop nest can compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod

from contracts.graph import Graph, Node, Ref
from engine.codegen.lower import entry_of
from engine.codegen.prims import Map, NotFusibleError, Prim, Reduce, Window, walk
from engine.codegen.program_ir import build_nest
from engine.codegen.region_impl import FusedRegion, check_fusible, lowered, plain_layouts, used_inputs
from engine.codegen.regions import Choices
from engine.codegen.scalar_ops import SCALAR_OPS
from engine.codegen.scalar_types import SUPPORTED
from engine.codegen.streams import steps_of, stream_of
from engine.records import Device

MOST_INPUTS = 64  # Pointers of one kernel.
MOST_NODES = 60
MOST_REPEATED_COST = 24  # Instructions an element that overlapping windows may repeat.


def _short(node: Node) -> str:
    """The operator's name as people say it."""
    return "batch_norm" if "batch_norm" in node.base else node.base.strip("_")


def _refuse_costly_windows(outputs: list[tuple[str, Prim]], steps: int) -> None:
    """Overlapping windows read each source element several times: only cheap work may be repeated that often.

    Up to `steps` windows that follow each other may share a kernel that repeats nothing.

    Raises:
        NotFusibleError: A window repeats more than that.
    """
    prims = walk([prim for _, prim in outputs])
    count = sum(isinstance(prim, Window) for prim in prims)
    if 1 < count <= steps and stream_of(build_nest(outputs), plain_layouts(outputs)) is not None:
        return
    for window in prims:
        if not isinstance(window, Window):
            continue
        repeats = prod(window.kernel) / prod(window.stride)
        if repeats > 1 and _is_read_again(window, prims):
            raise NotFusibleError(f"{window.name} would be folded anew in each pass over its rows")
        below = [prim for prim in walk([window.source]) if prim.numel >= window.source.numel]
        cost = sum(SCALAR_OPS[prim.op].cost for prim in below if isinstance(prim, Map) and prim.op in SCALAR_OPS)
        nested = any(isinstance(prim, Window) for prim in below)
        if repeats > 1 and (cost * (repeats - 1) > MOST_REPEATED_COST or nested):
            raise NotFusibleError(f"{window.name} would repeat costly work {repeats:.1f} times")


def _is_read_again(value: Prim, prims: list[Prim]) -> bool:
    """True when a reduction folds what `value` leads to, and something else needs `value` too."""
    reached = {id(value)}
    folded = other = False
    for prim in prims:
        if not any(id(source) in reached for source in prim.sources()):
            continue
        if isinstance(prim, Reduce):
            folded = True
        else:
            reached.add(id(prim))
            other = other or any(isinstance(below, Reduce) for below in walk([prim]))
    return folded and other


@dataclass
class _Group:
    """Nodes that will share a region."""

    nodes: list[Node]
    kind: str = ""
    dead: bool = False
    order: int = 0
    members: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.members = {node.name for node in self.nodes}


def partition(
    graph: Graph, *, fusible: Callable[[Node], bool] | None, choices: Choices, device: Device
) -> tuple[FusedRegion, ...]:
    """See `regions.plan_regions`."""
    del device
    steps = choices.get("steps", next(iter(steps_of(graph)), 1))
    return _Partition(graph, fusible, fuse=bool(choices.get("fuse", True)), steps=int(steps)).regions()


class _Partition:
    def __init__(self, graph: Graph, fusible: Callable[[Node], bool] | None, *, fuse: bool, steps: int) -> None:
        self.graph = graph
        self.fuse, self.steps = fuse, steps
        self.producer = {name: node for node in graph.nodes for name in node.outputs if name is not None}
        self.position = {node.name: index for index, node in enumerate(graph.nodes)}
        self.role: dict[str, str] = {}
        for node in graph.nodes:
            allowed = fusible is None or fusible(node)
            self.role[node.name] = self._role(node) if allowed else "extern"
        self.users: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in set(node.refs()):
                self.users.setdefault(name, []).append(node)
        self.results = {a.name for a in graph.outputs if isinstance(a, Ref)} | set(graph.mutations.values())
        self.group_of: dict[str, _Group] = {}
        self.groups: list[_Group] = []

    def _role(self, node: Node) -> str:
        entry = entry_of(node)
        names = [name for name in node.outputs if name is not None]
        if entry is None or any(self.graph.values[name].dtype not in SUPPORTED for name in names):
            return "extern"
        return entry.role

    def regions(self) -> tuple[FusedRegion, ...]:
        for node in self.graph.nodes:
            if self.role[node.name] == "compute":
                self._start(node)
        self._make_needed_copies()
        found = []
        for group in self.groups:
            if group.dead:
                continue
            outputs = self._outputs(group)
            if not outputs:
                continue
            nodes = self._with_inlined(group.nodes)
            values = lowered(self.graph, nodes, outputs)
            used = used_inputs(values)
            kept = self._reached(nodes, outputs)
            found.append(FusedRegion(
                name=self._name(group, found), kind=group.kind, nodes=kept, inputs=used, outputs=outputs,
                graph=self.graph,
            ))
        return tuple(found)

    def _name(self, group: _Group, found: list[FusedRegion]) -> str:
        shown = list(dict.fromkeys(_short(node) for node in group.nodes))
        base = "_".join(shown if len(shown) <= 4 else [*shown[:3], shown[-1]])
        taken = {region.name for region in found}
        name, count = f"{base}_kernel", 1
        while name in taken:
            count += 1
            name = f"{base}_kernel_{count}"
        return name

    # Growing.

    def _start(self, node: Node) -> None:
        try:
            kind = self._try([node])
        except NotFusibleError:
            self.role[node.name] = "extern"
            return
        group = _Group([node], kind, order=len(self.groups))
        self.groups.append(group)
        self.group_of[node.name] = group
        if not self.fuse:
            return
        for other in self._producer_groups(node):
            current = self.group_of[node.name]
            if other is current or other.dead or len(other.nodes) + len(current.nodes) > MOST_NODES:
                continue
            self._merge(other, current)

    def _merge(self, first: _Group, second: _Group) -> None:
        nodes = sorted([*first.nodes, *second.nodes], key=lambda n: self.position[n.name])
        if self._makes_cycle(nodes):
            return
        try:
            kind = self._try(nodes)
        except NotFusibleError:
            return
        merged = _Group(nodes, kind, order=second.order)
        first.dead = second.dead = True
        self.groups.append(merged)
        for node in nodes:
            self.group_of[node.name] = merged

    def _try(self, nodes: list[Node]) -> str:
        outputs = self._outputs_of(nodes)
        if not outputs:
            outputs = tuple(n for n in nodes[-1].outputs if n is not None)[:1]
            if not outputs:
                raise NotFusibleError("nothing is used")
        values = lowered(self.graph, self._with_inlined(nodes), outputs)
        inputs = used_inputs(values)
        if len(inputs) > MOST_INPUTS:
            raise NotFusibleError("too many inputs for one kernel")
        _refuse_costly_windows(values, self.steps)
        return check_fusible("trial", values)

    def _producer_groups(self, node: Node) -> list[_Group]:
        found: dict[int, _Group] = {}
        for name in self._inputs_through_views([node]):
            made = self.producer.get(name)
            if made is not None and made.name in self.group_of:
                group = self.group_of[made.name]
                found[id(group)] = group
        return sorted(found.values(), key=lambda g: -max(self.position[n.name] for n in g.nodes))

    def _inputs_through_views(self, nodes: Iterable[Node]) -> list[str]:
        """Values read by `nodes` from outside, seen through views and copies, which are repeated inside."""
        inside = {node.name for node in nodes}
        found: dict[str, None] = {}
        stack = [name for node in nodes for name in node.refs()]
        seen: set[str] = set()
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            made = self.producer.get(name)
            if made is not None and made.name in inside:
                continue
            if made is not None and self.role[made.name] in ("view", "copy"):
                stack.extend(made.refs())
                continue
            found[name] = None
        return list(found)

    def _with_inlined(self, nodes: list[Node]) -> list[Node]:
        """`nodes` and every view and copy they read through."""
        inside = {node.name: node for node in nodes}
        stack = [name for node in nodes for name in node.refs()]
        while stack:
            made = self.producer.get(stack.pop())
            if made is None or made.name in inside or self.role[made.name] not in ("view", "copy"):
                continue
            if made.name in self.group_of and not self._reads_from(made, inside.keys()):
                continue  # It is in memory anyway: load it.
            inside[made.name] = made
            stack.extend(made.refs())
        return sorted(inside.values(), key=lambda n: self.position[n.name])

    def _reads_from(self, node: Node, names: Iterable[str]) -> bool:
        """True when `node` reads, through views and copies, what the nodes called `names` make."""
        made = {self.producer[value].name for value in self._inputs_through_views([node]) if value in self.producer}
        return bool(made & set(names))

    def _makes_cycle(self, nodes: list[Node]) -> bool:
        """True when a path leaves the nodes and comes back. Views alone do not leave: they are repeated inside."""
        inside = {node.name for node in nodes}
        last = max(self.position[name] for name in inside)
        # Each node with whether the path to it has passed one that is computed outside.
        stack = [(user, False) for node in nodes for user in self._users(node) if user.name not in inside]
        seen: set[tuple[str, bool]] = set()
        while stack:
            node, passed = stack.pop()
            group = self.group_of.get(node.name)
            passed = passed or group is not None or self.role[node.name] not in ("view", "copy")
            for member in group.nodes if group is not None else [node]:
                if (member.name, passed) in seen:
                    continue
                seen.add((member.name, passed))
                for user in self._users(member):
                    if user.name in inside:
                        if passed:
                            return True
                    elif self.position[user.name] <= last or user.name in self.group_of:
                        stack.append((user, passed))
        return False

    def _users(self, node: Node) -> list[Node]:
        return [user for name in node.outputs if name is not None for user in self.users.get(name, [])]

    # Results.

    def _outputs(self, group: _Group) -> tuple[str, ...]:
        return self._outputs_of(group.nodes)

    def _outputs_of(self, nodes: list[Node]) -> tuple[str, ...]:
        """Values of `nodes` that something outside needs, also through views."""
        inside = {node.name for node in nodes}
        found = []
        for node in nodes:
            found += [name for name in node.outputs if name is not None and self._needed_outside(name, inside)]
        return tuple(found)

    def _needed_outside(self, name: str, inside: set[str]) -> bool:
        if name in self.results:
            return True
        for user in self.users.get(name, []):
            if user.name in inside:
                continue
            if self.role[user.name] not in ("view", "copy"):
                return True
            if any(o is not None and self._needed_outside(o, inside) for o in user.outputs):
                return True
        return False

    def _reached(self, nodes: list[Node], outputs: tuple[str, ...]) -> tuple[Node, ...]:
        inside = {node.name: node for node in nodes}
        stack, kept = list(outputs), set()
        while stack:
            made = self.producer.get(stack.pop())
            if made is None or made.name not in inside or made.name in kept:
                continue
            kept.add(made.name)
            stack.extend(made.refs())
        return tuple(node for node in nodes if node.name in kept)

    def _make_needed_copies(self) -> None:
        """Copies and factories whose result something extern reads get a kernel of their own."""
        for node in self.graph.nodes:
            if self.role[node.name] != "copy":
                continue
            needed = any(
                name in self.results or any(self._extern_reads(user) for user in self.users.get(name, []))
                for name in node.outputs if name is not None
            )
            if not needed or all(n is None for n in node.outputs):
                continue
            try:
                kind = check_fusible("trial", lowered(self.graph, self._with_inlined([node]),
                                                      tuple(n for n in node.outputs if n is not None)))
            except NotFusibleError:
                continue
            group = _Group([node], kind, order=len(self.groups))
            self.groups.append(group)
            self.group_of[node.name] = group
            for other in self._producer_groups(node) if self.fuse else []:
                # The copy is written by the kernel that makes its source, where one loop can do both.
                current = self.group_of[node.name]
                if other is not current and not other.dead:
                    self._merge(other, current)

    def _extern_reads(self, user: Node) -> bool:
        if self.role[user.name] == "extern":
            return True
        if self.role[user.name] == "view":
            return any(
                o in self.results or any(self._extern_reads(u) for u in self.users.get(o, []))
                for o in user.outputs if o is not None
            )
        return False

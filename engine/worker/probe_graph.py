"""From an exported program to the JSON of contracts.graph and contracts.contract."""

import operator
import re

import torch
from _hiera_worker import probe_load
from _hiera_worker.wire import Refusal

MAX_LITERAL_NUMEL = 256
SAME_AS_INPUT = {"aten.alias.default", "aten.detach.default", "aten.lift_fresh.default"}
# Spellings of one operator with one schema.
CANONICAL = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "not_equal": "ne", "absolute": "abs", "negative": "neg", "clip": "clamp", "concat": "cat",
    "concatenate": "cat",
}
RESERVED_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const constexpr
continue decltype default delete do double else enum explicit export extern false float for friend goto if inline int
long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register requires
return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using
virtual void volatile wchar_t while xor xor_eq torch at c10 std main self
"""
RESERVED = frozenset(RESERVED_WORDS.split())


class Names:
    """Unique C++ identifiers."""

    def __init__(self):
        self.used = set()

    def claim(self, wanted):
        """`wanted` as an identifier that nobody has yet."""
        name = re.sub(r"\W+", "_", wanted).strip("_") or "value"
        if name[0].isdigit() or name in RESERVED:
            name = name + "_" if name in RESERVED else "t_" + name
        free, number = name, 1
        while free in self.used:
            free = f"{name}_{number}"
            number += 1
        self.used.add(free)
        return free


def spec(value, what="a value", place=None):
    """A TensorSpec as JSON."""
    if value.layout is not torch.strided or value.is_quantized:
        raise Refusal(f"{what} is a {value.layout} tensor", "use dense tensors", *_at(place))
    sizes = [*value.shape, *value.stride()]
    if not all(type(n) is int for n in sizes):
        raise Refusal(
            f"the shape of {what} depends on tensor values",
            "replace masking by index or nonzero with torch.where, so that shapes follow from the input shapes",
            *_at(place),
        )
    return {"dtype": str(value.dtype)[6:], "shape": list(value.shape), "stride": list(value.stride())}


class Traced:
    """One traced call: the graph's nodes with what each placeholder and output is.

    Attributes:
        nodes: FX nodes in order.
        holders: List of (node, kind, path): kind is `input` (path: leaf number), `tensor` (path on the module), or
            `literal` (path: the constant tensor), or `constant` (a non-tensor leaf).
        outputs: Flat outputs: FX nodes or constants.
        mutations: List of (placeholder node, FX node).
        tree: The output structure with flat positions as leaves.
    """

    def __init__(self, nodes, holders, outputs, mutations, tree):
        self.nodes, self.holders, self.outputs, self.mutations, self.tree = nodes, holders, outputs, mutations, tree


class Conversion:
    """Turns one `Traced` into JSON."""

    def __init__(self, traced, leaves, place, names=None):
        self.traced, self.leaves, self.place = traced, leaves, place
        self.names = names or Names()
        self.alias = {}  # FX node -> FX node or (FX node, index) that holds the same value.
        self.name_of = {}  # FX node -> value name.
        self.values = {}
        self.nodes = []
        self.random = False
        self.unused = []  # Parameters and buffers that the call does not need.

    def run(self):
        live = self._live()
        arguments = self._arguments(live)
        for node in self.traced.nodes:
            if node.op == "call_function" and node in live and node.target is not operator.getitem:
                self._node(node, live)
        flat, outputs, positions = [], [], {}
        for position, output in enumerate(self.traced.outputs):
            if isinstance(output, torch.fx.Node):
                positions[position] = len(flat)
                name = self._name(output)
                flat.append({"ref": name})
                outputs.append(self.values[name])
        if not flat and not self.traced.mutations:
            raise Refusal("forward returns no tensor", "return at least one tensor", self.place.path, self.place.line)
        mutations = {}
        for holder, node in self.traced.mutations:
            name = self._name(node)
            if name != self.name_of.get(holder):
                mutations[self.name_of[holder]] = name
        for argument in arguments:
            argument["mutable"] = argument["name"] in mutations
        tensors = [a for a in arguments if a["tensor"] is not None]
        graph = {"inputs": [a["name"] for a in tensors], "nodes": self.nodes, "outputs": flat, "mutations": mutations,
                 "values": self.values}
        return {"arguments": arguments, "outputs": outputs, "graph": graph, "random": self.random,
                "unused": self.unused, "tree": self._tree(self.traced.tree, positions)}

    def _live(self):
        """Nodes that an output or a mutation needs, and every argument that stays."""
        stack = [o for o in self.traced.outputs if isinstance(o, torch.fx.Node)]
        stack += [node for _, node in self.traced.mutations]
        live = set()
        while stack:
            node = stack.pop()
            if node in live:
                continue
            same = self._same(node)
            if same is not None:
                self.alias[node] = same
                stack.append(same)
                live.add(node)
                continue
            live.add(node)
            stack.extend(node.all_input_nodes)
        return live

    def _same(self, node):
        """The node whose value `node` only repeats, or None."""
        if node.op != "call_function":
            return None
        if node.target is operator.getitem:
            source, index = node.args
            if str(source.target) == "aten.native_dropout.default" and index == 0 and not _drops(source):
                return source.args[0]
            return None
        name = str(node.target)
        if name in SAME_AS_INPUT:
            return node.args[0]
        if name == "aten.clone.default" and node not in self.traced.outputs:
            # Values never change in a functional graph, so a copy matters only for its layout or as a result.
            source = node.args[0]
            here, there = node.meta.get("val"), source.meta.get("val")
            if isinstance(there, torch.Tensor) and spec(here) == spec(there):
                return source
        if name in ("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default",
                    "aten.feature_alpha_dropout.default") and not _drops(node):
            return node.args[0]
        return None

    def _arguments(self, live):
        inputs, parameters, buffers, attributes = [], [], [], []
        mutated = {holder for holder, _ in self.traced.mutations}
        for node, kind, path in self.traced.holders:
            if kind == "input":
                leaf, value = self.leaves[path]
                name = self._claim(node, leaf, spec(value, f"input {leaf}", self.place))
                inputs.append(_argument(name, "input", self.values[name], leaf))
            elif kind == "constant":
                leaf, value = self.leaves[path]
                if isinstance(value, (bool, int, float)):
                    attributes.append(
                        {**_argument(self.names.claim(leaf), "attribute", None, leaf), "value": _number(value)})
            elif kind == "tensor" and node not in live and node not in mutated:
                role = "parameter" if isinstance(path, Parameter) else "buffer"
                self.unused.append(_argument(path.replace(".", "_"), role, spec(node.meta["val"], path), str(path)))
            elif kind == "tensor":
                value = node.meta["val"]
                name = self._claim(node, path, spec(value, path, self.place))
                role = "parameter" if isinstance(path, Parameter) else "buffer"
                (parameters if role == "parameter" else buffers).append(
                    _argument(name, role, self.values[name], str(path)))
            elif kind == "literal" and node in live:
                self._literal(node, path)
        return [*inputs, *parameters, *buffers, *attributes]

    def _claim(self, node, wanted, layout):
        name = self.names.claim(wanted)
        self.name_of[node] = name
        self.values[name] = layout
        return name

    def _literal(self, node, tensor):
        """A tensor made of numbers in forward becomes graph operators, since no argument can carry it."""
        if tensor.numel() > MAX_LITERAL_NUMEL:
            raise Refusal(
                f"forward uses a tensor of {tensor.numel()} numbers that is neither argument, parameter nor buffer",
                "keep it on the module with register_buffer", self.place.path, self.place.line)
        flat = tensor.detach().reshape(-1).tolist()
        dtype = {"dtype": str(tensor.dtype)[6:]}
        shape = list(tensor.shape)
        if len(set(flat)) <= 1:
            self._made(node, "aten.full.default", {"size": shape, "fill_value": _number(flat[0]) if flat else 0,
                       "dtype": dtype, "layout": None, "device": None, "pin_memory": None}, tensor)
            return
        pieces = []
        for value in flat:
            name = self.names.claim(node.name)
            self.values[name] = {"dtype": dtype["dtype"], "shape": [1], "stride": [1]}
            args = {"size": [1], "fill_value": _number(value), "dtype": dtype, "layout": None, "device": None,
                    "pin_memory": None}
            self.nodes.append(_node(name, "aten.full.default", args, [name]))
            pieces.append({"ref": name})
        if len(shape) == 1:
            self._made(node, "aten.cat.default", {"tensors": pieces, "dim": 0}, tensor)
            return
        row = self.names.claim(node.name)
        self.values[row] = {"dtype": dtype["dtype"], "shape": [len(flat)], "stride": [1]}
        self.nodes.append(_node(row, "aten.cat.default", {"tensors": pieces, "dim": 0}, [row]))
        self._made(node, "aten.view.default", {"self": {"ref": row}, "size": shape}, tensor)

    def _made(self, node, op, args, value):
        name = self._claim(node, node.name, spec(value.contiguous()))
        self.nodes.append(_node(name, op, args, [name]))

    def _node(self, node, live):
        if node in self.alias:
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise Refusal(
                f"the graph holds {node.target}, which is not an operator on tensors",
                "take this control flow or autocast block out of forward", *self._source_pair(node))
        value = node.meta.get("val")
        args = self._args(node)
        if isinstance(value, (list, tuple)):
            outputs = [None] * len(value)
            for user in node.users:
                if user.target is operator.getitem and user in live and user not in self.alias:
                    index = user.args[1]
                    if outputs[index] is None:
                        outputs[index] = self._claim(user, user.name, spec(value[index], user.name, self._at(node)))
                    else:
                        self.name_of[user] = outputs[index]
            name = self.names.claim(node.name)
        elif isinstance(value, torch.Tensor):
            name = self._claim(node, node.name, spec(value, node.name, self._at(node)))
            outputs = [name]
        else:
            raise Refusal(
                "forward turns a tensor into a number, which a kernel call cannot do",
                "keep it a tensor (no .item(), no int(tensor))", *self._source_pair(node))
        self.random |= _is_random(node)
        self.nodes.append(_node(name, canonical(str(node.target)), args, outputs, _module(node), self._source(node)))

    def _args(self, node):
        schema = node.target._schema
        found = {}
        for position, argument in enumerate(schema.arguments):
            if position < len(node.args):
                value = node.args[position]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            elif argument.has_default_value():
                value = argument.default_value
                if "MemoryFormat" in str(getattr(argument, "real_type", argument.type)) and isinstance(value, int):
                    value = (torch.contiguous_format, torch.preserve_format, torch.channels_last)[value]
            else:
                value = None
            found[argument.name] = self._value(value, node)
        return found

    def _value(self, value, node):
        if isinstance(value, torch.fx.Node):
            return {"ref": self._name(value)}
        if isinstance(value, (list, tuple)):
            return [self._value(item, node) for item in value]
        if value is None or isinstance(value, (bool, int, float, str)):
            return _number(value)
        if isinstance(value, torch.dtype):
            return {"dtype": str(value)[6:]}
        if isinstance(value, torch.device):
            return {"device": value.type}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value)[6:]}
        if isinstance(value, torch.layout):
            return {"layout": str(value)[6:]}
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise Refusal("a size depends on tensor values", "let sizes follow from the input shapes",
                          *self._source_pair(node))
        raise Refusal(f"an operator has an argument of type {type(value).__name__}", "use tensors and plain numbers",
                      *self._source_pair(node))

    def _name(self, node):
        seen = node
        while seen in self.alias:
            seen = self.alias[seen]
        return self.name_of[seen]

    def _tree(self, tree, positions):
        if isinstance(tree, Flat):
            if tree.position in positions:
                return positions[tree.position]
            value = self.traced.outputs[tree.position]
            if value is None or isinstance(value, (bool, int, float, str)):
                return {"value": _number(value)}
            raise Refusal(f"forward returns a {type(value).__name__}", "return tensors and plain numbers",
                          self.place.path, self.place.line)
        if isinstance(tree, dict):
            return {"dict": {str(k): self._tree(v, positions) for k, v in tree.items()}}
        if isinstance(tree, list):
            return {"list": [self._tree(v, positions) for v in tree]}
        if isinstance(tree, tuple):
            return {"tuple": [self._tree(v, positions) for v in tree]}
        raise Refusal(f"forward returns a {type(tree).__name__}", "return tensors, tuples, lists or dicts",
                      self.place.path, self.place.line)

    def _source_pair(self, node):
        own, project = None, None
        for file, line in re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or ""):
            if file == self.place.path:
                own = (file, int(line))
            elif probe_load.is_local(file, self.place.root):
                project = (file, int(line))
        return own or project or (self.place.path, self.place.line)

    def _source(self, node):
        file, line = self._source_pair(node)
        return f"{file[len(self.place.root):].lstrip('/')}:{line}" if line else ""

    def _at(self, node):
        return probe_load.Place(*self._source_pair(node)[:1], self.place.root, self._source_pair(node)[1])


class Flat:
    """A leaf of the output tree."""

    def __init__(self, position):
        self.position = position


class Parameter(str):
    """The path of a parameter, to tell it from a buffer's."""

    __slots__ = ()


def canonical(op):
    """The usual spelling of an operator with several: `aten.multiply.Tensor` is `aten.mul.Tensor`."""
    namespace, base, overload = op.split(".")
    return f"{namespace}.{CANONICAL.get(base, base)}.{overload}" if namespace == "aten" else op


def _drops(node):
    """Whether a dropout node changes anything."""
    values = _given(node)
    return values["p"] > 0 and values["train"] is not False


def _is_random(node):
    values = _given(node)
    seeded = torch.Tag.nondeterministic_seeded in node.target.tags or any(k in values for k in ("dropout", "dropout_p"))
    probability = next((values[k] for k in ("dropout_p", "dropout", "p") if k in values), None)
    training = next((values[k] for k in ("train", "training") if k in values), True)
    return seeded and training is not False and not (isinstance(probability, (int, float)) and probability == 0)


def _given(node):
    """A node's arguments by schema name, defaults filled in."""
    arguments = node.target._schema.arguments
    values = {a.name: a.default_value for a in arguments if a.has_default_value()}
    values.update(zip((a.name for a in arguments), node.args))
    values.update(node.kwargs)
    return values


def _module(node):
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return re.sub(r"@\d+", "", path).replace("callee.", "").replace("L['self'].", "")


def _number(value):
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": str(value)}
    return value


def _argument(name, role, tensor, path):
    return {"name": name, "role": role, "tensor": tensor, "value": None, "path": path, "mutable": False, "low": None,
            "high": None}


def _node(name, op, args, outputs, module="", source=""):
    return {"name": name, "op": op, "args": args, "outputs": outputs, "module": module, "source": source}


def _at(place):
    return (place.path, place.line) if place is not None else (None, None)

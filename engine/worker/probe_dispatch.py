"""Tracing below autograd, for what `torch.export` does not take: every dispatched operator is recorded."""

import operator

import torch
from _hiera_worker.probe_fake import fake
from _hiera_worker.probe_graph import Flat, Parameter, Traced
from _hiera_worker.wire import Refusal
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


class WithAssigned(torch.nn.Module):
    """A module whose buffers, where forward assigns them, are written in place: a functional call would lose that."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        held = dict(self.inner.named_buffers())
        out = self.inner(*args, **kwargs)
        for path, now in self.inner.named_buffers():
            if path in held and now is not held[path]:
                held[path].copy_(now)
        return out


def trace(module, example, mode, place):
    """Trace one call with `make_fx` over a functionalised call."""
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    state = {**parameters, **buffers}
    flat, spec = pytree.tree_flatten((example.args, example.kwargs))
    tensors = [v for v in flat if isinstance(v, torch.Tensor)]
    tree = []

    def call(*values):
        given = iter(values[len(state):])
        filled = [next(given) if isinstance(v, torch.Tensor) else v for v in flat]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        out = torch.func.functional_call(
            WithAssigned(module), {f"inner.{path}": value for path, value in zip(state, values)}, args, kwargs)
        leaves, out_spec = pytree.tree_flatten(out)
        tree[:] = [pytree.tree_unflatten([Flat(i) for i in range(len(leaves))], out_spec), leaves]
        return [v for v in leaves if isinstance(v, torch.Tensor)]

    with fake(mode):
        copies = [mode.from_tensor(v) if not isinstance(v, torch._subclasses.FakeTensor) else v for v in state.values()]
        graph = make_fx(torch.func.functionalize(call, remove="mutations_and_views"))(*copies, *tensors).graph
    mutations = _functional_statistics(graph)
    nodes = list(graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    holders = []
    for node, path in zip(placeholders, state):
        holders.append((node, "tensor", Parameter(path) if path in parameters else path))
    given = iter(placeholders[len(state):])
    for leaf, value in enumerate(flat):
        if isinstance(value, torch.Tensor):
            holders.append((next(given), "input", leaf))
        else:
            holders.append((None, "constant", leaf))
    for node in nodes:
        if node.op == "get_attr":
            value = getattr(graph.owning_module, node.target)
            if isinstance(value, torch._subclasses.FakeTensor):
                raise Refusal(
                    "forward uses a tensor that is neither argument, parameter nor buffer, such as one in a list",
                    "keep it on the module with register_buffer, and layers in nn.ModuleList", place.path, place.line)
            holders.append((node, "literal", value))
    for node in nodes:
        if node.op == "call_function" and getattr(node.target, "_schema", None) and node.target._schema.is_mutable:
            # functionalize writes mutated arguments back with copy_ at the end. What else writes, it has missed.
            if str(node.target) != "aten.copy_.default" or node.args[0] not in placeholders:
                raise NotImplementedError(f"{node.target} changes a tensor in place")
            mutations[node.args[0]] = node.args[1]
    returned = iter(next(n for n in nodes if n.op == "output").args[0])
    outputs = [next(returned) if isinstance(v, torch.Tensor) else v for v in tree[1]]
    return Traced(nodes, holders, outputs, list(mutations.items()), tree[0])


def _functional_statistics(graph):
    """Give batch norms in training new running statistics as outputs. Returns which placeholder becomes which node.

    The schema of native_batch_norm does not say that it writes them, so functionalize leaves that in.
    """
    mutations, roots = {}, {}
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten._native_batch_norm_legit.default:
            continue
        later = set(list(graph.nodes)[list(graph.nodes).index(node) + 1:])
        old = node.args[3:5]
        with graph.inserting_after(node):
            made = graph.call_function(torch.ops.aten._native_batch_norm_legit_functional.default, node.args)
        made.meta = {**node.meta, "val": (*node.meta["val"], *(n.meta["val"] for n in old))}
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        for index, before in enumerate(old, 3):
            with graph.inserting_after(made):
                after = graph.call_function(operator.getitem, (made, index))
            after.meta = {**made.meta, "val": before.meta["val"]}
            before.replace_all_uses_with(after, delete_user_cb=lambda user, later=later: user in later)
            roots[after] = roots.get(before, before)
            if roots[after].op == "placeholder":
                mutations[roots[after]] = after
    return mutations

"""Tracing below autograd, for what `torch.export` does not take: every dispatched operator is recorded."""

import torch
from _hiera_worker.probe_fake import fake
from _hiera_worker.probe_graph import Flat, Parameter, Traced
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


def trace(module, example, mode):
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
        out = torch.func.functional_call(module, dict(zip(state, values)), args, kwargs)
        leaves, out_spec = pytree.tree_flatten(out)
        tree[:] = [pytree.tree_unflatten([Flat(i) for i in range(len(leaves))], out_spec), leaves]
        return [v for v in leaves if isinstance(v, torch.Tensor)]

    with fake(mode):
        copies = [mode.from_tensor(v) if not isinstance(v, torch._subclasses.FakeTensor) else v for v in state.values()]
        graph = make_fx(torch.func.functionalize(call, remove="mutations_and_views"))(*copies, *tensors).graph
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
            holders.append((node, "literal", getattr(graph.owning_module, node.target)))
    # functionalize writes mutated arguments back with copy_ at the end.
    mutations = [
        (n.args[0], n.args[1]) for n in nodes
        if n.op == "call_function" and str(n.target) == "aten.copy_.default" and n.args[0] in placeholders
    ]
    returned = iter(next(n for n in nodes if n.op == "output").args[0])
    outputs = [next(returned) if isinstance(v, torch.Tensor) else v for v in tree[1]]
    return Traced(nodes, holders, outputs, mutations, tree[0])

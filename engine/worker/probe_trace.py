"""Tracing a call on fake tensors: `torch.export`, and dispatch tracing where export gives up."""

import contextlib
import warnings

import torch
from _hiera_worker import probe_load
from _hiera_worker.probe_fake import CudaAutocastError, fake, whole_recurrent_layers
from _hiera_worker.probe_graph import Flat, Parameter, Traced
from _hiera_worker.wire import Refusal
from torch.utils import _pytree as pytree

DATA_DEPENDENT = ("DataDependentOutputException", "GuardOnDataDependentSymNode", "DynamicOutputShapeException",
                  "PendingUnbackedSymbolNotFound")
NEEDS_DATA = ("data pointer", "numpy", "Numpy", "FakeTensor", "meta tensor", "unallocated")


class Function(torch.nn.Module):
    """A function as a module, for torch.export."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def trace(callee, example, mode, place):
    """Trace one example into a functional graph."""
    module = callee if isinstance(callee, torch.nn.Module) else Function(callee)
    loose = _loose_tensors(module)
    state = {path: (value, value._version) for path, value in module.named_buffers()}
    run(callee, example, mode, place)
    _put_back(loose)
    for path, value in module.named_buffers():
        changed = path not in state or value is not state[path][0] or value._version != state[path][1]
        if changed and isinstance(value, torch._subclasses.FakeTensor):
            # Fake tensors remember small values: what a call changes is no constant, and no branch may rest on it.
            value.constant = None
    with warnings.catch_warnings(), whole_recurrent_layers():
        warnings.simplefilter("ignore")
        try:
            return _exported(module, example, mode, place)
        except Refusal:
            raise
        except Exception as first:
            with _as_buffers(loose):
                try:
                    return _traced_otherwise(module, example, mode, place, retry=bool(loose))
                except Refusal:
                    raise
                except Exception:
                    raise _refusal(first, place) from None
        finally:
            _put_back(loose)


def _exported(module, example, mode, place):
    with fake(mode):
        exported = torch.export.export(module, example.args, example.kwargs, strict=False)
        if any(isinstance(n.target, torch._ops.HigherOrderOperator) for n in exported.graph.nodes):
            raise NotImplementedError("higher-order operator")
    with fake(mode, traced=True):
        return _from_export(exported.run_decompositions({}), module, example, place)


def _traced_otherwise(module, example, mode, place, *, retry):
    from _hiera_worker import probe_dispatch

    if retry:
        try:
            return _exported(module, example, mode, place)
        except Refusal:
            raise
        except Exception:
            pass  # What is left takes more, and its own error would say less than the first.
    return probe_dispatch.trace(module, example, mode, place)


def _loose_tensors(module):
    """(owner, name, tensor) of tensors that are plain attributes: neither parameters nor buffers."""
    return [(owner, name, value) for owner in module.modules() for name, value in vars(owner).items()
            if isinstance(value, torch.Tensor)]


def _put_back(loose):
    for owner, name, value in loose:
        setattr(owner, name, value)


@contextlib.contextmanager
def _as_buffers(loose):
    """Plain attributes as buffers: `torch.export` forbids to assign the former, as in `self.hidden = ...`."""
    try:
        for owner, name, value in loose:
            vars(owner).pop(name, None)
            owner.register_buffer(name, value, persistent=False)
        yield
    finally:
        for owner, name, value in loose:
            owner._buffers.pop(name, None)
            owner._non_persistent_buffers_set.discard(name)
            setattr(owner, name, value)


def run(callee, example, mode, place):
    """Run the call on fake tensors, so that the user's own errors come before any of tracing's."""
    try:
        with warnings.catch_warnings(), whole_recurrent_layers(), fake(mode):
            warnings.simplefilter("ignore")
            return callee(*example.args, **example.kwargs)
    except (Exception, SystemExit) as error:
        raise _refusal(error, place) from None


def _refusal(error, place):
    file, line = place.of(error)
    name = type(error).__name__
    chain = " ".join(type(e).__name__ for e in _causes(error))
    if isinstance(error, CudaAutocastError):
        return Refusal(
            "forward opens a torch.autocast region for cuda, whose casts cannot be traced without a GPU",
            "give the module and its inputs the dtype itself (.half(), .bfloat16()), or open the region outside of "
            "forward", file, line)
    if any(key in chain for key in DATA_DEPENDENT):
        return Refusal(
            "what forward computes depends on tensor values (a branch, a loop or a shape)",
            "use torch.where instead of `if`, keep .item() and boolean masks out of forward, or optimise the part "
            "without it as a module of its own", file, line)
    if name == "UnsupportedOperatorException" or "no fake impl" in str(error) or "register_fake" in str(error):
        return Refusal(
            f"forward calls an operator that torch cannot infer shapes for: {probe_load.said(error)}",
            "register a fake kernel for it (torch.library.register_fake)", file, line)
    if isinstance(error, (RuntimeError, TypeError, NotImplementedError)) and any(k in str(error) for k in NEEDS_DATA):
        return Refusal(
            f"forward leaves torch: {probe_load.said(error)}",
            "compute with torch operators only (no numpy, no raw pointers) in the part to optimise", file, line)
    return Refusal(f"forward raises {probe_load.said(error)}", "make forward work with the inputs of get_inputs()",
                   file, line)


def _causes(error):
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def _from_export(exported, module, example, place):
    signature = exported.graph_signature
    nodes = list(exported.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    by_name = {n.name: n for n in placeholders}
    holders, by_path, leaf = [], {}, 0
    for node, given in zip(placeholders, signature.input_specs):
        kind = given.kind.name
        if kind == "USER_INPUT":
            value = example.leaves[leaf][1]
            holders.append((node, "input" if isinstance(value, torch.Tensor) else "constant", leaf))
            leaf += 1
        elif kind in ("PARAMETER", "BUFFER"):
            path = Parameter(given.target) if kind == "PARAMETER" else given.target
            holders.append((node, "tensor", path))
            by_path[given.target] = node
        elif kind == "CONSTANT_TENSOR":
            if isinstance(_at_path(module, given.target), torch.Tensor):
                holders.append((node, "tensor", given.target))
                by_path[given.target] = node
            elif isinstance(exported.constants[given.target], torch._subclasses.FakeTensor):
                raise NotImplementedError("a tensor of the call taken for a constant, as with .data")
            else:
                holders.append((node, "literal", exported.constants[given.target]))
        else:
            raise Refusal("forward uses an object that is neither tensor nor number",
                          "keep custom objects out of forward", place.path, place.line)
    outputs, mutations = [], []
    returned = next(n for n in nodes if n.op == "output").args[0]
    for value, given in zip(returned, signature.output_specs):
        kind = given.kind.name
        if kind == "USER_OUTPUT":
            outputs.append(value)
        elif kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
            mutations.append((by_path[given.target], value))
        elif kind == "USER_INPUT_MUTATION":
            mutations.append((by_name[given.target], value))
    spec = exported.call_spec.out_spec
    tree = pytree.tree_unflatten([Flat(i) for i in range(spec.num_leaves)], spec)
    return Traced(nodes, holders, outputs, mutations, tree)


def _at_path(module, path):
    for part in path.split("."):
        module = getattr(module, part, None)
    return module

"""Running user code without data: fake tensors, every device mapped to one, recurrent layers in one step."""

import contextlib

import torch
from _hiera_worker import probe_checks
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
# Operations of the recurrent layers run since it was set to 0: they are one step here, so no counter sees them.
recurrent_flops = [0]


class OneDevice(TorchFunctionMode):
    """Code that asks for a GPU gets the CPU's fake tensors instead, so that no GPU is needed or touched."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if kwargs.get("device") is not None:
            kwargs["device"] = _mapped(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func is torch.Tensor.to:
            args = (args[0], *(_mapped(value) for value in args[1:]))
        return func(*args, **kwargs)


def _mapped(device):
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type not in ("cpu", "meta") else device
    if isinstance(device, str) and device.split(":")[0] in ("cuda", "mps", "xpu", "hpu"):
        return "cpu"
    # In `.to` a bare number is a GPU's index.
    if isinstance(device, int) and not isinstance(device, bool):
        return "cpu"
    return device


class CudaAutocastError(RuntimeError):
    """User code opened an autocast region for a GPU, whose casts the CPU's rules would get wrong."""


@contextlib.contextmanager
def _no_cuda_autocast():
    original = torch.autocast.__init__

    def checked(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if device_type == "cuda" and enabled:
            raise CudaAutocastError("torch.autocast for cuda")
        original(self, device_type, dtype, enabled, cache_enabled)

    torch.autocast.__init__ = checked
    try:
        yield
    finally:
        torch.autocast.__init__ = original


@contextlib.contextmanager
def fake(mode, *, traced=False):
    """User code under `mode` (None for real tensors), without gradients.

    Args:
        mode: The fake tensors' mode.
        traced: What runs is a graph. Its devices are settled, and to look at each of its calls takes long.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if not traced:
            stack.enter_context(OneDevice())
            stack.enter_context(_no_cuda_autocast())
        if mode is not None:
            stack.enter_context(mode)
            stack.enter_context(probe_checks.taken_to_pass())
        yield


def _recurrent(cells):
    def shapes(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):  # noqa: A002
        state = hx[0] if cells == 2 else hx
        steps = input.numel() // max(input.shape[-1], 1)
        recurrent_flops[0] += 2 * steps * sum(p.numel() for p in params if p.dim() == 2)
        width = state.shape[-1] * (2 if bidirectional else 1)
        out = input.new_empty((*input.shape[:-1], width))
        states = hx if cells == 2 else (hx,)
        return (out, *(torch.empty_like(s, memory_format=torch.contiguous_format) for s in states))

    return shapes


@contextlib.contextmanager
def whole_recurrent_layers():
    """Let gru, lstm and rnn be traced in one step.

    Torch infers their shapes by tracing every time step, several times: tens of seconds for 512 steps.
    The patched tables are private, so whatever is missing in another version is left out: it is only slower.
    """
    undo = []
    try:
        from torch import _decomp
        from torch._subclasses import fake_impls

        tables = list(_decomp.global_decomposition_table.values())
        rules = fake_impls.op_implementations_dict
        keys = [torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd,
                torch._C.DispatchKey.Meta]
        for op, cells in ((aten.gru.input, 1), (aten.lstm.input, 2), (aten.rnn_tanh.input, 1),
                          (aten.rnn_relu.input, 1)):
            rule = _recurrent(cells)
            undo.append((op, dict(op.py_kernels), [(t, t[op]) for t in tables if op in t], rules))
            for key in keys:
                op.py_kernels[key] = rule
            op._dispatch_cache.clear()
            for table in tables:
                if op in table:
                    table[op] = rule
            rules[op] = _fake_rule(rule)
    except (AttributeError, ImportError):
        pass
    try:
        from torch._dispatch.python import enable_python_dispatcher

        # Without it an eager call decomposes in C++, where the rules above are not seen.
        with enable_python_dispatcher():
            yield
    finally:
        for op, kernels, replaced, rules in undo:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
            for table, old in replaced:
                table[op] = old
            rules.pop(op, None)


def _fake_rule(rule):
    def run(fake_mode, func, *args, **kwargs):
        with fake_mode:
            return rule(*args, **kwargs)

    return run

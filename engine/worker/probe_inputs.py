"""Example inputs: where they come from, and an instance of the user's class without its memory."""

import inspect

import torch
from _hiera_worker import probe_load
from _hiera_worker.probe_fake import fake
from _hiera_worker.wire import Refusal

SHOW = (
    "add beside it: `def get_inputs(): return [torch.randn(8, 64)]` with one value for each argument of forward, "
    "and `def get_init_inputs(): return [...]` with the constructor's arguments; or name a script that has them"
)


# What user code can raise and we report; SystemExit because a script may call sys.exit anywhere.
USER_ERRORS = (Exception, SystemExit)


class Example:
    """One call: the callable, its bound arguments, and the leaves with their names.

    Attributes:
        args, kwargs: What the callable is called with.
        leaves: List of (path, value); the path is a Python expression over forward's parameter names.
    """

    def __init__(self, name, args, kwargs, leaves):
        self.name, self.args, self.kwargs, self.leaves = name, args, kwargs, leaves
        self.plain = True  # The function gave a list with one value for each argument.


def sources(module, target, script):
    """The functions that give inputs and constructor arguments: (inputs, variants, init), each may be None."""
    places = [script] if script is not None else [target if inspect.isclass(target) else module, module]
    found = []
    for key in ("get_inputs", "get_inputs_variants", "get_init_inputs"):
        found.append(next((getattr(p, key) for p in places if callable(getattr(p, key, None))), None))
    if found[2] is None and script is not None:
        found[2] = getattr(module, "get_init_inputs", None)
    return tuple(found)


def build(target, init, mode, place):
    """The callable to trace: an instance of the class, or the function itself. Also whether it holds real tensors."""
    if not (inspect.isclass(target) and issubclass(target, torch.nn.Module)):
        return target, False
    args, kwargs = [], {}
    if init is not None:
        args, kwargs = _init_arguments(_call(init, mode, place, "get_init_inputs()"))
    try:
        by_name = inspect.signature(target).bind(*args, **kwargs).kwargs
        if by_name and init is not None and not is_plain_init(init):
            raise TypeError(f"{', '.join(by_name)} can only be given by name")
    except TypeError as error:
        missing = "there is no get_init_inputs()" if init is None else "get_init_inputs() does not fit the constructor"
        raise Refusal(
            f"{missing}: {error}", "let get_init_inputs() return the constructor's arguments as a list",
            place.path, probe_load.line_of(init if init is not None else target),
        ) from None
    except ValueError:
        pass  # No signature to check, as with classes written in C.
    torch.manual_seed(0)
    try:
        with fake(mode):
            return target(*args, **kwargs), False
    except USER_ERRORS:
        # Constructors may need values (`.item()`, numpy); those run on real memory.
        torch.manual_seed(0)
        try:
            with fake(None):
                return target(*args, **kwargs), True
        except USER_ERRORS as error:
            file, line = place.of(error)
            raise Refusal(
                f"building {target.__name__} raises {probe_load.said(error)}",
                "correct the constructor or its arguments", file, line,
            ) from None


def examples(callee, get_inputs, get_variants, mode, place):
    """All examples, the first one to be timed. Each has leaves in call order."""
    forward = callee.forward if isinstance(callee, torch.nn.Module) else callee
    if get_inputs is None and get_variants is None:
        raise Refusal("there are no example inputs", SHOW, place.path, place.line)
    given, title = [], "get_inputs()"
    if get_inputs is not None:
        value = _call(get_inputs, mode, place, title)
        parameters = _parameter_names(forward)
        if isinstance(value, (list, tuple)) and value and all(
            isinstance(v, dict) and v and set(v) <= parameters for v in value
        ):
            given.extend(value)
        else:
            given.append(value)
    if get_variants is not None:
        given.extend(_call(get_variants, mode, place, "get_inputs_variants()"))
    source = get_inputs if get_inputs is not None else get_variants
    named = [("example" if i == 0 else f"variant {i}", value) for i, value in enumerate(given)]
    found = [_bound(name, value, forward, source, place) for name, value in named]
    found[0].plain = get_inputs is not None and value is given[0] and isinstance(value, (list, tuple))
    return found


def _bound(name, value, forward, source, place):
    args, kwargs = value, {}
    if isinstance(value, dict):
        args, kwargs = [], value
    elif not isinstance(value, (list, tuple)):
        args = [value]
    try:
        signature = inspect.signature(forward)
    except ValueError:
        signature = None
    if signature is None:
        named = [(f"x{i}", v) for i, v in enumerate(args)] + list(kwargs.items())
        bound_args, bound_kwargs = tuple(args), dict(kwargs)
    else:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Refusal(
                f"get_inputs() does not fit {forward.__qualname__}{_short(signature)}: {error}",
                "let get_inputs() return one value for each argument, in order", place.path, probe_load.line_of(source),
            ) from None
        bound_args, bound_kwargs = bound.args, bound.kwargs
        named = []
        for key, item in bound.arguments.items():
            kind = signature.parameters[key].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                named.extend((f"{key}[{i}]", v) for i, v in enumerate(item))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                named.extend((f"{key}[{k!r}]", v) for k, v in item.items())
            else:
                named.append((key, item))
    leaves = []
    for path, item in named:
        _flatten(path, item, leaves)
    return Example(name, bound_args, bound_kwargs, leaves)


def _flatten(path, value, leaves):
    # The order is torch.utils._pytree's, which torch.export uses for its placeholders.
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        for field in value._fields:
            _flatten(f"{path}.{field}", getattr(value, field), leaves)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _flatten(f"{path}[{i}]", item, leaves)
    elif isinstance(value, dict):
        for key, item in value.items():
            _flatten(f"{path}[{key!r}]", item, leaves)
    else:
        leaves.append((path, value))


def integer_ranges(get_inputs, example, budget_bytes=1 << 26):
    """Smallest and largest value of every integer leaf, by path, from real inputs when they are small."""
    tensors = [(p, v) for p, v in example.leaves if isinstance(v, torch.Tensor)]
    wanted = [p for p, v in tensors if not v.dtype.is_floating_point and not v.dtype.is_complex]
    size = sum(v.numel() * v.element_size() for _, v in tensors)
    if not wanted or get_inputs is None or size > budget_bytes:
        return {}
    torch.manual_seed(0)
    try:
        with fake(None):
            value = get_inputs(**_settings(get_inputs))
    except USER_ERRORS:
        return {}
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, dict) for v in value):
        value = value[0]
    leaves = []
    _flatten("", list(value.values()) if isinstance(value, dict) else value, leaves)
    if len(leaves) != len(example.leaves):
        return {}
    ranges = {}
    for (path, _), (_, real) in zip(example.leaves, leaves):
        if path in wanted and isinstance(real, torch.Tensor) and real.numel():
            ranges[path] = (int(real.min()), int(real.max()))
    return ranges


def _call(function, mode, place, title):
    given = _settings(function)
    torch.manual_seed(0)
    try:
        with fake(mode):
            return function(**given)
    except USER_ERRORS:
        torch.manual_seed(0)
        try:
            with fake(None):
                return function(**given)
        except USER_ERRORS as error:
            file, line = place.of(error)
            raise Refusal(f"{title} raises {probe_load.said(error)}", f"correct {title}", file, line) from None


def _settings(function):
    """Values for parameters without a default, which get_inputs() of a contract folder may have."""
    known = {"seed": 0, "device": "cpu", "dtype": torch.float32}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: known[p.name] for p in parameters if p.default is p.empty and p.name in known}


def is_plain_init(init):
    """True when get_init_inputs() returns just the list of positional arguments."""
    with fake(None):
        value = init(**_settings(init))
    return isinstance(value, (list, tuple)) and _init_arguments(value)[1] == {}


def _init_arguments(value):
    if isinstance(value, dict):
        return [], value
    if not isinstance(value, (list, tuple)):
        return [value], {}
    if len(value) == 2 and isinstance(value[0], (list, tuple)) and isinstance(value[1], dict):
        return list(value[0]), value[1]
    return list(value), {}


def _parameter_names(forward):
    try:
        return set(inspect.signature(forward).parameters)
    except ValueError:
        return set()


def _short(signature):
    return "(" + ", ".join(signature.parameters) + ")"

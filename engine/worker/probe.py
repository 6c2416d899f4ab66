"""Role `probe`: what the user's module is, found by importing it once and running it on fake tensors.

Requests: `warm`, `extract` (see there) and `reduce` (see probe_reduce).
"""

import inspect
import logging
import os
import warnings

import torch
from _hiera_worker import probe_checks, probe_inputs, probe_load, probe_shapes, probe_trace
from _hiera_worker.probe_graph import Conversion
from _hiera_worker.wire import Refusal


def handle(kind, request, emit):
    """Serve one request of the wire."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # Sizes that do not work are tried on purpose; each would log a traceback.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    if kind == "warm":
        return warm()
    if kind == "extract":
        return extract(request, emit)
    if kind == "reduce":
        from _hiera_worker import probe_reduce

        return probe_reduce.reduce(request, emit)
    raise ValueError(f"the probe has no request {kind!r}")


def warm():
    """Trace a small module before the user's file is known: torch imports most of its compiler on the first trace."""
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:  # Nothing is drawn under it: the user's file finds torch's random numbers as if this had not run.
        layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        image = torch.empty(1, 3, 8, 8)
    example = probe_inputs.Example("example", (image,), {}, [("x", image)])
    place = probe_load.Place("", "")
    Conversion(probe_trace.trace(layers, example, mode, place), example.leaves, place).run()
    return {}


def extract(request, emit):
    """Import `file`, trace class or function `name`, and describe the call.

    Request fields: file, root (absolute paths), name (dotted, or empty when the file has one candidate),
    script (a file with get_inputs, or None), function (its function, or None), free_dims (seconds to spend), line.
    """
    subject = open_subject(request, emit)
    emit("built")
    return describe(subject, request)


def describe(subject, request):
    """Trace every example of a subject; the reply of `extract`."""
    probe_checks.passed.clear()
    variants = []
    first = None
    for example in subject.examples:
        data = traced_variant(subject, example)
        if first is None:
            first = data
        elif [a["name"] for a in data["arguments"]] != [a["name"] for a in first["arguments"]]:
            raise Refusal(
                f"{example.name} of get_inputs() needs other arguments than the first example",
                "give every variant the same tensors", subject.place.path, subject.place.line)
        variants.append({"name": example.name, "outputs": data["outputs"], "graph": data["graph"],
                         "tensors": {a["name"]: a["tensor"] for a in data["arguments"] if a["tensor"] is not None}})
    for argument in first["arguments"]:
        low, high = subject.ranges.get(argument["path"], (None, None))
        if argument["role"] == "input":
            argument["low"], argument["high"] = low, high
    subject.notes.extend(f"the check of values in {where} is taken to pass: a kernel does not make it"
                         for where in sorted(probe_checks.passed))
    free, notes = probe_shapes.free_dimensions(subject, request.get("free_dims_s", 5.0))
    by_path = {a["path"]: a["name"] for a in first["arguments"] if a["role"] == "input"}
    module = subject.callee if isinstance(subject.callee, torch.nn.Module) else None
    return {
        "kind": "module" if module is not None else "function",
        "qualified": request["name"],
        "arguments": first["arguments"],
        "output_tree": first["tree"],
        "variants": variants,
        "mode": "train" if module is not None and module.training else "eval",
        "random": any(subject.random),
        "flags": flags(),
        "free_dims": [[[by_path[path], dim] for path, dim in group if path in by_path] for group in free],
        "notes": [*subject.notes, *notes],
        "modules": facts(module),
        "origin": origin(subject, request.get("script")),
        "signature": signature(subject.callee),
        "unused": first["unused"],
        "torch": torch.__version__,
    }


class Subject:
    """The imported file with its callable and its examples."""

    def __init__(self, module, target, callee, examples, ranges, init, mode, place):
        self.module, self.target, self.callee = module, target, callee
        self.examples, self.ranges, self.init, self.mode, self.place = examples, ranges, init, mode, place
        self.script = self.get_inputs = None
        self.plain_inputs = self.plain_init = True
        self.notes, self.random = [], []


def open_subject(request, emit):
    """Import, find, build: everything before tracing."""
    path, root = os.path.abspath(request["file"]), os.path.abspath(request["root"])
    place = probe_load.Place(path, root, request.get("line"))
    module = probe_load.load(path, root)
    emit("imported")
    place.entries = probe_load.entries_of(path, root)
    target = probe_load.find(module, request["name"], path)
    place.line = place.line or probe_load.line_of(target)
    script = None
    if request.get("script"):
        script_path = os.path.abspath(request["script"])
        script = module if script_path == path else probe_load.load(script_path, root, "the script with the inputs")
        place.script_entries = probe_load.entries_of(script_path, root)
        if request.get("function"):
            function = getattr(script, request["function"], None)
            if not callable(function):
                raise Refusal(f"there is no function {request['function']!r} in this script",
                              "name a function that returns the inputs", script_path, 1)
            script = One(function, getattr(script, "get_init_inputs", None))
    return subject_of(module, target, script, place)


def subject_of(module, target, script, place):
    """Build the callable and its examples from an imported module."""
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    get_inputs, get_variants, init = probe_inputs.sources(module, target, script)
    if get_inputs is None and get_variants is None:
        raise Refusal("there are no example inputs", probe_inputs.SHOW, place.path, place.line)
    callee, real = probe_inputs.build(target, init, mode, place)
    examples = probe_inputs.examples(callee, get_inputs, get_variants, mode, place)
    ranges = probe_inputs.integer_ranges(get_inputs, examples[0])
    subject = Subject(module, target, callee, examples, ranges, init, mode, place)
    subject.script, subject.get_inputs = script, get_inputs
    subject.plain_init = init is None or not isinstance(callee, torch.nn.Module) or probe_inputs.is_plain_init(init)
    subject.plain_inputs = get_inputs is not None and all(e.plain for e in examples[:1])
    if real:
        subject.notes.append("the constructor needs values, so the module was built in memory")
    subject.notes.extend(_shared(callee))
    return subject


def traced_variant(subject, example):
    """Trace and convert one example."""
    traced = probe_trace.trace(subject.callee, example, subject.mode, subject.place)
    conversion = Conversion(traced, example.leaves, subject.place)
    data = conversion.run()
    subject.random.append(data["random"])
    return data


class One:
    """A script whose one function gives the inputs."""

    def __init__(self, function, init):
        self.get_inputs = function
        if init is not None:
            self.get_init_inputs = init


def origin(subject, script):
    """What groundtruth.py must know to give the same module: see contracts.groundtruth.Origin."""
    files, reasons = probe_load.local_imports(subject.module, subject.place.path, subject.place.root)
    entries = list(dict.fromkeys(subject.place.entries + subject.place.script_entries))
    return {
        "stands_alone": not reasons,
        "why": reasons,
        "local_files": files,
        "module_name": subject.module.__name__ if subject.module.__package__ else "",
        "entries": entries,
        "has_init_inputs": callable(getattr(subject.module, "get_init_inputs", None)),
        "script_has_init_inputs": bool(script) and callable(getattr(subject.script, "get_init_inputs", None)),
        "plain_inputs": subject.plain_inputs,
        "plain_init": subject.plain_init,
        "own_inputs": inspect.isclass(subject.target) and callable(getattr(subject.target, "get_inputs", None)),
    }


def signature(callee):
    """Parameters of forward as Python text, without self; general where a default has no short text."""
    forward = callee.forward if isinstance(callee, torch.nn.Module) else callee
    try:
        parameters = inspect.signature(forward).parameters.values()
    except ValueError:
        return "*args, **kwargs"
    parts, keyword_only = [], False
    for parameter in parameters:
        text = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            text, keyword_only = "*" + text, True
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = "**" + text
        elif parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        if parameter.default is not parameter.empty:
            plain = parameter.default is None or isinstance(parameter.default, (bool, int, float, str))
            text += "=" + (repr(parameter.default) if plain else "None")
        parts.append(text)
    return ", ".join(parts)


def _shared(callee):
    if not isinstance(callee, torch.nn.Module):
        return []
    seen, notes = {}, []
    for path, value in callee.named_parameters(remove_duplicate=False):
        if id(value) in seen:
            notes.append(f"{path} and {seen[id(value)]} are one tensor and one argument")
        else:
            seen[id(value)] = path
    return notes


def flags():
    """torch's backend flags as the user's file left them."""
    found = {}
    for name, read in (
        ("cudnn.allow_tf32", lambda: torch.backends.cudnn.allow_tf32),
        ("cudnn.benchmark", lambda: torch.backends.cudnn.benchmark),
        ("cudnn.deterministic", lambda: torch.backends.cudnn.deterministic),
        ("cuda.matmul.allow_tf32", lambda: torch.backends.cuda.matmul.allow_tf32),
        ("cuda.matmul.allow_fp16_reduced_precision_reduction",
         lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
    ):
        try:
            found[name] = bool(read())
        except Exception:
            continue  # Newer versions refuse to read an old flag after a new one was set.
    return found


def facts(module):
    """Scalar attributes of every submodule (eps, stride, p, ...), for people and models."""
    if module is None:
        return []
    found = []
    for path, part in module.named_modules():
        attributes = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(part).items()
            if not key.startswith("_") and key != "training" and _plain(value)
        }
        if attributes or list(part.parameters(recurse=False)) or list(part.buffers(recurse=False)):
            found.append({"path": path, "type": type(part).__name__, "attributes": attributes})
    return found


def _plain(value):
    if isinstance(value, (list, tuple)):
        return len(value) <= 16 and all(isinstance(v, (bool, int, float, str)) for v in value)
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    return isinstance(value, (bool, int, str)) and not inspect.isclass(value)

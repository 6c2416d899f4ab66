"""The user's reference: loaded from the contract folder, run in fp64, in strict fp32 and as configured."""

import contextlib
import copy
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import warnings

import torch
from _hiera_worker import slabs
from _hiera_worker.wire import Refusal
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

LOW = frozenset({torch.float32, torch.float16, torch.bfloat16})


class Reference:
    """What the contract's folder says is right.

    Args:
        folder: Contract folder with groundtruth.py.
        contract: The contract as JSON data.
        device: Where it runs.
        extension: For contracts whose reference is CUDA text: how to load its build.
    """

    def __init__(self, folder, contract, device, extension=None):
        self.contract, self.device = contract, device
        self.arguments = contract["arguments"]
        self.model = self.function = self.spec = self._wide = None
        self.dtype = _working_dtype(self.arguments)
        self.leaves, self._ready = [], {}
        self._make_inputs = None
        if contract["reference"] == "cuda":
            module = load_extension(extension["path"], extension["module"])
            self.function = getattr(module, extension["entry"])
            return
        path = os.path.join(folder, "groundtruth.py")
        source = load_source(path)
        if not hasattr(source, "get_inputs"):
            raise Refusal("groundtruth.py defines no get_inputs()", "define it beside the reference", file=path)
        self._make_inputs = source.get_inputs
        if contract["reference"] == "module":
            self.model = self._module(source, path)
        else:
            self.function = source.reference
        self.leaves = self.example_inputs(0)

    def _module(self, source, path):
        arguments = source.get_init_inputs() if hasattr(source, "get_init_inputs") else []
        positional, named = arguments, {}
        if isinstance(arguments, dict):
            positional, named = [], arguments
        elif len(arguments) == 2 and isinstance(arguments[0], (list, tuple)) and isinstance(arguments[1], dict):
            positional, named = arguments
        try:
            model = _on(self.device, lambda: source.Model(*positional, **named)).to(self.device)
        except Exception as error:
            raise Refusal(f"Model(...) raised {type(error).__name__}: {error}",
                          "make get_init_inputs() fit Model", file=path) from error
        model.train(self.contract["mode"] == "train")
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return model

    def example_inputs(self, seed):
        """Fresh tensors from get_inputs(), in the order of the contract's inputs, or [] if there are none."""
        if self._make_inputs is None:
            return []
        torch.manual_seed(seed)
        accepted = inspect.signature(self._make_inputs).parameters
        named = {"seed": seed} if "seed" in accepted else {}
        if "device" in accepted:
            named["device"] = self.device
        inputs = _on(self.device, lambda: self._make_inputs(**named))
        if isinstance(inputs, torch.Tensor):
            inputs = [inputs]
        leaves, self.spec = tree_flatten(inputs)
        self._constants = list(leaves)
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        wanted = [a for a in self.arguments if a["role"] == "input" and a.get("tensor")]
        if len(self._places) != len(wanted):
            self._places = self._by_name(inputs, wanted)
        dtypes = [getattr(torch, a["tensor"]["dtype"]) for a in wanted]
        found = [leaves[i].detach().to(self.device, dtype) for i, dtype in zip(self._places, dtypes)]
        for i in self._places:  # Nothing but the structure is kept: these can be gigabytes.
            self._constants[i] = None
        return found

    def _by_name(self, inputs, wanted):
        # Unused inputs are not in the contract: find the used ones by forward's parameter names.
        call = self.function or self.model.forward
        names = list(inspect.signature(call).parameters)
        places = []
        for argument in wanted:
            name = argument["path"].split(".")[0].split("[")[0]
            if name not in names or not isinstance(inputs, (list, tuple)) or names.index(name) >= len(inputs):
                problem = f"get_inputs() gives {len(self._places)} tensors, the contract has {len(wanted)} inputs"
                raise Refusal(problem, "make the contract again from this groundtruth.py")
            before, _ = tree_flatten(list(inputs[:names.index(name)]))
            places.append(len(before))
        return places

    def run(self, tensors, precision):
        """Run once.

        Args:
            tensors: Value of every tensor argument, by name, in the contract's own dtypes. They are
                not written: what the reference mutates are copies.
            precision: `double`, `strict` or `configured`.

        Returns:
            Flat output tensors, then the mutated arguments after the call, in contract order. None of them lies in
            memory that a later draw or run goes over.
        """
        double = precision == "double"
        own = {}
        for argument in self.arguments:
            if argument.get("tensor"):
                value = tensors[argument["name"]]
                wide = value.double() if double and value.dtype in LOW else value
                own[argument["name"]] = wide.clone() if argument.get("mutable") and wide is value else wide
        model = self.model
        if double and model is not None:
            if self._wide is None:
                self._wide = copy.deepcopy(model).double()
            model = self._wide
        self._place(model, own)
        flags = _flags(precision, self.contract.get("flags") or {})
        with flags, torch.no_grad(), _double(self.dtype) if double else contextlib.nullcontext():
            outputs = _apart(self._call(own, model), own, model)
        changed = [a for a in self.arguments if a.get("mutable") and a.get("tensor")]
        outputs += [self.state(model, a["path"]) if a["role"] != "input" and model is not None
                    else own[a["name"]] for a in changed]
        # The module's own tensors are given other memory in the next run, and would then show that run's values.
        return [output.detach() for output in outputs]

    def prepare_timing(self, tensors):
        """Make the module hold these parameters and buffers, for `call_plain`."""
        self._place(self.model, tensors)
        for module in self.model.modules() if self.model is not None else ():
            if hasattr(module, "flatten_parameters"):
                module.flatten_parameters()  # Or cuDNN copies the weights in every call.
        apply_flags(self.contract.get("flags") or {})
        self._ready = {}

    def call_plain(self, tensors):
        """Run once as the user would, for timing, after `prepare_timing`. `tensors` must stay the same object."""
        call = self.function if self.model is None else self.model
        return self.call_with(call, tensors)

    def call_with(self, call, tensors):
        """`call` on these tensors, with as little Python around it as can be."""
        arguments = self._ready.get(id(tensors))
        if arguments is None:
            arguments = self._ready[id(tensors)] = self._arguments(tensors)
        positional, named = arguments
        return call(*positional, **named)

    def _arguments(self, tensors):
        if self.contract["reference"] == "cuda":
            return [tensors[a["name"]] if a.get("tensor") else a["value"] for a in self.arguments], {}
        inputs = self.call_inputs(tensors)
        return ([], inputs) if isinstance(inputs, dict) else (inputs, {})

    def forget_wide(self):
        """Give back the fp64 copy's memory."""
        self._wide = None

    def _place(self, model, tensors):
        # .data, not a new Parameter: shared weights stay shared.
        for argument in self.arguments:
            if model is not None and argument["role"] in ("parameter", "buffer"):
                self.state(model, argument["path"]).data = tensors[argument["name"]]

    @contextlib.contextmanager
    def kept_placed(self):
        """Put back what the module holds now when runs on other tensors are done: timed calls go on with it."""
        held = {a["name"]: self.state(self.model, a["path"]).data for a in self.arguments
                if self.model is not None and a["role"] in ("parameter", "buffer")}
        try:
            yield
        finally:
            self._place(self.model, held)

    @staticmethod
    def state(model, path):
        """The live parameter or buffer of `model` with this state-dict path."""
        for part in path.split("."):
            model = getattr(model, part)
        return model

    def _call(self, own, model):
        positional, named = self._arguments(own)
        return flat_tensors((self.function if model is None else model)(*positional, **named))

    def call_inputs(self, tensors):
        """What forward is called with: these tensors in the structure of get_inputs()."""
        leaves = list(self._constants)
        inputs = [a["name"] for a in self.arguments if a["role"] == "input" and a.get("tensor")]
        for place, name in zip(self._places, inputs):
            leaves[place] = tensors[name]
        return tree_unflatten(leaves, self.spec)


def _on(device, make):
    """Run user code with `device` as the default: gigabytes are drawn where they are used."""
    try:
        with torch.device(device):
            return make()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):
        # Such as a CPU generator handed to torch.rand: then as the user wrote it, and moved afterwards.
        return make()


def _apart(outputs, own, model):
    """Copies of those outputs that are views of arguments, or of what a module keeps beside its state."""
    lasting = [*own.values(), *(value for module in (model.modules() if model is not None else ())
                                for value in vars(module).values() if isinstance(value, torch.Tensor))]
    places = {value.untyped_storage().data_ptr() for value in lasting if value.layout is torch.strided}
    return [_copied(output) if output.layout is torch.strided and output.untyped_storage().data_ptr() in places
            else output for output in outputs]


def _copied(value):
    # With its strides, gaps and repetitions: a candidate may give such a view as well.
    if not value.numel():
        return value.clone()
    reach = slabs.extent_bytes(value.shape, value.stride(), 1)
    return value.as_strided((reach,), (1,)).clone().as_strided(value.shape, value.stride(), 0)


def flat_tensors(outputs):
    """All tensors of a result, in order. Dictionaries go by their own key order."""
    return [leaf for leaf in tree_flatten(outputs)[0] if isinstance(leaf, torch.Tensor)]


def load_source(path):
    """Import the user's groundtruth.py under a name of our own, with its folder importable."""
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("_hiera_groundtruth", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["_hiera_groundtruth"] = module
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        raise Refusal("the contract folder has no groundtruth.py", "write the folder with hiera contract",
                      file=path) from error
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        raise Refusal(f"groundtruth.py raised {type(error).__name__}: {error}", "make it importable",
                      file=path, line=line) from error
    return module


def load_extension(path, module):
    """Import a built extension under a name of its own: pybind11 keeps modules by full name."""
    import hashlib

    name = module if "." in module else f"hiera_{hashlib.sha256(path.encode()).hexdigest()[:12]}.{module}"
    spec = importlib.machinery.ModuleSpec(name, importlib.machinery.ExtensionFileLoader(name, path), origin=path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def rehearse(device):
    """Do what a first run in fp64 and in strict fp32 does beside its task, while there is no task yet.

    Under a dispatch mode torch imports its compiler on the first call, which takes about a second, and a device
    loads its libraries. Nothing is drawn: a task finds torch's random numbers as if this had not run.
    """
    image, weight = torch.ones(1, 4, 8, 8, device=device), torch.ones(4, 4, 3, 3, device=device)
    for precision in ("strict", "double"):
        double = precision == "double"
        if double:
            image, weight = image.double(), weight.double()
        with _flags(precision, {}), torch.no_grad(), _double(torch.float32) if double else contextlib.nullcontext():
            rows = torch.nn.functional.conv2d(image, weight).flatten(2)
            torch.nn.functional.linear(rows, rows[0])


@contextlib.contextmanager
def _flags(precision, configured):
    """Set torch's numeric flags for one run and put them back."""
    strict = precision != "configured"
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    enabled = cudnn.enabled
    keep = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark,
            matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if strict:
                _set((False, False, True, False, False, False))
                # cuDNN's fp64 convolutions are slow; PyTorch's own are matrix products by cuBLAS.
                cudnn.enabled = enabled and precision != "double"
            else:
                apply_flags(configured)
            yield
        finally:
            _set(keep)
            cudnn.enabled = enabled


def _set(values):
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    (matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark,
     matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction) = values


def apply_flags(flags):
    """Set `torch.backends` flags by the contract's names, such as `cudnn.allow_tf32` or `cuda.matmul.allow_tf32`."""
    for name, value in flags.items():
        owner = torch.backends
        *parents, last = name.replace("torch.backends.", "").split(".")
        if parents and parents[0] == "matmul":
            parents.insert(0, "cuda")
        for part in parents:
            owner = getattr(owner, part, None)
        if owner is not None and hasattr(owner, last):
            setattr(owner, last, value)


def _working_dtype(arguments):
    """The dtype random numbers are drawn in: that of the first floating argument."""
    kinds = [getattr(torch, a["tensor"]["dtype"]) for a in arguments if a.get("tensor")]
    return next((kind for kind in kinds if kind in LOW), torch.float32)


@contextlib.contextmanager
def _double(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widen(dtype):
            yield
    finally:
        torch.set_default_dtype(before)


class Widen(TorchDispatchMode):
    """Keeps a reference that asks for fp32 by name in fp64, with the random numbers of the original dtype."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags:
            return _random(func, args, kwargs, self.dtype)
        if kwargs.get("dtype") in LOW:
            kwargs["dtype"] = torch.float64
        args = tuple(torch.float64 if isinstance(a, torch.dtype) and a in LOW else a for a in args)
        return func(*args, **kwargs)


def _random(func, args, kwargs, dtype):
    # The stream of random numbers depends on the dtype, so it is drawn as the candidate would draw it.
    if func.overloadpacket is torch.ops.aten.native_dropout:
        value, probability = args[0], args[1]
        _, mask = func(value.to(dtype), *args[1:], **kwargs)
        scale = 1.0 / (1.0 - probability) if probability < 1 else 0.0
        return (value * mask * scale, mask) if args[2] else (value, mask)
    narrow = [a.to(dtype) if isinstance(a, torch.Tensor) and a.dtype is torch.float64 else a for a in args]
    schema = func._schema
    if kwargs.get("dtype") is torch.float64:
        kwargs["dtype"] = dtype
    elif kwargs.get("dtype") is None and not any(isinstance(a, torch.Tensor) for a in args) and any(
            a.name == "dtype" and a.default_value is None for a in schema.arguments):
        kwargs["dtype"] = torch.float32  # What the default was when the user's code ran.
    result = func(*narrow, **kwargs)
    positional = enumerate(schema.arguments[:len(args)])
    written = [i for i, a in positional if a.alias_info is not None and a.alias_info.is_write]
    for i in written:
        if narrow[i] is not args[i]:
            args[i].copy_(narrow[i])
    if written and schema.returns and schema.returns[0].alias_info is not None:
        return args[written[0]]
    return tree_map(lambda r: r.double() if isinstance(r, torch.Tensor) and r.dtype in LOW else r, result)

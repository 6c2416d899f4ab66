"""Running the probe in this process, and running its graphs with torch, for tests."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from contracts import codec
from contracts.contract import Variant
from contracts.graph import Const, Graph, Ref

WORKER = Path(__file__).resolve().parent.parent / "engine" / "worker"


def worker_module(name: str) -> Any:
    """A module of the worker's package, loaded as the worker loads it."""
    if "_hiera_worker" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "_hiera_worker", WORKER / "__init__.py", submodule_search_locations=[str(WORKER)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["_hiera_worker"] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"_hiera_worker.{name}")


def probe(folder: Path, text: str, name: str = "Model", kind: str = "extract", **fields: Any) -> dict[str, Any]:
    """Write `text` to a file and serve one request on it. Leaves sys.path and sys.modules as they were."""
    file = folder / "user_model.py"
    file.write_text(text, encoding="utf-8")
    return probe_file(file, folder, name, kind, **fields)


def probe_file(file: Path, root: Path, name: str = "Model", kind: str = "extract", **fields: Any) -> dict[str, Any]:
    """Serve one request on a file."""
    path, modules = list(sys.path), set(sys.modules)
    torch.set_num_threads(1)
    try:
        return worker_module("probe").handle(
            kind, {"file": str(file), "root": str(root), "name": name, **fields}, lambda event, **_: None
        )
    finally:
        sys.path[:] = path
        for key in set(sys.modules) - modules:
            found = getattr(sys.modules[key], "__file__", None) or ""
            if found.startswith(str(root)):
                del sys.modules[key]


def load_user(folder: Path) -> Any:
    """The file that `probe` wrote, imported for real."""
    spec = importlib.util.spec_from_file_location("user_model_real", folder / "user_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_model_real"] = module
    spec.loader.exec_module(module)
    return module


def graph_of(reply: dict[str, Any], variant: int = 0) -> Graph:
    """The graph in a reply of the probe."""
    found = codec.from_data(reply["variants"][variant], Variant).graph
    assert found is not None
    return found


def run_graph(graph: Graph, tensors: dict[str, torch.Tensor]) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Run a graph with torch's own operators: flat outputs, and the new values of mutated arguments.

    Every value is checked against its layout on the way.
    """
    values: dict[str, Any] = dict(tensors)

    def real(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument.name]
        if isinstance(argument, Const):
            return torch.device(argument.value) if argument.kind == "device" else getattr(torch, argument.value)
        return [real(item) for item in argument] if isinstance(argument, tuple) else argument

    for node in graph.nodes:
        namespace, name, overload = node.op.split(".")
        operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        positional = [a.name for a in operator._schema.arguments if not a.kwarg_only]
        args = [real(node.args[key]) for key in positional]
        kwargs = {key: real(value) for key, value in node.args.items() if key not in positional}
        out = operator(*args, **kwargs)
        for key, value in zip(node.outputs, out if isinstance(out, (tuple, list)) else (out,), strict=True):
            if key is not None:
                layout = graph.values[key]
                assert (tuple(value.shape), str(value.dtype)[6:]) == (layout.shape, layout.dtype), (node, value.shape)
                values[key] = value
    return [real(output) for output in graph.outputs], {k: values[v] for k, v in graph.mutations.items()}


def arguments_of(reply: dict[str, Any], callee: Any, inputs: list[Any]) -> dict[str, torch.Tensor]:
    """Real tensors for the arguments of a reply: inputs by path, the rest from the module."""
    found = {}
    for argument in reply["arguments"]:
        if argument["tensor"] is None:
            continue
        if argument["role"] == "input":
            names = dict(zip(parameter_names(callee), inputs, strict=False))
            found[argument["name"]] = eval(argument["path"], {}, names)
        else:
            value = callee
            for part in argument["path"].split("."):
                value = getattr(value, part)
            found[argument["name"]] = value
    return found


def parameter_names(callee: Any) -> list[str]:
    """Names of forward's parameters, in order."""
    import inspect

    return list(inspect.signature(callee.forward if isinstance(callee, torch.nn.Module) else callee).parameters)

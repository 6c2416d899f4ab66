"""Role `rebuild`: lets a contract folder's own torch_demo.py build its extension, and says where it lies."""

import importlib.util
import os
import sys

from _hiera_worker.wire import Refusal


def handle(kind, request, emit):
    """Build once. The process is of no further use."""
    if kind != "rebuild":
        raise Refusal(f"unknown request {kind!r}", "this is a fault of ours", kind="internal")
    import torch
    import torch.utils.cpp_extension as building

    made = []

    def watched(build):
        def call(*args, **kwargs):
            module = build(*args, **kwargs)
            made.append(module)
            return module

        return call

    building.load_inline = watched(building.load_inline)
    building.load = watched(building.load)
    folder = request["folder"]
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("torch_demo", os.path.join(folder, "torch_demo.py"))
    demo = importlib.util.module_from_spec(spec)
    sys.modules["torch_demo"] = demo
    spec.loader.exec_module(demo)
    builder = getattr(demo, "extension", None) or getattr(demo, "_extension", None)
    if not made and callable(builder):
        builder()
    if not made:
        _call_model(demo, torch)
    found = [m for m in made if hasattr(m, request["entry"])] or made
    if not found:
        raise Refusal("torch_demo.py built no extension", "build it by load_inline or load")
    return {"extension": found[-1].__file__, "module": found[-1].__name__}


def _call_model(demo, torch):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = demo.ModelNew(*(demo.get_init_inputs() if hasattr(demo, "get_init_inputs") else []))
    model = model.to(device) if hasattr(model, "to") else model
    model(*[x.to(device) if isinstance(x, torch.Tensor) else x for x in demo.get_inputs()])

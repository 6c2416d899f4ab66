"""Role `rebuild`: lets a contract folder's own torch_demo.py build its extension, and says where it lies.

What it built is not loaded here: code of a candidate runs in locked-down processes only, also as a library is loaded.
"""

import contextlib
import importlib.util
import os
import sys

from _hiera_worker.wire import Refusal


class _NotLoaded(Exception):
    """The demonstration wanted to call what it had built."""


class _Built:
    """What stands for a built extension."""

    def __init__(self, name, path):
        self.__name__, self.__file__ = name, path

    def __getattr__(self, name):
        def call(*_args, **_kwargs):
            raise _NotLoaded(name)

        return call


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
    # The last step of both in every release so far; one that calls it otherwise would load what it built.
    building._import_module_from_library = lambda name, path, _is_python: _Built(name, os.path.join(path, name + ".so"))
    folder = request["folder"]
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("torch_demo", os.path.join(folder, "torch_demo.py"))
    demo = importlib.util.module_from_spec(spec)
    sys.modules["torch_demo"] = demo
    with contextlib.suppress(_NotLoaded):
        spec.loader.exec_module(demo)
        builder = getattr(demo, "extension", None) or getattr(demo, "_extension", None)
        if not made and callable(builder):
            builder()
        if not made:
            _call_model(demo, torch)
    if not made:
        raise Refusal("torch_demo.py built no extension", "build it by load_inline or load")
    return {"extension": made[-1].__file__, "module": made[-1].__name__}


def _call_model(demo, torch):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = demo.ModelNew(*(demo.get_init_inputs() if hasattr(demo, "get_init_inputs") else []))
    model = model.to(device) if hasattr(model, "to") else model
    model(*[x.to(device) if isinstance(x, torch.Tensor) else x for x in demo.get_inputs()])

"""Start of every worker process: `python main.py ROLE REPLY_FD`.

Loads this folder as the package `_hiera_worker`, so that nothing of ours can take the place of a
user's module of the same name, then serves one JSON request a line from stdin. Replies go to their
own descriptor; whatever user code prints goes to stderr. End of input ends the process.
"""

import ctypes
import importlib.util
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def load_package(folder):
    """Import this folder as `_hiera_worker`, leaving sys.path without it."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != folder]
    spec = importlib.util.spec_from_file_location(
        "_hiera_worker", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["_hiera_worker"] = package
    spec.loader.exec_module(package)


def die_with_parent():
    """Ask the kernel to kill us when the engine is gone, even in the middle of a long call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def keep_bytecode(folder):
    """Compile torch to bytecode once, into `folder`, where its installation came without: importing is slow then."""
    torch = importlib.util.find_spec("torch")
    compiled = torch and torch.origin and os.path.exists(importlib.util.cache_from_source(torch.origin))
    if folder and torch and not compiled:
        sys.pycache_prefix = folder
    else:
        sys.dont_write_bytecode = True


if __name__ == "__main__":
    keep_bytecode(os.environ.pop("HIERA_BYTECODE", ""))
    die_with_parent()
    load_package(os.path.dirname(os.path.abspath(__file__)))
    from _hiera_worker import wire

    wire.serve(role=sys.argv[1], reply_fd=int(sys.argv[2]))

"""Entry points of `hiera` and `hiera-lsp`.

An installed HIERA keeps `engine` and `contracts` in a private folder, because a user's own project
may have packages of the same names in the same environment. The folder is put first on the path of
our own process only, which never imports the user's code.

An editor's extension that brings our packages names their folders in `HIERA_LIBRARIES`: a variable of our own,
because children under the user's interpreter would see `PYTHONPATH` too.
"""

import gc
import os
import sys
from pathlib import Path


def private_root() -> Path:
    """The folder that holds our `engine` and `contracts`: private when installed, the root in a checkout."""
    here = Path(__file__).resolve().parent
    private = here / "_private"
    return private if private.is_dir() else here.parent


def _extend_path() -> None:
    """Put our own packages, and those that an extension brings, first on the path of this process."""
    brought = [folder for folder in os.environ.get("HIERA_LIBRARIES", "").split(os.pathsep) if folder]
    sys.path[:0] = [str(private_root()), *brought]


def cli() -> None:
    """Run the `hiera` command and exit with its status."""
    _extend_path()
    from engine.cli import main

    sys.exit(main())


def server() -> None:
    """Run the language server and exit with its status."""
    # Starting makes thousands of classes and no garbage; the collector costs a fifth of it. `main` turns it on again.
    gc.disable()
    _extend_path()
    from hiera_lsp.server import main

    sys.exit(main())


def job() -> None:
    """Run one job for the server and exit with its status."""
    _extend_path()
    from hiera_lsp.job import main

    sys.exit(main())

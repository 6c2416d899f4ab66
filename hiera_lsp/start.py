"""Entry points of `hiera` and `hiera-lsp`.

An installed HIERA keeps `engine` and `contracts` in a private folder, because a user's own project
may have packages of the same names in the same environment. The folder is put first on the path of
our own process only, which never imports the user's code.
"""

import gc
import sys
from pathlib import Path


def private_root() -> Path:
    """The folder that holds our `engine` and `contracts`: private when installed, the root in a checkout."""
    here = Path(__file__).resolve().parent
    private = here / "_private"
    return private if private.is_dir() else here.parent


def cli() -> None:
    """Run the `hiera` command and exit with its status."""
    sys.path.insert(0, str(private_root()))
    from engine.cli import main

    sys.exit(main())


def server() -> None:
    """Run the language server and exit with its status."""
    # Starting makes thousands of classes and no garbage; the collector costs a fifth of it. `main` turns it on again.
    gc.disable()
    sys.path.insert(0, str(private_root()))
    from hiera_lsp.server import main

    sys.exit(main())


def job() -> None:
    """Run one job for the server and exit with its status."""
    sys.path.insert(0, str(private_root()))
    from hiera_lsp.job import main

    sys.exit(main())

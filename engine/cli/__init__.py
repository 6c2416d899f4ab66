"""The `hiera` command: arguments in, one exit status out, no traceback for users.

Status 0: done (also when nothing faster was found). 1: a candidate was rejected. 2: the job could not be
done, one line on stderr says why and what to do. 130: interrupted, the best so far was kept.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from contracts.errors import HieraError
from engine.cli import parser

COULD_NOT = 2
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        arguments = parser.build().parse_args(argv)
    except SystemExit as end:  # argparse has said why.
        return end.code if isinstance(end.code, int) else COULD_NOT
    try:
        return arguments.command(arguments)
    except HieraError as error:
        _say(f"hiera: {error}")
        return COULD_NOT
    except KeyboardInterrupt:
        _say("hiera: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; point stdout away so that the exit does not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COULD_NOT
    except Exception as error:  # noqa: BLE001 - the last line of defence: a user gets a sentence, not a stack.
        if os.environ.get("HIERA_DEBUG"):
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        _say(f"hiera: internal error: {type(error).__name__}: {str(error)[:300]} at {Path(where.filename).name}"
             f":{where.lineno} (to fix: report it with the output of the same command under HIERA_DEBUG=1)")
        return COULD_NOT


def _say(line: str) -> None:
    print(" ".join(line.split("\n")), file=sys.stderr)

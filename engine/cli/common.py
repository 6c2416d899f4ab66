"""What several commands share: the job from arguments, files out, an event loop that Ctrl-C ends cleanly."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from contracts.errors import ConfigError, InputError
from engine.settings import with_model, with_settings
from engine.trajectory import Job, ModelOptions

T = TypeVar("T")
FLAGS = ("preset", "budget", "rounds", "seconds", "tokens", "space", "agent", "precision", "device", "python",
         "confirm", "profile", "inputs", "fixed_space")
MODEL_FLAGS = ("name", "base_url", "key_variable", "answer_tokens", "prompt_tokens", "temperature", "call_s", "dollars",
               "prices", "prompts", "seeds", "fallback", "planning", "contract")
SUFFIXES = (".py", ".cu", ".cuh")


def job_of(arguments: argparse.Namespace) -> Job:
    """The job that the arguments and the project's settings ask for.

    Raises:
        InputError: The file is missing or of no kind we take.
        ConfigError: A setting cannot be used.
    """
    text, separator, name = arguments.file.rpartition("::")
    path = Path(text if separator else arguments.file)
    if not path.exists():
        raise InputError("there is no such file or folder", hint="check the path", file=path)
    if path.is_file() and path.suffix not in SUFFIXES:
        raise InputError(f"a {path.suffix or 'file without suffix'} cannot be optimised",
                         hint="give a .py or .cu file, or a contract folder", file=path)
    if path.is_dir() and not (path / "cuda_source.cu").exists() and not (path / "groundtruth.py").exists():
        raise InputError("the folder is no contract folder: it has neither groundtruth.py nor cuda_source.cu",
                         hint="make one with `hiera contract FILE --out DIR`", file=path)
    if separator and not name:
        raise InputError("there is no name after `::`", hint="write FILE::ClassName", file=path)
    path = path.resolve()
    job = Job(file=str(path), name=name if separator else None)
    given = {flag: getattr(arguments, flag, None) for flag in FLAGS} | _model_flags(arguments)
    planning = getattr(arguments, "planning", None)
    if planning:
        given["planning"] = tuple(str(Path(folder).resolve()) for folder in planning)
    for key in ("inputs", "python"):
        if given.get(key) and Path(given[key]).exists():
            # Not resolved: a virtual environment's python is a link, and the link is what selects it.
            given[key] = str(Path(given[key]).absolute())
    job = with_model(with_settings(job, path if path.is_dir() else path.parent, given), os.environ)
    if job.fixed_space and job.space is None:
        raise ConfigError("--fixed-space names no space", hint="add --space cuda, cuda_libs or cuda_libs_torch")
    return job


def model_of(arguments: argparse.Namespace, folder: Path) -> ModelOptions:
    """The language model that flags, the settings near `folder` and the environment name."""
    return with_model(with_settings(Job(file="", agent="llm"), folder, _model_flags(arguments)), os.environ).llm


def _model_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {f"llm.{flag}": getattr(arguments, f"llm_{flag}", None) for flag in MODEL_FLAGS}
    for key in ("llm.prices", "llm.prompts"):
        if given[key]:
            given[key] = str(Path(given[key]).absolute())
    return given


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, T]], *, stop_at_once: bool = False) -> T:
    """Run `main(cancel)`; the first Ctrl-C or SIGTERM sets `cancel`, the second one cancels the work itself.

    Args:
        main: What to run.
        stop_at_once: The first one cancels already: there is no best so far to keep.
    """

    async def guarded() -> T:
        cancel = asyncio.Event()
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            if task is not None and (cancel.is_set() or stop_at_once):
                task.cancel()
            cancel.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, interrupt)
        return await main(cancel)

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def write_json(file: str | None, document: dict[str, Any]) -> None:
    """Write a document to a file, `-` for stdout, None for nowhere.

    Raises:
        ConfigError: The file cannot be written.
    """
    if file is None:
        return
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
    else:
        write_text(Path(file), text)


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, text: bytes) -> None:
    """The same for a text that is encoded already.

    Raises:
        ConfigError: It cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise ConfigError(f"cannot write it: {error.strerror}", hint="free space or choose another place",
                          file=path) from None


def check_writable(file: str | None) -> None:
    """Refuse early what would fail at the end of a long job.

    Raises:
        ConfigError: The folder of `file` does not exist.
    """
    if file not in (None, "-") and not Path(str(file)).absolute().parent.is_dir():
        raise ConfigError("its folder does not exist", hint="make the folder first", file=file)

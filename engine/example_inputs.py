"""Where a project says its example inputs are: `[tool.hiera.inputs]` in pyproject.toml, or `[inputs]` in hiera.toml.

    [tool.hiera.inputs]
    "src/model.py::Block" = "tests/example_inputs.py::block_inputs"
    "src/other.py" = "tests/other_inputs.py"

Paths are relative to the file that holds the table. Without a function, the script's get_inputs() is used;
a get_init_inputs() in the script gives the constructor's arguments.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ConfigError

ROOT_MARKS = ("pyproject.toml", "hiera.toml", "setup.py", "setup.cfg", ".git")


@dataclass(frozen=True, slots=True)
class InputScript:
    """A script with example inputs. `function` is empty for get_inputs()."""

    file: Path
    function: str = ""


def project_root(file: Path) -> Path:
    """The nearest folder above `file` that looks like a project's root, else the file's own folder."""
    for folder in file.parents:
        if any((folder / mark).exists() for mark in ROOT_MARKS):
            return folder
    return file.parent


def parse_script(text: str, base: Path) -> InputScript:
    """Read `script.py::function` or `script.py`."""
    path, _, function = text.partition("::")
    return InputScript((base / path).resolve(), function)


def configured_script(file: Path, name: str, root: Path) -> InputScript | None:
    """The script that the project's settings name for `file::name` or for `file`.

    Raises:
        ConfigError: A settings file is not valid TOML, or an entry is not text.
    """
    for settings, keys in ((root / "hiera.toml", ("inputs",)), (root / "pyproject.toml", ("tool", "hiera", "inputs"))):
        if not settings.is_file():
            continue
        try:
            table: object = tomllib.loads(settings.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"not valid TOML: {error}", hint="correct the file", file=settings) from None
        for key in keys:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        if not isinstance(table, dict):
            raise ConfigError(
                f"`{'.'.join(keys)}` must be a table", file=settings,
                hint='write entries such as "model.py::Block" = "tests/inputs.py::block_inputs"',
            )
        wanted = {f"{file.relative_to(root).as_posix()}{tail}" for tail in (f"::{name}", "")} if name else set()
        for entry, script in sorted(table.items(), key=lambda item: "::" not in item[0]):
            if entry in wanted:
                if not isinstance(script, str):
                    raise ConfigError(
                        f"the entry {entry!r} must be text", hint='write "script.py::function"', file=settings
                    )
                return parse_script(script, root)
    return None

"""Settings of `[tool.hiera]` in pyproject.toml and of hiera.toml, as fields of a `Job`.

The nearest files above the user's file count; hiera.toml wins over pyproject.toml, flags over both.
Keys are the editor's: `preset`, `budget.candidates`, `worker.interpreter`, and so on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.contract import SPACES
from contracts.errors import ConfigError
from engine.trajectory import Job

PRECISIONS = ("match", "strict", "kernelbench")
AGENTS = ("expert", "llm")
# Setting, field of Job, type, admissible values (None for any).
ROWS: tuple[tuple[str, str, type, tuple[str, ...] | None], ...] = (
    ("preset", "preset", str, ("quick", "normal", "deep")),
    ("budget.candidates", "budget", int, None),
    ("budget.seconds", "seconds", float, None),
    ("budget.tokens", "tokens", int, None),
    ("rounds", "rounds", int, None),
    ("space", "space", str, SPACES),
    ("agent", "agent", str, AGENTS),
    ("precision", "precision", str, PRECISIONS),
    ("device", "device", str, None),
    ("worker.interpreter", "python", str, None),
    ("confirm", "confirm", bool, None),
    ("profile", "profile", bool, None),
    ("parents", "parents", int, None),
    ("planning", "planning", tuple, None),
    ("fixedSpace", "fixed_space", bool, None),
    ("budget.dollars", "llm.dollars", float, None),
    ("llm.model", "llm.name", str, None),
    ("llm.baseUrl", "llm.base_url", str, None),
    ("llm.keyVariable", "llm.key_variable", str, None),
    ("llm.maxTokens", "llm.answer_tokens", int, None),
    ("llm.promptTokens", "llm.prompt_tokens", int, None),
    ("llm.temperature", "llm.temperature", float, None),
    ("llm.seconds", "llm.call_s", float, None),
    ("llm.prices", "llm.prices", str, None),
    ("llm.prompts", "llm.prompts", str, None),
    ("llm.seeds", "llm.seeds", bool, None),
    ("llm.fallback", "llm.fallback", bool, None),
    ("llm.planning", "llm.planning", bool, None),
    ("llm.contract", "llm.contract", bool, None),
)
# Fields that name a file or folder, relative to the settings file.
PATHS = ("python", "inputs", "llm.prices", "llm.prompts")
# A zero means no limit, except here.
MAY_BE_ZERO = ("llm.temperature",)


def with_settings(job: Job, folder: Path, given: Mapping[str, Any]) -> Job:
    """The job with the project's settings below the flags.

    Args:
        job: File and name, everything else default.
        folder: Where the search for settings files starts.
        given: Fields set by flags, those of `Job.llm` as `llm.name` and the like; None is not set.

    Raises:
        ConfigError: A settings file is no TOML, or a value cannot be used; the message names it.
    """
    fields: dict[str, Any] = {}
    for path, table in _tables(folder):
        fields |= _fields(path, table)
    fields |= {key: value for key, value in given.items() if value is not None}
    model = {key.removeprefix("llm."): value for key, value in fields.items() if key.startswith("llm.")}
    own = {key: value for key, value in fields.items() if not key.startswith("llm.")}
    return replace(job, **own, llm=replace(job.llm, **model))


def with_model(job: Job, environment: Mapping[str, str]) -> Job:
    """The job with the environment's model, so that its record says which one it was. Keys stay outside."""
    if job.agent != "llm":
        return job
    name = job.llm.name or environment.get("HIERA_MODEL", "")
    base_url = job.llm.base_url or environment.get("OPENAI_BASE_URL", "")
    return replace(job, llm=replace(job.llm, name=name, base_url=base_url))


def _tables(folder: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    """The nearest pyproject.toml with a [tool.hiera] and the nearest hiera.toml, the stronger one last."""
    found: dict[str, tuple[Path, Mapping[str, Any]]] = {}
    for level in (folder, *folder.parents):
        for name in ("pyproject.toml", "hiera.toml"):
            path = level / name
            if name in found or not path.is_file():
                continue
            try:
                data: Any = tomllib.loads(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise ConfigError(f"the settings file cannot be read: {error}", hint="correct it or move it away",
                                  file=path) from None
            if name == "pyproject.toml":
                data = data.get("tool", {}).get("hiera") if isinstance(data.get("tool"), dict) else None
            if isinstance(data, dict):
                found[name] = (path, data)
    return [found[name] for name in ("pyproject.toml", "hiera.toml") if name in found]


def _fields(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, field, kind, choices in ROWS:
        value: Any = table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        zero = kind in (int, float) and value == 0 and value is not False
        if value is None or value == "" or (zero and field not in MAY_BE_ZERO):
            continue
        if kind is tuple:
            texts = [value] if isinstance(value, str) else value
            if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
                raise ConfigError(f"`{key}` is {value!r}", hint="give a folder or a list of folders", file=path)
            fields[field] = tuple(str(path.parent / item) for item in texts)
            continue
        fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or value is not True)
        if not fits or (value is False and kind is not bool) or (kind in (int, float) and value < 0):
            raise ConfigError(f"`{key}` is {value!r}", hint=f"give a {_kind(kind)}", file=path)
        if choices is not None and value not in choices:
            raise ConfigError(f"`{key}` is {value!r}", hint=f"use one of {', '.join(choices)}", file=path)
        if field in PATHS and not Path(value).is_absolute() and (path.parent / value).exists():
            value = str(path.parent / value)
        fields[field] = value
    return fields


def _kind(kind: type) -> str:
    return {str: "text", int: "whole number of 1 or more", float: "number", bool: "true or false"}[kind]

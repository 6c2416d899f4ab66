"""The `hiera` section of the editor's settings. A bad value is a warning and the default, never a crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

PRESETS = ("quick", "normal", "deep")
PRECISIONS = ("match", "strict", "kernelbench")
SPACES = ("cuda", "cuda_libs", "cuda_libs_torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user set, per workspace folder.

    Attributes:
        interpreter: Python that has the user's torch; empty for a search.
        suggested_interpreter: What the editor found, for where neither the user nor the project names one.
        device: `auto`, `cuda:N` or `none`.
        preset: Size of the search.
        budget: Candidates, 0 for the preset's number.
        limit_s: Seconds a job may take, 0 for no limit.
        tokens: Tokens a model may use, 0 for no limit.
        precision: Acceptance policy.
        space: One space to stay in, or empty.
        agent: `expert` or `llm`.
        llm_base_url: Endpoint of the model.
        llm_model: Name of the model.
        llm_key_variable: Environment variable that holds the key.
        output_folder: Where contract folders are written, relative to the workspace folder.
        code_lens: Show lenses on results.
        inlay_hints: Show the share of time of hot lines.
        notifications: `off`, `onError` or `always`.
    """

    interpreter: str = ""
    suggested_interpreter: str = ""
    device: str = "auto"
    preset: str = "normal"
    budget: int = 0
    limit_s: int = 0
    tokens: int = 0
    precision: str = "match"
    space: str = ""
    agent: str = "expert"
    llm_base_url: str = ""
    llm_model: str = ""
    llm_key_variable: str = "OPENAI_API_KEY"
    output_folder: str = "hiera_kernels"
    code_lens: bool = True
    inlay_hints: bool = False
    notifications: str = "onError"


# The editor's name of each field, and its admissible values where there are few.
KEYS: dict[str, str] = {
    "interpreter": "worker.interpreter", "suggested_interpreter": "worker.suggested", "device": "device",
    "preset": "preset", "budget": "budget.candidates", "limit_s": "budget.seconds", "tokens": "budget.tokens",
    "precision": "precision", "space": "space", "agent": "agent", "llm_base_url": "llm.baseUrl",
    "llm_model": "llm.model", "llm_key_variable": "llm.keyVariable", "output_folder": "outputFolder",
    "code_lens": "codeLens.enable", "inlay_hints": "inlayHints.enable", "notifications": "showNotifications",
}
CHOICES: dict[str, tuple[str, ...]] = {
    "preset": PRESETS, "precision": PRECISIONS, "space": ("", *SPACES), "agent": ("expert", "llm"),
    "notifications": ("off", "onError", "always"),
}


def read_settings(data: Any, base: Settings | None = None) -> tuple[Settings, tuple[str, ...]]:
    """Settings from the editor's `hiera` section, and one warning a bad value.

    Args:
        data: The section: nested or dotted keys; null values are as if absent.
        base: What holds where `data` says nothing.
    """
    settings = base or Settings()
    warnings: list[str] = []
    if data is None:
        return settings, ()
    if not isinstance(data, Mapping):
        return settings, (f"hiera: the settings are {type(data).__name__}, not an object; defaults are used",)
    flat = dict(_flatten(data))
    for field in fields(Settings):
        key = KEYS[field.name]
        value = flat.get(key)
        if value is None:
            continue
        problem = _problem(field.name, type(field.default), value)
        if problem is None:
            settings = replace(settings, **{field.name: value})
        else:
            kept = getattr(settings, field.name)
            warnings.append(f"hiera.{key} is {value!r}: {problem}; {kept!r} is used")
    return settings, tuple(warnings)


def nearest_project(file: Path, limit: Path | None) -> Path | None:
    """The nearest folder above `file`, up to `limit`, whose files may hold settings of ours; None without one."""
    for folder in file.parents:
        if (folder / "hiera.toml").is_file() or "hiera" in _text_of(folder / "pyproject.toml"):
            return folder
        if folder == limit:
            return None
    return None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def project_settings(folder: Path) -> tuple[Settings, tuple[str, ...]]:
    """Settings of `[tool.hiera]` in pyproject.toml or of hiera.toml; the editor's own win over them."""
    settings, warnings = Settings(), ()
    for name, path in (("pyproject.toml", ("tool", "hiera")), ("hiera.toml", ())):
        try:
            text = folder.joinpath(name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            warnings = (*warnings, f"{folder / name}: {error}; the file is ignored")
            continue
        if name == "pyproject.toml" and "hiera" not in text:
            continue
        import tomllib  # Most projects have no settings of ours, and the editor waits.

        try:
            table: Any = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            warnings = (*warnings, f"{folder / name}: {error}; the file is ignored")
            continue
        for part in path:
            table = table.get(part, {}) if isinstance(table, Mapping) else {}
        settings, more = read_settings(table, settings)
        warnings = (*warnings, *more)
    return settings, warnings


def _problem(name: str, kind: type, value: Any) -> str | None:
    if kind is bool and not isinstance(value, bool):
        return "it must be true or false"
    if kind is int and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        return "it must be a whole number, 0 or more"
    if kind is str and not isinstance(value, str):
        return "it must be text"
    if name in CHOICES and value not in CHOICES[name]:
        return "it must be one of " + ", ".join(repr(choice) for choice in CHOICES[name])
    if name == "device" and value not in ("auto", "none") and not value.removeprefix("cuda:").isdigit():
        return "it must be auto, none or cuda:N"
    return None


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Any:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, name + ".")
        else:
            yield name, value

"""The extension's manifest says the same as the server: settings, their defaults and values, and ids of commands."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine.presets import PRESETS
from hiera_lsp.server import make_server
from hiera_lsp.settings import CHOICES, KEYS, Settings, read_settings

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = ROOT / "editors" / "vscode"
MANIFEST: dict[str, Any] = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
CONTRIBUTED = MANIFEST["contributes"]
SETTINGS: dict[str, dict[str, Any]] = CONTRIBUTED["configuration"]["properties"]
# Only the extension reads these; only the extension tells the server what it found by itself.
OWN_SETTINGS = {"hiera.interpreter", "hiera.trace.server"}
TOLD_BY_EXTENSION = {"worker.suggested"}
TYPES = {bool: "boolean", int: "integer", str: "string"}
COMMANDS: dict[str, dict[str, Any]] = {command["command"]: command for command in CONTRIBUTED["commands"]}


def test_every_setting_of_the_server_is_in_the_manifest_and_no_other() -> None:
    assert set(SETTINGS) - OWN_SETTINGS == {f"hiera.{key}" for key in KEYS.values()} - {
        f"hiera.{key}" for key in TOLD_BY_EXTENSION}


@pytest.mark.parametrize("field", [field for field in fields(Settings) if KEYS[field.name] not in TOLD_BY_EXTENSION],
                         ids=lambda field: field.name)
def test_a_setting_has_the_servers_type_default_and_values(field: Any) -> None:
    setting = SETTINGS[f"hiera.{KEYS[field.name]}"]

    assert setting["type"] == TYPES[type(field.default)]
    assert setting["default"] == field.default
    assert tuple(setting.get("enum", ())) == CHOICES.get(field.name, ())
    assert len(setting.get("enumDescriptions", ())) == len(CHOICES.get(field.name, ()))


def test_presets_have_the_sizes_that_are_told() -> None:
    sizes = {name: str(preset.rounds * preset.per_round) for name, preset in PRESETS.items()}
    setting = SETTINGS["hiera.preset"]
    picker = (EXTENSION / "src" / "commands" / "optimize.ts").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")

    assert dict(zip(setting["enum"], [text.split()[0] for text in setting["enumDescriptions"]], strict=True)) == sizes
    assert dict(re.findall(r'label: "(\w+)", description: "(\d+) candidates"', picker)) == sizes
    assert dict(re.findall(r"`(quick|normal|deep)` \((\d+)", page)) == sizes


def test_defaults_and_the_pattern_are_what_the_server_takes() -> None:
    pattern = re.compile(SETTINGS["hiera.device"]["pattern"])
    _, warnings = read_settings({key.removeprefix("hiera."): s["default"] for key, s in SETTINGS.items()})

    assert warnings == ()
    for device in ("auto", "none", "cuda:0", "cuda:12", "gpu", "cuda:", "cuda:x", ""):
        assert (pattern.search(device) is not None) == (read_settings({"device": device})[1] == ())


def test_settings_are_described_scoped_and_ordered() -> None:
    orders = [setting["order"] for setting in SETTINGS.values()]

    assert orders == list(range(1, len(SETTINGS) + 1))
    for name, setting in SETTINGS.items():
        assert setting.get("description") or setting.get("markdownDescription"), name
        assert setting["scope"] in {"machine-overridable", "resource", "window"}, name


def test_settings_that_run_or_send_something_are_restricted() -> None:
    restricted = set(MANIFEST["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"])

    assert {"hiera.interpreter", "hiera.worker.interpreter", "hiera.llm.baseUrl", "hiera.llm.keyVariable"} <= restricted
    assert {name for name, setting in SETTINGS.items() if setting["scope"] == "machine-overridable"} <= restricted
    assert restricted <= set(SETTINGS)


def test_no_setting_holds_a_key() -> None:
    assert {name for name in SETTINGS if re.search("key|secret|token", name, re.IGNORECASE)} == {
        "hiera.budget.tokens", "hiera.llm.keyVariable"}


def test_the_settings_that_the_server_reads_are_documented() -> None:
    page = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")

    assert [key for key in KEYS.values() if key not in TOLD_BY_EXTENSION and f"`{key}`" not in page] == []


def test_the_commands_of_the_server_are_documented() -> None:
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("editors.md", "report.md"))

    assert [name for name in make_server().protocol.fm.commands if f"`{name}`" not in pages] == []


def test_commands_have_a_title_a_category_and_ids_that_the_server_does_not_take() -> None:
    served = set(make_server().protocol.fm.commands)

    assert not served & set(COMMANDS)
    for name, command in COMMANDS.items():
        assert name.startswith("hiera."), name
        assert command["category"] == "HIERA", name
        assert command["title"], name


def test_menus_and_the_walkthrough_name_commands_that_exist() -> None:
    submenus = {submenu["id"] for submenu in CONTRIBUTED["submenus"]}
    for name, entries in CONTRIBUTED["menus"].items():
        assert name in submenus or "/" in name or name == "commandPalette"
        for entry in entries:
            assert entry.get("command", next(iter(COMMANDS))) in COMMANDS, entry
            assert entry.get("submenu", next(iter(submenus))) in submenus, entry
    texts = [json.dumps(CONTRIBUTED["walkthroughs"]), json.dumps(CONTRIBUTED["viewsWelcome"])]
    linked = {match for text in texts for match in re.findall(r"(?:command:|onCommand:)(hiera\.[\w.]+)", text)}
    assert linked <= set(COMMANDS)


def test_every_contributed_command_is_registered_and_every_intercepted_one_is_served() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (EXTENSION / "src").rglob("*.ts"))
    registered = set(re.findall(r'"(hiera\.[\w.]+)":', source))
    intercepted = set(re.findall(r'intercept\("(hiera\.[\w.]+)"', source))

    assert set(COMMANDS) <= registered
    assert intercepted <= set(make_server().protocol.fm.commands)


def test_files_that_the_manifest_names_are_there() -> None:
    named = [*re.findall(r'"(media/[^"]+)"', json.dumps(CONTRIBUTED)), MANIFEST["icon"]]

    assert named
    for name in named:
        assert (EXTENSION / name).is_file(), name


def test_versions_and_packages_agree_with_the_project() -> None:
    from hiera_lsp import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {re.split(r"[><=]", dependency)[0] for dependency in project["dependencies"]}
    pinned: dict[str, set[str]] = {}
    for name in ("requirements.txt", "requirements-native.txt", "requirements-llm.txt"):
        lines = (EXTENSION / "python" / name).read_text(encoding="utf-8").splitlines()
        pinned[name] = {line.split("==")[0] for line in lines if re.match(r"[a-z]", line)}

    assert MANIFEST["version"] == __version__
    assert MANIFEST["license"] == project["license"]
    assert wanted <= set().union(*pinned.values())
    assert pinned["requirements-native.txt"] == {"tree-sitter", "tree-sitter-cuda"}


def test_the_lock_file_names_no_mirror() -> None:
    assert '"resolved"' not in (EXTENSION / "package-lock.json").read_text(encoding="utf-8")

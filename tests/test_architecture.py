"""The rules of the house that no linter knows. Each failure names the file and the rule."""

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "contracts": {"contracts"},
    "engine": {"engine", "contracts"},
    "hiera_lsp": {"hiera_lsp", "engine", "contracts"},
}
HEAVY = {"torch", "triton", "numpy"}
# The model's SDK and what it brings: a second that a job with the expert need not wait.
SDK = {"openai", "httpx2"}
MAX_LINES = 450


def modules() -> Iterator[tuple[Path, str]]:
    for package in MAY_IMPORT:
        for path in sorted(ROOT.joinpath(package).rglob("*.py")):
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def imported_roots(source: str) -> set[str]:
    roots: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                roots.update(alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module)):
                roots.add(module.partition(".")[0])
            case _:
                pass
    return roots


def is_worker(path: Path) -> bool:
    return path.parts[:2] == ("engine", "worker")


def test_packages_depend_in_one_direction() -> None:
    wrong = [
        f"{path} imports {root}"
        for path, source in modules()
        for root in imported_roots(source) & set(MAY_IMPORT)
        if root not in MAY_IMPORT[path.parts[0]]
    ]
    assert wrong == []


def test_workers_stand_alone() -> None:
    allowed = set(sys.stdlib_module_names) | {"torch", "_hiera_worker"}

    wrong = [
        f"{path} imports {root}"
        for path, source in modules()
        if is_worker(path)
        for root in imported_roots(source) - allowed
    ]

    assert wrong == []


def test_only_workers_import_torch() -> None:
    wrong = [
        f"{path} imports {root}"
        for path, source in modules()
        if not is_worker(path)
        for root in imported_roots(source) & HEAVY
    ]
    assert wrong == []


def test_modules_are_short_and_say_what_they_are() -> None:
    wrong = [
        f"{path}: {len(source.splitlines())} lines"
        for path, source in modules()
        if len(source.splitlines()) > MAX_LINES or ast.get_docstring(ast.parse(source)) is None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "module", ["engine.cli", "engine.cli.model", "engine.optimize", "engine.local", "hiera_lsp.server"])
def test_a_process_without_a_model_stays_light(module: str) -> None:
    code = f"import sys, {module}; print(sorted({HEAVY | SDK!r} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_wheel_puts_no_engine_or_contracts_on_the_users_path(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]

    (wheel,) = tmp_path.glob("hiera-*.whl")
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0] for name in names} == {"hiera_lsp", next(n for n in names if "dist-info" in n).split("/")[0]}
    assert "hiera_lsp/_private/engine/worker/main.py" in names

"""Sources for the evaluator's benchmark: hand-written ones and what code generation makes of the examples, in all spaces."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.contract import SPACES, Contract, Space
from contracts.errors import HieraError
from engine.codegen import CannotWrite, Recipe, write
from engine.devices import target_device
from engine.extract import extract
from engine.extract_cu import extract_cu

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "tests" / "data" / "kernels"
BINDING = "torch::Tensor forward(torch::Tensor x, torch::Tensor y);\n"
# Each must stop a compiler: text to find, text to put there.
FAULTS = (
    ("undeclared name", r"(\bint \w+ = )", r"\1no_such_name + "),
    ("missing semicolon", r"(__shared__ \w+ \w+\[[^\]]*\]);", r"\1"),
    ("unknown function", r"(\bfloat \w+ = )", r"\1no_such_function(1) * "),
    ("wrong type", r"\bfloat (\w+) = ", r"flaot \1 = "),
    ("no such member", r"(\w)\.data_ptr<", r"\1.data_pointer<"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One text to build.

    Attributes:
        name: For the report.
        text: cuda_source.cu.
        space: What it may use.
        folder: The contract folder with its binding.
        written_by: `hand`, or `codegen`.
    """

    name: str
    text: str
    space: Space
    folder: Path
    written_by: str

    def fresh(self, number: int) -> Source:
        """The same with a text of its own, so that no cache knows it."""
        return replace(self, text=f"{self.text}\n// build {number}\n")


async def corpus(scratch: Path, python: str) -> tuple[list[Source], list[str]]:
    """All sources, and sentences about those that are left out."""
    found, notes = _by_hand(scratch), []
    for path in sorted((ROOT / "examples").iterdir()):
        folder = scratch / path.stem
        try:
            if path.suffix == ".py":
                made = (await extract(path, None, out=folder, python=python, reduce=False)).contract
                found += _generated(path.stem, made, folder, notes)
            elif path.suffix == ".cu":
                own = await extract_cu(path, None, out=folder, python=python)
                found.append(Source(name=path.name, text=own.source, space="cuda", folder=own.folder, written_by="hand"))
        except HieraError as error:
            notes.append(f"{path.name} is left out: {error.problem}")
    return found, notes


def faulty(sources: list[Source]) -> list[tuple[Source, str, int]]:
    """Sources with one fault each, its name, and the line it is in."""
    found = []
    for number, source in enumerate(sources):
        for name, pattern, replacement in FAULTS[number % len(FAULTS):] + FAULTS[:number % len(FAULTS)]:
            match = re.search(pattern, source.text)
            # Not in a macro, where the compiler names the place of its use.
            if match and not source.text[source.text.rfind("\n", 0, match.start()) + 1:].startswith("#"):
                text = source.text[:match.start()] + match.expand(replacement) + source.text[match.end():]
                line = source.text.count("\n", 0, match.start()) + 1
                found.append((replace(source, text=text), name, line))
                break
    return found


def _by_hand(scratch: Path) -> list[Source]:
    folder = scratch / "kernels"
    folder.mkdir()
    (folder / "cpp_source.cpp").write_text(BINDING)
    found = []
    for path in sorted(KERNELS.glob("*.cu")):
        text = path.read_text(encoding="utf-8")
        libraries = "cublas" in text or "cudnn" in text
        operators = path.stem == "aten" or "torch::stack" in text
        space: Space = "cuda_libs_torch" if operators else "cuda_libs" if libraries else "cuda"
        found.append(Source(name=path.name, text=text, space=space, folder=folder, written_by="hand"))
    return found


def _generated(stem: str, contract: Contract, folder: Path, notes: list[str]) -> list[Source]:
    found: dict[str, Source] = {}
    device = target_device("H200")
    for space in SPACES:
        for choices in ({}, {"fusion": "none"}):
            try:
                text = write(contract, Recipe(space=space, choices=choices), device).source
            except CannotWrite as error:
                notes.append(f"{stem} in {space} cannot be written: {error}")
                continue
            name = f"{stem} {space}" + (" unfused" if choices else "")
            found.setdefault(text, Source(name=name, text=text, space=space, folder=folder, written_by="codegen"))
    return list(found.values())


def interpreter() -> str:
    """The interpreter whose torch is built against: the one that runs the benchmark."""
    return sys.executable

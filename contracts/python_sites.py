"""Optimisable classes and functions in a Python buffer, found in its text without importing it.

The answer is a good guess: a class counts when it can be traced to `torch.nn.Module` in this text, or has an
unknown base and a `forward`. Importing the file (the probe) decides.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from contracts.python_facts import INPUT_FUNCTIONS, ClassFacts, Facts, FunctionFacts, read_blocks, resolve
from contracts.spans import Span

HELPERS = frozenset({*INPUT_FUNCTIONS, "get_init_inputs", "main", "setup", "forward"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSite:
    """One class or function that could be optimised.

    Attributes:
        kind: `module` for classes derived from torch.nn.Module.
        name: Qualified name, such as `Outer.Block`.
        name_span: The name in the text.
        span: The whole definition, decorators included; columns are 0 at the start.
        has_example_inputs: The file has a `get_inputs()` that is meant for it.
        text_sha256: First 16 hex digits of the hash of the definition's text.
    """

    kind: Literal["module", "function"]
    name: str
    name_span: Span
    span: Span
    has_example_inputs: bool
    text_sha256: str


def find_sites(text: str) -> tuple[PythonSite, ...]:
    """All sites, in the order of the text. Blocks with syntax errors are skipped."""
    return read_sites(text)[0]


def read_sites(text: str) -> tuple[tuple[PythonSite, ...], SyntaxError | None]:
    """All sites as `find_sites` gives them, and the first syntax error of the text, if it has one."""
    lines = re.split(r"\r\n|\r|\n", text)  # As ast counts lines; splitlines() also splits at form feeds.
    blocks, error = read_blocks([lines[0].removeprefix("\ufeff"), *lines[1:]])
    facts = _joined(blocks)
    aliases = _aliases(facts)
    classes = {c.name: c for c in _module_classes(facts.classes, aliases)}
    plain = [f for f in facts.functions if f.name not in HELPERS and not f.name.startswith("test_") and not f.is_kernel]
    functions = {f.name: f for f in plain if _takes_tensors(f, aliases)}
    if not classes and not functions and not facts.names.isdisjoint(INPUT_FUNCTIONS):
        # Example inputs are meant for something, such as `def scale(x, w): return x * w`.
        functions = {f.name: f for f in plain if f.has_parameters and not f.is_annotated}
    meant = _meant(facts, classes, functions)
    sites = [_site("module", c, lines, name in meant or c.has_inputs) for name, c in classes.items()]
    sites += [_site("function", f, lines, name in meant) for name, f in functions.items()]
    return tuple(sorted(sites, key=lambda site: (site.span.start_line, site.span.start_column))), error


def default_site(sites: tuple[PythonSite, ...]) -> PythonSite | None:
    """The site meant when the user names none: `Model`, `reference`, or the only sensible one."""
    for name in ("Model", "reference"):
        for site in sites:
            if site.name == name:
                return site
    for group in (
        [s for s in sites if s.has_example_inputs],
        [s for s in sites if s.kind == "module"],
        list(sites),
    ):
        if len(group) == 1:
            return group[0]
        if group:
            return None
    return None


def _joined(blocks: list[tuple[int, Facts]]) -> Facts:
    """Facts of the whole text, lines counted from its beginning."""

    def moved(part: ClassFacts | FunctionFacts, by: int) -> ClassFacts | FunctionFacts:
        return replace(part, first=part.first + by, line=part.line + by, last=part.last + by) if by else part

    return Facts(
        aliases=tuple(alias for _, facts in blocks for alias in facts.aliases),
        names=frozenset().union(*(facts.names for _, facts in blocks)),
        classes=tuple(moved(c, start) for start, facts in blocks for c in facts.classes),  # type: ignore[misc]
        functions=tuple(moved(f, start) for start, facts in blocks for f in facts.functions),  # type: ignore[misc]
    )


def _aliases(facts: Facts) -> dict[str, str]:
    """Local name to full dotted name, from imports and from plain assignments of such names."""
    found: dict[str, str] = {}
    for name, value, is_assignment in facts.aliases:
        full = resolve(value, found) if is_assignment else value
        if not is_assignment or full.startswith("torch"):
            found[name] = full
    return found


def _module_classes(every: tuple[ClassFacts, ...], aliases: dict[str, str]) -> Iterator[ClassFacts]:
    local = {c.name for c in every}
    known: set[str] = set()
    rest = list(every)
    # A class may be defined after its use as a base in the text (never at run time), so repeat until nothing changes.
    while True:
        more = [c for c in rest if _derives(c, known, local, aliases)]
        if not more:
            break
        known.update(c.name for c in more)
        rest = [c for c in rest if c.name not in known]
    yield from (c for c in every if c.name in known)


def _derives(facts: ClassFacts, known: set[str], local: set[str], aliases: dict[str, str]) -> bool:
    outer = facts.name.rpartition(".")[0]
    unknown = False
    for base in facts.bases:
        full = resolve(base, aliases)
        inner = f"{outer}.{full}" if outer else full
        if full in known or inner in known or _is_torch_module(full):
            return True
        unknown |= full not in local and inner not in local and full not in ("object", "Protocol", "ABC", "Enum")
    return unknown and facts.has_forward


def _is_torch_module(full: str) -> bool:
    if full.endswith(".LightningModule"):
        return True
    if not full.startswith("torch.nn."):
        return False
    last = full.rpartition(".")[2]
    return last[0].isupper() and last not in ("Parameter", "Buffer", "UninitializedParameter", "Tensor")


def _takes_tensors(function: FunctionFacts, aliases: dict[str, str]) -> bool:
    if function.is_annotated or not function.has_parameters:
        return function.takes_tensor
    return any(resolve(call, aliases).startswith("torch.") for call in function.calls)


def _meant(facts: Facts, classes: dict[str, ClassFacts], functions: dict[str, FunctionFacts]) -> set[str]:
    """Names of the sites that the file's get_inputs() is meant for."""
    if facts.names.isdisjoint(INPUT_FUNCTIONS):
        return set()
    if "Model" in classes:
        return {"Model"}
    if "reference" in functions:
        return {"reference"}
    # Classes that other classes of the file are built from get their inputs inside.
    used: set[str] = set()
    for name, c in classes.items():
        used.update(c.used - {name})
    roots = {name for name in classes if name not in used and "." not in name}
    return roots or set(classes) or set(functions)


def _site(
    kind: Literal["module", "function"], facts: ClassFacts | FunctionFacts, lines: list[str], has_inputs: bool
) -> PythonSite:
    text = "\n".join(lines[facts.first : facts.last + 1])
    name = facts.name.rpartition(".")[2]
    found = re.search(rf"\b(?:class|def)\s+({re.escape(name)})\b", lines[facts.line])
    start = found.start(1) if found else 0
    return PythonSite(
        kind=kind,
        name=facts.name,
        name_span=Span(
            start_line=facts.line, start_column=start, end_line=facts.line, end_column=start + len(name)
        ),
        span=Span(start_line=facts.first, start_column=0, end_line=facts.last, end_column=len(lines[facts.last])),
        has_example_inputs=has_inputs,
        text_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16],
    )

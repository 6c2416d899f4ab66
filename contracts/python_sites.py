"""Optimisable classes and functions in a Python buffer, found in its text without importing it.

The answer is a good guess: a class counts when it can be traced to `torch.nn.Module` in this text, or has an
unknown base and a `forward`. Importing the file (the probe) decides.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from contracts.cuda_sites import Span

INPUT_FUNCTIONS = ("get_inputs", "get_inputs_variants")
HELPERS = frozenset({*INPUT_FUNCTIONS, "get_init_inputs", "main", "setup", "forward"})
MAX_REPAIRS = 3
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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
    was_on = gc.isenabled()
    # A large tree is thousands of small objects, none of them garbage: the collector would only count them.
    gc.disable()
    try:
        return _read(text)
    finally:
        if was_on:
            gc.enable()


def _read(text: str) -> tuple[tuple[PythonSite, ...], SyntaxError | None]:
    tree, error = _parse(text.removeprefix("\ufeff"))
    if tree is None:
        return (), error
    lines = re.split(r"\r\n|\r|\n", text)  # As ast counts lines; splitlines() also splits at form feeds.
    aliases = _aliases(tree)
    classes = dict(_module_classes(tree, aliases))
    functions = {
        node.name: node for node in tree.body
        if isinstance(node, _FUNCTIONS) and node.name not in HELPERS and not node.name.startswith("test_")
        and not _is_kernel(node) and _takes_tensors(node, aliases)
    }
    meant = _meant(tree, classes, functions)
    sites = [_site("module", name, node, lines, name in meant or _own_inputs(node)) for name, node in classes.items()]
    sites += [_site("function", name, node, lines, name in meant) for name, node in functions.items()]
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


def _parse(text: str) -> tuple[ast.Module | None, SyntaxError | None]:
    """The syntax tree, with top-level blocks that hold a syntax error blanked out, and the first error."""
    first: SyntaxError | None = None
    for _ in range(MAX_REPAIRS):
        try:
            return ast.parse(text), first
        except SyntaxError as error:
            first = first or error
            lines = text.split("\n")
            bad = min((error.lineno or 1) - 1, len(lines) - 1)
            start, end = bad, bad + 1
            while start > 0 and not _opens_block(lines[start]):
                start -= 1
            while end < len(lines) and not _opens_block(lines[end]):
                end += 1
            if not any(line.strip() for line in lines[start:end]):
                return None, first
            lines[start:end] = [""] * (end - start)
            text = "\n".join(lines)
        except (ValueError, RecursionError, MemoryError) as error:
            return None, first or SyntaxError(str(error) or type(error).__name__)
    return None, first


def _opens_block(line: str) -> bool:
    return bool(line) and (line[0].isalpha() or line[0] in "@_")


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Local name to full dotted name, from imports and from plain assignments of such names."""
    found: dict[str, str] = {}
    for node in _top_level(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name
                else:
                    root = alias.name.split(".")[0]
                    found[root] = root
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name] = f"{module}.{alias.name}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            full = _dotted(node.value, found)
            if full is not None and full.startswith("torch"):
                found[node.targets[0].id] = full
    return found


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import: those of `if`, `try` and `with` blocks too."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _top_level(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _top_level(handler.body)


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Subscript):  # A generic base: Base[T].
        return _dotted(node.value, aliases)
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, aliases)
        return f"{before}.{node.attr}" if before else None
    return None


def _module_classes(tree: ast.Module, aliases: dict[str, str]) -> Iterator[tuple[str, ast.ClassDef]]:
    every = list(_classes(tree.body, ""))
    known: set[str] = set()
    rest = every
    # A class may be defined after its use as a base in the text (never at run time), so repeat until nothing changes.
    while True:
        more = [(n, c) for n, c in rest if _derives(n, c, known, {name for name, _ in every}, aliases)]
        if not more:
            break
        known.update(name for name, _ in more)
        rest = [(n, c) for n, c in rest if n not in known]
    for name, node in every:
        if name in known:
            yield name, node


def _classes(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for node in _top_level(body):
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _classes(node.body, f"{prefix}{node.name}.")


def _derives(name: str, node: ast.ClassDef, known: set[str], local: set[str], aliases: dict[str, str]) -> bool:
    outer = name.rpartition(".")[0]
    unknown = False
    for base in node.bases:
        full = _dotted(base, aliases)
        if full is None:
            continue
        inner = f"{outer}.{full}" if outer else full
        if full in known or inner in known or _is_torch_module(full):
            return True
        unknown |= full not in local and inner not in local and full not in ("object", "Protocol", "ABC", "Enum")
    return unknown and any(isinstance(n, _FUNCTIONS) and n.name == "forward" for n in node.body)


def _is_torch_module(full: str) -> bool:
    if full.endswith(".LightningModule"):
        return True
    if not full.startswith("torch.nn."):
        return False
    last = full.rpartition(".")[2]
    return last[0].isupper() and last not in ("Parameter", "Buffer", "UninitializedParameter", "Tensor")


def _is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Triton kernels and test fixtures take tensors, but are not what we optimise."""
    text = " ".join(ast.unparse(d) for d in node.decorator_list)
    return isinstance(node, ast.AsyncFunctionDef) or "triton" in text or "fixture" in text


def _takes_tensors(node: ast.FunctionDef | ast.AsyncFunctionDef, aliases: dict[str, str]) -> bool:
    parameters = [*node.args.posonlyargs, *node.args.args]
    if not parameters:
        return False
    for parameter in parameters:
        note = parameter.annotation
        if note is None:
            continue
        words = note.value if isinstance(note, ast.Constant) else ast.unparse(note)
        if isinstance(words, str) and re.search(r"(^|\W)Tensor\b", words):
            return True
    if any(p.annotation is not None for p in parameters):
        return False
    names = {p.arg for p in parameters}
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            full = _dotted(call.func, aliases) or ""
            if full.startswith("torch.") and any(isinstance(a, ast.Name) and a.id in names for a in call.args):
                return True
    return False


def _meant(tree: ast.Module, classes: dict[str, ast.ClassDef], functions: dict[str, ast.FunctionDef]) -> set[str]:
    """Names of the sites that the file's get_inputs() is meant for."""
    named: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, _FUNCTIONS):
            named.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            named.update(a.asname or a.name for a in node.names)
        elif isinstance(node, ast.Assign):
            named.update(t.id for t in node.targets if isinstance(t, ast.Name))
    if not named.intersection(INPUT_FUNCTIONS):
        return set()
    if "Model" in classes:
        return {"Model"}
    if "reference" in functions:
        return {"reference"}
    # Classes that other classes of the file are built from get their inputs inside.
    used: set[str] = set()
    for name, node in classes.items():
        used.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id != name)
    roots = {name for name in classes if name not in used and "." not in name}
    return roots or set(classes) or set(functions)


def _own_inputs(node: ast.ClassDef) -> bool:
    return any(isinstance(n, _FUNCTIONS) and n.name in INPUT_FUNCTIONS for n in node.body)


def _site(
    kind: Literal["module", "function"],
    name: str,
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
    lines: list[str],
    has_inputs: bool,
) -> PythonSite:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    last = node.end_lineno or node.lineno
    text = "\n".join(lines[first:last])
    line = lines[node.lineno - 1]
    found = re.search(rf"\b(?:class|def)\s+({re.escape(node.name)})\b", line)
    start = found.start(1) if found else 0
    return PythonSite(
        kind=kind,
        name=name,
        name_span=Span(
            start_line=node.lineno - 1, start_column=start, end_line=node.lineno - 1,
            end_column=start + len(node.name),
        ),
        span=Span(start_line=first, start_column=0, end_line=last - 1, end_column=len(lines[last - 1])),
        has_example_inputs=has_inputs,
        text_sha256=hashlib.sha256(text.encode()).hexdigest()[:16],
    )

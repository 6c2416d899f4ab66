"""What each top-level block of a Python text defines, read once a block.

An editor asks after every keystroke. Reading 5,000 lines takes longer than a keystroke, and a syntax tree of them
takes tens of megabytes; so a text is cut into its top-level blocks, each is parsed by itself, and only the few facts
that sites are made of are kept, by the block's text.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

INPUT_FUNCTIONS = ("get_inputs", "get_inputs_variants")
# Blocks kept, over all texts.
KEPT = 4096
# A statement that goes on after a line that begins at its margin is looked for in so many further blocks.
FURTHER = 60
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# A line at the margin that begins a statement of its own; these words go on with the statement before them.
_MARGIN = re.compile(r"(?!(?:else|elif|except|finally)\b)[^\W\d]|@")
# Words that cannot stand inside of brackets, so that an open one before them is an error.
_STATEMENT = re.compile(r"(?:class|def|async\s+def|import|with|while|try|return|raise|assert|del|global)\b|@")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFacts:
    """A class. Lines are 0-based and count from the text's beginning; `bases` are dotted names as written."""

    name: str
    bases: tuple[str, ...]
    has_forward: bool
    has_inputs: bool
    used: frozenset[str]
    first: int
    line: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """A function at the margin. `calls` are dotted names of what is called with a parameter of it."""

    name: str
    is_kernel: bool
    has_parameters: bool
    is_annotated: bool
    takes_tensor: bool
    calls: tuple[str, ...]
    first: int
    line: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of a block or a text.

    Attributes:
        aliases: Local name, full name, and whether an assignment makes it.
        names: What is defined at the top level besides classes.
    """

    aliases: tuple[tuple[str, str, bool], ...] = ()
    names: frozenset[str] = frozenset()
    classes: tuple[ClassFacts, ...] = ()
    functions: tuple[FunctionFacts, ...] = ()


def read_blocks(lines: list[str]) -> tuple[list[tuple[int, Facts]], SyntaxError | None]:
    """Facts of every block with its first line, and the first syntax error; a block that has one is left out.

    Args:
        lines: The text's lines without their ends.
    """
    starts = list(_starts(lines))
    found: list[tuple[int, Facts]] = []
    first_error: SyntaxError | None = None
    number = 0
    while number < len(starts):
        facts, error, taken = _read_from(lines, starts, number)
        if facts is not None:
            found.append((starts[number], facts))
        elif first_error is None and error is not None:
            first_error = SyntaxError(error.msg)
            first_error.lineno = (error.lineno or 1) + starts[number]
        number += taken
    return found, first_error


def resolve(dotted: str, aliases: dict[str, str]) -> str:
    """A dotted name with its first part replaced by what it stands for."""
    head, dot, rest = dotted.partition(".")
    return f"{aliases.get(head, head)}{dot}{rest}"


def _starts(lines: list[str]) -> Iterator[int]:
    """Lines where blocks begin: at the margin, decorators with what they decorate; the first block begins at 0."""
    yield 0
    decorated = False
    for number, line in enumerate(lines):
        if line[:1] in ("", " ", "\t", "#", ")", "]", "}") or not _MARGIN.match(line):
            continue
        if not decorated and number:
            yield number
        decorated = line.startswith("@")


def _read_from(lines: list[str], starts: list[int], number: int) -> tuple[Facts | None, SyntaxError | None, int]:
    """Read the block that begins at `starts[number]`; a statement may take further blocks."""
    ends = [*starts[1:], len(lines)]
    facts, error = _block("\n".join(lines[starts[number]:ends[number]]))
    if facts is not None or error is None:
        return facts, error, 1
    in_text = "triple-quoted" in error.msg
    if in_text or "never closed" in error.msg or "EOF" in error.msg:
        for further in range(number + 1, min(len(starts), number + 1 + FURTHER)):
            block = lines[starts[further]:ends[further]]
            if in_text and not any('"""' in line or "'''" in line for line in block):
                continue
            if not in_text and _STATEMENT.match(block[0]):
                break
            facts, _ = _block("\n".join(lines[starts[number]:ends[further]]))
            if facts is not None:
                return facts, None, further - number + 1
    return None, error, 1


@lru_cache(maxsize=KEPT)
def _block(text: str) -> tuple[Facts | None, SyntaxError | None]:
    was_on = gc.isenabled()
    # A tree is thousands of small objects, none of them garbage: the collector would only count them.
    gc.disable()
    try:
        return _facts(ast.parse(text)), None
    except SyntaxError as error:
        plain = SyntaxError(error.msg)
        plain.lineno = error.lineno
        return None, plain
    except (ValueError, RecursionError, MemoryError) as error:
        return None, SyntaxError(str(error) or type(error).__name__)
    finally:
        if was_on:
            gc.enable()


def _facts(tree: ast.Module) -> Facts:
    aliases: list[tuple[str, str, bool]] = []
    names: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                aliases.append((alias.asname, alias.name, False) if alias.asname else (root, root, False))
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            aliases += [(alias.asname or alias.name, f"{module}.{alias.name}", False) for alias in node.names]
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            names.update(targets)
            if len(node.targets) == 1 and targets and (value := _dotted(node.value)):
                aliases.append((targets[0], value, True))
        elif isinstance(node, _FUNCTIONS):
            names.add(node.name)
    return Facts(
        aliases=tuple(aliases), names=frozenset(names), classes=tuple(_classes(tree.body, "")),
        functions=tuple(_function(node) for node in tree.body if isinstance(node, _FUNCTIONS)),
    )


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


def _classes(body: list[ast.stmt], prefix: str) -> Iterator[ClassFacts]:
    for node in _top_level(body):
        if isinstance(node, ast.ClassDef):
            methods = {n.name for n in node.body if isinstance(n, _FUNCTIONS)}
            yield ClassFacts(
                name=prefix + node.name, bases=tuple(filter(None, map(_dotted, node.bases))),
                has_forward="forward" in methods, has_inputs=not methods.isdisjoint(INPUT_FUNCTIONS),
                used=frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name)), first=_first(node),
                line=node.lineno - 1, last=(node.end_lineno or node.lineno) - 1,
            )
            yield from _classes(node.body, f"{prefix}{node.name}.")


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> FunctionFacts:
    decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
    parameters = [*node.args.posonlyargs, *node.args.args]
    notes = [p.annotation for p in parameters if p.annotation is not None]
    words = [note.value if isinstance(note, ast.Constant) else ast.unparse(note) for note in notes]
    names = {p.arg for p in parameters}
    calls = [] if notes else [
        _dotted(call.func) for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        and any(isinstance(argument, ast.Name) and argument.id in names for argument in call.args)
    ]
    return FunctionFacts(
        name=node.name,
        # Triton kernels and test fixtures take tensors, but are not what we optimise.
        is_kernel=isinstance(node, ast.AsyncFunctionDef) or "triton" in decorators or "fixture" in decorators,
        has_parameters=bool(parameters), is_annotated=bool(notes),
        takes_tensor=any(isinstance(word, str) and re.search(r"(^|\W)Tensor\b", word) for word in words),
        calls=tuple(dict.fromkeys(filter(None, calls))), first=_first(node), line=node.lineno - 1,
        last=(node.end_lineno or node.lineno) - 1,
    )


def _first(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Subscript):  # A generic base: Base[T].
        return _dotted(node.value)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else None
    return None

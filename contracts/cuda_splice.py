"""A kernel written anew, put into the user's own `.cu` text: the file stays theirs, one function works differently.

The text that comes out is what is built and judged, so what the user accepts is what was verified.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from contracts.cuda_sites import CudaFile, CudaFunction, defined_names, parse_cuda
from contracts.spans import Span

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(?P<what>[<\"][^>\"\n]+[>\"]).*\n?", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMENT_OR_STRING = re.compile(rf'"(?:\\.|[^"\\\n])*"|{_COMMENT.pattern}', re.DOTALL)
_BINDING = re.compile(r"^(?:PYBIND11_MODULE|TORCH_LIBRARY\w*)\s*\([^)]*\)\s*\{", re.MULTILINE)
# Around what we wrote, so that a later kernel takes its place. No `// hiera:` line: those are read.
_BEGIN, _END = "// ---- HIERA: {} ----", "// ---- HIERA: end of {} ----"
_OPENS, _CLOSES = re.compile(r"^[ \t]*#[ \t]*if"), re.compile(r"^[ \t]*#[ \t]*endif")


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def spliced(text: str, program: str, entry: str) -> str:
    """`text` with its function `entry` done as `program` does it.

    Includes, comments, pragmas, bindings and other functions of `text` stay. What `program` needs stands above the
    function; kernels that only the old function launched are gone. Names that would meet names of the user's are kept
    apart by a namespace. Texts without such a function give `program` itself.
    """
    begin, end = _BEGIN.format(entry), _END.format(entry)
    text = re.sub(rf"^{re.escape(begin)}\n.*?^{re.escape(end)}\n\n?", "", text, flags=re.MULTILINE | re.DOTALL)
    found, made = parse_cuda(text), parse_cuda(program)
    old, new = found.named(entry), made.named(entry)
    if old is None or new is None:
        return program
    unused = _only_launched_by(text, found, old)
    helpers, body = _without(_INCLUDE.sub("", program), entry)
    rest = _words(_cut(text, [old, *unused]))
    same = _header(text, old) == _header(program, new)
    if not same or (defined_names(helpers) & rest) - {entry}:
        space = f"hiera_{entry}"
        helpers = f"namespace {space} {{\n\n{helpers}\n\n{body}\n\n}}  // namespace {space}"
        body = _forwarder(text if _passes_on(old, new) else program, old if _passes_on(old, new) else new, new, space)
    place = _offsets(text, old.span)
    above = _comment_above(text, place[0])
    edits = [_Edit(*place, body), _Edit(above, above, f"{begin}\n{helpers}\n{end}\n\n"), _includes(text, program)]
    edits += [_Edit(*_with_line_end(text, *_offsets(text, kernel.span)), "") for kernel in unused]
    for edit in sorted(edits, key=lambda e: (e.start, e.end), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def with_bindings(text: str, original: str) -> str:
    """`text` with the Python bindings of `original` that it has lost."""
    found = [original[match.start() : _block_end(original, match.end())] for match in _BINDING.finditer(original)]
    lost = [block for block in found if block.split("{")[0] not in text]
    return "\n\n".join([text.rstrip("\n"), *lost]) + "\n" if lost else text


def _block_end(text: str, start: int) -> int:
    text, depth = _COMMENT_OR_STRING.sub(lambda found: " " * len(found[0]), text), 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return len(text)


def _only_launched_by(text: str, found: CudaFile, function: CudaFunction) -> list[CudaFunction]:
    """Kernels that `function` launches and nothing else in the text names."""
    launched = {launch.kernel for launch in found.launches if launch.function == function.name}
    kernels = [kernel for kernel in found.kernels if kernel.name in launched]
    return [k for k in kernels if k.name not in _words(_cut(text, [function, k]))]


def _without(program: str, entry: str) -> tuple[str, str]:
    """The program without its entry, and the entry."""
    function = parse_cuda(program).named(entry)
    assert function is not None
    start, end = _offsets(program, function.span)
    rest = program[:start].rstrip() + "\n\n" + program[end:].strip()
    return re.sub(r"\n{3,}", "\n\n", rest).strip(), program[start:end]


def _includes(text: str, program: str) -> _Edit:
    """The program's further includes, after the user's own; at the top where those are conditional."""
    own = {found["what"] for found in _INCLUDE.finditer(text)}
    more = dict.fromkeys(found["what"] for found in _INCLUDE.finditer(program) if found["what"] not in own)
    place, depth, offset = 0, 0, 0
    for line in text.splitlines(keepends=True):
        depth += bool(_OPENS.match(line)) - bool(_CLOSES.match(line))
        offset += len(line)
        if depth == 0 and _INCLUDE.match(line):
            place = offset
    lines = "".join(f"#include {what}\n" for what in more)
    return _Edit(place, place, lines if not place or text[place - 1] == "\n" else f"\n{lines}")


def _passes_on(old: CudaFunction, new: CudaFunction) -> bool:
    """True when the user's parameters are the program's by name, so that they can be passed on."""
    return sorted(p.name for p in old.parameters) == sorted(p.name for p in new.parameters)


def _forwarder(text: str, function: CudaFunction, target: CudaFunction, space: str) -> str:
    start, _ = _offsets(text, function.span)
    arguments = ", ".join(parameter.name for parameter in target.parameters)
    return f"{text[start:_body_start(text, function)].rstrip()} {{\n  return {space}::{target.name}({arguments});\n}}"


def _header(text: str, function: CudaFunction) -> str:
    """The function's head, spelled in one way."""
    start, _ = _offsets(text, function.span)
    return re.sub(r"\s+", "", text[start:_body_start(text, function)]).replace("at::Tensor", "torch::Tensor")


def _body_start(text: str, function: CudaFunction) -> int:
    start, end = _offsets(text, function.span)
    masked = _COMMENT.sub(lambda comment: " " * len(comment[0]), text[start:end])
    return start + max(masked.find("{"), 0)


def _comment_above(text: str, start: int) -> int:
    """Where the comments that stand right above `start` begin; `start`'s line where there are none."""
    place = text.rfind("\n", 0, start) + 1
    while place > 0:
        line = text.rfind("\n", 0, place - 1) + 1
        if text[line:place].rstrip().endswith("*/"):
            line = text.rfind("\n", 0, text.rfind("/*", 0, place)) + 1
            if not text[line:place].lstrip().startswith("/*"):
                break
        elif not text[line:place].lstrip().startswith("//"):
            break
        place = line
    return place


def _cut(text: str, functions: list[CudaFunction]) -> str:
    for start, end in sorted((_offsets(text, f.span) for f in functions), reverse=True):
        text = text[:start] + text[end:]
    return text


def _words(text: str) -> set[str]:
    return set(re.findall(r"\b[A-Za-z_]\w*\b", _COMMENT.sub(" ", text)))


def _with_line_end(text: str, start: int, end: int) -> tuple[int, int]:
    """The stretch with its last line's end, and with the empty lines after it where there is one before it too."""
    end += len(text[end:]) - len(text[end:].lstrip(" \t"))
    end += text[end : end + 1] == "\n"
    if not text[:start] or text[:start].endswith("\n\n"):
        end += len(text[end:]) - len(text[end:].lstrip("\n"))
    return start, end


def _offsets(text: str, span: Span) -> tuple[int, int]:
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    return starts[span.start_line] + span.start_column, starts[span.end_line] + span.end_column

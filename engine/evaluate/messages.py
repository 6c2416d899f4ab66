"""What compilers say, as data: kernel facts from ptxas, errors and warnings with lines of the user's own file."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence

from engine.records import BuildError, KernelFacts

SOURCE_NAME = "cuda_source.cu"
MAX_MESSAGES = 20
MAX_LOG_CHARS = 8192
# nvcc's front end: file(12): error: text. gcc: file:12:5: error: text.
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\s:(][^:(\n]*?)(?:\((?P<line>\d+)\)|:(?P<gline>\d+)(?::\d+)?)\s*:\s*"
    r"(?P<kind>catastrophic error|fatal error|error|warning)\b\s*(?:#(?P<number>[\d-]+D?)[^:]*)?:?\s*(?P<text>.*)$"
)
_TOOL_ERROR = re.compile(
    r"^(?P<tool>ptxas|nvlink|nvcc|cudafe\+\+|cicc|fatbinary|ld|collect2|/usr/bin/ld)\b[^:]*?\s*(?:fatal|error)[^:]*:\s*"
    r"(?P<text>.*)$"
)
_INSTANTIATED_AT = re.compile(r"at line (?P<line>\d+)(?: of (?P<file>\S+))?")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_USED = re.compile(r"Used (\d+) registers(.*)")
# Chatter of ours, not of the user's: unused inline helpers, what torch's own headers provoke.
_IGNORED_WARNINGS = frozenset({"20012-D", "20013-D", "20014-D", "20015-D", "2361-D"})


def clean(text: str) -> str:
    """`text` without control characters and escape sequences: what a tool wrote is shown to people and models."""
    return _CONTROL.sub("", text)


def tail(log: str) -> str:
    """The last part of a log, fit to show."""
    return clean(log)[-MAX_LOG_CHARS:]


def errors(log: str, source: str) -> tuple[BuildError, ...]:
    """Compiler errors, in order, at most MAX_MESSAGES.

    An error inside a header is given the line of the user's file that led there, where the compiler tells it.
    """
    found: list[BuildError] = []
    lines = clean(log).splitlines()
    for index, text in enumerate(lines):
        match = _DIAGNOSTIC.match(text)
        if match and match["kind"] != "warning":
            message = match["text"].strip()
            line = _own_line(match) or _line_that_led_there(lines, index)
            if not _is_own(match["file"]):
                message = f"{message} (in {match['file'].rsplit('/', 1)[-1]})"
            _append(found, BuildError(line=line, message=message))
            continue
        tool = _TOOL_ERROR.match(text)
        if tool and not any(e.message == tool["text"] for e in found):
            line = _kernel_line(tool["text"], source)
            _append(found, BuildError(line=line, message=f"{tool['tool'].rsplit('/', 1)[-1]}: {tool['text']}"))
    return tuple(found[:MAX_MESSAGES])


def warnings(log: str) -> tuple[str, ...]:
    """Warnings about the user's own file, and ptxas's performance advice, at most MAX_MESSAGES."""
    found: list[str] = []
    for text in clean(log).splitlines():
        match = _DIAGNOSTIC.match(text)
        if match and match["kind"] == "warning" and _is_own(match["file"]):
            if match["number"] not in _IGNORED_WARNINGS:
                _append(found, f"line {_own_line(match)}: {match['text'].strip()}")
        elif text.startswith(("ptxas warning", "ptxas info    : (C")) or "Potential Performance Loss" in text:
            _append(found, text.split(":", 1)[1].strip())
    return tuple(found[:MAX_MESSAGES])


def kernel_facts(log: str, names: Mapping[str, str]) -> tuple[KernelFacts, ...]:
    """Facts of every kernel out of `ptxas -v`'s report.

    Args:
        log: nvcc's output.
        names: Mangled to readable names.
    """
    found: list[KernelFacts] = []
    current: str | None = None
    stack = spills = 0
    for text in clean(log).splitlines():
        if entry := _ENTRY.search(text):
            current, stack, spills = entry["name"], 0, 0
        elif current and (frame := _FRAME.search(text)):
            stack, spills = int(frame[1]), int(frame[2]) + int(frame[3])
        elif current and (used := _USED.search(text)):
            shared = re.search(r"(\d+) bytes smem", used[2])
            found.append(
                KernelFacts(
                    name=names.get(current, current), registers=int(used[1]),
                    shared_bytes=int(shared[1]) if shared else 0, spill_bytes=spills, stack_bytes=stack,
                )
            )
            current = None
    return tuple(found)


def mangled_kernels(log: str) -> list[str]:
    """Mangled names of the kernels that `log` reports on."""
    return [match["name"] for match in _ENTRY.finditer(log)]


def short_name(demangled: str) -> str:
    """A kernel's name without result type and parameters: `void f<int>(float*)` becomes `f<int>`."""
    depth = 0
    end = len(demangled)
    for index in range(len(demangled) - 1, -1, -1):
        depth += (demangled[index] == ")") - (demangled[index] == "(")
        if depth == 0 and demangled[index] == "(":
            end = index
            break
    name = demangled[:end]
    angle = 0
    for index in range(len(name) - 1, -1, -1):
        angle += (name[index] == ">") - (name[index] == "<")
        if angle == 0 and name[index] == " ":
            return name[index + 1 :]
    return name


async def demangle(names: Sequence[str]) -> dict[str, str]:
    """Mangled names to short readable ones; as they are where no demangler is installed."""
    tool = next((t for t in ("cu++filt", "c++filt") if shutil.which(t)), None)
    if not names or tool is None:
        return {name: name for name in names}
    process = await asyncio.create_subprocess_exec(
        tool, *names[:200], stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), timeout=20)
    shown = out.decode(errors="replace").splitlines()
    return {name: short_name(text) for name, text in zip(names, shown, strict=False)}


def _append(found: list, item: object) -> None:
    if item not in found:
        found.append(item)


def _is_own(file: str) -> bool:
    return file.endswith(SOURCE_NAME)


def _own_line(match: re.Match[str]) -> int | None:
    return int(match["line"] or match["gline"]) if _is_own(match["file"]) else None


def _line_that_led_there(lines: Sequence[str], index: int) -> int | None:
    """The user's line in the instantiation trace that follows an error in a header."""
    for text in lines[index + 1 : index + 40]:
        if _DIAGNOSTIC.match(text):
            break
        trace = _INSTANTIATED_AT.search(text)
        if trace and trace["file"] and _is_own(trace["file"].strip('"')):
            return int(trace["line"])
    for text in reversed(lines[max(0, index - 12) : index]):
        place = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", text)
        if place:
            return int(place[1])
    return None


def _kernel_line(message: str, source: str) -> int | None:
    """Line of the kernel that a ptxas error names by its mangled name."""
    entry = re.search(r"function '(\w+)'", message, re.I)
    if not entry:
        return None
    for match in re.finditer(r"__global__[^;{(]*?(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:\w+\s+)*?(\w+)\s*\(", source):
        name = match[1]
        if entry[1] == name or f"{len(name)}{name}" in entry[1]:
            return source.count("\n", 0, match.start()) + 1
    return None

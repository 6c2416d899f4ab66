"""CUDA C++ text to host C++ text for the emulator's headers, line for line.

Few things need rewriting, the rest is done by `engine/runtime/emulator`: kernel launches, dynamic shared
memory, static shared memory (refilled with garbage for each block), inline PTX (`ptx_to_host`), and words the host's
library also uses.
"""

from __future__ import annotations

import re

from engine.evaluate import ptx_to_host

_COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z])'(?:\\.|[^'\\\n])'""", re.DOTALL
)
_ALIGNMENT = r"(?:__align__|alignas)\s*\((?:[^()]|\([^()]*\))*\)"
_DYNAMIC_SHARED = re.compile(
    rf"\bextern\s+(?:volatile\s+)?__shared__\s+(?:{_ALIGNMENT}\s*)?"
    rf"(?P<type>(?:\w|::|<[^<>;]*>|\s)+?)\s*(?:{_ALIGNMENT}\s*)?\b(?P<name>\w+)\s*\[\s*\]\s*(?:{_ALIGNMENT}\s*)?;"
)
_UNROLL = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+(?:unroll|nounroll|nv_\w+|hd_warning_disable)\b.*$", re.MULTILINE)
_NOINLINE = re.compile(r"\b__noinline__\b")
_NULL = re.compile(r"\bNULL\b")  # As a kernel's argument it would be deduced as a number.
_SHARED = re.compile(r"(?:\bstatic\s+)?\b__shared__\b")
_OPENING, _CLOSING = "([{", ")]}"

# What cannot run on the emulator, and how it shows in the text.
_BLOCKERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("inline PTX", r"\basm\s*(?:volatile|__volatile__)?\s*\("),
        ("asynchronous copies and pipelines", r"cuda::pipeline|cuda::barrier|\bmemcpy_async\b"),
        ("CUB, Thrust or libcu++", r"#\s*include\s*[<\"](?:cub|thrust|cuda)/"),
        ("CUTLASS or CuTe", r"#\s*include\s*[<\"](?:cute|cutlass)/"),
        ("cuDNN", r"#\s*include\s*[<\"]cudnn|\bcudnn[A-Z]\w*\s*\("),
        ("cuFFT, cuRAND, cuSPARSE or cuSOLVER", r"#\s*include\s*[<\"]cu(?:fft|rand|sparse|solver)|\bcurand\w*\s*\("),
        ("grid synchronisation", r"\bthis_grid\b|\bgrid_group\b"),
        # The emulator learns a cluster's size from the launch.
        ("cluster sizes in a kernel's declaration", r"\b__cluster_dims__\b"),
        ("cooperative or untyped launches", r"\bcudaLaunch(?:CooperativeKernel|KernelExC)\w*"),
        ("coalesced groups", r"\bcoalesced_threads\s*\(|\bbinary_partition\b|\blabeled_partition\b"),
        ("CUDA graphs", r"\bcudaGraph\w+|\bcudaStreamBeginCapture\b"),
        # Kernels are recorded and replayed; what runs inside a library is not.
        ("CUDA graphs of library calls",
         r"\bCUDAGraph\b[\s\S]*?\b(?:cublas[A-Z]\w+\(|at::(?!empty|cuda\b|k[A-Z])[a-z_]\w*\(|copy_\()"),
        ("textures or surfaces", r"\btex[123]D\w*\s*[<(]|\bsurf[123]D\w*\s*[<(]|\bcudaTextureObject_t\b"),
        ("TMA or wgmma", r"\bCUtensorMap\b|\bcuTensorMap\w+|\bwgmma\b"),
        ("8-bit floating point", r"\b__nv_fp8_|#\s*include\s*[<\"]cuda_fp8"),
        ("the driver interface", r"\bcu(?:Launch|Module|Mem|Ctx|Func)\w+\s*\("),
        ("run-time compilation", r"\bnvrtc\w+\s*\("),
    )
)


def mask(source: str) -> str:
    """The text at the same length with comments and literals blanked; newlines stay."""
    return _COMMENT_OR_LITERAL.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def blockers(source: str) -> tuple[str, ...]:
    """What in the text the emulator cannot run; empty when it can be tried."""
    code = _without_comments(ptx_to_host.translated(source, mask))
    return tuple(name for name, pattern in _BLOCKERS if pattern.search(code))


def transform(source: str) -> str:
    """Host C++ for `hiera_emu/all.h`. Every line of the result stands on the line it came from.

    Raises:
        ValueError: A launch or a declaration has no end (the text does not parse).
    """
    text = ptx_to_host.translated(source, mask)
    text = _splice(text, _UNROLL, lambda _: "")
    text = _splice(text, _NOINLINE, lambda _: "__attribute__((noinline))")
    text = _splice(text, _NULL, lambda _: "nullptr")
    text = _splice(text, _DYNAMIC_SHARED, _dynamic_pointer)
    text = _poisoned_shared(text)
    return _launches(text)


def _without_comments(source: str) -> str:
    # Literals stay: includes are written like literals, and asm's text is one.
    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0]) if found[0].startswith("/") else found[0]

    return _COMMENT_OR_LITERAL.sub(blank, source)


def _splice(text: str, pattern: re.Pattern[str], replace: object) -> str:
    """`pattern.sub` on code only: found in the masked text, replaced in the real one, lines kept."""
    out, last = [], 0
    for found in pattern.finditer(mask(text)):
        new = replace(found)  # type: ignore[operator]
        out += [text[last : found.start()], new, "\n" * (found[0].count("\n") - new.count("\n"))]
        last = found.end()
    return "".join(out) + text[last:]


def _dynamic_pointer(found: re.Match[str]) -> str:
    kind = " ".join(found["type"].split())
    return f"{kind}* const {found['name']} = reinterpret_cast<{kind}*>(::hiera_emu::dynamic_shared);"


def _poisoned_shared(text: str) -> str:
    """After each `__shared__ T a[..], b;` add the statements that refill a and b for a new block."""
    code, out, last = mask(text), [], 0
    for found in _SHARED.finditer(code):
        if found.start() < last or _is_in_define(code, found.start()):
            continue
        end = _end_of_statement(code, found.end())
        declaration = text[found.end() : end]
        names = _declared_names(code[found.end() : end])
        if not names:
            continue
        aligned = re.sub(r"\balignas\s*\(", "__align__(", declaration)  # `static alignas(16)` is not C++.
        out += [text[last : found.start()], "__shared__", aligned, ";"]
        out += [f" ::hiera_emu::poison_shared({name});" for name in names]
        last = end + 1
    return "".join(out) + text[last:]


def _is_in_define(code: str, position: int) -> bool:
    start = position
    while True:
        start = code.rfind("\n", 0, start)
        if start < 1 or code[start - 1] != "\\":
            break
    return code[start + 1 : position].lstrip().startswith("#")


def _end_of_statement(code: str, start: int) -> int:
    depth = 0
    for position in range(start, len(code)):
        letter = code[position]
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == ";" and depth == 0:
            return position
    raise ValueError(f"line {code.count(chr(10), 0, start) + 1}: the declaration has no end")


def _declared_names(declaration: str) -> list[str]:
    """Names declared by `T a[4], b`; empty when the form is not understood."""
    pieces, depth, last = [], 0, 0
    for position, letter in enumerate(declaration):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            pieces.append(declaration[last:position])
            last = position + 1
    pieces.append(declaration[last:])
    names = []
    for number, piece in enumerate(pieces):
        head = re.sub(rf"{_ALIGNMENT}", " ", piece)
        found = re.fullmatch(r"(?P<before>.*?)\b(?P<name>[A-Za-z_]\w*)\s*(?:\[.*\]\s*)*", head, re.DOTALL)
        # The first piece starts with a type, so something must stand before the name.
        if found is None or (number == 0 and not found["before"].strip()):
            return []
        names.append(found["name"])
    return names


def _launches(text: str) -> str:
    code, out, last = mask(text), [], 0
    start = code.find("<<<")
    while start >= 0:
        begin = _start_of_callee(code, start)
        end = _end_of_configuration(code, start + 3)
        callee = text[begin:start].strip()
        shown = re.sub(r"\s+", " ", callee).replace("\\", "").replace('"', "'")
        out.append(
            f'{text[last:begin]}::hiera_emu::launch({{"{shown}", __FILE__, __LINE__}}, '
            f"[&](auto... hiera_a) {{ {callee}(hiera_a...); }}, {text[start + 3 : end]})"
        )
        last = end + 3
        start = code.find("<<<", last)
    return "".join(out) + text[last:]


def _start_of_callee(code: str, position: int) -> int:
    """Where `name`, `ns::name<args>`, `table[i]`, `choose(n)` or `(expression)` before `<<<` begins."""
    position = _skip_space_back(code, position - 1)
    if code[position] == ">":
        position = _skip_space_back(code, _matching_open(code, position, "<", ">") - 1)
    elif code[position] in ")]":
        position = _matching_open(code, position, "([", ")]") - 1
    while position >= 0 and (code[position].isalnum() or code[position] in "_:"):
        position -= 1
    return position + 1


def _skip_space_back(code: str, position: int) -> int:
    while position > 0 and code[position].isspace():
        position -= 1
    return position


def _matching_open(code: str, position: int, opening: str, closing: str) -> int:
    depth = inside = 0
    for index in range(position, -1, -1):
        if closing == ">":  # A comparison in parentheses is no bracket.
            inside += (code[index] in _CLOSING) - (code[index] in _OPENING)
        if inside == 0:
            depth += (code[index] in closing) - (code[index] in opening)
        if depth == 0 and inside == 0:
            return index
    raise ValueError(f"line {code.count(chr(10), 0, position) + 1}: no {opening!r} for this {closing!r}")


def _end_of_configuration(code: str, start: int) -> int:
    depth = 0
    for position in range(start, len(code)):
        if depth == 0 and code.startswith(">>>", position):
            return position
        depth += (code[position] in _OPENING) - (code[position] in _CLOSING)
    raise ValueError(f"line {code.count(chr(10), 0, start) + 1}: the launch has no '>>>'")

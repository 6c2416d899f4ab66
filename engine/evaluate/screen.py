"""The first stage: what the text alone tells, in milliseconds. Rejections here are certain; flags are only hints."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.records import BuildError, Failure

MAX_SOURCE_BYTES = 4 << 20  # Whole networks of a hundred layers are a megabyte of readable text.
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include(?:_next)?|import)[ \t]*(?P<quote>[<\"])(?P<path>[^>\"\n]*)", re.M)
_COMPUTED_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include(?:_next)?|import)[ \t]+[A-Za-z_]", re.M)
_HEADER_ENDINGS = (".h", ".hpp", ".hxx", ".hh", ".cuh", ".inl", ".inc", ".ipp", ".tcc")
_REFUSED = (
    (re.compile(r"\bincbin\b"), "`.incbin` reads files into the object, which a kernel has no use for"),
    (re.compile(r"^[ \t]*#[ \t]*embed\b|__has_embed", re.M), "`#embed` reads files, which a kernel has no use for"),
    (re.compile(r"\.\s*include\b"), "assembler `.include` reads files, which a kernel has no use for"),
)
# Cheap signs of trouble. They never decide: the symbol audit and the sandbox do.
_FLAGS = (
    ("dlsym", re.compile(r"\bdl(?:open|sym|mopen)\b")),
    ("Python C API", re.compile(r"\bPy(?:Run|Object|Import|GILState|Eval)_\w+|#\s*include\s*[<\"]Python\.h")),
    ("system call", re.compile(r"\bsyscall\b")),
    ("process", re.compile(r"\b(?:fork|vfork|execv\w*|popen|system)\s*\(")),
    ("threads", re.compile(r"\bstd::(?:thread|async)\b|\bpthread_create\b")),
    ("constructor", re.compile(r"__attribute__\s*\(\s*\(\s*(?:constructor|ifunc)")),
    ("L2 persistence", re.compile(r"cudaLimitPersistingL2CacheSize|cudaAccessPropertyPersisting")),
    ("new stream", re.compile(r"\bcudaStreamCreate|getStreamFromPool")),
    ("static state", re.compile(r"^\s*static\s+(?:torch|at)::Tensor\b", re.M)),
    ("fallback", re.compile(r"\bcatch\s*\(")),
)


def screen(source: str | bytes, *, entries: Sequence[str] = ()) -> Failure | None:
    """Why `source` is not worth building, or None.

    Args:
        source: The text of cuda_source.cu.
        entries: Host functions that cpp_source.cpp declares.
    """
    if isinstance(source, bytes):
        try:
            text = source.decode("utf-8")
        except UnicodeDecodeError as error:
            return _failure(f"the source is not UTF-8: byte {error.start} is {source[error.start]:#04x}")
        size = len(source)
    else:
        text = source
        try:
            size = len(source.encode("utf-8"))
        except UnicodeEncodeError as error:
            return _failure(f"the source is not UTF-8: character {error.start} is a lone surrogate")
    if size > MAX_SOURCE_BYTES:
        return _failure(f"the source is {size} bytes long, more than {MAX_SOURCE_BYTES}")
    if "\0" in text:
        return _failure("the source holds a NUL byte", text, text.index("\0"))
    plain = mask_comments(text.replace("%:", "# "))
    for match in _INCLUDE.finditer(plain):
        reason = _refused_include(match["quote"], match["path"])
        if reason:
            return _failure(reason, plain, match.start("path"))
    match = _COMPUTED_INCLUDE.search(plain)
    if match:
        return _failure("an include that is computed by a macro is not taken", plain, match.start())
    for pattern, reason in _REFUSED:
        match = pattern.search(plain)
        if match:
            return _failure(reason, plain, match.start())
    # Line splices and literals that are joined by the compiler could hide the same words.
    joined = re.sub(r"\"\s*\"", "", mask_comments(re.sub(r"\\\r?\n", "", text.replace("%:", "# "))))
    for match in _INCLUDE.finditer(joined):
        reason = _refused_include(match["quote"], match["path"])
        if reason:
            return _failure(reason)
    for pattern, reason in ((_COMPUTED_INCLUDE, "an include that is computed by a macro is not taken"), *_REFUSED):
        if pattern.search(joined):
            return _failure(reason)
    for entry in entries:
        if not re.search(rf"\b{re.escape(entry)}\s*\(", plain):
            return _failure(f"cuda_source.cu does not define {entry}, which cpp_source.cpp declares")
    return None


def flags(source: str) -> tuple[str, ...]:
    """Names of cheap signs of trouble in `source`, for the record. Never a verdict."""
    plain = mask_comments(source)
    return tuple(name for name, pattern in _FLAGS if pattern.search(plain))


def mask_comments(text: str) -> str:
    """`text` with comments blanked and every line and column where it was."""
    pattern = re.compile(
        r"(?P<raw>R\"(?P<mark>[^(\s]{0,16})\(.*?\)(?P=mark)\")|(?P<text>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+')"
        r"|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))",
        re.S,
    )
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m["comment"] else m[0], text)


def _refused_include(quote: str, path: str) -> str:
    path = path.strip()
    if path.startswith(("/", "~")) or ".." in path.split("/") or "\\" in path:
        return f"the include {path} leaves the include folders; name a header by its own name"
    if quote == '"' and "." in path and not path.endswith(_HEADER_ENDINGS):
        return f"the include {path} is not a header"
    return ""


def _failure(reason: str, text: str = "", offset: int | None = None) -> Failure:
    line = text.count("\n", 0, offset) + 1 if offset is not None else None
    place = f"cuda_source.cu:{line}: " if line is not None else ""
    errors = (BuildError(line=line, message=reason),)
    return Failure(stage="screen", reason=place + reason, errors=errors)

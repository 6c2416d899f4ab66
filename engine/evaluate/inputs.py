"""What a build is made from beside the text, the reference's own text, and nvcc's name of the device."""

from __future__ import annotations

import re
from pathlib import Path

from contracts.errors import InputError


def architecture(sm: str) -> str:
    """Nvcc's number for a compute capability: `90a` for 9.0, `86` for 8.6.

    From 9.0 on the `a` variant is taken: the code runs on this device only, and may use all it has.
    """
    digits = sm.replace(".", "").removeprefix("sm_")
    plain = digits.rstrip("af")
    return digits if digits != plain else plain + ("a" if int(plain) >= 90 else "")


def reference_text(folder: Path) -> tuple[Path, str]:
    """The user's own kernel in a contract folder, where that is the reference, and its file.

    Raises:
        InputError: It cannot be read.
    """
    path = folder / "reference.cu"
    if not path.exists():
        path = folder / "cuda_source.cu"
    try:
        return path, path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the reference cannot be read: {error}", hint="restore the file", file=path) from None


def local_headers(folder: Path, source: str) -> dict[str, str]:
    """Headers of the contract folder that `source` includes by a quoted name, and those that they include."""
    found: dict[str, str] = {}
    waiting = [source]
    while waiting:
        for name in re.findall(r"^[ \t]*#[ \t]*include[ \t]*\"([\w./-]+)\"", waiting.pop(), re.M):
            path = folder / name
            if name in found or ".." in name.split("/") or name.startswith("/") or not path.is_file():
                continue
            if path.suffix not in {".h", ".hpp", ".cuh", ".inl", ".inc"}:
                continue
            found[name] = path.read_text(encoding="utf-8", errors="replace")
            waiting.append(found[name])
    return found

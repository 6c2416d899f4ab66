"""What a build is made from beside the text: headers of the contract folder, and nvcc's name of the device."""

from __future__ import annotations

import re
from pathlib import Path


def architecture(sm: str) -> str:
    """Nvcc's number for a compute capability: `90a` for 9.0, `86` for 8.6.

    From 9.0 on the `a` variant is taken: the code runs on this device only, and may use all it has.
    """
    digits = sm.replace(".", "").removeprefix("sm_")
    plain = digits.rstrip("af")
    return digits if digits != plain else plain + ("a" if int(plain) >= 90 else "")


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

"""JSON lines on disk: appended one at a time and synced, whole or not at all after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one JSON line and wait until it is on the disk.

    Raises:
        ConfigError: The disk refused it.
    """
    try:
        with path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(f"a result cannot be written: {error.strerror}", hint="free space, then go on with --resume",
                          file=path) from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole JSON objects of a file; a line that a killed process left half written is left out.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}", hint="check the path", file=path) from None
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def cut_torn_line(path: Path) -> None:
    """Take off what a killed process left of its last line, so that the next one does not join it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (1 << 20)))
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)

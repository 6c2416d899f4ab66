"""What results were made from: which state of our text, which machine, when."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contracts.errors import WorkerTimeoutError
from engine import processes

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("contracts", "engine")


async def provenance(commit: str | None = None) -> dict[str, Any]:
    """Facts for every row of a sitting.

    Args:
        commit: What to call the state of our text; None asks git, where we run from a checkout.
    """
    return {
        "sitting": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit or await checkout_commit(),
        "text_sha256": text_digest(), "machine": {"cpus": os.cpu_count(), "system": platform.platform(terse=True)},
    }


def text_digest() -> str:
    """First 12 hex digits over all our source files, which says that two sittings ran the same text."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted(ROOT.joinpath(package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


async def checkout_commit(packages: Sequence[str] = PACKAGES) -> str | None:
    """The checkout's commit, with a `+` where files of `packages` differ from it; None where this is no checkout."""
    known = await _git("ls-files", "engine/optimize.py")
    commit = await _git("rev-parse", "--short=12", "HEAD")
    if not known or not commit:
        return None
    return commit + ("+" if await _git("status", "--porcelain", "--", *packages) else "")


async def _git(*words: str) -> str:
    try:
        done = await processes.run(["git", "-C", str(ROOT), *words], timeout_s=20)
    except (FileNotFoundError, WorkerTimeoutError):
        return ""
    return done.stdout.strip() if done.status == 0 else ""

"""When is a request the same as an earlier one? Same job, same texts, same interpreter, same machine.

Nothing is imported and no process is started, so that the answer comes at once.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from engine.store import Store, request_key
from engine.trajectory import Job, Trajectory

CUDA_FILES = (".cu", ".cuh")
SETTINGS_FILES = ("pyproject.toml", "hiera.toml")


def earlier_run(job: Job, store: Store) -> Trajectory | None:
    """The complete run that answered the same request, or None."""
    key = request_of(job)
    run = store.finished_run(key) if key else None
    return store.load(run) if run else None


def request_of(job: Job) -> str | None:
    """The key of a request; None where its files cannot be read."""
    root = Path(job.file)
    try:
        files = sorted(_files(root))
        texts = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    except OSError:
        return None
    if not texts:
        return None
    return request_key(job, {"files": texts, "python": _python(job.python), "machine": _machine(), "ours": _ours()})


def _files(root: Path) -> Iterator[Path]:
    """The file and everything of the user's project that it imports or includes, or the folder's files."""
    if root.is_dir():
        yield from (path for path in root.iterdir() if path.is_file())
        return
    seen: set[Path] = set()
    waiting = [root]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        yield path
        if path.suffix == ".py":
            waiting += _imported(path, root.parent)
        elif path.suffix in CUDA_FILES:
            waiting += [p for p in (*path.parent.glob("*.cuh"), *path.parent.glob("*.h")) if p not in seen]
            beside = path.parent / "groundtruth.py"
            waiting += [beside] if beside.exists() else []


def _imported(path: Path, project: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        names: list[str] = []
        base = project
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = path.parents[min(node.level, len(path.parents)) - 1]
            head = node.module or ""
            names = [head, *(f"{head}.{alias.name}".strip(".") for alias in node.names)]
        for name in filter(None, names):
            for folder in {base, path.parent, *project.parents[:3]}:
                stem = folder.joinpath(*name.split("."))
                yield from (p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file())


def _python(python: str) -> list[object]:
    """The interpreter and when packages were last installed into it."""
    path = Path(python or sys.executable)
    stamps = [(str(folder), folder.stat().st_mtime_ns)
              for folder in sorted(path.absolute().parent.parent.glob("lib/python3*/site-packages"))]
    return [str(path), *stamps]


def _machine() -> list[str]:
    """The GPUs and driver as the kernel shows them, and what this process may see of them."""
    found = [os.environ.get("CUDA_VISIBLE_DEVICES", "all")]
    root = Path("/proc/driver/nvidia")
    for path in (root / "version", *sorted(root.glob("gpus/*/information"))):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    found += map(str, sorted(Path("/usr/local").glob("cuda*/bin/nvcc")))
    return found


def _ours() -> str:
    """Our own state: a new version of HIERA answers anew."""
    newest = max((path.stat().st_mtime_ns for path in Path(__file__).parent.rglob("*.*")
                  if "__pycache__" not in path.parts), default=0)
    return str(newest)

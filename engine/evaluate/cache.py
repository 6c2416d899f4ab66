"""The build cache: folders named by their content, made elsewhere and moved into place whole. No locks.

A build that is killed leaves only its work folder behind, which the next start of any process clears away.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ENGINE = Path(__file__).parent.parent
MAX_BYTES = 4 << 30
MAX_WORK_AGE_S = 24 * 3600.0
_numbers = itertools.count()


class BuildCache:
    """Folders of one cache.

    Args:
        root: Made when missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.work = self.root / "work"
        self.builds = self.root / "builds"
        self.bindings = self.root / "bindings"
        self.runtimes = self.root / "runtimes"
        self.sources = self.root / "sources"
        for folder in (self.work, self.builds, self.bindings, self.runtimes, self.sources):
            folder.mkdir(parents=True, exist_ok=True)
        self._clear_stale_work()
        self._prune()

    @contextlib.contextmanager
    def work_folder(self) -> Iterator[Path]:
        """A private folder, gone afterwards. Its name carries our process id."""
        folder = self.work / f"{os.getpid()}-{next(_numbers)}-{time.time_ns():x}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, made: Path, final: Path) -> Path:
        """Move `made` to `final` in one step. Where another process was faster, its folder is kept."""
        try:
            made.rename(final)
        except OSError:
            if not final.is_dir():
                raise
        return final

    def discard(self, folder: Path) -> None:
        """Take a damaged entry away, in one step for those who look at the same time."""
        with self.work_folder() as work, contextlib.suppress(OSError):
            folder.rename(work / "discarded")

    def touch(self, folder: Path) -> None:
        """Note that `folder` was used, so that pruning spares it."""
        with contextlib.suppress(OSError):
            os.utime(folder)

    def _clear_stale_work(self) -> None:
        now = time.time()
        for folder in self.work.iterdir():
            pid = folder.name.split("-")[0]
            with contextlib.suppress(OSError):
                if not pid.isdigit() or not _alive(int(pid)) or now - folder.stat().st_mtime > MAX_WORK_AGE_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def _prune(self) -> None:
        """Drop the builds that were not used for longest, down to MAX_BYTES."""
        sizes: list[tuple[float, int, Path]] = []
        for folder in self.builds.iterdir():
            with contextlib.suppress(OSError):
                size = sum(path.stat().st_size for path in folder.iterdir())
                sizes.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in sizes)
        for _, size, folder in sorted(sizes):
            if total <= MAX_BYTES:
                break
            shutil.rmtree(folder, ignore_errors=True)
            total -= size


def text_key(*parts: str) -> str:
    """32 hex digits that change with any of `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


def file_key(paths: Sequence[Path]) -> str:
    """32 hex digits that change with the content of any file."""
    stats = [(path, path.stat()) for path in paths]
    return _file_key(tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats))


@functools.lru_cache(maxsize=8)
def _file_key(stamped: tuple[tuple[str, int, int], ...]) -> str:
    return text_key(*(Path(path).read_text(encoding="utf-8") for path, _, _ in stamped))


def code_key() -> str:
    """Hash of all code and data that a verdict depends on: a stored verdict is good until any of that changes."""
    files = (path for name in ("evaluate", "worker", "runtime", "data") for path in (ENGINE / name).rglob("*"))
    return file_key(sorted(path for path in files if path.suffix in (".py", ".h", ".cpp", ".toml")))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True

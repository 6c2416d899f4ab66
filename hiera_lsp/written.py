"""What we wrote into users' folders, so that what a user made of it since is not lost when we write again."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)


class Written:
    """Digests of texts that we put into files, kept over restarts.

    Args:
        folder: Where they are kept, or what tells it when it is needed; None keeps them in memory only.
    """

    def __init__(self, folder: Callable[[], Path] | None = None) -> None:
        self._folder = folder
        self._digests: set[str] | None = None

    def add(self, texts: Iterable[str]) -> None:
        """Remember texts. Where they cannot be kept they count as a user's after a restart, which loses nothing."""
        known = self._known()
        new = {_digest(text) for text in texts} - known
        known |= new
        if self._folder is None or not new:
            return
        try:
            self._folder().mkdir(parents=True, exist_ok=True)
            with (self._folder() / "written").open("a", encoding="utf-8") as file:
                file.writelines(f"{digest}\n" for digest in sorted(new))
        except OSError as error:
            logger.warning("what was written is not remembered: %s", error)

    def kept(self, folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
        """Copies of the files that `texts` would replace though they are not as we wrote them: name → text.

        `cuda_source.cu` becomes `cuda_source.kept.cu`, or `.kept-2` where that is taken.

        Raises:
            OSError: A file cannot be read.
            UnicodeDecodeError: It is no text, so that no edit could restore it.
        """
        copies: dict[str, str] = {}
        for name, text in texts.items():
            path = folder / name
            if not path.exists():
                continue
            old = path.read_bytes().decode()
            if old == text or _digest(old) in self._known():
                continue
            number, copy = 1, path.with_suffix(f".kept{path.suffix}")
            while copy.exists():
                if copy.read_bytes() == old.encode():
                    break
                number += 1
                copy = path.with_suffix(f".kept-{number}{path.suffix}")
            else:
                copies[copy.name] = old
        return copies

    def _known(self) -> set[str]:
        if self._digests is None:
            self._digests = set()
            if self._folder is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._digests |= set((self._folder() / "written").read_text(encoding="utf-8").split())
        return self._digests


def _digest(text: str) -> str:
    # Editors may change line ends and white space at line ends when they save.
    lines = [line.rstrip() for line in text.removeprefix("\ufeff").rstrip().splitlines()]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()

"""Text documents as the language server protocol sees them, where pygls 2.1 sees them otherwise."""

from __future__ import annotations

import bisect
import io
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.workspace import PositionCodec, TextDocument, Workspace

CUDA_SUFFIXES = (".cu", ".cuh")
CUDA_LANGUAGES = ("cuda", "cuda-cpp")
BOM = "\ufeff"


class Document(TextDocument):
    """A document whose lines end where the protocol says, and which is empty when its file is gone.

    pygls splits lines at form feeds and Unicode separators too, which shifts every place below them and
    garbles incremental changes; and it raises where a file cannot be read.
    """

    _split: tuple[str, tuple[str, ...]] | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines with their ends; kept until the text changes."""
        source = self.source
        if self._split is None or self._split[0] is not source:
            self._split = (source, split_lines(source))
        return self._split[1]

    @property
    def source(self) -> str:
        """The text: the client's, else the file's, else none."""
        if self._source is None:
            try:
                return Path(self.path or "").read_bytes().decode("utf-8", "replace")
            except (OSError, ValueError):
                return ""
        return self._source

    @property
    def is_cuda(self) -> bool:
        """True for `.cu` and `.cuh` files, and for unsaved text of that language."""
        return Path(self.path or "").suffix.lower() in CUDA_SUFFIXES or self.language_id in CUDA_LANGUAGES

    @property
    def plain(self) -> str:
        """The text without a byte order mark and with line feeds alone: what hashes and comparisons count."""
        return plain(self.source)

    def apply_change(self, change: types.TextDocumentContentChangeEvent) -> None:
        """Apply one change of the client; places beyond the text are clipped."""
        if not isinstance(change, types.TextDocumentContentChangePartial):
            self._source = change.text
            return
        lines = self.lines
        start = offset_at(lines, change.range.start, self.position_codec)
        end = max(start, offset_at(lines, change.range.end, self.position_codec))
        self._source = self.source[:start] + change.text + self.source[end:]


def keep_documents(workspace: Workspace) -> None:
    """Make `workspace` hold our documents."""

    def create(doc_uri: str, source: str | None = None, version: int | None = None,
               language_id: str | None = None) -> Document:
        return Document(doc_uri, source=source, version=version, language_id=language_id,
                        position_codec=workspace.position_codec)

    workspace._create_text_document = create  # type: ignore[method-assign] # noqa: SLF001 - pygls has no other way.


def document_of(server: Any, uri: str) -> Document:
    """The document at `uri`: the client's, or one that reads the file."""
    found = server.workspace.get_text_document(uri)
    assert isinstance(found, Document)
    return found


def split_lines(text: str) -> tuple[str, ...]:
    """Lines with their ends: line feed, carriage return, or both."""
    return tuple(io.StringIO(text, newline=""))


def plain(text: str) -> str:
    """`text` without a byte order mark and with line feeds alone."""
    return text.removeprefix(BOM).replace("\r\n", "\n").replace("\r", "\n")


def newline_of(text: str) -> str:
    """The line end that the text uses first; a line feed where it has none."""
    first = next((line for line in split_lines(text[:65536]) if line[-1] in "\r\n"), "\n")
    return "\r\n" if first.endswith("\r\n") else first[-1]


def offset_at(lines: tuple[str, ...], place: types.Position, codec: PositionCodec) -> int:
    """Characters before a place of the client's; a place beyond its line or the text is clipped."""
    if place.line >= len(lines):
        return sum(map(len, lines))
    line = lines[place.line]
    body = line.rstrip("\r\n")
    before = sum(map(len, lines[: place.line]))
    if body.isascii():
        return before + min(place.character, len(body))
    units = [0]
    for character in body:
        units.append(units[-1] + codec.client_num_units(character))
    # Between the halves of a surrogate pair, the character as a whole comes after.
    return before + max(0, bisect.bisect_right(units, place.character) - 1)

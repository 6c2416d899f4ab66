"""Results by site, kept on disk so that they survive a reload of the editor."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from contracts import codec
from hiera_lsp.jobs import Site
from hiera_lsp.summary import CandidateSummary, Summary

State = Literal["offered", "accepted", "discarded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a finished job gave for a site.

    Attributes:
        uri, symbol: The site.
        text_hash: Hash of the site's text the result belongs to.
        summary: The run.
        chosen: Candidate under review; the best at first.
        state: What the user did with it.
        finished_at: ISO time in UTC.
    """

    uri: str
    symbol: str
    text_hash: str
    summary: Summary
    chosen: str | None
    state: State = "offered"
    finished_at: str = ""

    @property
    def candidate(self) -> CandidateSummary | None:
        """The candidate under review."""
        return next((c for c in self.summary.candidates if c.id == self.chosen), None)

    @property
    def choices(self) -> tuple[CandidateSummary, ...]:
        """Accepted candidates, fastest first; without times, in the order of making."""
        accepted = [c for c in self.summary.candidates if c.accepted]
        return tuple(sorted(accepted, key=lambda c: -(c.speedup or 0.0)))


class Results:
    """All results, newest per site.

    Args:
        file: JSON lines file that keeps them; None keeps them in memory only.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._by_site: dict[tuple[str, str], Result] = {}
        if file is not None:
            for data in _lines(file):
                with contextlib.suppress(Exception):
                    result = codec.from_data(data, Result)
                    self._by_site[Site(result.uri, result.symbol).key] = result

    def at(self, site: Site) -> Result | None:
        """The result of a site."""
        return self._by_site.get(site.key)

    def of(self, uri: str) -> tuple[Result, ...]:
        """All results of a document."""
        path = Site(uri, "").key[0]
        return tuple(result for (known, _), result in self._by_site.items() if known == path)

    def by_run(self, run: str) -> Result | None:
        """The result that came from a run."""
        return next((result for result in self._by_site.values() if result.summary.run == run), None)

    def put(self, site: Site, text_hash: str, summary: Summary) -> Result:
        """Keep a finished job's result."""
        result = Result(
            uri=site.uri, symbol=site.symbol, text_hash=text_hash, summary=summary, chosen=summary.best,
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.update(result)
        return result

    def update(self, result: Result, **changes: Any) -> Result:
        """Replace a result by itself with `changes`."""
        result = replace(result, **changes)
        self._by_site[Site(result.uri, result.symbol).key] = result
        if self._file is not None:
            # A disk that refuses costs the memory of this result over a restart, not the result.
            with contextlib.suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(codec.to_data(result)) + "\n")
        return result


def _lines(file: Path) -> Iterator[Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for line in text.splitlines():
        # A torn last line is what a kill leaves behind.
        with contextlib.suppress(ValueError):
            yield json.loads(line)

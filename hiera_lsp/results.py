"""Results by site, kept on disk so that they survive a reload of the editor."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hiera_lsp.jobs import Site
from hiera_lsp.summary import CandidateSummary, Summary

State = Literal["offered", "accepted", "discarded"]
Standing = Literal["offered", "accepted", "discarded", "stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a job gave for a site.

    Attributes:
        uri, symbol: The site.
        text_hash: Hash of the site's text the result belongs to.
        summary: The run.
        chosen: Candidate under review; the best at first.
        state: What the user did with it.
        finished_at: ISO time in UTC.
        applied_hash: Hash of the site's text with our own edit in it; empty where none was offered.
        owner: Process of the server whose job is still at work on it; 0 once the job has ended.
    """

    uri: str
    symbol: str
    text_hash: str
    summary: Summary
    chosen: str | None
    state: State = "offered"
    finished_at: str = ""
    applied_hash: str = ""
    owner: int = 0

    @property
    def candidate(self) -> CandidateSummary | None:
        """The candidate under review."""
        return next((c for c in self.summary.candidates if c.id == self.chosen), None)

    @property
    def choices(self) -> tuple[CandidateSummary, ...]:
        """Accepted candidates, fastest first; without times, in the order of making."""
        accepted = [c for c in self.summary.candidates if c.accepted]
        return tuple(sorted(accepted, key=lambda c: -(c.speedup or 0.0)))

    @property
    def no_gain(self) -> str:
        """Why there is nothing to accept; empty where the candidate under review is worth it, or nothing was timed."""
        candidate = self.candidate
        if candidate is None:
            return "no candidate was accepted"
        if candidate.author == "user":
            return "your own text is the best that was found"
        if self.summary.measured and not candidate.faster:
            return "it is not faster than your code"
        return ""

    def standing(self, text_hash: str | None) -> Standing:
        """How the result stands to the site's text as it is now; `text_hash` is None or empty where it cannot be read.

        Our own edit changes the text too. It is told from the user's by its hash, not by what the client
        says of having applied it; when it is undone, the candidate is on offer again.
        """
        if self.state == "discarded":
            return "discarded"
        if text_hash == self.text_hash:
            return "offered" if self.applied_hash not in ("", self.text_hash) else self.state
        return "accepted" if text_hash and text_hash == self.applied_hash else "stale"


class Results:
    """Results of this and earlier servers, one file a site, read when a document asks for them.

    Args:
        folder: Where they are kept, or what tells it when it is needed; None keeps them in memory only.
    """

    def __init__(self, folder: Path | Callable[[], Path] | None = None) -> None:
        self._place = folder
        self._by_site: dict[tuple[str, str], Result] = {}
        self._read: set[str] = set()

    @property
    def _folder(self) -> Path | None:
        if callable(self._place):
            self._place = self._place()
        return self._place

    def at(self, site: Site) -> Result | None:
        """The result of a site."""
        self._load(site.uri)
        return self._by_site.get(site.key)

    def of(self, uri: str) -> tuple[Result, ...]:
        """All results of a document."""
        self._load(uri)
        path = Site(uri, "").key[0]
        return tuple(result for (known, _), result in self._by_site.items() if known == path)

    def put(self, site: Site, text_hash: str, summary: Summary) -> Result:
        """Keep an ended job's result."""
        result = made(site, text_hash, summary)
        self.update(result)
        self._remove(site, "part")
        return result

    def update(self, result: Result, **changes: Any) -> Result:
        """Replace a result by itself with `changes`."""
        result = replace(result, **changes)
        site = Site(result.uri, result.symbol)
        self._load(site.uri)
        self._by_site[site.key] = result
        self._write(site, "json", result)
        return result

    def keep_part(self, site: Site, text_hash: str, summary: Summary) -> None:
        """Keep what a job at work has so far, for the case that the server is killed."""
        self._load(site.uri)  # What is read later would be taken for a killed server's.
        self._write(site, "part", replace(made(site, text_hash, summary), owner=os.getpid()))

    def drop_part(self, site: Site) -> None:
        """The job ended without a result."""
        self._remove(site, "part")

    def _load(self, uri: str) -> None:
        document = Site(uri, "").key[0]
        if document in self._read or self._folder is None:
            return
        self._read.add(document)
        for ending in ("json", "part"):
            for result in _stored(self._folder / _name(document), ending):
                if ending == "json":
                    self._by_site[Site(result.uri, result.symbol).key] = result
                elif not _is_alive(result.owner):
                    self._take_part(replace(result, owner=0))

    def _take_part(self, part: Result) -> None:
        """Take what a killed server's job left, unless it is poorer than the result from before it."""
        site = Site(part.uri, part.symbol)
        known = self._by_site.get(site.key)
        if known is None or known.text_hash != part.text_hash or part.summary.best is not None:
            self._by_site[site.key] = part
            self._write(site, "json", part)
        self._remove(site, "part")

    def _path(self, site: Site, ending: str) -> Path | None:
        document, symbol = site.key
        return self._folder / _name(document) / f"{_name(symbol)}.{ending}" if self._folder is not None else None

    def _write(self, site: Site, ending: str, result: Result) -> None:
        from contracts import codec

        path = self._path(site, ending)
        if path is None:
            return
        # A disk that refuses costs the memory of this result over a restart, not the result.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{ending}.{os.getpid()}.new")
            new.write_text(json.dumps(codec.to_data(result)), encoding="utf-8")
            new.replace(path)

    def _remove(self, site: Site, ending: str) -> None:
        path = self._path(site, ending)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def made(site: Site, text_hash: str, summary: Summary) -> Result:
    """A new result, now."""
    return Result(
        uri=site.uri, symbol=site.symbol, text_hash=text_hash, summary=summary, chosen=summary.best,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _stored(folder: Path, ending: str) -> Iterator[Result]:
    try:
        paths = sorted(folder.glob(f"*.{ending}"))
    except OSError:
        return
    if not paths:
        return
    from contracts import codec

    for path in paths:
        # What another version wrote, or a kill left half written, is as if absent.
        with contextlib.suppress(Exception):
            yield codec.from_data(json.loads(path.read_text(encoding="utf-8")), Result)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _is_alive(pid: int) -> bool:
    """True while the server that owns a running job is there; our own id is a job of ours, or an old number again."""
    if pid <= 0 or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True

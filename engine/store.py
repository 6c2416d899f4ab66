"""Runs and cached evaluations on disk: append-only folders are the truth, the cache only saves time.

A run folder holds `events.jsonl` (one event a line, synced to disk line by line), `sources/<id>.cu`,
`exchanges/<id>.json` where a language model was asked, and `contract/`. A line that a killed process left half
written is cut off at the next opening.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import cattrs
import diskcache
import platformdirs

from contracts import codec
from contracts.errors import ConfigError, ContractError, InputError
from engine.records import Candidate, Evaluation
from engine.trajectory import KINDS, Event, Exchange, Job, Trajectory

# Raised when the meaning of an evaluation changes, so that old ones are not taken for new.
PROTOCOL = "1"
EVENTS = "events.jsonl"


def cache_root() -> Path:
    """Where state lives: `HIERA_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("HIERA_CACHE") or platformdirs.user_cache_path("hiera"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """One line of `hiera runs`."""

    run: str
    started: datetime
    trajectory: Trajectory


class Run:
    """One open run folder. Only one process has it open for writing at a time.

    Args:
        folder: The run's folder.

    Raises:
        ConfigError: Another process has it open, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name
        self._begun = time.perf_counter()
        with _disk(folder):
            (folder / "sources").mkdir(parents=True, exist_ok=True)
            self._file = (folder / EVENTS).open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigError("another process is working on this run", hint="wait for it or cancel it",
                              file=folder) from None
        except OSError:
            pass  # Some network file systems cannot lock; then the user keeps to one process.

    @property
    def contract_folder(self) -> Path:
        """Where the run's contract folder is written."""
        return self.folder / "contract"

    def seconds(self) -> float:
        """Seconds of work since the run began, over all resumptions."""
        return time.perf_counter() - self._begun

    def go_on(self, *, after_bytes: int, after_s: float) -> None:
        """Cut off a torn last line and count seconds on from where the run stood."""
        with _disk(self.folder):
            os.ftruncate(self._file.fileno(), after_bytes)
        self._begun = time.perf_counter() - after_s

    def append(self, kind: str, value: Any) -> Event:
        """Write one event and wait until it is on the disk.

        Raises:
            ConfigError: The disk is full or read-only.
        """
        event = Event(kind, round(self.seconds(), 3), value)
        data = codec.to_data(value)
        with _disk(self.folder):
            if isinstance(value, Candidate):
                self._text("sources", value.id + ".cu", value.source)
                data["source"] = ""
                if value.reduced_source is not None:
                    self._text("sources", value.id + ".reduced.cu", value.reduced_source)
                    data["reduced_source"] = ""
            elif isinstance(value, Exchange):
                self._text("exchanges", value.id + ".json", json.dumps(data["messages"]))
                data["messages"] = []
                event = Event(kind, event.at_s, replace(value, messages=()))
            line = json.dumps({"kind": kind, "at_s": event.at_s, "data": data}, separators=(",", ":"))
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        return event

    def source_path(self, candidate: str) -> Path:
        """Where a candidate's text is."""
        return self.folder / "sources" / f"{candidate}.cu"

    def close(self) -> None:
        """Release the run."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _text(self, below: str, name: str, text: str) -> None:
        path = self.folder / below / name
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


class Store:
    """All runs and the cache of evaluations below one folder.

    Args:
        root: The folder; `cache_root()` by default. It is made on first writing.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_root()
        self._caches: dict[str, diskcache.Cache | None] = {}

    def new_run(self, name: str) -> Run:
        """Begin a run.

        Raises:
            ConfigError: The folder cannot be written.
        """
        stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
        safe = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)[:40] or "run"
        folder = self.root / "runs" / f"{stamp}-{safe}-{secrets.token_hex(2)}"
        with _disk(self.root):
            folder.mkdir(parents=True)
        return Run(folder)

    def resume(self, run: str) -> tuple[Run, Trajectory]:
        """Open a run to go on with it.

        Raises:
            InputError: There is no such run.
            ConfigError: Another process has it open.
        """
        folder = self.find(run)
        run = Run(folder)
        try:
            trajectory, good_bytes = _load(folder)
            run.go_on(after_bytes=good_bytes, after_s=trajectory.wall_s)
        except BaseException:
            run.close()
            raise
        return run, trajectory

    def load(self, run: str) -> Trajectory:
        """Read a run, finished or not."""
        return _load(self.find(run))[0]

    def find(self, run: str) -> Path:
        """The folder of a run, by id, unique beginning, path, or `last`.

        Raises:
            InputError: None or several match.
        """
        given = Path(run)
        if (given / EVENTS).is_file():
            return given
        folders = sorted(path for path in (self.root / "runs").glob("*") if (path / EVENTS).exists())
        matching = folders[-1:] if run == "last" else [path for path in folders if path.name.startswith(run)]
        exact = [path for path in matching if path.name == run]
        if len(exact or matching) != 1:
            what = "no run" if not matching else f"{len(matching)} runs"
            raise InputError(f"{what} under {self.root / 'runs'} match {run!r}",
                             hint="see `hiera runs` for their names")
        return (exact or matching)[0]

    def messages(self, run: str, exchange: str) -> tuple[tuple[str, str], ...]:
        """The texts of an exchange with a language model, the answer last.

        Raises:
            InputError: The run has no such exchange.
        """
        path = self.find(run) / "exchanges" / f"{exchange}.json"
        try:
            return codec.from_data(json.loads(path.read_text(encoding="utf-8")), tuple[tuple[str, str], ...])
        except (OSError, ValueError, TypeError, cattrs.BaseValidationError) as error:
            raise InputError(f"the exchange cannot be read: {error}"[:300], hint="see `hiera runs`",
                             file=path) from None

    def delete(self, run: str) -> None:
        """Delete a run and everything in its folder. The whole id is asked for: a beginning is too easily another's.

        Raises:
            InputError: There is no such run.
            ConfigError: A process is working on it, or it cannot be deleted.
        """
        folder = self.root / "runs" / run
        if Path(run).name != run or not (folder / EVENTS).is_file():
            raise InputError(f"there is no run {run!r}", hint="see `hiera runs` for their names")
        Run(folder).close()
        try:
            (folder / EVENTS).unlink()  # What is left of it, should the next line fail, is no run any more.
            shutil.rmtree(folder)
        except OSError as error:
            raise ConfigError(f"the run cannot be deleted: {error.strerror or error}",
                              hint="see who owns its folder", file=folder) from None

    def runs(self) -> Iterator[RunInfo]:
        """All readable runs, newest first."""
        for folder in sorted((self.root / "runs").glob("*"), reverse=True):
            with contextlib.suppress(OSError, ContractError):
                started = datetime.fromtimestamp((folder / EVENTS).stat().st_ctime).astimezone()
                with contextlib.suppress(ValueError):
                    started = datetime.strptime(folder.name[:15], "%Y%m%d-%H%M%S").astimezone()
                yield RunInfo(run=folder.name, started=started, trajectory=_load(folder)[0])

    def cached_evaluation(self, key: str) -> Evaluation | None:
        """A stored evaluation, marked as cached, or None."""
        text = self._get("evaluations", key)
        if text is None:
            return None
        try:
            return replace(codec.from_data(json.loads(text), Evaluation), cached=True)
        except (cattrs.BaseValidationError, ValueError, KeyError, TypeError):
            return None  # Written by another version; it is simply made again.

    def cache_evaluation(self, key: str, evaluation: Evaluation) -> None:
        """Store an evaluation. A cache that cannot be written is no error."""
        self._set("evaluations", key, json.dumps(codec.to_data(evaluation)))

    def finished_run(self, request: str) -> str | None:
        """The run that answered the same request before, or None."""
        run = self._get("requests", request)
        return run if run and (self.root / "runs" / run / EVENTS).is_file() else None

    def remember_run(self, request: str, run: str) -> None:
        """Remember which run answered a request."""
        self._set("requests", request, run)

    def close(self) -> None:
        """Close the caches."""
        for cache in self._caches.values():
            if cache is not None:
                cache.close()
        self._caches.clear()

    def _cache(self, name: str) -> diskcache.Cache | None:
        if name not in self._caches:
            try:
                # JSON texts only: nothing is unpickled from the disk.
                self._caches[name] = diskcache.Cache(str(self.root / name), disk=diskcache.JSONDisk, timeout=5)
            except (OSError, sqlite3.Error, diskcache.Timeout):
                self._caches[name] = None
        return self._caches[name]

    def _get(self, name: str, key: str) -> str | None:
        try:
            cache = self._cache(name)
            value = cache.get(key) if cache is not None else None
        except (OSError, sqlite3.Error, diskcache.Timeout, ValueError):
            return None
        return value if isinstance(value, str) else None

    def _set(self, name: str, key: str, value: str) -> None:
        with contextlib.suppress(OSError, sqlite3.Error, diskcache.Timeout):
            cache = self._cache(name)
            if cache is not None:
                cache.set(key, value)


def evaluation_key(contract_id: str, candidate: Candidate, facts: Mapping[str, object]) -> str:
    """Key of an evaluation: contract, source, and everything about device and toolchain that could change it.

    Args:
        contract_id: The contract's id, which includes the precision policy.
        candidate: Whose texts count.
        facts: Device, toolchain, interpreter, settings of the evaluator.
    """
    return _digest([PROTOCOL, contract_id, candidate.source, candidate.reduced_source, candidate.space, facts])


def request_key(job: Job, facts: Mapping[str, object]) -> str:
    """Key of a whole request: the job and everything about its files and the machine that could change it."""
    return _digest([PROTOCOL, codec.to_data(job), facts])


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _load(folder: Path) -> tuple[Trajectory, int]:
    """Read a run; also the number of bytes of whole lines."""
    trajectory = Trajectory(run=folder.name)
    good = 0
    try:
        content = (folder / EVENTS).read_bytes()
    except OSError as error:
        raise InputError(f"the run cannot be read: {error.strerror}", hint="see `hiera runs`", file=folder) from None
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("it has no end")
            event = _event(json.loads(line), folder)
        except (ValueError, KeyError, TypeError, cattrs.BaseValidationError) as error:
            if number == len(lines):
                break  # A process that was killed while writing leaves this.
            raise ContractError(f"this line is no event: {error}"[:300], hint="delete the run and make it again",
                                file=folder / EVENTS, line=number) from None
        good += len(line)
        trajectory.apply(event)
    return trajectory, good


def _event(data: Mapping[str, Any], folder: Path) -> Event:
    kind = data["kind"]
    fields = dict(data["data"])
    if kind == "candidate":
        identity = fields["id"]
        fields["source"] = (folder / "sources" / f"{identity}.cu").read_text(encoding="utf-8")
        if fields.get("reduced_source") is not None:
            fields["reduced_source"] = (folder / "sources" / f"{identity}.reduced.cu").read_text(encoding="utf-8")
    return Event(kind, float(data["at_s"]), codec.from_data(fields, KINDS[kind]))


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Turn trouble with the disk into the error the user can act on."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write there: {error.strerror or error}",
                          hint="free space or set HIERA_CACHE to a folder that can be written", file=folder) from error

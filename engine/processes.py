"""Child processes: worker programs under the user's interpreter, and plain tools.

Every child has its own session, a limit on every wait, no keys in its environment, and dies with us.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from contracts.errors import InputError, WorkerDiedError, WorkerError, WorkerTimeoutError

WORKER_MAIN = Path(__file__).parent / "worker" / "main.py"
# What a child may see. Code of the user's and of candidates runs there, so it gets no keys.
KEPT_VARIABLES = frozenset(
    {"HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "USER", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME",
     "CUDA_VISIBLE_DEVICES", "CUDA_PATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS"}
)
KEPT_PREFIXES = ("LC_", "NVIDIA_")
MAX_REPLY_BYTES = 256 << 20


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables a child gets: a whitelist plus `extra`."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key in KEPT_VARIABLES or key.startswith(KEPT_PREFIXES)
    }
    # A module that uses an earlier kernel of ours is measured as its author wrote it.
    ours = {"PYTHONUNBUFFERED": "1", "HIERA_ORIGINAL": "1"}
    return {**kept, **ours, **(extra or {})}


def bytecode_cache(role: str) -> dict[str, str]:
    """Where a worker may keep compiled Python: beside our other state, never in the user's folders.

    Candidates have a cache of their own, so that nothing they could write is read by the judge.
    """
    from engine.store import cache_root

    kind = "candidates" if role == "candidate" else "trusted"
    return {"HIERA_BYTECODE": str(cache_root() / "bytecode" / kind)}


@dataclass(frozen=True, slots=True)
class Finished:
    """A tool that ran to its end."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, for messages."""
        return self.stdout + self.stderr


async def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a tool to its end, with its whole process group killed on time-out or cancellation.

    Raises:
        WorkerTimeoutError: It ran longer than `timeout_s`.
        FileNotFoundError: The program is not there.
    """
    # Files, not pipes: a cancellation while asyncio still connects pipes makes it wait for them for ever.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd,
            env=dict(env) if env is not None else child_environment(), start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            await _end(process)
            raise WorkerTimeoutError(Path(command[0]).name, timeout_s=timeout_s) from None
        except BaseException:
            await _end(process)
            raise
        return Finished(process.returncode or 0, _content(out), _content(err))


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MAX_REPLY_BYTES).decode(errors="replace")


class Worker:
    """One worker process, started on first use and killed when a request did not end cleanly.

    Requests run one at a time. A request that is cancelled, times out or breaks takes the process
    with it, because nobody knows what state it left behind.

    Args:
        role: Module of `engine/worker` that serves.
        python: The user's interpreter.
        env: Further environment variables.
        cwd: Working directory.
        wrap: Prefix of the command line, such as a sandbox or a profiler; or what finds one when it is needed.
        pass_fds: Descriptors that it inherits.
    """

    def __init__(
        self,
        role: str,
        *,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        wrap: Sequence[str] | Callable[[], Awaitable[Sequence[str]]] = (),
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.role = role
        self._python = python
        self._env = child_environment({**bytecode_cache(role), **(env or {})})
        self._cwd = cwd
        self._find_wrap = wrap
        self._wrap: Sequence[str] = ()
        self._pass_fds = tuple(pass_fds)
        self._process: asyncio.subprocess.Process | None = None
        self._replies: asyncio.StreamReader | None = None
        self._transport: asyncio.BaseTransport | None = None
        self._busy = asyncio.Lock()
        self._number = 0
        self._killed_because = ""
        # A file, not a pipe: a full pipe would block a worker that logs a lot.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker.

    @property
    def pid(self) -> int | None:
        """The running process's id, or None."""
        return self._process.pid if self._process else None

    @property
    def log_tail(self) -> str:
        """The last 8 KiB of what the process and user code in it wrote."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 8192, max(0, size - 8192)).decode(errors="replace")

    async def call(
        self,
        kind: str,
        *,
        timeout_s: float,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Send one request and wait for its reply.

        Raises:
            WorkerTimeoutError: No reply within `timeout_s` seconds; the process is gone.
            WorkerDiedError: The process ended first.
            WorkerError: It was killed by `kill`, or the worker raised.
            InputError: The worker refused the request for a reason of the user's.
        """
        async with self._busy:
            try:
                async with asyncio.timeout(timeout_s):
                    reply = await self._exchange(kind, fields, on_event)
            except TimeoutError:
                await self._discard()
                raise WorkerTimeoutError(kind, timeout_s=timeout_s) from None
            except BaseException:
                await self._discard()
                raise
        if reply.get("ok"):
            return reply
        error = reply["error"]
        if error["type"] == "input":
            raise InputError(error["problem"], hint=error["hint"], file=error["file"], line=error["line"])
        failure = WorkerError(error["problem"], hint=error["hint"])
        failure.add_note(error["log"])
        raise failure

    def kill(self, reason: str) -> None:
        """Kill the process in the middle of what it does; the request in flight ends with `reason`."""
        if self._process is not None:
            self._killed_because = reason
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End the process, if one runs, without waiting for it to be polite."""
        await self._discard()

    async def _exchange(
        self, kind: str, fields: dict[str, Any], on_event: Callable[[dict[str, Any]], None] | None
    ) -> dict[str, Any]:
        if self._process is None:
            await self._start()
        process, replies = self._process, self._replies
        assert process is not None
        assert process.stdin is not None
        assert replies is not None
        self._number += 1
        request = json.dumps({"id": self._number, "kind": kind, **fields}) + "\n"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(request.encode())
            await process.stdin.drain()
        while True:
            try:
                line = await replies.readline()
            except ValueError as error:
                raise _forged(f"a reply of more than {MAX_REPLY_BYTES >> 20} MiB") from error
            if not line.endswith(b"\n"):
                status = await process.wait()
                if self._wrap and status > 128:
                    status = 128 - status  # A wrapper tells its child's signal like a shell does.
                if self._killed_because:
                    raise WorkerError(f"the process was killed: {self._killed_because}", hint="let it take less")
                raise WorkerDiedError(kind, exit_status=status, log_tail=self.log_tail)
            reply = _reply(line, self._number)
            if "event" in reply:
                if on_event is not None:
                    on_event(reply)
                continue
            return reply

    async def _start(self) -> None:
        self._wrap = await self._find_wrap() if callable(self._find_wrap) else self._find_wrap
        self._killed_because = ""
        read_fd, write_fd = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._wrap, self._python, "-u", str(WORKER_MAIN), self.role, str(write_fd),
                stdin=asyncio.subprocess.PIPE, stdout=self._log, stderr=self._log, env=self._env, cwd=self._cwd,
                pass_fds=(write_fd, *self._pass_fds), start_new_session=True,
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        loop = asyncio.get_running_loop()
        self._replies = asyncio.StreamReader(limit=MAX_REPLY_BYTES)
        reader = self._replies
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb")
        )

    async def _discard(self) -> None:
        process, self._process = self._process, None
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if process is not None:
            await _end(process)


def _reply(line: bytes, number: int) -> dict[str, Any]:
    """What a worker wrote, where it has the form that `worker/wire.py` gives it: native code can find the pipe.

    Raises:
        WorkerError: Something else wrote it.
    """
    try:
        reply = json.loads(line)
        if reply["id"] != number:
            raise _forged("an answer out of turn")
        if "event" not in reply and not reply["ok"]:
            error = reply["error"]
            words = all(isinstance(error[key], str) for key in ("type", "problem", "hint", "log"))
            if not (words and isinstance(error["file"], str | None) and isinstance(error["line"], int | None)):
                raise _forged("an error of another form")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise _forged("a reply that cannot be read") from error
    return reply


def _forged(what: str) -> WorkerError:
    return WorkerError(f"{what}: something in the process writes replies of its own",
                       hint="let the code that runs there leave the pipes alone")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a child's whole group and reap it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # Shielded: a second cancellation must not leave a zombie that holds the device.
    await asyncio.shield(process.wait())

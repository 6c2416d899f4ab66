"""Every exception the project raises on purpose.

* HieraError
  - InputError        the user's file, module or command line cannot be used as it is
  - ConfigError       fixed by editing a setting
  - ContractError     fixed by editing a contract folder or one of our data files
  - ToolError         a program we need (nvcc, g++, ncu, a torch) is missing or does not work
  - WorkerError       a worker process failed
    . WorkerTimeoutError
    . WorkerDiedError
  - AgentError        an agent (a language model, a replay) could not answer

A kernel that does not build, is wrong or is slow is not here: that is an `Evaluation`.
"""

from __future__ import annotations

from pathlib import Path


class HieraError(Exception):
    """A failure that someone can act on.

    Args:
        problem: What happened, with the values that matter. One sentence, no final full stop.
        hint: What to do next, in the imperative.
        file: The file it is about, if there is one.
        line: Line in `file`, counted from 1.
    """

    def __init__(
        self, problem: str, *, hint: str, file: str | Path | None = None, line: int | None = None
    ) -> None:
        self.problem = problem
        self.hint = hint
        self.file = str(file) if file is not None else None
        self.line = line
        super().__init__(self.message())

    def message(self) -> str:
        """The one line shown to the user: `file:line: problem (to fix: hint)`."""
        place = ""
        if self.file is not None:
            place = f"{self.file}:{self.line}: " if self.line is not None else f"{self.file}: "
        return f"{place}{self.problem} (to fix: {self.hint})"


class InputError(HieraError):
    """The user's file, module or command line cannot be used as it is."""


class ConfigError(HieraError):
    """A setting has a value we cannot use."""


class ContractError(HieraError):
    """A contract folder or a shipped data file breaks one of its own rules."""


class ToolError(HieraError):
    """A program we need is missing or does not work."""


class AgentError(HieraError):
    """An agent could not answer."""


class WorkerError(HieraError):
    """A worker process, or the device behind it, cannot serve requests."""


class WorkerTimeoutError(WorkerError):
    """The worker gave no answer in time and was killed."""

    def __init__(self, request: str, *, timeout_s: float) -> None:
        super().__init__(
            f"the worker did not answer {request!r} within {timeout_s:g} s and was killed",
            hint="raise the limit if this is meant to take so long, or look for a loop that never ends",
        )
        self.timeout_s = timeout_s


class WorkerDiedError(WorkerError):
    """The worker's process ended before it answered.

    Args:
        request: The request that was in flight.
        exit_status: As `subprocess` reports it: negative for a signal.
        log_tail: The last lines the process wrote.
    """

    def __init__(self, request: str, *, exit_status: int | None, log_tail: str = "") -> None:
        how = f"signal {-exit_status}" if exit_status is not None and exit_status < 0 else f"status {exit_status}"
        super().__init__(
            f"the worker ended with {how} while it handled {request!r}",
            hint="see the log: " + (log_tail.strip().splitlines() or ["(it wrote nothing)"])[-1],
        )
        self.exit_status = exit_status
        self.log_tail = log_tail

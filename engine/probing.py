"""The probe process: the user's interpreter importing the user's file, with its failures said in the user's words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from contracts.errors import HieraError, InputError, ToolError, WorkerDiedError, WorkerTimeoutError
from engine.processes import Worker

START_S = 180.0


class Probe:
    """The probe process, with its failures said in the user's words."""

    def __init__(
        self, python: str, file: Path, *, on_event: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._file = file
        self._python = python
        self.on_event = on_event
        self._warming: asyncio.Task[None] | None = None
        self._stage = "starting"
        # The probe works on fake tensors: it must neither need nor hold a GPU.
        self._worker = Worker("probe", python=python, cwd=file.parent, env={"CUDA_VISIBLE_DEVICES": ""})

    async def __aenter__(self) -> Self:
        """Start nothing yet: the process starts with the first call."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the process."""
        await self.close()

    def begin(self) -> None:
        """Start the process and let it import what every request needs; the next request waits for that."""
        self._warming = asyncio.create_task(self._warm())

    async def close(self) -> None:
        """End the process."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait({self._warming})
        await self._worker.close()

    async def call(self, kind: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """One request.

        Raises:
            InputError: The user's code refused, hung, or ended the process.
            ToolError: The interpreter does not run or has no torch.
        """
        if self._warming is not None:
            await asyncio.wait({self._warming})
        self._stage = "importing the file"
        try:
            return await self._worker.call(kind, timeout_s=timeout_s, on_event=self._event, **fields)
        except WorkerTimeoutError:
            raise InputError(
                f"{self._stage} took longer than {timeout_s:g} s",
                hint='put slow code under `if __name__ == "__main__":`, or raise the limit', file=self._file,
            ) from None
        except WorkerDiedError as error:
            if "No module named 'torch'" in error.log_tail:
                raise ToolError(
                    f"{self._python} has no torch", hint="name the interpreter that has it with --python"
                ) from None
            raise InputError(
                f"{self._stage} ended the interpreter ({error.problem})", hint=error.hint, file=self._file
            ) from None
        except FileNotFoundError:
            raise ToolError(
                f"there is no interpreter {self._python}", hint="name one that exists with --python"
            ) from None
        except PermissionError as error:
            raise ToolError(f"cannot run {self._python}: {error.strerror}", hint="name another with --python") from None

    async def _warm(self) -> None:
        # The next request meets the same trouble, and says it in the user's words.
        with contextlib.suppress(HieraError, OSError):
            await self._worker.call("warm", timeout_s=START_S)

    def _event(self, event: dict[str, Any]) -> None:
        self._stage = {"imported": "building the module and its inputs", "built": "tracing forward"}.get(
            event.get("event", ""), self._stage
        )
        if self.on_event is not None:
            self.on_event(event)

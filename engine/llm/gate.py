"""How many requests one endpoint gets at a time, over all jobs of this process."""

from __future__ import annotations

import asyncio
from types import TracebackType
from weakref import WeakKeyDictionary

WIDTH = 6
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Gate]] = WeakKeyDictionary()


class Gate:
    """Lets `width` through at a time; narrower after an endpoint said that there are too many."""

    def __init__(self, width: int = WIDTH) -> None:
        self.width = width
        self._inside = 0
        self._condition = asyncio.Condition()

    def narrow(self) -> None:
        """Let half as many through from now on."""
        self.width = max(1, self.width // 2)

    async def __aenter__(self) -> None:
        async with self._condition:
            await self._condition.wait_for(lambda: self._inside < self.width)
            self._inside += 1

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        # Not awaited under the lock: a cancelled request must give its place back at once.
        self._inside -= 1
        async with self._condition:
            self._condition.notify()


def gate_of(base_url: str) -> Gate:
    """The gate of an endpoint in the running loop."""
    gates = _gates.setdefault(asyncio.get_running_loop(), {})
    return gates.setdefault(base_url, Gate())

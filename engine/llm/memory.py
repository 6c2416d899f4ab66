"""What is remembered between runs: answers by their full request, and what endpoints can do. Saves, never decides."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import diskcache

from engine.store import cache_root

ANSWERS = "model-answers"
CAPABILITIES = "model-endpoints"
# Servers are updated; what they could not do is asked again after this long.
CAPABILITY_S = 14 * 86400.0


class Memory:
    """Texts by key below one folder. A disk that cannot be used only means that nothing is remembered.

    Args:
        root: The folder; the user's cache by default.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or cache_root()
        self._caches: dict[str, diskcache.Cache | None] = {}

    async def get(self, name: str, key: str) -> str | None:
        """The text remembered, or None."""
        return await asyncio.to_thread(self._get, name, key)

    async def put(self, name: str, key: str, text: str, *, expire_s: float | None = None) -> None:
        """Remember a text."""
        await asyncio.to_thread(self._put, name, key, text, expire_s)

    def close(self) -> None:
        """Close the files."""
        for cache in self._caches.values():
            if cache is not None:
                cache.close()
        self._caches.clear()

    def _cache(self, name: str) -> diskcache.Cache | None:
        if name not in self._caches:
            try:
                # JSON texts only: nothing is unpickled from the disk.
                self._caches[name] = diskcache.Cache(str(self._root / name), disk=diskcache.JSONDisk, timeout=5)
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

    def _put(self, name: str, key: str, text: str, expire_s: float | None) -> None:
        with contextlib.suppress(OSError, sqlite3.Error, diskcache.Timeout):
            cache = self._cache(name)
            if cache is not None:
                cache.set(key, text, expire=expire_s)

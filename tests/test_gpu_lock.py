"""The lock of a GPU: who waits for it is known, and a killed holder frees it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.evaluate import gpu_lock


async def test_waiting_is_told_while_another_holds_the_gpu(tmp_path: Path) -> None:
    held, told = asyncio.Event(), []

    async def hold() -> None:
        async with gpu_lock.exclusive(0, folder=tmp_path):
            held.set()
            await asyncio.sleep(0.3)

    async def want() -> None:
        await held.wait()
        async with gpu_lock.exclusive(0, folder=tmp_path):
            told.append(gpu_lock.waiting_for())

    async def look() -> None:
        await held.wait()
        await asyncio.sleep(0.15)
        told.append(gpu_lock.waiting_for())

    await asyncio.gather(hold(), want(), look())
    assert told == [(0,), ()]


@pytest.mark.parametrize(("visible", "card"), [(None, "1"), ("", "1"), ("0,1", "1"), ("2, 3", "3"), ("5", "1"),
                                               ("GPU-1a,MIG-GPU-2b/1/0", "MIG-GPU-2b-1-0")])
def test_one_card_has_one_lock_whatever_its_index(tmp_path: Path, monkeypatch, visible, card) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_lock.path_of(1, "lock", tmp_path).name.endswith(f"-gpu{card}.lock")

"""Which GPU a job runs on or is written for, and its published peaks (`data/devices.toml`).

The engine's process never makes a CUDA context: the driver is asked by a short child process.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError, ContractError, ToolError, WorkerTimeoutError
from engine import processes
from engine.records import Device

TABLE = Path(__file__).parent / "data" / "devices.toml"
QUERY = Path(__file__).parent / "device_query.py"
QUERY_TIMEOUT_S = 30.0
# A card whose driver shows far fewer multiprocessors than its data sheet is a slice (MIG) or another model.
SAME_CARD = 0.95
COPY_FRACTION = 0.89  # A large copy's part of the DRAM peak, as on the cards where we know both.


async def find_device(choice: str = "auto", target: str | None = None) -> Device:
    """The device for a job.

    Args:
        choice: `auto` (the first GPU, or none), `cuda:N`, or `none`.
        target: The card that code is written for when no GPU is used: a key or name of the table, such
            as `H200`, or an architecture such as `sm_90`. None takes the table's default.

    Raises:
        ToolError: `cuda:N` was asked for and is not there; the message says what the driver said.
        ConfigError: `choice` or `target` cannot be understood.
    """
    if choice == "none":
        return target_device(target)
    wanted = re.fullmatch(r"auto|cuda(?::(\d+))?", choice)
    if wanted is None:
        raise ConfigError(f"device {choice!r} is not known", hint="use auto, cuda:N or none")
    answer = await query_driver()
    devices = answer["devices"]
    index = int(wanted[1] or 0)
    if index < len(devices):
        return from_driver(devices[index], answer["driver"])
    if choice == "auto":
        return target_device(target)
    found = f"the driver shows {len(devices)} GPU(s)" if devices else answer["problem"]
    raise ToolError(f"{choice} is not there: {found}", hint="check `nvidia-smi`, or use --device none")


async def query_driver() -> dict[str, Any]:
    """What the driver says: `devices` (facts by name), `driver` (version or empty), `problem` (empty, or why none)."""
    try:
        done = await processes.run([sys.executable, "-I", str(QUERY)], timeout_s=QUERY_TIMEOUT_S)
    except WorkerTimeoutError:
        return {"devices": [], "driver": "", "problem": f"the driver did not answer within {QUERY_TIMEOUT_S:g} s"}
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        tail = (done.stderr.strip().splitlines() or ["(it wrote nothing)"])[-1]
        return {"devices": [], "driver": "", "problem": f"the driver query ended with status {done.status}: {tail}"}


def target_device(target: str | None = None) -> Device:
    """A card of the table, as the target of a job that uses no GPU.

    Raises:
        ConfigError: No such card.
    """
    table = _table()
    wanted = target or table["default_target"]
    row = _by_key(wanted, table["device"])
    if row is None:
        keys = ", ".join(row["key"] for row in table["device"])
        raise ConfigError(f"target GPU {wanted!r} is not known", hint=f"use one of {keys}, or sm_90 and the like")
    return _from_row(row, kind="none")


def from_driver(facts: Mapping[str, Any], driver: str) -> Device:
    """The device the driver describes; peaks from the table, or estimated for a card that is not in it."""
    row = next((row for row in _table()["device"] if re.search(row["match"], facts["name"])), None)
    if row is None or facts["sm_count"] < SAME_CARD * row["sm_count"]:
        return _estimated(facts, driver)
    return _from_row(
        row, kind="cuda", name=facts["name"], driver=driver, index=facts["index"], pci=facts.get("pci", ""),
        sm=f"{facts['major']}.{facts['minor']}", sm_count=facts["sm_count"], l2_bytes=facts["l2_bytes"],
        memory_bytes=facts["memory_bytes"], shared_bytes_per_block=facts["shared_bytes_per_block"],
    )


def _estimated(facts: Mapping[str, Any], driver: str) -> Device:
    sm = f"{facts['major']}.{facts['minor']}"
    family = next(row for row in _table()["family"] if _version(row["sm"]) <= _version(sm))
    clock_per_s = facts["clock_khz"] * 1e3
    # Double data rate: two transfers a memory clock.
    dram_bytes_per_s = 2 * facts["memory_clock_khz"] * 1e3 * facts["bus_bits"] / 8
    return Device(
        kind="cuda", name=facts["name"], sm=sm, driver=driver, index=facts["index"], pci=facts.get("pci", ""),
        sm_count=facts["sm_count"],
        l2_bytes=facts["l2_bytes"], memory_bytes=facts["memory_bytes"], dram_bytes_per_s=dram_bytes_per_s,
        copy_bytes_per_s=COPY_FRACTION * dram_bytes_per_s,
        flops_per_s={
            key: per_clock * facts["sm_count"] * clock_per_s for key, per_clock in family["flops_per_clock"].items()
        },
        shared_bytes_per_block=facts["shared_bytes_per_block"], launch_us=2.0, peaks="estimated",
    )


def _from_row(row: Mapping[str, Any], **known: Any) -> Device:
    fields = {key: value for key, value in row.items() if key not in ("key", "match")}
    return Device(**{**fields, **known})


def _by_key(wanted: str, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    plain = _plain(wanted)
    arch = re.fullmatch(r"(?:sm_?|compute_?)?(\d+)(?:\.(\d))?[af]?", wanted.strip().lower())
    for row in rows:
        if plain in (_plain(row["key"]), _plain(row["name"])):
            return row
    if arch is not None:
        digits = arch[1] + (arch[2] or "")
        # The last row of an architecture is its largest card.
        return next((row for row in reversed(rows) if row["sm"].replace(".", "") == digits), None)
    return next((row for row in rows if re.search(row["match"], wanted)), None)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _version(sm: str) -> tuple[int, ...]:
    return tuple(map(int, sm.split(".")))


@functools.cache
def _table() -> dict[str, Any]:
    try:
        return tomllib.loads(TABLE.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ContractError(f"the table of GPUs cannot be read: {error}", hint="reinstall hiera", file=TABLE) from None

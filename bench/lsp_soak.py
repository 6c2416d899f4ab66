"""A working day of the language server, compressed: does it stay as small and as quick as it was?

    python bench/lsp_soak.py --hours 8 --out bench/results/lsp_soak.json

Plays what a user does in so many hours as fast as the server answers: typing, hovers, menus, lenses, files opened and
closed, settings changed, jobs started, cancelled, accepted and taken back. The jobs are stand-ins that send real events
(tests/fake_job.py), so no GPU is needed. Reports resident memory, open files, threads and children of the server over the
day, and latencies in its first and last tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from lsp_client import FULL, Client  # noqa: E402 - the path comes first.

from engine.bench.provenance import PACKAGES, checkout_commit  # noqa: E402

MEASURED = (*PACKAGES, "hiera_lsp", "bench", "tests")

# What happens in an hour of work.
CHANGES = 1800
HOVERS = 360
MENUS = 720
LENSES = 360
FILES = 24
SETTINGS = 2
JOBS = 5
SAMPLES = 40

FOUND = FULL | {"textDocument": {**FULL["textDocument"], "codeLens": {}, "publishDiagnostics": {
    "relatedInformation": True, "codeDescriptionSupport": True}}}
TEXT = """\
import torch
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return torch.relu(x)


class SlowBlock(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(4, 8)]
"""


class Day:
    """One server, one user, one document that is open all day and others that come and go."""

    def __init__(self, client: Client, folder: Path, hours: float, seed: int = 7) -> None:
        self.client, self.folder, self.hours = client, folder, hours
        self.chance = random.Random(seed)
        self.path = folder / "model.py"
        self.path.write_text(TEXT)
        self.uri = client.open(self.path)
        self.counts: dict[str, int] = {}
        self.samples: list[dict[str, float]] = []
        self.latencies: list[tuple[float, float]] = []

    async def live(self) -> None:
        """Play the day, its events in a random order that is the same in every run."""
        kinds = {"change": CHANGES, "hover": HOVERS, "menu": MENUS, "lens": LENSES, "file": FILES, "settings": SETTINGS,
                 "job": JOBS}
        events = [kind for kind, number in kinds.items() for _ in range(round(number * self.hours))]
        self.chance.shuffle(events)
        every = max(1, len(events) // SAMPLES)
        for number, kind in enumerate(events):
            if number % every == 0:
                self.samples.append(self.sample(number / len(events)))
            self.counts[kind] = self.counts.get(kind, 0) + 1
            begun = time.perf_counter()
            await getattr(self, kind)(number)
            if kind in ("hover", "menu"):
                self.latencies.append((number / len(events), 1000 * (time.perf_counter() - begun)))
        await self.client.command("hiera.cancel")
        await self.until(self.is_idle)
        await asyncio.sleep(0.5)
        self.samples.append(self.sample(1.0))

    def sample(self, at: float) -> dict[str, float]:
        """What the server's process holds now."""
        process = Path(f"/proc/{self.client.process.pid}")
        status = dict(line.split(":", 1) for line in process.joinpath("status").read_text().splitlines())
        return {"hour": round(at * self.hours, 2), "resident_mb": round(int(status["VmRSS"].split()[0]) / 1024, 2),
                "files": len(list(process.joinpath("fd").iterdir())), "threads": int(status["Threads"]),
                "children": len(process.joinpath("task", process.name, "children").read_text().split())}

    async def change(self, number: int) -> None:
        """One keystroke in a comment at the end, or its removal."""
        text = self.client.texts[self.uri]
        self.client.change(self.uri, text + "#" if number % 60 else self.path.read_text())
        await self.client.process.stdin.drain()

    async def hover(self, _number: int) -> None:
        await self.client.request("textDocument/hover", self.place(line=4, character=7))

    async def menu(self, _number: int) -> None:
        await self.client.actions(self.uri, self.chance.choice([4, 9, 0]), trigger=self.chance.choice([1, 2]))

    async def lens(self, _number: int) -> None:
        await self.client.request("textDocument/codeLens", {"textDocument": {"uri": self.uri}})

    async def file(self, number: int) -> None:
        """Another file is opened, looked at and closed."""
        path = self.folder / f"other{number % 50}.py"
        path.write_text(TEXT.replace("Block", f"Other{number}"))
        uri = self.client.open(path)
        await self.client.actions(uri, 4)
        self.client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
        for known in (self.client.texts, self.client.versions, self.client.diagnostics):
            known.pop(uri, None)

    async def settings(self, number: int) -> None:
        self.client.notify("workspace/didChangeConfiguration", {"settings": {"hiera": {"budget": {"candidates": 1 + number % 9}}}})

    async def job(self, number: int) -> None:
        """A job runs beside the typing: most to their end, some cancelled; now and then a kernel is accepted and undone."""
        self.client.change(self.uri, self.path.read_text())
        symbol = "SlowBlock" if number % 4 == 0 else "Block"
        while any(job["symbol"] == symbol for job in await self.client.command("hiera.jobs")):
            await self.client.command("hiera.cancel", uri=self.uri, symbol=symbol)
            await asyncio.sleep(0.05)
        await self.client.command("hiera.optimize", uri=self.uri, symbol=symbol, fresh=True)
        if number % 3 == 0:
            await self.until(lambda: bool(self.client.progress("end")))
            self.client.created.clear()
            result = await self.client.command("hiera.result", uri=self.uri, symbol="Block")
            if result is not None and result["standing"] == "offered":
                await self.client.command("hiera.accept", uri=self.uri, symbol="Block")
        self.client.notifications.clear()
        self.client.requests.clear()

    def place(self, **place: int) -> dict[str, Any]:
        return {"textDocument": {"uri": self.uri}, "position": place}

    async def is_idle(self) -> bool:
        return await self.client.command("hiera.jobs") == []

    async def until(self, condition: Any, limit_s: float = 30) -> None:
        async with asyncio.timeout(limit_s):
            while not (await condition() if inspect.iscoroutinefunction(condition) else condition()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def soak(hours: float) -> dict[str, Any]:
    """Play a day and say what it did to the server."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        client = await Client.start(cache=folder / "cache", fake_jobs=True)
        try:
            await client.initialize(FOUND, folder=folder)
            day, begun = Day(client, folder, hours), time.perf_counter()
            await day.live()
            took_s = time.perf_counter() - begun
            status = await client.shutdown()
        finally:
            await client.kill()
    # The first tenth of the day is when everything is loaded for the first time.
    settled = [s for s in day.samples if s["hour"] >= 0.1 * hours]
    return {
        "hours": hours, "took_s": round(took_s, 1), "events": day.counts, "exit_status": status,
        "resident_mb": {"settled": settled[0]["resident_mb"], "most": max(s["resident_mb"] for s in settled),
                        "end": settled[-1]["resident_mb"],
                        "growth": round(settled[-1]["resident_mb"] - settled[0]["resident_mb"], 2)},
        "files": {"start": day.samples[0]["files"], "end": settled[-1]["files"]},
        "threads": {"start": day.samples[0]["threads"], "end": settled[-1]["threads"]},
        "children_at_the_end": settled[-1]["children"],
        "latency_ms": {name: _spread([ms for at, ms in day.latencies if low <= at <= high])
                       for name, low, high in (("first_tenth", 0, 0.1), ("last_tenth", 0.9, 1))},
        "samples": {key: [sample[key] for sample in day.samples] for key in day.samples[0]},
    }


def _spread(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {"n": len(ordered), "median": round(statistics.median(ordered), 2), "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=8.0, help="how much work is played")
    parser.add_argument("--out", type=Path, help="write the results there")
    arguments = parser.parse_args()
    found = {
        "benchmark": "lsp_soak", "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": asyncio.run(checkout_commit(MEASURED)),
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version(), "system": platform.platform()},
        **asyncio.run(soak(arguments.hours)),
    }
    text = re.sub(r"\[[^\[\]{}]*\]", lambda row: " ".join(row[0].split()), json.dumps(found, indent=1))
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()

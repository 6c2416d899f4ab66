"""How quickly the language server answers, beside a bare pygls server and jedi-language-server in the same run.

    python bench/lsp_latency.py --out bench/results/lsp_latency.json

Measures: `initialize` (median of fresh processes, in turn), resident memory, and the latency of hover and code action
while a job of 18 candidates runs and the user types. The job is a stand-in that sends real events at a real pace
(tests/fake_job.py), so no GPU is needed. jedi-language-server is left out, and said to be, where it is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
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

BARE = (
    "from pygls.lsp.server import LanguageServer; from lsprotocol import types; s = LanguageServer('bare', '1');\n"
    "@s.feature(types.TEXT_DOCUMENT_HOVER)\ndef hover(p): return types.Hover(types.MarkupContent('markdown', 'x'))\n"
    "@s.feature(types.TEXT_DOCUMENT_CODE_ACTION)\ndef actions(p): return []\n"
    "s.start_io()\n"
)
CLASS = """

class Block{number}(nn.Module):
    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.first = nn.Linear(dim, 4 * dim)
        self.second = nn.Linear(4 * dim, dim)

    def forward(self, x, mask=None):
        y = torch.nn.functional.gelu(self.first(self.norm(x)))
        if mask is not None:
            y = y * mask[:, None]
        return x + self.second(y)
"""


def text_of(lines: int) -> str:
    count = max(1, (lines - 8) // CLASS.count("\n"))
    return ("import torch\nfrom torch import nn\n" + "".join(CLASS.format(number=n) for n in range(count))
            + "\n\nclass Slow(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"
            + "\n\ndef get_inputs():\n    return [torch.randn(4, 8)]\n")


def commands() -> dict[str, list[str]]:
    found = {"bare_pygls": ["-c", BARE], "hiera": [str(ROOT / "tests" / "fake_server.py")]}
    if importlib.util.find_spec("jedi_language_server"):
        found["jedi"] = ["-c", "from jedi_language_server.cli import cli; cli()"]
    return found


async def begin(command: list[str], cache: Path) -> Client:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, env={**os.environ, "HIERA_CACHE": str(cache), "FAKE_CLOCK": "1"}, limit=64 << 20)
    return Client(process, {})


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def spread(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]  # noqa: E731
    return {"n": len(ordered), "median_ms": round(statistics.median(ordered), 2), "p95_ms": round(at(0.95), 2),
            "p99_ms": round(at(0.99), 2), "max_ms": round(ordered[-1], 2)}


async def starts(cache: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds from starting the process to the answer of `initialize`, the servers in turn."""
    samples: dict[str, list[float]] = {name: [] for name in commands()}
    for number in range(rounds + 1):
        for name, command in commands().items():
            begun = time.perf_counter()
            client = await begin(command, cache)
            await client.initialize(FULL)
            if number:  # The first of each only warms the disk.
                samples[name].append(1000 * (time.perf_counter() - begun))
            await client.kill()
    return samples


async def typing(name: str, command: list[str], folder: Path, lines: int, seconds: float) -> dict[str, Any]:
    """Latency of hover and code action while the user types and, for us, a job runs."""
    path = folder / f"model_{lines}.py"
    path.write_text(text_of(lines))
    client = await begin(command, folder / "cache")
    await client.initialize(FULL, folder=folder)
    uri = client.open(path)
    text = path.read_text()
    slow = text[: text.index("class Slow")].count("\n")
    lags: list[float] = []
    take = client._take  # noqa: SLF001 - our own test client.

    def timed(message: dict[str, Any]) -> None:
        take(message)
        if message.get("method") == "textDocument/publishDiagnostics":
            for diagnostic in message["params"]["diagnostics"]:
                told = re.search(r"told at ([\d.]+)", diagnostic["message"])
                if told:
                    lags.append(1000 * (time.time() - float(told[1])))

    client._take = timed  # noqa: SLF001
    if name == "hiera":
        await client.command("hiera.optimize", uri=uri, symbol="Slow")
        await client.wait_for(lambda: client.progress("report"))
    samples: dict[str, list[float]] = {"hover": [], "code_action": []}
    version, begun = 1, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        version += 1
        spot = {"line": 3 + version % 5, "character": 0}
        client.notify("textDocument/didChange", {"textDocument": {"uri": uri, "version": version}, "contentChanges": [
            {"range": {"start": spot, "end": spot}, "text": "\n" if version % 40 == 0 else " "}]})
        place = {"line": slow + version // 40, "character": 8}
        for kind, method, params in (
            ("hover", "textDocument/hover", {"position": place}),
            ("code_action", "textDocument/codeAction",
             {"range": {"start": place, "end": place}, "context": {"diagnostics": [], "triggerKind": 2}}),
        ):
            asked = time.perf_counter()
            await client.request(method, {"textDocument": {"uri": uri}, **params})
            samples[kind].append(1000 * (time.perf_counter() - asked))
        await asyncio.sleep(0.02)
    found: dict[str, Any] = {kind: spread(values) for kind, values in samples.items()}
    found["resident_mb"] = round(resident_mb(client.process.pid), 1)
    if name == "hiera":
        maps = Path(f"/proc/{client.process.pid}/maps").read_text()
        found["torch_loaded"] = "libtorch" in maps
        found["reports"] = len(client.progress("report"))
        # From the moment that the job knows it to the moment that the editor has it.
        found["diagnostics_after_a_stage"] = spread(lags)
    await client.kill()
    return found


def sites(lines: int) -> dict[str, dict[str, float]]:
    """CPU time of finding what can be optimised in a whole text, as after every keystroke."""
    from hiera_lsp.sites import find_cuda, find_python

    kernel = (ROOT / "examples" / "row_argmax.cu").read_text()
    kernels = "".join(kernel.replace("row_argmax", f"kernel{n}") for n in range(lines // kernel.count("\n")))
    found = {}
    for name, find, text in (("py", find_python, text_of(lines)), ("cu", find_cuda, kernels.replace("// hiera:", "//"))):
        samples = []
        for number in range(31):
            changed, begun = text + "\n" * number, time.process_time()
            find(changed)
            samples.append(1000 * (time.process_time() - begun))
        found[name] = {"lines": text.count("\n"), **spread(samples[1:])}  # The first loads the parser.
    return found


async def measure(rounds: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        begun = await starts(folder / "cache", rounds)
        bare = statistics.median(begun["bare_pygls"])
        found: dict[str, Any] = {
            "benchmark": "lsp_latency", "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": await checkout_commit(MEASURED),
            "machine": {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version(),
                        "system": platform.platform()},
            "initialize": {name: {**spread(values), "ratio_to_bare": round(statistics.median(values) / bare, 3)}
                           for name, values in begun.items()},
            "sites_cpu": sites(5000),
            "typing": {},
        }
        for lines in (300, 5000):
            found["typing"][str(lines)] = {
                name: await typing(name, command, folder, lines, seconds) for name, command in commands().items()
                if name != "jedi" or lines == 300}
        found["left_out"] = [] if "jedi" in commands() else ["jedi: not installed (pip install 'hiera[bench]')"]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="starts of each server")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the user types, per server and size")
    parser.add_argument("--out", type=Path, help="write the results there")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.rounds, arguments.seconds))
    text = json.dumps(found, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()

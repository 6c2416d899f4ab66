"""`.cu` files in the editor: wrong or missing `// hiera:` lines are shown where they are, with a way out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import FULL, Client
from test_lsp_server import KERNEL

CAPABILITIES = {**FULL, "textDocument": {**FULL["textDocument"], "publishDiagnostics": {"codeDescriptionSupport": True}}}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    started = await Client.start(cache=tmp_path / "cache")
    await started.initialize(CAPABILITIES, folder=tmp_path)
    yield started
    await started.kill()


@pytest.mark.parametrize(("old", "new", "line", "said"), [
    ("float32[64]\n", "float32[many]\n", 1, "the sizes in 'float32[many]' are not whole numbers"),
    ("// hiera: launch grid=(1) block=(64)\n", "", 3, "nothing says how kernel twice is launched"),
    ("// hiera: arg y out float32[64]\n", "", 3, "nothing says what argument 'y' of 'twice' is"),
    ("arg y out float32", "arg y out int32", 2, "argument 'y' is float* in the code and int32 in its pragma"),
    ("// hiera: launch", "// hiera: lunch", 3, "unknown pragma 'lunch'"),
])
async def test_a_wrong_line_is_shown_while_it_is_wrong(tmp_path: Path, client: Client, old: str, new: str, line: int, said: str) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(KERNEL)
    uri = client.open(path, "cuda-cpp")
    client.change(uri, KERNEL.replace(old, new, 1))
    await client.wait_for(lambda: client.diagnostics.get(uri))
    (diagnostic,) = client.diagnostics[uri]
    assert diagnostic["message"].startswith(said)
    assert "\nTo fix: " in diagnostic["message"]
    assert diagnostic["code"] == "hiera.pragma"
    assert diagnostic["severity"] == 3
    assert diagnostic["range"]["start"]["line"] == line
    assert diagnostic["codeDescription"]["href"].endswith("/cuda-files.md")
    assert Path(diagnostic["codeDescription"]["href"].removeprefix("file://")).read_text().startswith("# `.cu` files")

    client.change(uri, KERNEL)
    await client.wait_for(lambda: client.diagnostics[uri] == [])


async def test_the_fix_names_the_diagnostic_that_it_mends(tmp_path: Path, client: Client) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(KERNEL.replace("// hiera: launch grid=(1) block=(64)\n", ""))
    uri = client.open(path, "cuda-cpp")
    await client.wait_for(lambda: client.diagnostics.get(uri))
    shown = client.diagnostics[uri]
    (fix,) = await client.request("textDocument/codeAction", {
        "textDocument": {"uri": uri}, "range": shown[0]["range"], "context": {"diagnostics": shown, "only": ["quickfix"]}})
    assert fix["title"] == "Describe arguments and launch (// hiera: lines)"
    assert fix["diagnostics"] == shown


async def test_a_file_that_describes_nothing_is_left_in_peace(tmp_path: Path, client: Client) -> None:
    path = tmp_path / "twice.cu"
    path.write_text("".join(line for line in KERNEL.splitlines(keepends=True) if "hiera:" not in line))
    uri = client.open(path, "cuda-cpp")
    actions = await client.actions(uri, 2)
    assert actions[0]["disabled"]["reason"] == "nothing says what argument 'x' of 'twice' is"
    await asyncio.sleep(0.5)  # Diagnostics follow the text after a pause.
    assert client.diagnostics.get(uri, []) == []

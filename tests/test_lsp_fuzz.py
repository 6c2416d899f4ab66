"""A server is never killed by its client: 10,000 malformed and disordered messages, fixed seed, and floods of edits."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lsp_client import FULL, ROOT, Client

COUNT = 10_000
METHODS = [
    "textDocument/didOpen", "textDocument/didChange", "textDocument/didClose", "textDocument/didSave",
    "textDocument/hover", "textDocument/codeAction", "codeAction/resolve", "textDocument/codeLens",
    "textDocument/inlayHint", "workspace/executeCommand", "workspace/didChangeConfiguration",
    "workspace/didChangeWorkspaceFolders", "workspace/didChangeWatchedFiles", "window/workDoneProgress/cancel",
    "workspace/textDocumentContent", "$/cancelRequest", "$/setTrace", "initialize", "initialized", "no/such/method",
    "textDocument/completion", "notebookDocument/didOpen", "$/progress",
]
COMMANDS = ["hiera.optimize", "hiera.reverify", "hiera.profile", "hiera.cancel", "hiera.jobs", "hiera.accept", "hiera.use",
            "hiera.accepted", "hiera.discard", "hiera.choose", "hiera.diff", "hiera.explain", "hiera.report",
            "hiera.result", "hiera.secret", "hiera.unknown", "hiera.help", "hiera.sites", "hiera.runs", "hiera.run", "hiera.page",
            "hiera.deleteRun", "hiera.doctor"]
URIS = ["file:///nowhere/a%20b.py", "file:///nowhere/k%3A.cu", "untitled:Untitled-1", "", "file:", "not a uri", "http://x/y.py",
        "file:///nowhere/\U00020000.py", "hiera-candidate:/run/x/y.cu", "file:///proc/self/mem", "file:///" + "x" * 5000]
TEXTS = ["", "\ufeffimport torch\r\n", "class A(nn.Module):\n  def forward(self, x): return x\n", "class B(\n\n def", "\x0c\x0b\u2028\x00",
         "__global__ void k(float* x) { x[0] = 1; }\n", "\U0001f600" * 50, "a\rb\rc", "(" * 300, "\ud800",
         "import torch\nclass C(torch.nn.Module):\n    def forward(self, x):\n        return x\n\ndef get_inputs():\n    return []\n"]


def junk(chance: random.Random, depth: int = 0) -> Any:
    kinds = ["none", "int", "text", "bool", "float", "uri", "list", "dict"]
    match chance.choice(kinds if depth < 3 else kinds[:6]):
        case "none":
            return None
        case "int":
            return chance.choice([0, 1, -1, 7, 2**31, -(2**40), 10**30])
        case "text":
            return chance.choice(TEXTS)
        case "bool":
            return chance.random() < 0.5
        case "float":
            return chance.choice([0.5, -1e300])
        case "uri":
            return chance.choice(URIS)
        case "list":
            return [junk(chance, depth + 1) for _ in range(chance.randrange(4))]
    keys = ["uri", "symbol", "textDocument", "position", "range", "line", "character", "data", "method", "jsonrpc", "id"]
    return {chance.choice(keys): junk(chance, depth + 1) for _ in range(chance.randrange(4))}


def place(chance: random.Random) -> Any:
    return {"line": chance.choice([0, 1, 2, 99, 2**31 - 1]), "character": chance.choice([0, 1, 5, 2**31 - 1])}


def sensible(chance: random.Random, method: str) -> Any:
    """Parameters of the right shape with odd values."""
    document = {"uri": chance.choice(URIS), "version": chance.choice([0, 1, 5, -3])}
    span = {"start": place(chance), "end": place(chance)}
    match method:
        case "textDocument/didOpen":
            return {"textDocument": {**document, "languageId": chance.choice(["python", "cuda", "?"]), "text": chance.choice(TEXTS)}}
        case "textDocument/didChange":
            change = {"text": chance.choice(TEXTS)}
            return {"textDocument": document, "contentChanges": [change if chance.random() < 0.4 else {**change, "range": span}]}
        case "textDocument/hover":
            return {"textDocument": document, "position": place(chance)}
        case "textDocument/codeAction":
            return {"textDocument": document, "range": span, "context": {"diagnostics": [], "triggerKind": chance.choice([1, 2])}}
        case "codeAction/resolve":
            return {"title": "x", "data": {"do": chance.choice(["accept", "use", "inputs", "?"]), "uri": chance.choice(URIS), "symbol": junk(chance)}}
        case "workspace/executeCommand":
            return {"command": chance.choice(COMMANDS), "arguments": [{"uri": chance.choice(URIS), "symbol": chance.choice(["A", "C", None, 3])}] if chance.random() < 0.7 else junk(chance)}
        case "textDocument/inlayHint":
            return {"textDocument": document, "range": span}
        case "workspace/didChangeConfiguration":
            return {"settings": {"hiera": junk(chance)}}
        case "$/setTrace":
            return {"value": chance.choice(["off", "messages", "verbose"])}
        case "window/workDoneProgress/cancel":
            return {"token": junk(chance)}
    return {"textDocument": document}


def message(chance: random.Random, number: int) -> bytes:
    method = chance.choice(METHODS)
    roll = chance.random()
    params = sensible(chance, method) if roll < 0.6 else junk(chance)
    body: Any = {"jsonrpc": "2.0", "method": method, "params": params}
    if chance.random() < 0.6:
        body["id"] = number + 10
    if roll > 0.93:
        body = junk(chance)
    elif roll > 0.9:
        body = {"jsonrpc": "2.0", "id": junk(chance), "result": junk(chance)}
    elif roll > 0.88:
        body = {"jsonrpc": "2.0", "id": chance.randrange(5), "error": junk(chance)}
    elif roll > 0.85:
        body.pop(chance.choice(["jsonrpc", "method", "params"]))
    data = json.dumps(body).encode()
    roll = chance.random()
    if roll < 0.02:
        data = data[: len(data) // 2]
    elif roll < 0.03:
        data = bytes(chance.randrange(256) for _ in range(40))
    head = b"Content-Length: %d\r\n\r\n" % len(data)
    roll = chance.random()
    if roll < 0.01:
        head = b"X-Nonsense\r\nContent-Type: x\r\n" + head
    elif roll < 0.02:
        head = b"content-length:%d\r\n\r\n" % len(data)
    elif roll < 0.025:
        head, data = b"Content-Length: many\r\n\r\n", b""
    return head + data


@pytest.mark.timeout(240)
def test_ten_thousand_messages_do_not_kill_it(tmp_path: Path) -> None:
    chance = random.Random(20240607)
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen([sys.executable, "-m", "hiera_lsp"], cwd=ROOT, stdin=subprocess.PIPE,
                               stdout=(tmp_path / "out").open("wb"), stderr=log,
                               env={**os.environ, "HIERA_CACHE": str(tmp_path / "cache")})

    def send(body: Any) -> None:
        data = json.dumps({"jsonrpc": "2.0", **body}).encode()
        process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)

    early = b"".join(message(chance, number) for number in range(200) if number % 2)
    process.stdin.write(early.replace(b'"initialize"', b'"initializ"'))
    send({"id": 1, "method": "initialize", "params": {"processId": os.getpid(), "rootUri": None, "capabilities": FULL,
                                                      "initializationOptions": {"trusted": False}}})
    send({"method": "initialized", "params": {}})
    # Untrusted, so that no fuzzed command starts a job; exit is the only message that may end the server.
    for number in range(COUNT):
        process.stdin.write(message(chance, number))
    uri = (tmp_path / "last.py").as_uri()
    send({"method": "textDocument/didOpen", "params": {"textDocument": {
        "uri": uri, "languageId": "python", "version": 1, "text": TEXTS[-1]}}})
    send({"id": "last", "method": "textDocument/codeAction", "params": {
        "textDocument": {"uri": uri}, "range": {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 0}},
        "context": {"diagnostics": []}}})
    send({"id": "end", "method": "shutdown"})
    send({"method": "exit"})
    process.stdin.flush()
    assert process.wait(200) == 0, (tmp_path / "log").read_bytes()[-2000:]
    said = (tmp_path / "out").read_bytes()
    answers = [json.loads(part[part.index(b"{"):]) for part in said.split(b"Content-Length: ")[1:]]
    replies = {a["id"]: a for a in answers if "id" in a and "method" not in a}
    assert replies["last"]["result"][0]["title"] == "Optimize kernel: C"
    assert replies["end"]["result"] is None
    # A client's mistake is answered, and never shown to the user as an error of the server.
    shown = [a["params"]["message"] for a in answers if a.get("method") == "window/showMessage"]
    assert not [text for text in shown if "rror in server" in text]
    codes = {a["error"]["code"] for a in replies.values() if "error" in a}
    assert {-32601, -32602, -32002} <= codes
    internal = [a for a in replies.values() if a.get("error", {}).get("code") == -32603]
    assert internal == []


async def test_thousands_of_edits_keep_the_text_and_the_answers(tmp_path: Path) -> None:
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize()
    path = tmp_path / "model.py"
    text = "import torch\nfrom torch import nn\n\n\nclass Block(nn.Module):\n    def forward(self, x):\n        return x\n"
    path.write_text(text)
    uri = client.open(path)
    begun = time.monotonic()
    for number in range(3000):
        spot = {"line": 6, "character": 16 + number}
        client.notify("textDocument/didChange", {
            "textDocument": {"uri": uri, "version": number + 2},
            "contentChanges": [{"range": {"start": spot, "end": spot}, "text": "x"}]})
        if number % 500 == 0:
            await client.process.stdin.drain()
    titles = [a["title"] for a in await client.actions(uri, 4)]
    took = time.monotonic() - begun
    await client.kill()
    assert titles[0] == "Optimize kernel: Block"
    assert took < 15


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
async def test_places_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    client = await Client.start(cache=tmp_path / "cache")
    capabilities = {**FULL, "general": {"positionEncodings": [encoding]}}
    assert (await client.initialize(capabilities))["capabilities"]["positionEncoding"] == encoding
    path = tmp_path / "sp ace" / "m%3Aö\U00020000.py"
    path.parent.mkdir()
    path.write_bytes("\x0c\r\nimport torch\r\nfrom torch import nn\r\nif 1:\r\n  '\U0001f600'; x = 1\r\n"
                     "class \U00020000ö(nn.Module):\r\n    def forward(self, x): return x\r\n".encode())
    uri = client.open(path)
    # After the emoji and the quote: an insertion there shows that columns are counted as the client does.
    column = {"utf-8": 4, "utf-16": 2, "utf-32": 1}[encoding] + 4
    spot = {"line": 4, "character": column}
    client.notify("textDocument/didChange", {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [
        {"range": {"start": spot, "end": spot}, "text": "# no more\r\n"},
        {"range": {"start": {"line": 5, "character": 0}, "end": {"line": 5, "character": 9999}}, "text": ""}]})
    hover = await client.actions(uri, 6)
    await client.kill()
    assert hover[0]["title"] == "Optimize kernel: \U00020000ö"


async def test_untitled_and_deleted_files_and_stray_prints(tmp_path: Path) -> None:
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize()
    client.notify("textDocument/didOpen", {"textDocument": {
        "uri": "untitled:Untitled-1", "languageId": "cuda-cpp", "version": 1,
        "text": "__global__ void k(float* x) { x[0] = 1; }\n"}})
    actions = await client.actions("untitled:Untitled-1", 0)
    assert actions[0]["title"] == "Optimize kernel: k"
    assert actions[0]["disabled"]["reason"].startswith("save the file first")
    assert await client.actions((tmp_path / "gone.py").as_uri(), 0) == []
    path = tmp_path / "model.py"
    path.write_text(TEXTS[-1])
    uri = client.open(path)
    path.unlink()
    with pytest.raises(Exception, match="not a file on disk"):
        await client.command("hiera.optimize", uri=uri, symbol="C")
    await client.kill()


async def test_memory_stays_flat_over_a_long_session(tmp_path: Path) -> None:
    client = await Client.start(cache=tmp_path / "cache")
    await client.initialize()
    path = tmp_path / "model.py"
    path.write_text(TEXTS[-1])

    def resident() -> int:
        fields = Path(f"/proc/{client.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    async def work(rounds: int) -> None:
        for number in range(rounds):
            uri = client.open(path, version=number)
            client.change(uri, TEXTS[-1] + f"# {number}\n")
            await client.actions(uri, 1)
            await client.request("textDocument/hover", {"textDocument": {"uri": uri}, "position": {"line": 1, "character": 7}})
            client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    await work(300)
    before = resident()
    await asyncio.wait_for(work(1200), 60)
    grown = resident() - before
    await client.kill()
    assert before < 80 << 20
    assert grown < 3 << 20

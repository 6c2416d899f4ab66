"""A raw LSP client for tests: real server process, plain JSON, nothing hidden by a library."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FULL: dict[str, Any] = {
    "workspace": {
        "applyEdit": True, "configuration": True,
        "workspaceEdit": {"documentChanges": True, "resourceOperations": ["create", "rename", "delete"],
                          "changeAnnotationSupport": {}, "metadataSupport": True},
        "codeLens": {"refreshSupport": True},
    },
    "textDocument": {
        "codeAction": {"disabledSupport": True, "dataSupport": True,
                       "resolveSupport": {"properties": ["edit", "command"]},
                       "codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["refactor", "quickfix"]}}},
        "hover": {"contentFormat": ["markdown", "plaintext"]},
        "publishDiagnostics": {"relatedInformation": True},
    },
    "window": {"workDoneProgress": True, "showDocument": {"support": True}},
    "general": {"positionEncodings": ["utf-16"]},
}


class Client:
    """Talks to one server process, and holds its documents' texts as an editor does.

    Attributes:
        texts: Text of every open document, by URI.
        versions: Their versions.
        created: Files that edits of the server made, by URI.
        before: Texts before the last edit of the server, for undo.
        refuse_edits: Answer `applied: false`.
        echo_late: Send didChange after the answer to applyEdit (Neovim), not before (VS Code).
        answers: Fixed answers to requests of the server, by method; `None` answers null, missing never counts.
        silent: Methods of the server that are never answered.
        scoped: Settings of single folders, by URI; `settings` hold elsewhere.
    """

    def __init__(self, process: asyncio.subprocess.Process, settings: dict[str, Any]) -> None:
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.created: dict[str, str] = {}
        self.before: dict[str, str] = {}
        self.refuse_edits = self.echo_late = self.metadata = False
        self.answers: dict[str, Any] = {}
        self.silent: set[str] = set()
        self.scoped: dict[str, Any] = {}
        self.encoding = "utf-16"
        self.process = process
        self.settings = settings
        self.notifications: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.diagnostics: dict[str, list[dict[str, Any]]] = {}
        self.arrived = asyncio.Condition()
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, *, cache: Path, settings: dict[str, Any] | None = None, env: dict[str, str] | None = None,
                    fake_jobs: bool = False, cwd: Path = ROOT, errors: Path | None = None) -> Client:
        how = [str(ROOT / "tests" / "fake_server.py")] if fake_jobs else ["-m", "hiera_lsp"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *how, cwd=cwd, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=errors.open("wb") if errors is not None else None,
            env={**os.environ, "HIERA_CACHE": str(cache), **(env or {})}, limit=64 << 20,
        )
        return cls(process, settings or {})

    async def initialize(self, capabilities: dict[str, Any] | None = None, folder: Path | None = None,
                         options: dict[str, Any] | None = None) -> dict[str, Any]:
        folders = [{"uri": folder.as_uri(), "name": folder.name}] if folder else None
        reply = await self.request("initialize", {
            "processId": os.getpid(), "rootUri": folder.as_uri() if folder else None, "workspaceFolders": folders,
            "capabilities": FULL if capabilities is None else capabilities,
            "initializationOptions": options if options is not None else {"settings": self.settings},
        })
        given = (FULL if capabilities is None else capabilities).get("workspace", {}).get("workspaceEdit", {})
        self.metadata = given.get("metadataSupport", False)
        self.encoding = reply["capabilities"].get("positionEncoding", "utf-16")
        self.notify("initialized", {})
        return reply

    async def request(self, method: str, params: Any, timeout_s: float = 60) -> Any:
        self._number += 1
        future = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = future
        self._send({"id": self._number, "method": method, "params": params})
        reply = await asyncio.wait_for(future, timeout_s)
        if "error" in reply:
            raise LspError(reply["error"])
        return reply.get("result")

    async def command(self, name: str, /, **argument: Any) -> Any:
        return await self.request("workspace/executeCommand", {"command": name, "arguments": [argument]})

    def notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def open(self, path: Path, language: str = "python", version: int = 1) -> str:
        uri = path.as_uri()
        text = path.read_bytes().decode("utf-8")
        self.texts[uri], self.versions[uri] = text, version
        self.notify("textDocument/didOpen", {
            "textDocument": {"uri": uri, "languageId": language, "version": version, "text": text}})
        return uri

    def change(self, uri: str, text: str, version: int | None = None) -> None:
        version = version if version is not None else self.versions[uri] + 1
        self.texts[uri], self.versions[uri] = text, version
        self.notify("textDocument/didChange", {
            "textDocument": {"uri": uri, "version": version}, "contentChanges": [{"text": text}]})

    async def actions(self, uri: str, line: int, only: list[str] | None = None, trigger: int = 1) -> list[dict[str, Any]]:
        place = {"line": line, "character": 0}
        context: dict[str, Any] = {"diagnostics": [], "triggerKind": trigger}
        if only is not None:
            context["only"] = only
        return await self.request("textDocument/codeAction", {
            "textDocument": {"uri": uri}, "range": {"start": place, "end": place}, "context": context})

    async def wait_for(self, condition: Any, timeout_s: float = 20) -> None:
        async with self.arrived:
            await asyncio.wait_for(self.arrived.wait_for(condition), timeout_s)

    def progress(self, kind: str) -> list[dict[str, Any]]:
        values = [n["params"]["value"] for n in self.notifications if n["method"] == "$/progress"]
        return [value for value in values if value["kind"] == kind]

    async def shutdown(self) -> int:
        await self.request("shutdown", None, timeout_s=10)
        self.notify("exit", None)
        return await asyncio.wait_for(self.process.wait(), 10)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self._reader.cancel()

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while True:
            length = 0
            while (line := await self.process.stdout.readline()) not in (b"\r\n", b""):
                assert line.lower().startswith(b"content-"), line
                name, _, value = line.decode().partition(":")
                if name.lower() == "content-length":
                    length = int(value)
            if not length:
                for future in self._waiting.values():
                    if not future.done():
                        future.set_exception(ConnectionError("the server has ended"))
                return
            self._take(json.loads(await self.process.stdout.readexactly(length)))
            async with self.arrived:
                self.arrived.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            future = self._waiting.pop(message["id"], None)
            if future is not None and not future.done():
                future.set_result(message)
            return
        if "id" in message:
            self.requests.append(message)
            answer: Any = None
            if message["method"] == "workspace/configuration":
                answer = [self.scoped.get(item.get("scopeUri"), self.settings) for item in message["params"]["items"]]
            elif message["method"] in self.silent:
                return
            elif message["method"] in self.answers:
                answer = self.answers[message["method"]]
            elif message["method"] == "workspace/applyEdit":
                answer = {"applied": not self.refuse_edits}
                supported = {"edit", "label", *(("metadata",) if self.metadata else ())}
                assert set(message["params"]) <= supported, "the edit has a field that the client does not know"
                if not self.refuse_edits:
                    echo = self.apply(message["params"]["edit"])
                    if self.echo_late:
                        self._send({"id": message["id"], "result": answer})
                    for uri, text in echo.items():
                        self.change(uri, text)
                    if self.echo_late:
                        return
            elif message["method"] == "window/showDocument":
                answer = {"success": True}
            self._send({"id": message["id"], "result": answer})
            return
        self.notifications.append(message)
        if message["method"] == "textDocument/publishDiagnostics":
            self.diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]


    def apply(self, edit: dict[str, Any]) -> dict[str, str]:
        """Apply a workspace edit; the new texts of open documents, which the caller tells the server."""
        changed: dict[str, str] = {}
        changes = edit["documentChanges"] if "documentChanges" in edit else [
            {"textDocument": {"uri": uri, "version": None}, "edits": edits} for uri, edits in edit["changes"].items()]
        for change in changes:
            if change.get("kind") == "create":
                assert change["uri"] not in self.created
                self.created[change["uri"]] = ""
                continue
            uri, version = change["textDocument"]["uri"], change["textDocument"]["version"]
            assert version in (None, self.versions.get(uri)), "the edit is for another version"
            where = self.texts if uri in self.texts else self.created
            if where is self.texts:
                self.before[uri] = self.texts[uri]
            text = edited(where.get(uri, ""), change["edits"], self.encoding)
            if where is self.texts:
                changed[uri] = text
            else:
                where[uri] = text
        return changed

    def undo(self, uri: str) -> None:
        """One undo step in a document."""
        self.change(uri, self.before[uri])


def edited(text: str, edits: list[dict[str, Any]], encoding: str) -> str:
    """`text` with non-overlapping edits applied, positions in code units of `encoding`."""
    unit = {"utf-8": 1, "utf-16": 2, "utf-32": 4}[encoding]
    name = {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}[encoding]
    starts = [0]
    for line in io.StringIO(text, newline=""):
        starts.append(starts[-1] + len(line))

    def offset(place: dict[str, int]) -> int:
        if place["line"] >= len(starts):
            return len(text)
        begin = starts[place["line"]]
        end = starts[place["line"] + 1] if place["line"] + 1 < len(starts) else len(text)
        head = text[begin:end].encode(name)[: unit * place["character"]]
        return begin + len(head.decode(name))

    spans = sorted((offset(e["range"]["start"]), offset(e["range"]["end"]), e["newText"]) for e in edits)
    for start, end, new in reversed(spans):
        text = text[:start] + new + text[end:]
    return text


class LspError(Exception):
    """An error reply."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]

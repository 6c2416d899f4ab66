"""A raw LSP client for tests: real server process, plain JSON, nothing hidden by a library."""

from __future__ import annotations

import asyncio
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
                          "changeAnnotationSupport": {}},
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
    """Talks to one server process. Server requests are answered from `answers`."""

    def __init__(self, process: asyncio.subprocess.Process, settings: dict[str, Any]) -> None:
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
    async def start(cls, *, cache: Path, settings: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> Client:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hiera_lsp", cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "HIERA_CACHE": str(cache), **(env or {})},
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

    async def command(self, name: str, **argument: Any) -> Any:
        return await self.request("workspace/executeCommand", {"command": name, "arguments": [argument]})

    def notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def open(self, path: Path, language: str = "python", version: int = 1) -> str:
        uri = path.as_uri()
        text = path.read_bytes().decode("utf-8")
        self.notify("textDocument/didOpen", {
            "textDocument": {"uri": uri, "languageId": language, "version": version, "text": text}})
        return uri

    def change(self, uri: str, text: str, version: int) -> None:
        self.notify("textDocument/didChange", {
            "textDocument": {"uri": uri, "version": version}, "contentChanges": [{"text": text}]})

    async def actions(self, uri: str, line: int, only: list[str] | None = None, trigger: int = 1) -> list[dict[str, Any]]:
        place = {"line": line, "character": 0}
        context: dict[str, Any] = {"diagnostics": [], "triggerKind": trigger}
        if only is not None:
            context["only"] = only
        return await self.request("textDocument/codeAction", {
            "textDocument": {"uri": uri}, "range": {"start": place, "end": place}, "context": context})

    async def wait_for(self, condition: Any, timeout_s: float = 30) -> None:
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
                name, _, value = line.decode().partition(":")
                if name.lower() == "content-length":
                    length = int(value)
            if not length:
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
                answer = [self.settings for _ in message["params"]["items"]]
            elif message["method"] == "workspace/applyEdit":
                answer = {"applied": True}
            elif message["method"] == "window/showDocument":
                answer = {"success": True}
            self._send({"id": message["id"], "result": answer})
            return
        self.notifications.append(message)
        if message["method"] == "textDocument/publishDiagnostics":
            self.diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]


class LspError(Exception):
    """An error reply."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]

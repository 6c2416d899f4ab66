"""The worker's side of the wire: requests in, replies out, trouble as data.

A request is `{"id": n, "kind": "...", ...}`; the reply `{"id": n, "ok": true, ...}` or
`{"id": n, "ok": false, "error": {"type", "problem", "hint", "file", "line", "log"}}`.
Progress is `{"id": n, "event": "...", ...}` and may come any number of times before the reply.
"""

import gc
import importlib
import json
import os
import sys
import traceback


class Refusal(Exception):
    """A request that cannot be served, said in the user's words."""

    def __init__(self, problem, hint, file=None, line=None, kind="input"):
        super().__init__(problem)
        self.problem, self.hint, self.file, self.line, self.kind = problem, hint, file, line, kind


def serve(role, reply_fd):
    """Answer requests until stdin ends. `role` names the module whose `handle(kind, request, emit)` serves."""
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    replies = os.fdopen(reply_fd, "wb", buffering=0)
    # User code may print or read: both must miss the wire.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    # Starting makes many objects and hardly any garbage; the collector would look through them hundreds of times.
    gc.disable()
    module = importlib.import_module("_hiera_worker." + role)
    buffer = b""
    while True:
        chunk = requests.read(1 << 16)
        if not chunk:
            os._exit(0)
        buffer += chunk
        while b"\n" in buffer:
            line, buffer = buffer.split(b"\n", 1)
            _answer(module, json.loads(line), replies)


def _answer(module, request, replies):
    number = request.get("id")
    if request["kind"] != "warm" and not gc.get_freeze_count():
        gc.freeze()  # What starting made stays, and is never looked through again.
        gc.enable()

    def send(message):
        data = memoryview((json.dumps({"id": number, **message}) + "\n").encode())
        while data:
            data = data[replies.write(data):]

    def emit(event, **fields):
        send({"event": event, **fields})

    try:
        send({"ok": True, **(module.handle(request["kind"], request, emit) or {})})
    except Refusal as refusal:
        send({"ok": False, "error": {"type": refusal.kind, "problem": refusal.problem, "hint": refusal.hint,
                                     "file": refusal.file, "line": refusal.line, "log": ""}})
    except BaseException as error:
        log = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-8000:]
        send({"ok": False, "error": {"type": "internal", "problem": f"{type(error).__name__}: {error}"[:2000],
                                     "hint": "see the log", "file": None, "line": None, "log": log}})
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            os._exit(1)

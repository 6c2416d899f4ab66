"""An editor that starts the server and a job, hands the server's pipes on to a child, and waits to be killed.

    python dying_editor.py SERVER FILE SYMBOL SEEN

Writes its child's, the server's and the job's process ids to SEEN once the job is at work.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

server_program, file, symbol, seen = sys.argv[1:]
server = subprocess.Popen([sys.executable, server_program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
# What a terminal or a build in an editor does: it outlives the editor, with copies of the editor's pipes.
child = subprocess.Popen(["sleep", "60"], stdin=server.stdout, stdout=server.stdin)


def send(method: str, params: object, number: int | None = None) -> None:
    data = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **({"id": number} if number else {})}).encode()
    server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
    server.stdin.flush()


uri = Path(file).as_uri()
send("initialize", {"processId": os.getpid(), "rootUri": None, "capabilities": {}}, 1)
send("initialized", {})
send("textDocument/didOpen", {"textDocument": {"uri": uri, "languageId": "python", "version": 1, "text": Path(file).read_text()}})
send("workspace/executeCommand", {"command": "hiera.optimize", "arguments": [{"uri": uri, "symbol": symbol}]}, 2)
children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
while not children.read_text():
    time.sleep(0.05)
time.sleep(1)  # The job reads its request.
Path(seen).write_text(f"{child.pid} {server.pid} {children.read_text()}")
time.sleep(60)

"""Workers that answer, hang, crash and outlive their parent, with real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from contracts.errors import InputError, WorkerDiedError, WorkerError, WorkerTimeoutError
from engine import processes
from engine.processes import Worker, child_environment, run

ECHO = """
import os, sys, time
from _hiera_worker.wire import Refusal

def handle(kind, request, emit):
    print("noise on stdout")
    if kind == "abort":
        os.abort()
    if kind == "hang":
        time.sleep(600)
    if kind == "refuse":
        raise Refusal("bad x", "mend x", file="m.py", line=3)
    if kind == "forge":
        os.write(int(sys.argv[2]), request["line"].encode("latin-1") + b"\\n")
    if kind == "raise":
        raise ValueError("boom")
    emit("progress", value=1)
    return {"got": request.get("value"), "pid": os.getpid(), "env": dict(os.environ)}
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "worker"
    folder.mkdir()
    source = Path(processes.WORKER_MAIN).parent
    for name in ("__init__.py", "main.py", "wire.py"):
        (folder / name).write_text((source / name).read_text())
    (folder / "echo.py").write_text(ECHO)
    monkeypatch.setattr(processes, "WORKER_MAIN", folder / "main.py")
    return Worker("echo")


async def test_a_reply_comes_with_its_events_and_noise_stays_out(echo: Worker) -> None:
    events: list[dict] = []

    reply = await echo.call("hello", timeout_s=20, value=[1, {"a": None}], on_event=events.append)

    assert reply["got"] == [1, {"a": None}]
    assert events[0]["value"] == 1
    assert "noise on stdout" in echo.log_tail
    await echo.close()


ERROR = '{"id": 1, "ok": false, "error": {"type": "internal", "problem": %s, "hint": "", "file": %s, "line": null, "log": ""}}'


@pytest.mark.parametrize("line", [
    "no JSON", "\xff\xfe", "[" * 20_000, "7", "[1]", "{}", '{"id": 1}', '{"id": 2, "ok": true}', '{"id": 1, "ok": false}',
    '{"id": 1, "ok": false, "error": []}', ERROR % ("5", "null"), ERROR % ('"boom"', "7"),
])
async def test_a_reply_that_our_worker_did_not_write_is_a_worker_error(echo: Worker, line: str) -> None:
    with pytest.raises(WorkerError, match="writes replies of its own"):
        await echo.call("forge", timeout_s=20, line=line)
    assert echo.pid is None
    await echo.close()


async def test_a_crash_is_reported_and_the_next_call_works(echo: Worker) -> None:
    with pytest.raises(WorkerDiedError) as caught:
        await echo.call("abort", timeout_s=20)

    assert caught.value.exit_status == -signal.SIGABRT
    assert (await echo.call("hello", timeout_s=20, value=2))["got"] == 2
    await echo.close()


async def test_a_hang_is_killed_within_its_limit(echo: Worker) -> None:
    start = time.monotonic()
    with pytest.raises(WorkerTimeoutError):
        await echo.call("hang", timeout_s=1)

    assert time.monotonic() - start < 5
    assert echo.pid is None


async def test_cancelling_a_call_kills_the_process(echo: Worker) -> None:
    pid = (await echo.call("hello", timeout_s=20))["pid"]
    task = asyncio.create_task(echo.call("hang", timeout_s=60))
    await asyncio.sleep(0.2)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_refusals_and_exceptions_keep_their_place(echo: Worker) -> None:
    with pytest.raises(InputError, match=r"m\.py:3: bad x \(to fix: mend x\)"):
        await echo.call("refuse", timeout_s=20)
    with pytest.raises(WorkerError, match="ValueError: boom") as caught:
        await echo.call("raise", timeout_s=20)

    assert "in handle" in "".join(caught.value.__notes__)
    await echo.close()


async def test_children_get_no_keys(echo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AWS_TOKEN", "t")

    seen = child_environment()
    reply = await Worker("echo").call("hello", timeout_s=20)

    assert not {"OPENAI_API_KEY", "AWS_TOKEN"} & (set(seen) | set(reply["env"]))


async def test_a_tool_that_hangs_takes_its_children_along(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(WorkerTimeoutError):
        await run(["sh", "-c", script], timeout_s=1)

    grandchild = int((tmp_path / "pid").read_text())
    await asyncio.sleep(0.2)
    state = Path(f"/proc/{grandchild}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_worker_dies_with_a_killed_parent(tmp_path: Path, echo: Worker) -> None:
    code = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from engine import processes
        processes.WORKER_MAIN = Path({str(processes.WORKER_MAIN)!r})
        async def main():
            worker = processes.Worker("echo")
            print((await worker.call("hello", timeout_s=20))["pid"], flush=True)
            await worker.call("hang", timeout_s=600)
        asyncio.run(main())
    """)
    root = Path(__file__).parent.parent
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())

    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)

    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()

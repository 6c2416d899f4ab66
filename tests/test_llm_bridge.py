"""The bridge of files: questions out, answers in, over real HTTP with the real client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from engine.llm.bridge import Bridge
from engine.llm.client import Client, Question
from engine.llm.endpoint import Endpoint, Provider
from engine.llm.errors import ModelError
from engine.llm.memory import Memory
from engine.llm.shapes import object_schema
from engine.llm.structured import ask_json
from engine.llm.tiny_http import port_of, serve

ROOT = Path(__file__).parent.parent
QUESTION = Question(messages=(("system", "You are a model."), ("user", "What is 6 x 7?")), answer_tokens=100, name="sum")


@contextlib.asynccontextmanager
async def bridge(queue: Path, **changes: float):
    server = await serve(Bridge(queue, **{"heartbeat_s": 0.1, **changes}).handle)
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{port_of(server)}/v1", model="bridge", key="sk-secret-key-123456",
                        provider=Provider(name="bridge", title="Bridge"))
    client = Client(endpoint, memory=Memory(queue.parent / "memory"), call_s=15, backoff_s=0.01)
    try:
        yield client
    finally:
        await client.aclose()
        server.close()


async def answer(queue: Path, text: str, kind: str = "txt") -> str:
    """Wait for a question and answer it, as a person would."""
    for _ in range(200):
        open_ = sorted((queue / "requests").glob("*.json"))
        if open_:
            key = open_[0].stem
            part = queue / "answers" / ".part"
            part.write_text(text)
            part.rename(queue / "answers" / f"{key}.{kind}")
            return key
        await asyncio.sleep(0.02)
    raise AssertionError("no question came")


async def test_a_question_becomes_a_file_and_a_file_the_answer(tmp_path):
    queue = tmp_path / "q"
    async with bridge(queue) as client:
        asked = asyncio.ensure_future(client.ask(QUESTION))
        for _ in range(500):
            if list((queue / "requests").glob("*.md")):
                break
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)  # Several heartbeats: the connection is kept warm.
        (page,) = (queue / "requests").glob("*.md")
        assert "What is 6 x 7?" in page.read_text()
        await answer(queue, "42, of course")
        assert (await asked).text == "42, of course"
        assert not list((queue / "requests").iterdir())
    assert all(b"secret-key" not in path.read_bytes() for path in queue.rglob("*") if path.is_file())


async def test_answers_stay_so_a_run_repeats_without_anyone(tmp_path):
    queue = tmp_path / "q"
    for root in ("first", "second"):
        async with bridge(queue) as client:
            client._memory = Memory(tmp_path / root)
            asked = asyncio.ensure_future(client.ask(QUESTION))
            if root == "first":
                await answer(queue, "42")
            assert (await asked).text == "42"


async def test_an_answer_of_the_wrong_form_is_put_aside_and_the_question_stays(tmp_path):
    queue = tmp_path / "q"
    question = Question(messages=QUESTION.messages, answer_tokens=100, schema=object_schema({"sum": {"type": "integer"}}))
    async with bridge(queue) as client:
        asked = asyncio.ensure_future(ask_json(client, question, lambda value: value["sum"]))
        await answer(queue, "forty-two")
        for _ in range(100):
            if list((queue / "rejected").glob("*.why")):
                break
            await asyncio.sleep(0.02)
        (why,) = (queue / "rejected").glob("*.why")
        assert "JSON object" in why.read_text()
        await answer(queue, '{"sum": 42}')
        assert await asked == 42


async def test_errors_and_refusals_can_be_played(tmp_path):
    queue = tmp_path / "q"
    async with bridge(queue, heartbeat_s=5) as client:
        asked = asyncio.ensure_future(client.ask(QUESTION))
        await answer(queue, json.dumps({"error": {"status": 429, "message": "slow", "retry_after": 0.05}}), "json")
        await asyncio.sleep(0.3)
        await answer(queue, json.dumps({"refusal": "I would rather not."}), "json")
        with pytest.raises(ModelError, match="rather not"):
            await asked


async def test_a_client_that_gave_up_still_gets_the_late_answer(tmp_path):
    queue = tmp_path / "q"
    async with bridge(queue) as client:
        client._call_s = 0.4
        with pytest.raises(ModelError, match="did not finish"):
            await client.ask(QUESTION)
        client._call_s = 10
        asked = asyncio.ensure_future(client.ask(QUESTION))
        await answer(queue, "42")
        assert (await asked).text == "42"


async def test_nobody_answers(tmp_path):
    async with bridge(tmp_path / "q", longest_s=0.2, heartbeat_s=5) as client:
        client._call_s = 1.0
        with pytest.raises(ModelError):
            await client.ask(QUESTION)
    assert list((tmp_path / "q" / "requests").glob("*.md")), "it stays open, to be answered before the next run"


def test_the_program_serves_and_refuses_web_pages_and_nonsense(tmp_path):
    process = subprocess.Popen([sys.executable, "-m", "engine.llm.bridge", "--queue", str(tmp_path / "q"), "--port", "0"],
                               cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        base = process.stdout.readline().split()[2].rstrip(",")
        assert json.load(urllib.request.urlopen(f"{base}/models"))["data"][0]["id"] == "bridge"
        for path, body, headers, status in (
            ("/chat/completions", b'{"messages": []}', {"Origin": "http://evil.example"}, 403),
            ("/chat/completions", b"not json", {}, 400),
            ("/chat/completions", b'{"messages": [], "n": 3}', {}, 400),
            ("/embeddings", b"{}", {}, 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(urllib.request.Request(f"{base}{path}", data=body, headers=headers))
            assert caught.value.code == status
    finally:
        process.terminate()
        process.wait(timeout=10)


def test_a_port_in_use_is_told(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run([sys.executable, "-m", "engine.llm.bridge", "--queue", str(tmp_path / "q"), "--port",
                               str(taken.getsockname()[1])], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr

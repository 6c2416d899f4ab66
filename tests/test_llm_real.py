"""Opt-in (`make test-llm`): a real small model on the CPU. Whatever it answers, the run ends well and says what happened."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.agents.llm import LlmAgent
from engine.llm.client import Client, Question
from engine.llm.endpoint import resolve
from engine.llm.errors import ModelError
from engine.llm.memory import Memory
from engine.llm.shapes import mapping, object_schema
from engine.llm.structured import ask_json
from engine.optimize import optimize
from engine.store import Store
from engine.trajectory import Job, ModelOptions
from tests.fakes import FakeEvaluator, FakeServices, contract_of
from tests.real_model import MissingModelError, fetch

pytestmark = [
    pytest.mark.llm, pytest.mark.slow, pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("HIERA_TEST_LLM"), reason="opt in with `make test-llm`"),
]
MODELS = Path(os.environ.get("HIERA_TEST_MODELS", Path.home() / ".cache" / "hiera-test-models"))


@pytest.fixture(scope="module")
def base_url():
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed: `make test-llm` installs it")
    try:
        file = fetch(MODELS)
    except MissingModelError as error:
        pytest.skip(str(error))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("real_model.py")), "serve", str(file), str(port)],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        while "listening" not in (line := process.stdout.readline()):
            assert line, "the server ended before it listened"
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=30)


def options(base_url: str, **changes: object) -> ModelOptions:
    return ModelOptions(**{"name": "qwen2.5-coder-0.5b", "base_url": base_url, "call_s": 400.0, "prompt_tokens": 4500,  # type: ignore[arg-type]
                           "answer_tokens": 500, **changes})


def client_of(chosen: ModelOptions, root: Path) -> Client:
    return Client(resolve(chosen, {}), memory=Memory(root), call_s=chosen.call_s)


async def test_a_structured_question_gets_checked_json(base_url, tmp_path):
    client = client_of(options(base_url), tmp_path)
    schema = object_schema({"language": {"type": "string", "enum": ["CUDA C++", "Python"]}, "warp": {"type": "integer"}})
    question = Question(messages=(("system", "You answer questions about GPUs."),
                                  ("user", "Which language are kernels written in, and how many threads has a warp?")),
                        answer_tokens=100, schema=schema, name="check")
    found = await ask_json(client, question, lambda value: mapping(value, ("language", "warp"), "the answer"))
    assert isinstance(found["warp"], int)
    capability = await client.capability()
    assert capability.mode == "json_schema"
    assert client.budget.usage.prompt_tokens > 20
    assert not client.budget.usage.estimated
    await client.aclose()


async def test_an_answer_that_is_cut_is_told_as_such(base_url, tmp_path):
    client = client_of(options(base_url), tmp_path)
    question = Question(messages=(("user", "Count from 1 to 500, one number a line."),), answer_tokens=20)
    with pytest.raises(ModelError, match="cut at 20 tokens"):
        await client.ask(question)
    await client.aclose()


async def test_a_whole_run_ends_well_and_honestly(base_url, tmp_path):
    chosen = options(base_url)
    job = Job(file="model.py", agent="llm", rounds=1, budget=3, llm=chosen)
    agent = LlmAgent(client_of(chosen, tmp_path), chosen, rounds=1, budget=3)
    found = await optimize(job, services=FakeServices(contract_of(["relu", "exp"]), FakeEvaluator()), agent=agent,
                           store=Store(tmp_path))
    print("\n".join(found.notes))
    for candidate in found.candidates:
        print(candidate.author, candidate.space, candidate.title)
    assert found.stopped.complete
    assert found.best is not None
    assert 1 <= len(found.candidates) <= 3
    assert all(c.id in found.evaluations for c in found.candidates)
    assert {c.author for c in found.candidates} <= {"expert", "qwen2.5-coder-0.5b"}
    assert found.usage.requests >= 3
    assert found.plans[0].author in ("expert", "qwen2.5-coder-0.5b")
    if found.plans[0].author == "expert":
        assert any("the expert planned" in note for note in found.notes)

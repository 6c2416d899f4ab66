"""The client against every provider's manners and faults, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest

from engine.llm import client as client_module
from engine.llm.budget import Budget, Price
from engine.llm.client import Client, Question
from engine.llm.endpoint import Endpoint, Provider, resolve
from engine.llm.errors import ModelError
from engine.llm.memory import Memory
from engine.llm.shapes import WrongShapeError, mapping, number, object_schema
from engine.llm.structured import ask_json
from engine.trajectory import ModelOptions
from tests.llm_server import PROFILES, SECRET, provider

SCHEMA = object_schema({"choice": {"type": "string", "enum": ["a", "b"]}, "score": {"type": "number"}})
GOOD = json.dumps({"choice": "b", "score": 7.5, "why": "```not a fence```"})


def question(text: str = "Choose.", **changes: object) -> Question:
    return Question(**{"messages": (("system", "You choose."), ("user", text)), "answer_tokens": 500,  # type: ignore[arg-type]
                       "schema": SCHEMA, "name": "choice", **changes})


def read(value: object) -> tuple[str, float]:
    found = mapping(value, ("choice", "score"), "the answer")
    if found["choice"] not in ("a", "b"):
        raise WrongShapeError("`choice` must be a or b")
    return found["choice"], number(found["score"], "`score`", 0, 10)


def client_of(server: object, tmp_path: object, *, key: str = SECRET, model: str = "test-model", call_s: float = 20.0,
              budget: Budget | None = None, **changes: object) -> Client:
    endpoint = Endpoint(base_url=server.base_url, model=model, key=key, key_variable="TEST_KEY" if key else "",
                        provider=Provider(name="test", title="Test", **changes))
    return Client(endpoint, memory=Memory(tmp_path), call_s=call_s, backoff_s=0.01, budget=budget)


async def ask(client: Client, text: str = "Choose.", **kwargs: object):
    try:
        return await ask_json(client, question(text), read, **kwargs)
    finally:
        await client.aclose()


@pytest.mark.parametrize("name", sorted(PROFILES))
async def test_every_provider_gives_checked_json_and_is_not_asked_twice(name, tmp_path):
    async with provider(name, lambda body: GOOD) as server:
        assert await ask(client_of(server, tmp_path)) == ("b", 7.5)
        first = server.requests
        assert await ask(client_of(server, tmp_path)) == ("b", 7.5)
        assert server.requests == first, "the same question is answered from the cache"
        # What was learnt is remembered: another question needs one request.
        assert await ask(client_of(server, tmp_path), "Choose again.") == ("b", 7.5)
        assert server.requests == first + 1


async def test_the_ladder_steps_down_only_as_far_as_it_must(tmp_path):
    async with provider("deepseek", lambda body: GOOD) as server:
        client = client_of(server, tmp_path)
        await ask_json(client, question(), read)
        assert [(b.get("response_format") or {}).get("type") for b in server.bodies] == ["json_schema", "json_object"]
        assert (await client.capability()).mode == "json_object"
        await client.aclose()


async def test_the_sdk_never_retries_by_itself(tmp_path):
    fault = ("status", 500, "boom", {})
    async with provider("vllm", lambda body: GOOD, faults=[fault] * 50) as server:
        with pytest.raises(ModelError, match="status 500"):
            await ask(client_of(server, tmp_path, key=""))
        assert server.requests == client_module.ATTEMPTS


@pytest.mark.parametrize("fault", ["html-error", "null", "drop", "cut", "break", "error-event", "blank",
                                   ("status", 429, "slow down", {"Retry-After": "0.05"}),
                                   ("status", 503, "loading model", {}), ("status", 408, "timeout", {})])
async def test_what_may_pass_is_tried_again(fault, tmp_path):
    async with provider("vllm", lambda body: GOOD, faults=[fault]) as server:
        assert await ask(client_of(server, tmp_path, key="")) == ("b", 7.5)
        assert server.requests == 2
        assert server.bodies[0] == server.bodies[1], "asked anew, not as a repair of half an answer"


@pytest.mark.parametrize("fault", ["fenced", "prose", "think", "slow"])
async def test_odd_wrappings_cost_no_second_request(fault, tmp_path):
    async with provider("vllm", lambda body: GOOD, faults=[fault]) as server:
        assert await ask(client_of(server, tmp_path, key="")) == ("b", 7.5)
        assert server.requests == 1


@pytest.mark.parametrize("fault", ["wrong", "not-json"])
async def test_a_wrong_shape_is_sent_back_once_with_the_reason(fault, tmp_path):
    async with provider("vllm", lambda body: GOOD, faults=[fault]) as server:
        assert await ask(client_of(server, tmp_path, key="")) == ("b", 7.5)
        last = server.bodies[-1]["messages"][-1]["content"]
        assert "cannot be used" in last
    async with provider("vllm", lambda body: GOOD, faults=[fault, fault, fault]) as server:
        with pytest.raises(ModelError, match="no usable choice") as caught:
            await ask(client_of(server, tmp_path / "two", key=""))
        assert caught.value.kind == "malformed"
        assert server.requests == 2


@pytest.mark.parametrize(("fault", "kind", "words"), [
    ("html", "address", "not as a chat API"),
    ("refusal", "blocked", "refused to answer: I cannot help"),
    ("filter", "blocked", "content_filter"),
    ("prohibited", "blocked", "PROHIBITED_CONTENT"),
    ("redirect", "address", "elsewhere"),
    (("status", 402, "Insufficient Balance", {}), "account", "no credit left"),
    (("status", 429, "You exceeded your current quota: insufficient_quota", {}), "account", "no credit left"),
    (("status", 400, "messages[0] is odd", {}), "refused", "messages[0] is odd"),
    (("status", 403, "country not supported", {}), "key", "wants a key"),
])
async def test_what_cannot_pass_is_said_at_once_in_one_sentence(fault, kind, words, tmp_path):
    async with provider("vllm", lambda body: GOOD, faults=[fault, fault, fault]) as server:
        with pytest.raises(ModelError) as caught:
            await ask(client_of(server, tmp_path, key=""))
        assert caught.value.kind == kind
        assert words in caught.value.problem
        assert "\n" not in str(caught.value)
        assert caught.value.hint
        assert server.requests == 1


@pytest.mark.parametrize("fault", ["length", "thought-out"])
async def test_a_cut_decision_gets_more_room_once(fault, tmp_path):
    async with provider("vllm", lambda body: GOOD, faults=[fault]) as server:
        assert await ask(client_of(server, tmp_path, key="")) == ("b", 7.5)
        assert [body["max_tokens"] for body in server.bodies] == [500, 1000]
    async with provider("vllm", lambda body: GOOD, faults=[fault] * 9) as server:
        with pytest.raises(ModelError, match="was cut at 1000 tokens") as caught:
            await ask(client_of(server, tmp_path / "two", key=""))
        assert caught.value.kind == "truncated"
        assert server.requests == 2


async def test_a_wrong_key_names_its_variable_and_never_itself(tmp_path):
    async with provider("openai", lambda body: GOOD) as server:
        with pytest.raises(ModelError) as caught:
            await ask(client_of(server, tmp_path, key="sk-wrong-secret-123456"))
        assert caught.value.kind == "key"
        assert "TEST_KEY" in caught.value.problem
        assert "wrong-secret" not in str(caught.value)
        assert server.requests == 1


async def test_a_wrong_model_is_told_and_models_are_listed(tmp_path):
    async with provider("vllm", lambda body: GOOD) as server:
        client = client_of(server, tmp_path, key="", model="no-such")
        with pytest.raises(ModelError, match="no model 'no-such'"):
            await ask_json(client, question(), read)
        assert await client.models() == ("test-model",)
        await client.aclose()


async def test_a_closed_port_is_told_after_all_tries(tmp_path):
    async with provider("vllm", lambda body: GOOD) as server:
        pass
    with pytest.raises(ModelError, match="cannot be reached") as caught:
        await ask(client_of(server, tmp_path, key=""))
    assert "start the server" in caught.value.hint


async def test_an_address_without_v1_is_told(tmp_path):
    async with provider("vllm", lambda body: GOOD) as server:
        endpoint = Endpoint(base_url=server.base_url.removesuffix("/v1"), model="m", provider=Provider(name="t", title="T"))
        with pytest.raises(ModelError, match="no chat API") as caught:
            await ask(Client(endpoint, memory=Memory(tmp_path)))
        assert "/v1" in caught.value.hint


@pytest.mark.parametrize("fault", ["hang", "slow"])
async def test_the_total_deadline_holds_also_while_tokens_trickle(fault, tmp_path):
    text = json.dumps({"choice": "a", "score": 1, "why": "x" * 4000})
    async with provider("vllm", lambda body: text, faults=[fault] * 9) as server:
        begun = time.perf_counter()
        with pytest.raises(ModelError) as caught:
            await ask(client_of(server, tmp_path, key="", call_s=0.7))
        assert caught.value.kind == "timeout"
        assert time.perf_counter() - begun < 20  # Each of nine hangs alone would last longer.


async def test_a_wait_longer_than_the_deadline_is_not_waited(tmp_path):
    fault = ("status", 429, "later", {"Retry-After": "3600"})
    async with provider("vllm", lambda body: GOOD, faults=[fault]) as server:
        begun = time.perf_counter()
        with pytest.raises(ModelError, match="no more requests"):
            await ask(client_of(server, tmp_path, key=""))
        assert time.perf_counter() - begun < 60  # An hour was asked for.


@pytest.mark.parametrize(("header", "low", "high"), [("2", 2, 2), ("0.5", 0.5, 0.5), ("soon", None, None), ("-1", None, None),
                                                     ("DATE", 25, 31), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0)])
def test_retry_after_is_read_in_every_form(header, low, high):
    from datetime import UTC, datetime, timedelta
    from email.utils import format_datetime
    from types import SimpleNamespace

    from engine.llm.failures import retry_after

    if header == "DATE":
        header = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    found = retry_after(SimpleNamespace(response=SimpleNamespace(headers={"retry-after": header})))
    assert found is None if low is None else low <= found <= high


async def test_concurrency_complaints_narrow_the_gate(tmp_path):
    fault = ("status", 429, "too many concurrent requests", {"Retry-After": "0.01"})
    async with provider("vllm", lambda body: GOOD, faults=[fault] * 3 + ["slow"] * 9) as server:
        client = client_of(server, tmp_path, key="")
        await asyncio.gather(*(ask_json(client, question(f"Choose {i}."), read) for i in range(6)))
        assert client_module.gate_of(server.base_url).width == 1
        await client.aclose()


async def test_a_silently_shortened_prompt_is_noticed(tmp_path):
    async with provider("ollama", lambda body: GOOD) as server:
        client = client_of(server, tmp_path, key="")
        await ask_json(client, question("word " * 8000), read)
        assert "OLLAMA_CONTEXT_LENGTH" in client.warnings[0]
        await client.aclose()


async def test_a_limit_of_length_is_learnt(tmp_path):
    async with provider("deepseek", lambda body: GOOD) as server:
        client = client_of(server, tmp_path)
        await client.ask(question(schema=None, answer_tokens=20000))
        assert (await client.capability()).most_tokens == 8192
        await client.aclose()


async def test_cancelling_passes_through(tmp_path):
    async with provider("vllm", lambda body: GOOD, faults=["hang"]) as server:
        client = client_of(server, tmp_path, key="")
        task = asyncio.ensure_future(ask_json(client, question(), read))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.aclose()


async def test_tokens_are_a_hard_limit_before_anything_is_sent(tmp_path):
    async with provider("vllm", lambda body: GOOD) as server:
        client = client_of(server, tmp_path, key="", budget=Budget(tokens=900))
        await ask_json(client, question(), read)
        spent = client.budget.usage
        assert 0 < spent.prompt_tokens + spent.completion_tokens <= 900
        with pytest.raises(ModelError, match="limit of 900") as caught:
            await ask_json(client, question("word " * 2000), read)
        assert caught.value.kind == "budget"
        assert server.requests == 1
        assert "limit of 900" in client.budget.usage.exhausted
        await client.aclose()


async def test_money_is_a_hard_limit_and_counted(tmp_path):
    price = Price(prompt=1.0, completion=10.0)
    async with provider("vllm", lambda body: GOOD) as server:
        client = client_of(server, tmp_path, key="", budget=Budget(dollars=0.008, price=price))
        await ask_json(client, question(), read)
        usage = client.budget.usage
        assert usage.dollars == pytest.approx(price.of(usage.prompt_tokens, usage.completion_tokens))
        with pytest.raises(ModelError, match="dollars"):
            await ask_json(client, question("word " * 8000), read)
        await client.aclose()


async def test_estimates_are_marked_where_nothing_is_reported(tmp_path):
    async with provider("llama-cpp-python", lambda body: GOOD) as server:
        client = client_of(server, tmp_path, key="")
        await ask_json(client, question(), read)
        assert client.budget.usage.estimated
        assert client.budget.usage.prompt_tokens > 0
        await client.aclose()


async def test_nothing_of_the_environment_leaks_to_another_host(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-users-own-key-000")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-private")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-private")
    async with provider("vllm", lambda body: GOOD) as server:
        endpoint = resolve(ModelOptions(name="test-model", base_url=server.base_url), os.environ)
        await ask(Client(endpoint, memory=Memory(tmp_path)))
        sent = json.dumps(server.headers) + json.dumps(server.bodies)
        assert "users-own-key" not in sent
        assert "private" not in sent


async def test_the_key_is_taken_out_of_prompts_and_is_in_no_file(tmp_path):
    async with provider("openai", lambda body: GOOD) as server:
        assert await ask(client_of(server, tmp_path), f"My key is {SECRET}, choose.") == ("b", 7.5)
        assert SECRET not in json.dumps(server.bodies)
    assert all(SECRET.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

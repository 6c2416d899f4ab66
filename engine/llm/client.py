"""Asks a model one question and comes back with a whole answer or one clear error.

One own loop of retries under one deadline (the SDK's are off), answers from the cache first, limits
checked before anything is sent, refusals of parameters learnt from.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import openai

from engine.llm import failures
from engine.llm.budget import PER_MESSAGE, Budget, tokens_of
from engine.llm.capability import Capability, learn
from engine.llm.endpoint import OPENAI, Endpoint
from engine.llm.errors import ModelError
from engine.llm.failures import Again
from engine.llm.gate import gate_of
from engine.llm.memory import ANSWERS, CAPABILITIES, CAPABILITY_S, Memory
from engine.llm.redact import without_key
from engine.llm.replies import Reply, from_body, from_stream

ATTEMPTS = 5
LESSONS = 8
BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 8.0
CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request, as we mean it; how it is sent depends on the endpoint.

    Attributes:
        messages: (role, text) pairs, the system's first.
        answer_tokens: Most tokens of the answer.
        temperature: Sampling temperature, where it is taken.
        schema: JSON schema of the answer, or None for text.
        name: What it is for, such as `ssda`.
    """

    messages: tuple[tuple[str, str], ...]
    answer_tokens: int
    temperature: float = 0.3
    schema: Mapping[str, Any] | None = None
    name: str = "answer"

    def prompt_tokens(self) -> int:
        """A careful estimate of the prompt's tokens."""
        schema = json.dumps(self.schema) if self.schema else ""
        return sum(tokens_of(text) + PER_MESSAGE for _, text in self.messages) + (tokens_of(schema) if schema else 0)

    def key(self, endpoint: Endpoint) -> str:
        """The full request's identity."""
        parts = [endpoint.base_url, endpoint.model, self.messages, self.answer_tokens, self.temperature, self.schema,
                 dict(endpoint.provider.extra_body)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
                              ).hexdigest()


class Client:
    """One endpoint under one budget.

    Args:
        endpoint: Where.
        budget: Limits and account.
        memory: Answers and capabilities of earlier runs.
        call_s: Seconds an answer may take, over all tries.
        backoff_s: First wait between tries.
        use_answers: False asks anew even what is remembered.
    """

    def __init__(self, endpoint: Endpoint, *, budget: Budget | None = None, memory: Memory | None = None,
                 call_s: float = 300.0, backoff_s: float = BACKOFF_S, use_answers: bool = True) -> None:
        self.endpoint, self.budget = endpoint, budget or Budget(model=str(endpoint))
        self.warnings: list[str] = []
        self._memory, self._call_s, self._backoff_s = memory or Memory(), call_s, backoff_s
        self._use_answers = use_answers
        self._capability: Capability | None = None
        self._api: openai.AsyncOpenAI | None = None

    async def ask(self, question: Question, *, deadline_s: float | None = None) -> Reply:
        """A whole, non-blank answer.

        Args:
            question: What to ask.
            deadline_s: Seconds left; the client's own limit holds too.

        Raises:
            ModelError: There is none; the error says why in one sentence.
        """
        key = question.key(self.endpoint)
        if self._use_answers and (known := await self._memory.get(ANSWERS, key)) is not None:
            self.budget.from_cache()
            return Reply(text=known, finish="stop", cached=True)
        limit_s = min(self._call_s, deadline_s) if deadline_s is not None else self._call_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(max(limit_s, 0.0)):
                reply = await self._persist(question, loop.time() + limit_s)
        except TimeoutError:
            raise ModelError("timeout", f"{self.endpoint.model} did not finish its answer within {limit_s:.0f} s",
                             hint="raise llm.seconds, or lower --max-tokens") from None
        await self._memory.put(ANSWERS, key, reply.text)
        return reply

    async def capability(self) -> Capability:
        """What is known of the endpoint."""
        if self._capability is None:
            text = await self._memory.get(CAPABILITIES, self._place) if self._use_answers else None
            self._capability = (Capability.from_text(text) if text else None) or Capability.first_guess(self.endpoint)
        return self._capability

    async def remember(self, capability: Capability) -> None:
        """Keep what was learnt, for this run and later ones."""
        if capability != self._capability:
            self._capability = capability
            await self._memory.put(CAPABILITIES, self._place, capability.to_text(), expire_s=CAPABILITY_S)

    async def models(self) -> tuple[str, ...]:
        """Names of the endpoint's models; empty where it does not say."""
        try:
            async with asyncio.timeout(min(self._call_s, 20.0)):
                page = await self._client().models.list()
                return tuple(sorted(str(model.id) for model in page.data or ()))
        except (openai.OpenAIError, httpx2.HTTPError, TimeoutError, TypeError, AttributeError, ValueError):
            return ()

    async def aclose(self) -> None:
        """Close connections and files."""
        if self._api is not None:
            await self._api.close()
            self._api = None
        self._memory.close()

    @property
    def _place(self) -> str:
        return f"{self.endpoint.base_url}\n{self.endpoint.model}"

    async def _persist(self, question: Question, until: float) -> Reply:
        """Try until it works, it cannot work, or the tries are used up."""
        tries = lessons = 0
        gate = gate_of(self.endpoint.base_url)
        while True:
            capability = await self.capability()
            try:
                async with gate:
                    return await self._once(question, capability)
            except _Refused as refused:
                lessons += 1
                lesson = learn(capability, refused.status, refused.said, refused.sent)
                if lesson is None or lessons > LESSONS:
                    raise refused.error from None
                await self.remember(lesson)
            except Again as again:
                tries += 1
                if again.crowded:
                    gate.narrow()
                wait_s = again.wait_s
                if wait_s is None:
                    longest = min(LONGEST_BACKOFF_S, self._backoff_s * 2 ** (tries - 1))
                    wait_s = longest * random.uniform(0.75, 1.0)
                if tries >= ATTEMPTS or asyncio.get_running_loop().time() + wait_s >= until:
                    raise again.error from None
                await asyncio.sleep(wait_s)

    async def _once(self, question: Question, capability: Capability) -> Reply:
        """One request. Raises `Again`, `_Refused` or `ModelError`."""
        guessed_prompt = question.prompt_tokens()
        wanted = min(question.answer_tokens, capability.most_tokens or question.answer_tokens)
        allowed = self.budget.afford(guessed_prompt, wanted)
        sent = self._shape(question, capability, allowed)
        used: tuple[int, int] | None = None
        guessed = (0, 0)
        try:
            reply = await self._send(sent, allowed)
            used = reply.used
            guessed = (guessed_prompt, tokens_of(reply.text))
        except openai.APIStatusError as error:
            failure = failures.status_failure(error, self.endpoint)
            hard = failure.error if isinstance(failure, Again) else failure
            refused = _Refused(hard, error.status_code, failures.said_by(error, self.endpoint), sent)
            if learn(capability, refused.status, refused.said, sent) is not None:
                raise refused from None
            raise failure from None
        except Again as again:
            guessed = (guessed_prompt, tokens_of(again.arrived)) if again.arrived else (0, 0)
            raise
        except asyncio.CancelledError:
            guessed = (guessed_prompt, 0)  # It may have been read; what was written nobody knows.
            raise
        except (openai.APIConnectionError, httpx2.HTTPError, OSError) as error:
            raise failures.connection_failure(error, self.endpoint) from None
        except openai.APIError as error:  # An error event inside a stream.
            said = {"error": {"message": error.message}}
            raise failures.no_choices(self.endpoint, said) from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise failures.not_an_api(self.endpoint, str(error)) from None
        finally:
            self.budget.settle(guessed_prompt, allowed, used=used, guessed=guessed)
        self._check_prompt(used, guessed_prompt)
        if reply.finish == "length":
            if allowed < question.answer_tokens and not capability.most_tokens:
                raise ModelError("budget", "the answer was cut because little of the limit was left",
                                 hint="raise --tokens or --dollars")
            raise failures.truncated(self.endpoint, allowed)
        if reply.refusal:
            raise failures.blocked(self.endpoint, reply.refusal)
        if not reply.text.strip():
            raise failures.empty(self.endpoint)
        return reply

    def _shape(self, question: Question, capability: Capability, allowed: int) -> dict[str, Any]:
        """The request as this endpoint takes it."""
        key = self.endpoint.key
        messages = [{"role": role, "content": without_key(text, key)} for role, text in question.messages]
        if not capability.system and messages[0]["role"] == "system":
            first = messages.pop(0)["content"]
            messages[0] = {"role": "user", "content": f"{first}\n\n{messages[0]['content']}"}
        sent: dict[str, Any] = {"model": self.endpoint.model, "messages": messages,
                                "temperature": question.temperature, capability.token_parameter: allowed}
        if question.schema is not None and capability.mode == "json_schema":
            sent["response_format"] = {"type": "json_schema", "json_schema": {
                "name": question.name, "strict": True, "schema": question.schema}}
        elif question.schema is not None and capability.mode == "json_object":
            sent["response_format"] = {"type": "json_object"}
        if capability.extra_body and self.endpoint.provider.extra_body:
            sent["extra_body"] = dict(self.endpoint.provider.extra_body)
        if capability.streams:
            sent |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in sent.items() if name not in capability.dropped}

    async def _send(self, sent: Mapping[str, Any], allowed: int) -> Reply:
        answer = await self._client().chat.completions.create(**sent)
        if not sent.get("stream"):
            return from_body(answer, self.endpoint)
        return await from_stream(answer, self.endpoint, allowed)

    def _client(self) -> openai.AsyncOpenAI:
        if self._api is None:
            endpoint = self.endpoint
            # Proxies of the environment must not see what is meant for this machine; redirects would carry the
            # prompt elsewhere.
            transport = httpx2.AsyncClient(follow_redirects=False, trust_env=not endpoint.is_loopback)
            foreign = endpoint.base_url != OPENAI
            headers = {"OpenAI-Organization": openai.omit, "OpenAI-Project": openai.omit} if foreign else {}
            self._api = openai.AsyncOpenAI(
                base_url=endpoint.base_url, api_key=endpoint.key or "none", max_retries=0, http_client=transport,
                timeout=httpx2.Timeout(self._call_s, connect=CONNECT_S), default_headers=headers)  # type: ignore[arg-type]
        return self._api

    def _check_prompt(self, used: tuple[int, int] | None, guessed: int) -> None:
        """Some servers cut long prompts without a word; their own count gives it away."""
        if used is None or used[0] == 0 or guessed < 2000 or used[0] > guessed * 0.4:
            return
        self.warnings.append(f"{self.endpoint.model} read only {used[0]} of about {guessed} tokens of a prompt; raise "
                             "the server's context (Ollama: OLLAMA_CONTEXT_LENGTH) or lower llm.promptTokens")


class _Refused(Exception):
    """A status that may teach something."""

    def __init__(self, error: ModelError, status: int, said: str, sent: Mapping[str, Any]) -> None:
        super().__init__(str(error))
        self.error, self.status, self.said, self.sent = error, status, said, sent


def longer(question: Question, most: int = 0) -> Question:
    """The same question with room for an answer twice as long, at most `most` tokens (0 for no limit)."""
    return replace(question, answer_tokens=min(2 * question.answer_tokens, most or 2 * question.answer_tokens))

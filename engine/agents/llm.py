"""The paper's three agents, driven by a language model; the expert stands behind every step.

The model plans (SSDA, SPA) and writes (OA); nothing it says is believed, the judge decides. Where it gives
no usable answer the expert decides instead, and the run says so. Unless told not to, some of the expert's
candidates compete in every round, in the first one before the model's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from contracts.errors import AgentError
from engine.agents import Situation, material, parsing
from engine.agents.expert import ExpertAgent, situation_bottleneck, situation_facts
from engine.agents.own_file import own_file
from engine.agents.prompts import Material, Prompts, data
from engine.agents.rubric_text import applying_rows, lessons_of
from engine.llm.client import Client, Question
from engine.llm.errors import ModelError
from engine.llm.redact import without_key
from engine.llm.shapes import WrongShapeError
from engine.llm.structured import ask_json
from engine.planning import bottleneck as memory
from engine.planning import spa
from engine.planning.catalog import Note
from engine.records import Candidate, Evaluation, Plan, Strategy
from engine.trajectory import Exchange, ModelOptions, Usage, candidate_id

DECISION_TOKENS = 2000
# Of so many candidates one is the expert's.
EXPERT_EVERY = 3
# The first round's seeds are waited for so long, so that the model can start from a verified source.
SEEDS_S = 60.0
POLL_S = 0.05
SHOWN = 6000
SHORTEST_PROMPT = 4000
# After so many failures in a row of kinds that may pass, the endpoint counts as gone: every further wait is lost time.
FAILURES = 3
PASSING = ("network", "timeout", "server", "rate", "empty")
T = TypeVar("T")


class LlmAgent:
    """A language model behind the Agent protocol.

    Args:
        client: The endpoint, its budget and its memory.
        options: What the user set.
        rounds, budget: Size of the search, for the estimate.
        seconds: The job's limit, or None.
    """

    def __init__(self, client: Client, options: ModelOptions, *, rounds: int = 3, budget: int = 18,
                 seconds: float | None = None) -> None:
        self._client, self._options, self._seconds = client, options, seconds
        self._prompts = Prompts(options.prompts)
        self._expert = ExpertAgent()
        self._size = (rounds, budget)
        self._notes: list[str] = []
        self._exchanges: list[Exchange] = []
        self._silent: ModelError | None = None
        self._failures = 0
        self._begun = False
        self._prompt_tokens = options.prompt_tokens

    @property
    def name(self) -> str:
        """The model's name."""
        return self._client.endpoint.model

    @property
    def usage(self) -> Usage:
        """What the model cost so far."""
        return self._client.budget.usage

    def take_notes(self, situation: Situation | None = None) -> tuple[str, ...]:
        """What the user should know; before the first question where it goes and what it may cost."""
        if situation is not None and not self._begun:
            self._begun = True
            self._client.budget.begin_after(situation.trajectory.usage)
            self._notes.append(self._estimate(situation))
        notes = (*self._notes, *self._client.warnings)
        self._notes.clear()
        self._client.warnings.clear()
        return tuple(dict.fromkeys(notes))

    def take_exchanges(self) -> tuple[Exchange, ...]:
        """Questions and answers since it was last asked."""
        exchanges = tuple(self._exchanges)
        self._exchanges.clear()
        return exchanges

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def decide_space_and_scores(self, situation: Situation) -> Plan:
        """SSDA: the model's space and scores; the expert's where the model fails twice."""
        if not self._options.planning:
            return Plan(round=situation.round, space=situation.spaces[0],  # type: ignore[arg-type]
                        space_reason="planning is off: every means of this space is allowed", scores={}, direction="",
                        reason="planning is off", author="none")
        try:
            return await self._shortened(lambda: self._decide(situation))
        except ModelError as error:
            if not self._options.fallback:
                raise
            self._failed(error, f"plan for round {situation.round}", "the expert planned")
            plan = await self._expert.decide_space_and_scores(situation)
            return replace(plan, reason=f"{plan.reason} (planned by the expert, because {error.problem})")

    async def plan_strategy(self, situation: Situation, plan: Plan, count: int) -> Strategy:
        """SPA: the model's steps and constraints; the expert's where the model fails twice."""
        if not self._options.planning:
            return Strategy(steps=(), constraints=(), author="none")
        try:
            return await self._shortened(lambda: self._strategy(situation, plan))
        except ModelError as error:
            if not self._options.fallback:
                raise
            self._failed(error, f"strategy for round {situation.round}", "the expert's is used")
            return await self._expert.plan_strategy(situation, plan, count)

    async def propose(
        self, situation: Situation, plan: Plan, strategy: Strategy, count: int
    ) -> AsyncIterator[Candidate]:
        """OA: the model's candidates, with the expert's share; what the model does not write the expert does."""
        mine = [c for c in situation.trajectory.candidates if c.round == situation.round]
        experts = sum(c.author == self._expert.name for c in mine)
        share = max(0, -(-(len(mine) + count) // EXPERT_EVERY) - experts) if self._options.seeds else 0
        share = min(share, count)
        if situation.round == 1:
            async for candidate in self._seeds(situation, share):
                count -= 1
                yield candidate
            await self._judged(situation)
            share = 0
            if count == 0 and share == 0 and self._options.seeds and not any(c.author == self.name for c in mine):
                self._notes.append("the budget of the first round leaves no candidate to the model; --no-seeds does")
        async for candidate in self._write_all(situation, plan, strategy, count - share):
            count -= 1
            yield candidate
        if self._options.seeds:
            async for candidate in self._seeds(situation, count):
                yield candidate

    async def repair(self, situation: Situation, candidate: Candidate, evaluation: Evaluation) -> Candidate | None:
        """Send a failed candidate back once, with the exact lines; the expert mends its own."""
        if candidate.author != self.name:
            return await self._expert.repair(situation, candidate, evaluation) if self._options.seeds else None
        why = material.failure(evaluation, source=candidate.source)
        shown: dict[str, Any] = {"candidate": data(f"source of candidate {candidate.id}", candidate.source),
                                 "failure": data("messages of compiler and judge", why),
                                 "reference": material.reference(situation)}
        if self._options.contract:
            shown |= {"contract": material.contract(situation), "graph": material.graph(situation),
                      "rules": material.rules(self._prompts, situation),
                      "space": material.space(situation, candidate.space)}
        else:
            shown["entry"] = situation.contract.entry
        name = "repair" if self._options.contract else "repair_bare"
        try:
            title, source = await self._shortened(
                lambda: self._ask_source(situation, self._question(name, shown, self._options.answer_tokens),
                                         candidate.source))
        except ModelError as error:
            self._failed(error, f"repair of candidate {candidate.id}", "it is left as it is")
            return None
        if (same := material.same_as(situation, source)) is not None:
            self._notes.append(f"the repair of {candidate.id} is the same as {same.id} and was not built")
            return None
        return replace(candidate, id=candidate_id(situation.contract.id, source), source=source,
                       title=f"mended: {title or candidate.title}"[:100], parents=(candidate.id,))

    async def _decide(self, situation: Situation) -> Plan:
        catalog, learnt = situation.catalog, lessons_of(situation)
        limit = situation_bottleneck(situation)
        transfer = memory.transfer(limit, "", learnt)
        found = self._known(situation) | {
            "round": str(situation.round), "workload": material.workload(situation),
            "device": material.device(situation), "spaces": material.spaces(situation),
            "directions": material.directions(situation),
            "rubric": await asyncio.to_thread(applying_rows, self._expert, situation),
            "transfer": "\n".join(f"Learnt: {line}" for line in transfer),
            "notes": material.notes([note for code in catalog.directions
                                     for note in self._expert_notes(situation, code)[:1]]),
        }
        spaces, codes = situation.spaces, tuple(catalog.directions)
        question = self._question("ssda", found, DECISION_TOKENS, schema=parsing.plan_schema(spaces, codes))
        decided = await self._ask_json(situation, question, lambda value: parsing.read_plan(value, spaces, codes))
        return Plan(round=situation.round, space=decided.space,  # type: ignore[arg-type]
                    space_reason=decided.space_reason, scores=decided.scores, direction=decided.direction,
                    reason=decided.scores[decided.direction].reason, author=self.name,
                    transfer=memory.transfer(limit, decided.space, learnt))

    async def _strategy(self, situation: Situation, plan: Plan) -> Strategy:
        found = self._known(situation) | {
            "workload": material.workload(situation), "device": material.device(situation),
            "decision": material.decision(situation, plan), "space": material.space(situation, plan.space),
            "notes": material.notes(self._expert_notes(situation, plan.direction))}
        question = self._question("spa", found, DECISION_TOKENS, schema=parsing.strategy_schema())
        steps, constraints = await self._ask_json(situation, question, parsing.read_strategy)
        return Strategy(steps=steps, constraints=constraints, author=self.name)

    async def _write_all(
        self, situation: Situation, plan: Plan, strategy: Strategy, count: int
    ) -> AsyncIterator[Candidate]:
        """The model's candidates, several questions at a time, in the order of the questions."""
        if count <= 0:
            return
        if self._silent is not None:
            if not self._options.seeds or not self._options.fallback:
                raise self._silent  # Nobody else writes.
            return
        shown, parents = self._oa_material(situation, plan, strategy), material.ranked(situation)[:1]
        base = parents[0].source if parents else None
        made = {parsing.fingerprint(c.source): c.id for c in situation.trajectory.candidates}
        contract_id = situation.contract.id
        tasks = [asyncio.ensure_future(self._shortened(partial(self._write, situation, shown, base, slot, made)))
                  for slot in range(count)]
        failed: ModelError | None = None
        written_any = False
        try:
            for task in tasks:
                try:
                    written = await task
                except ModelError as error:
                    if failed is None or not failed.final:
                        failed = error
                    self._failed(error, f"candidate of round {situation.round}", "")
                    continue
                if written is None or parsing.fingerprint(written[1]) in made:
                    continue
                title, source = written
                identity = candidate_id(contract_id, source)
                made[parsing.fingerprint(source)] = identity
                written_any = True
                yield Candidate(
                    id=identity, source=source, space=plan.space, direction=plan.direction, round=situation.round,
                    author=self.name, title=title or (strategy.steps[0][:80] if strategy.steps else "no title given"),
                    parents=tuple(c.id for c in parents))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if failed is None or failed.kind == "budget":
            return
        unheard = not self._options.fallback and (failed.final or failed.kind in PASSING)
        if unheard or (not written_any and not self._options.seeds):
            raise failed

    async def _write(
        self, situation: Situation, shown: Material, base: str | None, slot: int, made: dict[str, str]
    ) -> tuple[str, str] | None:
        """One candidate; a text that is known already is sent back once and then given up."""
        lines = self._prompts.variations
        line = f"This is candidate {slot + 1} of the round. {lines[slot % len(lines)]}"
        question = self._question(self._oa_name, {**shown, "variation": line}, self._options.answer_tokens)
        title, source = await self._ask_source(situation, question, base)
        known = made.get(parsing.fingerprint(source))
        if known is None:
            return title, source
        again = (f"That file is the same as candidate {known} but for comments and spaces. Write one that differs in "
                 "what it does.")
        title, source = await self._ask_source(situation, _followed(question, source, again), base)
        if parsing.fingerprint(source) not in made:
            return title, source
        self._notes.append(f"the model wrote candidate {known} again; it was not built twice")
        return None

    async def _ask_source(self, situation: Situation, question: Question, base: str | None) -> tuple[str, str]:
        """A whole source, or edits of `base`; an answer of neither kind, or one that was cut, is sent back once."""
        own = own_file(situation)
        entry = own.function if own is not None else situation.contract.entry
        for last in (False, True):
            try:
                text = await self._ask(situation, question)
            except ModelError as error:
                if last or error.kind != "truncated":
                    raise
                again = (f"Your answer was cut at {question.answer_tokens} tokens. Write a shorter file with fewer "
                         "comments, or edits.")
                question = _followed(question, "(an answer that was too long)", again)
                continue
            try:
                title, source = parsing.read_source(text, entry, base)
                source = own.complete(source) if own is not None else source
                self._heard(situation, question, text, candidate=candidate_id(situation.contract.id, source))
                return title, source
            except WrongShapeError as error:
                self._heard(situation, question, text, problem=str(error))
                if last:
                    raise ModelError("malformed", f"{self.name} gave no usable file: {error}",
                                     hint="another model may keep to the form") from None
                again = (f"That answer cannot be used: {error}. Send the title line, then the whole file in one fenced "
                         "block or edits that fit.")
                question = _followed(question, text, again)
        raise AssertionError  # Both ways out of the second turn leave the loop.

    async def _ask(self, situation: Situation, question: Question) -> str:
        if self._silent is not None:
            raise self._silent
        text = (await self._client.ask(question, deadline_s=self._left_s(situation))).text
        self._failures = 0
        return text

    async def _ask_json(self, situation: Situation, question: Question, read: Any) -> Any:
        if self._silent is not None:
            raise self._silent
        found = await ask_json(
            self._client, question, read, deadline_s=self._left_s(situation), most_tokens=self._options.answer_tokens,
            heard=lambda asked, answer, problem: self._heard(situation, asked, answer, problem=problem))
        self._failures = 0
        return found

    def _heard(self, situation: Situation, question: Question, answer: str, *, candidate: str = "",
               problem: str = "") -> None:
        """Keep what was asked and answered, for the record."""
        key = self._client.endpoint.key
        messages = tuple((role, without_key(text, key)) for role, text in (*question.messages, ("assistant", answer)))
        digest = hashlib.sha256(repr(messages).encode("utf-8", "backslashreplace")).hexdigest()[:12]
        self._exchanges.append(Exchange(id=digest, about=question.name, round=situation.round, candidate=candidate,
                                        problem=problem, messages=messages))

    async def _shortened(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask; where the prompt is too long for the endpoint, again with a prompt of half the length, until it fits."""
        while True:
            length = self._prompt_tokens
            try:
                return await ask()
            except ModelError as error:
                if error.kind != "context" or length <= SHORTEST_PROMPT:
                    raise
                if self._prompt_tokens == length:  # Another question may have found out first.
                    self._prompt_tokens = length // 2

    def _question(self, name: str, shown: Material, answer_tokens: int, *, schema: Any = None) -> Question:
        messages = self._prompts.fill(name, shown, limit=self._prompt_tokens)
        return Question(messages=messages, answer_tokens=min(answer_tokens, self._options.answer_tokens),
                        temperature=self._options.temperature, schema=schema, name=name)

    def _known(self, situation: Situation) -> dict[str, Any]:
        """What is told of task and record in every prompt."""
        return {"contract": material.contract(situation), "reference": material.reference(situation),
                "graph": material.graph(situation), "tried": material.tried(situation),
                "failures": material.failures(situation), "evidence": material.evidence(situation),
                "best": material.best_source(situation)}

    @property
    def _oa_name(self) -> str:
        return "oa_bare" if not self._options.contract else "oa" if self._options.planning else "oa_unplanned"

    def _oa_material(self, situation: Situation, plan: Plan, strategy: Strategy) -> dict[str, Any]:
        known, device = self._known(situation), material.device(situation)
        if not self._options.contract:
            names = ("reference", "tried", "failures", "best")
            return {name: known[name] for name in names} | {"entry": situation.contract.entry, "device": device}
        found = known | {"rules": material.rules(self._prompts, situation), "device": device}
        if self._options.planning:
            found |= {"workload": material.workload(situation), "space": material.space(situation, plan.space),
                      "notes": material.notes(self._expert_notes(situation, plan.direction)),
                      "strategy": material.strategy(plan, strategy)}
        return found

    def _expert_notes(self, situation: Situation, direction: str) -> Sequence[Note]:
        return spa.fitting_notes(situation.catalog, direction, situation_bottleneck(situation),
                                 situation_facts(situation))

    async def _seeds(self, situation: Situation, count: int) -> AsyncIterator[Candidate]:
        """The expert's own next candidates, by its own plan."""
        if count <= 0:
            return
        try:
            plan = await self._expert.decide_space_and_scores(situation)
            strategy = await self._expert.plan_strategy(situation, plan, count)
        except AgentError as error:
            self._notes.append(f"the expert has no candidate: {error.problem}")
            return
        async for candidate in self._expert.propose(situation, plan, strategy, count):
            yield candidate

    async def _judged(self, situation: Situation) -> None:
        """Wait until the seeds are judged, within reason: the model's prompt then carries a verified source."""
        trajectory = situation.trajectory
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEDS_S):
                while any(c.id not in trajectory.evaluations for c in trajectory.candidates):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)

    def _left_s(self, situation: Situation) -> float | None:
        return None if self._seconds is None else max(1.0, self._seconds - situation.trajectory.wall_s)

    def _failed(self, error: ModelError, what: str, instead: str) -> None:
        """Say that the model failed; after a failure that cannot pass it is not asked any more."""
        if self._silent is not None:
            return
        self._failures += error.kind in PASSING
        if error.final or self._failures >= FAILURES:
            self._silent = error
            self._notes.append(f"the model is not asked any more: {error.problem} (to fix: {error.hint})")
        elif instead:
            self._notes.append(f"no {what} from {self.name}, {instead}: {error.problem} (to fix: {error.hint})")
        else:
            self._notes.append(f"no {what} from {self.name}: {error.problem} (to fix: {error.hint})")

    def _estimate(self, situation: Situation) -> str:
        """Where questions go and what they may cost."""
        rounds, budget = self._size
        planned = 2 * rounds if self._options.planning else 0
        written = budget - -(-budget // EXPERT_EVERY) if self._options.seeds else budget
        task = sum(len(text) for text in (material.contract(situation), material.graph(situation)[0],
                                          material.reference(situation)[0])) / 3
        prompt = min(self._prompt_tokens, task + 9000)
        requests = planned + 2 * written
        answers = planned * DECISION_TOKENS + 2 * written * self._options.answer_tokens
        cost = self._client.budget.words(requests * prompt, answers)
        return f"the kernel's source goes to {self._client.endpoint}; at most about {requests} requests, {cost}"


def _followed(question: Question, answer: str, again: str) -> Question:
    """The question with the answer it got and what is wrong with it."""
    return replace(question, messages=(*question.messages, ("assistant", answer[:SHOWN]), ("user", again)))

"""The built-in agent: deterministic, without network. Plans by the rubric, writes by code generation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace

from contracts.contract import SPACES, Contract
from contracts.cuda_adaptor import MARK
from contracts.cuda_splice import spliced
from contracts.errors import AgentError
from engine import codegen
from engine.agents import Situation
from engine.agents.own_file import own_file
from engine.codegen import recorded
from engine.codegen.rewrite_cu import rewrite
from engine.planning import facts as planning_facts
from engine.planning import spa, ssda
from engine.planning.bottleneck import bottleneck_of, lessons
from engine.planning.conditions import Fact
from engine.planning.own_kernel import space_of
from engine.planning.spa import Base, Choice
from engine.records import Candidate, Device, Evaluation, Plan, Score, Strategy
from engine.trajectory import Usage, candidate_id

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Share of the module's time from which a choice counts as one about all of it.
BROAD = 0.9
# What code generation can always write where ATen operators are allowed.
SAFEST = codegen.Recipe(space="cuda_libs_torch", choices={"fusion": "none"})


class ExpertAgent:
    """Plans with `engine.planning`, writes with `engine.codegen`."""

    def __init__(self) -> None:
        # Only a memo: the same contract and recipe always give the same text.
        self._programs: dict[tuple[object, ...], codegen.Program | codegen.CannotWrite] = {}
        self._last_contract: tuple[Contract, str] | None = None

    @property
    def name(self) -> str:
        """Stable name."""
        return "expert"

    @property
    def usage(self) -> Usage:
        """Nothing is spent."""
        return Usage()

    def take_notes(self, situation: Situation | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing comes up beside what plans say."""
        return ()

    async def decide_space_and_scores(self, situation: Situation) -> Plan:
        """Score spaces, then directions, by the rubric."""
        return await asyncio.to_thread(self._decide, situation)

    async def plan_strategy(self, situation: Situation, plan: Plan, count: int) -> Strategy:
        """Steps from the expert notes; moves over the tunables of the strongest parents."""
        return await asyncio.to_thread(self._strategy, situation, plan, count)

    async def propose(
        self, situation: Situation, plan: Plan, strategy: Strategy, count: int
    ) -> AsyncIterator[Candidate]:
        """Seeds in the first round of a space, then the strategy's moves; texts made before are skipped."""
        ideas = self._ideas(situation, plan, strategy)
        made = {_code(c.source) for c in situation.trajectory.candidates}
        while count > 0:
            candidate = await asyncio.to_thread(self._next, situation, ideas, made)
            if candidate is None:
                return
            made.add(_code(candidate.source))
            count -= 1
            yield candidate

    async def repair(
        self, situation: Situation, candidate: Candidate, evaluation: Evaluation  # noqa: ARG002
    ) -> Candidate | None:
        """While nothing is accepted, the safest recipe: the operators one by one, without own kernels."""
        if situation.trajectory.best is not None or SAFEST.space not in situation.spaces:
            return None
        made = {_code(c.source) for c in situation.trajectory.candidates}
        idea = {"parent": "", "space": SAFEST.space, "choices": SAFEST.choices, "direction": "",
                "title": f"operators one by one, because {candidate.id} failed"}
        return await asyncio.to_thread(self._next, situation, iter([idea]), made)

    def _decide(self, situation: Situation) -> Plan:
        facts = situation_facts(situation)
        spaces = self._space_scores(situation)
        writable = {name: score for name, score in spaces.items() if self._bases(situation, name)}
        if not writable:
            refusals = "; ".join(str(self._write(situation, name, {})) for name in spaces)
            raise AgentError(f"no allowed space can express {situation.contract.name}: {refusals}",
                             hint="allow a wider space, or use the language-model agent")
        moves = {name: spa.untried(self._bases(situation, name), _tried(situation)) for name in writable}
        learnt = lessons(situation.trajectory.candidates, situation.trajectory.evaluations, situation.workload,
                         situation.contract.precision)
        plan = ssda.decide(situation.catalog, facts, round=situation.round, spaces=writable,
                           bottleneck=situation_bottleneck(situation), learnt=learnt, moves=moves)
        refused = "".join(f"; {name} cannot: {self._write(situation, name, {})}"
                          for name in spaces if name not in writable)
        return replace(plan, space_reason=plan.space_reason + refused)

    def _strategy(self, situation: Situation, plan: Plan, count: int) -> Strategy:
        return spa.plan_strategy(situation.catalog, plan, situation_facts(situation),
                                 bottleneck=situation_bottleneck(situation), bases=self._bases(situation, plan.space),
                                 tried=_tried(situation),
                                 # Some moves give a text made before, so ask for more than are needed.
                                 wanted=4 * count)

    def _ideas(self, situation: Situation, plan: Plan, strategy: Strategy) -> Iterator[Mapping[str, object]]:
        seeds, last = self._seeds(situation, plan)
        moves = list(strategy.moves)
        # The planned space's default is candidate 1. Choices about the whole module and other spaces are interleaved
        # with moves, so that a small budget sees all three.
        yield from seeds[:1]
        rest, broad = seeds[1:], self._broad_moves(situation, plan)
        while moves or rest or broad:
            yield from moves[:1]
            yield from broad[:1] or moves[1:2]
            yield from rest[:1]
            moves, broad, rest = moves[1 if broad else 2 :], broad[1:], rest[1:]
        yield from last

    def _broad_moves(self, situation: Situation, plan: Plan) -> list[Mapping[str, object]]:
        """One step of each choice that touches nearly the whole module, whatever direction the plan prefers.

        In a deep network the direction at hand has a choice an operator; the few that matter to all would wait long.
        """
        tried = {(space, frozenset(choices.items())) for space, choices in _tried(situation)}
        found: list[Mapping[str, object]] = []
        for base in self._bases(situation, plan.space)[:1]:
            for tunable in base.tunables:
                settled = tunable.key in base.choices or len(tunable.values) < 2
                if settled or tunable.weight < BROAD or tunable.direction == plan.direction:
                    continue
                choices = {**base.choices, tunable.key: tunable.values[1]}
                if (base.space, frozenset(choices.items())) not in tried:
                    found.append({"parent": base.candidate, "space": base.space, "choices": choices,
                                  "direction": tunable.direction, "title": f"{tunable.key} = {tunable.values[1]}"})
        return found

    def _seeds(
        self, situation: Situation, plan: Plan
    ) -> tuple[list[Mapping[str, object]], list[Mapping[str, object]]]:
        """Beginnings of searches, best first; and those that are tried only when nothing else is left."""
        seeds: list[Mapping[str, object]] = []
        last: list[Mapping[str, object]] = []
        tried = {c.space for c in situation.trajectory.candidates if c.recipe}
        bases = self._bases(situation, plan.space)
        if plan.space not in tried:
            seeds += [{"parent": base.candidate, "space": plan.space, "choices": base.choices,
                       "direction": plan.direction if base.choices else "", "title": "the planned space's default"}
                      for base in bases[:1]]
        accepted = situation.trajectory.best is not None
        for name, score in self._space_scores(situation).items():
            if name == plan.space or name in tried:
                continue
            seed = {"parent": "", "space": name, "choices": {}, "direction": "", "title": f"default in {name}"}
            # A space for which nothing speaks is tried only when the others gave nothing.
            wanted = score.value > 0 if situation.round == 1 else not accepted
            (seeds if wanted else last).append(seed)
        return seeds, last

    def _next(
        self, situation: Situation, ideas: Iterator[Mapping[str, object]], made: set[str]
    ) -> Candidate | None:
        """The next idea that can be written and gives a new text."""
        for idea in ideas:
            space, choices = str(idea["space"]), idea["choices"]
            assert isinstance(choices, Mapping)
            program = self._write(situation, space, choices)
            if isinstance(program, codegen.CannotWrite):
                continue
            if _code(program.source) in made:
                continue
            identity = candidate_id(self._contract_id(situation.contract), program.source)
            return Candidate(
                id=identity, source=program.source, space=space,  # type: ignore[arg-type]
                direction=str(idea["direction"]), round=situation.round, author=self.name, title=str(idea["title"]),
                parents=(str(idea["parent"]),) if idea["parent"] else (),
                recipe={"space": space, "choices": dict(choices)},
                reduced_source=self._reduced(situation, space, choices),
            )
        return None

    def _reduced(self, situation: Situation, space: str, choices: Mapping[str, Choice]) -> str | None:
        if situation.reduced is None:
            return None
        program = self._write(situation, space, choices, reduced=True)
        return program.source if isinstance(program, codegen.Program) else None

    def _write(
        self, situation: Situation, space: str, choices: Mapping[str, Choice], *, reduced: bool = False
    ) -> codegen.Program | codegen.CannotWrite:
        """The program of a recipe: from the graph, or by local edits of the user's own kernel where that is all."""
        contract = situation.reduced if reduced and situation.reduced is not None else situation.contract
        recipe = codegen.Recipe(space=space, choices=dict(choices))  # type: ignore[arg-type]
        own = _own_kernel(situation)
        if own is not None:
            if own.space != space:
                return codegen.CannotWrite(f"the user's own kernel is of space {own.space}")
            return rewrite(own.source, recipe)
        key = (self._contract_id(contract), space, frozenset(choices.items()), situation.device.sm)
        if key not in self._programs:
            try:
                program = codegen.write(contract, recipe, situation.device)
                file = own_file(situation)
                self._programs[key] = program if file is None else _in_file(file.text, program, contract.entry, space)
            except codegen.CannotWrite as refusal:
                self._programs[key] = refusal
            except Exception as error:  # noqa: BLE001 - a fault in one space must leave the others to write in.
                self._programs[key] = codegen.CannotWrite(
                    f"internal error in code generation: {type(error).__name__}: {error}"[:300])
        return self._programs[key]

    def _contract_id(self, contract: Contract) -> str:
        # The id hashes the whole graph; one object is asked about many times.
        if self._last_contract is None or self._last_contract[0] is not contract:
            self._last_contract = (contract, contract.id)
        return self._last_contract[1]

    def _bases(self, situation: Situation, space: str) -> tuple[Base, ...]:
        """Recipes to move from: the strongest parents in this space, else what the best of all carries over."""
        trajectory = situation.trajectory
        parents = [c for c in trajectory.ranked() if c.space == space and c.recipe][: situation.parents]
        bases = [base for c in parents if (base := self._base(situation, space, _choices(c), c.id))]
        if any(base.tunables for base in bases):
            return tuple(bases)
        default = self._base(situation, space, {}, "")
        if default is None and space == SAFEST.space:
            default = self._base(situation, space, SAFEST.choices, "")
        if default is None:
            return ()
        best = next((c for c in trajectory.ranked() if c.recipe), None)
        if best is None:
            return (default,)
        known = {t.key: t.values for t in default.tunables}
        carried = {k: v for k, v in _choices(best).items() if v in known.get(k, ())}
        return tuple(base for base in (self._base(situation, space, carried, best.id),) if base) or (default,)

    def _base(self, situation: Situation, space: str, choices: Mapping[str, Choice], candidate: str) -> Base | None:
        program = self._write(situation, space, choices)
        if isinstance(program, codegen.CannotWrite):
            return None
        return Base(space=space, choices=choices, tunables=_judged_here(program, situation.device), candidate=candidate)

    def _space_scores(self, situation: Situation) -> dict[str, Score]:
        results = {name: self.space_facts(situation, name) for name in situation.spaces}
        scores = ssda.score_spaces(situation.catalog, situation_facts(situation), results, locked=situation.locked)
        return {name: score for name, score in scores.items() if name in results}

    def space_facts(self, situation: Situation, space: str) -> dict[str, Fact]:
        """The `space.*` facts of one space."""
        trajectory = situation.trajectory
        mine = [c for c in trajectory.candidates if c.space == space and c.id in trajectory.evaluations]
        best = trajectory.best
        # One that was left as slower is right as far as is known, and its brief time says how far behind the space is.
        right = [c for c in mine if trajectory.accepted(c.id) or trajectory.evaluations[c.id].slower]
        behind = None
        if right and best is not None and trajectory.rank_us(best.id) < float("inf"):
            behind = min(trajectory.rank_us(c.id) for c in right) / trajectory.rank_us(best.id)
        return {
            "space.tried": len(mine),
            "space.accepted": len(right),
            "space.is_best": best is not None and best.space == space,
            "space.is_current": bool(trajectory.plans and trajectory.plans[-1].space == space),
            "space.behind": behind,
            "space.writable": bool(self._bases(situation, space)),
        }


def _judged_here(program: codegen.Program, device: Device) -> tuple[codegen.Tunable, ...]:
    """The choices whose candidates can be run: without a GPU kernels can be replayed, and calls of libraries cannot."""
    if device.kind != "none" or not (program.library_calls or program.torch_calls):
        return program.tunables
    return tuple(tunable for tunable in program.tunables if tunable.key != recorded.KEY)


def _code(source: str) -> str:
    """The text without comments: recipes that differ only there are one candidate."""
    return "\n".join(line.rstrip() for line in _COMMENT.sub("", source).splitlines() if line.strip())


def _in_file(text: str, program: codegen.Program, entry: str, space: str) -> codegen.Program | codegen.CannotWrite:
    """The program in the user's own file, whose includes, comments and other functions stay."""
    source = spliced(text, program.source, entry)
    needed = SPACES.index(space_of(source))
    if needed > max(SPACES.index(space), SPACES.index(space_of(program.source))):
        return codegen.CannotWrite(f"the rest of the file is of space {SPACES[needed]}")
    return replace(program, source=source)


def _own_kernel(situation: Situation) -> Candidate | None:
    """Candidate 0, where it must be varied in place.

    That is so without an operator graph to write from, and for a launcher or a bare kernel: a program written
    anew would have another interface than the one the user's other files call.
    """
    own = next((c for c in situation.trajectory.candidates if c.round == 0), None)
    if own is None or (situation.contract.graph is not None and MARK not in own.source):
        return None
    return own


def situation_facts(situation: Situation) -> dict[str, Fact]:
    """Facts of task, evidence and round, for the rubric."""
    trajectory = situation.trajectory
    best = trajectory.best
    return {
        **planning_facts.task_facts(situation.contract, situation.workload, situation.catalog.families,
                                    device=situation.device.kind),
        **planning_facts.evidence_facts(trajectory.evaluations.get(best.id) if best else None, situation.workload),
        "round": situation.round,
        "stagnant": trajectory.stagnant_rounds if trajectory.candidates else 0,
    }


def situation_bottleneck(situation: Situation) -> str:
    """What limits the best candidate, or the workload where there is none."""
    best = situation.trajectory.best
    evaluation = situation.trajectory.evaluations.get(best.id) if best else None
    return bottleneck_of(evaluation, situation.workload)


def _choices(candidate: Candidate) -> dict[str, Choice]:
    choices = candidate.recipe.get("choices", {})
    return dict(choices) if isinstance(choices, Mapping) else {}


def _tried(situation: Situation) -> list[tuple[str, Mapping[str, Choice]]]:
    return [(c.space, _choices(c)) for c in situation.trajectory.candidates if c.recipe]



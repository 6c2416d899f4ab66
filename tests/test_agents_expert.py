"""The expert with a small stand-in for code generation: seeds, moves, fallback, feedback, transfer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import AgentError
from engine import codegen
from engine.agents import Situation
from engine.agents.expert import ExpertAgent
from engine.agents.scripted import ScriptedAgent
from engine.codegen import CannotWrite, Program, Recipe, Tunable
from engine.optimize import optimize
from engine.planning.catalog import load_catalog
from engine.records import SLOWER, Candidate, Failure
from engine.store import Store
from engine.trajectory import Event, Job, Trajectory
from tests.fakes import GPU, NO_GPU, WORKLOAD, FakeEvaluator, FakeServices, contract_of, evaluation_of

TUNABLES = (
    Tunable(key="layout", direction="M", values=("plain", "channels_last"), meaning="", weight=0.9),
    Tunable(key="vector", direction="M", values=(4, 2, 1), meaning="", weight=0.6),
    Tunable(key="rows", direction="P", values=(1, 2, 4, 8), meaning="", weight=0.6),
    Tunable(key="same", direction="C", values=(True, False), meaning="changes nothing", weight=0.1),
)
SPEED = {("vector", 2): 0.8, ("rows", 4): 0.7, ("rows", 8): 0.9}


def fake_write(contract, recipe: Recipe, device) -> Program:
    """Faster with some choices; the choice `same` does not reach the text."""
    us = {"cuda": 50.0, "cuda_libs": 60.0, "cuda_libs_torch": 70.0}[recipe.space]
    for choice in recipe.choices.items():
        us *= SPEED.get(choice, 1.0)
    shown = sorted((k, v) for k, v in recipe.choices.items() if k != "same")
    return Program(source=f"code {contract.name} {recipe.space} {shown} // us {us:.3f}", tunables=TUNABLES)


@pytest.fixture(autouse=True)
def written(monkeypatch):
    monkeypatch.setattr(codegen, "write", fake_write)


def situation_of(trajectory: Trajectory | None = None, **changes: object) -> Situation:
    return Situation(**{  # type: ignore[arg-type]
        "contract": contract_of(["relu", "exp"]), "reduced": None, "device": GPU, "workload": WORKLOAD,
        "catalog": load_catalog(), "trajectory": trajectory or Trajectory(run="r"), "round": 1, **changes})


async def propose(agent, situation: Situation, count: int):
    plan = await agent.decide_space_and_scores(situation)
    strategy = await agent.plan_strategy(situation, plan, count)
    return plan, [c async for c in agent.propose(situation, plan, strategy, count)]


async def test_the_first_candidate_is_the_default_in_the_planned_space():
    plan, made = await propose(ExpertAgent(), situation_of(), 6)
    assert made[0].space == plan.space == "cuda"
    assert made[0].recipe == {"space": "cuda", "choices": {}}
    assert len({c.source for c in made}) == len({c.id for c in made}) == 6
    assert {c.space for c in made} == {"cuda", "cuda_libs_torch"}, "nothing speaks for cuda_libs here"


async def test_a_recipe_that_changes_no_text_is_no_candidate():
    _, made = await propose(ExpertAgent(), situation_of(), 60)
    assert not any("same" in c.recipe["choices"] and len(c.recipe["choices"]) == 1 for c in made)
    assert len({c.source for c in made}) == len(made)


async def test_choices_about_the_whole_module_do_not_wait_for_their_direction(monkeypatch):
    """A deep network has a choice an operator in each direction, which would fill the budget."""
    many = tuple(Tunable(key=f"kernel_{i}.width", direction="M", values=(4, 2, 1), meaning="") for i in range(30))
    whole = Tunable(key="launches", direction="C", values=("single", "graph"), meaning="", weight=1.0)

    def write(contract, recipe, device):
        return replace(fake_write(contract, recipe, device), tunables=(*many, whole))

    monkeypatch.setattr(codegen, "write", write)

    plan, made = await propose(ExpertAgent(), situation_of(), 6)

    assert plan.direction != "C"
    assert {"launches": "graph"} in [c.recipe["choices"] for c in made]
    assert made[0].recipe["choices"] == {}


@pytest.mark.parametrize(("device", "calls", "proposed"), [
    (GPU, ("at::linear",), True), (NO_GPU, (), True), (NO_GPU, ("at::linear",), False)])
async def test_without_a_gpu_no_graph_of_library_calls_is_proposed(monkeypatch, device, calls, proposed):
    """The emulator replays kernels, not what runs inside of a library."""
    whole = Tunable(key="launches", direction="C", values=("single", "graph"), meaning="", weight=1.0)

    def write(contract, recipe, device):
        return replace(fake_write(contract, recipe, device), tunables=(*TUNABLES, whole), torch_calls=calls)

    monkeypatch.setattr(codegen, "write", write)

    _, made = await propose(ExpertAgent(), situation_of(device=device), 60)

    assert any("launches" in c.recipe["choices"] for c in made) is proposed
    assert len(made) > 6


def test_a_space_whose_candidates_were_left_as_slower_is_behind_and_not_hopeless():
    trajectory = Trajectory(run="r", device=GPU)
    for identity, space, us, failure in (
            ("best", "cuda", 50.0, None), ("left", "cuda_libs", 100.0, SLOWER), ("bad", "cuda_libs_torch", None, "verify")):
        candidate = Candidate(id=identity, source=identity, space=space)
        found = replace(evaluation_of(candidate, us=us), failure=Failure(stage=failure, reason="") if failure else None)
        trajectory.apply(Event("candidate", 0.0, candidate))
        trajectory.apply(Event("evaluation", 0.0, found))
    facts = {space: ExpertAgent().space_facts(situation_of(trajectory), space)
             for space in ("cuda", "cuda_libs", "cuda_libs_torch")}
    assert {space: (f["space.accepted"], f["space.behind"], f["space.is_best"]) for space, f in facts.items()} == {
        "cuda": (1, 1.0, True), "cuda_libs": (1, 2.0, False), "cuda_libs_torch": (0, None, False)}


async def test_the_same_situation_gives_the_same_answer():
    assert await propose(ExpertAgent(), situation_of(), 6) == await propose(ExpertAgent(), situation_of(), 6)


async def test_a_space_that_cannot_write_is_left_with_its_reason(monkeypatch):
    def write(contract, recipe, device):
        if recipe.space == "cuda":
            raise CannotWrite("aten.foo.default has no kernel")
        return fake_write(contract, recipe, device)

    monkeypatch.setattr(codegen, "write", write)
    plan, made = await propose(ExpertAgent(), situation_of(), 6)
    assert plan.space == "cuda_libs_torch"
    assert {c.space for c in made} == {"cuda_libs_torch"}
    with pytest.raises(AgentError, match=r"aten\.foo\.default has no kernel"):
        await ExpertAgent().decide_space_and_scores(situation_of(locked="cuda"))


async def test_when_only_operators_one_by_one_can_be_written_they_are(monkeypatch):
    def write(contract, recipe, device):
        if recipe.choices.get("fusion") != "none":
            raise CannotWrite("no")
        return Program(source="plain // " + recipe.space, tunables=())

    monkeypatch.setattr(codegen, "write", write)
    _, made = await propose(ExpertAgent(), situation_of(), 6)
    assert [c.source for c in made] == ["plain // cuda_libs_torch"]


async def test_a_fault_in_one_space_leaves_the_others(monkeypatch):
    def write(contract, recipe, device):
        if recipe.space == "cuda":
            raise KeyError("v7")
        return fake_write(contract, recipe, device)

    monkeypatch.setattr(codegen, "write", write)
    plan, made = await propose(ExpertAgent(), situation_of(), 3)
    assert plan.space != "cuda"
    assert "KeyError" in plan.space_reason
    assert len(made) == 3


async def test_reduced_sources_are_written_with_the_same_recipe():
    reduced = contract_of(["relu", "exp"], (2, 3), name="Small")
    _, made = await propose(ExpertAgent(), situation_of(reduced=reduced, device=NO_GPU), 4)
    assert all(c.reduced_source == c.source.replace("Chain", "Small") for c in made)


async def test_while_nothing_works_the_operators_are_called_one_by_one(tmp_path, monkeypatch):
    def write(contract, recipe, device):
        program = fake_write(contract, recipe, device)
        return program if recipe.choices.get("fusion") == "none" else replace(
            program, source=program.source + " // unbuildable")

    monkeypatch.setattr(codegen, "write", write)
    trajectory = await run(tmp_path, preset="quick")
    first = next(c for c in trajectory.candidates if trajectory.accepted(c.id))
    assert first.recipe == {"space": "cuda_libs_torch", "choices": {"fusion": "none"}}
    assert first.round == 1
    assert sum(c.recipe["choices"].get("fusion") == "none" for c in trajectory.candidates if c.round == 1) == 1
    assert len(trajectory.candidates) == 6


async def run(tmp_path: Path, **changes: object) -> Trajectory:
    job = Job(file="model.py", **{"preset": "normal", **changes})  # type: ignore[arg-type]
    return await optimize(job, services=FakeServices(contract_of(["relu", "exp"]), FakeEvaluator()),
                          agent=ExpertAgent(), store=Store(tmp_path))


async def test_three_rounds_find_the_combination(tmp_path):
    trajectory = await run(tmp_path)
    choices = trajectory.best.recipe["choices"]
    assert (choices.get("vector"), choices.get("rows")) == (2, 4)
    assert [plan.round for plan in trajectory.plans] == [1, 2, 3]
    assert len(trajectory.candidates) == 18
    later = [c for c in trajectory.candidates if c.round > 1]
    assert all(c.parents and c.direction for c in later)
    assert all(trajectory.candidate(c.parents[0]).round < c.round for c in later)


async def test_when_everything_was_tried_the_search_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(codegen, "write", lambda contract, recipe, device: Program(
        source=f"code {recipe.space} // us 50", tunables=()))
    trajectory = await run(tmp_path)
    assert len(trajectory.candidates) == 3
    assert trajectory.stopped.reason.startswith("no direction left")


async def test_when_the_planned_space_fails_the_next_round_changes_it_and_carries_choices_over(tmp_path, monkeypatch):
    def write(contract, recipe, device):
        program = fake_write(contract, recipe, device)
        return replace(program, source=program.source + (" // wrong" if recipe.space == "cuda" else ""))

    monkeypatch.setattr(codegen, "write", write)
    trajectory = await run(tmp_path)
    assert trajectory.plans[0].space == "cuda"
    assert trajectory.plans[1].space != "cuda"
    assert trajectory.best.space != "cuda"


async def test_lessons_of_one_space_are_visible_in_the_plan_of_another(tmp_path):
    agent, trajectory = ExpertAgent(), Trajectory(run="r")
    evaluator = FakeEvaluator()
    contract = contract_of(["relu", "exp"])
    for number in (1, 2):
        situation = situation_of(trajectory, round=number)
        plan = await agent.decide_space_and_scores(situation)
        trajectory.apply(Event("plan", 0.0, plan))
        strategy = await agent.plan_strategy(situation, plan, 6)
        made = [c async for c in agent.propose(situation, plan, strategy, 6)]
        for candidate in made:
            trajectory.apply(Event("candidate", 0.0, candidate))
            trajectory.apply(Event("evaluation", 0.0, await evaluator.evaluate(contract, candidate)))
    narrow = await agent.decide_space_and_scores(situation_of(trajectory, round=3))
    assert narrow.transfer == ()
    catalog = load_catalog()
    only = replace(catalog, spaces={k: replace(v, contains="") for k, v in catalog.spaces.items() if k != "cuda"})
    moved = await agent.decide_space_and_scores(situation_of(trajectory, round=3, catalog=only))
    assert moved.space != "cuda"
    assert any("learnt in cuda" in sentence for sentence in moved.transfer)


async def test_a_replay_repeats_a_stored_run(tmp_path):
    trajectory = await run(tmp_path, preset="quick")
    stored = Store(tmp_path).load(trajectory.run)
    again = await optimize(Job(file="model.py", preset="quick"), agent=ScriptedAgent.replay(stored),
                           services=FakeServices(contract_of(["relu", "exp"]), FakeEvaluator()), store=Store(tmp_path))
    assert [c.id for c in again.candidates] == [c.id for c in trajectory.candidates]
    assert all(e.cached for e in again.evaluations.values() if e.confirmed is None)


async def test_a_users_kernel_without_a_graph_is_varied_in_place(tmp_path):
    kernel = ('__global__ void twice(const float* x, float* y, int n) {\n'
              '  for (int i = threadIdx.x; i < n; i += 256) y[i] = 2 * x[i];\n}\n'
              'void f(const float* x, float* y, int n) { twice<<<1, 256>>>(x, y, n); }\n// us 50\n')
    graph = contract_of(["relu"])
    contract = replace(graph, reference="cuda", variants=(replace(graph.variants[0], graph=None),))
    services = FakeServices(contract, FakeEvaluator(), source=kernel)
    trajectory = await optimize(Job(file="k.cu", preset="quick"), services=services, agent=ExpertAgent(),
                                store=Store(tmp_path))
    own, *others = trajectory.candidates
    assert (own.round, own.space, trajectory.plans[0].space) == (0, "cuda", "cuda")
    assert len(others) == 6
    assert all(c.source != kernel and "twice" in c.source and c.parents for c in others)

"""Ablations: which job and agent a variant is, and that the expert without planning knows nothing of the workload."""

import pytest

from contracts.errors import ConfigError
from engine import codegen
from engine.agents.expert import ExpertAgent
from engine.bench import variants
from engine.bench.unplanned import UnplannedAgent
from engine.trajectory import Job, ModelOptions
from tests.test_agents_expert import fake_write, propose, situation_of

LLM = Job(file="t.py", agent="llm", llm=ModelOptions(name="m"))


@pytest.mark.parametrize(("text", "names"), [
    (None, ("full",)), ("full", ("full",)), ("fixed:cuda, full,fixed:cuda", ("fixed:cuda", "full")),
    ("all", ("full", "fixed:cuda", "fixed:cuda_libs", "fixed:cuda_libs_torch", "no-planning"))])
def test_variants_by_name(text, names):
    assert set(variants.parse(text)) == set(names)
    assert len(variants.parse(text)) == len(names)


def test_an_unknown_variant_is_named():
    with pytest.raises(ConfigError, match="no variant 'fixed:triton'"):
        variants.parse("full,fixed:triton")


def test_what_each_variant_takes_away():
    job = Job(file="t.py")
    assert variants.job_of("full", job) == job
    fixed = variants.job_of("fixed:cuda_libs", job)
    assert (fixed.space, fixed.fixed_space) == ("cuda_libs", True)
    assert variants.job_of("no-planning", job) == job, "the agent is another one, the job is not"
    assert isinstance(variants.agent_of("no-planning", job), UnplannedAgent)
    assert variants.agent_of("full", job) is variants.agent_of("fixed:cuda", job) is None
    assert not variants.job_of("no-planning", LLM).llm.planning
    assert variants.agent_of("no-planning", LLM) is None
    assert not variants.job_of("no-contract", LLM).llm.contract
    with pytest.raises(ConfigError, match="language model"):
        variants.job_of("no-contract", job)


async def test_without_planning_nothing_is_preferred_and_the_order_is_drawn(monkeypatch):
    monkeypatch.setattr(codegen, "write", fake_write)
    situation = situation_of()

    planned, chosen = await propose(ExpertAgent(), situation, 12)
    plan, drawn = await propose(UnplannedAgent(), situation, 12)

    assert plan.space == "cuda_libs_torch", "nothing constrains the space"
    assert planned.space == "cuda", "which planning would have chosen"
    assert len({score.value for score in plan.scores.values()}) == 1
    assert {c.author for c in drawn} == {"expert without planning"}
    assert [c.recipe for c in drawn] != [c.recipe for c in chosen]
    assert len({c.source for c in drawn}) == len(drawn) == 12
    moves = [c.direction for c in drawn if c.direction]
    assert moves != sorted(moves, key=moves.index), "moves of one direction do not stand together"
    again = await propose(UnplannedAgent(), situation, 12)
    assert [c.id for c in again[1]] == [c.id for c in drawn], "the same in every run"

"""The loop with a scripted agent and a fake evaluator: order, budgets, cancellation, evidence."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import ConfigError, InputError
from engine.agents.scripted import ScriptedAgent
from engine.optimize import optimize
from engine.records import SLOWER, Candidate, Failure
from engine.store import Store
from engine.trajectory import Job, candidate_id
from tests.fakes import GPU, FakeEvaluator, FakeServices, contract_of

CONTRACT = contract_of(["relu", "exp"])


def job(**changes: object) -> Job:
    return Job(file="model.py", **changes)  # type: ignore[arg-type]


async def run(sources: list[list[str]], tmp_path: Path, evaluator: FakeEvaluator | None = None, **kwargs: object):
    evaluator = evaluator or FakeEvaluator()
    changes = kwargs.pop("job", {})
    services = kwargs.pop("services", None) or FakeServices(CONTRACT, evaluator)
    trajectory = await optimize(
        job(**changes), services=services, agent=ScriptedAgent.of_sources(CONTRACT.id, sources),
        store=Store(tmp_path), **kwargs)  # type: ignore[arg-type]
    return trajectory, evaluator


async def test_the_fastest_accepted_candidate_wins_and_is_confirmed(tmp_path):
    trajectory, evaluator = await run([["// us 50", "// us 5 // wrong"], ["// us 20", "// unbuildable"]], tmp_path,
                                      job={"rounds": 2})
    assert trajectory.best.source == "// us 20"
    assert trajectory.best_speedup == pytest.approx(5.0)
    assert trajectory.evaluations[trajectory.best.id].confirmed is True
    assert evaluator.retimed[0] == trajectory.best.id
    assert evaluator.closed
    assert trajectory.stopped.reason == "all 2 rounds done"
    assert [e.failure.stage for e in trajectory.evaluations.values() if e.failure] == ["verify", "build"]


def ids(*sources: str) -> list[str]:
    return [candidate_id(CONTRACT.id, source) for source in sources]


async def test_only_what_is_near_the_best_is_timed_again(tmp_path):
    _, evaluator = await run([["// us 20", "// us 21", "// us 23", "// us 50"]], tmp_path, job={"rounds": 1})
    assert evaluator.retimed == ids("// us 20", "// us 21")


async def test_what_was_told_well_is_not_timed_again(tmp_path):
    sources = ["// us 20 // told well", "// us 21.9 // told well", "// us 20.3 // told well", "// us 21"]
    _, evaluator = await run([sources], tmp_path, job={"rounds": 1})
    # One that cannot be told apart from the best, and one of which too little is known.
    assert evaluator.retimed == ids("// us 20.3 // told well", "// us 21")


async def test_at_most_three_are_timed_again(tmp_path):
    sources = [f"// us 2{n}.0" for n in (0, 1)] + ["// us 20.1", "// us 20.2"]
    _, evaluator = await run([sources], tmp_path, job={"rounds": 1})
    assert evaluator.retimed == ids("// us 20.0", "// us 20.1", "// us 20.2")


async def test_what_comes_to_the_front_because_the_best_was_slower_is_timed_again_too(tmp_path):
    trajectory, evaluator = await run([["// us 20 // again 40", "// us 30", "// us 60"]], tmp_path, job={"rounds": 1})
    assert evaluator.retimed == ids("// us 20 // again 40", "// us 30")
    assert trajectory.best.source == "// us 30"


class Leaving(FakeEvaluator):
    """Leaves what says `// left` as slower than the best so far, until it is asked again."""

    async def evaluate(self, contract, candidate):
        found = await super().evaluate(contract, candidate)
        left = Failure(stage=SLOWER, reason="the best is faster")
        return replace(found, stage="built", failure=left) if "// left" in candidate.source else found


@pytest.mark.parametrize("best", ["// us 10 // unconfirmed", "// us 10 // again 80"])
async def test_what_was_left_for_a_best_that_is_none_is_judged_to_the_end(tmp_path, best):
    sources = [best, "// us 50", "// us 30 // left // again 31", "// us 40 // left", "// us 60 // left"]
    trajectory, evaluator = await run([sources], tmp_path, evaluator=Leaving(), job={"rounds": 1})
    assert trajectory.best.source == "// us 30 // left // again 31"
    assert trajectory.evaluations[trajectory.best.id].confirmed is True
    assert not set(evaluator.retimed) & set(ids("// us 40 // left", "// us 60 // left")), "only what is in front"


async def test_what_was_left_for_a_best_that_stands_is_not_looked_at_again(tmp_path):
    sources = ["// us 10", "// us 30 // left // again 31"]
    trajectory, evaluator = await run([sources], tmp_path, evaluator=Leaving(), job={"rounds": 1})
    assert evaluator.retimed == ids("// us 10")
    assert trajectory.best.source == "// us 10"


async def test_a_winner_that_does_not_survive_the_rebuild_gives_way(tmp_path):
    trajectory, _ = await run([["// us 10 // unconfirmed", "// us 30"]], tmp_path, job={"rounds": 1})
    assert trajectory.best.source == "// us 30"
    assert any("did not survive" in note for note in trajectory.notes)


async def test_the_budget_in_candidates_ends_the_search(tmp_path):
    trajectory, evaluator = await run([["a", "b", "c"], ["d", "e", "f"]], tmp_path, job={"rounds": 2, "budget": 4})
    assert len(trajectory.candidates) == len(evaluator.judged) == 4
    assert trajectory.stopped.reason.startswith("budget")


async def test_the_time_limit_ends_the_search_and_keeps_the_best(tmp_path):
    started = time.perf_counter()
    trajectory, _ = await run([["// us 40", "// sleep 60"], ["never"]], tmp_path, job={"rounds": 2, "seconds": 0.6})
    assert time.perf_counter() - started < 30
    assert trajectory.best.source == "// us 40"
    assert trajectory.stopped.reason.startswith("time")


async def test_what_is_being_judged_when_the_time_is_up_is_finished_where_nothing_else_is_verified(tmp_path):
    trajectory, evaluator = await run([["// wrong", "// us 40 // sleep 3", "// us 30 // sleep 60"], ["never"]], tmp_path,
                                      job={"rounds": 2, "seconds": 2.0})
    assert trajectory.best.source == "// us 40 // sleep 3"
    assert trajectory.stopped.reason.startswith("time")
    # The wrong one may have waited for its turn behind them.
    assert set(evaluator.judged) - set(ids("// wrong")) == set(ids("// us 40 // sleep 3"))


async def test_even_then_the_time_limit_ends_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.optimize.LATE_S", 0.3)
    started = time.perf_counter()
    trajectory, _ = await run([["// sleep 60"]], tmp_path, job={"rounds": 1, "seconds": 0.3})
    assert time.perf_counter() - started < 20
    assert trajectory.best is None
    assert trajectory.stopped.reason.startswith("time")


async def test_reaching_the_roof_ends_the_search(tmp_path):
    trajectory, _ = await run([["// us 5.1"], ["// us 4.9"]], tmp_path, job={"rounds": 2})
    assert len(trajectory.candidates) == 1
    assert trajectory.stopped.reason.startswith("converged")


async def test_what_is_far_below_the_roof_shows_that_it_is_none_and_the_search_goes_on(tmp_path):
    trajectory, _ = await run([["// us 2.5"], ["// us 2.2"]], tmp_path, job={"rounds": 2})
    assert len(trajectory.candidates) == 2
    assert trajectory.stopped.reason == "all 2 rounds done"


async def test_no_idea_left_ends_the_search(tmp_path):
    trajectory, _ = await run([["a"], []], tmp_path, job={"rounds": 2})
    assert trajectory.stopped.reason.startswith("no direction left")


async def test_cancelling_keeps_the_best_and_ends_at_once(tmp_path):
    cancel = asyncio.Event()

    def on_event(event, _trajectory):
        if event.kind == "evaluation":
            cancel.set()

    started = time.perf_counter()
    trajectory, evaluator = await run([["// us 40", "// sleep 60"]], tmp_path, job={"rounds": 1}, cancel=cancel,
                                      on_event=on_event)
    assert time.perf_counter() - started < 5
    assert trajectory.stopped.reason == "cancelled"
    assert trajectory.best.source == "// us 40"
    assert evaluator.closed


async def test_candidates_of_a_round_are_judged_while_others_run(tmp_path):
    _, evaluator = await run([["// sleep 0.2 a", "// sleep 0.2 b"]], tmp_path, job={"rounds": 1})
    assert evaluator.most_running == 2


async def test_the_users_own_kernel_is_candidate_zero_and_free(tmp_path):
    evaluator = FakeEvaluator()
    services = FakeServices(CONTRACT, evaluator, source="// us 100 own")
    trajectory, _ = await run([["// us 40"]], tmp_path, evaluator, services=services, job={"rounds": 1, "budget": 1})
    own, other = trajectory.candidates
    assert (own.round, own.author, other.source) == (0, "user", "// us 40")


async def test_a_failed_candidate_is_mended_once(tmp_path):
    bad = candidate_id(CONTRACT.id, "// wrong")
    agent = ScriptedAgent.of_sources(CONTRACT.id, [["// wrong"]])
    agent._repairs[bad] = Candidate(id=candidate_id(CONTRACT.id, "// us 9"), source="// us 9", space="cuda")
    trajectory = await optimize(job(rounds=1, budget=2), services=FakeServices(CONTRACT, FakeEvaluator()), agent=agent,
                                store=Store(tmp_path))
    assert trajectory.best.source == "// us 9"


async def test_an_equal_candidate_is_answered_from_the_cache(tmp_path):
    _, first = await run([["// us 40", "// us 41"]], tmp_path, job={"rounds": 1})
    trajectory, second = await run([["// us 40", "// us 42"]], tmp_path, job={"rounds": 1})
    assert len(first.judged) == 2
    assert second.judged == [candidate_id(CONTRACT.id, "// us 42")]
    assert trajectory.evaluations[candidate_id(CONTRACT.id, "// us 40")].cached


async def test_without_a_gpu_nothing_claims_a_speedup(tmp_path):
    evaluator = FakeEvaluator(gpu=False)
    services = FakeServices(CONTRACT, evaluator, device=GPU.__class__(kind="none", name="Test GPU", sm="9.0"))
    trajectory, _ = await run([["// us 40", "// us 20"]], tmp_path, evaluator, services=services, job={"rounds": 1})
    assert trajectory.best.source == "// us 20"
    assert trajectory.measured is False
    assert trajectory.best_speedup is None
    assert evaluator.retimed == []


async def test_what_was_begun_for_a_job_that_fails_early_is_ended(tmp_path):
    class Unreadable(FakeServices):
        async def task(self, job, folder, device):
            raise InputError("the module cannot be read", hint="correct it")

    services = Unreadable(CONTRACT, FakeEvaluator())
    with pytest.raises(InputError):
        await run([["a"]], tmp_path, services=services)
    assert services.closed


async def test_an_unknown_preset_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="preset"):
        await run([["a"]], tmp_path, job={"preset": "huge"})


async def test_every_decision_and_evaluation_is_in_the_stored_run(tmp_path):
    trajectory, _ = await run([["// us 50", "// wrong"]], tmp_path, job={"rounds": 1})
    stored = Store(tmp_path).load(trajectory.run)
    assert stored.plans == trajectory.plans
    assert stored.strategies == trajectory.strategies
    assert stored.candidates == trajectory.candidates
    assert stored.evaluations == trajectory.evaluations
    assert stored.contract == trajectory.contract
    assert stored.best == trajectory.best


async def test_the_best_of_each_round_is_profiled_once_for_the_next_plan(tmp_path):
    trajectory, evaluator = await run([["// us 50", "// us 40"], ["// us 45"], ["// us 30"]], tmp_path,
                                      job={"rounds": 3, "budget": 9})
    assert evaluator.profiled_ids == [candidate_id(CONTRACT.id, text) for text in ("// us 40", "// us 30")]
    assert trajectory.evaluations[trajectory.best.id].counters.limiter == "dram-bandwidth"
    _, evaluator = await run([["// us 35 // again 60", "// us 50"]], tmp_path, job={"rounds": 1})
    assert evaluator.profiled_ids == ids("// us 50"), "no plan follows the last round: only the winner is profiled"
    _, evaluator = await run([["// us 51"]], tmp_path, job={"rounds": 1, "profile": False})
    assert evaluator.profiled_ids == []

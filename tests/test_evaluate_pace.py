"""Candidates that are right and clearly slower than the best: left after a glance, and never taken for accepted."""

from types import SimpleNamespace

import pytest

from engine.evaluate import local
from engine.evaluate.pace import Pace
from engine.evaluate.timing import summarise
from engine.records import SLOWER, Build, Candidate, Counters, Evaluation, Verification
from engine.trajectory import Event, Trajectory
from tests.evaluate_harness import DATA, Bench, softmax_contract


def timing(speedup):
    return summarise([100.0] * 6, [100.0 / speedup] * 6)


@pytest.mark.parametrize(("best", "identity", "author", "asks"), [
    (1.5, "second", "expert", True), (0.0, "second", "expert", False), (1.5, "first", "expert", False),
    (1.5, "second", "user", False)])
def test_a_glance_is_taken_of_what_may_be_left(best, identity, author, asks):
    pace = Pace(best=best)
    pace.enter(Candidate(id="first", source="", space="cuda"))
    pace.enter(Candidate(id="second", source="", space="cuda"))
    assert pace.asks(Candidate(id=identity, source="", space="cuda", author=author)) is asks


def test_what_is_clearly_slower_than_the_best_is_left_and_the_reason_has_both():
    pace = Pace()
    pace.took(timing(2.0))
    pace.took(timing(1.0))
    assert pace.best == pytest.approx(2.0)
    assert pace.leaves(timing(1.0))
    assert not pace.leaves(timing(2.0 / 1.14))
    assert not pace.leaves(None)
    assert not pace.leaves(timing(1.0), strict=True), "none that holds the strict policy is known yet"
    pace.took(timing(1.5), strict=True)
    assert (pace.leaves(timing(1.0), strict=True), pace.leaves(timing(1.5), strict=True)) == (True, False)
    failure = pace.failure(timing(1.0))
    assert (failure.stage, failure.reason) == (
        SLOWER, "1.00x where the best so far has 2.00x: not looked at further")


async def test_a_slower_candidate_costs_a_glance_and_is_not_accepted(tmp_path):
    bench = await Bench.make(tmp_path / "softmax", *softmax_contract(), (DATA / "softmax.cu").read_text())
    try:
        search, pace = bench.evaluator._settings.search, bench.evaluator._pace
        whole = await bench.judge("honest", search)
        assert whole.failure is None
        assert pace.best == whole.timing.speedup
        pace.best = pace.strict = 1e-6
        kept = await bench.judge("honest", search)
        pace.best = pace.strict = 1000.0
        left = await bench.judge("honest", search)
        wrong = await bench.judge("zeros", search)
        asked = await bench.judge("honest", bench.evaluator._settings.winner)
    finally:
        await bench.evaluator.close()
    assert kept.failure is None, "a glance at the time of one that is not left changes nothing of its verdict"
    assert (left.failure.stage, left.stage, left.slower) == (SLOWER, "built", True)
    assert left.timing.notes == ("timed briefly, by six pairs of blocks",)
    assert {c.name for c in left.verification.checks if c.status == "fail"} == set()
    assert next(c.status for c in left.verification.checks if c.name == "repeatability") != "pass"
    assert {c.status for c in left.verification.checks if c.name in ("repeatability", "wall clock")} == {
        "not run: it is slower than the best, and was left"}
    assert (left.verification.match, left.verification.strict, left.verification.kernelbench) == (None, None, None)
    assert left.stage_s["verify"] < whole.stage_s["verify"]
    assert (wrong.failure.stage, wrong.timing) == ("verify", None), "a wrong one is wrong, however slow"
    assert asked.failure is None, "only a search leaves candidates"
    assert pace.best == 1000.0


async def test_what_is_not_accepted_sets_no_pace(tmp_path, monkeypatch):
    bench = await Bench.make(tmp_path / "softmax", *softmax_contract(), (DATA / "softmax.cu").read_text())
    try:
        monkeypatch.setattr(Verification, "accepts", lambda _found, _precision: False)
        judged = await bench.judge("honest", bench.evaluator._settings.search)
    finally:
        await bench.evaluator.close()
    assert judged.failure.reason == "a mandatory check did not run"
    assert bench.evaluator._pace.best == 0


@pytest.mark.parametrize(("failure", "profiled"), [(None, True), (Pace(best=9.0).failure(timing(2.0)), False)])
async def test_one_that_was_left_is_not_profiled(monkeypatch, failure, profiled):
    monkeypatch.setattr(local, "screen", lambda _source, entries: None)

    async def answer(value):
        return value

    found = Evaluation(candidate_id="a", stage="built", timing=timing(2.0), failure=failure)
    build = Build(seconds=0.0, tier="light", extension="x.so")
    counters = Counters(status="measured")
    evaluator = SimpleNamespace(
        _source=lambda candidate: candidate.source, _build=lambda *_: answer(build), prepare=lambda: answer(None),
        _judged=lambda *_: answer(found), _emulated=False, _settings=local.Settings(profile_above=1.0),
        profile=lambda *_: answer(counters))
    contract, _ = softmax_contract()
    judged = await local.LocalEvaluator._evaluate(evaluator, contract, Candidate(id="a", source="", space="cuda"))
    assert (judged.counters is not None) is profiled


def test_one_that_was_left_is_neither_accepted_nor_ranked():
    trajectory = Trajectory(run="r")
    found = Evaluation(candidate_id="a", stage="built", timing=timing(1.0), failure=Pace(best=2.0).failure(timing(1.0)))
    trajectory.apply(Event("candidate", 0.0, Candidate(id="a", source="", space="cuda", round=1)))
    trajectory.apply(Event("evaluation", 1.0, found))
    assert found.slower
    assert not trajectory.accepted("a")
    assert trajectory.ranked() == []

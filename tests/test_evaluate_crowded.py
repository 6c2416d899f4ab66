"""A candidate that finds the card full of other processes' memory is judged again; one that needs too much is not."""

import asyncio
from types import SimpleNamespace

import pytest

from engine.evaluate import local
from engine.evaluate.local import LocalEvaluator
from engine.nvml import Memory
from engine.records import Build, Candidate, Evaluation, Failure
from tests.evaluate_harness import softmax_contract
from tests.fakes import accepted

FULL = "runs: RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB."


class Card:
    def __init__(self, *free):
        self.free = list(free)

    def memory(self):
        free = self.free.pop(0) if len(self.free) > 1 else self.free[0]
        return Memory(total_bytes=100, used_bytes=100 - free)


@pytest.mark.parametrize(("reasons", "free", "tries"), [
    ([FULL, None], [2, 2, 60], 2), ([FULL, FULL, None], [60], 2), ([FULL, None], [2], 1),
    (["numeric: off", None], [60], 1), ([None], [2], 1)])
async def test_a_full_card_is_no_verdict(reasons, free, tries, monkeypatch):
    contract, _ = softmax_contract()
    monkeypatch.setattr(local, "ROOM_S", 0.05 if free == [2] else 5.0)
    evaluator = LocalEvaluator.__new__(LocalEvaluator)
    evaluator._gpu, evaluator._emulated, evaluator._reduced = Card(*free), False, None
    evaluator._settings, seen, released = local.Settings(), [], []

    async def call(kind, **_named):
        released.append(kind)

    evaluator._one_at_a_time = asyncio.Lock()
    evaluator.session = SimpleNamespace(is_open=True, judge=SimpleNamespace(call=call))
    build = Build(seconds=0.1, tier="light", extension="e.so", module="e")

    async def judged(_contract, candidate, *_more):
        reason = reasons[len(seen)]
        seen.append(reason)
        return Evaluation(candidate_id=candidate.id, stage="built" if reason else "verified", build=build,
                          verification=accepted(), failure=Failure(stage="verify", reason=reason) if reason else None)

    async def built(*_):
        return build

    async def prepared():
        return None

    monkeypatch.setattr(evaluator, "_judged", judged, raising=False)
    monkeypatch.setattr(evaluator, "_build", built, raising=False)
    monkeypatch.setattr(evaluator, "prepare", prepared, raising=False)
    monkeypatch.setattr(local, "screen", lambda *_args, **_named: None)
    found = await evaluator._evaluate(contract, Candidate(id="c", source="x", space="cuda", author="expert"))
    assert len(seen) == tries
    # What our own judge keeps must not be what fills the card.
    assert released == ["release"] * (FULL in reasons)
    assert (found.failure.reason if found.failure else None) == reasons[tries - 1]

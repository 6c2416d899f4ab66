"""Every way to cheat is rejected by the check that is meant for it, and honest kernels are accepted."""

import asyncio
from pathlib import Path

import pytest

from engine.evaluate.measure import Effort
from tests.evaluate_harness import DATA, Bench, failed, norm_contract, softmax_contract

SHORT = Effort(budget_s=0.5, blocks=6, audits=6)
SOFTMAX = {
    "honest": None, "honest_aten": None, "honest_caches_scratch": None,
    "zeros": "numeric", "constant": "numeric", "half_precision": "numeric", "biased": "numeric",
    "part_of_row": "numeric", "no_maximum": "numeric", "misses_last": "numeric", "unwritten": "numeric",
    "stale_by_pointer": "fresh inputs", "stale_by_fingerprint": "one element changed", "idles_later": "fresh inputs",
    "same_buffer": "held outputs", "mutates_input": "inputs untouched", "returns_input": "alias",
    "writes_beside": "guard bands", "wrong_shape": "outputs", "wrong_dtype": "outputs", "overlapping": "outputs",
    "swallows_nan": "special values", "raises": "runs", "crashes": "runs", "aborts": "runs", "exits": "runs",
    "hangs": "runs", "hoards": "runs", "late_thread": "threads", "escapes": None,
}
NORM = {
    "honest": None, "no_update": "numeric", "garbage_second": "numeric", "skips_weight": "numeric",
    "caches_weight": "numeric",
}


@pytest.fixture(scope="module")
def loop():
    runner = asyncio.Runner()
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def softmax(loop, tmp_path_factory):
    bench = loop.run(Bench.make(tmp_path_factory.mktemp("evaluate") / "softmax", *softmax_contract(),
                                (DATA / "softmax.cu").read_text()))
    yield bench
    loop.run(bench.evaluator.close())


@pytest.fixture(scope="module")
def norm(loop, tmp_path_factory):
    bench = loop.run(Bench.make(tmp_path_factory.mktemp("evaluate") / "norm", *norm_contract(),
                                (DATA / "norm.cu").read_text()))
    yield bench
    loop.run(bench.evaluator.close())


def check(loop, bench, entry, expected):
    evaluation = loop.run(bench.judge(entry))
    if expected is None:
        assert evaluation.failure is None, evaluation.failure
        assert evaluation.stage == "verified"
        assert evaluation.verification.match
        assert evaluation.verification.strict
    else:
        assert expected in failed(evaluation), (failed(evaluation), evaluation.failure)
        assert evaluation.failure is not None
        assert not evaluation.verification.accepts("match")


@pytest.mark.parametrize(("entry", "expected"), SOFTMAX.items(), ids=str)
def test_softmax(loop, softmax, entry, expected):
    check(loop, softmax, entry, expected)


@pytest.mark.parametrize(("entry", "expected"), NORM.items(), ids=str)
def test_batch_norm_in_training(loop, norm, entry, expected):
    check(loop, norm, entry, expected)


def test_timing_runs_from_end_to_end(loop, softmax):
    evaluation = loop.run(softmax.judge("honest_aten", SHORT))
    assert evaluation.failure is None, evaluation.failure
    assert evaluation.stage == "timed"
    assert evaluation.timing.ci95[0] <= evaluation.timing.speedup <= evaluation.timing.ci95[1]
    names = {c.name: c.status for c in evaluation.verification.checks}
    assert {names[n] for n in ("timed calls audited", "wall clock", "plausible time")} == {"pass"}


def test_results_of_timed_calls_are_audited(loop, softmax):
    evaluation = loop.run(softmax.judge("idles_in_timing", SHORT))
    assert failed(evaluation) == {"timed calls audited"}
    assert evaluation.timing is None
    assert "timed calls audited" in evaluation.failure.reason


def test_sandbox_left_nothing_behind(softmax):
    assert not Path("/tmp/hiera-escaped").exists()


def test_the_next_candidate_works_soon_after_a_crash(loop, softmax):
    loop.run(softmax.judge("crashes"))
    begin = loop.get_loop().time()
    evaluation = loop.run(softmax.judge("honest"))
    assert evaluation.failure is None
    assert loop.get_loop().time() - begin < 20  # 5 s on a machine that does nothing else.

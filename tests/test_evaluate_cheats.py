"""Every way to cheat is rejected by the check that is meant for it, and honest kernels are accepted."""

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from tests import cheat_texts
from tests.cheat_catalogue import CATALOGUE, ELSEWHERE
from tests.cheat_run import TIMED, judge_all, problem
from tests.cheat_tasks import SOURCES, contract_of, entries
from tests.evaluate_harness import DATA, Bench

# The first test that asks for verdicts waits for all of them.
pytestmark = pytest.mark.timeout(3600)
ALL = {str(entry): (source, entry) for source in SOURCES for entry in entries(source)}


@pytest.fixture(scope="session")
def verdicts(request, tmp_path_factory):
    """Of the entries that this run selected: judging several tasks side by side is what makes it bearable."""
    chosen = [ALL[item.callspec.params["name"]] for item in request.session.items
              if getattr(item, "function", None) is test_entry]
    return asyncio.run(judge_all(chosen, tmp_path_factory.mktemp("cheats")))


@pytest.mark.parametrize("name", ALL)
def test_entry(verdicts, name):
    _, entry = ALL[name]
    assert problem(entry, verdicts[entry]) == ""


@pytest.mark.skipif(not (shutil.which(cheat_texts.HOST) and shutil.which("nm")), reason="no g++ or nm")
def test_what_never_comes_to_run_is_refused_by_its_text_or_its_symbols():
    missed = [text.title for text, found in asyncio.run(cheat_texts.judge_texts()) if not found]
    assert missed == []


def test_every_row_of_the_catalogue_has_a_case_or_a_reason():
    covered = {row for _, entry in ALL.values() for row in entry.rows} | {text.row for text in cheat_texts.TEXTS}
    assert covered | set(ELSEWHERE) == set(CATALOGUE)
    assert not covered & set(ELSEWHERE)
    assert sum(entry.kind == "honest" for _, entry in ALL.values()) >= 25


def test_every_entry_says_what_it_is():
    for source in SOURCES:
        text = (DATA / source).read_text()
        defined = re.findall(r"^(?:Tensor|Two) (\w+)\([^)]*\) \{", text, re.M)
        assert defined == [entry.name for entry in entries(source)], source


@pytest.fixture(scope="module")
def softmax(tmp_path_factory):
    with asyncio.Runner() as runner:
        contract, groundtruth = contract_of("softmax")
        bench = runner.run(Bench.make(tmp_path_factory.mktemp("evaluate") / "softmax", contract, groundtruth,
                                      (DATA / "softmax.cu").read_text()))
        yield runner, bench
        runner.run(bench.evaluator.close())


def test_timing_runs_from_end_to_end(softmax):
    runner, bench = softmax
    evaluation = runner.run(bench.judge("honest_aten", TIMED))
    assert evaluation.failure is None, evaluation.failure
    assert evaluation.stage == "timed"
    assert evaluation.timing.ci95[0] <= evaluation.timing.speedup <= evaluation.timing.ci95[1]
    names = {c.name: c.status for c in evaluation.verification.checks}
    assert {names[n] for n in ("timed calls audited", "wall clock", "plausible time")} == {"pass"}


def test_a_refusal_reaches_the_user_without_its_escapes(softmax):
    runner, bench = softmax
    reason = runner.run(bench.judge("raises")).failure.reason
    assert "only for other shapes" in reason
    assert "\x1b" not in reason


def test_what_a_rejected_candidate_says_ends_the_draws_that_it_saw(softmax):
    runner, bench = softmax
    draws = bench.evaluator._draws
    before = draws.of(2)
    for entry, same in (("honest", True), ("zeros", True), ("raises", False)):
        runner.run(bench.judge(entry))
        assert (draws.of(2) == before) is same, entry


def test_sandbox_left_nothing_behind(verdicts):
    for folder in ("/tmp", "/dev/shm", "/var/tmp"):
        assert not Path(folder, "hiera-escaped").exists()


def test_the_next_candidate_is_accepted_after_a_crash(softmax):
    runner, bench = softmax
    runner.run(bench.judge("crashes"))
    assert runner.run(bench.judge("honest")).failure is None

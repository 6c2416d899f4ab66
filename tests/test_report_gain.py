"""What a candidate wins is told against what the user has: the file as it stands, or eager."""

from dataclasses import replace

import pytest

from engine import report
from engine.headlines import headline_of
from engine.report_html.page import page
from engine.trajectory import Stopped
from hiera_lsp.results import Result
from hiera_lsp.summarise import summarise
from hiera_lsp.texts import speedup_words
from tests.report_runs import BASELINE, CONTRACT, DEVICE, JOB, WORK, candidate, plan, run_of, timed


def run(own: float | None, best: float, contract=CONTRACT):
    user = candidate(0, round_=0, direction="", author="user")
    made = candidate(1)
    own_events = [] if own is None else [("candidate", user), ("evaluation", timed(user, own))]
    return run_of(("job", JOB), ("device", DEVICE), ("contract", contract), ("workload", WORK), *own_events,
                  ("plan", plan(1)), ("candidate", made), ("evaluation", timed(made, best)), ("baseline", BASELINE),
                  ("stopped", Stopped(reason="done")))


@pytest.mark.parametrize(("own", "best", "reference", "faster", "words"), [
    # The user's kernel is far slower than its reference, and the candidate a little less so.
    (0.07, 0.09, "function", True, "1.29x [1.21, 1.37] over the file as it stands; 0.09x [0.09, 0.09] over eager, its reference"),
    (0.07, 0.072, "function", False, "1.03x [0.97, 1.09] over the file as it stands; 0.07x [0.07, 0.07] over eager, its reference"),
    # Faster than the reference, but not than what the user has.
    (2.0, 1.5, "function", False, None),
    (None, 1.5, "module", True, "1.50x [1.46, 1.54] over eager"),
    (None, 0.9, "module", False, "0.90x [0.87, 0.93] over eager"),
    # The user's kernel is the reference: nothing stands between the two.
    (1.0, 1.5, "cuda", True, "1.50x [1.46, 1.54] over the file as it stands"),
])
def test_the_gain_is_over_what_the_user_has(own, best, reference, faster, words, tmp_path):
    trajectory = run(own, best, replace(CONTRACT, reference=reference))
    made = trajectory.candidates[-1]
    winner = trajectory.best
    assert trajectory.is_faster(made.id) is faster
    assert headline_of(trajectory, 0).faster is (trajectory.is_faster(winner.id))
    if words is not None:
        assert report.gain_words(trajectory, made) == words
    text = report.text(trajectory)
    assert ("nothing faster was found" in text) is not trajectory.is_faster(winner.id)
    assert ("nothing faster" in page(trajectory)) is not trajectory.is_faster(winner.id)
    summary = summarise(trajectory, tmp_path)
    shown = summary.best_candidate
    assert trajectory.reference_words in speedup_words(shown, summary.measured)
    assert ("nothing faster" in speedup_words(shown, summary.measured)) is not shown.faster
    assert shown.faster is trajectory.is_faster(winner.id)
    result = Result(uri="file:///k.cu", symbol="k", text_hash="", summary=summary, chosen=made.id)
    assert (result.no_gain == "") is faster


@pytest.mark.parametrize(("own", "best", "told"), [
    (0.05, 0.1, "its reference is 10.0 times faster still, and 20.0 times faster than the file as it stands"),
    (0.5, 1.5, ""), (0.5, 0.99, ""), (None, 0.5, "")])
def test_a_reference_that_is_faster_than_both_is_told(own, best, told):
    text = report.text(run(own, best, replace(CONTRACT, reference="function")))
    assert told in text
    assert ("faster still" in text) is bool(told)


def test_the_json_has_the_gain_over_the_users_kernel():
    rows = report.document(run(0.5, 1.0))["candidates"]
    assert [row["speedup_vs_own"] for row in rows] == [None, pytest.approx(2.0)]
    assert rows[1]["own_ci95"] == pytest.approx([0.97 / 0.515, 1.03 / 0.485])


def test_of_several_given_files_none_is_the_one_to_beat():
    first, second = (candidate(number, round_=0, direction="", author="user") for number in (0, 1))
    side_by_side = run_of(
        ("job", JOB), ("device", DEVICE), ("contract", CONTRACT), ("workload", WORK), ("candidate", first),
        ("candidate", second), ("evaluation", timed(first, 0.5)), ("evaluation", timed(second, 0.9)))
    assert side_by_side.over_own(second.id) is None
    assert side_by_side.is_faster(second.id) is False
    assert report.gain_words(side_by_side, second) == "0.90x [0.87, 0.93] over eager"

"""What reports say of the work: operators once each, no arithmetic that nobody counted, the user's own file as such."""

from dataclasses import replace

import pytest

from engine import report
from engine.records import Evaluation, Share, WorkloadProfile
from engine.report_html.page import page
from engine.trajectory import Stopped
from hiera_lsp.results import Result
from hiera_lsp.summarise import summarise
from hiera_lsp.texts import diagnostic_message, hover
from tests.fakes import NO_GPU, accepted
from tests.report_runs import BASELINE, CONTRACT, JOB, WORK, candidate, plan, run_of

MANY = tuple(Share(node=f"v{i}", op=op, share=part) for i, (op, part) in enumerate(
    [("aten.mm.default", 0.4), ("aten.add.Tensor", 0.3), ("aten.add.Tensor", 0.2), ("aten.relu.default", 0.1)]))
# As of a `.cu` file without a reference line: no operator graph, bytes alone.
UNKNOWN = WorkloadProfile(bytes=1 << 27, flops=0, launches=1, intensity=0.0, bound="memory", floor_us=28.0, roof_us=31.2)


def run(work: WorkloadProfile, best_us: float = 30.0):
    """A run without a GPU: the user's own file of 40 us and one candidate, as estimated."""
    own, made = candidate(0, round_=0, direction="", author="user"), candidate(1)
    evaluations = [("evaluation", Evaluation(candidate_id=c.id, stage="verified", estimate_us=us, verification=accepted(
        "cpu emulation at full size"))) for c, us in ((own, 40.0), (made, best_us))]
    return run_of(("job", JOB), ("device", NO_GPU), ("contract", replace(CONTRACT, reference="cuda")), ("workload", work),
                  ("candidate", own), evaluations[0], ("plan", plan(1)), ("candidate", made), evaluations[1],
                  ("baseline", replace(BASELINE, eager_us=None, compile_us=None)), ("stopped", Stopped(reason="done")))


def hovered(trajectory, tmp_path):
    found = Result(uri="file:///k.cu", symbol="k", text_hash="", summary=summarise(trajectory, tmp_path),
                   chosen=trajectory.best.id, finished_at="2026-01-02T03:04:05+00:00")
    return hover(found, standing="offered", markdown=False) + diagnostic_message(found)


def test_an_operator_in_several_places_is_listed_once():
    trajectory = run(replace(WORK, shares=MANY))
    assert ("operators  aten.add.Tensor 50%, aten.mm.default 40%, aten.relu.default 10% (estimated)"
            in report.text(trajectory).splitlines())
    assert page(trajectory).count("share of aten.add.Tensor") == 1
    # The document keeps every place.
    assert [s["node"] for s in report.document(trajectory)["workload"]["shares"]] == ["v0", "v1", "v2", "v3"]


def test_arithmetic_that_was_not_counted_is_not_told_as_none(tmp_path):
    trajectory = run(UNKNOWN)
    text = report.text(trajectory)
    assert "workload   memory bound by its bytes alone, 134 MB, arithmetic not known, 1 launches" in text
    assert "arithmetic not known: only bytes were counted" in hovered(trajectory, tmp_path)
    for said in (text, page(trajectory), hovered(trajectory, tmp_path)):
        assert "0 GFLOP" not in said
        assert "0 FLOP" not in said
    document = report.document(trajectory)["workload"]
    assert (document["flops"], document["intensity"], document["bound"]) == (0, 0.0, "memory")


def test_a_work_whose_operators_do_no_arithmetic_is_known():
    copies = replace(UNKNOWN, shares=(Share(node="v0", op="aten.clone.default", share=1.0),))
    assert "workload   memory bound, 134 MB, 0 GFLOP" in report.text(run(copies))


@pytest.mark.parametrize(("best_us", "own"), [(50.0, True), (30.0, False)])
def test_without_a_gpu_the_users_own_file_is_named_where_nothing_beats_it(best_us, own):
    trajectory = run(WORK, best_us)
    result = next(line for line in report.text(trajectory).splitlines() if line.startswith("result: "))
    assert ("the file as it stands" in result) is own
    assert ("nothing better can be told without a GPU" in result) is own
    assert ("no speed-up is claimed" in result) is not own
    assert (f"{trajectory.best.id}, the file as it stands, is verified" in page(trajectory)) is own

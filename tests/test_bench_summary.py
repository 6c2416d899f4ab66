"""The benchmark's numbers: rows from records, fast_p, baselines, reasons, ablations, tables. Nothing runs."""

import json
from dataclasses import replace

import pytest

from engine.bench import insight, plots, summary, tables
from engine.bench.rows import result_row
from engine.bench.summary import Baselines, latest, summarize
from engine.bench.tasks import BenchTask
from engine.cli import main
from engine.devices import target_device
from engine.records import (
    Baseline,
    Candidate,
    Check,
    Evaluation,
    Failure,
    Plan,
    Score,
    Timing,
    Verification,
    WorkloadProfile,
)
from engine.trajectory import Event, Job, Stopped, Trajectory

CHECKS = tuple(Check(name=name, status="pass")
               for name in ("outputs", "numeric", "inputs untouched", "fresh inputs", "poison"))
TASK = BenchTask(level=1, id=2, name="task", code="# code")


def judged(identity, speedup, *, strict=True, kernelbench=True, match=True):
    verdict = Verification(match=match, strict=strict, kernelbench=kernelbench, checks=CHECKS, where="gpu")
    if not match:
        return Evaluation(candidate_id=identity, stage="built", verification=verdict,
                          failure=Failure(stage="verify", reason="numeric: too far"))
    timing = Timing(candidate_us=(25.0 / speedup,), reference_us=(25.0,), speedup=speedup,
                    ci95=(speedup * 0.98, speedup * 1.02), speedup_vs_compile=1.1, compile_ci95=(0.9, 1.2))
    return Evaluation(candidate_id=identity, stage="timed", verification=verdict, timing=timing)


def trajectory(made, plans=("M",), stopped="all 3 rounds done"):
    """`made`: (round, direction, evaluation by id) in order."""
    found = Trajectory(run="run")
    found.apply(Event("device", 0.0, replace(target_device(), kind="cuda")))
    found.apply(Event("workload", 0.0, WorkloadProfile(bytes=1, flops=1, launches=1, intensity=1.0, bound="memory",
                                                       floor_us=5.0, roof_us=9.5)))
    found.apply(Event("baseline", 0.0, Baseline(eager_us=25.0, compile_us=20.0, compile_mode="compile")))
    for number, direction in enumerate(plans, 1):
        found.apply(Event("plan", 1.0, Plan(
            round=number, space="cuda", space_reason="", direction=direction, reason="",
            scores={code: Score(value=6.0 if code == direction else 1.0, reason="") for code in "CPMRT"})))
    for at, (number, direction, evaluation) in enumerate(made, 1):
        found.apply(Event("candidate", float(at), Candidate(
            id=evaluation.candidate_id, source="", space="cuda", direction=direction, round=number)))
        found.apply(Event("evaluation", at + 0.5, evaluation))
    if stopped:
        found.apply(Event("stopped", 30.0, Stopped(reason=stopped)))
    return found


def made_row(found, **changes):
    return result_row(TASK, found, **{"settings": {}, "wall_s": 30.0, "failure": None, **changes})


def test_a_row_holds_what_every_budget_would_have_found():
    row = made_row(trajectory([(1, "", judged("a", 1.0)), (1, "M", judged("b", 2.5, strict=False)),
                               (1, "P", judged("c", 1.2))]), begin_s=2.0)
    assert row["budgets"]["1"]["speedup"] == 1.0
    assert row["budgets"]["6"]["speedup"] == row["budgets"]["18"]["speedup"] == 2.5
    assert row["strict"]["6"]["speedup"] == 1.2, "the fastest holds match only"
    assert (row["best"]["speedup"], row["best"]["ci95"]) == (2.5, [2.45, 2.55])
    assert row["first_verified_s"] == 3.5
    assert row["progress"] == [[1, 1.0, 25.0], [2, 2.5, 10.0]]
    assert row["failure"] is None


def test_without_a_clock_a_budgets_best_is_the_runs_best():
    found = trajectory([(1, "", judged("a", 1.0)), (1, "M", judged("b", 1.0))])
    found.apply(Event("device", 0.0, target_device()))
    found.evaluations = {name: replace(one, timing=None, estimate_us=us)
                         for (name, one), us in zip(found.evaluations.items(), (None, 10.0), strict=True)}
    row = made_row(found)
    assert row["best"]["id"] == row["budgets"]["18"]["id"] == "a", "a library call is not slower for having no estimate"


def test_a_candidate_that_only_kernelbench_would_pass_is_told_apart():
    row = made_row(trajectory([(1, "", judged("a", 1.0, match=False, strict=False))]))
    assert not row["verified"]
    assert row["failure"] == "verify: numeric: too far"
    assert row["kernelbench_valid"]["18"] is True
    (line, *_) = summarize([row])
    assert (line["fast_0"], line["kernelbench_fast_0"], line["strict_fast_0"]) == (0.0, 1.0, 0.0)


def test_a_budget_that_was_not_spent_is_not_claimed():
    row = made_row(trajectory([(1, "", judged("a", 1.0))], stopped="budget: 1 candidates made"))
    assert set(row["budgets"]) == {"1"}
    assert [line["budget"] for line in summarize([row])] == [1, 1]


@pytest.mark.parametrize(("stopped", "told"), [
    ("budget: 1 candidates made", {"1"}), ("time: the limit of 60 s is reached", {"1", "6"}),
    ("all 2 rounds done", {"1", "6"}), ("converged: 9 us is within 5 %", {"1", "6", "12", "18"}),
    ("no direction left: every idea was tried", {"1", "6", "12", "18"})])
def test_only_budgets_that_were_asked_for_are_told(stopped, told):
    found = trajectory([(1, "", judged("a", 1.0))], stopped=stopped)
    found.job = Job(file="t.py", preset="quick")
    assert set(made_row(found)["budgets"]) == told


def test_a_task_that_did_not_begin_failed_at_the_budgets_that_were_asked_for():
    row = result_row(TASK, None, settings={"budget": 1}, wall_s=1.0, failure="no such file")
    assert [(line["budget"], line["fast_0"]) for line in summarize([row])] == [(1, 0.0), (1, 0.0)]


def test_an_unfinished_row_says_nothing_about_budgets():
    row = made_row(trajectory([(1, "", judged("a", 1.0))], stopped=None), complete=False)
    assert row["budgets"] == {}
    assert summarize([row]) == []
    assert tables.document([row], Baselines())["unfinished"] == ["1/2"]


@pytest.mark.parametrize(("made", "plans", "winner"), [
    ([(1, "", judged("a", 1.0)), (1, "M", judged("b", 2.0)), (1, "P", judged("c", 1.5))], ("M",), "M"),
    ([(1, "", judged("a", 1.0)), (1, "M", judged("b", 1.2)), (1, "P", judged("c", 1.5))], ("M",), "P"),
    ([(1, "", judged("a", 1.0)), (1, "M", judged("b", 1.005))], ("M",), None),  # Less than noise.
    ([(1, "", judged("a", 1.0))], ("M",), None),  # A beginning is no gain.
    ([(1, "M", judged("b", 2.0, match=False))], ("M",), None),
])
def test_a_rounds_winner_is_what_made_it_faster(made, plans, winner):
    (told,) = made_row(trajectory(made, plans))["rounds"]
    assert (told["winner"] or {}).get("direction") == winner


def test_how_often_planning_chose_what_won():
    right = made_row(trajectory([(1, "", judged("a", 1.0)), (1, "M", judged("b", 2.0)), (1, "P", judged("c", 1.5)),
                                 (2, "T", judged("d", 3.0))], ("M", "R")))
    found = insight.directions([right])
    assert (found["rounds"], found["rounds_won"], found["planned_won"]) == (2, 2, 0.5)
    assert found["by_chance"] == pytest.approx((0.5 + 0.0) / 2)
    assert found["won_when_planned"] == {"M": {"M": 1}, "R": {"T": 1}}
    assert (found["gain_planned"], found["gain_other"]) == (pytest.approx(2.0), pytest.approx(1.5))
    assert "the direction the rubric chose won in 50.0%" in tables.text([right])
    assert insight.directions([made_row(trajectory([(1, "", judged("a", 1.0))]))]) is None


def row(level, number, speedup=None, low=None, versus=None, **changes):
    best = None
    if speedup is not None:
        best = {"id": "x", "speedup": speedup, "ci95": [low, speedup], "speedup_vs_compile": versus,
                "compile_ci95": [versus * 0.9, versus] if versus else None, "minimum_detectable": 0.01,
                "median_us": 100.0 / speedup, "space": "cuda", "direction": "M"}
    return {"level": level, "id": number, "name": "t", "code_sha256": "c", "device": "G", "verified": best is not None,
            "best": best, "failure": None if best else "why", "wall_s": 10.0, "measured": True, "roof_us": 20.0,
            "baseline": {"eager_us": 100.0, "compile_us": None}, "candidates": 18,
            "budgets": {"1": None, "6": best, "12": best, "18": best}, **changes}


def form(number, name, speedup, *, valid=True, level=1):
    return {"level": level, "id": number, "code_sha256": "c", "device": "G", "torch": "2", "form": name, "valid": valid,
            "speedup": speedup, "median_us": 100.0 / speedup if speedup else None, "compile_s": 9.0}


def test_fast_p_counts_intervals_not_points():
    rows = [row(1, 2, 4.0, 2.1, 1.5), row(1, 4, 2.2, 1.9), row(1, 6, 1.5, 0.99), row(1, 8), row(2, 2, 1.005, 0.999)]
    lines = {(line["level"], line["budget"]): line for line in summarize(rows)}
    one = lines[(1, 6)]
    assert (one["tasks"], one["fast_0"], one["fast_1"], one["fast_2"]) == (4, 0.75, 0.5, 0.25)
    assert one["fast_1_compile"] == 0.25
    assert one["geomean_verified"] == pytest.approx((4.0 * 2.2 * 1.5) ** (1 / 3))
    assert one["geomean"] == pytest.approx((4.0 * 2.2 * 1.5) ** (1 / 4))
    assert lines[(1, 1)]["fast_0"] == 0
    assert lines[(2, 6)]["fast_1"] == 0  # The interval reaches 1.
    assert lines[(None, 6)]["tasks"] == 5


@pytest.mark.parametrize(("paired", "forms", "expected"), [
    (1.5, [], 1.5),
    (None, [form(2, "compile", 2.0)], 1.0),  # Both two times faster than eager.
    (1.5, [form(2, "compile", 1.2), form(2, "compile max-autotune", 1.6)], 2.0 / 1.6),  # The best mode counts.
    (1.5, [form(2, "compile", 9.0), form(2, "compile max-autotune", 1.1)], 1.5),  # Paired beats apart.
    (0.5, [form(2, "compile", 4.0, valid=False), form(2, "compile max-autotune", 1.6)], 2.0 / 1.6),
    (None, [form(2, "compile", 4.0, valid=False), form(2, "compile max-autotune", None, valid=None)], 2.0),
    (None, [], None),
])
def test_the_best_valid_mode_of_torch_compile_is_what_we_are_compared_with(paired, forms, expected):
    tasked = row(1, 2, 2.0, 1.9, paired)
    found = summary.versus_compile(tasked["best"], Baselines(forms).of(tasked))
    assert (found[0] if found else None) == (pytest.approx(expected) if expected else None)


def test_baselines_of_another_device_or_code_are_not_used():
    other = [{**form(2, "compile", 2.0), "device": "H"}, {**form(2, "compile", 2.0), "code_sha256": "d"}]
    assert Baselines(other).of(row(1, 2, 2.0, 1.9)) == {}


def test_what_was_not_measured_is_no_number():
    (line, *_) = summarize([row(1, 2, 2.0, 1.9, measured=False)])
    assert line["fast_1"] is None
    assert line["fast_0"] == 0


def test_the_last_complete_row_of_a_task_counts():
    assert latest([row(1, 2), row(1, 2, 2.0, 1.9), row(1, 2, complete=False)])[0]["verified"]


def test_a_winner_that_a_fresh_process_rejected_is_none():
    doubted = row(1, 2, 2.0, 1.9, reverified={"id": "x", "accepted": False, "reason": "numeric"})
    (line, *_) = [line for line in summarize([doubted]) if line["budget"] == 18]
    assert (line["fast_0"], line["fast_1"], line["geomean"]) == (0, 0, None)
    assert "a fresh process rejected the winner: numeric" in insight.misses([doubted])[0]["why"]
    assert insight.misses([{**doubted, "budgets": {"1": None}}]), "also where the largest budget was not reached"
    other = row(1, 2, 2.0, 1.9, reverified={"id": "another", "accepted": False, "reason": "numeric"})
    assert summarize([other])[-1]["fast_0"] == 1


@pytest.mark.parametrize(("given", "said"), [
    ({"speedup": 1.0, "low": 0.99, "roof_us": 98.0}, "at the roof"),
    ({"speedup": 0.8, "low": 0.7}, "slower than eager"),
    ({"speedup": 0.9, "low": 0.8, "roof_us": 96.0}, "eager is at the roof already"),
    ({"speedup": 1.001, "low": 0.999}, "no difference to eager"),
    ({"speedup": 0.8, "low": 0.7, "candidates": 2, "stop_reason": "time: the limit"}, "only 2 candidates before"),
    ({}, "nothing verified: why"),
])
def test_every_miss_has_a_reason(given, said):
    given = dict(given)
    point, low = given.pop("speedup", None), given.pop("low", None)
    (miss,) = insight.misses([row(1, 2, point, low, **given)])
    assert said in miss["why"]
    if point is not None:
        assert miss["roof_part"] == pytest.approx(given.get("roof_us", 20.0) * point / 100.0)


def test_variants_are_compared_on_the_tasks_that_all_have():
    rows = [row(1, 2, 2.0, 1.9), row(1, 4, 3.0, 2.9), row(1, 2, 1.2, 1.1, variant="fixed:cuda"),
            row(1, 4, variant="fixed:cuda"), row(1, 6, 9.0, 8.0)]
    lines = {(line["variant"], line["level"]): line for line in insight.compare(rows)}
    assert lines[("full", None)]["tasks"] == lines[("fixed:cuda", None)]["tasks"] == 2
    assert (lines[("full", None)]["fast_2"], lines[("fixed:cuda", None)]["fast_2"]) == (0.5, 0.0)
    assert (lines[("full", None)]["mean"], lines[("full", None)]["max"]) == (2.5, 3.0)
    assert lines[("fixed:cuda", None)]["fast_0"] == 0.5
    assert insight.compare(rows[:2]) == []


def test_a_run_without_a_gpu_counts_and_names_reasons():
    cpu = {**row(1, 2, 2.0, 1.9, measured=False)}
    cpu["best"] = {**cpu["best"], "where": "cpu emulation at reduced size"}
    found = summary.without_gpu([cpu, row(3, 4, measured=False)])
    assert (found["verified"], found["tasks"]) == (1, 2)
    assert found["by_level"]["3"] == {"tasks": 1, "verified": 0}
    assert found["not_verified"] == {"3/4": "why"}
    doubted = {**cpu, "reverified": {"id": "x", "accepted": False, "reason": "numeric"}}
    found = summary.without_gpu([doubted])
    assert (found["verified"], found["where"], found["not_verified"]) == (0, {}, {"1/2": "numeric"})
    assert "a fresh process rejected" in insight.misses([doubted])[0]["why"]
    assert summary.without_gpu([row(1, 2, 2.0, 1.9)]) is None


def test_baseline_lines_count_only_valid_forms_as_faster():
    rows = [row(1, 2, 2.0, 1.9), row(1, 4, 2.0, 1.9)]
    kept = Baselines([form(2, "compile", 3.0), form(4, "compile", 5.0, valid=False), form(4, "graph", 2.5)])
    line = next(line for line in summary.baseline_lines(rows, kept) if line["form"] == "compile" and line["level"] == 1)
    assert (line["tasks"], line["valid"], line["faster"], line["twice"]) == (2, 0.5, 0.5, 0.5)
    assert line["geomean"] == pytest.approx(3.0)


def test_the_summary_of_files_without_running(tmp_path, capsys):
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(row(1, 2, 4.0, 2.1, 1.5)) + "\n" + json.dumps(row(3, 2)) + "\n")
    (tmp_path / "out.baselines.jsonl").write_text(json.dumps(form(2, "compile max-autotune", 8.0)) + "\n")
    assert main(["bench", "--summary", str(path), "--per-task", "--json", str(tmp_path / "s.json")]) == 0
    printed = capsys.readouterr().out
    assert "| 1 | 6 | 1 | 100.0% | 100.0% | 100.0% |" in printed
    assert "- 3/2 t: nothing verified: why" in printed
    assert "4.00x [2.10, 4.00]" in printed
    document = json.loads((tmp_path / "s.json").read_text())
    assert document["medians"]["wall_s"] == 10
    line = next(line for line in document["summary"] if (line["level"], line["budget"]) == (1, 18))
    assert line["geomean_compile"] == pytest.approx(0.5), "the baselines beside the results are read"
    assert main(["bench", "--summary", str(tmp_path / "out.baselines.jsonl")]) == 2
    assert "no results" in capsys.readouterr().err


def test_the_command_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda _name: None)
    assert main(["bench"]) == 2
    assert "--summary" in capsys.readouterr().err
    for flags, said in ((["--gpus", "a"], "--gpus"), (["--ablation", "x"], "no variant"), (["--forms", "x"], "--forms"),
                        (["--baselines", "nowhere.jsonl"], "nowhere.jsonl: it cannot be read"),
                        (["--plots", "p"], "hiera[plots]")):
        assert main(["bench", "tasks.jsonl", "--out", "o.jsonl", *flags]) == 2
        assert said in capsys.readouterr().err


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.jsonl"
    steps = {"progress": [[1, 1.0, 100.0], [3, 2.0, 50.0]]}
    rows = [row(level, number, 2.0, 1.9, variant=variant, **steps)
            for level in (1, 2, 3) for number in (2, 4) for variant in ("full", "fixed:cuda")]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert main(["bench", "--summary", str(path), "--plots", str(tmp_path / "plots")]) == 0
    assert {file.stem for file in (tmp_path / "plots").iterdir()} == {"budgets", "spread", "ablation", "progress"}
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in (tmp_path / "plots").iterdir())

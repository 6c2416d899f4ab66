"""The benchmark: selection, isolation of failures, time limits, resumption, fast_p. The loop is a stand-in."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import ConfigError, InputError, WorkerDiedError
from engine.bench import run as bench_run
from engine.bench import summary
from engine.bench.rows import ResultFile, read_rows
from engine.bench.run import BenchOptions, run
from engine.bench.tasks import read_tasks, select
from engine.devices import target_device
from engine.records import Candidate, Check, Evaluation, Failure, Timing, Verification
from engine.trajectory import Event, Stopped, Trajectory

CHECKS = tuple(Check(name=name, status="pass")
               for name in ("outputs", "numeric", "inputs untouched", "fresh inputs", "poison"))
GPU = replace(target_device(), kind="cuda")


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    rows = [{"level": level, "id": number, "name": f"task_{number}.py", "code": f"# {level}/{number}"}
            for level, number in [(1, 2), (1, 4), (2, 2), (2, 40), (3, 6)]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def evaluation(identity, speedup=None, **changes):
    accepted = Verification(match=True, strict=True, kernelbench=True, checks=CHECKS, where="gpu")
    timing = Timing(candidate_us=(25.0 / (speedup or 1),), reference_us=(25.0,), speedup=speedup or 1.0,
                    ci95=((speedup or 1) * 0.98, (speedup or 1) * 1.02), speedup_vs_compile=1.1, compile_ci95=(0.9, 1.2))
    return Evaluation(candidate_id=identity, stage="timed", verification=accepted,
                      timing=timing if speedup else None, **changes)


async def loop(job, *, on_event, cancel, speedups=(1.0, 2.5, 1.2),
               stopped="all 3 rounds done"):
    """Each candidate a little later; the text of the task decides what goes wrong."""
    code = await asyncio.to_thread(Path(job.file).read_text)
    trajectory = Trajectory(run="run")
    events = [Event("device", 0.0, GPU)]
    if "crash" in code:
        raise ZeroDivisionError("our fault")
    for number, speedup in enumerate(speedups):
        identity = f"c{number}"
        events.append(Event("candidate", 1.0 + number, Candidate(id=identity, source="", space="cuda", direction="M")))
        failed = Evaluation(candidate_id=identity, stage="built",
                            failure=Failure(stage="verify", reason="check numeric failed"))
        events.append(Event("evaluation", 1.5 + number, failed if "wrong" in code else evaluation(identity, speedup)))
    for event in events:
        trajectory.apply(event)
        on_event(event, trajectory)
    if "hang" in code:
        await cancel.wait()
        trajectory.apply(Event("stopped", 9.0, Stopped(reason="cancelled", complete=False)))
        return trajectory
    if "deaf" in code:
        await asyncio.sleep(60)
    if "died" in code:
        raise WorkerDiedError("call", exit_status=-11)
    trajectory.apply(Event("stopped", 9.0, Stopped(reason=stopped)))
    return trajectory


def options(tasks, **changes):
    return BenchOptions(**{"tasks": tasks, "out": tasks.parent / "out.jsonl", **changes})


def spoil(tasks, key, word):
    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    for row in rows:
        if f"{row['level']}/{row['id']}" == key:
            row["code"] = f"# {word}"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(("ids", "levels", "keys"), [
    (None, None, ["1/2", "1/4", "2/2", "2/40", "3/6"]), ("1/2,2/40", None, ["1/2", "2/40"]), ("2", None, ["1/2", "2/2"]),
    ("2:2", None, ["2/2"]), ("2/1-50", None, ["2/2", "2/40"]), (None, "1,3", ["1/2", "1/4", "3/6"]), ("2", "2", ["2/2"])])
def test_selection(tasks, ids, levels, keys):
    assert [task.key for task in select(read_tasks(tasks), ids, levels)] == keys


@pytest.mark.parametrize(("ids", "levels"), [("99", None), ("x", None), ("1/2/3", None), (None, "a"), (None, "9")])
def test_a_selection_of_nothing_is_an_error(tasks, ids, levels):
    with pytest.raises(InputError):
        select(read_tasks(tasks), ids, levels)


def test_a_bad_line_is_named(tasks):
    tasks.write_text(tasks.read_text() + '{"level": 1}\n')
    with pytest.raises(InputError, match=r"tasks.jsonl:6: .*KeyError"):
        read_tasks(tasks)


async def test_rows_hold_what_every_budget_would_have_found(tasks):
    said = []
    rows = await run(options(tasks), optimize=loop, on_line=said.append)
    assert len(rows) == 5
    row = rows[0]
    assert row["verified"]
    assert row["budgets"]["1"]["speedup"] == 1.0
    assert row["budgets"]["6"]["speedup"] == row["budgets"]["18"]["speedup"] == 2.5
    assert row["best"]["speedup"] == 2.5
    assert row["best"]["ci95"] == [2.45, 2.55]
    assert (row["best"]["space"], row["best"]["direction"]) == ("cuda", "M")
    assert row["first_verified_s"] == 1.5
    assert row["failure"] is None
    assert read_rows(tasks.parent / "out.jsonl") == rows
    assert any("2.50x over eager [2.45, 2.55]" in line for line in said)


@pytest.mark.parametrize(("word", "reason", "verified"), [
    ("crash", "internal error in task 2/2: ZeroDivisionError: our fault", False),
    ("wrong", "verify: check numeric failed", False),
    ("died", "the worker ended with signal 11", True),
])
async def test_a_task_that_fails_costs_itself_only(tasks, word, reason, verified):
    spoil(tasks, "2/2", word)
    rows = {f"{r['level']}/{r['id']}": r for r in await run(options(tasks), optimize=loop)}
    assert len(rows) == 5
    assert reason in rows["2/2"]["failure"]
    assert rows["2/2"]["verified"] == verified
    assert rows["2/40"]["verified"]


@pytest.mark.parametrize(("word", "failure"), [("hang", None), ("deaf", "time: stopped hard")])
async def test_a_task_that_hangs_is_ended_and_keeps_its_best(tasks, monkeypatch, word, failure):
    monkeypatch.setattr(bench_run, "FINISH_S", 0.1)
    monkeypatch.setattr(bench_run, "CANCEL_S", 0.1)
    spoil(tasks, "1/2", word)
    begin = time.monotonic()
    rows = {f"{r['level']}/{r['id']}": r for r in await run(options(tasks, limit_s=0.1), optimize=loop)}
    assert time.monotonic() - begin < 5
    assert rows["1/2"]["best"]["speedup"] == 2.5
    assert (rows["1/2"]["failure"] or "").startswith(failure or "")
    assert len(rows) == 5


async def test_tasks_overlap(tasks):
    running, most = 0, 0

    async def slow(job, *, on_event, cancel):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return await loop(job, on_event=on_event, cancel=cancel)

    await run(options(tasks, parallel=3), optimize=slow)
    assert most == 3


async def test_resume_skips_what_is_there_and_drops_a_torn_line(tasks):
    chosen = options(tasks, ids="1/2,1/4")
    await run(chosen, optimize=loop)
    with pytest.raises(ConfigError, match="--resume"):
        await run(options(tasks), optimize=loop)
    with chosen.out.open("a") as file:
        file.write('{"level": 2, "id": 2, "na')
    ran = []

    async def counted(job, *, on_event, cancel):
        ran.append(job.file)
        return await loop(job, on_event=on_event, cancel=cancel)

    rows = await run(options(tasks, resume=True), optimize=counted)
    assert len(ran) == 3
    assert len(rows) == len(read_rows(chosen.out)) == 5
    assert all(json.loads(line) for line in chosen.out.read_text().splitlines())


async def test_changed_code_is_run_again(tasks):
    await run(options(tasks), optimize=loop)
    spoil(tasks, "1/2", "wrong")
    rows = await run(options(tasks, resume=True), optimize=loop)
    assert len(rows) == 6
    assert not summary.latest(rows)[0]["verified"]


async def test_cancel_writes_no_row_for_what_was_not_finished(tasks):
    spoil(tasks, "1/4", "hang")
    cancel = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, cancel.set)
    rows = await run(options(tasks, parallel=1), optimize=loop, cancel=cancel)
    assert [f"{r['level']}/{r['id']}" for r in rows] == ["1/2"]


def test_an_unwritable_result_file_is_an_error_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        ResultFile(tmp_path / "file" / "out.jsonl", resume=False)


def row(level, number, speedup=None, low=None, versus=None):
    best = None
    if speedup is not None:
        best = {"speedup": speedup, "ci95": [low, speedup], "speedup_vs_compile": versus,
                "compile_ci95": [versus * 0.9, versus] if versus else None, "minimum_detectable": 0.01}
    return {"level": level, "id": number, "name": "t", "verified": best is not None, "best": best, "failure": "why",
            "wall_s": 10.0, "measured": True, "budgets": {"1": None, "6": best, "12": best, "18": best}}


def test_fast_p_counts_intervals_not_points():
    rows = [row(1, 2, 4.0, 2.1, 1.5), row(1, 4, 2.2, 1.9), row(1, 6, 1.5, 0.99), row(1, 8), row(2, 2, 1.005, 1.001)]
    lines = {(line["level"], line["budget"]): line for line in summary.summarize(rows)}
    one = lines[(1, 6)]
    assert (one["tasks"], one["fast_0"], one["fast_1"], one["fast_2"]) == (4, 0.75, 0.5, 0.25)
    assert one["fast_1_compile"] == 0.25
    assert one["geomean_verified"] == pytest.approx((4.0 * 2.2 * 1.5) ** (1 / 3))
    assert one["geomean"] == pytest.approx((4.0 * 2.2 * 1.5) ** (1 / 4))
    assert lines[(1, 1)]["fast_0"] == 0
    assert lines[(2, 6)]["fast_1"] == 0  # Below the smallest difference that could be seen.
    assert lines[(None, 6)]["tasks"] == 5


async def test_a_budget_that_was_not_spent_is_not_claimed(tasks):
    async def cut(job, *, on_event, cancel):
        return await loop(job, on_event=on_event, cancel=cancel, stopped="budget: 3 candidates made")

    (row,) = await run(options(tasks, ids="1/2"), optimize=cut)
    assert set(row["budgets"]) == {"1"}
    assert [line["budget"] for line in summary.summarize([row])] == [1, 1]


def test_what_was_not_measured_is_no_number():
    (line, *_) = summary.summarize([{**row(1, 2, 2.0, 1.9), "measured": False}])
    assert line["fast_1"] is None
    assert line["fast_0"] == 0


def test_the_last_row_of_a_task_counts():
    assert summary.latest([row(1, 2), row(1, 2, 2.0, 1.9)])[0]["verified"]


def test_summary_as_a_program(tmp_path, capsys):
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(row(1, 2, 4.0, 2.1, 1.5)) + "\n" + json.dumps(row(3, 2)) + "\n")
    assert summary.main([str(path), "--tasks"]) == 0
    printed = capsys.readouterr().out
    assert "| 1 | 6 | 1 | 100.0% | 100.0% | 100.0% |" in printed
    assert "- 3/2 t: why" in printed
    assert "4.00x [2.10, 4.00]" in printed
    assert summary.main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["medians"]["wall_s"] == 10

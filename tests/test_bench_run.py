"""The benchmark's running: selection, isolation of failures, limits, kills and resumption. Tasks are stand-ins."""

import asyncio
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.errors import ConfigError, InputError, ToolError
from engine import devices
from engine.bench import children, one, provenance
from engine.bench import run as bench_run
from engine.bench.rows import ResultFile, read_rows
from engine.bench.run import BenchOptions, run
from engine.bench.summary import latest, unfinished
from engine.bench.tasks import read_tasks, representative, select
from engine.process_tree import descendants

FAKE = Path(__file__).with_name("fake_bench_task.py")
PROGRAM = (sys.executable, "-u", str(FAKE))
KEYS = [(1, 2), (1, 4), (2, 2), (2, 40), (3, 6)]


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tasks.jsonl"
    rows = [{"level": level, "id": number, "name": f"task_{number}.py", "code": f"# {level}/{number}"}
            for level, number in KEYS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Somebody may edit our files while the tests run; unfinished runs of another text are not gone on with.
    monkeypatch.setattr(provenance, "text_digest", lambda: "text")
    return path


def options(tasks, **changes):
    return BenchOptions(**{"tasks": tasks, "out": tasks.parent / "out.jsonl", "device": "none", "python": sys.executable,
                           "commit": "abc", "parallel": 4, **changes})


def spoil(tasks, key, word):
    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    for row in rows:
        if f"{row['level']}/{row['id']}" == key:
            row["code"] = f"# {word}"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))


def is_slow(tasks):
    runs = (tasks.parent / "cache" / "runs").glob("*/events.jsonl")
    return any("now it is slow" in path.read_text() for path in runs)


def by_key(rows):
    return {f"{row['level']}/{row['id']}": row for row in rows}


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


def test_every_beginning_stands_for_the_whole(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"level": level, "id": number, "name": "t", "code": ""}) + "\n"
                            for level, count in ((1, 20), (2, 20), (3, 10)) for number in range(count)))
    tasks = read_tasks(path)

    ordered = representative(tasks)

    assert sorted(task.key for task in ordered) == sorted(task.key for task in tasks)
    assert [sum(task.level == level for task in ordered[:25]) for level in (1, 2, 3)] == [10, 10, 5]
    assert [task.id for task in ordered if task.level == 1] != list(range(20)), "the file's order is no random one"
    assert representative(tuple(reversed(tasks))) == ordered
    sampled = representative(tasks, 12)
    assert [sum(task.level == level for task in sampled) for level in (1, 2, 3)] == [4, 4, 4]


async def test_a_row_says_what_was_found_by_what_and_from_what(tasks):
    said = []
    rows = await run(options(tasks), program=PROGRAM, on_line=said.append)
    assert len(rows) == 5
    row = by_key(rows)["1/2"]
    assert (row["verified"], row["complete"], row["variant"], row["failure"]) == (True, True, "full", None)
    assert (row["commit"], row["settings"]["parallel"], row["settings"]["retime"]) == ("abc", 4, True)
    assert row["text_sha256"]
    assert row["torch"].split("+")[0] == importlib.metadata.version("torch").split("+")[0]
    assert row["sitting"]
    assert row["best"]["speedup"] == 2.5
    assert row["reverified"] == {"id": "c1", "accepted": True, "reason": None}
    assert row["kernelbench"]["runs"] == 100
    assert row["wall_s"] >= row["first_verified_s"] > 0
    assert read_rows(tasks.parent / "out.jsonl") == rows
    assert any("2.50x over eager [2.45, 2.55]" in line for line in said)


@pytest.mark.parametrize(("word", "reason", "verified"), [
    ("crash", "internal error: ZeroDivisionError: our fault", False),
    ("wrong", "verify: check numeric failed", False),
    ("died", "the task's process ended with signal 11", True),
])
async def test_a_task_that_fails_costs_itself_only(tasks, word, reason, verified):
    spoil(tasks, "2/2", word)
    rows = by_key(await run(options(tasks), program=PROGRAM))
    assert len(rows) == 5
    assert reason in rows["2/2"]["failure"]
    assert rows["2/2"]["verified"] == verified
    assert rows["2/40"]["verified"]


@pytest.mark.parametrize("word", ["hang", "deaf"])
async def test_a_task_that_hangs_is_ended_and_keeps_its_best(tasks, monkeypatch, word):
    monkeypatch.setattr(one, "FINISH_S", 8.0)
    monkeypatch.setattr(children, "CANCEL_S", 1.0)
    spoil(tasks, "1/2", word)
    rows = by_key(await run(options(tasks, limit_s=0.1), program=PROGRAM))
    assert rows["1/2"]["best"]["speedup"] == 2.5
    assert rows["1/2"]["failure"].startswith("time: stopped hard")
    assert rows["1/2"]["complete"], "its own limit is a finding, not an interruption"
    assert len(rows) == 5
    assert descendants(os.getpid()) == []


async def test_a_sitting_that_ends_while_a_task_hangs_is_gone_on_with_by_the_next(tasks, monkeypatch):
    monkeypatch.setattr(children, "CANCEL_S", 0.5)

    async def once_it_is_slow(stop, _seconds):
        while not is_slow(tasks):  # noqa: ASYNC110 - another process writes it.
            await asyncio.sleep(0.05)
        stop.set()

    monkeypatch.setattr(bench_run, "_set_after", once_it_is_slow)
    spoil(tasks, "1/2", "slow")
    said = []

    rows = by_key(await run(options(tasks, ids="1/2"), program=PROGRAM, on_line=said.append))

    assert not rows["1/2"]["complete"]
    assert rows["1/2"]["best"]["speedup"] == 1.0, "what it had found by then is told"
    assert rows["1/2"]["budgets"] == {}, "but says nothing about any budget"
    assert [row["id"] for row in unfinished(list(rows.values()))] == [2]
    assert any("unfinished" in line for line in said)
    assert descendants(os.getpid()) == []

    monkeypatch.setattr(bench_run, "_set_after", lambda _stop, _seconds: asyncio.sleep(0))
    again = await run(options(tasks, ids="1/2", resume=True), program=PROGRAM)

    assert unfinished(again) == []
    assert by_key(latest(again))["1/2"]["run"] == rows["1/2"]["run"], "the same run went on"
    assert by_key(latest(again))["1/2"]["best"]["speedup"] == 2.5


async def test_a_sittings_end_comes_early_enough_to_stop_what_hangs(monkeypatch):
    stop = asyncio.Event()
    monkeypatch.setattr(bench_run, "END_S", 1000.0)
    await asyncio.wait_for(bench_run._set_after(stop, 1000.01), 30)
    assert stop.is_set()
    assert children.CANCEL_S < bench_run.END_S


async def test_no_task_begins_with_no_time_left(tasks):
    assert await run(options(tasks, seconds=bench_run.END_S + one.ONE_LEFT_S / 2), program=PROGRAM) == []


async def test_tasks_overlap(tasks):
    for key in ("1/2", "1/4", "2/2", "2/40", "3/6"):
        spoil(tasks, key, "meet")
    rows = await run(options(tasks, parallel=2), program=PROGRAM)
    assert all(row["failure"] is None for row in rows)


def test_gpus_are_counted_among_those_that_a_scheduler_gave_us(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_run.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [lane.environment["CUDA_VISIBLE_DEVICES"] for lane in bench_run.lanes((0, 1))] == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, MIG-GPU-ab/1/0")
    lanes = bench_run.lanes((1, 0))
    assert [lane.environment["CUDA_VISIBLE_DEVICES"] for lane in lanes] == ["MIG-GPU-ab/1/0", "4"]
    assert len({lane.locks for lane in lanes}) == 2
    assert all(lane.locks.parent == tmp_path for lane in lanes)


async def test_a_gpu_that_is_not_there_is_refused_before_any_work(tasks, monkeypatch):
    async def query():
        return {"devices": [{"name": "Test GPU", "index": 0}], "driver": "1", "problem": ""}

    monkeypatch.setattr(devices, "query_driver", query)
    monkeypatch.setattr(devices, "from_driver", lambda facts, _driver: facts)
    with pytest.raises(ToolError, match=r"cuda:1 is not there: the driver shows 1 GPU"):
        await run(options(tasks, device="auto", gpus=(0, 1)), program=PROGRAM)
    with pytest.raises(ConfigError, match="--device cuda:1"):
        await run(options(tasks, device="cuda:1", gpus=(0,)), program=PROGRAM)
    assert not (tasks.parent / "out.jsonl").exists()
    # A lane's one GPU is not given up for the CPU.
    assert options(tasks, device="auto", gpus=(1,)).job(tasks).device == "cuda:0"
    assert options(tasks, device="auto").job(tasks).device == "auto"


async def test_each_gpu_has_tasks_a_cache_and_locks_of_its_own_and_one_result_file(tasks):
    for key in ("1/2", "1/4", "2/2", "2/40", "3/6"):
        spoil(tasks, key, "meet")
    rows = await run(options(tasks, parallel=1, gpus=(0, 3)), program=PROGRAM)
    assert len(rows) == 5
    seen = {row["lane"]: json.loads(row["notes"][0]) for row in rows}
    assert set(seen) == {"GPU 0", "GPU 3"}
    assert [seen[name]["CUDA_VISIBLE_DEVICES"] for name in ("GPU 0", "GPU 3")] == ["0", "3"]
    for key in ("TMPDIR", "HIERA_CACHE"):
        assert seen["GPU 0"][key] != seen["GPU 3"][key]
        assert Path(seen["GPU 3"][key]).is_dir()


async def test_resume_skips_what_is_there_and_drops_a_torn_line(tasks):
    chosen = options(tasks, ids="1/2,1/4")
    await run(chosen, program=PROGRAM)
    with pytest.raises(ConfigError, match="--resume"):
        await run(options(tasks), program=PROGRAM)
    with chosen.out.open("a") as file:
        file.write('{"level": 2, "id": 2, "na')
    said = []

    rows = await run(options(tasks, resume=True), program=PROGRAM, on_line=said.append)

    assert sum("begins" in line for line in said) == 3
    assert len(rows) == len(read_rows(chosen.out)) == 5
    assert all(json.loads(line) for line in chosen.out.read_text().splitlines())


async def test_what_was_not_verified_is_run_again_when_asked(tasks):
    spoil(tasks, "1/2", "wrong")
    await run(options(tasks, ids="1/2,1/4"), program=PROGRAM)
    assert len(await run(options(tasks, ids="1/2,1/4", resume=True), program=PROGRAM)) == 2
    rows = await run(options(tasks, ids="1/2,1/4", resume=True, retry=True), program=PROGRAM)
    assert [row["id"] for row in rows][2:] == [2]
    runs = {row["run"] for row in rows if row["id"] == 2}
    assert len(runs) == 2, "it was searched anew"


async def test_changed_code_is_run_again(tasks):
    await run(options(tasks), program=PROGRAM)
    spoil(tasks, "1/2", "wrong")
    rows = await run(options(tasks, resume=True), program=PROGRAM)
    assert len(rows) == 6
    assert not by_key(latest(rows))["1/2"]["verified"]


async def test_cancel_keeps_what_was_not_finished_as_unfinished(tasks, monkeypatch):
    monkeypatch.setattr(children, "CANCEL_S", 1.0)
    spoil(tasks, "1/4", "slow")
    cancel = asyncio.Event()

    async def watch():
        while not is_slow(tasks):  # noqa: ASYNC110 - another process writes it.
            await asyncio.sleep(0.05)
        cancel.set()

    watching = asyncio.ensure_future(watch())
    rows = await run(options(tasks, ids="1/4", parallel=1), program=PROGRAM, cancel=cancel)
    assert watching.done()
    assert [row["complete"] for row in rows] == [False]
    assert latest(rows) == []


async def test_variants_share_the_tasks_and_stay_apart_in_the_results(tasks):
    chosen = options(tasks, ids="1/2,1/4", variants=("full", "fixed:cuda", "no-planning"))
    rows = await run(chosen, program=PROGRAM)
    assert sorted((row["id"], row["variant"]) for row in rows) == sorted(
        (number, variant) for number in (2, 4) for variant in chosen.variants)
    assert {row["best"]["author"] for row in latest(rows, "no-planning")} == {"no-planning"}
    assert await run(options(tasks, ids="1/2,1/4", variants=chosen.variants, resume=True), program=PROGRAM) == rows


async def test_a_variant_that_needs_a_model_is_refused_without_one(tasks):
    with pytest.raises(ConfigError, match="--agent llm"):
        await run(options(tasks, variants=("no-contract",)), program=PROGRAM)


async def test_a_fresh_process_has_the_last_word(tasks):
    spoil(tasks, "1/2", "doubted")
    spoil(tasks, "1/4", "mute")
    said = []
    rows = by_key(await run(options(tasks), program=PROGRAM, on_line=said.append))
    assert rows["1/2"]["reverified"]["accepted"] is False
    assert any("NOT confirmed by a fresh process: numeric" in line for line in said)
    assert rows["1/4"]["reverified"]["accepted"] is None
    assert "status 5" in rows["1/4"]["reverified"]["reason"]


def driver(tasks, **changes):
    """The benchmark in a process of its own, to be killed."""
    code = ("import asyncio, pathlib, sys\n"
            "from engine.bench import provenance\n"
            "from engine.bench.run import BenchOptions, run\n"
            "provenance.text_digest = lambda: 'text'\n"
            f"options = BenchOptions(tasks=pathlib.Path({str(tasks)!r}), out=pathlib.Path({str(tasks.parent / 'out.jsonl')!r}),"
            f" device='none', python=sys.executable, commit='abc', **{changes!r})\n"
            f"asyncio.run(run(options, program={PROGRAM!r}, on_line=lambda line: print(line, flush=True)))\n")
    return subprocess.Popen([sys.executable, "-c", code], cwd=FAKE.parents[1], stdout=subprocess.PIPE, text=True)


def wait_for(what, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_kill_9_at_any_moment_costs_only_what_was_under_way(tasks):
    spoil(tasks, "3/6", "slow")
    bench = driver(tasks, parallel=2)
    try:
        wait_for(lambda: is_slow(tasks))
        below = descendants(bench.pid)
        assert below
    finally:
        bench.send_signal(signal.SIGKILL)
        bench.wait()
    # The stand-in sleeps in a blocking call; the real program's watcher ends it when its input ends.
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    before = {f"{row['level']}/{row['id']}" for row in read_rows(tasks.parent / "out.jsonl")}
    assert "3/6" not in before

    again = driver(tasks, parallel=2, resume=True)
    said, _ = again.communicate(timeout=100)

    rows = read_rows(tasks.parent / "out.jsonl")
    assert again.returncode == 0
    assert sorted(by_key(rows)) == sorted(f"{level}/{number}" for level, number in KEYS)
    assert len(rows) == 5, "no task has two results"
    assert sum("begins" in line for line in said.splitlines()) == 5 - len(before)
    text = (tasks.parent / "cache" / "runs" / by_key(rows)["3/6"]["run"] / "events.jsonl").read_text()
    assert text.count('"kind":"resumed"') == 1, "the run went on where it stood"
    assert text.count('"kind":"candidate"') == 3, "and made nothing twice"


def test_the_real_program_ends_with_all_it_started_when_the_benchmark_is_gone(tmp_path):
    """A process of the real program, cut off while its child works."""
    task = tmp_path / "task.py"
    task.write_text("import time\ntime.sleep(120)\n")
    request = {"what": "search", "variant": "full", "resume": None, "paired": True,
               "job": {"file": str(task), "name": "Model", "device": "none", "python": sys.executable}}
    process = subprocess.Popen(children.PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               env={**os.environ, "HIERA_CACHE": str(tmp_path / "cache")}, start_new_session=True)
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    wait_for(lambda: descendants(process.pid))
    below = descendants(process.pid)

    process.stdin.close()

    process.wait(timeout=60)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


def test_an_unwritable_result_file_is_an_error_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        ResultFile(tmp_path / "file" / "out.jsonl", resume=False)

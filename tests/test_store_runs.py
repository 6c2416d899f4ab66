"""The store: torn lines, kill -9, resume, caches, disks that cannot be written."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import ConfigError, ContractError, InputError
from engine.agents.scripted import ScriptedAgent
from engine.optimize import optimize
from engine.records import Candidate
from engine.store import EVENTS, Run, Store, evaluation_key
from engine.trajectory import Job, Note, Trajectory
from tests.fakes import NO_GPU, FakeEvaluator, FakeServices, contract_of, evaluation_of

ROOT = Path(__file__).parent.parent
CONTRACT = contract_of(["relu"])
KILLED = '''
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from engine.agents.scripted import ScriptedAgent
from engine.optimize import optimize
from engine.store import Store
from engine.trajectory import Job
from tests.fakes import FakeEvaluator, FakeServices, contract_of
contract = contract_of(["relu"])
agent = ScriptedAgent.of_sources(contract.id, {rounds!r})
asyncio.run(optimize(Job(file="model.py", rounds={n}, budget={budget}), agent=agent, store=Store(Path({cache!r})),
                     services=FakeServices(contract, FakeEvaluator(Path({log!r})))))
'''


def candidate(text: str = "x", **changes: object) -> Candidate:
    return Candidate(**{"id": "a" * 12, "source": text, "space": "cuda", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("wait_for", [1, 3, 5])
def test_kill_9_then_resume_repeats_and_loses_nothing(tmp_path, wait_for):
    rounds = [[f"// sleep 0.1 // us {50 - n} r{r}" for n in range(3)] for r in range(3)]
    log = tmp_path / "log"
    log.touch()
    code = KILLED.format(root=str(ROOT), rounds=rounds, n=3, budget=9, cache=str(tmp_path / "cache"), log=str(log))
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    store = Store(tmp_path / "cache")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # Wait until so many evaluations are on the disk, then kill.
        runs = list(store.runs())
        if runs and len(runs[0].trajectory.evaluations) >= wait_for:
            break
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = store.load("last")
    finished = set(before.evaluations)
    assert len(finished) >= wait_for
    assert before.stopped is None
    judged_before = len(log.read_text().split())

    import asyncio

    evaluator = FakeEvaluator(log)
    after = asyncio.run(optimize(
        Job(file="model.py", rounds=3, budget=9), agent=ScriptedAgent.of_sources(CONTRACT.id, rounds), store=store,
        services=FakeServices(CONTRACT, evaluator), resume=before.run))

    assert after.run == before.run
    assert len(after.evaluations) == len(after.candidates) == 9
    assert not finished & set(evaluator.judged), "a finished evaluation was repeated"
    # What was judged when the kill came may be in the cache without being in the record; it is taken from there.
    assert 9 - len(finished) - 2 <= len(evaluator.judged) <= 9 - len(finished)
    assert judged_before >= len(finished)
    assert [p.round for p in after.plans] == [1, 2, 3]
    assert store.load(before.run).evaluations == after.evaluations
    assert after.stopped.complete


def test_a_torn_last_line_is_cut_off(tmp_path):
    store = Store(tmp_path)
    run = store.new_run("x")
    run.append("note", Note(text="whole"))
    run.append("candidate", candidate())
    run.close()
    path = run.folder / EVENTS
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"note","at_s":1.0,"da')
    assert store.load(run.id).notes == ["whole"]
    again, trajectory = store.resume(run.id)
    again.append("note", Note(text="after"))
    again.close()
    assert trajectory.candidates[0].source == "x"
    assert store.load(run.id).notes == ["whole", "after"]
    assert path.read_bytes().startswith(whole)


def test_a_broken_line_in_the_middle_is_said_with_its_place(tmp_path):
    store = Store(tmp_path)
    run = store.new_run("x")
    run.append("note", Note(text="one"))
    run.append("note", Note(text="two"))
    run.close()
    path = run.folder / EVENTS
    path.write_text("not json\n" + path.read_text())
    with pytest.raises(ContractError, match=rf"{EVENTS}:1:"):
        store.load(run.id)


def test_two_processes_cannot_work_on_one_run(tmp_path):
    run = Store(tmp_path).new_run("x")
    with pytest.raises(ConfigError, match="another process"):
        Run(run.folder)
    run.close()
    Run(run.folder).close()


def test_sources_are_kept_as_files(tmp_path):
    run = Store(tmp_path).new_run("x")
    made = candidate("// ü\nint x;\n", reduced_source="// small\n")
    run.append("candidate", made)
    run.close()
    assert run.source_path(made.id).read_text() == made.source
    assert json.loads((run.folder / EVENTS).read_text())["data"]["source"] == ""
    assert Store(tmp_path).load(run.id).candidates == [made]


def test_runs_are_found_by_beginning_and_last(tmp_path):
    store = Store(tmp_path)
    first = store.new_run("one")
    first.close()
    assert store.find("last") == store.find(first.id) == store.find(first.id[:-2]) == first.folder
    with pytest.raises(InputError, match="no run"):
        store.find("1999")


def test_a_disk_that_cannot_be_written_is_a_config_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="HIERA_CACHE"):
        Store(tmp_path / "file").new_run("x")


async def test_a_disk_that_fills_up_costs_the_record_not_the_result(tmp_path, monkeypatch):
    real = os.fsync
    calls = iter(range(1000))

    def full(fd):
        if next(calls) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    trajectory = await optimize(
        Job(file="model.py", rounds=1, budget=2), agent=ScriptedAgent.of_sources(CONTRACT.id, [["// us 9", "// us 8"]]),
        store=Store(tmp_path), services=FakeServices(CONTRACT, FakeEvaluator()))
    assert trajectory.best.source == "// us 8"
    assert any("no longer stored" in note and "No space left" in note for note in trajectory.notes)


def test_evaluations_are_cached_by_everything_that_matters(tmp_path):
    store = Store(tmp_path)
    made = candidate()
    key = evaluation_key("c1", made, {"device": "A"})
    store.cache_evaluation(key, evaluation_of(made, us=5.0))
    found = Store(tmp_path).cached_evaluation(key)
    assert found.timing.median_us == 5.0
    assert found.cached
    others = [evaluation_key("c2", made, {"device": "A"}), evaluation_key("c1", made, {"device": "B"}),
              evaluation_key("c1", candidate("y"), {"device": "A"}),
              evaluation_key("c1", candidate(reduced_source="z"), {"device": "A"})]
    assert len({key, *others}) == 5
    assert [store.cached_evaluation(other) for other in others] == [None] * 4


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file")
    store.cache_evaluation("k", evaluation_of(candidate(), us=5.0))
    assert store.cached_evaluation("k") is None


def test_without_a_clock_an_estimate_ranks_only_beside_estimates():
    made = [Candidate(id=name, source=f"// {name}", space="cuda_libs_torch", round=1) for name in ("first", "second")]

    def ranked(*estimates):
        known = Trajectory(run="r", device=NO_GPU, candidates=list(made))
        for candidate, estimate in zip(made, estimates, strict=True):
            known.evaluations[candidate.id] = replace(evaluation_of(candidate), estimate_us=estimate)
        return [candidate.id for candidate in known.ranked()]

    assert ranked(20.0, 10.0) == ["second", "first"]
    # A library call cannot be estimated, which makes it no slower.
    assert ranked(None, 10.0) == ["first", "second"]

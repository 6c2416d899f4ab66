"""The command line: exit codes, JSON, one-line errors, progress, settings, Ctrl-C, pages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.errors import ToolError
from engine import local, requests
from engine.agents.scripted import ScriptedAgent
from engine.cli import main
from engine.cli.common import job_of
from engine.cli.parser import build
from engine.store import Store
from engine.trajectory import candidate_id
from tests.fakes import NO_GPU, FakeEvaluator, FakeServices, contract_of

ROOT = Path(__file__).parent.parent
CONTRACT = contract_of(["relu", "exp"])
ROUNDS = [["// us 50", "// us 20", "// wrong"], ["// us 25", "// us 40", "// unbuildable"]]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import torch\n")
    monkeypatch.setattr(requests, "_ours", lambda: "one version")  # Someone may edit us while tests run.
    return tmp_path / "cache"


@pytest.fixture
def faked(monkeypatch):
    """The loop's services and agent replaced; returns the evaluator."""
    evaluator = FakeEvaluator()

    class Services(FakeServices):
        def __init__(self) -> None:
            super().__init__(CONTRACT, evaluator)

        async def task(self, job, folder, device):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "groundtruth.py").write_text("reference\n")
            return await super().task(job, folder, device)

    monkeypatch.setattr(local, "LocalServices", Services)
    monkeypatch.setattr(local, "make_agent", lambda job: ScriptedAgent.of_sources(CONTRACT.id, ROUNDS))
    return evaluator


def test_optimize_writes_the_document_and_the_folder(faked, tmp_path, capsys):
    assert main(["optimize", "model.py", "--preset", "quick", "--json", "r.json", "--out", "out"]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["schema"] == 1
    assert set(found) >= {"contract", "device", "workload", "baseline", "candidates", "best", "measured", "stop_reason",
                          "wall_s", "first_verified_s", "llm"}
    best = next(c for c in found["candidates"] if c["id"] == found["best"])
    assert (best["speedup"], best["median_us"], best["stage"], best["rejected"]) == (5.0, 20.0, "confirmed", None)
    assert best["verification"]["checks"]["numeric"] == "pass"
    assert Path(best["source"]).read_text() == "// us 20" == (tmp_path / "out" / "cuda_source.cu").read_text()
    assert (tmp_path / "out" / "groundtruth.py").exists()
    assert {c["rejected_at"] for c in found["candidates"]} == {None, "verify", "build"}
    assert {key: found["llm"][key] for key in ("requests", "prompt_tokens", "completion_tokens")} == {
        "requests": 0, "prompt_tokens": 0, "completion_tokens": 0}
    assert found["measured"] is True
    said = capsys.readouterr()
    assert "5.00x" in said.out
    assert re.search(r"round 2/2 · 6/6 · best 5\.00x \(verified\) · direction M", said.err)


def test_json_on_stdout_is_only_json(faked, capsys):
    assert main(["optimize", "model.py", "--preset", "quick", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]


def test_a_repeated_request_answers_at_once_and_a_changed_file_does_not(faked, tmp_path, capsys):
    assert main(["optimize", "model.py", "--preset", "quick"]) == 0
    judged = len(faked.judged)
    started = time.process_time()
    assert main(["optimize", "model.py", "--preset", "quick"]) == 0
    assert time.process_time() - started < 1.0
    assert "answered from run" in capsys.readouterr().err
    assert len(list(Store().runs())) == 1
    (tmp_path / "model.py").write_text("import torch\nx = 1\n")
    assert main(["optimize", "model.py", "--preset", "quick"]) == 0
    assert main(["optimize", "model.py", "--preset", "quick", "--fresh"]) == 0
    assert len(list(Store().runs())) == 3
    wrong = candidate_id(CONTRACT.id, "// wrong")
    # A rejection by the judge is looked at again; everything else comes from the cache though the request is new.
    assert faked.judged[judged:] == [wrong, wrong]


def test_a_helper_that_the_file_imports_counts_as_part_of_the_request(faked, tmp_path):
    (tmp_path / "helper.py").write_text("x = 1\n")
    (tmp_path / "model.py").write_text("from helper import x\n")
    main(["optimize", "model.py", "--preset", "quick"])
    (tmp_path / "helper.py").write_text("x = 2\n")
    main(["optimize", "model.py", "--preset", "quick"])
    assert len(list(Store().runs())) == 2


def test_runs_show_report_and_resume_of_a_complete_run(faked, tmp_path, capsys):
    main(["optimize", "model.py", "--preset", "quick"])
    capsys.readouterr()
    assert main(["runs"]) == 0
    assert "best 5.00x (confirmed)" in capsys.readouterr().out
    assert main(["show", "last", "--json", "s.json"]) == 0
    shown = capsys.readouterr().out
    assert "direction M" in shown
    assert "check numeric: 7 of 8 elements differ" in shown
    assert json.loads((tmp_path / "s.json").read_text())["best"]
    assert main(["report", "last", "--html", "r.html"]) == 0
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "// us 20" in page
    assert not re.search(r"<script|https?://", page)
    assert main(["resume", "last"]) == 0
    assert "complete" in capsys.readouterr().err


def test_html_escapes_what_the_user_wrote(faked, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "make_agent", lambda job: ScriptedAgent.of_sources(
        CONTRACT.id, [["// us 5 </pre><script>alert(1)</script>"]]))
    main(["optimize", "model.py", "--rounds", "1"])
    main(["report", "last", "--html", "r.html"])
    assert "<script>" not in (tmp_path / "r.html").read_text()


def test_resume_with_a_larger_budget_goes_on(faked, capsys):
    main(["optimize", "model.py", "--rounds", "1", "--budget", "3"])
    assert len(Store().load("last").candidates) == 3
    assert main(["resume", "last", "--budget", "6"]) == 0
    trajectory = Store().load("last")
    assert len(trajectory.candidates) == 6
    assert trajectory.stopped.complete


def test_without_a_gpu_the_text_claims_nothing(faked, monkeypatch, capsys):
    class Services(FakeServices):
        def __init__(self) -> None:
            super().__init__(CONTRACT, FakeEvaluator(gpu=False), device=NO_GPU)

    monkeypatch.setattr(local, "LocalServices", Services)
    assert main(["optimize", "model.py", "--preset", "quick", "--json", "r.json"]) == 0
    said = capsys.readouterr().out
    assert "no speed-up is claimed" in said
    assert not re.search(r"\d\.\d+x", said)
    found = json.loads(Path("r.json").read_text())
    assert found["measured"] is False
    assert {c["speedup"] for c in found["candidates"]} == {None}
    assert found["baseline"] == {"eager_us": None, "compile_us": None, "compile_mode": None, "compile_s": None,
                                 "graph_us": None}


def test_what_stood_in_the_output_folder_is_kept_beside_it(faked, tmp_path, capsys):
    run = ["optimize", "model.py", "--preset", "quick", "--fresh", "--out", "out"]
    assert main(run) == 0
    assert main(run) == 0
    names = {"cuda_source.cu", "groundtruth.py"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names, "the same text again is no change"
    kernel = tmp_path / "out" / "cuda_source.cu"
    kernel.write_text("// us 50")
    assert main(run) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == names, "what a run keeps need not be kept twice"
    for text in ("// my own work", "// and more"):
        kernel.write_text(text)
        capsys.readouterr()
        assert main(run) == 0
    assert "cuda_source.cu was another one: kept as cuda_source.2.cu" in capsys.readouterr().err
    assert kernel.read_text() == "// us 20"
    assert [kernel.with_name(f"cuda_source.{n}.cu").read_text() for n in (1, 2)] == ["// my own work", "// and more"]


@pytest.mark.parametrize(("argv", "said"), [
    (["bench", "tasks.jsonl"], "add --out FILE.jsonl"),
    (["optimize", "nothing.py"], r"nothing\.py: there is no such file"),
    (["optimize", "notes.txt"], r"notes\.txt: a \.txt cannot be optimised"),
    (["optimize", "model.py::"], "no name after"),
    (["optimize", "folder"], "no contract folder"),
    (["optimize", "model.py", "--json", "nowhere/x.json"], "its folder does not exist"),
    (["optimize", "model.py", "--out", "full"], "not a contract folder"),
    (["optimize", "model.py", "--planning", "nowhere"], "planning folder does not exist"),
    (["show", "never"], "no run under"),
    (["resume", "never"], "no run under"),
    (["evaluate", "model.py"], "no contract folder"),
    (["evaluate", "made"], r"cuda_source\.cu: there is no such candidate"),
])
def test_bad_input_is_one_line_with_the_way_out(faked, tmp_path, capsys, argv, said):
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "groundtruth.py").write_text("")
    assert main(argv) == 2
    error = capsys.readouterr().err.strip()
    assert re.search(said, error)
    assert error.startswith("hiera: ")
    assert "(to fix: " in error
    assert "\n" not in error


@pytest.mark.parametrize("argv", [
    ["optimize"], ["optimize", "model.py", "--budget", "0"], ["optimize", "model.py", "--preset", "huge"],
    ["optimize", "model.py", "--seconds", "nan"], ["fly"], [],
])
def test_bad_arguments_end_with_status_2(argv, capsys):
    assert main(argv) == 2
    assert "usage: hiera" in capsys.readouterr().err


def test_an_error_from_within_is_one_line_too(faked, monkeypatch, capsys):
    class Services(FakeServices):
        def __init__(self) -> None:
            super().__init__(CONTRACT, FakeEvaluator())

        async def device(self, job):
            raise ToolError("nvcc 11 does not fit torch's CUDA 13", hint="install nvcc 13")

    monkeypatch.setattr(local, "LocalServices", Services)
    assert main(["optimize", "model.py"]) == 2
    assert capsys.readouterr().err.strip() == "hiera: nvcc 11 does not fit torch's CUDA 13 (to fix: install nvcc 13)"


def test_a_fault_of_ours_is_a_line_not_a_stack(faked, monkeypatch, capsys):
    monkeypatch.setattr(local, "make_agent", lambda job: 1 / 0)
    assert main(["optimize", "model.py"]) == 2
    error = capsys.readouterr().err
    assert "internal error: ZeroDivisionError" in error
    assert "Traceback" not in error


def test_a_cache_that_cannot_be_written_is_said(faked, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "file"))
    assert main(["optimize", "model.py"]) == 2
    assert "HIERA_CACHE" in capsys.readouterr().err


def test_settings_come_from_files_below_flags(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.hiera]\npreset = "deep"\nspace = "cuda"\n')
    (tmp_path / "hiera.toml").write_text('preset = "quick"\nplanning = "notes"\n[budget]\ncandidates = 7\n')
    job = job_of(build().parse_args(["optimize", "model.py::Net", "--budget", "9"]))
    assert (job.name, job.preset, job.space, job.budget) == ("Net", "quick", "cuda", 9)
    assert job.planning == (str(tmp_path / "notes"),)


@pytest.mark.parametrize(("text", "said"), [
    ('preset = "huge"', "use one of quick, normal, deep"), ("[budget]\ncandidates = -1", "whole number"),
    ("x = ", "cannot be read"), ('confirm = "yes"', "true or false"),
])
def test_bad_settings_name_their_file(tmp_path, capsys, text, said):
    (tmp_path / "hiera.toml").write_text(text)
    assert main(["optimize", "model.py"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert str(tmp_path / "hiera.toml") in error


INTERRUPTED = '''
import sys
sys.path.insert(0, {root!r})
from engine import local, requests
from engine.agents.scripted import ScriptedAgent
from engine.cli import main
from tests.fakes import FakeEvaluator, FakeServices, contract_of
contract = contract_of(["relu"])
local.LocalServices = lambda: FakeServices(contract, FakeEvaluator())
local.make_agent = lambda job: ScriptedAgent.of_sources(contract.id, [["// us 40", "// sleep 100"]])
sys.exit(main(["optimize", "model.py", "--rounds", "1", "--json", "r.json"]))
'''


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_the_best_and_ends_within_seconds(tmp_path, number):
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED.format(root=str(ROOT))], cwd=tmp_path, text=True,
                               stderr=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ})
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "2.50x" in line:
            break
    assert process.poll() is None, "".join(lines)
    started = time.perf_counter()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert time.perf_counter() - started < 30  # Less than a second on an idle core; the job would go on for minutes.
    assert process.returncode == 130
    assert "2.50x" in out
    assert "hiera resume" in err
    assert "Traceback" not in err
    assert json.loads((tmp_path / "r.json").read_text())["stop_reason"] == "cancelled"


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hiera ")

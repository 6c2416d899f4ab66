"""`hiera evaluate` and `hiera profile` on several candidates: one that cannot be read or judged costs itself only."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from contracts.errors import ToolError
from engine import local
from engine.cli import main
from tests.evaluate_harness import softmax_contract
from tests.fakes import FakeEvaluator, FakeServices, contract_of

CONTRACT = contract_of(["relu", "exp"])
TEXTS = {"fast.cu": "// us 20", "slow.cu": "// us 90", "wrong.cu": "// wrong", "broken.cu": "// unbuildable"}


@pytest.fixture
def faked(tmp_path, monkeypatch):
    evaluator = FakeEvaluator()
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "LocalServices", lambda: FakeServices(CONTRACT, evaluator))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "groundtruth.py").write_text("")
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.cu").write_bytes(b"\x7fELF\xff\xfe\x00")
    (tmp_path / "folder.cu").mkdir()
    return evaluator


def given(*names):
    return [word for name in names for word in ("--candidate", name)]


def test_an_unreadable_candidate_costs_only_itself(faked, capsys):
    status = main(["evaluate", "made", *given("binary.cu", "fast.cu", "folder.cu", "nowhere.cu", "wrong.cu"),
                   "--json", "r.json"])
    said = capsys.readouterr().out.splitlines()
    assert status == 2
    assert said[0] == "binary.cu: the candidate is not UTF-8 text"
    assert said[1].startswith("fast.cu: accepted (gpu) in space cuda_libs_torch, 20 us, 5.00x")
    assert said[2].startswith("folder.cu: the candidate cannot be read: Is a directory")
    assert said[3] == "nowhere.cu: there is no such candidate"
    assert said[4].startswith("wrong.cu: rejected in space cuda_libs_torch at verify: check numeric")
    found = {c["title"]: c for c in json.loads(Path("r.json").read_text())["candidates"]}
    assert found["binary.cu"]["rejected_at"] == "read"
    assert found["fast.cu"]["speedup"] == pytest.approx(5.0)
    assert len(faked.judged) == 2


def test_nothing_to_judge_at_all_is_one_line(faked, capsys):
    assert main(["evaluate", "made", *given("binary.cu", "nowhere.cu")]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("hiera: binary.cu: the candidate is not UTF-8 text (to fix: ")
    assert "\n" not in error


def test_exit_status_says_accepted_or_rejected(faked):
    assert main(["evaluate", "made", *given("fast.cu", "slow.cu")]) == 0
    assert main(["evaluate", "made", *given("fast.cu", "broken.cu")]) == 1


def test_a_compilers_error_names_the_candidates_own_file(faked, capsys):
    main(["evaluate", "made", *given("broken.cu")])
    said = capsys.readouterr().out
    assert "at build: broken.cu:1: no such type" in said
    assert "cuda_source.cu" not in said


def test_candidates_are_judged_side_by_side(faked, tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.cu").write_text(f"// sleep 0.2\n// us {number + 10}")
    assert main(["evaluate", "made", *given(*(f"{number}.cu" for number in range(6)))]) == 0
    assert faked.most_running == 6


def test_the_same_text_twice_is_judged_once_and_equal_names_are_told_apart(faked, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "fast.cu").write_text("// us 30")
    shutil.copy("slow.cu", "copy.cu")
    assert main(["evaluate", "made", *given("fast.cu", "other/fast.cu", "slow.cu", "copy.cu"), "--json", "r.json"]) == 0
    said = capsys.readouterr().out
    assert "other/fast.cu: accepted" in said
    assert len(faked.judged) == 3
    assert json.loads(Path("r.json").read_text())["notes"] == ["copy.cu has the same text as slow.cu"]


def test_the_space_is_the_one_asked_for(faked, capsys):
    assert main(["evaluate", "made", *given("fast.cu"), "--space", "cuda"]) == 0
    assert "accepted (gpu) in space cuda, " in capsys.readouterr().out


def test_profile_takes_several(faked, capsys):
    assert main(["profile", "made", *given("fast.cu", "slow.cu", "wrong.cu")]) == 1
    said = capsys.readouterr().out
    assert said.count("counters measured (ncu fake)") == 2
    assert "wrong.cu: rejected" in said
    assert len(faked.profiled_ids) == 2


def test_a_machine_that_cannot_judge_is_one_line(faked, monkeypatch, capsys):
    async def broken(_contract, _candidate):
        raise ToolError("no nvcc", hint="install it")

    monkeypatch.setattr(faked, "evaluate", broken)
    assert main(["evaluate", "made", *given("fast.cu", "slow.cu")]) == 2
    assert capsys.readouterr().err.strip() == "hiera: no nvcc (to fix: install it)"
    assert faked.closed


HONEST = """#include <torch/extension.h>
__global__ void rows(const float* x, float* y, int n) {
  const float* in = x + blockIdx.x * (size_t)n; float* out = y + blockIdx.x * (size_t)n;
  if (threadIdx.x) return;
  float top = in[0]; bool bad = false;
  for (int i = 0; i < n; ++i) { bad |= isnan(in[i]); top = fmaxf(top, in[i]); }
  float sum = 0.f;
  for (int i = 0; i < n; ++i) sum += expf(in[i] - top);
  for (int i = 0; i < n; ++i) out[i] = bad ? NAN : expf(in[i] - top) / sum;
}
torch::Tensor honest(torch::Tensor x) {
  auto y = torch::empty_like(x);
  rows<<<x.size(0), 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(1));
  return y;
}
"""


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_hand_written_folder_and_several_candidates_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "softmax"
    folder.mkdir()
    _contract, truth = softmax_contract()
    (folder / "groundtruth.py").write_text(truth)
    (folder / "cpp_source.cpp").write_text("torch::Tensor honest(torch::Tensor x);\n")
    (folder / "cuda_source.cu").write_text(HONEST)
    Path("zeros.cu").write_text(HONEST.replace("expf(in[i] - top) / sum", "0.f"))
    Path("typo.cu").write_text(HONEST.replace("float sum = 0.f;", "flaot sum = 0.f;"))
    Path("binary.cu").write_bytes(b"\xff\xfe")
    status = main(["evaluate", "softmax", *given("softmax/cuda_source.cu", "zeros.cu", "typo.cu", "binary.cu"),
                   "--device", "none", "--python", sys.executable])
    said = capsys.readouterr().out
    assert status == 2
    assert "cuda_source.cu: accepted (cpu emulation" in said
    assert "times fp32's own" in said
    assert "zeros.cu: rejected in space cuda_libs_torch at verify" in said
    assert "typo.cu: rejected in space cuda_libs_torch at build: " in said
    assert "  line 7: " in said
    assert "binary.cu: the candidate is not UTF-8 text" in said

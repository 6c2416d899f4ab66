"""The doctor on machines with and without things."""

import sys
from types import SimpleNamespace

import pytest

from engine import devices, doctor
from engine.evaluate import sandbox
from tests.fake_nvml import CARD, library, say  # noqa: F401 - fixtures.
from tests.test_devices_find import H200

# ruff: noqa: F811 - fixtures come by import.


@pytest.fixture(autouse=True)
def no_driver(monkeypatch, tmp_path):
    async def answer():
        return {"devices": [], "driver": "", "problem": "no NVIDIA driver: libcuda.so.1 is missing"}

    monkeypatch.setattr(devices, "query_driver", answer)
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HIERA_MODEL"):
        monkeypatch.delenv(name, raising=False)


def tool(path, script):
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(0o755)
    return str(path)


async def test_everything_is_looked_at_and_named_once():
    findings = await doctor.run(sys.executable)
    names = [finding.name for finding in findings]
    assert len(names) == len(set(names))
    assert {"GPU", "nvcc", "g++", "interpreter", "torch", "ncu and counters", "compute-sanitizer", "bubblewrap",
            "seccomp, Landlock", "cache", "language model"} <= set(names)
    found = {finding.name: finding for finding in findings}
    assert found["GPU"].status == "warn"
    assert "libcuda" in found["GPU"].detail
    assert found["cache"].status == "ok"
    assert all(finding.fix for finding in findings if finding.status == "missing")


async def test_the_sandbox_is_named_for_builds_and_candidates(monkeypatch):
    monkeypatch.setattr(sandbox, "_known", [sandbox.Isolation("landlock and seccomp", "landlock")])
    monkeypatch.setattr(sandbox, "_candidates", {False: (False, "bwrap: No permissions"), True: (True, "")})
    finding = await doctor._bubblewrap(cuda=False)
    assert finding.status == "warn"
    assert "builds run in landlock and seccomp" in finding.detail
    assert "candidates with seccomp, Landlock and limits alone: bwrap: No permissions" in finding.detail
    assert finding.fix
    assert (await doctor._bubblewrap(cuda=True)).status == "ok"


def test_the_management_library_says_what_it_can_tell(say):
    found = {"devices": [{**H200, "pci": ""}], "driver": "580.1"}
    assert "SM clock 1980 MHz" in doctor._management_library(found).detail
    assert "watched as a whole" in doctor._management_library(found).detail
    say(CARD + "process 1 1000\n")
    assert doctor._management_library(found).detail == "SM clock 1980 MHz, memory by process"
    away = {"devices": [{**H200, "pci": "0000:99:00.0"}], "driver": "580.1"}
    assert doctor._management_library(away).status == "warn"


async def test_an_interpreter_without_torch_is_named_with_its_path(tmp_path):
    fake = tool(tmp_path / "python", 'case "$*" in *find_spec*) exit 1;; esac; exit 1')
    found = {f.name: f for f in await doctor.run(fake)}
    assert found["interpreter"].status == "missing"
    assert fake in found["interpreter"].detail
    assert doctor.exit_status(tuple(found.values())) == 1


async def test_a_torch_that_does_not_import_is_missing(tmp_path):
    fake = tool(tmp_path / "python", 'echo "ImportError: libcudart.so.13: no such file" >&2; exit 1')
    (finding,) = await doctor._torch(fake, has_gpu=False)
    assert finding.status == "missing"
    assert "libcudart.so.13" in finding.detail
    assert fake in finding.detail


async def test_a_cpu_torch_on_a_gpu_machine_is_missing(tmp_path):
    said = '{"version": "2.13.0+cpu", "cuda": null, "path": "/x/torch/__init__.py", "available": false}'
    fake = tool(tmp_path / "python", f"echo '{said}'")
    (finding,) = await doctor._torch(fake, has_gpu=True)
    assert finding.status == "missing"
    assert "does not see the GPU" in finding.detail
    (finding,) = await doctor._torch(fake, has_gpu=False)
    assert finding.status == "ok"


NCU = [
    ('echo \'"0","1","k","smsp__inst_executed.sum","inst","4"\'', "ok", "counters of a test kernel were read"),
    ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1", "warn", "ERR_NVGPUCTRPERM"),
    ("echo '==ERROR== Failed to initialize the profiler: LibraryNotLoaded'; exit 1", "warn", "LibraryNotLoaded"),
]


@pytest.mark.parametrize(("script", "status", "words"), NCU, ids=[row[2] for row in NCU])
async def test_counters_are_really_tried(tmp_path, script, status, words):
    finding = await doctor._try_ncu(tool(tmp_path / "ncu", script), "/bin/true", "", tmp_path)
    assert finding.status == status
    assert words in finding.detail
    assert (finding.fix == "") == (status == "ok")


async def test_the_counter_test_ends_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "COUNTER_TEST_S", 0.3)
    finding = await doctor._try_ncu(tool(tmp_path / "ncu", "sleep 60"), "/bin/true", "", tmp_path)
    assert finding.status == "warn"
    assert "0.3 s" in finding.detail


async def test_a_wrong_nvcc_says_what_to_install():
    from engine.toolchain import Toolchain

    toolchain = Toolchain(python="p", python_version="3.12", python_include="", ext_suffix="", torch_dir="/t",
                          torch_cuda="12.8", nvcc="/usr/bin/nvcc", nvcc_version="13.0",
                          nvcc_problem="nvcc 13.0 does not fit torch, which was built with CUDA 12.8", gxx="/usr/bin/g++")
    found = {f.name: f for f in await doctor._compilers(toolchain, has_gpu=True)}
    assert found["nvcc"].status == "missing"
    assert "12.x" in found["nvcc"].fix
    assert found["g++"].status == "ok"


def test_a_full_or_read_only_cache_is_told(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("HIERA_CACHE", str(blocked / "cache"))
    assert doctor._cache().status == "missing"
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert doctor._cache().status == "warn"


async def test_the_model_is_shown_without_its_key(monkeypatch, tmp_path):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HIERA_MODEL"):
        monkeypatch.delenv(name, raising=False)
    assert "built-in expert" in (await doctor._model(tmp_path)).detail
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    assert (await doctor._model(tmp_path)).status == "warn"
    monkeypatch.setenv("HIERA_MODEL", "some-model")
    finding = await doctor._model(tmp_path)
    assert finding.status == "ok"
    assert "some-model at http://localhost:8000/v1" in finding.detail
    assert "with the key in OPENAI_API_KEY" in finding.detail
    assert "secret" not in finding.detail
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:pass@localhost:8000/v1")
    finding = await doctor._model(tmp_path)
    assert finding.status == "warn"
    assert "pass" not in finding.detail


def test_an_unknown_card_is_a_warning():
    answer = {"devices": [{**H200, "name": "NVIDIA Something"}], "driver": "1", "problem": ""}
    assert doctor._gpu(answer).status == "warn"
    assert doctor._gpu({**answer, "devices": [H200]}).status == "ok"

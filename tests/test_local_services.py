"""What the local services begin while the contract is still being made."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from contracts.errors import InputError, ToolError
from engine import local
from engine.evaluate import session
from engine.evaluate.build import Builder
from engine.example_inputs import InputScript
from engine.extract import extract
from engine.toolchain import Toolchain
from engine.trajectory import Job
from tests.fakes import GPU, NO_GPU, WORKLOAD, contract_of

TOOLCHAIN = Toolchain(python="python", python_version="3.12.0", python_include="", ext_suffix=".so", nvcc="nvcc")
CONTRACT = contract_of(["relu"])
JOB = Job(file="model.py")


class NoProcesses:
    """Stands for `Prestarted`."""

    def __init__(self, python: str, device: str, *, shares: bool) -> None:
        self.shares, self.closed = shares, False

    def take(self, role: str) -> str | None:
        return f"warm {role}" if role == "shares" and self.shares else None

    async def close(self) -> None:
        self.closed = True


class NoEvaluator:
    """Stands for `LocalEvaluator`; notes what it was given."""

    def __init__(self, toolchain, device, contract, folder, builder, **_kwargs) -> None:
        self.builder = builder

    def begin(self) -> None:
        pass


@pytest.fixture
def services(monkeypatch, tmp_path):
    """The local services without processes, where extraction ends when the shared parts are begun."""
    services = local.LocalServices()
    services.begun, services.reached, services.ended = [], asyncio.Event(), asyncio.Event()

    async def begin(builder):
        services.begun.append(builder)
        services.reached.set()
        try:
            await asyncio.sleep(60)
        finally:
            services.ended.set()

    async def extract(*_args, out, **_kwargs):
        await asyncio.wait_for(services.reached.wait(), 5)
        return SimpleNamespace(contract=CONTRACT, folder=out, reduced=None, reduced_folder=None, reduced_reason="")

    async def find_toolchain(_python):
        return TOOLCHAIN

    monkeypatch.setattr(Builder, "begin", begin)
    for name, stand_in in {"Prestarted": NoProcesses, "LocalEvaluator": NoEvaluator, "extract": extract,
                           "find_toolchain": find_toolchain, "find_python": lambda *_: ("python", "test"),
                           "cache_root": lambda: tmp_path}.items():
        monkeypatch.setattr(local, name, stand_in)
    return services


async def evaluator_of(services, tmp_path):
    task = await services.task(JOB, tmp_path / "contract", NO_GPU)
    return await services.evaluator(JOB, task, NO_GPU, WORKLOAD, lambda _text: None)


async def test_shared_parts_are_begun_during_the_extraction_by_the_builder_that_candidates_use(services, tmp_path):
    evaluator = await evaluator_of(services, tmp_path)
    assert services.begun == [evaluator.inner.builder]
    await services.close()
    assert services.ended.is_set()


async def test_a_job_that_fails_early_leaves_nothing_running(services, tmp_path, monkeypatch):
    wait_for_begin = local.extract

    async def unreadable(*args, **kwargs):
        await wait_for_begin(*args, **kwargs)
        raise InputError("the module cannot be read", hint="correct it")

    monkeypatch.setattr(local, "extract", unreadable)
    with pytest.raises(InputError):
        await services.task(JOB, tmp_path / "contract", NO_GPU)
    prestarted = services._prestarted
    await services.close()
    assert services.ended.is_set()
    assert prestarted.closed


async def test_the_probe_begins_while_the_device_is_asked(services, tmp_path, monkeypatch):
    begun, closed, given = [], [], []

    class NoProbe:
        def __init__(self, _python, file):
            self.file = file

        def begin(self):
            begun.append(self)

        async def close(self):
            closed.append(self)

    async def find_device(_choice):
        await services.reached.wait()
        return NO_GPU

    wait_for_begin = local.extract

    async def extract(*args, probe, **kwargs):
        given.append(probe)
        return await wait_for_begin(*args, **kwargs)

    for name, stand_in in {"Probe": NoProbe, "find_device": find_device, "extract": extract}.items():
        monkeypatch.setattr(local, name, stand_in)
    device = await asyncio.wait_for(services.device(JOB), 5)
    assert len(begun) == 1
    await services.task(JOB, tmp_path / "contract", device)
    assert given == begun
    await services.close()
    assert closed == begun

    services.reached.clear()
    await services.device(replace(JOB, file="kernel.cu"))  # Waits for what all tasks share.
    await services.close()
    assert len(begun) == 1


async def test_trouble_with_the_shared_parts_waits_for_whoever_needs_them(services, tmp_path, monkeypatch):
    async def broken(builder):
        services.begun.append(builder)
        services.reached.set()
        raise ToolError("no C++ compiler was found", hint="install g++")

    monkeypatch.setattr(Builder, "begin", broken)
    assert (await evaluator_of(services, tmp_path)).inner.builder is services.begun[0]
    await services.close()


async def test_a_missing_tool_is_told_when_evaluation_is_prepared(services, tmp_path, monkeypatch):
    async def missing(_python):
        services.reached.set()
        raise ToolError("the interpreter cannot be run", hint="choose another one")

    monkeypatch.setattr(local, "find_toolchain", missing)
    task = await services.task(JOB, tmp_path / "contract", NO_GPU)
    with pytest.raises(ToolError):
        await services.evaluator(JOB, task, NO_GPU, WORKLOAD, lambda _text: None)
    await services.close()


async def test_shares_are_measured_by_the_process_that_started_with_the_job(services, tmp_path, monkeypatch):
    async def measure_shares(worker, **_kwargs):
        return worker, ""

    monkeypatch.setattr(local, "measure_shares", measure_shares)
    task = await services.task(JOB, tmp_path / "contract", GPU)
    assert await services.shares(JOB, task, GPU, WORKLOAD) == ("warm shares", "")
    await services.close()


async def test_processes_that_nobody_took_are_ended_with_their_folder(monkeypatch):
    ended = []

    class NoWorker:
        def __init__(self, role, **_kwargs):
            self.role = role

        async def call(self, kind, **_fields):
            await asyncio.sleep(60)

        async def close(self):
            ended.append(self.role)

    monkeypatch.setattr(session, "Worker", NoWorker)
    prestarted = session.Prestarted("python", "cpu", shares=True)
    assert prestarted.take("candidate").role == "candidate"
    assert prestarted.take("candidate") is None
    await prestarted.close()
    assert ended == ["judge", "shares"]
    assert not prestarted.folder.exists()

    prestarted = session.Prestarted("python", "cpu", shares=False)
    prestarted.take("judge")
    await prestarted.close()
    assert ended == ["judge", "shares", "candidate"]
    prestarted.folder.rmdir()


@pytest.mark.parametrize(("shapes", "kept"), [(1, False), (2, True)])
async def test_a_folder_whose_reduced_sizes_are_the_real_ones_is_verified_as_it_is(tmp_path, monkeypatch, shapes, kept):
    given = tmp_path / "given"
    given.mkdir()
    real, small = contract_of(["relu"], shape=(4, 8 * shapes)), contract_of(["relu"], shape=(4, 8))

    async def read(folder, *, python):
        return SimpleNamespace(contract=real, reduced=small, reduced_folder=folder / "reduced")

    monkeypatch.setattr(local, "read_folder", read)
    task = await local._of_folder(Job(file=str(given)), given, tmp_path / "run", sys.executable)
    assert (task.reduced is not None, task.reduced_folder is not None) == (kept, kept)


async def test_a_script_of_example_inputs_that_is_not_there_is_named(tmp_path):
    (tmp_path / "net.py").write_text("import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n")
    script = InputScript(tmp_path / "none.py", "")
    with pytest.raises(InputError, match="no such file with example inputs") as raised:
        await extract(tmp_path / "net.py", "Net", out=tmp_path / "out", python=sys.executable, inputs=script)
    assert raised.value.file == str(script.file)


@pytest.mark.parametrize(("small", "reason", "note"), [
    (contract_of(["relu"], shape=(8, 16)), "width: 4096 becomes 16",
     "without a GPU the module is checked at smaller sizes: width: 4096 becomes 16"),
    (None, "no smaller sizes were found", "without a GPU: no smaller sizes were found")])
async def test_sizes_that_were_made_smaller_are_told_in_a_sentence(services, tmp_path, monkeypatch, small, reason, note):
    async def extract(*_args, out, **_kwargs):
        return SimpleNamespace(contract=CONTRACT, folder=out, reduced=small, reduced_folder=out, reduced_reason=reason)

    monkeypatch.setattr(local, "extract", extract)
    task = await services.task(JOB, tmp_path / "contract", NO_GPU)
    await services.close()
    assert task.notes == (note,)

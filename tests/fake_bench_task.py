"""A stand-in for a task's process: it writes a real run folder, and the task's text decides what goes wrong."""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contracts import codec
from engine.devices import target_device
from engine.records import Candidate, Check, Evaluation, Failure, Plan, Score, Timing, Verification
from engine.store import Store
from engine.trajectory import Job, Note, Stopped

CHECKS = tuple(Check(name=name, status="pass")
               for name in ("outputs", "numeric", "inputs untouched", "fresh inputs", "poison"))
GPU = replace(target_device(), kind="cuda")
SPEEDUPS = (1.0, 2.5, 1.2)
HERE = ("CUDA_VISIBLE_DEVICES", "TMPDIR", "HIERA_CACHE")


def evaluation(identity, speedup, *, strict=True):
    accepted = Verification(match=True, strict=strict, kernelbench=True, checks=CHECKS, where="gpu")
    timing = Timing(candidate_us=(25.0 / speedup,), reference_us=(25.0,), speedup=speedup,
                    ci95=(speedup * 0.98, speedup * 1.02), speedup_vs_compile=1.1, compile_ci95=(0.9, 1.2))
    return Evaluation(candidate_id=identity, stage="timed", verification=accepted, timing=timing)


def send(**message):
    print(json.dumps(message), flush=True)


def main():
    request = json.loads(sys.stdin.readline())
    code = Path(request["file"] if request["what"] == "check" else request["job"]["file"]).read_text()
    if request["what"] == "check":
        best = Store().load(request["run"]).best.id
        if "mute" in code:
            sys.exit(5)
        doubted = "doubted" in code
        send(checked={"reverified": {"id": best, "accepted": not doubted, "reason": "numeric" if doubted else None},
                      "kernelbench": {"valid": True, "speedup": 2.4, "runs": 100}})
        return
    if "crash" in code:
        send(failed="internal error: ZeroDivisionError: our fault")
        sys.exit(3)
    store = Store()
    if request["resume"]:
        run, trajectory = store.resume(request["resume"])
        run.append("resumed", Note(text="resumed"))
        known = {c.id for c in trajectory.candidates}
    else:
        run, known = store.new_run("fake"), set()
    job = codec.from_data(request["job"], Job)
    send(run=str(run.folder))
    if not known:
        run.append("job", job)
        run.append("device", GPU)
        run.append("note", Note(text=json.dumps({key: os.environ.get(key) for key in HERE})))
        run.append("plan", Plan(round=1, space="cuda", space_reason="", direction="M", reason="",
                                scores={code: Score(value=5.0, reason="") for code in "CPMRT"}))
    if "meet" in code:
        meet(Path(job.file).parent.parent)
    for number, speedup in enumerate(SPEEDUPS):
        identity = f"c{number}"
        if identity in known:
            continue
        run.append("candidate", Candidate(id=identity, source="", space="cuda", direction="M" if number else "",
                                          author=request["variant"]))
        failed = Evaluation(candidate_id=identity, stage="built",
                            failure=Failure(stage="verify", reason="check numeric failed"))
        run.append("evaluation", failed if "wrong" in code else evaluation(identity, speedup, strict=number != 1))
        if "slow" in code and not known:
            run.append("note", Note(text="now it is slow"))
            time.sleep(300)
    if "deaf" in code:
        time.sleep(300)
    if "hang" in code:
        sys.stdin.readline()
        run.append("stopped", Stopped(reason="cancelled", complete=False))
        return
    if "died" in code:
        os.kill(os.getpid(), signal.SIGSEGV)
    run.append("stopped", Stopped(reason="budget: 3 candidates made" if "cut" in code else "all 3 rounds done"))


def meet(folder):
    """Go on only when another task is there at the same time."""
    (folder / f"here-{os.getpid()}").touch()
    deadline = time.monotonic() + 60
    while len(list(folder.glob("here-*"))) < 2:
        assert time.monotonic() < deadline, "nobody else came"
        time.sleep(0.02)


if __name__ == "__main__":
    main()

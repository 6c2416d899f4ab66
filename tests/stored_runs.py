"""Writes runs into a store, for tests of an editor's views: `stored_runs.py CACHE FILE SYMBOL`. Nothing was measured.

The newest is at work nowhere and was interrupted; the others ended, with a GPU and without one, with a model and without.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.store import Run
from engine.trajectory import Exchange
from tests import report_runs as records


def write(root: Path, name: str, events: list[tuple[str, object]], file: Path, symbol: str) -> Path:
    """A run folder as the loop writes it."""
    run = Run(root / "runs" / name)
    for kind, value in events:
        run.append(kind, replace(value, file=str(file), name=symbol) if kind == "job" else value)
    run.close()
    return run.folder


def main() -> None:
    cache, file, symbol = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    measured = records.measured_events()
    made = next(value for kind, value in measured if kind == "candidate")
    measured.insert(-1, ("exchange", Exchange(id="e1", about="oa", round=1, candidate=made.id, messages=(
        ("system", "You write CUDA."), ("user", "Write the whole file."), ("assistant", "title: idea 0")))))
    write(cache, "20260101-101500-Measured-0001", measured, file, symbol)
    write(cache, "20260102-101500-Unmeasured-0002", records.unmeasured_events(), file, symbol)
    write(cache, "20260103-101500-Rejected-0003", records.measured_events((None, None)), file, symbol)
    write(cache, "20260104-101500-Interrupted-0004", records.measured_events()[:8], file, symbol)


if __name__ == "__main__":
    main()

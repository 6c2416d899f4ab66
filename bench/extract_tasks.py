"""How many KernelBench-format tasks yield a contract, and how fast: `python bench/extract_tasks.py TASKS.jsonl`.

One line a task on stdout, a summary at the end; `--json` keeps everything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contracts.errors import HieraError
from contracts.tensors import TensorSpec
from engine.extract import extract


async def one(task: dict[str, Any], folder: Path, *, python: str, reduce: bool) -> dict[str, Any]:
    """Extract one task and describe what came out."""
    file = folder / f"level{task['level']}_{task['id']}.py"
    file.write_text(task["code"], encoding="utf-8")
    begin = time.monotonic()
    row: dict[str, Any] = {"level": task["level"], "id": task["id"], "name": task["name"]}
    try:
        found = await extract(file, None, out=folder / file.stem, python=python, reduce=reduce)
    except HieraError as error:
        return {**row, "ok": False, "reason": error.message(), "seconds": time.monotonic() - begin}
    contract = found.contract
    assert contract.graph is not None
    row |= {
        "ok": True, "seconds": time.monotonic() - begin, "nodes": len(contract.graph.nodes),
        "operators": sorted({node.op for node in contract.graph.nodes}), "mode": contract.mode,
        "bytes": total([a.tensor for a in contract.arguments if a.tensor is not None]),
        "free_groups": len(contract.free_dims), "notes": contract.notes,
        "reduced": found.reduced is not None, "reduced_reason": found.reduced_reason,
    }
    if found.reduced is not None:
        row["reduced_bytes"] = total([a.tensor for a in found.reduced.arguments if a.tensor is not None])
    return row


def total(specs: list[TensorSpec]) -> int:
    """Bytes of all tensors."""
    return sum(spec.size_bytes for spec in specs)


async def run(arguments: argparse.Namespace) -> int:
    """Extract every wanted task, one after the other."""
    tasks = [json.loads(line) for line in arguments.tasks.read_text(encoding="utf-8").splitlines() if line.strip()]
    wanted = set(arguments.ids.split(",")) if arguments.ids else None
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for task in tasks:
            if wanted is not None and f"{task['level']}/{task['id']}" not in wanted:
                continue
            row = await one(task, Path(temporary), python=arguments.python, reduce=not arguments.no_reduce)
            rows.append(row)
            said = f"{row['nodes']} nodes, {row['reduced_reason'] or 'not reduced'}" if row["ok"] else row["reason"]
            print(f"{row['level']}/{row['id']:<3} {'ok ' if row['ok'] else 'NO '} {row['seconds']:6.2f} s  {said}",
                  flush=True)
    done = [row for row in rows if row["ok"]]
    seconds = [row["seconds"] for row in rows] or [0.0]
    print(f"contracts: {len(done)} of {len(rows)}; reduced: {sum(row['reduced'] for row in done)}; "
          f"seconds: median {median(seconds):.2f}, largest {max(seconds):.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if len(done) == len(rows) else 1


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", type=Path, help="one task a line: level, id, name, code")
    parser.add_argument("--ids", help="only these, such as 1/2,3/40")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch")
    parser.add_argument("--no-reduce", action="store_true", help="leave the reduced contracts out")
    parser.add_argument("--json", type=Path, help="write every row here")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

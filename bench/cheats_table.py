"""Which check finds which way to cheat: `python bench/cheats_table.py` writes `bench/results/cheats_cpu.json`.

Every entry of the suite (`tests/data/evaluate/*.cu`) is judged on the CPU as in the tests; texts that never come to run
are put to the screen and the symbol audit. The result has a line for each row of the catalogue, with what was found by
which check, and why where nothing was run. The exit status is 1 when a way to cheat was accepted or an honest entry was
not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import cheat_texts  # noqa: E402
from tests.cheat_catalogue import CATALOGUE, ELSEWHERE  # noqa: E402
from tests.cheat_run import judge_all, problem  # noqa: E402
from tests.cheat_tasks import SOURCES, entries  # noqa: E402
from tests.evaluate_harness import failed  # noqa: E402


def found_by(cases: list[dict[str, Any]]) -> list[str]:
    """The checks that found a row's cases, the most frequent first."""
    counted = Counter(name for case in cases for name in case["failed_checks"])
    return [name for name, _ in counted.most_common()]


def main() -> int:
    """Judge everything and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "cheats_cpu.json")
    chosen = [(source, entry) for source in SOURCES for entry in entries(source)]
    parser.add_argument("--tasks", default="", help="judge these tasks only, separated by commas, and keep what the "
                        "file says about the others")
    parser.add_argument("--jobs", type=int, default=2, help="tasks side by side (2)")
    options = parser.parse_args()
    wanted = set(filter(None, options.tasks.split(",")))
    chosen = [(source, entry) for source, entry in chosen if not wanted or entry.task in wanted]
    with tempfile.TemporaryDirectory(prefix="hiera-cheats-") as folder:
        verdicts = asyncio.run(judge_all(chosen, Path(folder), options.jobs))
    texts = asyncio.run(cheat_texts.judge_texts()) if not wanted else []
    rows: dict[int, list[dict[str, Any]]] = {number: [] for number in CATALOGUE}
    honest, wrong = [], []
    for _, entry in chosen:
        verdict = verdicts[entry]
        trouble = problem(entry, verdict)
        if trouble:
            wrong.append(f"{entry}: {trouble}")
        checks = [] if isinstance(verdict, BaseException) else sorted(failed(verdict))
        reason = "" if isinstance(verdict, BaseException) or verdict.failure is None else verdict.failure.reason
        told = {"entry": entry.name, "task": entry.task, "what": entry.title, "as_expected": not trouble,
                "outcome": "accepted" if not checks and not reason else "rejected", "failed_checks": checks,
                "reason": reason[:300]}
        if entry.kind not in ("cheat", "honest"):
            told["outcome"] = f"{told['outcome']}: {entry.kind}"
        for number in entry.rows:
            rows[number].append(told)
        if entry.kind == "honest":
            honest.append(told)
    for text, found in texts:
        trouble = "" if found else "not found"
        if trouble:
            wrong.append(f"{text.title}: {trouble}")
        rows[text.row].append({
            "entry": "", "task": "text", "what": text.title, "as_expected": bool(found),
            "outcome": "rejected" if found else "accepted", "failed_checks": [text.check] if found else [],
            "reason": found[:300]})
    if wanted:
        before = json.loads(options.out.read_text(encoding="utf-8"))
        honest += [told for told in before["honest_entries"] if told["task"] not in wanted]
        for row in before["rows"]:
            rows[row["row"]] += [told for told in row["cases"] if told["task"] not in wanted]
        wrong += [line for line in before["not_as_expected"] if line.partition("-")[0] not in wanted]
    judged = [told for found in rows.values() for told in found]
    table = {
        "where": "CPU emulation, no GPU", "command": "python bench/cheats_table.py",
        "cheats": len({(t["task"], t["entry"] or t["what"]) for t in judged}), "honest": len(honest),
        "not_as_expected": wrong,
        "rows": [{"row": number, "way": way, "found_by": found_by(rows[number]),
                  "not_run": "" if rows[number] else ELSEWHERE[number], "cases": rows[number]}
                 for number, way in CATALOGUE.items()],
        "honest_entries": honest,
    }
    options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    covered = sum(bool(found) for found in rows.values())
    print(f"{covered} of {len(rows)} rows, {table['cheats']} cheats, {len(honest)} honest; not as expected: {len(wrong)}")
    for line in wrong:
        print(" ", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

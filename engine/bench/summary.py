"""Result files to a table: `python -m engine.bench.summary RESULTS.jsonl [--json]`.

fast_0 is the part of tasks with an accepted candidate. fast_1 asks that the speed-up's 95 % interval
lies above 1 and the speed-up above 1 by the smallest difference the run could see; fast_2 that the
interval lies at or above 2. A task without an accepted candidate counts as not fast, and as 1.0 in
the geometric mean over all tasks (the user keeps the original).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.bench.rows import BUDGETS, read_rows

Row = Mapping[str, Any]


def latest(rows: Iterable[Row]) -> list[Row]:
    """One row a task: the last one written, ordered by level and id."""
    by_task = {(row["level"], row["id"]): row for row in rows}
    return [by_task[key] for key in sorted(by_task)]


def summarize(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One line for every level (and all) and budget, against eager and torch.compile."""
    tasks = latest(rows)
    levels: list[int | None] = [*sorted({row["level"] for row in tasks}), None]
    lines = [_line([row for row in tasks if level in (None, row["level"]) and _tells(row, budget)], level, budget)
             for level in levels for budget in BUDGETS]
    return [line for line in lines if line["tasks"]]


def _tells(row: Row, budget: int) -> bool:
    """False where the search was cut short of this budget, so that nothing is known about it."""
    return "budgets" not in row or str(budget) in row["budgets"]


def _line(tasks: Sequence[Row], level: int | None, budget: int) -> dict[str, Any]:
    found = [(row.get("budgets") or {}).get(str(budget)) for row in tasks]
    # Without a GPU no time is known, and no part of the tasks can be called fast or slow.
    timed = any(row.get("measured") for row in tasks)
    versus = any(c and c.get("speedup_vs_compile") is not None for c in found)
    eager = [_speed(c, "speedup", "ci95") for c in found]
    compiled = [_speed(c, "speedup_vs_compile", "compile_ci95") for c in found]
    return {
        "level": level, "budget": budget, "tasks": len(tasks),
        "fast_0": _part(c is not None for c in found),
        "fast_1": _part(is_faster(s, c) for s, c in zip(eager, found, strict=True)) if timed else None,
        "fast_2": _part(s is not None and s[1] >= 2 for s in eager) if timed else None,
        "fast_1_compile": _part(is_faster(s, c) for s, c in zip(compiled, found, strict=True)) if versus else None,
        "fast_2_compile": _part(s is not None and s[1] >= 2 for s in compiled) if versus else None,
        "geomean": geometric_mean([s[0] if s else 1.0 for s in eager]) if any(eager) else None,
        "geomean_verified": geometric_mean([s[0] for s in eager if s]),
        "geomean_compile": geometric_mean([s[0] for s in compiled if s]),
    }


def is_faster(speed: tuple[float, float] | None, candidate: Row | None) -> bool:
    """True when interval and smallest visible difference both say faster."""
    if speed is None or candidate is None:
        return False
    visible = candidate.get("minimum_detectable")
    return speed[1] > 1.0 and speed[0] >= 1.0 + (0.01 if visible is None else visible)


def geometric_mean(values: Sequence[float]) -> float | None:
    """None for no values."""
    positive = [value for value in values if value > 0]
    return math.exp(statistics.fmean(map(math.log, positive))) if positive else None


def times(rows: Iterable[Row]) -> dict[str, float | None]:
    """Medians over tasks: seconds to the first verified candidate, seconds in all, seconds a build."""
    tasks = latest(rows)
    keys = ("first_verified_s", "wall_s", "build_s")
    return {key: statistics.median(v) if (v := [r[key] for r in tasks if r.get(key) is not None]) else None
            for key in keys}


def text(rows: Sequence[Row]) -> str:
    """The summary as a Markdown table, then the failures."""
    columns = ("level", "B", "tasks", "fast_0", "fast_1", "fast_2", "geo. mean (all)", "geo. mean (verified)",
               "fast_1 vs compile", "geo. mean vs compile")
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for line in summarize(rows):
        cells = [str(line["level"] or "all"), str(line["budget"]), str(line["tasks"]), _percent(line["fast_0"]),
                 _percent(line["fast_1"]), _percent(line["fast_2"]), _times(line["geomean"]),
                 _times(line["geomean_verified"]), _percent(line["fast_1_compile"]), _times(line["geomean_compile"])]
        lines.append("| " + " | ".join(cells) + " |")
    medians = times(rows)
    lines += ["", "Medians: " + ", ".join(f"{key.removesuffix('_s').replace('_', ' ')} "
                                          f"{'n/a' if value is None else f'{value:.1f} s'}"
                                          for key, value in medians.items())]
    failed = [row for row in latest(rows) if not row.get("verified")]
    if failed:
        lines += ["", f"Nothing verified in {len(failed)} tasks:", ""]
        lines += [f"- {row['level']}/{row['id']} {row['name']}: {row.get('failure')}" for row in failed]
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    """One Markdown line a task: the best candidate."""
    lines = ["| task | verified | over eager | over compile | space | direction | first verified | in all |",
             "|" + " --- |" * 8]
    for row in latest(rows):
        best = row.get("best") or {}
        lines.append("| " + " | ".join([
            f"{row['level']}/{row['id']} {row['name']}", "yes" if row.get("verified") else "no",
            _interval(best.get("speedup"), best.get("ci95")),
            _interval(best.get("speedup_vs_compile"), best.get("compile_ci95")),
            best.get("space") or "-", best.get("direction") or "-",
            _seconds(row.get("first_verified_s")), _seconds(row.get("wall_s"))]) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the summary of one or several result files."""
    parser = argparse.ArgumentParser(prog="python -m engine.bench.summary", description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="the numbers as JSON")
    parser.add_argument("--tasks", action="store_true", help="one line a task as well")
    arguments = parser.parse_args(argv)
    rows = [row for file in arguments.files for row in read_rows(file)]
    if not rows:
        sys.stderr.write("there are no results in it\n")
        return 2
    if arguments.json:
        sys.stdout.write(json.dumps({"summary": summarize(rows), "medians": times(rows)}, indent=1) + "\n")
        return 0
    sys.stdout.write(text(rows) + "\n")
    if arguments.tasks:
        sys.stdout.write("\n" + table(rows) + "\n")
    return 0


def _speed(candidate: Row | None, point: str, interval: str) -> tuple[float, float] | None:
    """The speed-up and the lower end of its interval; the point itself where no interval was stored."""
    if candidate is None or candidate.get(point) is None:
        return None
    ends = candidate.get(interval)
    return candidate[point], ends[0] if ends else candidate[point]


def _part(facts: Iterable[bool]) -> float:
    listed = list(facts)
    return sum(listed) / len(listed) if listed else 0.0


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


def _times(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x"


def _interval(value: float | None, ends: Sequence[float] | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")


def _seconds(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f} s"


if __name__ == "__main__":
    sys.exit(main())

"""Result files to numbers: fast_p at each budget, against eager and torch.compile, under each policy.

fast_0 is the part of tasks with an accepted candidate. fast_1 asks that the speed-up's 95 % interval
(which is never narrower than what the run could see) lies above 1; fast_2 that it lies at or above 2.
A task without an accepted candidate counts as not fast, and as 1.0 in the geometric mean over all
tasks (the user keeps the original). A winner that a fresh process rejected is no winner.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.bench.rows import BUDGETS
from engine.bench.variants import FULL

Row = Mapping[str, Any]
COMPILED = ("compile", "compile max-autotune")


class Baselines:
    """Baselines by task, the newest of each form.

    Args:
        rows: Lines of baseline files, oldest first.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._forms: dict[tuple[int, int, str, str | None], dict[str, Row]] = {}
        for row in rows:
            if "form" in row:
                key = (row["level"], row["id"], row["code_sha256"], row["device"])
                self._forms.setdefault(key, {})[row["form"]] = row

    def of(self, row: Row) -> Mapping[str, Row]:
        """The forms of a result's task on its device."""
        return self._forms.get((row["level"], row["id"], row.get("code_sha256", ""), row.get("device")), {})


def latest(rows: Iterable[Row], variant: str = FULL) -> list[Row]:
    """One complete row a task of a variant: the last one written, ordered by level and id."""
    by_task = {(row["level"], row["id"]): row for row in rows
               if row.get("complete", True) and row.get("variant", FULL) == variant}
    return [by_task[key] for key in sorted(by_task)]


def unfinished(rows: Sequence[Row]) -> list[Row]:
    """Tasks that a sitting's end cut off and no later one finished."""
    done = {(row["level"], row["id"], row.get("variant", FULL)) for row in rows if row.get("complete", True)}
    left = {key: row for row in rows if (key := (row["level"], row["id"], row.get("variant", FULL))) not in done}
    return [left[key] for key in sorted(left)]


def summarize(rows: Iterable[Row], baselines: Baselines | None = None, variant: str = FULL) -> list[dict[str, Any]]:
    """One line for every level (and all) and budget."""
    tasks, baselines = latest(rows, variant), baselines or Baselines()
    levels: list[int | None] = [*sorted({row["level"] for row in tasks}), None]
    lines = [_line([row for row in tasks if level in (None, row["level"]) and _tells(row, budget)], level, budget,
                   baselines) for level in levels for budget in BUDGETS]
    return [line for line in lines if line["tasks"]]


def _tells(row: Row, budget: int) -> bool:
    """False where the search was cut short of this budget, so that nothing is known about it."""
    if "budgets" in row:
        return str(budget) in row["budgets"]
    # It failed before it made anything, which it would at every budget that was asked for.
    return budget <= ((row.get("settings") or {}).get("budget") or BUDGETS[-1])


def candidate_at(row: Row, budget: int, policy: str = "budgets") -> Row | None:
    """The best candidate of a budget, for `strict` of those that hold that policy; None if a fresh look rejected it."""
    found = (row.get(policy) or {}).get(str(budget))
    again = row.get("reverified") or {}
    return None if found and again.get("accepted") is False and again.get("id") == found.get("id") else found


def best_of(row: Row) -> Row | None:
    """A task's winner, unless a fresh process rejected it."""
    again = row.get("reverified") or {}
    return None if again.get("accepted") is False else row.get("best")


def _line(tasks: Sequence[Row], level: int | None, budget: int, baselines: Baselines) -> dict[str, Any]:
    found = [candidate_at(row, budget) for row in tasks]
    strict = [candidate_at(row, budget, "strict") for row in tasks]
    # Without a GPU no time is known, and no part of the tasks can be called fast or slow.
    timed = any(row.get("measured") for row in tasks)
    eager = [speed(c) for c in found]
    compiled = [versus_compile(c, baselines.of(row)) for c, row in zip(found, tasks, strict=True)]
    versus = any(compiled)
    return {
        "level": level, "budget": budget, "tasks": len(tasks),
        "fast_0": part(c is not None for c in found),
        "fast_1": part(map(is_faster, eager)) if timed else None,
        "fast_2": part(s is not None and s[1] >= 2 for s in eager) if timed else None,
        "fast_1_compile": part(map(is_faster, compiled)) if versus else None,
        "fast_2_compile": part(s is not None and s[1] >= 2 for s in compiled) if versus else None,
        "geomean": geometric_mean([s[0] if s else 1.0 for s in eager]) if any(eager) else None,
        "geomean_verified": geometric_mean([s[0] for s in eager if s]),
        "geomean_compile": geometric_mean([s[0] for s in compiled if s]),
        "strict_fast_0": part(c is not None for c in strict),
        "strict_fast_1": part(is_faster(speed(c)) for c in strict) if timed else None,
        "strict_fast_2": part((s := speed(c)) is not None and s[1] >= 2 for c in strict) if timed else None,
        "kernelbench_fast_0": part(bool((row.get("kernelbench_valid") or {}).get(str(budget))) for row in tasks),
    }


def speed(candidate: Row | None) -> tuple[float, float] | None:
    """Speed-up over eager and the lower end of its interval; the point itself where no interval was stored."""
    return _pair(candidate, "speedup", "ci95")


def versus_compile(candidate: Row | None, forms: Mapping[str, Row]) -> tuple[float, float] | None:
    """Speed-up over the best valid mode of torch.compile, and its lower end; None where none was timed.

    The default mode is timed in turn with the candidate; other modes in turn with eager, in a process of
    their own, so the candidate's speed-up over eager is divided by theirs. Where every mode was tried and
    none is valid, eager is what a user has.
    """
    own = speed(candidate)
    if candidate is None or own is None:
        return None
    against: list[tuple[float, float]] = []
    paired = _pair(candidate, "speedup_vs_compile", "compile_ci95")
    if paired is not None and forms.get("compile", {}).get("valid") is not False:
        against.append(paired)
    for form in COMPILED:
        factor = form_speedup(forms.get(form))
        if factor is not None and not (form == "compile" and paired is not None):
            against.append((own[0] / factor, own[1] / factor))
    if against:
        return min(against)
    return own if all(form in forms for form in COMPILED) else None


def form_speedup(form: Row | None) -> float | None:
    """How many times faster than eager a baseline is; None where it was not measured or is not valid."""
    if form is None or form.get("valid") is False or not form.get("speedup"):
        return None
    return form["speedup"]


def is_faster(found: tuple[float, float] | None) -> bool:
    """True when the interval says faster."""
    return found is not None and found[1] > 1.0


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


def reverification(rows: Iterable[Row]) -> dict[str, Any]:
    """What fresh processes said of the winners."""
    told = [row["reverified"] for row in latest(rows) if row.get("reverified")]
    rejected = [f"{row['level']}/{row['id']} {row['name']}: {row['reverified'].get('reason')}" for row in latest(rows)
                if row.get("reverified") and row["reverified"].get("accepted") is not True]
    return {"run": len(told), "accepted": sum(again.get("accepted") is True for again in told), "not": rejected}


def kernelbench(rows: Iterable[Row]) -> dict[str, Any] | None:
    """The winners by KernelBench's own protocol; None where it was not run."""
    told = [row["kernelbench"] for row in latest(rows) if row.get("kernelbench")]
    timed = [found["speedup"] for found in told if found.get("speedup")]
    if not told:
        return None
    return {"run": len(told), "valid": sum(found.get("valid") is True for found in told),
            "fast_1": part(s > 1 for s in timed), "fast_2": part(s > 2 for s in timed),
            "geomean": geometric_mean(timed)}


def baseline_lines(rows: Iterable[Row], baselines: Baselines) -> list[dict[str, Any]]:
    """Each form and level: how many were tried, are valid at 1e-4, are faster than eager, and by how much."""
    tasks = latest(rows)
    lines = []
    for level in [*sorted({row["level"] for row in tasks}), None]:
        members = [baselines.of(row) for row in tasks if level in (None, row["level"])]
        for form in (*COMPILED, "graph"):
            found = [forms[form] for forms in members if form in forms]
            if not found:
                continue
            speeds = [s for s in map(form_speedup, found) if s is not None]
            lines.append({"level": level, "form": form, "tasks": len(found),
                          "valid": part(row.get("valid") is True for row in found),
                          "faster": sum(s > 1 for s in speeds) / len(found),
                          "twice": sum(s > 2 for s in speeds) / len(found), "geomean": geometric_mean(speeds),
                          "compile_s": _median([row["compile_s"] for row in found if row.get("compile_s")])})
    return lines


def without_gpu(rows: Iterable[Row]) -> dict[str, Any] | None:
    """What a run on the CPU can say: how many verify there, and why the rest do not. None where a GPU was used."""
    tasks = latest(rows)
    if not tasks or any(row.get("measured") for row in tasks):
        return None
    found = {(row["level"], row["id"]): best_of(row) for row in tasks}
    verified = [best for best in found.values() if best]
    return {
        "tasks": len(tasks), "verified": len(verified),
        "by_level": {str(level): {"tasks": sum(at == level for at, _ in found),
                                  "verified": sum(at == level and bool(best) for (at, _), best in found.items())}
                     for level in sorted({row["level"] for row in tasks})},
        "where": dict(Counter(best.get("where") for best in verified)),
        "spaces": dict(Counter(best["space"] for best in verified)),
        "not_verified": {f"{row['level']}/{row['id']}": row.get("failure") or row["reverified"]["reason"]
                         for row in tasks if not found[row["level"], row["id"]]},
    }


def part(facts: Iterable[bool]) -> float:
    """The part of them that is true."""
    listed = list(facts)
    return sum(listed) / len(listed) if listed else 0.0


def _pair(candidate: Row | None, point: str, interval: str) -> tuple[float, float] | None:
    if candidate is None or candidate.get(point) is None:
        return None
    ends = candidate.get(interval)
    return candidate[point], ends[0] if ends else candidate[point]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None

"""What results say beyond fast_p: why tasks are not faster, whether planning chose well, what each part is worth."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from engine.bench.rows import BUDGETS
from engine.bench.summary import Row, best_of, candidate_at, geometric_mean, is_faster, latest, part, speed
from engine.bench.variants import VARIANTS

NEAR_ROOF = 0.95
FEW = 6


def misses(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Tasks whose best is not faster than eager, each with its part of the roof and a reason."""
    found = []
    for row in latest(rows):
        best = candidate_at(row, BUDGETS[-1]) if str(BUDGETS[-1]) in (row.get("budgets") or {}) else best_of(row)
        if not row.get("measured") and best is not None:
            continue  # Nothing was timed: it is neither a hit nor a miss.
        if is_faster(speed(best)):
            continue
        found.append({"task": f"{row['level']}/{row['id']}", "name": row["name"],
                      "speedup": best.get("speedup") if best else None,
                      "roof_part": roof_part(row, best), "why": why(row, best)})
    return found


def roof_part(row: Row, best: Row | None) -> float | None:
    """The roof's time over the candidate's: 1 is an ideal implementation."""
    us = best.get("median_us") if best else None
    return row["roof_us"] / us if us and row.get("roof_us") else None


def why(row: Row, best: Row | None) -> str:
    """Why a task is not faster, in words."""
    again = row.get("reverified") or {}
    if row.get("verified") and best is None:
        return f"a fresh process rejected the winner: {again.get('reason')}"
    if best is None or best.get("speedup") is None:
        return f"nothing verified: {row.get('failure')}"
    share = roof_part(row, best)
    eager_us = (row.get("baseline") or {}).get("eager_us")
    _, high = best.get("ci95") or (best["speedup"], best["speedup"])
    if share is not None and share >= NEAR_ROOF:
        said = "at the roof"
    elif eager_us and row.get("roof_us") and row["roof_us"] / eager_us >= NEAR_ROOF:
        said = "eager is at the roof already"
    elif high < 1:
        said = f"slower than eager, which takes {best['speedup']:.2f} of its time"
    else:
        said = "no difference to eager that the run could see"
    if row.get("candidates", 0) < FEW and str(row.get("stop_reason", "")).startswith("time"):
        said += f"; only {row['candidates']} candidates before the time limit"
    return said


def directions(rows: Sequence[Row]) -> dict[str, Any] | None:
    """How often the direction that the rubric chose was the one that won; None where no round won anything.

    `by_chance` is what choosing at random among the candidates that were tried would have given.
    """
    planned_of: Counter[str] = Counter()
    won_of: Counter[str] = Counter()
    hits, chances, gains_hit, gains_other = 0, [], [], []
    per: dict[str, dict[str, int]] = {}
    for row in latest(rows):
        for told in row.get("rounds") or []:
            planned_of[told["direction"]] += 1
            winner = told.get("winner")
            if winner is None:
                continue
            hit = winner["direction"] == told["direction"]
            hits += hit
            (gains_hit if hit else gains_other).append(winner["gain"])
            won_of[winner["direction"]] += 1
            tried = {code: count for code, count in told["tried"].items() if code != "seed"}
            chances.append(tried.get(told["direction"], 0) / sum(tried.values()) if tried else 0.0)
            per.setdefault(told["direction"], Counter())[winner["direction"]] += 1
    rounds_won = sum(won_of.values())
    if not rounds_won:
        return None
    return {
        "rounds": sum(planned_of.values()), "rounds_won": rounds_won, "planned_won": hits / rounds_won,
        "by_chance": statistics.fmean(chances), "planned": dict(planned_of), "won": dict(won_of),
        "won_when_planned": {code: dict(found) for code, found in per.items()},
        "gain_planned": geometric_mean(gains_hit), "gain_other": geometric_mean(gains_other),
    }


def compare(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Variants on the tasks that all of them have finished: fast_p and how the best speed-ups spread (figures 4, 5)."""
    by_variant: dict[str, dict[tuple[int, int], Row]] = {}
    for name in VARIANTS:
        found = {(row["level"], row["id"]): row for row in latest(rows, name)}
        if found:
            by_variant[name] = found
    if len(by_variant) < 2:
        return []
    common = sorted(set.intersection(*(set(found) for found in by_variant.values())))
    return [line for name, found in by_variant.items() for line in _variant_lines(name, [found[k] for k in common])]


def _variant_lines(name: str, tasks: Sequence[Row]) -> list[dict[str, Any]]:
    levels: list[int | None] = [*sorted({row["level"] for row in tasks}), None]
    return [{"variant": name, "level": level,
             **_spread([row for row in tasks if level in (None, row["level"])])} for level in levels]


def _spread(tasks: Sequence[Row]) -> dict[str, Any]:
    best = [best_of(row) for row in tasks]
    speeds = [s[0] for c in best if (s := speed(c)) is not None]
    timed = any(row.get("measured") for row in tasks)
    return {
        "tasks": len(tasks), "fast_0": part(c is not None for c in best),
        "fast_1": part(is_faster(speed(c)) for c in best) if timed else None,
        "fast_2": part((s := speed(c)) is not None and s[1] >= 2 for c in best) if timed else None,
        "mean": statistics.fmean(speeds) if speeds else None, "median": statistics.median(speeds) if speeds else None,
        "variance": statistics.variance(speeds) if len(speeds) > 1 else None, "max": max(speeds, default=None),
        "geomean": geometric_mean(speeds), "speedups": sorted(speeds),
    }

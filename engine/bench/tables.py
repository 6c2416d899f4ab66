"""The summary as a JSON document and as Markdown, from the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.bench import insight, summary
from engine.bench.summary import Baselines, Row
from engine.bench.variants import FULL, VARIANTS

SCHEMA = 2
Cell = tuple[str, Callable[[Any], str]]


def document(rows: Sequence[Row], baselines: Baselines) -> dict[str, Any]:
    """Everything that can be said, as data. Parts that nothing was measured for are null."""
    tasks = summary.latest(rows)
    return {
        "schema": SCHEMA, "tasks": len(tasks),
        "unfinished": [f"{row['level']}/{row['id']}" for row in summary.unfinished(rows)],
        "sittings": sittings(rows), "summary": summary.summarize(rows, baselines), "medians": summary.times(rows),
        "baselines": summary.baseline_lines(rows, baselines), "misses": insight.misses(rows),
        "directions": insight.directions(rows), "reverification": summary.reverification(rows),
        "kernelbench": summary.kernelbench(rows), "variants": insight.compare(rows),
        "without_gpu": summary.without_gpu(rows),
    }


def sittings(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What the results were made from, a line a sitting."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        sitting = found.setdefault(row.get("sitting"), {
            "sitting": row.get("sitting"), "commit": row.get("commit"), "text_sha256": row.get("text_sha256"),
            "device": row.get("device"), "driver": row.get("driver"), "torch": row.get("torch"),
            "settings": row.get("settings"), "tasks": 0})
        sitting["tasks"] += bool(row.get("complete", True))
    return list(found.values())


def text(rows: Sequence[Row], baselines: Baselines | None = None, *, tasks: bool = False) -> str:
    """The whole summary as Markdown.

    Args:
        rows: Results.
        baselines: What was measured beside them.
        tasks: One line a task as well.
    """
    told = document(rows, baselines or Baselines())
    parts = [headline(told["summary"]), fast_p(told["summary"]), policies(told["summary"]), medians(told["medians"]),
             no_gpu(told["without_gpu"]), baseline_table(told["baselines"]), protocol(told["kernelbench"]),
             again(told["reverification"]), variant_table(told["variants"]), direction_text(told["directions"]),
             miss_list(told["misses"], timed=told["without_gpu"] is None), left(told["unfinished"])]
    if tasks:
        parts.append(task_table(rows))
    return "\n\n".join(part for part in parts if part)


def headline(lines: Sequence[Row]) -> str:
    """The few numbers a reader wants first, a column a level."""
    by_place = {(line["level"], line["budget"]): line for line in lines}
    levels = list(dict.fromkeys(line["level"] for line in lines))
    rows: list[tuple[str, int, str, Callable[[Any], str]]] = [
        ("fast_0 at B=1", 1, "fast_0", _percent), ("fast_0 at B=18", 18, "fast_0", _percent),
        ("fast_1 at B=18, interval above 1", 18, "fast_1", _percent), ("fast_2 at B=18", 18, "fast_2", _percent),
        ("faster than the best torch.compile", 18, "fast_1_compile", _percent),
        ("geometric mean over eager", 18, "geomean", _times),
        ("geometric mean over torch.compile", 18, "geomean_compile", _times)]
    body = [[name, *(show((by_place.get((level, budget)) or {}).get(key)) for level in levels)]
            for name, budget, key, show in rows]
    body = [cells for cells in body if any(cell != "n/a" for cell in cells[1:])]
    return _table(["", *(f"level {level}" if level else "all" for level in levels)], body) if body else ""


def fast_p(lines: Sequence[Row]) -> str:
    """fast_p at each budget."""
    columns: list[Cell] = [
        ("fast_0", _percent), ("fast_1", _percent), ("fast_2", _percent), ("geomean", _times),
        ("geomean_verified", _times), ("fast_1_compile", _percent), ("fast_2_compile", _percent),
        ("geomean_compile", _times)]
    names = ["level", "B", "tasks", "fast_0", "fast_1", "fast_2", "geo. mean (all)", "geo. mean (verified)",
             "fast_1 vs compile", "fast_2 vs compile", "geo. mean vs compile"]
    if not lines:
        return "No task has a complete result."
    return _table(names, [[str(line["level"] or "all"), str(line["budget"]), str(line["tasks"]),
                           *(show(line[key]) for key, show in columns)] for line in lines])


def policies(lines: Sequence[Row]) -> str:
    """The same searches under the other two policies, at the largest budget that was spent."""
    largest = {line["level"]: line for line in lines}
    body = [[str(level or "all"), str(line["budget"]), _percent(line["fast_0"]), _percent(line["strict_fast_0"]),
             _percent(line["strict_fast_1"]), _percent(line["strict_fast_2"]), _percent(line["kernelbench_fast_0"])]
            for level, line in largest.items()]
    return _table(["level", "B", "fast_0 (match)", "fast_0 (strict)", "fast_1 (strict)", "fast_2 (strict)",
                   "fast_0 (kernelbench)"], body) if body else ""


def medians(found: Row) -> str:
    """Seconds; nothing where no task has any."""
    if not any(found.values()):
        return ""
    return "Medians: " + ", ".join(f"{key.removesuffix('_s').replace('_', ' ')} "
                                   f"{'n/a' if value is None else f'{value:.1f} s'}" for key, value in found.items())


def no_gpu(found: Row | None) -> str:
    """What a run on the CPU found."""
    if found is None:
        return ""
    levels = ", ".join(f"{told['verified']} of {told['tasks']} in level {level}"
                       for level, told in found["by_level"].items())
    where = ", ".join(f"{count} by {place}" for place, count in found["where"].items())
    return (f"Without a GPU, {found['verified']} of {found['tasks']} tasks have a verified kernel ({levels})"
            f"{': ' + where if where else ''}. No time was measured.")


def baseline_table(lines: Sequence[Row]) -> str:
    """What a user would pick instead."""
    body = [[str(line["level"] or "all"), line["form"], str(line["tasks"]), _percent(line["valid"]),
             _percent(line["faster"]), _percent(line["twice"]), _times(line["geomean"]), _seconds(line["compile_s"])]
            for line in lines]
    return _table(["level", "instead of us", "tasks", "valid at 1e-4", "faster than eager", "twice as fast",
                   "geo. mean (valid)", "median seconds to make"], body) if body else ""


def protocol(found: Row | None) -> str:
    """KernelBench's own protocol."""
    if found is None:
        return ""
    return (f"By KernelBench's own protocol (its seeds, 1e-4, 3 + 100 calls, bare means and medians): {found['valid']} "
            f"of {found['run']} winners valid, fast_1 {_percent(found['fast_1'])}, fast_2 {_percent(found['fast_2'])} "
            f"of those timed, geometric mean {_times(found['geomean'])}.")


def again(found: Row) -> str:
    """Fresh processes."""
    if not found["run"]:
        return ""
    head = f"Judged again in a fresh process with fresh seeds: {found['accepted']} of {found['run']} winners accepted."
    return "\n".join([head, "", *(f"- {line}" for line in found["not"])] if found["not"] else [head])


def variant_table(lines: Sequence[Row]) -> str:
    """Ablations on the tasks that all variants finished."""
    body = [[VARIANTS[line["variant"]].title, str(line["level"] or "all"), str(line["tasks"]), _percent(line["fast_0"]),
             _percent(line["fast_1"]), _percent(line["fast_2"]), _times(line["mean"]), _times(line["median"]),
             "n/a" if line["variance"] is None else f"{line['variance']:.2f}", _times(line["max"])] for line in lines]
    return _table(["variant", "level", "tasks", "fast_0", "fast_1", "fast_2", "mean", "median", "variance", "max"],
                  body) if body else ""


def direction_text(found: Row | None) -> str:
    """Whether planning chose well."""
    if found is None:
        return ""
    head = (f"Of {found['rounds_won']} rounds that found something faster, the direction the rubric chose won in "
            f"{_percent(found['planned_won'])} (by chance {_percent(found['by_chance'])}); gain "
            f"{_times(found['gain_planned'])} where it won, {_times(found['gain_other'])} where another did.")
    body = []
    for code in sorted({*found["planned"], *found["won"]}):
        winners = sorted(found["won_when_planned"].get(code, {}).items(), key=lambda item: -item[1])
        body.append([code, str(found["planned"].get(code, 0)), str(found["won"].get(code, 0)),
                     ", ".join(f"{other} {count}" for other, count in winners) or "-"])
    return head + "\n\n" + _table(["direction", "planned in rounds", "won in rounds", "when planned, won by"], body)


def miss_list(found: Sequence[Row], *, timed: bool) -> str:
    """Tasks that are not faster, with the reason."""
    if not found:
        return ""
    head = f"{len(found)} tasks are not faster than eager:" if timed else f"Nothing verified in {len(found)} tasks:"
    lines = []
    for miss in found:
        roof = "" if miss["roof_part"] is None else f" ({_times(miss['speedup'])}, {miss['roof_part']:.0%} of the roof)"
        lines.append(f"- {miss['task']} {miss['name']}{roof}: {miss['why']}")
    return "\n".join([head, "", *lines])


def left(found: Sequence[str]) -> str:
    """Tasks a sitting's end cut off."""
    return f"Unfinished, and counted nowhere: {', '.join(found)}." if found else ""


def task_table(rows: Sequence[Row], variant: str = FULL) -> str:
    """One line a task: the best candidate."""
    body = []
    for row in summary.latest(rows, variant):
        best = row.get("best") or {}
        share = insight.roof_part(row, best)
        body.append([
            f"{row['level']}/{row['id']} {row['name']}", "yes" if row.get("verified") else "no",
            _interval(best.get("speedup"), best.get("ci95")),
            _interval(best.get("speedup_vs_compile"), best.get("compile_ci95")),
            "n/a" if share is None else f"{share:.0%}", best.get("space") or "-", best.get("direction") or "-",
            _seconds(row.get("first_verified_s")), _seconds(row.get("wall_s"))])
    return _table(["task", "verified", "over eager", "over compile", "of the roof", "space", "direction",
                   "first verified", "in all"], body)


def _table(names: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(names)} |", "|" + " --- |" * len(names)]
    return "\n".join(lines + [f"| {' | '.join(cells)} |" for cells in body])


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


def _times(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x"


def _interval(value: float | None, ends: Sequence[float] | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")


def _seconds(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f} s"

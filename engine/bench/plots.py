"""Pictures of a summary, in the manner of the paper's figures 3 to 6. Needs matplotlib, an optional extra."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError, ToolError
from engine.bench import insight, summary
from engine.bench.rows import BUDGETS
from engine.bench.summary import Baselines, Row, geometric_mean
from engine.bench.variants import FULL, VARIANTS

WIDTH, HEIGHT, DPI = 4.2, 3.2, 160
# With so few tasks their times are shown themselves, with more of them the mean speed-up.
FEW_TASKS = 4


def require() -> None:
    """Refuse early what would fail at the end of a long job.

    Raises:
        ToolError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ToolError("pictures need matplotlib", hint="pip install 'hiera[plots]'")


def draw(rows: Sequence[Row], baselines: Baselines, folder: Path) -> list[Path]:
    """Draw what the results can show. Returns the files written.

    Raises:
        ToolError: matplotlib is not installed.
        ConfigError: The folder cannot be written.
    """
    require()
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    made = []
    for name, picture in (("budgets", _budgets), ("spread", _spread), ("ablation", _ablation), ("progress", _progress)):
        figure = picture(pyplot, rows, baselines)
        if figure is None:
            continue
        path = folder / f"{name}.png"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=DPI, bbox_inches="tight")
        except OSError as error:
            raise ConfigError(f"the picture cannot be written: {error.strerror}", hint="choose another folder",
                              file=path) from None
        pyplot.close(figure)
        made.append(path)
    return made


def _budgets(pyplot: Any, rows: Sequence[Row], baselines: Baselines) -> Any:
    """Figure 3: fast_p over the budget, a panel each p, a line each level."""
    lines = summary.summarize(rows, baselines)
    keys = [key for key in ("fast_0", "fast_1", "fast_2") if any(line[key] is not None for line in lines)]
    if not lines:
        return None
    figure, axes = pyplot.subplots(1, len(keys), figsize=(WIDTH * len(keys), HEIGHT), squeeze=False)
    for axis, key in zip(axes[0], keys, strict=True):
        for level in dict.fromkeys(line["level"] for line in lines):
            told = [line for line in lines if line["level"] == level and line[key] is not None]
            axis.plot([line["budget"] for line in told], [100 * line[key] for line in told], marker="o",
                      color="black" if level is None else None, label="all" if level is None else f"level {level}")
        axis.set(xlabel="candidates made (B)", ylabel=f"{key}, % of tasks", xticks=BUDGETS, ylim=(0, 102))
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    return figure


def _spread(pyplot: Any, rows: Sequence[Row], _baselines: Baselines) -> Any:
    """Figure 4: how the best verified speed-ups spread, a box each variant; without variants, each level."""
    compared = [line for line in insight.compare(rows) if line["level"] is None]
    boxes = [(VARIANTS[line["variant"]].title, line["speedups"]) for line in compared]
    if not boxes:
        tasks = summary.latest(rows)
        boxes = [(f"level {level}", [s[0] for row in tasks if row["level"] == level
                                     and (s := summary.speed(summary.best_of(row))) is not None])
                 for level in sorted({row["level"] for row in tasks})]
    boxes = [(name, values) for name, values in boxes if values]
    if not boxes:
        return None
    figure, axis = pyplot.subplots(figsize=(max(WIDTH, 1.3 * len(boxes)), HEIGHT))
    axis.boxplot([values for _, values in boxes], showmeans=True, widths=0.5)
    for place, (_, values) in enumerate(boxes, 1):
        axis.plot([place + 0.32] * len(values), values, ".", alpha=0.35, markersize=4)
    axis.set_xticks(range(1, len(boxes) + 1), [name for name, _ in boxes], rotation=20, ha="right")
    axis.axhline(1.0, color="grey", linewidth=0.8)
    axis.set(ylabel="best verified speed-up over eager", yscale="log")
    axis.grid(axis="y", alpha=0.3)
    return figure


def _ablation(pyplot: Any, rows: Sequence[Row], _baselines: Baselines) -> Any:
    """Figure 5: fast_p of the whole beside that of each variant, a panel each level."""
    compared = [line for line in insight.compare(rows) if line["level"] is not None]
    levels = sorted({line["level"] for line in compared})
    if not levels:
        return None
    keys = [key for key in ("fast_0", "fast_1", "fast_2") if all(line[key] is not None for line in compared)]
    names = list(dict.fromkeys(line["variant"] for line in compared))
    figure, axes = pyplot.subplots(1, len(levels), figsize=(WIDTH * len(levels), HEIGHT), squeeze=False, sharey=True)
    for axis, level in zip(axes[0], levels, strict=True):
        for place, name in enumerate(names):
            line = next(line for line in compared if line["variant"] == name and line["level"] == level)
            axis.bar([number + place * 0.8 / len(names) for number in range(len(keys))],
                     [100 * line[key] for key in keys], width=0.8 / len(names), label=VARIANTS[name].title)
        axis.set_xticks([number + 0.4 - 0.4 / len(names) for number in range(len(keys))], keys)
        axis.set(title=f"level {level}", ylim=(0, 102))
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].set_ylabel("% of tasks")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0.02),
                  ncols=len(names), frameon=False)
    return figure


def _progress(pyplot: Any, rows: Sequence[Row], baselines: Baselines) -> Any:
    """Figure 6: the best so far over the candidates made, beside what a user would pick instead."""
    tasks = [row for row in summary.latest(rows, FULL) if any(step[1] for step in row.get("progress") or [])]
    if not tasks:
        return None
    figure, axis = pyplot.subplots(figsize=(WIDTH * 1.3, HEIGHT))
    last = max(row["candidates"] for row in tasks)
    numbers = list(range(1, last + 1))
    if len(tasks) <= FEW_TASKS:
        _times_of_few(axis, tasks, numbers, baselines)
    else:
        for level in sorted({row["level"] for row in tasks}):
            members = [row for row in tasks if row["level"] == level]
            axis.plot(numbers, [geometric_mean([_at(row, n, 1) or 1.0 for row in members]) for n in numbers],
                      drawstyle="steps-post", label=f"level {level}")
        against = [s for row in tasks if (s := summary.form_speedup(baselines.of(row).get("compile"))) is not None]
        if against:
            axis.axhline(geometric_mean(against), linestyle="--", color="grey", label="torch.compile, where valid")
        axis.set_ylabel("geometric mean of the best speed-up")
    axis.set_xlabel("candidates made")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    return figure


def _times_of_few(axis: Any, tasks: Sequence[Row], numbers: Sequence[int], baselines: Baselines) -> None:
    for row in tasks:
        (line,) = axis.plot(numbers, [_at(row, n, 2) for n in numbers], drawstyle="steps-post", label=row["name"])
        instead = {"eager": row["baseline"]["eager_us"], "torch.compile": row["baseline"]["compile_us"],
                   "graph": row["baseline"].get("graph_us")}
        form = baselines.of(row).get("compile max-autotune")
        instead["max-autotune"] = form["median_us"] if form and form.get("valid") else None
        for name, us in instead.items():
            if us:
                axis.axhline(us, linestyle="--", linewidth=0.8, color=line.get_color())
                axis.annotate(name, (numbers[-1], us), fontsize="x-small", ha="right", va="bottom")
    axis.set(ylabel="microseconds a call", yscale="log")


def _at(row: Row, number: int, place: int) -> Any:
    """The best so far after `number` candidates: 1 its speed-up, 2 its microseconds."""
    steps = [step for step in row["progress"] if step[0] <= number and step[place] is not None]
    return steps[-1][place] if steps else None

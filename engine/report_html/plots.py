"""The search drawn: how far each candidate came, and what a smaller budget would have found."""

from __future__ import annotations

from engine.records import STAGES
from engine.report_html import svg
from engine.report_html.markup import Markup, joined, tag
from engine.report_html.rows import Row, best_after
from engine.report_html.tables import plot_section, table
from engine.trajectory import Trajectory

# The paper's budgets, and what `hiera bench` reports at.
BUDGETS = (1, 6, 12, 18)
LANE = 26
# With more candidates than this there is no room for letters in the marks.
LETTERED = 26
MOST_NAMES = 30
ROUND_WIDTH = 62
STAGE_WORDS = {"proposed": "written", "screened": "screened", "built": "built", "verified": "verified",
               "timed": "timed", "profiled": "profiled", "confirmed": "confirmed"}


def progress(trajectory: Trajectory, rows: list[Row]) -> Markup:
    """Speed-ups over candidates where times were measured, else how far each candidate came."""
    if not rows:
        return plot_section("progress", "Search progress", "Not drawn: no candidate was written.")
    if any(row.timing for row in rows):
        return _speedups(rows)
    return _stages(trajectory, rows)


def budget(trajectory: Trajectory, rows: list[Row]) -> Markup:
    """The best speed-up after B candidates."""
    title, identity = "Budget curve", "budget"
    curve = best_after(rows)
    known = [(count, best) for count, best in curve if best is not None]
    if not known:
        why = ("no candidate was accepted with a measured time" if trajectory.measured
               else "there was no GPU, so no time was measured")
        return plot_section(identity, title, f"Not drawn: {why}.")
    bottom = svg.TOP + 220
    y = svg.ratio_scale([1.0, *[best for _, best in known]], bottom, svg.TOP)
    x = svg.Scale(low=0.5, high=len(curve) + 0.5, start=svg.LEFT, end=svg.WIDTH - svg.RIGHT)
    points = [(x.at(count), y.at(best)) for count, best in known]
    marked = [(count, best) for count, best in known if count in BUDGETS or count == len(curve)]
    picture = svg.drawing(
        bottom + svg.BOTTOM,
        svg.y_axis(y, "best speed-up over eager", unit="x"),
        _reference_line(y),
        tag("polyline", points=svg.steps(points, svg.WIDTH - svg.RIGHT), class_="curve"),
        joined(
            (tag("circle", tag("title", f"after {count}: {best:.2f}x"), cx=x.at(count), cy=y.at(best), r=4,
                 class_="accepted"),
             tag("text", f"{best:.2f}x", x=x.at(count), y=y.at(best) - 9, text_anchor="middle", class_="tick"))
            for count, best in marked),
        _counts(x, len(curve), bottom),
        svg.x_label("candidates (B)", bottom),
        identity=identity,
    )
    asked = [(count, best) for count, best in curve if count in BUDGETS or count == len(curve)]
    sentence = "Best measured speed-up over eager: " + ", ".join(
        f"{'none' if best is None else f'{best:.2f}x'} after {count}" for count, best in asked)
    numbers = table("Best measured speed-up after B candidates", ("candidates (B)", "best speed-up"),
                    [(count, "none yet" if best is None else f"{best:.3f}x") for count, best in curve], numeric={0, 1})
    return plot_section(identity, title, sentence + ".", picture, numbers)


def _speedups(rows: list[Row]) -> Markup:
    identity = "progress"
    timed = [row for row in rows if row.timing is not None]
    bottom = svg.TOP + 240
    values = [1.0, *[value for row in timed if row.timing for value in (*row.timing.ci95, row.timing.speedup)]]
    y = svg.ratio_scale(values, bottom - LANE, svg.TOP + 10)
    x = svg.Scale(low=-0.5, high=len(rows) - 0.5, start=svg.LEFT, end=svg.WIDTH - svg.RIGHT)
    marks, line, best = [], [], 0.0
    for index, row in enumerate(rows):
        place = x.at(index)
        if row.timing is None:
            marks.append(svg.cross(place, bottom - LANE / 2 + 2, 4.5, _said(row)))
            continue
        low, high = row.timing.ci95
        marks.append(tag("line", x1=place, x2=place, y1=y.at(low), y2=y.at(high), class_="interval"))
        marks.append(svg.dot(place, y.at(row.timing.speedup), *_sized(rows), _said(row), letter=_letter(rows, row),
                             best=row.is_best))
        if row.timing.speedup > best:
            best = row.timing.speedup
            line.append((place, y.at(best)))
    picture = svg.drawing(
        bottom + svg.BOTTOM,
        svg.y_axis(y, "speed-up over eager", unit="x"),
        _rounds(rows, x, bottom),
        _reference_line(y),
        tag("line", x1=svg.LEFT, x2=svg.WIDTH - svg.RIGHT, y1=bottom - LANE, y2=bottom - LANE, class_="axis"),
        tag("text", "not accepted", x=svg.LEFT - 8, y=bottom - LANE / 2 + 6, text_anchor="end", class_="tick"),
        tag("polyline", points=svg.steps(line, svg.WIDTH - svg.RIGHT), class_="curve"),
        joined(marks), _names(rows, x, bottom), svg.x_label("candidate, in the order of making", bottom),
        identity=identity,
    )
    fastest = max(timed, key=lambda row: row.timing.speedup if row.timing else 0.0)
    assert fastest.timing is not None
    sentence = (f"{len(timed)} of {len(rows)} candidates were accepted and timed; the largest measured speed-up is "
                f"{fastest.timing.speedup:.2f}x, candidate {fastest.label} of round {fastest.candidate.round}. "
                "Bars are 95 % intervals, letters are directions, the line is the best so far.")
    return plot_section(identity, "Search progress", sentence, picture, _numbers(rows), _legend())


def _stages(trajectory: Trajectory, rows: list[Row]) -> Markup:
    identity = "progress"
    reached = [row.evaluation.stage if row.evaluation else "proposed" for row in rows]
    last = max(STAGES.index("verified"), *(STAGES.index(stage) for stage in reached))
    lanes = STAGES[: last + 1]
    bottom = svg.TOP + 44 * len(lanes)
    y = svg.Scale(low=-0.5, high=len(lanes) - 0.5, start=bottom, end=svg.TOP + 12)
    x = svg.Scale(low=-0.5, high=len(rows) - 0.5, start=svg.LEFT, end=svg.WIDTH - svg.RIGHT)
    marks = []
    for index, (row, stage) in enumerate(zip(rows, reached, strict=True)):
        place = (x.at(index), y.at(STAGES.index(stage)))
        size, said = _sized(rows)[0], _said(row)
        marks.append(svg.dot(*place, size, said, letter=_letter(rows, row)) if row.accepted
                     else svg.cross(*place, 5, said))
    names = joined(tag("text", STAGE_WORDS[stage], x=svg.LEFT - 8, y=y.at(number) + 4, text_anchor="end", class_="tick")
                   for number, stage in enumerate(lanes))
    picture = svg.drawing(
        bottom + svg.BOTTOM,
        joined(tag("line", x1=svg.LEFT, x2=svg.WIDTH - svg.RIGHT, y1=y.at(number), y2=y.at(number), class_="grid")
               for number in range(len(lanes))),
        names, _rounds(rows, x, bottom), joined(marks), _names(rows, x, bottom),
        svg.x_label("candidate, in the order of making", bottom), identity=identity,
    )
    accepted = sum(row.accepted for row in rows)
    why = "there was no GPU" if not trajectory.measured else "none was timed"
    sentence = (f"How far each candidate came: {accepted} of {len(rows)} were accepted. No speed is shown and none is "
                f"ranked, because {why}.")
    return plot_section(identity, "Search progress", sentence, picture, _numbers(rows), _legend(best=False))


def _numbers(rows: list[Row]) -> Markup:
    cells = []
    for row in rows:
        timing = row.timing or row.glance
        cells.append((row.label, row.candidate.round, row.candidate.direction or "none", row.state,
                      (f"{timing.speedup:.3f}x" + (" (briefly)" if row.glance else "")) if timing else "not measured",
                      f"{timing.ci95[0]:.3f} to {timing.ci95[1]:.3f}" if timing else "-"))
    return table("The search progress in numbers",
                 ("candidate", "round", "direction", "state", "speed-up (measured)", "95 % interval"), cells,
                 numeric={1, 4, 5})


def _said(row: Row) -> str:
    timing = row.timing
    what = f"{timing.speedup:.2f}x [{timing.ci95[0]:.2f}, {timing.ci95[1]:.2f}]" if timing else row.state
    why = f": {row.why}" if row.why else ""
    return f"{row.label} ({row.candidate.id}), round {row.candidate.round}, {row.candidate.space}: {what}{why}"


def _letter(rows: list[Row], row: Row) -> str:
    return row.candidate.direction[:2] if len(rows) <= LETTERED else ""


def _sized(rows: list[Row]) -> tuple[float]:
    return (8.5,) if len(rows) <= LETTERED else (4.5,)


def _reference_line(y: svg.Scale) -> Markup:
    return joined([
        tag("line", x1=svg.LEFT, x2=svg.WIDTH - svg.RIGHT, y1=y.at(1.0), y2=y.at(1.0), class_="reference"),
        tag("text", "eager", x=svg.WIDTH - svg.RIGHT, y=y.at(1.0) - 5, text_anchor="end", class_="tick"),
    ])


def _rounds(rows: list[Row], x: svg.Scale, bottom: float) -> Markup:
    """A line where a round begins, and its number."""
    parts, before = [], None
    narrow = len({row.candidate.round for row in rows}) * ROUND_WIDTH > svg.WIDTH - svg.LEFT
    for index, row in enumerate(rows):
        number = row.candidate.round
        if number != before and number > 0:
            edge = x.at(index - 0.5)
            parts.append(tag("line", x1=edge, x2=edge, y1=svg.TOP, y2=bottom, class_="round"))
            parts.append(tag("text", number if narrow else f"round {number}", x=edge + 5, y=svg.TOP + 8, class_="tick"))
        before = number
    return joined(parts)


def _names(rows: list[Row], x: svg.Scale, bottom: float) -> Markup:
    every = -(-len(rows) // MOST_NAMES)
    return joined(tag("text", row.label, x=x.at(index), y=bottom + 17, text_anchor="middle", class_="tick")
                  for index, row in enumerate(rows) if index % every == 0)


def _counts(x: svg.Scale, most: int, bottom: float) -> Markup:
    every = 1 if most <= MOST_NAMES else 6 * -(-most // 60)
    return joined(tag("text", count, x=x.at(count), y=bottom + 17, text_anchor="middle", class_="tick")
                  for count in range(1, most + 1) if count in BUDGETS or count % every == 0)


def _legend(*, best: bool = True) -> Markup:
    def sample(mark: Markup, words: str) -> Markup:
        return tag("li", tag("svg", mark, viewBox="0 0 20 20", class_="sample", aria_hidden="true"), words)

    return tag("ul",
               sample(svg.dot(10, 10, 6, ""), "accepted"),
               sample(svg.dot(10, 10, 6, "", best=True), "the best") if best else None,
               sample(svg.cross(10, 10, 5, ""), "slower, rejected or not judged"), class_="legend", role="list")

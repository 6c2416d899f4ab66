"""The small part of a plotting library that the report needs: scales, axes and marks as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.report_html.markup import Markup, joined, tag

WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 86, 20, 14, 46
# Above this ratio of largest to smallest, ratios are read better on a logarithmic axis.
LOG_RATIO = 4.0
MOST_TICKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values to positions.

    Attributes:
        low, high: Values at the ends.
        start, end: Positions of the ends.
        log: Equal ratios are equal distances.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where `value` is drawn; never outside of the plot."""
        if self.log:
            part = math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return round(self.start + min(max(part, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Round values inside the scale, a handful of them."""
        if self.log and self.high / self.low >= LOG_RATIO:
            return _log_ticks(self.low, self.high)
        return _linear_ticks(self.low, self.high)


def ratio_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale for ratios around 1: logarithmic where they differ much, with some room at both ends."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= LOG_RATIO:
        return Scale(low=low / 1.15, high=high * 1.15, start=start, end=end, log=True)
    room = 0.1 * (high - low) or 0.1 * high or 1.0
    return Scale(low=max(0.0, low - room), high=high + room, start=start, end=end)


def decades(values: Sequence[float], start: float, end: float) -> Scale:
    """A logarithmic scale with room at both ends."""
    return Scale(low=min(values) / 2.5, high=max(values) * 2.5, start=start, end=end, log=True)


def drawing(height: float, *parts: Markup, identity: str) -> Markup:
    """The picture. A reader that cannot see it is told its heading and its sentence, and has the table."""
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height:g}", role="img",
               aria_labelledby=f"{identity}-heading {identity}-says", class_="plot")


def y_axis(scale: Scale, label: str, *, unit: str = "") -> Markup:
    """Grid lines, numbers and the label of the vertical axis."""
    middle = (scale.start + scale.end) / 2
    return joined([
        *[(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=scale.at(value), y2=scale.at(value), class_="grid"),
           tag("text", short(value) + unit, x=LEFT - 8, y=scale.at(value) + 4, text_anchor="end", class_="tick"))
          for value in scale.ticks()],
        tag("text", label, x=16, y=middle, transform=f"rotate(-90 16 {middle:g})", text_anchor="middle",
            class_="label"),
    ])


def x_label(text: str, bottom: float) -> Markup:
    """The label of the horizontal axis, below its numbers."""
    return tag("text", text, x=(LEFT + WIDTH - RIGHT) / 2, y=bottom + 38, text_anchor="middle", class_="label")


def steps(points: Sequence[tuple[float, float]], right: float) -> str:
    """Points of a line that stays level until the next one."""
    found: list[str] = []
    for index, (x, y) in enumerate(points):
        until = points[index + 1][0] if index + 1 < len(points) else right
        found += [f"{x:g},{y:g}", f"{until:g},{y:g}"]
    return " ".join(found)


def cross(x: float, y: float, size: float, said: str) -> Markup:
    """The mark of what was rejected."""
    d = f"M{x - size:g} {y - size:g}l{2 * size:g} {2 * size:g}M{x - size:g} {y + size:g}l{2 * size:g} {-2 * size:g}"
    return tag("path", _title(said), d=d, class_="rejected")


def dot(x: float, y: float, size: float, said: str, *, letter: str = "", best: bool = False) -> Markup:
    """The mark of what was accepted, with a letter in it where there is room; the best is a diamond."""
    class_ = "accepted best" if best else "accepted"
    if best:
        size *= 1.3
        shape = tag("path", d=f"M{x:g} {y - size:g}L{x + size:g} {y:g}L{x:g} {y + size:g}L{x - size:g} {y:g}Z",
                    class_=class_)
    else:
        shape = tag("circle", cx=x, cy=y, r=size, class_=class_)
    inside = tag("text", letter, x=x, y=y + 3.5, text_anchor="middle", class_="letter") if letter else None
    return tag("g", _title(said), shape, inside)


def short(value: float) -> str:
    """A number for an axis."""
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:g}"


def _title(said: str) -> Markup | None:
    """What the mouse is told; a sample in a legend says nothing."""
    return tag("title", said) if said else None


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps_ in ((1, 2, 5), (1,)):
        found = [step * 10.0**power for power in range(first, last + 1) for step in steps_]
        found = [value for value in found if low <= value <= high]
        if len(found) <= MOST_TICKS:
            return found
    return found[:: -(-len(found) // MOST_TICKS)]


def _linear_ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]

"""The roofline: what the device allows at each arithmetic intensity, and where reference and candidates stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.records import Device, WorkloadProfile
from engine.report_html import svg
from engine.report_html.markup import Markup, joined, tag
from engine.report_html.rows import Row
from engine.report_html.tables import plot_section, table
from engine.trajectory import Trajectory

IDENTITY, TITLE = "roofline", "Roofline"
HEIGHT = 270
# Labels of points that stand close together are moved apart by this.
LABEL_GAP = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured time, drawn at the workload's own intensity."""

    name: str
    time_us: float
    kind: str

    def rate(self, workload: WorkloadProfile) -> float:
        """FLOP/s."""
        return workload.flops / (self.time_us * 1e-6)


def roofline(trajectory: Trajectory, rows: list[Row]) -> Markup:
    """The section."""
    device, workload = trajectory.device, trajectory.workload
    if device is None or workload is None:
        return plot_section(IDENTITY, TITLE, "Not drawn: the run ended before the work was profiled.")
    points = _points(trajectory, rows)
    numbers = _numbers(workload, points)
    bandwidth = device.copy_bytes_per_s or device.dram_bytes_per_s
    peak = device.flops_per_s.get(workload.arithmetic, 0.0)
    if not (workload.flops > 0 and workload.bytes > 0 and bandwidth > 0 and peak > 0
            and math.isfinite(workload.intensity)):
        why = "the arithmetic of the work is not known" if not workload.arithmetic_known else \
            "the work has no floating-point operations to count" if not workload.flops else \
            "the device's rates are not known"
        return plot_section(IDENTITY, TITLE, f"Not drawn: {why}. {_standing(trajectory, points)}", None, numbers)
    return plot_section(IDENTITY, TITLE, _sentence(trajectory, device, workload, points),
                        _drawn(workload, points, bandwidth, peak), numbers, _legend(points))


def _points(trajectory: Trajectory, rows: list[Row]) -> list[Point]:
    baseline, found = trajectory.baseline, []
    if baseline.eager_us:
        found.append(Point(name="eager", time_us=baseline.eager_us, kind="reference"))
    if baseline.compile_us:
        found.append(Point(name="torch.compile", time_us=baseline.compile_us, kind="reference"))
    found += [Point(name=f"candidate {row.label}", time_us=row.timing.median_us,
                    kind="best" if row.is_best else "accepted") for row in rows if row.timing]
    return found


def _drawn(workload: WorkloadProfile, points: list[Point], bandwidth: float, peak: float) -> Markup:
    bottom, ridge = svg.TOP + HEIGHT, peak / bandwidth
    here = workload.intensity
    x = svg.decades([here / 4, here * 4, ridge / 4, ridge * 4], svg.LEFT, svg.WIDTH - svg.RIGHT)
    allowed = min(peak, bandwidth * here)
    rates = [point.rate(workload) for point in points]
    y = svg.decades([peak, allowed / 20, *rates], bottom, svg.TOP)
    corner = (x.at(ridge), y.at(peak))
    left = max(x.low, y.low / bandwidth)
    return svg.drawing(
        bottom + svg.BOTTOM,
        _rate_axis(y), _intensity_axis(x, bottom),
        tag("polyline", class_="roof",
            points=f"{x.at(left)},{y.at(bandwidth * left)} {corner[0]},{corner[1]} {x.end},{corner[1]}"),
        tag("text", f"{bandwidth / 1e12:.3g} TB/s", x=x.at(left) + 24, y=y.at(bandwidth * left) + 4, class_="tick"),
        tag("text", f"{peak / 1e12:.3g} TFLOP/s {workload.arithmetic}", x=x.end - 4, y=corner[1] - 7,
            text_anchor="end", class_="tick"),
        tag("line", x1=x.at(here), x2=x.at(here), y1=y.at(allowed), y2=bottom, class_="workload"),
        tag("text", "this work", x=x.at(here) + 6, y=bottom - 7, class_="tick"),
        _marks(workload, points, x.at(here), y), svg.x_label("FLOP a byte (estimated)", bottom), identity=IDENTITY,
    )


def _marks(workload: WorkloadProfile, points: list[Point], place: float, y: svg.Scale) -> Markup:
    """The points; names at the references and the best only, moved apart where they would overlap."""
    parts, labelled = [], []
    for point in sorted(points, key=lambda point: point.kind == "best"):
        level, said = y.at(point.rate(workload)), f"{point.name}: {point.time_us:.4g} us, measured"
        if point.kind == "reference":
            parts.append(tag("rect", tag("title", said), x=place - 5, y=level - 5, width=10, height=10,
                             class_="reference-mark"))
        else:
            parts.append(svg.dot(place, level, 5, said, best=point.kind == "best"))
        if point.kind != "accepted":
            labelled.append((level, point.name))
    last = -math.inf
    for level, name in sorted(labelled):
        last = max(level + 4, last + LABEL_GAP)
        parts.append(tag("text", name, x=place + 12, y=last, class_="tick"))
    return joined(parts)


def _rate_axis(y: svg.Scale) -> Markup:
    ticks = [value for value in y.ticks() if math.log10(value) % 1 < 1e-9 or y.high / y.low < 1e3]
    return joined([
        *[(tag("line", x1=svg.LEFT, x2=svg.WIDTH - svg.RIGHT, y1=y.at(value), y2=y.at(value), class_="grid"),
           tag("text", _rate(value), x=svg.LEFT - 8, y=y.at(value) + 4, text_anchor="end", class_="tick"))
          for value in ticks],
        tag("text", "FLOP/s", x=14, y=(y.start + y.end) / 2, transform=f"rotate(-90 14 {(y.start + y.end) / 2:g})",
            text_anchor="middle", class_="label"),
    ])


def _intensity_axis(x: svg.Scale, bottom: float) -> Markup:
    return joined([
        tag("line", x1=svg.LEFT, x2=svg.WIDTH - svg.RIGHT, y1=bottom, y2=bottom, class_="axis"),
        *[tag("text", svg.short(value), x=x.at(value), y=bottom + 17, text_anchor="middle", class_="tick")
          for value in x.ticks()],
    ])


def _rate(value: float) -> str:
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return svg.short(value)


def _sentence(trajectory: Trajectory, device: Device, workload: WorkloadProfile, points: list[Point]) -> str:
    rates = "the data sheet" if device.peaks == "data sheet" else "estimated rates"
    return (f"The roof is that of {device.name} by {rates}; the work stands at {workload.intensity:.3g} FLOP a byte, "
            f"counting bytes that must move once, so an ideal kernel is {workload.bound} bound and takes "
            f"{workload.roof_us:.4g} us (estimated). {_standing(trajectory, points)}")


def _standing(trajectory: Trajectory, points: list[Point]) -> str:
    """Where the best measured time stands, or that there is none."""
    workload = trajectory.workload
    best = next((point for point in points if point.kind == "best"), None)
    if best is not None and workload is not None and workload.roof_us > 0:
        return f"The best candidate takes {best.time_us / workload.roof_us:.2f} times the roof's time (measured)."
    if not trajectory.measured:
        return "Nothing stands below it, because without a GPU no time was measured."
    return "No candidate was accepted with a measured time."


def _numbers(workload: WorkloadProfile, points: list[Point]) -> Markup:
    def times_roof(point: Point) -> str:
        return f"{point.time_us / workload.roof_us:.2f}" if workload.roof_us > 0 else "-"

    cells = [("roof", f"{workload.roof_us:.4g} us", "estimated", "1.00"),
             *[(point.name, f"{point.time_us:.4g} us", "measured", times_roof(point)) for point in points]]
    return table("Times and the roof", ("what", "time", "how it is known", "times the roof"), cells, numeric={1, 3})


def _legend(points: list[Point]) -> Markup | None:
    if not points:
        return None

    def sample(mark: Markup, words: str) -> Markup:
        return tag("li", tag("svg", mark, viewBox="0 0 20 20", class_="sample", aria_hidden="true"), words)

    return tag("ul", sample(tag("rect", x=5, y=5, width=10, height=10, class_="reference-mark"), "reference"),
               sample(svg.dot(10, 10, 5, ""), "candidate"), sample(svg.dot(10, 10, 5, "", best=True), "the best"),
               class_="legend", role="list")

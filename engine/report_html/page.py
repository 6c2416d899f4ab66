"""The page put together: what came out first, then how the search went, then all of the evidence."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from engine import report
from engine.records import Evaluation, WorkloadProfile
from engine.report_html import evidence, plots
from engine.report_html.markup import Child, Markup, joined, tag
from engine.report_html.roofline import roofline
from engine.report_html.rows import Row, rows_of
from engine.report_html.tables import facts, how, section
from engine.trajectory import Trajectory

STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
CONTENTS = (("progress", "Search progress"), ("budget", "Budget curve"), ("roofline", "Roofline"),
            ("rounds", "Plans and directions"), ("candidates", "Candidates"), ("checks", "Checks"),
            ("kernel", "Kernel"), ("work", "Work and baseline"), ("text", "As text"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The report in parts, for those who show it inside of a page of their own.

    Attributes:
        title: Plain text.
        body: The `main` element.
        finished: Nothing will be added to the run.
    """

    title: str
    body: str
    finished: bool


def page(trajectory: Trajectory) -> str:
    """The whole page as a file of its own."""
    found = parts(trajectory)
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = joined([
        tag("meta", charset="utf-8"), tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy), tag("meta", name="referrer",
                                                                              content="no-referrer"),
        tag("title", found.title), Markup(f"<style>{STYLE}</style>"),
    ])
    return f"<!doctype html>\n<html lang=\"en\"><head>{head}</head><body>{found.body}</body></html>\n"


def parts(trajectory: Trajectory) -> Page:
    """Title and content."""
    name = trajectory.contract.name if trajectory.contract else trajectory.run
    rows = rows_of(trajectory)
    body = tag(
        "main", _head(trajectory, name), _banner(trajectory), _tiles(trajectory, rows), _contents(),
        plots.progress(trajectory, rows), plots.budget(trajectory, rows), roofline(trajectory, rows),
        evidence.rounds(trajectory), evidence.candidates(trajectory, rows), evidence.checks(rows),
        evidence.kernel(trajectory), _work(trajectory), _as_text(trajectory),
    )
    return Page(title=f"HIERA report: {name}", body=body, finished=trajectory.stopped is not None)


def _head(trajectory: Trajectory, name: str) -> Markup:
    job = trajectory.job
    target = f"{job.file}::{job.name}" if job and job.name else job.file if job else ""
    return tag("header", tag("h1", name),
               tag("p", "run ", tag("code", trajectory.run), " · " if target else None,
                   tag("code", target) if target else None, class_="run"))


def _banner(trajectory: Trajectory) -> Markup:
    said = []
    if trajectory.stopped is None:
        said.append(tag("p", "The search has not ended: it is at work, or it was interrupted. This is what is known so "
                        "far.", class_="banner working"))
    elif not trajectory.stopped.complete:
        said.append(tag("p", f"The search did not run to its end ({trajectory.stopped.reason}). It can be resumed.",
                        class_="banner working"))
    device = trajectory.device
    if trajectory.measured and device is not None:
        said.append(tag("p", f"Times were measured on {device.name}, each paired with the reference's.",
                        class_="banner"))
    elif device is not None:
        said.append(tag("p", tag("strong", "No time was measured: "),
                        "there was no GPU. Candidates were verified on the CPU. No speed-up is claimed and no order of "
                        f"speed is shown; static estimates are for {device.name} and say that they are estimates.",
                        class_="banner unmeasured"))
    return joined(said)


def _tiles(trajectory: Trajectory, rows: list[Row]) -> Markup:
    """The result at a glance."""
    accepted = sum(row.accepted for row in rows)
    judged = sum(row.evaluation is not None for row in rows)
    baseline, first = trajectory.baseline, trajectory.first_verified_s
    tiles: list[tuple[str, Child, Child]] = [_result(trajectory)]
    if baseline.eager_us is not None:
        compiled = f"{baseline.compile_us:.4g} us" if baseline.compile_us is not None else "not measured"
        tiles.append(("Eager", f"{baseline.eager_us:.4g} us", f"torch.compile {compiled}"))
    if trajectory.workload is not None:
        work = trajectory.workload
        tiles.append(("Limit of the work", report.bound_words(work), f"roof {work.roof_us:.4g} us, estimated"))
    tiles.append(("Candidates", f"{accepted} accepted", f"{judged} judged, {len(rows)} written"))
    tiles.append(("Search", f"{trajectory.wall_s:.0f} s",
                  f"first verified after {first:.0f} s" if first is not None else "none verified"))
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value, tag("small", more))) for name, value, more in tiles],
               class_="tiles")


def _result(trajectory: Trajectory) -> tuple[str, Child, Child]:
    best = trajectory.best
    if best is None:
        return "Result", "nothing accepted", trajectory.stopped.reason if trajectory.stopped else "so far"
    evaluation = trajectory.evaluations[best.id]
    if evaluation.timing is None:
        own = ", the file as it stands," if trajectory.is_as_it_stands(best.id) else ""
        return "Result", "not measured", f"{best.id}{own} is {_verified(evaluation)}"
    over_own = trajectory.over_own(best.id)
    speedup = over_own[0] if over_own else evaluation.timing.speedup
    gain, rest = report.gain_words(trajectory, best).split(" ", 1)
    if not trajectory.is_faster(best.id):
        return "Result", "nothing faster", f"best accepted {gain} {rest}, {_verified(evaluation)}"
    return "Result", f"{speedup:.2f}x", f"{rest}, {_verified(evaluation)}"


def _verified(evaluation: Evaluation) -> str:
    return "confirmed" if evaluation.confirmed else "verified, not confirmed"


def _contents() -> Markup:
    return tag("nav", tag("ul", [tag("li", tag("a", title, href=f"#{identity}")) for identity, title in CONTENTS],
                          role="list"), aria_label="Contents")


def _work(trajectory: Trajectory) -> Markup:
    """What the work costs at least and what the reference takes, each with how it is known."""
    work, baseline, device = trajectory.workload, trajectory.baseline, trajectory.device
    rows: list[tuple[Child, Child, Child]] = []
    if device is not None:
        gpu = device.kind == "cuda"
        rows.append(("device" if gpu else "target, not present", f"{device.name}, compute capability {device.sm}",
                     how("measured on it" if gpu else "not measured")))
    for what, value in (("eager", baseline.eager_us), ("torch.compile", baseline.compile_us),
                        ("eager in a CUDA graph", baseline.graph_us)):
        rows.append((what, "-" if value is None else f"{value:.4g} us",
                     how("not measured" if value is None else "measured")))
    if work is not None:
        rates = how("estimated")
        rows += [("bytes that must move", f"{work.bytes / 1e6:.4g} MB", rates),
                 *_arithmetic(work),
                 ("roof", f"{work.roof_us:.4g} us", rates), ("floor", f"{work.floor_us:.4g} us", rates),
                 ("kernel launches of eager", work.launches, rates)]
        rows += [(f"share of {share.op}", f"{share.share:.0%}", how(share.how))
                 for share in report.operator_shares(work)[:6]]
    notes = [tag("li", note) for note in dict.fromkeys((*trajectory.notes, *baseline.notes))]
    words = report.usage_words(trajectory.usage)
    return section("work", "Work and baseline",
                   facts("What the work costs and the reference takes", rows) if rows
                   else tag("p", "The run ended before this was known."),
                   tag("p", f"Language model: {words}") if words else None,
                   joined([tag("h3", "Notes"), tag("ul", notes)]) if notes else None)


def _arithmetic(work: WorkloadProfile) -> list[tuple[Child, Child, Child]]:
    if not work.arithmetic_known:
        return [("floating-point operations", "-", how("not known"))]
    return [("floating-point operations", f"{work.flops / 1e9:.4g} GFLOP", how("estimated")),
            ("arithmetic intensity", f"{work.intensity:.4g} FLOP a byte", how("estimated"))]


def _as_text(trajectory: Trajectory) -> Markup:
    return section("text", "As text", tag("details", tag("summary", "The summary as hiera show prints it"),
                                          tag("pre", report.text(trajectory), tabindex="0"), id="text-summary"))

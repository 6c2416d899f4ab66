"""The report page: what it claims, that it can be read in every way, and that nothing of a user's becomes markup."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from engine import report, report_candidate, report_html
from engine.records import SLOWER, Build, Check, Failure, KernelFacts, Score, Strategy
from engine.report_html.rows import best_after, rows_of
from engine.report_html.svg import Scale, ratio_scale
from engine.trajectory import Note, Stopped, Trajectory, Usage
from tests import report_runs as runs

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)></style></title>\u202egnp.exe\x00"
VOID = {"meta", "br", "img", "link", "input"}


class Read(HTMLParser):
    """What a page consists of; a tag that is not closed where it should be is a failure."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.words: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.elements if name == tag]

    @property
    def text(self) -> str:
        return "".join(data for tag, data in self.words if tag != "style")


def hostile_run() -> Trajectory:
    made = runs.candidate(0, title=HOSTILE, author=HOSTILE, direction=HOSTILE, source=HOSTILE)
    found = runs.timed(made, 2.0)
    assert found.verification is not None
    found = replace(
        found, build=Build(seconds=1, tier="light", warnings=(HOSTILE,),
                           kernels=(KernelFacts(name=HOSTILE, registers=1, shared_bytes=0, spill_bytes=0),)),
        verification=replace(found.verification, where=HOSTILE, isolation=HOSTILE, checks=(
            *found.verification.checks, Check(name=HOSTILE, status="not run: " + HOSTILE, detail=HOSTILE))))
    other = runs.candidate(1, title=HOSTILE)
    bad = replace(runs.rejected(other), failure=Failure(stage="build", reason=HOSTILE, log_tail=HOSTILE))
    return runs.run_of(
        ("job", replace(runs.JOB, file=HOSTILE, name=HOSTILE)), ("contract", replace(runs.CONTRACT, name=HOSTILE)),
        ("device", replace(runs.DEVICE, name=HOSTILE)), ("workload", replace(runs.WORK, arithmetic="fp32")),
        ("plan", runs.plan(1, HOSTILE, space_reason=HOSTILE, reason=HOSTILE, author=HOSTILE, transfer=(HOSTILE,),
                           scores={HOSTILE: Score(value=3.0, reason=HOSTILE)})),
        ("strategy", Strategy(steps=(HOSTILE,), constraints=(HOSTILE,))), ("candidate", made), ("evaluation", found),
        ("candidate", other), ("evaluation", bad), ("usage", Usage(requests=1, model=HOSTILE)),
        ("note", Note(text=HOSTILE)), ("stopped", Stopped(reason=HOSTILE, complete=False)), name=HOSTILE)


RUNS = {
    "measured": runs.run_of(*runs.measured_events()), "unmeasured": runs.run_of(*runs.unmeasured_events()),
    "at work": runs.run_of(*runs.measured_events()[:8]), "only begun": runs.run_of(("job", runs.JOB)),
    "nothing": Trajectory(run="r"), "nothing accepted": runs.run_of(*runs.measured_events((None, None))),
    "large": runs.run_of(*runs.measured_events((0.2, None, 1.0, 9.0, 2.0) * 10)), "hostile": hostile_run(),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_page_stands_alone_and_runs_nothing(name):
    page = report_html.page(RUNS[name])
    read = Read(page)
    assert page.startswith("<!doctype html>")
    assert {tag for tag, _, _ in read.elements} & {"script", "img", "link", "iframe", "object", "form", "input"} == set()
    for tag, attributes, _ in read.elements:
        assert not [key for key in attributes if key.startswith("on") or key in ("style", "src", "srcset", "xlink:href")]
        assert attributes.get("href", "#").startswith("#"), tag
    assert not re.search(r"https?:|url\(|@import", page)


@pytest.mark.parametrize("name", RUNS)
def test_its_policy_allows_its_own_style_and_nothing_else(name):
    page = report_html.page(RUNS[name])
    (policy,) = [meta["content"] for meta in Read(page).of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.split("; ") == ["default-src 'none'", f"style-src 'sha256-{digest}'", "base-uri 'none'",
                                  "form-action 'none'"]


@pytest.mark.parametrize("name", RUNS)
def test_it_can_be_read_without_sight_colour_or_mouse(name):
    read = Read(report_html.page(RUNS[name]))
    ids = [attributes["id"] for _, attributes, _ in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes, parents in read.elements:
        for identity in (attributes.get("aria-labelledby") or "").split():
            assert identity in ids
        if (attributes.get("href") or "").startswith("#"):
            assert attributes["href"][1:] in ids
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if tag == "svg":
            # A picture has a name and a sentence, and its numbers as a table; a decoration is hidden.
            assert attributes.get("aria-hidden") == "true" or attributes["role"] == "img"
        if tag == "table":
            assert parents[-1] == "div"
    pictures = [a["aria-labelledby"].split()[0].removesuffix("-heading") for a in read.of("svg") if a.get("role") == "img"]
    assert all(f"{identity}-numbers" in ids for identity in pictures)
    assert len(read.of("table")) == len(read.of("caption"))
    scrolls = [a for a in read.of("div") if a.get("class") == "scroll"]
    assert all(a["tabindex"] == "0" and a["role"] == "region" and a["aria-label"] for a in scrolls)
    places = [a["aria-label"] for a in scrolls] + [word for tag, word in read.words if tag == "h2"]
    assert len(places) == len(set(places)), "no two places of the page have one name"
    assert "<th scope=\"col\"></th>" not in report_html.page(RUNS[name])
    levels = [int(tag[1]) for tag, _, _ in read.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert read.of("html") == [{"lang": "en"}]
    assert len(read.of("main")) == 1


def test_what_a_user_or_a_model_wrote_is_only_ever_text():
    page = report_html.page(RUNS["hostile"])
    read = Read(page)
    # Everywhere it was put, it is read back letter for letter, but for what cannot be seen.
    shown = HOSTILE.replace("\u202e", "[U+202E]").replace("\x00", "[U+0000]")
    assert read.text.count(shown) > 20
    assert "\u202e" not in page
    assert "\x00" not in page
    assert not re.search(r"<script|<img", page)
    page.encode("utf-8")


def test_a_measured_run_is_drawn_with_its_numbers():
    trajectory = RUNS["measured"]
    read = Read(report_html.page(trajectory))
    assert "2.60x" in read.text
    assert "Best measured speed-up over eager: 1.20x after 1, 1.90x after 6, 2.60x after 7." in read.text
    assert "5 of 7 candidates were accepted and timed" in read.text
    assert "Times were measured on Test GPU" in read.text
    assert best_after(rows_of(trajectory)) == [(1, 1.2), (2, 1.2), (3, 1.2), (4, 1.9), (5, 1.9), (6, 1.9), (7, 2.6)]
    assert len([a for a in read.of("path") if a.get("class") == "rejected"]) == 2 + 1  # One more in the legend.
    assert "check numeric: 7 of 8 elements differ" in read.text
    assert "1.23 times the roof's time (measured)" in read.text


def test_one_that_was_left_as_slower_is_told_with_its_brief_time_and_is_no_rejected_one():
    made, best = runs.candidate(0), runs.candidate(1)
    left = replace(runs.timed(made, 1.5), stage="built", failure=Failure(stage=SLOWER, reason="the best is faster"))
    trajectory = runs.run_of(*runs.head(), ("candidate", best), ("evaluation", runs.timed(best, 2.0)),
                             ("candidate", made), ("evaluation", left), ("stopped", Stopped(reason="done")))
    read = Read(report_html.page(trajectory))
    assert "1.500x (briefly)" in read.text
    assert "measured briefly" in read.text
    assert "1 of 2 candidates were accepted and timed" in read.text
    assert [a.get("class") for a in read.of("div") if a.get("class") in ("bad", "missing")] == ["missing"]
    found = report.document(trajectory)["candidates"][1]
    assert (found["rejected"], found["rejected_at"], found["slower"]) == (None, None, "the best is faster")
    assert "slower: the best is faster" in report_candidate.build_log(trajectory, made)
    assert report.state(trajectory, left) == SLOWER


def test_points_never_stand_above_the_roof_and_faster_ones_stand_higher():
    page = report_html.page(RUNS["measured"])
    drawn = page[page.index('id="roofline"'):page.index('id="rounds"')]
    roof = [tuple(map(float, point.split(","))) for point in re.search(r'points="([^"]+)" class="roof"|class="roof" '
            r'points="([^"]+)"', drawn)[2].split()]
    heights = {float(us): float(y) for us, y in re.findall(
        r"<title>[^<]*: ([\d.]+) us, measured</title><circle cx=\"[\d.]+\" cy=\"([\d.]+)\"", drawn)}
    x = float(re.search(r'<circle cx="([\d.]+)"', drawn)[1])
    (x0, y0), (x1, y1), _ = roof
    allowed = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    assert [us for us, _ in sorted(heights.items(), key=lambda pair: pair[1])] == sorted(heights)
    assert all(y >= allowed - 0.2 for y in heights.values())  # SVG counts downwards.


def test_without_a_gpu_nothing_is_claimed_ranked_or_drawn_as_a_speed():
    read = Read(report_html.page(RUNS["unmeasured"]))
    assert "No time was measured" in read.text
    assert not re.search(r"\d\.\d+x|\bmeasured on it\b", read.text)
    assert "there was no GPU, so no time was measured" in read.text
    assert "2 of 3 were accepted. No speed is shown and none is ranked" in read.text
    assert not any("best" in (a.get("class") or "").split() for _, a, _ in read.elements)
    marks = [data for tag, data in read.words if tag == "span" and data in ("measured", "estimated", "not measured")]
    assert "estimated" in marks
    assert "measured" not in marks
    # In the order of making, though the first has the smallest estimate only by chance: no order of speed.
    ids = [a["id"] for a in read.of("tr") if (a.get("id") or "").startswith("candidate-")]
    assert ids == [f"candidate-{c.id}" for c in RUNS["unmeasured"].candidates]


def test_checks_that_did_not_run_are_no_passes_and_say_why():
    trajectory = RUNS["measured"]
    page = report_html.page(trajectory)
    checks = page[page.index('id="checks"'):page.index('id="kernel"')]
    assert "not run: the device has one stream" in checks
    assert checks.count("✗ fail") == 2
    assert "not asked" in checks


def test_a_run_at_work_says_so_and_a_run_that_was_cut_can_be_resumed():
    assert "The search has not ended" in Read(report_html.page(RUNS["at work"])).text
    assert report_html.parts(RUNS["at work"]).finished is False
    cut = runs.run_of(*runs.measured_events()[:8], ("stopped", Stopped(reason="cancelled", complete=False)))
    assert "did not run to its end (cancelled). It can be resumed." in Read(report_html.page(cut)).text
    assert report_html.parts(cut).finished is True


def test_work_without_arithmetic_has_no_roofline_but_its_numbers():
    events = [(kind, replace(runs.WORK, flops=0, intensity=0.0) if kind == "workload" else value)
              for kind, value in runs.measured_events()]
    text = Read(report_html.page(runs.run_of(*events))).text
    assert "Not drawn: the work has no floating-point operations to count." in text
    assert "candidate 7" in text


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0], [0.999, 1.0], [0.2, 9.0], [1e-6, 1e6], [0.0, 1.0]])
def test_scales_keep_what_they_show_inside(values):
    scale = ratio_scale(values, 300.0, 10.0)
    assert all(10.0 <= scale.at(value) <= 300.0 for value in values)
    assert 2 <= len(scale.ticks()) <= 12
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks())
    assert scale.at(max(values)) <= scale.at(min(values))


def test_a_logarithmic_scale_gives_equal_ratios_equal_room():
    scale = Scale(low=1.0, high=100.0, start=0.0, end=200.0, log=True)
    assert [scale.at(value) for value in (1, 10, 100, 1000)] == [0.0, 100.0, 200.0, 200.0]


def test_a_colour_that_a_theme_lacks_is_taken_for_that_themes_brightness():
    # The scheme of an editor's theme may be another than that of the system, which a media query would ask.
    assert not re.search(r"var\(--vscode-[\w-]+,#|prefers-color-scheme", report_html.STYLE)
    assert "body.vscode-dark" in report_html.STYLE

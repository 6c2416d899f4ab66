"""Snapshots of what hovers and diagnostics say. UPDATE_SNAPSHOTS=1 writes them anew; read the difference."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_lsp_server import KERNEL, summary

from engine.records import Candidate, Counters, Evaluation, HotLine, Plan
from engine.report import titled
from engine.trajectory import Event, Trajectory
from hiera_lsp import texts
from hiera_lsp.documents import Document
from hiera_lsp.features import diagnostics
from hiera_lsp.features.diagnostics import documentation
from hiera_lsp.jobs import JobEnd
from hiera_lsp.results import Result
from hiera_lsp.session import Client, Session
from hiera_lsp.sites import find
from hiera_lsp.summarise import summarise
from hiera_lsp.summary import HotLineSummary

FOLDER = Path(__file__).parent / "data" / "lsp_texts"


def result(tmp_path: Path, kind: str) -> Result:
    found = summary(tmp_path, KERNEL, "Block")
    best = found.candidates[0]
    match kind:
        case "gpu":
            best = replace(best, planned="M", direction="R", compile_ci95=(1.18, 1.22), title="a.unroll = 4, with a.width = 2")
            found = replace(found, candidates=(best,), evidence_how="measured on candidate abc", move="R", hot_candidate="abc",
                            hot_lines=(HotLineSummary(line=6, share=0.71, stall="long scoreboard"),))
        case "no_gpu":
            best = replace(best, median_us=None, speedup=None, ci95=None, speedup_vs_compile=None)
            found = replace(found, measured=False, evidence_how="estimated", eager_us=None, compile_us=None, where="cpu emulation",
                            candidates=(best,))
        case "nothing_faster":
            best = replace(best, speedup=0.97, ci95=(0.95, 0.99))
            found = replace(found, candidates=(best,))
        case "nothing":
            found = replace(found, candidates=(replace(best, accepted=False, rejected="numeric: 3 elements differ"),), best=None,
                            checks=None, bound="")
        case "no_counters":
            found = replace(found, evidence_how="estimated (not measured: ERR_NVGPUCTRPERM)", complete=False,
                            profiled="not measured: ERR_NVGPUCTRPERM")
    return Result(uri="file:///model.py", symbol="Block", text_hash="h", summary=found, chosen=found.best,
                  finished_at=datetime.now(UTC).isoformat())


@pytest.mark.parametrize("kind", ["gpu", "no_gpu", "nothing_faster", "nothing", "no_counters"])
def test_words(tmp_path: Path, kind: str) -> None:
    found = result(tmp_path, kind)
    parts = {
        "hover, Markdown": texts.hover(found, standing="offered", markdown=True),
        "hover, plain text, source changed": texts.hover(found, standing="stale", markdown=False),
        "hover, accepted": texts.hover(found, standing="accepted", markdown=False).splitlines()[-1],
        "diagnostic": f"{texts.diagnostic_code(found.summary)}\n{texts.diagnostic_message(found)}",
        "lens": texts.lens_title(found, stale=False),
        "explanation": texts.explanation(found, standing="offered").partition("## Candidates")[2],
    }
    compare(kind, parts)


def compare(kind: str, parts: dict[str, str]) -> None:
    said = "\n\n".join(f"==== {name}\n{text}" for name, text in parts.items()) + "\n"
    file = FOLDER / f"{kind}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(said, encoding="utf-8")
    assert said == file.read_text(encoding="utf-8")


def test_diagnostics_of_a_cu_file(tmp_path: Path) -> None:
    session = Session(client=Client(related_information=True, code_description=True))
    document = Document("file:///my/twice.cu", source=KERNEL, version=3)
    found = summary(tmp_path, KERNEL, "twice")
    own = replace(found.candidates[0], id="own", author="user", speedup=1.0, ci95=(1.0, 1.0))
    lines = (HotLineSummary(line=6, share=0.71, stall="long scoreboard"), HotLineSummary(line=5, share=0.05, stall="none"))
    found = replace(found, candidates=(own, *found.candidates), hot_lines=lines, hot_candidate="own",
                    evidence_how="measured on your code", profiled="not measured: ERR_NVGPUCTRPERM")
    (site,) = find(document.uri, KERNEL)
    session.results.update(Result(uri=document.uri, symbol="twice", text_hash=site.text_hash, summary=found, chosen="abc"))

    def told(every: list[Any]) -> str:
        shown = [f"{d.range.start.line}:{d.range.start.character}-{d.range.end.line}:{d.range.end.character} {d.severity.name} {d.source} "
                 f"{d.code}\n{d.message}" + "".join(f"\n-> {r.message}" for r in d.related_information or ())
                 + f"\n{d.code_description.href.rpartition('/')[2]}" for d in every]
        return "\n".join(shown)

    end = JobEnd(problem="the module cannot be imported", hint="install it", file="/my/other.py", line=7, code="hiera.input")
    wrong = Document("file:///my/wrong.cu", source=KERNEL.replace("float32[64]", "float32[n]", 1))
    accepted = replace(session.results.of(document.uri)[0], state="accepted", chosen="own")
    before = told(diagnostics.diagnostics(session, document))
    session.results.update(accepted)
    compare("diagnostics", {
        "the user's own text was profiled": before,
        "accepted": told(diagnostics.diagnostics(session, document)),
        "a job that could not be done": told([diagnostics.problem(session, document, site, end)]),
        "a wrong line": told(diagnostics.diagnostics(session, wrong)),
    })


@pytest.mark.parametrize(("median_us", "said"), [
    (18.0, "; the best runs at 50 % of it"), (8.9, "; the best runs at 101 % of it"),
    (3.0, "; the best is faster, by other arithmetic than the reference's")])
def test_a_time_below_the_roof_is_no_share_of_it(tmp_path: Path, median_us: float, said: str) -> None:
    found = result(tmp_path, "gpu").summary
    best = replace(found.candidates[0], median_us=median_us)
    assert said in texts.hover(replace(result(tmp_path, "gpu"), summary=replace(found, candidates=(best,))),
                               standing="offered", markdown=False)


def test_a_hover_is_short(tmp_path: Path) -> None:
    assert len(texts.hover(result(tmp_path, "gpu"), standing="offered", markdown=True).splitlines()) <= 30


@pytest.mark.parametrize("code", ["memory-bound", "compute-bound", "latency-bound", "result", "hot-line", "no-counters", "input",
                                  "configuration", "contract", "environment", "agent", "reverify", "cannot-optimize"])
def test_every_code_has_its_chapter(code: str) -> None:
    link = documentation(f"hiera.{code}")
    assert link is not None
    page = Path(link.partition("#")[0].removeprefix("file://"))
    assert f"\n## hiera.{code}\n" in page.read_text()
    assert link.endswith(f"#hiera{code}")


def trajectory_of(*evaluations: Evaluation) -> Trajectory:
    trajectory = Trajectory(run="r")
    plan = Plan(round=1, space="cuda", space_reason="", direction="P", scores={}, reason="rows")
    made = [Candidate(id="own", source="", space="cuda", round=0, author="user", title="the file as it stands"),
            Candidate(id="abc", source="", space="cuda", direction="M", title="a.unroll = 4",
                      recipe={"choices": {"a.width": 2, "a.unroll": 4}})]
    for kind, value in [("plan", plan), *(("candidate", c) for c in made), *(("evaluation", e) for e in evaluations)]:
        trajectory.apply(Event(kind, 0.0, value))
    return trajectory


def profiled(name: str, bound: str) -> Evaluation:
    counters = Counters(status="measured", bound=bound, evidence=(f"{bound} at 91 %",), lines=(HotLine(line=3, share=0.5, stall="x"),))
    return Evaluation(candidate_id=name, stage="profiled", counters=counters)


def test_the_bottleneck_is_that_of_the_users_own_code_where_it_was_measured(tmp_path: Path) -> None:
    both = summarise(trajectory_of(profiled("abc", "memory"), profiled("own", "compute")), tmp_path)
    assert (both.bound, both.evidence_how, both.hot_candidate) == ("compute", "measured on your code", "own")
    other = summarise(trajectory_of(profiled("abc", "memory")), tmp_path)
    assert (other.bound, other.evidence_how, other.hot_candidate) == ("memory", "measured on candidate abc", "abc")


def test_a_candidate_tells_the_plans_direction_its_move_and_all_that_it_changes(tmp_path: Path) -> None:
    found = summarise(trajectory_of(), tmp_path).candidates[1]
    assert (found.planned, found.direction, found.title) == ("P", "M", "a.unroll = 4, with a.width = 2")


def test_words_of_a_model_or_a_compiler_are_no_markup(tmp_path: Path) -> None:
    words = "static_cast<float> | ![x](https://host.example/y) <img src=z>\n\n![x](https://host.example/y)"
    found = result(tmp_path, "gpu")
    best = replace(found.summary.candidates[0], title=words)
    found = replace(found, summary=replace(found.summary, candidates=(best,), direction_reason=words, notes=(words,)))
    told = texts.explanation(found, standing="offered")

    assert "](" not in told
    assert "<" not in told
    assert told.count("static_cast&lt;float> / ![x]\\(https://host.example/y)") == 3
    (row,) = [line for line in told.splitlines() if line.startswith("| abc")]
    assert row.count("|") == 9


@pytest.mark.parametrize(("title", "choices", "said"), [
    ("every width = 2", {"a.width": 2, "b.width": 2}, "every width = 2"),
    ("every width = 2", {"a.width": 2, "b.width": 4}, "every width = 2, with b.width = 4"),
    ("default in cuda", {}, "default in cuda"),
])
def test_titles(title: str, choices: dict[str, int], said: str) -> None:
    assert titled(Candidate(id="a", source="", space="cuda", title=title, recipe={"choices": choices})) == said

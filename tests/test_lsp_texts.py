"""Snapshots of what hovers and diagnostics say. UPDATE_SNAPSHOTS=1 writes them anew; read the difference."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_lsp_server import KERNEL, summary

from hiera_lsp import texts
from hiera_lsp.features.diagnostics import documentation
from hiera_lsp.results import Result

FOLDER = Path(__file__).parent / "data" / "lsp_texts"


def result(tmp_path: Path, kind: str) -> Result:
    found = summary(tmp_path, KERNEL, "Block")
    best = found.candidates[0]
    match kind:
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
    said = "\n\n".join(f"==== {name}\n{text}" for name, text in parts.items()) + "\n"
    file = FOLDER / f"{kind}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(said, encoding="utf-8")
    assert said == file.read_text(encoding="utf-8")


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

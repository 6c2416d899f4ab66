"""The words of hovers, diagnostics and lenses, from a summary. Each number says where it comes from."""

from __future__ import annotations

from datetime import UTC, datetime

from hiera_lsp.results import Result, Standing
from hiera_lsp.summary import CandidateSummary, Summary

# Where the roof is so many times the best time, it is none for it: no rate is wrong by as much.
ABOVE = 1.05
SPACE_WORDS = {
    "cuda": "own CUDA kernels only", "cuda_libs": "own kernels and CUDA libraries",
    "cuda_libs_torch": "own kernels, CUDA libraries and PyTorch operators",
}
DIRECTION_WORDS = {
    "C": "control-flow and boundary specialisation", "P": "thread- and warp-level parallelism",
    "M": "memory-transaction efficiency", "R": "data reuse and data-movement pipelining",
    "T": "Tensor Core and instruction-pipeline utilisation",
}


def speedup_words(candidate: CandidateSummary | None, measured: bool) -> str:
    """`1.83x [1.80, 1.86] over eager`, or why there is no such number."""
    if candidate is None:
        return "no candidate was accepted"
    if candidate.speedup is None or candidate.ci95 is None:
        return "verified without a GPU: no speed-up is claimed" if not measured else "verified, not timed"
    words = f"{candidate.speedup:.2f}x [{candidate.ci95[0]:.2f}, {candidate.ci95[1]:.2f}] over {candidate.over}"
    if candidate.own_speedup is not None and candidate.own_ci95 is not None:
        low, high = candidate.own_ci95
        words = f"{candidate.own_speedup:.2f}x [{low:.2f}, {high:.2f}] over the file as it stands ({words})"
    return words if candidate.faster else f"nothing faster was found (best {words})"


def diagnostic_message(result: Result) -> str:
    """One or two lines: what limits the code, the proof, what was found."""
    summary = result.summary
    bound = f"{summary.bound}-bound, {summary.evidence_how}" if summary.bound else "bottleneck not known"
    proof = "; ".join(summary.evidence[:3])
    found = speedup_words(summary.best_candidate, summary.measured)
    where = f"space {summary.space}, direction {summary.direction}" if summary.direction else f"space {summary.space}"
    return f"{bound}: {proof}\n{where}: {found}{_state_words(result)}"


def diagnostic_code(summary: Summary) -> str:
    """Stable code of the bottleneck."""
    return f"hiera.{summary.bound}-bound" if summary.bound else "hiera.result"


def lens_title(result: Result, stale: bool) -> str:
    """Title of the first lens."""
    words = speedup_words(result.summary.best_candidate, result.summary.measured)
    return f"HIERA: {words}" + (" (source changed)" if stale else "")


def hover(result: Result, *, standing: Standing, markdown: bool) -> str:
    """The whole evidence in at most 30 lines."""
    summary = result.summary
    best = summary.best_candidate
    lines = [_title(summary, best, markdown)]
    rows: list[tuple[str, str]] = []
    if summary.bound:
        rows.append(("Bound", f"{summary.bound}, {summary.evidence_how}"))
        rows += [("", sentence) for sentence in summary.evidence[:3]]
    if summary.roof_us:
        intensity = f", {summary.intensity:.3g} FLOP/byte" if summary.intensity is not None else ""
        roof = f"{summary.roof_us:.4g} µs{intensity} (estimated)"
        rows.append(("Roof", roof + _roof(best, summary)))
    if summary.space:
        words = SPACE_WORDS.get(summary.space, summary.space)
        rows.append(("Space", f"{summary.space}: {words}. {summary.space_reason}"))
    if summary.direction:
        words = DIRECTION_WORDS.get(summary.direction, "")
        rows.append(("Direction", f"{summary.direction}: {words}. {summary.direction_reason}"))
    if summary.move and summary.move != summary.direction:
        rows.append(("Move", f"the best came from direction {summary.move}: {DIRECTION_WORDS.get(summary.move, '')}"))
    for code, (value, reason) in (summary.scores or {}).items():
        rows.append((f"Score {code}", f"{value:g}: {reason}"))
    if best is not None:
        rows.append(("Time", _times(best, summary)))
        if best.speedup_vs_compile is not None:
            interval = " [{:.2f}, {:.2f}]".format(*best.compile_ci95) if best.compile_ci95 else ""
            rows.append(("vs compile", f"{best.speedup_vs_compile:.2f}x{interval} over the best torch.compile mode"))
    if summary.checks:
        passed = sum(status == "pass" for status in summary.checks.values())
        skipped = [f"{name} ({status})" for name, status in summary.checks.items() if status != "pass"]
        left = f"; not passed: {', '.join(skipped[:4])}" if skipped else ""
        how = f"{summary.where}, {passed} {'check' if passed == 1 else 'checks'} passed{left}"
        rows.append(("Verified", how + f" ({summary.isolation})"))
    if summary.model:
        rows.append(("Model", summary.model))
    device = summary.device if summary.measured else f"no GPU, written for {summary.device or 'any'}"
    rows.append(("Age", f"{_age(result.finished_at)} on {device}; {summary.stop_reason}"))
    if not summary.complete:
        rows.append(("Note", "the search was not finished: Resume goes on with it"))
    if standing == "stale":
        rows.append(("Note", "the source changed since: re-verify before accepting"))
    elif standing == "accepted":
        rows.append(("State", f"kernel {result.chosen} is accepted"))
    elif best is not None:
        rows.append(("Next", "accept, compare or discard by the code actions or lenses on this line"))
    lines += _table(rows) if markdown else [f"{name + ':' if name else '':<12}{text}" for name, text in rows]
    return "\n".join(lines[:30])


def explanation(result: Result, *, standing: Standing) -> str:
    """All of the evidence as a Markdown page: the hover, the candidates, the hot lines, the notes."""
    summary = result.summary
    parts = [f"# {summary.name}", hover(result, standing=standing, markdown=True)]
    if summary.candidates:
        rows = [
            (c.id, str(c.round), c.space, c.planned or "-", c.direction or "-", c.rejected or c.state, _time_cell(c),
             c.title)
            for c in summary.candidates
        ]
        head = ["| candidate | round | space | planned | move | state | time | what |",
                "|---|---|---|---|---|---|---|---|"]
        cells = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
        parts.append("\n".join(["## Candidates", "", *head, *cells]))
    if summary.hot_lines:
        hot = [f"- line {h.line}: {100 * h.share:.0f} % of the stall samples, mostly {h.stall}"
               for h in summary.hot_lines]
        profiled = summary.profiled_candidate
        of = "your code" if profiled is None or profiled.author == "user" else f"candidate {profiled.id}"
        parts.append("\n".join([f"## Hottest lines of {of} (measured)", "", *hot]))
    if summary.notes:
        parts.append("\n".join(["## Notes", "", *(f"- {_cell(note)}" for note in summary.notes)]))
    parts.append(f"Run `{summary.run}`: `hiera show {summary.run}` tells everything.")
    return "\n\n".join(parts) + "\n"


def _time_cell(candidate: CandidateSummary) -> str:
    if candidate.median_us is None:
        return "not measured"
    return f"{candidate.median_us:.4g} µs" + (f", {candidate.speedup:.2f}x" if candidate.speedup else "")


def _cell(text: str) -> str:
    """Words of a compiler or a model as Markdown shows them: no column, tag, link or picture comes of them."""
    return " ".join(text.split()).replace("|", "/").replace("<", "&lt;").replace("](", "]\\(")


def _title(summary: Summary, best: CandidateSummary | None, markdown: bool) -> str:
    words = speedup_words(best, summary.measured)
    return f"**{summary.name}**: {words}\n" if markdown else f"{summary.name}: {words}"


def _table(rows: list[tuple[str, str]]) -> list[str]:
    cells = [f"| {name} | {_cell(text)} |" for name, text in rows]
    return ["| | |", "|---|---|", *cells]


def _times(best: CandidateSummary, summary: Summary) -> str:
    if best.median_us is None:
        return "not measured: no GPU was used"
    eager = f", eager {summary.eager_us:.4g} µs" if summary.eager_us else ""
    compiled = f", torch.compile {summary.compile_us:.4g} µs" if summary.compile_us else ""
    return f"{best.median_us:.4g} µs (measured, cold L2){eager}{compiled}"


def _roof(best: CandidateSummary | None, summary: Summary) -> str:
    if best is None or best.median_us is None or not summary.roof_us:
        return ""
    if summary.roof_us > ABOVE * best.median_us:
        return "; the best is faster, by other arithmetic than the reference's"
    return f"; the best runs at {100 * summary.roof_us / best.median_us:.0f} % of it"


def _state_words(result: Result) -> str:
    best = result.summary.best_candidate
    if best is None:
        return ""
    return ", confirmed in a fresh build" if best.confirmed else ", not confirmed yet"


def _age(finished_at: str) -> str:
    seconds = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(finished_at)).total_seconds())
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"

"""The evidence: plans with their scores, candidates with their fate, checks, and what is known of the kernel."""

from __future__ import annotations

from engine import report
from engine.records import MANDATORY, Evaluation, Plan, Strategy
from engine.report_html.markup import Child, Markup, joined, tag
from engine.report_html.rows import Row
from engine.report_html.tables import how, section, table
from engine.trajectory import Trajectory

HIGHEST_SCORE = 10.0
WARNINGS = 20


def rounds(trajectory: Trajectory) -> Markup:
    """One plan a round: the space, every direction's score and reason, the steps."""
    pairs = zip(trajectory.plans, [*trajectory.strategies, *[None] * len(trajectory.plans)], strict=False)
    found = [_round(plan, strategy) for plan, strategy in pairs]
    return section("rounds", "Plans and directions", found or tag("p", "No round was planned."))


def _round(plan: Plan, strategy: Strategy | None) -> Markup:
    def bar(value: float) -> Markup:
        part = min(max(value / HIGHEST_SCORE, 0.0), 1.0)
        return tag("svg", tag("rect", x=0.5, y=0.5, width=99, height=9, class_="all"),
                   tag("rect", x=0, y=0, width=round(100 * part, 1), height=10, class_="part"),
                   viewBox="0 0 100 10", preserveAspectRatio="none", class_="bar", aria_hidden="true")

    scores = [
        ([code, tag("span", " (chosen)", class_="chosen") if code == plan.direction else None],
         [bar(score.value), f" {score.value:g}"], score.reason)
        for code, score in sorted(plan.scores.items(), key=lambda pair: -pair[1].value)
    ]
    by = "" if plan.author in ("expert", "none") else f", planned by {plan.author}"
    return joined([
        tag("h3", f"Round {plan.round}: space {plan.space}, direction {plan.direction or 'none'}{by}"),
        tag("p", plan.space_reason), tag("p", plan.reason) if plan.reason else None,
        table(f"Direction scores of round {plan.round}, 0 to 10", ("direction", "score", "reason"), scores,
              class_="scores") if scores else None,
        _listed("Learnt in other spaces", plan.transfer, level="h4"),
        _listed("Steps", strategy.steps, level="h4") if strategy else None,
        _listed("Constraints", strategy.constraints, level="h4") if strategy else None,
    ])


def candidates(trajectory: Trajectory, rows: list[Row]) -> Markup:
    """Every candidate and what became of it."""
    if not rows:
        return section("candidates", "Candidates", tag("p", "No candidate was written."))
    cells = []
    for row in rows:
        candidate, timing = row.candidate, row.timing or row.glance
        bad = "missing" if row.glance else "bad"
        state = tag("span", row.state, class_="good" if row.accepted else bad if row.why else "missing")
        cells.append((
            [row.label, " ", tag("code", candidate.id),
             tag("strong", " best") if row.is_best and trajectory.measured else None],
            [report.titled(candidate), tag("div", row.why, class_=bad) if row.why else None],
            candidate.round, candidate.space, candidate.direction or "-", state, _time(row),
            "-" if timing is None else f"{timing.speedup:.2f}x [{timing.ci95[0]:.2f}, {timing.ci95[1]:.2f}]",
            "-" if timing is None or timing.speedup_vs_compile is None else f"{timing.speedup_vs_compile:.2f}x",
        ))
    heads = ("candidate", "what it is, and why it was not accepted", "round", "space", "direction", "state", "time",
             "speed-up", "over torch.compile")
    return section("candidates", "Candidates", table(
        "Candidates in the order of making", heads, cells, numeric={2, 6, 7, 8}, hidden=True, class_="candidates",
        ids=[f"candidate-{row.candidate.id}" for row in rows]))


def _time(row: Row) -> Child:
    if row.timing is not None:
        return [f"{row.timing.median_us:.4g} us ", how("measured")]
    if row.glance is not None:
        return [f"{row.glance.median_us:.4g} us ", how("measured briefly")]
    estimate = row.evaluation.estimate_us if row.evaluation else None
    if estimate is not None:
        return [f"{estimate:.4g} us ", how("estimated")]
    return how("not measured")


def checks(rows: list[Row]) -> Markup:
    """Every check of every verified candidate. What did not run is no pass, and says why."""
    names = list(dict.fromkeys(
        check.name for row in rows if row.evaluation and row.evaluation.verification
        for check in row.evaluation.verification.checks))
    if not names:
        return section("checks", "Checks", tag("p", "No candidate came as far as the verification."))
    heads = ["candidate", *[[name, " *" if name in MANDATORY else None] for name in names]]
    cells = [([row.label, " ", tag("code", row.candidate.id)], *_verdicts(row.evaluation, names)) for row in rows
             if row.evaluation is not None and row.evaluation.verification is not None]
    unverified = [row for row in rows if row.evaluation is None or row.evaluation.verification is None]
    where = dict.fromkeys(
        f"{row.evaluation.verification.where} ({row.evaluation.verification.isolation})" for row in rows
        if row.evaluation and row.evaluation.verification)
    return section(
        "checks", "Checks",
        tag("p", "Verified on ", "; ".join(where), ". A check marked * must pass. One that did not run is not a pass."),
        table("Checks of each verified candidate", heads, cells, hidden=True, class_="checks"),
        _details(rows),
        _listed("Not verified", [f"{row.label} {row.candidate.id}: {row.why or row.state}" for row in unverified]),
    )


def _verdicts(evaluation: Evaluation, names: list[str]) -> list[Child]:
    assert evaluation.verification is not None
    found = {check.name: check for check in evaluation.verification.checks}
    cells: list[Child] = []
    for name in names:
        check = found.get(name)
        if check is None:
            cells.append(tag("span", "not asked", class_="missing"))
        elif check.status == "pass":
            cells.append(tag("span", "✓ pass", class_="good", title=check.detail or None))
        elif check.status == "fail":
            cells.append(tag("span", "✗ fail", class_="bad", title=check.detail or None))
        else:
            cells.append(tag("span", "not run", class_="missing", title=check.status))
    return cells


def _details(rows: list[Row]) -> Markup | None:
    """What the checks said beyond pass: the only place where a title would be the only way to read it."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        verification = row.evaluation.verification if row.evaluation else None
        for check in verification.checks if verification else ():
            if check.detail or check.status not in ("pass", "fail"):
                found.setdefault((check.name, check.status, check.detail), []).append(row.label)
    if not found:
        return None
    cells = [(name, ", ".join(labels), status, detail) for (name, status, detail), labels in found.items()]
    return tag("details", tag("summary", "What the checks said"),
               table("What the checks said", ("check", "candidates", "status", "detail"), cells, hidden=True),
               id="checks-details")


def kernel(trajectory: Trajectory) -> Markup:
    """What is known of the candidate that is offered: compiler's facts, counters, hot lines, text."""
    best = trajectory.best
    if best is None:
        return section("kernel", "Kernel", tag("p", "No candidate was accepted."))
    evaluation = trajectory.evaluations[best.id]
    title = "Best kernel" if trajectory.measured else "Kernel that is offered"
    return section(
        "kernel", title,
        tag("p", tag("code", best.id), f", {report.titled(best) or 'no title'}, {report.best_state(evaluation)}."),
        _compiled(evaluation), _counters(evaluation),
        tag("details", tag("summary", "cuda_source.cu"), tag("pre", best.source, tabindex="0"), id="kernel-source"),
    )


def _compiled(evaluation: Evaluation) -> Markup:
    build = evaluation.build
    if build is None or not build.kernels:
        return tag("p", "Registers, spills and occupancy: ", how("not available"),
                   " (nvcc did not compile it for the GPU).")
    cells = [(k.name, k.registers, k.shared_bytes, k.spill_bytes, "-" if k.occupancy is None else f"{k.occupancy:.0%}")
             for k in build.kernels]
    warnings = _listed("Compiler warnings", build.warnings[:WARNINGS])
    return joined([table("Kernels as ptxas reports them (static, not measured)",
                         ("kernel", "registers", "shared bytes", "spilled bytes", "occupancy"), cells,
                         numeric={1, 2, 3, 4}), warnings])


def _counters(evaluation: Evaluation) -> Markup:
    counters = evaluation.counters
    if counters is None:
        return tag("p", "Counters: ", how("not measured"), " (it was not profiled).")
    said = joined([
        tag("p", "Counters: ", how(counters.status), f" (ncu {counters.tool})" if counters.tool else None,
            f", {counters.bound} bound" if counters.bound else None,
            f", limited by {counters.limiter}" if counters.limiter else None),
        tag("ul", [tag("li", line) for line in counters.evidence]) if counters.evidence else None,
    ])
    metrics = [(f"{k.launch_index} {k.kernel}", m.name, "not measured" if m.value is None else f"{m.value:.6g}", m.unit)
               for k in counters.kernels for m in k.metrics]
    hot = [(line.line, f"{line.share:.0%}", line.stall, tag("code", line.text)) for line in counters.lines]
    return joined([
        said,
        table("Lines where warps stall most (measured)", ("line", "share of stalls", "stall", "text"), hot,
              numeric={1}) if hot else None,
        tag("details", tag("summary", "All counters"),
            table("Counters of each launch", ("launch", "counter", "value", "unit"), metrics, numeric={2}, hidden=True),
            id="kernel-counters") if metrics else None,
    ])


def _listed(title: str, sentences: tuple[str, ...] | list[str], *, level: str = "h3") -> Markup | None:
    if not sentences:
        return None
    return joined([tag(level, title), tag("ul", [tag("li", sentence) for sentence in sentences])])

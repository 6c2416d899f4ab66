"""A trajectory as one self-contained HTML page: no script, no network."""

from __future__ import annotations

from html import escape

from engine import report
from engine.records import Candidate, Evaluation, Plan
from engine.trajectory import Trajectory

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{padding:.3rem .6rem;border-bottom:1px solid #d0d7de;
text-align:left;vertical-align:top}pre{background:#f6f8fa;padding:1rem;overflow:auto;font-size:13px}
.bar{background:#2f81f7;height:.7rem;border-radius:2px}.bad{color:#b42318}.good{color:#1a7f37}.dim{color:#656d76}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}pre{background:#161b22}
td,th{border-color:#30363d}}
"""


def page(trajectory: Trajectory) -> str:
    """The whole page."""
    name = trajectory.contract.name if trajectory.contract else trajectory.run
    words = report.best_words(trajectory)
    body = "\n".join([
        f"<h1>{escape(name)}</h1>",
        f"<p class=dim>run {escape(trajectory.run)} · {escape(words)} · {trajectory.wall_s:.1f} s</p>",
        _honesty(trajectory),
        *[_plan(plan) for plan in trajectory.plans],
        _candidates(trajectory),
        _best(trajectory),
        "<h2>Summary as text</h2>",
        f"<pre>{escape(report.text(trajectory))}</pre>",
    ])
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>HIERA: {escape(name)}</title><style>{STYLE}</style><body>{body}</body></html>\n")


def _honesty(trajectory: Trajectory) -> str:
    if trajectory.measured:
        return "<p>Times were measured on the GPU, paired with the reference.</p>"
    return "<p><b>Nothing here was measured:</b> there was no GPU. Times are static estimates.</p>"


def _plan(plan: Plan) -> str:
    rows = "".join(
        f"<tr><td>{'<b>' if code == plan.direction else ''}{escape(code)}</td><td>{score.value:g}</td>"
        f"<td style='width:30%'><div class=bar style='width:{score.value * 10:.0f}%'></div></td>"
        f"<td>{escape(score.reason)}</td></tr>"
        for code, score in plan.scores.items())
    learnt = "".join(f"<li>{escape(text)}</li>" for text in plan.transfer)
    return (f"<h2>Round {plan.round}: {escape(plan.space)}, direction {escape(plan.direction)}</h2>"
            f"<p>{escape(plan.space_reason)}</p><table>{rows}</table>"
            + (f"<p>Learnt in other spaces:</p><ul>{learnt}</ul>" if learnt else ""))


def _candidates(trajectory: Trajectory) -> str:
    rows = "".join(_candidate(trajectory, c, trajectory.evaluations.get(c.id)) for c in trajectory.candidates)
    return ("<h2>Candidates</h2><table><tr><th>id<th>round<th>space<th>direction<th>state<th>time<th>speed-up<th>what"
            f"</tr>{rows}</table>")


def _candidate(trajectory: Trajectory, candidate: Candidate, evaluation: Evaluation | None) -> str:
    good = trajectory.accepted(candidate.id)
    failure = evaluation.failure if evaluation else None
    time, speedup = report.times(evaluation)
    state = report.state(trajectory, evaluation)
    said = f"{report.titled(candidate)}: {failure.reason}" if failure else report.titled(candidate)
    cells = [candidate.id, str(candidate.round), candidate.space, candidate.direction or "-"]
    return ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + f"<td class={'good' if good else 'bad'}>{escape(state)}</td>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in (time, speedup, said)) + "</tr>")


def _best(trajectory: Trajectory) -> str:
    best = trajectory.best
    if best is None:
        return "<p>No candidate was accepted.</p>"
    evaluation = trajectory.evaluations[best.id]
    parts = [f"<h2>Best: {escape(best.id)}</h2>"]
    if evaluation.verification is not None:
        checks = "".join(f"<tr><td>{escape(c.name)}</td><td class={'good' if c.status == 'pass' else 'bad'}>"
                         f"{escape(c.status)}</td><td>{escape(c.detail)}</td></tr>"
                         for c in evaluation.verification.checks)
        parts.append(f"<p>Verified {escape(evaluation.verification.where)}</p><table>{checks}</table>")
    if evaluation.counters is not None:
        evidence = "".join(f"<li>{escape(line)}</li>" for line in evaluation.counters.evidence)
        parts.append(f"<p>Counters: {escape(evaluation.counters.status)}</p><ul>{evidence}</ul>")
    parts.append(f"<details><summary>cuda_source.cu</summary><pre>{escape(best.source)}</pre></details>")
    return "".join(parts)

"""Features: stored runs as data for a tree, and evidence as virtual documents.

`hiera-candidate:/RUN/CANDIDATE/build.log`, `counters.txt` and `conversation.md` stand beside the candidate's
source; `hiera-candidate:/RUN/round-N/conversation.md` holds what was asked to plan a round.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pygls import uris

from hiera_lsp.jobs import Site
from hiera_lsp.protocol import CANDIDATE_SCHEME
from hiera_lsp.session import Session

if TYPE_CHECKING:
    from engine.headlines import Headline
    from engine.records import Plan
    from engine.report_html.rows import Row
    from engine.trajectory import Trajectory

LOG, COUNTERS, CONVERSATION = "build.log", "counters.txt", "conversation.md"
ROUND = "round-"


def listed(session: Session, headline: Headline, root: Path) -> dict[str, Any]:
    """One line of the list."""
    from contracts import codec
    from engine.headlines import is_at_work

    job = next((job for job in session.jobs.running if job.run == headline.run), None)
    ended = bool(headline.stop_reason)
    at_work = job is not None or (not ended and is_at_work(root / "runs" / headline.run))
    data: dict[str, Any] = codec.to_data(headline)
    del data["events_bytes"], data["version"]
    return {**data, "at_work": at_work, "uri": _existing(headline.file),
            "resumable": not at_work and not headline.complete and headline.file.endswith((".py", ".cu", ".cuh"))}


def described(session: Session, trajectory: Trajectory, folder: Path) -> dict[str, Any]:
    """A run with its rounds and candidates."""
    from engine.headlines import headline_of
    from engine.report_html.rows import rows_of

    asked = {exchange.candidate for exchange in trajectory.exchanges}
    planned = {exchange.round for exchange in trajectory.exchanges if not exchange.candidate}
    plans = {plan.round: plan for plan in trajectory.plans}
    rounds = sorted({*plans, *(c.round for c in trajectory.candidates)})
    head = headline_of(trajectory, 0)
    result = session.results.at(Site(uris.from_fs_path(head.file) or "", head.symbol)) if head.symbol else None
    return {
        **listed(session, head, folder.parent.parent),
        "reviewable": result is not None and result.summary.run == trajectory.run and result.state != "discarded",
        "rounds": [_round(trajectory.run, number, plans.get(number), number in planned) for number in rounds],
        "candidates": [_candidate(trajectory, row, row.candidate.id in asked) for row in rows_of(trajectory)],
    }


def evidence_text(run: str, part: str, name: str) -> str | None:
    """The text of a virtual document of evidence, or None where there is none of that name."""
    from engine import report_candidate
    from engine.store import Store

    store = Store()
    trajectory = store.load(run)
    if name == CONVERSATION:
        number = part.removeprefix(ROUND)
        found = [exchange for exchange in trajectory.exchanges
                 if (exchange.candidate == part if number == part
                     else not exchange.candidate and str(exchange.round) == number)]
        texts = [(exchange, store.messages(run, exchange.id)) for exchange in found]
        return report_candidate.conversation(texts) if found else None
    candidate = trajectory.candidate(part)
    if candidate is None:
        return None
    if name == LOG:
        return report_candidate.build_log(trajectory, candidate)
    return report_candidate.counters_text(trajectory, candidate) if name == COUNTERS else None


def _round(run: str, number: int, plan: Plan | None, planned: bool) -> dict[str, Any]:
    return {
        "round": number,
        "space": plan.space if plan else "", "space_reason": plan.space_reason if plan else "",
        "direction": plan.direction if plan else "", "reason": plan.reason if plan else "",
        "author": plan.author if plan else "",
        "scores": {code: [score.value, score.reason] for code, score in plan.scores.items()} if plan else {},
        "conversation": _document(run, f"{ROUND}{number}", CONVERSATION) if planned else None,
    }


def _candidate(trajectory: Trajectory, row: Row, asked: bool) -> dict[str, Any]:
    from engine import report

    run, candidate, evaluation = trajectory.run, row.candidate, row.evaluation
    timing = evaluation.timing if evaluation else None
    failure = evaluation.failure if evaluation and not evaluation.slower else None
    name = trajectory.contract.name if trajectory.contract else candidate.id
    return {
        "id": candidate.id, "number": row.number, "round": candidate.round, "space": candidate.space,
        "direction": candidate.direction, "title": report.titled(candidate), "author": candidate.author,
        "state": row.state, "accepted": row.accepted, "why": row.why,
        "rejected_at": failure.stage if failure else "",
        "best": row.is_best,
        "median_us": timing.median_us if timing else None, "speedup": timing.speedup if timing else None,
        "ci95": list(timing.ci95) if timing else None,
        "estimate_us": evaluation.estimate_us if evaluation else None,
        "source": _document(run, candidate.id, f"{name}.cu"),
        "parent": next((_document(run, parent, f"{name}.cu") for parent in candidate.parents
                        if trajectory.candidate(parent) is not None), None),
        "log": _document(run, candidate.id, LOG) if evaluation else None,
        "counters": _document(run, candidate.id, COUNTERS) if evaluation and evaluation.counters else None,
        "conversation": _document(run, candidate.id, CONVERSATION) if asked else None,
    }


def _document(run: str, part: str, name: str) -> str:
    return f"{CANDIDATE_SCHEME}:/{quote(run)}/{part}/{quote(name, safe='')}"


def _existing(path: str) -> str | None:
    return uris.from_fs_path(path) if path and Path(path).exists() else None

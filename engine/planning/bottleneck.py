"""What was learnt about the bottleneck, independent of the implementation space.

A lesson says: under this bottleneck, this direction changed the time by this much. It is drawn from a
candidate and its parent, whatever space they are in, so that it guides the search after the space
changes. `transfer` puts into words what came from another space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.planning.conditions import Fact
from engine.records import Candidate, Evaluation, WorkloadProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One candidate's outcome.

    Attributes:
        bottleneck: The parent's limiter where counters were measured, else its bound, else the workload's.
        direction: The direction the candidate followed.
        space: Where it was learnt; not used for scoring, only to say where it comes from.
        gain: Parent's time over candidate's time; None where the candidate was not right.
        candidate: Its id.
    """

    bottleneck: str
    direction: str
    space: str
    gain: float | None
    candidate: str


def bottleneck_of(evaluation: Evaluation | None, workload: WorkloadProfile) -> str:
    """The space-independent name of what limits: limiter, else measured bound, else the workload's bound."""
    counters = evaluation.counters if evaluation else None
    if counters and counters.status == "measured":
        return counters.limiter or counters.bound or workload.bound
    return workload.bound


def lessons(
    candidates: Sequence[Candidate], evaluations: Mapping[str, Evaluation], workload: WorkloadProfile, precision: str
) -> tuple[Lesson, ...]:
    """Every lesson the candidates teach, in order."""
    learnt: list[Lesson] = []
    for candidate in candidates:
        own = evaluations.get(candidate.id)
        parent = next((evaluations[p] for p in candidate.parents if p in evaluations), None)
        if own is None or parent is None or not candidate.direction:
            continue
        before, after = time_us(parent), time_us(own)
        accepted = own.failure is None and own.verification is not None and own.verification.accepts(precision)
        known = accepted or own.slower
        gain = before / after if known and before and after else None
        if known and gain is None:
            continue  # Neither time is known, so nothing was learnt.
        learnt.append(Lesson(bottleneck=bottleneck_of(parent, workload), direction=candidate.direction,
                             space=candidate.space, gain=gain, candidate=candidate.id))
    return tuple(learnt)


def time_us(evaluation: Evaluation) -> float | None:
    """Measured time, else the static estimate; None where there is neither."""
    return evaluation.timing.median_us if evaluation.timing else evaluation.estimate_us


def direction_facts(direction: str, bottleneck: str, learnt: Sequence[Lesson]) -> dict[str, Fact]:
    """`direction.tried` and `direction.gain` under one bottleneck, over all spaces."""
    mine = [lesson for lesson in learnt if lesson.direction == direction and lesson.bottleneck == bottleneck]
    gains = [lesson.gain for lesson in mine if lesson.gain is not None]
    return {"direction.tried": len(mine), "direction.gain": max(gains) if gains else (0.0 if mine else None)}


def transfer(bottleneck: str, space: str, learnt: Sequence[Lesson]) -> tuple[str, ...]:
    """One sentence for every direction with a lesson from another space under the same bottleneck."""
    sentences: list[str] = []
    foreign = [lesson for lesson in learnt if lesson.space != space and lesson.bottleneck == bottleneck]
    for direction in sorted({lesson.direction for lesson in foreign}):
        mine = [lesson for lesson in foreign if lesson.direction == direction]
        best = max((lesson for lesson in mine if lesson.gain is not None), key=lambda x: x.gain or 0.0, default=None)
        spaces = " and ".join(sorted({lesson.space for lesson in mine}))
        if best is None or best.gain is None:
            said = f"no candidate of {len(mine)} was accepted"
        elif best.gain >= 1.03:
            said = f"it helped, {best.gain:.2f}x at best"
        else:
            said = f"it did not help, {best.gain:.2f}x at best of {len(mine)}"
        sentences.append(f"{direction} under {bottleneck}, learnt in {spaces}: {said}")
    return tuple(sentences)

"""The whole record of a job: events in order, and what follows from them.

A live job and a stored one are built by the same `apply`, so what `show` prints is what happened.
Nothing is ever changed or removed; the best candidate is computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from contracts.contract import Contract, Precision, Space
from engine.records import Baseline, Candidate, Device, Evaluation, Plan, Strategy, WorkloadProfile

# Below this gain a result counts as noise, not as progress.
PROGRESS = 1.01
# A second, longer measurement moves a time by a few per cent and not by ten, so what lies further behind stays there;
# and what the first one told to within 1.2 % it need not tell again.
RETIMED_WITHIN, TOLD_WELL = 1.10, 0.012


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which language model works, where, and within what limits. Holds no key, only where the key is.

    Attributes:
        name: The model's name; empty takes `HIERA_MODEL`.
        base_url: The endpoint; empty takes `OPENAI_BASE_URL`, else OpenAI's own.
        key_variable: Environment variable that holds the key; empty takes the provider's usual one.
        answer_tokens: Most tokens of one answer.
        prompt_tokens: Most tokens of one prompt; longer ones are shortened in a stated order.
        temperature: Sampling temperature, where the model takes one (paper: 0.3).
        call_s: Seconds one answer may take, over all tries.
        dollars: Most money the job may cost; needs a price. None for no limit.
        prices: TOML file with prices; empty for none.
        prompts: Folder with prompts that replace ours by name; empty for none.
        seeds: The built-in expert's candidates compete with the model's.
        fallback: False stops the job, to be resumed, where the model cannot be asked or gives no usable plan.
        planning: False asks for candidates without SSDA and SPA (the paper's ablation).
        contract: False tells the model only the reference, not the contract (the paper's ablation).
    """

    name: str = ""
    base_url: str = ""
    key_variable: str = ""
    answer_tokens: int = 8192
    prompt_tokens: int = 48000
    temperature: float = 0.3
    call_s: float = 300.0
    dollars: float | None = None
    prices: str = ""
    prompts: str = ""
    seeds: bool = True
    fallback: bool = True
    planning: bool = True
    contract: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the user asked for.

    Attributes:
        file: A Python file, a .cu file or a contract folder.
        name: Class or function in it, or None for the only one.
        preset: `quick`, `normal` or `deep`.
        budget: Candidates at most; None takes the preset's.
        rounds: Rounds at most; None takes the preset's.
        seconds: Limit of the search; the winner is still timed again and confirmed. None for none.
        tokens: Limit on a language model's tokens, None for none.
        space: Widest space allowed, None for all.
        agent: `expert` or `llm`.
        precision: Acceptance policy.
        device: `auto`, `cuda:N` or `none`.
        python: The interpreter that has the user's torch; empty for ours.
        retime: Time the best again, longer, at the end.
        confirm: Rebuild the winner with PyTorch's own headers at the end.
        profile: Take counters of accepted candidates where the device allows it.
        planning: Further folders of planning data.
        parents: How many of the strongest candidates are kept as parents.
        inputs: File or command that gives example inputs, or empty.
        fixed_space: Stay in `space` and plan no narrower one.
        llm: The language model, for `agent` llm.
    """

    file: str
    name: str | None = None
    preset: str = "normal"
    budget: int | None = None
    rounds: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    space: Space | None = None
    agent: str = "expert"
    precision: Precision = "match"
    device: str = "auto"
    python: str = ""
    retime: bool = True
    confirm: bool = True
    profile: bool = True
    planning: tuple[str, ...] = ()
    parents: int = 2
    inputs: str = ""
    fixed_space: bool = False
    llm: ModelOptions = field(default_factory=ModelOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a language model cost so far.

    Attributes:
        requests: Requests sent, failed ones included.
        prompt_tokens: Tokens read by the model.
        completion_tokens: Tokens written by the model.
        cached_answers: Questions answered from our own cache, which cost nothing.
        estimated: True where the endpoint did not report its counts and some are ours.
        dollars: Cost by the price table; None where no price is known.
        model: The model's name and endpoint; empty where none is used.
        exhausted: Which limit is reached, in words; empty while none is.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_answers: int = 0
    estimated: bool = False
    dollars: float | None = None
    model: str = ""
    exhausted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One question to a language model and what came back. Holds no key.

    Attributes:
        id: First 12 hex digits of the SHA-256 of its texts; names the file that holds them.
        about: Which agent asked: `ssda`, `spa`, `oa` or `repair`, or a variant of one.
        round: The round it was asked in.
        candidate: Id of the candidate that the answer became; empty for plans and for answers of no use.
        problem: Why the answer was of no use, or empty.
        messages: (role, text) pairs, the answer last. Left in its file when a run is read.
    """

    id: str
    about: str
    round: int
    candidate: str = ""
    problem: str = ""
    messages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The end of a job. `complete` is False where `resume` can go on."""

    reason: str
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence for the user."""

    text: str


# What an event can carry, by kind. `reduced` is the contract at the sizes used without a GPU.
KINDS: Mapping[str, type] = {
    "job": Job, "contract": Contract, "reduced": Contract, "device": Device, "workload": WorkloadProfile,
    "baseline": Baseline, "plan": Plan, "strategy": Strategy, "candidate": Candidate, "evaluation": Evaluation,
    "usage": Usage, "exchange": Exchange, "note": Note, "resumed": Note, "stopped": Stopped,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `at_s` counts seconds of work since the job began, over all resumptions."""

    kind: str
    at_s: float
    value: Any


@dataclass(slots=True, kw_only=True)
class Trajectory:
    """Everything known about one job. Append-only: change it through `apply` alone."""

    run: str
    job: Job | None = None
    contract: Contract | None = None
    reduced: Contract | None = None
    device: Device | None = None
    workload: WorkloadProfile | None = None
    baseline: Baseline = field(default_factory=Baseline)
    plans: list[Plan] = field(default_factory=list)
    strategies: list[Strategy] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    stopped: Stopped | None = None
    wall_s: float = 0.0
    first_verified_s: float | None = None

    def apply(self, event: Event) -> None:
        """Take one more event."""
        self.wall_s = max(self.wall_s, event.at_s)
        value = event.value
        match event.kind:
            case "plan":
                self.plans.append(value)
            case "strategy":
                self.strategies.append(value)
            case "candidate":
                if all(c.id != value.id for c in self.candidates):
                    self.candidates.append(value)
            case "evaluation":
                self.evaluations[value.candidate_id] = value
                if self.first_verified_s is None and self.accepted(value.candidate_id):
                    self.first_verified_s = event.at_s
            case "exchange":
                self.exchanges.append(value)
            case "note":
                self.notes.append(value.text)
            case "resumed":
                self.stopped = None
                self.notes.append(value.text)
            case "job" | "contract" | "reduced" | "device" | "workload" | "baseline" | "usage" | "stopped":
                setattr(self, event.kind, value)

    @property
    def precision(self) -> Precision:
        """The policy that decides acceptance."""
        return self.contract.precision if self.contract else "match"

    @property
    def measured(self) -> bool:
        """True where times were taken on a GPU."""
        return self.device is not None and self.device.kind == "cuda"

    def candidate(self, identity: str) -> Candidate | None:
        """The candidate with this id."""
        return next((c for c in self.candidates if c.id == identity), None)

    def accepted(self, identity: str) -> bool:
        """True when the candidate passed everything that was asked of it so far."""
        found = self.evaluations.get(identity)
        return (
            found is not None and found.failure is None and found.confirmed is not False
            and found.verification is not None and found.verification.accepts(self.precision)
            and (found.timing is not None or not self.measured)
        )

    def ranked(self) -> list[Candidate]:
        """Accepted candidates, fastest first, in order of making where that is not known.

        Estimates order them only where each has one: a library call is not slower for having none.
        """
        accepted = [c for c in self.candidates if self.accepted(c.id)]
        if not self.measured and any(self.evaluations[c.id].estimate_us is None for c in accepted):
            return accepted
        return sorted(accepted, key=lambda c: self.rank_us(c.id))

    def needs_retiming(self, candidate: Candidate, best: Candidate) -> bool:
        """Could a longer measurement of this candidate change what is said of the best, or which one is?"""
        one, other = self.evaluations[candidate.id].timing, self.evaluations[best.id].timing
        assert one is not None
        assert other is not None
        if self.rank_us(candidate.id) > RETIMED_WITHIN * self.rank_us(best.id):
            return False
        if one.minimum_detectable > TOLD_WELL:
            return True
        if candidate.id == best.id:  # It may have been timed before torch.compile was done.
            return one.speedup_vs_compile is None and self.baseline.compile_us is not None
        apart = self.rank_us(candidate.id) / self.rank_us(best.id) - 1
        return apart <= one.minimum_detectable + other.minimum_detectable

    def left_in_front(self) -> Candidate | None:
        """The fastest that was left as slower than a best, where the best of now is slower than it or there is none."""
        left = [c for c in self.candidates if c.id in self.evaluations and self.evaluations[c.id].slower]
        found = min(left, key=lambda c: self.rank_us(c.id), default=None)
        best = self.best
        if found is not None and best is not None and self.rank_us(best.id) <= self.rank_us(found.id):
            return None
        return found

    def rank_us(self, identity: str) -> float:
        """The number candidates are ordered by, in microseconds; infinite where nothing is known.

        Paired speed-ups compare across time better than bare medians, so a measured candidate counts
        with the reference's common time over its own speed-up.
        """
        found = self.evaluations.get(identity)
        if found is None:
            return float("inf")
        if found.timing is not None:
            reference = self.baseline.eager_us
            return reference / found.timing.speedup if reference and found.timing.speedup else found.timing.median_us
        return found.estimate_us if found.estimate_us is not None else float("inf")

    @property
    def best(self) -> Candidate | None:
        """The fastest accepted candidate, or None."""
        return next(iter(self.ranked()), None)

    @property
    def best_speedup(self) -> float | None:
        """The best candidate's measured speed-up; None without a GPU."""
        best = self.best
        timing = self.evaluations[best.id].timing if best else None
        return timing.speedup if timing else None

    def over_own(self, identity: str) -> tuple[float, tuple[float, float]] | None:
        """Speed-up over the user's own kernel with its interval, where that is not the reference but a candidate too.

        Both were timed against the reference, not against each other, so the interval is as wide as both together
        allow. None where either has no time, or the reference is the user's kernel itself.
        """
        given = [c for c in self.candidates if c.author == "user" and c.round == 0]
        # Of several files that are judged side by side, none is more the user's own than another.
        if len(given) != 1 or given[0].id == identity or self.contract is None or self.contract.reference == "cuda":
            return None
        mine, found = (self.evaluations.get(i) for i in (given[0].id, identity))
        if mine is None or found is None or mine.timing is None or found.timing is None:
            return None
        low, high = found.timing.ci95
        return found.timing.speedup / mine.timing.speedup, (low / mine.timing.ci95[1], high / mine.timing.ci95[0])

    def is_faster(self, identity: str) -> bool:
        """True when a candidate is faster than what the user has: its interval lies above 1."""
        evaluation, over = self.evaluations.get(identity), self.over_own(identity)
        if over is not None:
            return over[1][0] > 1.0
        if self.spent() and self.is_as_it_stands(identity):
            return False  # Candidates were made, and the user's own file is what is left.
        return evaluation is not None and evaluation.timing is not None and evaluation.timing.ci95[0] > 1.0

    def is_as_it_stands(self, identity: str) -> bool:
        """True of the user's own text, unchanged."""
        return any(c.id == identity and c.author == "user" for c in self.candidates)

    @property
    def reference_words(self) -> str:
        """What candidates are timed against, in words."""
        own = self.contract is not None and self.contract.reference == "cuda"
        return "the file as it stands" if own else "eager"

    @property
    def stagnant_rounds(self) -> int:
        """Finished rounds in a row, up to the last, that brought no new best."""
        best = float("inf")
        stagnant = 0
        for number in sorted({c.round for c in self.candidates}):
            ids = [c.id for c in self.candidates if c.round == number and self.accepted(c.id)]
            now = min((self.rank_us(i) for i in ids), default=float("inf"))
            improved = now * PROGRESS < best or (ids and best == float("inf") and now < best)
            stagnant = 0 if improved else stagnant + 1
            best = min(best, now)
        return stagnant

    def spent(self) -> int:
        """Candidates that count against the budget: those we made, not the user's own kernel."""
        return sum(c.round > 0 for c in self.candidates)


def added(before: Usage, since: Usage) -> Usage:
    """Two spendings as one; what is said in words is that of the later one."""
    costs = [part.dollars for part in (before, since) if part.dollars is not None]
    return replace(
        since, requests=before.requests + since.requests, prompt_tokens=before.prompt_tokens + since.prompt_tokens,
        completion_tokens=before.completion_tokens + since.completion_tokens,
        cached_answers=before.cached_answers + since.cached_answers, estimated=before.estimated or since.estimated,
        dollars=sum(costs) if costs else None, model=since.model or before.model)


def candidate_id(contract_id: str, source: str) -> str:
    """The id of a candidate: first 12 hex digits of the SHA-256 of contract id and source."""
    return hashlib.sha256(f"{contract_id}\n{source}".encode()).hexdigest()[:12]

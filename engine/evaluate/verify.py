"""Is a candidate right? The parent's side: which trials, in which order, and what a reply means.

The judge and the candidate are separate processes that share memory. The parent draws the seeds,
tells each what to do, and derives every verdict from what the judge read in that memory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from contracts.contract import Contract
from contracts.errors import InputError, WorkerDiedError, WorkerError, WorkerTimeoutError
from engine.evaluate import probes, replies, trials
from engine.evaluate.checks import Ledger
from engine.evaluate.trials import Limits, Trial
from engine.processes import Worker

__all__ = ["Draws", "Limits", "StoppedError", "Verifier", "seeds"]
# Causes other than a wrong number: what a kernel says when it meets inputs that it cannot take.
NOT_A_REFUSAL = ("[emulated]", "CUDA error", "misaligned address", "illegal memory access")


class StoppedError(Exception):
    """The candidate's process is gone: crash, hang or exit. The ledger says which."""


def seeds() -> Iterator[int]:
    """Secret seeds, without end."""
    while True:
        yield int.from_bytes(os.urandom(7), "little")


class Draws:
    """Secret seeds of trials that all candidates of a contract meet alike: the judge keeps what they must give.

    A candidate's process ends with it and can leave nothing for the next one, so that these stay as secret as fresh
    ones; and the first trial, the changed elements and the timed calls are drawn afresh for each candidate anyway.
    One that is rejected in words that its own code may have chosen ends them: whoever writes the next one reads those.
    """

    def __init__(self) -> None:
        self._seeds, self._of = seeds(), dict[int, tuple[int, int, int]]()

    def of(self, number: int) -> tuple[int, int, int]:
        """Seeds of inputs, of weights and of what is random in the call, for trial `number`."""
        if number not in self._of:
            self._of[number] = next(self._seeds), next(self._seeds), next(self._seeds) >> 8
        return self._of[number]

    def renew(self) -> None:
        """Draw others from now on."""
        self._of.clear()


class Verifier:
    """Runs trials of one candidate and writes what they show into a ledger.

    Args:
        judge: The contract's judge, open.
        candidate: The candidate's process, loaded.
        contract: What is judged.
        ledger: Where results go.
        limits: How much to run.
        emulated: The candidate runs on the CPU: every second call then runs its threads in reversed
            order, which shows races.
        beside: Gives a context in which the device may be used beside other jobs; entered for each trial, so
            that a job that wants to time waits for one trial and not for all.
        draws: Seeds shared with the contract's other candidates; without, every trial has its own.

    Attributes:
        during: The check that a crash is booked under.
        families: Names of the draws so far.
        held: Results that the candidate's process still holds, with their checksums.
        last: The last draw.
        confined: The module refuses values unlike its example's, and so no others are drawn.
        worked_s: Wall seconds spent, waiting for the device left out.
    """

    def __init__(self, judge: Worker, candidate: Worker, contract: Contract, ledger: Ledger, limits: Limits, *,
                 emulated: bool = False,
                 beside: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
                 draws: Draws | None = None) -> None:
        self.judge, self.contract, self.ledger, self.limits = judge, contract, ledger, limits
        self.emulated, self.during, self.worked_s = emulated, "runs", 0.0
        self.last: dict[str, Any] = {}
        self.confined = False
        self.held: list[dict[str, Any]] = []
        self.families: list[str] = []
        self._candidate, self._beside, self._draws = candidate, beside, draws
        self._calls, self._spent_s = 0, 0.0
        self._seeds, self._reference_s = seeds(), 0.0
        self._previous_sums: list[str] = []
        self._fresh: dict[str, list[dict[str, Any]]] = {}
        self._blocks: list[list[float]] = []
        self._notes: list[str] = []
        self._cut: list[str] = []

    @property
    def pid(self) -> int | None:
        """The candidate's process, or that of the sandbox around it."""
        return self._candidate.pid

    def next_seed(self) -> int:
        """A secret seed."""
        return next(self._seeds)

    async def run(self, enough: Callable[[], Awaitable[bool]] | None = None) -> bool:
        """All trials and probes, until one rejects. False where they were left off before the end.

        Args:
            enough: Asked after the second trial of a candidate that stands so far: is no more wanted to be known?

        Raises:
            StoppedError: The candidate's process ended.
            WorkerError: The judge failed, which is no finding about the candidate.
        """
        for number, trial in enumerate(trials.plan(self.contract, self.limits)):
            if self.worked_s > self.limits.search_s and not trial.must:
                self._cut.append(trial.family)
                continue
            async with self._working():
                # The first one is this candidate's own.
                await self.trial(trial, shared=number if number else None)
            # The second trial tells what KernelBench's own rule says: worth it even for a rejected one.
            if self.ledger.rejected and number >= 1:
                return True
            if number == 1 and enough is not None and await enough():
                return False
        if set(self._cut) & trials.SPECIAL:
            self.ledger.skip("special values", "there was no time left")
        if self.confined:
            self.ledger.skip("special values", "the module refuses values unlike its example's")
        for probe in (probes.one_element_changed, probes.repeats, probes.held_outputs, probes.quiet,
                      probes.misaligned_views):
            if not self.ledger.rejected:
                async with self._working():
                    await probe(self)
        if not self.ledger.rejected:
            probes.bias(self, self._fresh)
        self._summarise()
        return True

    @contextlib.asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """The device, beside others. Waiting for it does not count as work."""
        async with self._beside():
            begin = time.perf_counter()
            try:
                yield
            finally:
                self.worked_s += time.perf_counter() - begin

    async def again(self, count: int) -> None:
        """What the timed calls tell together, and further trials with fresh seeds in the same process."""
        if self._blocks:
            unlike = probes.one_does_the_work_of_several(self._blocks)
            self.ledger.require("calls alike", not unlike, unlike)
        for _ in range(count):
            if not self.ledger.rejected:
                async with self._working():
                    await self.trial(Trial(family="randn", must=True), count_threads=True)

    async def draw(self, draw: dict[str, Any]) -> dict[str, Any]:
        """Let the judge fill the arguments; seeds are drawn where `draw` names none."""
        draw = {"seed": self.next_seed(), "fixed_seed": self.next_seed(), **draw}
        drawn = await self.judge.call("draw", timeout_s=self.limits.judge_s, **draw)
        self.last = {**draw, "arguments": drawn["arguments"]}
        self.confined = drawn["confined"]
        return drawn

    async def expect(self, **fields: Any) -> dict[str, Any]:
        """Let the judge run the references on what was drawn."""
        reply = await self.judge.call("expect", timeout_s=self.limits.judge_s, **fields)
        # What they took when they ran: a call's limit must not be shorter where the judge has kept their results.
        self._reference_s = reply["seconds"]
        return reply

    async def check(self, **fields: Any) -> dict[str, Any]:
        """Let the judge compare what lies in the shared memory."""
        # An example's values need not have a mean near zero.
        fields["zero_mean"] = fields["zero_mean"] and not self.confined
        return await self.judge.call("check", timeout_s=self.limits.judge_s, **fields)

    async def judged(self, arguments: Sequence[object], expected: dict[str, Any], *, seed: int, zero_mean: bool,
                     check: str = "numeric", late: bool = False, count_threads: bool = False,
                     special: bool = False, fresh: bool = False) -> None:
        """One call of the candidate on what the judge drew, and the judge's findings."""
        reply = await self.ask(
            "call", arguments=arguments, outputs=expected["outputs"], seed=seed, late=late,
            hold=len(self.held) < self.limits.held and not late, count_threads=count_threads,
        )
        if check == "misaligned views" and self._refuses(reply):
            self.ledger.ok(check, "refused: " + replies.brief(reply["raised"])[:200])
            return
        if not self.returned(reply, expected["outputs"]):
            return
        loose = bool(self.families) and self.families[-1] in trials.ILL_CONDITIONED
        found = await self.check(zero_mean=zero_mean, loose=loose, special=special,
                                 tiny=special and self.families[-1] == "denormal",
                                 any_order=trials.ties_in_any_order(self.contract))
        wrong = [] if special else [r for r in found["results"] if r[self.ledger.precision] is False]
        if wrong and (late or check == "stream order") and await self._right_later(expected, zero_mean):
            self.ledger.fail("stream order", "the output was right only after the whole device had been waited for")
        elif wrong and self._previous_sums == found["sums"] and found["sums"]:
            self.ledger.fail("fresh inputs", "new values gave the earlier result again")
        self.book(found, check, special)
        self._previous_sums = found["sums"]
        if fresh and zero_mean and not self.confined:
            for result in found["results"]:
                self._fresh.setdefault(result["name"], []).append(result)
        if reply["held"]:
            self.held.append({"outputs": expected["outputs"], "sums": found["sums"]})

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """One request to the candidate; its end of life is a finding.

        Raises:
            StoppedError: The process crashed, hung, refused or answered nonsense.
        """
        if kind == "call" and self.emulated:
            self._calls += 1
            fields["reversed"] = self._calls % 2 == 0
        begin = time.perf_counter()
        try:
            limit_s = self.limits.call_limit_s(self._reference_s) if kind == "call" else self.limits.call_s
            reply = await self._candidate.call(kind, timeout_s=limit_s, **fields)
            self._spent_s += time.perf_counter() - begin
            if self._spent_s > self.limits.calls_s:
                self.ledger.fail("runs", f"its calls took more than {self.limits.calls_s:g} s together")
            elif replies.sound(kind, reply, fields):
                if kind == "block":
                    self._blocks.append(reply["times_us"])
                return reply
            else:
                self.ledger.fail("runs", f"the reply to `{kind}` is not one of our worker's: something else wrote it")
        except WorkerTimeoutError as error:
            self._rejected(f"no answer within {error.timeout_s:g} s, the process was killed")
        except WorkerDiedError as error:
            self._rejected(replies.death(error))
        except (InputError, WorkerError) as error:
            self._rejected(replies.brief(error.problem))
        raise StoppedError

    async def trial(self, trial: Trial, *, count_threads: bool = False, shared: int | None = None) -> None:
        """One draw, one call, and what the judge makes of it. `shared` is the trial's number among all candidates'."""
        draw: dict[str, Any] = {"variant": trial.variant, "family": trial.family, "set": 0, "phase": trial.phase}
        earlier = {key: self.last[key] for key in ("variant", "family", "seed", "fixed_seed") if key in self.last}
        if trial.same_values_as_last and earlier:
            draw |= earlier
        elif trial.same_inputs_new_weights and earlier:
            draw["seed"] = earlier["seed"]
        if trial.odd:
            draw["odd"] = True
        seed, keep = self.next_seed() >> 8, False
        if self._draws is not None and shared is not None:
            inputs, weights, seed = self._draws.of(shared)
            draw, keep = {"seed": inputs, "fixed_seed": weights, **draw}, True
        special = trial.family in trials.SPECIAL
        try:
            drawn = await self.draw(draw)
            expected = await self.expect(seed=seed, keep=keep, keep_usual=trial.family == "example",
                                         conditioned=self.confined or (
                                             trial.family not in trials.ZERO_MEAN and not special))
        except (InputError, WorkerError) as error:
            if trial.must or isinstance(error, WorkerDiedError | WorkerTimeoutError):
                raise
            self._notes.append(f"{trial.family}: the reference itself fails there ({error.problem[:120]})")
            return
        if expected["blank_share"] > trials.MOSTLY_BLANK and not trial.must and not special:
            self._notes.append(f"{trial.family}: the reference is not finite there")
            return
        if expected["note"]:
            self._notes.append(expected["note"])
        self.families.append(trial.family)
        await self.judged(
            drawn["arguments"], expected, seed=seed, zero_mean=trial.family in trials.ZERO_MEAN or special,
            check=trial.check, late=trial.late, special=special, count_threads=count_threads,
            fresh=trial.family == "randn" and not (trial.same_values_as_last or trial.same_inputs_new_weights))

    def _rejected(self, why: str) -> None:
        """Book what the candidate itself may have worded."""
        self.ledger.fail(self.during, why)
        if self._draws is not None:
            self._draws.renew()

    def _refuses(self, reply: dict[str, Any]) -> bool:
        raised = reply.get("raised", "")
        return bool(raised) and not reply["error"] and not any(word in raised for word in NOT_A_REFUSAL)

    def returned(self, reply: dict[str, Any], outputs: list[dict[str, Any]]) -> bool:
        """Book everything but values. False when there are no values to look at."""
        ledger = self.ledger
        if "raised" in reply:
            error = f" ({reply['error']})" if reply["error"] else ""
            self._rejected(replies.brief(reply["raised"] + error))
            return False
        ledger.ok("runs")
        if self.emulated:
            ledger.skip("cuda errors", "a launch that fails on the CPU raises at once")
            ledger.skip("host access", "on the CPU host code can read what a GPU would refuse it")
        else:
            ledger.ok("host access")
            ledger.require("cuda errors", not reply["error"], f"pending after the call: {reply['error']}")
        ledger.require("backend flags", not reply["changed_flags"], "changed: " + ", ".join(reply["changed_flags"]))
        ledger.require("threads", reply["new_threads"] == 0, f"{reply['new_threads']} new threads during a later call")
        wrong = replies.wrong_outputs(reply, outputs, "cpu" if self.emulated else "cuda")
        ledger.require("outputs", not wrong, wrong)
        aliased = [i for i, o in enumerate(reply["outputs"]) if o["aliases"] or o["in_inputs"]]
        allowed = self._may_alias()
        ledger.require("alias", allowed or not aliased, f"output {aliased[:1]} lies in an argument's memory")
        return not wrong and not reply["error"]

    def _may_alias(self) -> bool:
        graph = self.contract.graph
        names = {a.name for a in self.contract.arguments}
        return graph is not None and any(getattr(o, "name", None) in names for o in graph.outputs)

    async def _right_later(self, expected: dict[str, Any], zero_mean: bool) -> bool:
        await self.ask("recopy", index=-1, outputs=expected["outputs"])
        found = await self.check(zero_mean=zero_mean)
        return all(r[self.ledger.precision] is not False for r in found["results"])

    def book(self, found: dict[str, Any], check: str, special: bool = False) -> None:
        """Write what the judge found into the ledger, under `check` and what else it speaks of."""
        ledger = self.ledger
        family = self.families[-1] if self.families else "timed"
        for result in found["results"]:
            where = f"{result['name']}: " if len(found["results"]) > 1 else ""
            ledger.require("poison", result["poison"] == 0,
                           f"{where}{result['poison']} elements were never written")
            if special:
                ledger.require("special values", not result["special"],
                               f"{where}{result['special']} (inputs: {family})")
                continue
            for policy in ("match", "strict", "kernelbench"):
                ledger.verdict(policy, result[policy])
            ledger.worst("rms_ratio", result["rms_ratio"])
            ledger.worst("max_ratio", result["max_ratio"])
            holds = result[ledger.precision] is not False
            why = where + (result["why"] or "outside allclose 1e-4")
            ledger.require("numeric", holds, f"{why} (inputs: {family})")
            if check not in ("numeric", "stream order"):
                ledger.require(check, holds, why)
            elif check == "stream order" and holds and self.emulated:
                ledger.skip("stream order", "the CPU runs every kernel at once, whatever its stream")
            elif check == "stream order" and holds:
                ledger.ok("stream order")
            ledger.require("not trivial", not (result["trivial"] and not holds),
                           f"{where}no better than a constant")
            if ledger.precision == "kernelbench" and result["trivial"]:
                ledger.fail("not trivial", f"{where}no better than a constant: output below the tolerance's scale")
        ledger.require("inputs untouched", found["untouched"], "an argument's checksum changed during the call")
        ledger.require("guard bands", found["guards"], "memory beside an argument was written")

    def _summarise(self) -> None:
        if "numeric" in self.ledger.passed:
            detail = f"{len(self.families)} trials: {', '.join(dict.fromkeys(self.families))}"
            if self._cut:
                detail += f"; left out for time: {', '.join(dict.fromkeys(self._cut))}"
            if self._notes:
                detail += "; " + "; ".join(dict.fromkeys(self._notes))
            self.ledger.ok("numeric", detail)

"""Is a candidate right? The parent's side: which trials, in which order, and what a reply means.

The judge and the candidate are separate processes that share memory. The parent draws the seeds,
tells each what to do, and derives every verdict from what the judge read in that memory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from contracts.contract import Contract
from contracts.errors import InputError, WorkerDiedError, WorkerError, WorkerTimeoutError
from engine.evaluate.checks import Ledger
from engine.evaluate.trials import ILL_CONDITIONED, MOSTLY_BLANK, ZERO_MEAN, Limits, Trial, changes, plan
from engine.processes import Worker


class StoppedError(Exception):
    """The candidate's process is gone: crash, hang or exit. The ledger says which."""


def seeds() -> Iterator[int]:
    """Secret seeds, without end."""
    while True:
        yield int.from_bytes(os.urandom(7), "little")


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
    """

    def __init__(self, judge: Worker, candidate: Worker, contract: Contract, ledger: Ledger, limits: Limits, *,
                 emulated: bool = False,
                 beside: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext) -> None:
        self._beside, self._worked_s = beside, 0.0
        self._emulated, self._calls, self._spent_s = emulated, 0, 0.0
        self._judge, self._candidate, self._contract = judge, candidate, contract
        self.ledger, self._limits = ledger, limits
        self._seeds = seeds()
        self._last: dict[str, Any] = {}
        self._held: list[dict[str, Any]] = []
        self._previous_sums: list[str] = []
        self._families: list[str] = []
        self._notes: list[str] = []
        self._cut: list[str] = []

    async def run(self) -> None:
        """All trials and probes, until one rejects.

        Raises:
            StoppedError: The candidate's process ended.
            WorkerError: The judge failed, which is no finding about the candidate.
        """
        for number, trial in enumerate(plan(self._contract, self._limits)):
            if self._worked_s > self._limits.search_s and not trial.must:
                self._cut.append(trial.family)
                continue
            async with self._working():
                await self._trial(trial)
            # The second trial tells what KernelBench's own rule says: worth it even for a rejected one.
            if self.ledger.rejected and number >= 1:
                return
        async with self._working():
            await self._changes()
        if not self.ledger.rejected:
            async with self._working():
                await self._repeats()
        if not self.ledger.rejected:
            async with self._working():
                await self._check_held()
        self._summarise()

    @contextlib.asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """The device, beside others. Waiting for it does not count as work."""
        async with self._beside():
            begin = time.perf_counter()
            try:
                yield
            finally:
                self._worked_s += time.perf_counter() - begin

    async def again(self, count: int) -> None:
        """Further trials with fresh seeds in the same process, after timing."""
        for _ in range(count):
            if not self.ledger.rejected:
                async with self._working():
                    await self._trial(Trial(family="randn", must=True))

    async def judged(self, arguments: Sequence[object], expected: dict[str, Any], *, seed: int, zero_mean: bool,
                     check: str = "numeric", late: bool = False, count_threads: bool = False,
                     special: bool = False) -> None:
        """One call of the candidate on what the judge drew, and the judge's findings."""
        reply = await self.ask(
            "call", arguments=arguments, outputs=expected["outputs"], seed=seed, late=late,
            hold=len(self._held) < self._limits.held and not late, count_threads=count_threads,
        )
        if not self._returned(reply, expected["outputs"]):
            return
        loose = bool(self._families) and self._families[-1] in ILL_CONDITIONED
        found = await self._judge.call("check", timeout_s=self._limits.judge_s, zero_mean=zero_mean, loose=loose)
        wrong = [] if special else [r for r in found["results"] if r[self.ledger.precision] is False]
        if wrong and (late or check == "stream order") and await self._right_later(expected, zero_mean):
            self.ledger.fail("stream order", "the output was right only after the whole device had been waited for")
        elif wrong and self._previous_sums == found["sums"] and found["sums"]:
            self.ledger.fail("fresh inputs", "new values gave the earlier result again")
        self._book(found, check, special)
        self._previous_sums = found["sums"]
        if reply["held"]:
            self._held.append({"outputs": expected["outputs"], "sums": found["sums"]})

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """One request to the candidate; its end of life is a finding.

        Raises:
            StoppedError: The process crashed, hung or refused.
        """
        if kind == "call" and self._emulated:
            self._calls += 1
            fields["reversed"] = self._calls % 2 == 0
        begin = time.perf_counter()
        try:
            reply = await self._candidate.call(kind, timeout_s=self._limits.call_s, **fields)
            self._spent_s += time.perf_counter() - begin
            if self._spent_s > self._limits.calls_s:
                self.ledger.fail("runs", f"its calls took more than {self._limits.calls_s:g} s together")
                raise StoppedError
            return reply
        except WorkerTimeoutError as error:
            self.ledger.fail("runs", f"no answer within {error.timeout_s:g} s, the process was killed")
        except WorkerDiedError as error:
            self.ledger.fail("runs", _death(error))
        except (InputError, WorkerError) as error:
            self.ledger.fail("runs", error.problem)
        raise StoppedError

    async def _trial(self, trial: Trial) -> None:
        draw: dict[str, Any] = {
            "variant": trial.variant, "family": trial.family, "seed": next(self._seeds),
            "fixed_seed": next(self._seeds), "set": 0, "phase": trial.phase,
        }
        if trial.same_values_as_last and self._last:
            draw = {**self._last, "phase": trial.phase}
        elif trial.same_inputs_new_weights and self._last:
            draw["seed"] = self._last["seed"]
        seed = next(self._seeds) >> 8
        special = trial.family == "not a number"
        try:
            drawn = await self._judge.call("draw", timeout_s=self._limits.judge_s, **draw)
            expected = await self._judge.call(
                "expect", timeout_s=self._limits.judge_s, seed=seed, keep_usual=trial.family == "example",
                conditioned=trial.family not in ZERO_MEAN)
        except (InputError, WorkerError) as error:
            if trial.must or isinstance(error, WorkerDiedError | WorkerTimeoutError):
                raise
            self._notes.append(f"{trial.family}: the reference itself fails there ({error.problem[:120]})")
            return
        if expected["blank_share"] > MOSTLY_BLANK and not trial.must and not special:
            self._notes.append(f"{trial.family}: the reference is not finite there")
            return
        if expected["note"]:
            self._notes.append(expected["note"])
        self._last = draw
        self._families.append(trial.family)
        await self.judged(
            drawn["arguments"], expected, seed=seed, zero_mean=trial.family in ZERO_MEAN, check=trial.check,
            late=trial.late, special=special)

    def _returned(self, reply: dict[str, Any], outputs: list[dict[str, Any]]) -> bool:
        """Book everything but values. False when there are no values to look at."""
        ledger = self.ledger
        if "raised" in reply:
            ledger.fail("runs", reply["raised"] + (f" ({reply['error']})" if reply["error"] else ""))
            return False
        ledger.ok("runs")
        ledger.require("cuda errors", not reply["error"], f"pending after the call: {reply['error']}")
        ledger.require("backend flags", not reply["changed_flags"], "changed: " + ", ".join(reply["changed_flags"]))
        ledger.require("threads", reply["new_threads"] == 0, f"{reply['new_threads']} new threads during a later call")
        wrong = _wrong_outputs(reply, outputs)
        ledger.require("outputs", not wrong, wrong)
        aliased = [i for i, o in enumerate(reply["outputs"]) if o["aliases"] or o["in_inputs"]]
        allowed = self._may_alias()
        ledger.require("alias", allowed or not aliased, f"output {aliased[:1]} lies in an argument's memory")
        return not wrong and not reply["error"]

    def _may_alias(self) -> bool:
        graph = self._contract.graph
        names = {a.name for a in self._contract.arguments}
        return graph is not None and any(getattr(o, "name", None) in names for o in graph.outputs)

    async def _right_later(self, expected: dict[str, Any], zero_mean: bool) -> bool:
        await self.ask("recopy", index=-1, outputs=expected["outputs"])
        found = await self._judge.call("check", timeout_s=self._limits.judge_s, zero_mean=zero_mean)
        return all(r[self.ledger.precision] is not False for r in found["results"])

    def _book(self, found: dict[str, Any], check: str, special: bool) -> None:
        ledger = self.ledger
        for result in found["results"]:
            where = f"{result['name']}: " if len(found["results"]) > 1 else ""
            ledger.require("poison", result["poison"] == 0,
                           f"{where}{result['poison']} elements were never written")
            if special:
                # NaN in more places than the reference's is no fault: tiles of fast convolutions spread it.
                if result["nan"] != "not compared":  # Integers have no NaN to look for.
                    ledger.require("special values", result["nan"] == "pass",
                                   f"{where}no NaN of the input reached the output")
                continue
            for policy in ("match", "strict", "kernelbench"):
                ledger.verdict(policy, result[policy])
            ledger.worst("rms_ratio", result["rms_ratio"])
            ledger.worst("max_ratio", result["max_ratio"])
            holds = result[ledger.precision] is not False
            why = where + (result["why"] or "outside allclose 1e-4")
            ledger.require("numeric", holds, f"{why} (inputs: {self._families[-1] if self._families else 'timed'})")
            if check not in ("numeric", "stream order"):
                ledger.require(check, holds, why)
            elif check == "stream order" and holds and self._emulated:
                ledger.skip("stream order", "the CPU runs every kernel at once, whatever its stream")
            elif check == "stream order" and holds:
                ledger.ok("stream order")
            ledger.require("not trivial", not (result["trivial"] and not holds),
                           f"{where}no better than a constant")
            if ledger.precision == "kernelbench" and result["trivial"]:
                ledger.fail("not trivial", f"{where}no better than a constant: output below the tolerance's scale")
        ledger.require("inputs untouched", found["untouched"], "an argument's checksum changed during the call")
        ledger.require("guard bands", found["guards"], "memory beside an argument was written")

    async def _changes(self) -> None:
        """A draw that the candidate sees, and then that draw with one element changed, several times."""
        if self.ledger.rejected:
            return
        wanted, least = changes(self._contract, self._limits)
        draw = {"variant": 0, "family": "randn", "seed": next(self._seeds), "fixed_seed": next(self._seeds), "set": 0,
                "phase": 0}
        drawn = await self._judge.call("draw", timeout_s=self._limits.judge_s, **draw)
        seed = next(self._seeds) >> 8
        self._last = {**draw, "arguments": drawn["arguments"]}
        self._families.append("randn")
        expected = await self._judge.call("expect", timeout_s=self._limits.judge_s, seed=seed, remember=True)
        await self.judged(drawn["arguments"], expected, seed=seed, zero_mean=True)
        begin, done, blind = time.perf_counter(), 0, 0
        for one in wanted:
            spent = self._worked_s + time.perf_counter() - begin
            enough = done >= self._limits.perturbations or (done >= least and spent > self._limits.search_s)
            if self.ledger.rejected or enough or blind >= self._limits.perturbations:
                break
            changed = await self._judge.call(
                "change", timeout_s=self._limits.judge_s, seed=next(self._seeds), argument=one.argument,
                where=one.where)
            if not changed["changed"]:
                blind += 1
                continue
            # The same random numbers: what is drawn in the call must not be what shows.
            expected = await self._judge.call("expect", timeout_s=self._limits.judge_s, seed=seed)
            if expected["shows"] is False:
                blind += 1
                continue
            self._families.append("one element changed")
            await self.judged(drawn["arguments"], expected, seed=seed, zero_mean=True, check="one element changed",
                              count_threads=True)
            done += 1
        if not self.ledger.rejected and done:
            self.ledger.ok("one element changed", f"{done} changes" + (f", {blind} more do not show" if blind else ""))
        elif not done:
            why = "no single element shows in the output" if blind else "there is no argument to change"
            self.ledger.skip("one element changed", why)

    async def _repeats(self) -> None:
        seed = next(self._seeds) >> 8
        expected = await self._judge.call("expect", timeout_s=self._limits.judge_s, seed=seed)
        first: list[str] = []
        same = True
        for _ in range(self._limits.repeats):
            reply = await self.ask("call", arguments=self._last["arguments"], outputs=expected["outputs"], seed=seed)
            if not self._returned(reply, expected["outputs"]):
                return
            found = await self._judge.call("check", timeout_s=self._limits.judge_s, zero_mean=True)
            first = first or found["sums"]
            same = same and first == found["sums"]
            holds = all(r[self.ledger.precision] is not False for r in found["results"])
            self._book(found, "repeatability", special=False)
            self.ledger.require("repeatability", holds, "the same inputs gave a result outside the error budget")
        self.ledger.metrics["bitwise_repeatable"] = float(same)

    async def _check_held(self) -> None:
        for index, held in enumerate(self._held):
            await self.ask("recopy", index=index, outputs=held["outputs"])
            sums = (await self._judge.call("sums", timeout_s=self._limits.judge_s, outputs=held["outputs"]))["sums"]
            self.ledger.require("held outputs", sums == held["sums"], "a later call changed an earlier call's output")
        if len(self._held) < 2:
            self.ledger.skip("held outputs", "outputs too large to hold several")
        await self.ask("drop")

    def _summarise(self) -> None:
        if "numeric" in self.ledger.passed:
            detail = f"{len(self._families)} trials: {', '.join(dict.fromkeys(self._families))}"
            if self._cut:
                detail += f"; left out for time: {', '.join(dict.fromkeys(self._cut))}"
            if self._notes:
                detail += "; " + "; ".join(dict.fromkeys(self._notes))
            self.ledger.ok("numeric", detail)


def _wrong_outputs(reply: dict[str, Any], wanted: list[dict[str, Any]]) -> str:
    given = reply["outputs"]
    if len(given) != len(wanted):
        return f"{len(given)} output tensors, the contract has {len(wanted)}"
    if not reply["exact_types"]:
        return "an output is not a plain torch.Tensor"
    for number, (have, want) in enumerate(zip(given, wanted, strict=True)):
        for key in ("dtype", "shape"):
            if have[key] != want[key]:
                return f"output {number} has {key} {have[key]}, the contract says {want[key]}"
        if not _dense(have["shape"], have["stride"]) and _dense(want["shape"], want["reference_stride"]):
            return f"output {number} overlaps itself: shape {have['shape']}, stride {have['stride']}"
        if not reply["copied"][number]:
            return f"output {number} could not be read"
    return ""


def _dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """True when no two elements share memory."""
    reach = 1
    for step, size in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step < reach:
            return False
        reach = step * (size - 1) + reach
    return True


def _death(error: WorkerDiedError) -> str:
    lines = [line for line in error.log_tail.strip().splitlines() if line.strip()]
    status = error.exit_status
    if status == -9:
        return "the process was killed: out of host memory, or by hand"
    how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
    return f"the process ended with {how}" + (f": {lines[-1][:300]}" if lines else "")

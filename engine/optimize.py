"""The loop: plan → propose → evaluate → keep parents → stop. The engine's one public function."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError, HieraError, InputError
from engine.agents import Agent, Situation
from engine.planning.catalog import Catalog, load_catalog
from engine.planning.own_kernel import space_of
from engine.presets import limits
from engine.records import Candidate, Device, Evaluation, Plan, Strategy, WorkloadProfile
from engine.requests import CUDA_FILES, request_of
from engine.services import JobEvaluator, Services, Task
from engine.store import Run, Store, evaluation_key
from engine.trajectory import Event, Job, Note, Stopped, Trajectory, added, candidate_id

OnEvent = Callable[[Event, Trajectory], None]
# Within this factor of the roof nothing is left to win. What is faster has other arithmetic than the roof counts.
CONVERGED = 1.05
# The best are timed again, for a later, longer measurement can change their order.
RETIMED = 3
# A job that found nothing in its time may be this late: a kernel a little later is worth more than none.
LATE_S = 30.0
# Cancelled work gets this long to kill its processes.
GRACE_S = 4.0
# The first plan waits this long for measured shares of time, so that the first candidate is not late. Their process
# has torch and the profiler up by the time there is a contract: what is left is to load the module and call it.
SHARES_S = 1.5


async def optimize(
    job: Job,
    *,
    on_event: OnEvent = lambda _event, _trajectory: None,
    services: Services | None = None,
    agent: Agent | None = None,
    store: Store | None = None,
    resume: str | None = None,
    cancel: asyncio.Event | None = None,
) -> Trajectory:
    """Run a job to its end and return the whole record.

    Args:
        job: What is asked; with `resume` only its limits count, the rest stands in the run.
        on_event: Called for every event, after it is stored, with the trajectory so far.
        services: Extraction, device, workload, evaluator; the local ones by default.
        agent: Who plans and writes; made from `job.agent` by default.
        store: Where the run is kept; the user's cache by default.
        resume: Go on with this run instead of beginning one.
        cancel: When set, the job ends within seconds and keeps the best so far.

    Raises:
        HieraError: The job could not be done: bad input, missing tools, no way to write a candidate.
    """
    if services is None or agent is None:
        from engine import local

        services = services or local.LocalServices()
        agent = agent or local.make_agent(job)
    store = store or Store()
    if resume is not None:
        run, trajectory = store.resume(resume)
        if trajectory.job is None:
            run.close()
            raise InputError(f"run {run.id} ended before it began", hint="start it again with `hiera optimize`",
                             file=run.folder)
        job = replace(trajectory.job, budget=job.budget, rounds=job.rounds, seconds=job.seconds, tokens=job.tokens)
    else:
        run = store.new_run(job.name or Path(job.file).stem)
        trajectory = Trajectory(run=run.id)
    loop = _Loop(job=job, run=run, trajectory=trajectory, on_event=on_event, store=store,
                 services=services, agent=agent, cancel=cancel or asyncio.Event())
    request = await asyncio.to_thread(request_of, job) if resume is None else None
    try:
        await loop.work(resumed=resume is not None)
    finally:
        run.close()
        if (aclose := getattr(loop.agent, "aclose", None)) is not None:
            await aclose()
    if request is not None and trajectory.best is not None and trajectory.stopped and trajectory.stopped.complete:
        store.remember_run(request, run.id)
    return trajectory


class _Cancelled(Exception):
    """The user asked to stop."""


class _Loop:
    """One job at work. Every method that learns something records it at once."""

    def __init__(self, *, job: Job, run: Run, trajectory: Trajectory, on_event: OnEvent, store: Store,
                 services: Services, agent: Agent, cancel: asyncio.Event) -> None:
        self.job, self.run, self.trajectory, self.on_event, self.store = job, run, trajectory, on_event, store
        self.services, self.agent, self.cancel = services, agent, cancel
        self.catalog: Catalog = load_catalog(job.planning)
        self.evaluator: JobEvaluator | None = None
        self.measuring: asyncio.Future[tuple[WorkloadProfile, str]] | None = None
        self.rounds, self.budget = limits(job)
        # A budget of one's own is spread evenly; the last rounds may be smaller.
        self.per_round = -(-self.budget // self.rounds)
        self.stored = True
        self.parallel = asyncio.Semaphore(min(8, os.cpu_count() or 2))
        # A resumed run goes on counting where it stood.
        self.spent_before = trajectory.usage
        self.reference = ""

    async def work(self, *, resumed: bool) -> None:
        """From the first step to the last; the end is always recorded."""
        try:
            if resumed:
                self.record("resumed", Note(text=f"resumed after {self.trajectory.wall_s:.0f} s of work"))
            else:
                self.record("job", self.job)
            task, device = await self.until_cancelled(self.prepare())
            reason = await self.until_cancelled(self.search(task, device))
            await self.until_cancelled(self.finish(task))
            self.record("stopped", Stopped(reason=reason))
        except _Cancelled:
            self.record("stopped", Stopped(reason="cancelled", complete=False))
        except HieraError as error:
            self.record("stopped", Stopped(reason=f"failed: {error}", complete=False))
            if self.trajectory.best is None:
                raise
            self.record("note", Note(text=str(error)))
        except asyncio.CancelledError:
            self.record("stopped", Stopped(reason="cancelled", complete=False))
            raise
        except Exception as error:
            self.record("stopped", Stopped(reason=f"failed: {type(error).__name__}: {error}"[:500], complete=False))
            raise
        finally:
            if self.measuring is not None:
                self.measuring.cancel()
                await asyncio.wait({self.measuring}, timeout=GRACE_S)
            if self.evaluator is not None:
                with contextlib.suppress(TimeoutError, HieraError):
                    await asyncio.wait_for(self.evaluator.close(), GRACE_S)
            with contextlib.suppress(TimeoutError, HieraError):
                await asyncio.wait_for(self.services.close(), GRACE_S)

    def record(self, kind: str, value: Any) -> None:
        """Store, apply and tell. A disk that fails later than the start costs the record, not the result."""
        event = Event(kind, round(self.run.seconds(), 3), value)
        if self.stored:
            try:
                event = self.run.append(kind, value)
            except ConfigError as error:
                self.stored = False
                self.trajectory.apply(Event("note", event.at_s, Note(text=f"the run is no longer stored: {error}")))
        self.trajectory.apply(event)
        self.on_event(event, self.trajectory)

    async def until_cancelled(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await `work`, or stop it as soon as the user cancels."""
        task = asyncio.ensure_future(work)
        wish = asyncio.ensure_future(self.cancel.wait())
        try:
            await asyncio.wait({task, wish}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Cancelled
        finally:
            wish.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE_S)

    async def prepare(self) -> tuple[Task, Device]:
        """Device, contract, workload, evaluator, baseline; what a resumed run has is not recorded again."""
        known = self.trajectory
        device = await self.services.device(self.job)
        if known.device is not None and (known.device.name, known.device.kind) != (device.name, device.kind):
            raise ConfigError(f"the run was made for {known.device.name} ({known.device.kind}), this is {device.name}",
                              hint="resume it there, or start a new run here")
        if known.device is None:
            self.record("device", device)
        task = await self.services.task(self.job, self.run.contract_folder, device)
        contract = task.contract
        if known.contract is not None and known.contract.id != contract.id:
            raise InputError("the source changed since the run began", hint="start a new run", file=self.job.file)
        if known.contract is None:
            self.record("contract", contract)
            if task.reduced is not None:
                self.record("reduced", task.reduced)
            for text in (*contract.notes, *task.notes):
                self.record("note", Note(text=text))
        if known.workload is None:
            self.record("workload", self.services.workload(contract, device))
        assert known.workload is not None
        if not any(share.how == "measured" for share in known.workload.shares):
            # Where the time goes is measured while the judge starts and the first candidates are built.
            self.measuring = asyncio.ensure_future(self.services.shares(self.job, task, device, known.workload))
        self.evaluator = await self.services.evaluator(
            self.job, task, device, known.workload, lambda text: self.record("note", Note(text=text)))
        return task, device

    async def take_shares(self) -> None:
        """Take the measured shares when they are there; the first plan waits a little for them, not for long."""
        if self.measuring is None:
            return
        await asyncio.wait({self.measuring}, timeout=SHARES_S)
        if not self.measuring.done():
            return
        measuring, self.measuring = self.measuring, None
        try:
            workload, why = measuring.result()
        except HieraError as error:
            self.record("note", Note(text=f"shares of time stay estimated: {error.problem}"))
            return
        if workload != self.trajectory.workload:
            self.record("workload", workload)
        if why and self.trajectory.measured:
            self.record("note", Note(text=why))

    async def search(self, task: Task, device: Device) -> str:
        """All rounds. Returns why the search stopped, in words."""
        known = self.trajectory
        self.reference = await asyncio.to_thread(_text, task.folder / "groundtruth.py")
        if task.source is not None:
            await self.evaluate_own(task)
        self.record_usage()
        first = max((plan.round for plan in known.plans), default=1)
        for number in range(first, self.rounds + 1):
            if reason := self.why_stop():
                return reason
            if number > first:
                await self.profile_best(task)
            await self.take_shares()
            situation = self.situation(task, device, number)
            self.record_usage(situation)
            plan, strategy = await self.plan(situation)
            done = sum(c.round == number for c in known.candidates)
            count = min(self.per_round - done, self.budget - known.spent())
            pending = [c for c in known.candidates if c.round == number and c.id not in known.evaluations]
            made = await self.round(situation, plan, strategy, pending, max(count, 0))
            if made + done == 0:
                return self.why_stop() or "no direction left: every idea was tried"
        return self.why_stop() or f"all {self.rounds} rounds done"

    def why_stop(self) -> str | None:
        """The reason to stop now, or None."""
        known = self.trajectory
        unfinished = any(c.id not in known.evaluations for c in known.candidates)
        if known.spent() >= self.budget and not unfinished:
            return f"budget: {self.budget} candidates made"
        if self.job.seconds is not None and self.run.seconds() >= self.job.seconds:
            return f"time: the limit of {self.job.seconds:g} s is reached"
        spent = known.usage.prompt_tokens + known.usage.completion_tokens
        if self.job.tokens is not None and spent >= self.job.tokens:
            return f"tokens: {spent} of {self.job.tokens} used"
        if known.usage.exhausted:
            return known.usage.exhausted
        best, workload = known.best, known.workload
        timing = known.evaluations[best.id].timing if best else None
        if timing and workload and 1 / CONVERGED <= timing.median_us / max(workload.roof_us, 1e-9) <= CONVERGED:
            return f"converged: {timing.median_us:.1f} us is within 5 % of the roof of {workload.roof_us:.1f} us"
        return None

    def situation(self, task: Task, device: Device, number: int) -> Situation:
        """What the agent is told."""
        assert self.trajectory.workload is not None
        return Situation(contract=task.contract, reduced=task.reduced, device=device, workload=self.trajectory.workload,
                         catalog=self.catalog, trajectory=self.trajectory, round=number, locked=self.job.space,
                         parents=self.job.parents, reference=self.reference, fixed_space=self.job.fixed_space)

    async def plan(self, situation: Situation) -> tuple[Plan, Strategy]:
        """The round's plan and strategy; those of a resumed round are kept."""
        known = self.trajectory
        plan = next((p for p in known.plans if p.round == situation.round), None)
        if plan is None:
            plan = await self.agent.decide_space_and_scores(situation)
            self.record("plan", plan)
        position = known.plans.index(plan)
        if position >= len(known.strategies):
            self.record("strategy", await self.agent.plan_strategy(situation, plan, self.per_round))
        self.record_usage()
        return plan, known.strategies[position]

    async def round(self, situation: Situation, plan: Plan, strategy: Strategy, pending: list[Candidate],
                    count: int) -> int:
        """Evaluate candidates as they are written. Returns how many were made or still waited."""
        jobs = [asyncio.ensure_future(self.evaluate(situation, candidate)) for candidate in pending]
        made = len(pending)
        deadline = None if self.job.seconds is None else max(0.0, self.job.seconds - self.run.seconds())
        try:
            async with asyncio.timeout(deadline):
                if count > 0:
                    async for candidate in self.agent.propose(situation, plan, strategy, count):
                        made += 1
                        self.record("candidate", candidate)
                        self.record_usage()
                        jobs.append(asyncio.ensure_future(self.evaluate(situation, candidate)))
                for job in jobs:
                    await asyncio.shield(job)  # The limit ends the waiting first, and then what need not go on.
                self.record_usage()
        except TimeoutError:
            await self.until_verified(jobs)
        finally:
            left = [job for job in jobs if not job.done()]
            for job in left:
                job.cancel()
            if left:
                await asyncio.wait(left, timeout=GRACE_S)
        return made

    async def until_verified(self, jobs: Sequence[asyncio.Future[None]]) -> None:
        """The time is up: where nothing is verified, what is at work may go on until something is, or for `LATE_S`."""
        loop, left = asyncio.get_running_loop(), {job for job in jobs if not job.done()}
        until = loop.time() + LATE_S
        while left and self.trajectory.best is None and loop.time() < until:
            done, left = await asyncio.wait(left, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()

    async def evaluate(self, situation: Situation, candidate: Candidate) -> None:
        """Judge one candidate, from the cache where it was judged before; then try to mend it once."""
        evaluation = await self.judged(situation.contract, candidate)
        self.record("evaluation", evaluation)
        mendable = evaluation.failure is not None and evaluation.failure.stage in ("build", "verify")
        if not mendable or self.trajectory.spent() >= self.budget:
            return
        mended = await self.agent.repair(situation, candidate, evaluation)
        self.record_usage()
        if mended is not None and self.trajectory.candidate(mended.id) is None:
            self.record("candidate", mended)
            self.record("evaluation", await self.judged(situation.contract, mended))

    async def judged(self, contract: Any, candidate: Candidate) -> Evaluation:
        """An evaluation, cached or new. Only what a repetition would find again is cached."""
        assert self.evaluator is not None
        assert self.trajectory.device is not None
        device = self.trajectory.device
        key = evaluation_key(contract.id, candidate, {
            "device": (device.kind, device.name, device.sm, device.driver), **self.evaluator.identity()})
        found = await asyncio.to_thread(self.store.cached_evaluation, key)
        if found is not None:
            return replace(found, candidate_id=candidate.id)
        async with self.parallel:
            evaluation = await self.evaluator.evaluate(contract, candidate)
        if evaluation.failure is None or evaluation.failure.stage in ("screen", "build"):
            await asyncio.to_thread(self.store.cache_evaluation, key, evaluation)
        return evaluation

    async def evaluate_own(self, task: Task) -> None:
        """The user's own kernel is candidate 0."""
        assert task.source is not None
        identity = candidate_id(task.contract.id, task.source)
        if self.trajectory.candidate(identity) is None:
            space = space_of(task.source)
            self.record("candidate", Candidate(id=identity, source=task.source, space=space, round=0, author="user",
                                               title="the file as it stands",
                                               recipe={"space": space, "choices": {}}))
        if identity not in self.trajectory.evaluations:
            candidate = self.trajectory.candidate(identity)
            assert candidate is not None
            self.record("evaluation", await self.judged(task.contract, candidate))
        failure = self.trajectory.evaluations[identity].failure
        if failure is not None and failure.stage in ("build", "verify") and Path(self.job.file).suffix in CUDA_FILES:
            # Variations of a wrong kernel are wrong: every further candidate would be spent for nothing.
            raise InputError(f"the kernel is rejected as it stands: {failure.reason}", file=self.job.file,
                             hint="mend it, or correct its `// hiera:` lines (reference, arguments, launch)")

    async def finish(self, task: Task) -> None:
        """Baselines, then the best timed again, then the winner confirmed; one that fails gives way to the next.

        Baselines come last because torch.compile takes long: it works in the background while candidates are
        judged, each of them against the eager reference anyway.
        """
        assert self.evaluator is not None
        known = self.trajectory
        if known.baseline.eager_us is None:
            try:
                self.record("baseline", await self.evaluator.baseline())
            except HieraError as error:
                # Every candidate was timed against the reference anyway; the rest of the job does not need it.
                self.record("note", Note(text=f"the baselines were not measured: {error.problem}"))
        if self.job.retime:
            await self.retime_best(task)
        await self.look_again(task)
        await self.profile_best(task)
        while self.job.confirm and (best := known.best) is not None:
            if (evaluation := known.evaluations[best.id]).confirmed is True:
                return
            confirmed = await self.evaluator.confirm(task.contract, best, evaluation)
            if confirmed.confirmed is None:
                return  # There is nothing to confirm with, such as without a GPU.
            self.record("evaluation", confirmed)
            if confirmed.confirmed is False:
                why = confirmed.failure.reason if confirmed.failure else "it failed"
                self.record("note", Note(text=f"candidate {best.id} did not survive the rebuild: {why}"))
                await self.look_again(task)

    async def retime_best(self, task: Task) -> None:
        """Time the best again, and those that its new time, or its failure, brings to the front."""
        assert self.evaluator is not None
        known, done = self.trajectory, set[str]()
        while len(done) < RETIMED:
            timed = [c for c in known.ranked() if known.evaluations[c.id].timing is not None]
            near = [c for c in timed if known.needs_retiming(c, timed[0])]
            pairs = [(c, known.evaluations[c.id]) for c in near if c.id not in done][:RETIMED - len(done)]
            if not pairs:
                return
            done.update(candidate.id for candidate, _ in pairs)
            for evaluation in await self.evaluator.retime(task.contract, pairs):
                self.record("evaluation", evaluation)

    async def look_again(self, task: Task) -> None:
        """Judge to the end who was left as slower than a best that is none any more, until nobody is ahead."""
        assert self.evaluator is not None
        known, seen = self.trajectory, set[str]()
        while (left := known.left_in_front()) is not None and left.id not in seen:
            seen.add(left.id)
            for evaluation in await self.evaluator.retime(task.contract, [(left, known.evaluations[left.id])]):
                self.record("evaluation", evaluation)

    async def profile_best(self, task: Task) -> None:
        """Counters of the best so far: the next plan rests on them. Profiling every candidate would cost too much."""
        assert self.evaluator is not None
        best = self.trajectory.best
        if not self.job.profile or not self.trajectory.measured or best is None:
            return
        if (evaluation := self.trajectory.evaluations[best.id]).counters is None:
            self.record("evaluation", await self.evaluator.profiled(task.contract, best, evaluation))

    def record_usage(self, situation: Situation | None = None) -> None:
        """Record what the agent spent, when it changed, and what it has to say."""
        usage = added(self.spent_before, self.agent.usage)
        if usage != self.trajectory.usage:
            self.record("usage", usage)
        for exchange in getattr(self.agent, "take_exchanges", tuple)():
            self.record("exchange", exchange)
        for text in self.agent.take_notes(situation):
            self.record("note", Note(text=text))


def _text(path: Path) -> str:
    """A file's text; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

"""Evaluation in processes of this machine: screen → build → verify → time → profile, cheapest first.

Builds run side by side. Verification and timing hold the GPU alone, across processes. A candidate
that crashes, hangs or aborts costs itself only: its process group is killed, the device is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.contract import Contract
from contracts.errors import HieraError, InputError, WorkerError
from engine.evaluate import confirm as confirming
from engine.evaluate import gpu_lock, measure, replies, sandbox, sanitizer
from engine.evaluate.baseline import Baselines
from engine.evaluate.build import Builder
from engine.evaluate.cache import code_key
from engine.evaluate.checks import Ledger, merged
from engine.evaluate.host_build import emulated_build
from engine.evaluate.inputs import reference_text
from engine.evaluate.pace import Pace
from engine.evaluate.profile import profile
from engine.evaluate.screen import screen
from engine.evaluate.session import NotStartedError, Prestarted, Session, own
from engine.evaluate.stopwatch import Stopwatch
from engine.evaluate.verify import Draws, Limits, StoppedError, Verifier
from engine.evaluate.watch import allowance_of, room
from engine.nvml import find_gpu
from engine.records import Baseline, Build, Candidate, Check, Counters, Device, Evaluation, Failure
from engine.toolchain import Toolchain

LEAST_BUDGET_BYTES = 2 << 30
HOST_BUDGET_BYTES = 1 << 30
# Who met a full card waits this long for other processes to give memory back, and tries again.
ROOM_S, ROOM_SHARE = 20.0, 0.3
SEARCH_LIMITS = Limits()
CONFIRM_LIMITS = Limits(search_s=60.0, repeats=10, trials=20)
RETIME_LIMITS = Limits(search_s=0.5, perturbations=2, repeats=2)
EMULATED_LIMITS = Limits(
    search_s=12.0, call_s=60.0, least_call_s=15.0, call_factor=300.0, perturbations=4, repeats=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much evaluation a candidate gets.

    Attributes:
        limits: Verification.
        search: Timing of every candidate that is right.
        winner: Timing of the best, again.
        confirm: Verification of a winner.
        compile_baseline: `best`, `default` or `off`.
        profile_above: Profile a candidate whose speed-up is at least this; None for never.
        quarantine: Reject everything on a contract that cannot tell a kernel from a constant.
        sanitizer: Run compute-sanitizer's tools when a winner is confirmed.
    """

    limits: Limits = SEARCH_LIMITS
    search: measure.Effort = measure.SEARCH
    winner: measure.Effort = measure.WINNER
    confirm: Limits = CONFIRM_LIMITS
    compile_baseline: str = "default"
    profile_above: float | None = None
    quarantine: bool = True
    sanitizer: bool = True


class LocalEvaluator:
    """Judges candidates of one contract. See `engine.evaluate.Evaluator`.

    Args:
        toolchain: The programs and the user's interpreter.
        device: Where to run; kind `none` executes kernels on the CPU.
        contract: What is judged.
        folder: The contract folder.
        builder: Builds candidates.
        reduced: The contract at small sizes, for runs without a GPU.
        reduced_folder: Its folder, where that is another one.
        settings: How much to run.
        prestarted: Processes that are warm already.
    """

    def __init__(
        self, toolchain: Toolchain, device: Device, contract: Contract, folder: Path, builder: Builder, *,
        reduced: Contract | None = None, reduced_folder: Path | None = None, settings: Settings | None = None,
        prestarted: Prestarted | None = None,
    ) -> None:
        self._toolchain, self._device, self._folder, self._builder = toolchain, device, Path(folder), builder
        self._contract, self._gpu = contract, find_gpu(device)
        self._emulated = device.kind != "cuda"
        self._settings = settings or Settings()
        if self._emulated:
            self._settings = replace(self._settings, limits=EMULATED_LIMITS if settings is None else settings.limits)
        self._reduced = reduced if self._emulated else None
        judged_folder = Path(reduced_folder or folder) if self._reduced is not None else self._folder
        self._judged_folder = judged_folder
        self.session = Session(
            toolchain, self._reduced or contract, judged_folder, "cpu" if self._emulated else f"cuda:{device.index}",
            budget_bytes=self._budget_bytes, prestarted=prestarted, allowance=allowance_of(self._gpu, device, contract),
            beside=self._beside_others)
        self._baselines = Baselines(
            self.session, toolchain, self._judged_folder, device, self._settings.compile_baseline,
            beside=self._beside_others)
        self._one_at_a_time = asyncio.Lock()
        self._draws = Draws()
        self._pace = Pace()
        self._preparing: asyncio.Task[None] | None = None
        self.healthy = True

    def _budget_bytes(self) -> int:
        """For argument sets: a part of the card, and no more than a part of what others left free of it."""
        if self._emulated:
            return HOST_BUDGET_BYTES
        memory = self._gpu.memory() if self._gpu is not None else None
        free_bytes = self._device.memory_bytes if memory is None else memory.total_bytes - memory.used_bytes
        return max(min(self._device.memory_bytes // 6, free_bytes // 4), LEAST_BUDGET_BYTES)

    async def prepare(self) -> None:
        """Start the judge and build what all candidates share, once; several may wait for it.

        Raises:
            InputError: The user's reference cannot be used as it is.
            ToolError: A program is missing.
            WorkerError: The judge does not start.
        """
        await asyncio.shield(self.begin())

    def begin(self) -> asyncio.Task[None]:
        """Begin to prepare without waiting: candidates are built meanwhile."""
        if self._preparing is None:
            self._preparing = asyncio.create_task(self._prepare())
            # Whoever waits gets the error; when nobody does, it is not to be shouted at exit.
            self._preparing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._preparing

    async def _prepare(self) -> None:
        reference = await self._reference_build()
        if reference is not None:
            self.session.use_reference(reference)
        binding = asyncio.create_task(self._builder.prepare(self._judged_folder, emulated=self._emulated))
        try:
            await self._open()
        except BaseException:
            binding.cancel()
            raise
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await binding
        self._baselines.start()

    async def _open(self) -> None:
        """Open the session; once more where others had filled the card."""
        try:
            await self.session.open()
        except InputError as error:
            if "out of memory" not in error.problem or not await self._room():
                raise
            await self.session.open()

    async def baseline(self) -> Baseline:
        """Times of the reference, eager and compiled; None where not measured."""
        await self.prepare()
        await self._baselines.compiling()
        async with self._one_at_a_time:
            await self.session.ready()
            async with self._alone():
                return await self._baselines.measure()

    async def evaluate(self, contract: Contract, candidate: Candidate) -> Evaluation:
        """Judge one candidate. A candidate that fails is an `Evaluation`, never an exception.

        Raises:
            HieraError: This machine cannot judge: no compiler, no judge, an unhealthy GPU.
        """
        begin = time.perf_counter()
        self.begin()
        self._pace.enter(candidate)
        evaluation = await self._evaluate(contract, candidate)
        return replace(evaluation, seconds=time.perf_counter() - begin)

    async def retime(self, contract: Contract, candidates: Sequence[tuple[Candidate, Evaluation]]) -> list[Evaluation]:
        """Time the best again, longer and afresh; the same evaluations with new timing, in order."""
        again = []
        for candidate, evaluation in candidates:
            build = evaluation.build
            if self._emulated or build is None or build.extension is None or evaluation.timing is None:
                again.append(evaluation)
                continue
            # One that was left as slower was not verified to the end before.
            limits = self._settings.limits if evaluation.slower else RETIME_LIMITS
            fresh = await self._judged(contract, candidate, build, self._settings.winner, limits=limits)
            if fresh.failure is not None and fresh.verification is None:
                again.append(evaluation)  # The judge failed, which is no finding about the candidate.
                continue
            stage = fresh.stage if fresh.failure is not None or evaluation.slower else evaluation.stage
            again.append(replace(fresh, counters=evaluation.counters, stage=stage, estimate_us=evaluation.estimate_us,
                                 confirmed=evaluation.confirmed))
        return again

    async def confirm(self, contract: Contract, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
        """Rebuild with PyTorch's own headers, verify in a fresh process with fresh seeds, run the sanitizer."""
        if self._emulated:
            return evaluation  # Nothing was built for a GPU: there is nothing to confirm.
        rebuilt = await confirming.rebuild(self._toolchain, contract, self._folder, candidate.source, self._device)
        if isinstance(rebuilt, Failure):
            return replace(evaluation, confirmed=False, failure=rebuilt)
        try:
            judged = await self._judged(contract, candidate, rebuilt.build, self._settings.winner,
                                        limits=self._settings.confirm)
            if judged.failure is not None:
                reason = f"real headers: {judged.failure.reason}"
                return replace(judged, confirmed=False, build=evaluation.build, counters=evaluation.counters,
                               failure=replace(judged.failure, stage="confirm", reason=reason))
            checks = [Check(name="real headers", status="pass", detail=f"built in {rebuilt.build.seconds:.0f} s")]
            checks.append(confirming.second_process(await self._judged(
                contract, candidate, rebuilt.build, None, limits=self._settings.confirm)))
            if self._settings.sanitizer:
                async with self._one_at_a_time, self._beside_others():
                    checks += await sanitizer.run_all(
                        self._toolchain, contract, rebuilt.build, candidate.source, self._device)
        finally:
            shutil.rmtree(rebuilt.folder, ignore_errors=True)
        assert judged.verification is not None
        verification = merged(judged.verification, checks)
        found = next((c for c in checks if c.status == "fail"), None)
        failure = Failure(stage="confirm", reason=f"{found.name}: {found.detail}") if found is not None else None
        return replace(
            judged, stage="confirmed" if failure is None else judged.stage, build=evaluation.build,
            verification=verification, counters=evaluation.counters, estimate_us=evaluation.estimate_us,
            confirmed=failure is None, failure=failure)

    def identity(self) -> dict[str, object]:
        """All about toolchain, interpreter and settings that could change an evaluation."""
        return {"code": code_key(), "toolchain": self._toolchain.key, "python": self._toolchain.python,
                "settings": repr(self._settings), "emulated": self._emulated,
                "reduced": self._reduced.id if self._reduced is not None else None}

    async def close(self) -> None:
        """End every process it started."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait({self._preparing})
            self._preparing = None
        await self._baselines.close()
        await self.session.close()

    async def _evaluate(self, contract: Contract, candidate: Candidate) -> Evaluation:
        source = self._source(candidate)
        failure = screen(source, entries=[contract.entry])
        if failure is not None:
            return Evaluation(candidate_id=candidate.id, stage="proposed", failure=failure)
        begin = time.perf_counter()
        built = await self._build(candidate, source)
        build_s = time.perf_counter() - begin
        if isinstance(built, Failure):
            return Evaluation(candidate_id=candidate.id, stage="screened", failure=built)
        if built.extension is None:
            return Evaluation(
                candidate_id=candidate.id, stage="built", build=built,
                failure=Failure(stage="verify", reason="it was compiled, but cannot be executed here: "
                                + ("; ".join(built.warnings) or "no GPU")))
        await self.prepare()
        effort = None if self._emulated else self._settings.search
        judged = await self._judged(contract, candidate, built, effort)
        if judged.failure is not None and judged.verification is None:
            # The judge failed and was started anew: that must not cost the candidate.
            judged = await self._judged(contract, candidate, built, effort)
        if replies.out_of_memory(judged.failure) and await self._room():
            judged = await self._judged(contract, candidate, built, effort)
        judged = replace(judged, stage_s={"build": build_s, **judged.stage_s})
        above = self._settings.profile_above
        if judged.timing is not None and not judged.slower and above is not None and judged.timing.speedup >= above:
            counters = await self.profile(contract, candidate, built)
            judged = replace(judged, counters=counters, stage="profiled")
        return judged

    async def _room(self) -> bool:
        """Give back what our judge keeps, and wait for others to. Whether who found none may try again."""
        async with self._one_at_a_time:
            if self.session.is_open:
                with contextlib.suppress(HieraError):
                    await own(self.session.judge).call("release", timeout_s=ROOM_S)
        return self._gpu is not None and await room(self._gpu, ROOM_SHARE, ROOM_S)

    async def profile(self, contract: Contract, candidate: Candidate, build: Build) -> Counters:
        """Counters of a built candidate, with the GPU to itself."""
        async with self._one_at_a_time:
            return await profile(self._toolchain, contract=contract, build=build, source=candidate.source,
                                 device=self._device, alone=self._alone)

    async def _judged(self, contract: Contract, candidate: Candidate, build: Build, effort: measure.Effort | None,
                      *, limits: Limits | None = None) -> Evaluation:
        """Verify and time a build: one candidate of a contract at a time, and timing alone on the device."""
        watch = Stopwatch()
        await self.prepare()  # A job that goes on with stored verdicts comes here first.
        async with self._one_at_a_time:
            await self.session.ready()
            watch.lap("wait")
            ledger = Ledger(contract.precision)
            locked: dict[str, str] = {}
            seen = glance = None
            whole = True
            trouble: Failure | None = None
            stage = "verify"
            worker = None
            try:
                worker, locked = await self.session.candidate(build)
                watch.lap("load")
                verifier = Verifier(own(self.session.judge), worker, self.session.contract, ledger,
                                    limits or self._settings.limits, emulated=self._emulated,
                                    beside=self._beside_others, draws=self._draws if limits is None else None)
                self._null_test(ledger)
                timer = measure.Timer(own(self.session.judge), verifier, self.session.contract, self._device,
                                      gpu=self._gpu)

                async def behind() -> bool:
                    nonlocal glance
                    watch.lap("verify")
                    async with self._alone():
                        watch.lap("wait")
                        glance = await timer.glance()
                    watch.lap("time")
                    return self._pace.leaves(glance, strict=ledger.verdicts.get("strict") is True)

                # What is timed again or confirmed has limits of its own, and is looked at to the end.
                searching = limits is None and effort is self._settings.search and self._pace.asks(candidate)
                whole = await verifier.run(behind if searching else None)
                watch.lap("verify")
                if whole and not ledger.rejected and effort is not None:
                    stage = "time"
                    timer.compiled = self._baselines.compiled()  # A glance asks for the reference alone.
                    async with self._alone():
                        watch.lap("wait")
                        seen = await timer.run(effort)
                    watch.lap("time")
                    if not ledger.rejected:
                        await verifier.again(2)
                        watch.lap("verify")
            except StoppedError:
                await self._recover()
            except NotStartedError as error:
                trouble = Failure(stage=stage, reason=f"no process starts for candidates: {error.problem}")
            except InputError as error:
                if worker is None:
                    ledger.fail("runs", replies.brief(error.problem))
                else:
                    trouble = Failure(stage=stage, reason=error.problem)
                    await self.session.reopen()
            except WorkerError as error:
                if worker is None:
                    # It died while it loaded: code of the candidate ran there.
                    ledger.fail("runs", f"while it was loaded: {replies.brief(error.problem)}")
                    await self._recover()
                else:
                    trouble = Failure(stage=stage, reason=f"the judge failed: {error.problem}")
                    await self.session.reopen()
            finally:
                if worker is not None:
                    await self.session.end(worker)
            log = replies.plain_text(worker.log_tail) if worker is not None else ""
        if log and ledger.rejected:
            self._draws.renew()  # What it printed is read by whoever writes the next one.
        ledger.left = "" if whole else "it is slower than the best, and was left"
        verification = ledger.verification(self._where(), sandbox.words(locked))
        reason = ledger.reason() if ledger.rejected else None
        if reason is not None:
            in_time = stage == "time"
            return Evaluation(candidate_id=candidate.id, stage="verified" if in_time else "built", build=build,
                              verification=verification, stage_s=watch.seconds,
                              failure=Failure(stage=stage, reason=reason, log_tail=log))
        if trouble is not None:
            return Evaluation(candidate_id=candidate.id, stage="built", build=build, failure=trouble)
        if glance is not None and not whole:
            return Evaluation(candidate_id=candidate.id, stage="built", build=build, verification=verification,
                              timing=glance, stage_s=watch.seconds, failure=self._pace.failure(glance))
        if not verification.accepts(contract.precision):
            return Evaluation(candidate_id=candidate.id, stage="built", build=build, verification=verification,
                              failure=Failure(stage="verify", reason="a mandatory check did not run"))
        if seen is not None:
            self._pace.took(seen, strict=verification.strict is True)
        return Evaluation(candidate_id=candidate.id, stage="verified" if seen is None else "timed", build=build,
                          verification=verification, timing=seen, stage_s=watch.seconds)

    def _null_test(self, ledger: Ledger) -> None:
        passed = self.session.trivial
        if passed and self._settings.quarantine:
            ledger.fail("null test", f"on this contract {', '.join(passed)} would be accepted: its output says nothing")
        elif passed:
            ledger.skip("null test", f"{', '.join(passed)} would be accepted on this contract")
        elif self.session.trivial_note:
            ledger.skip("null test", self.session.trivial_note)
        else:
            ledger.ok("null test")

    async def _recover(self) -> None:
        """After an abnormal end: is the device still sound?"""
        if not await self.session.sound():
            self.healthy = False
            raise WorkerError(
                "the GPU does not compute any more after a candidate ended abnormally",
                hint="look at dmesg for an Xid; a reset of the device needs its administrator")

    def _alone(self) -> contextlib.AbstractAsyncContextManager[None]:
        """The GPU for this process alone: what is timed or profiled."""
        return contextlib.nullcontext() if self._emulated else gpu_lock.exclusive(self._device.index)

    def _beside_others(self) -> contextlib.AbstractAsyncContextManager[None]:
        """The GPU beside other jobs that verify: times do not matter there."""
        return contextlib.nullcontext() if self._emulated else gpu_lock.shared(self._device.index)

    def _where(self) -> str:
        if not self._emulated:
            return "gpu"
        return "cpu emulation at reduced size" if self._reduced is not None else "cpu emulation at full size"

    def _source(self, candidate: Candidate) -> str:
        if self._reduced is not None and candidate.reduced_source is not None:
            return candidate.reduced_source
        return candidate.source

    async def _build(self, candidate: Candidate, source: str) -> Build | Failure:
        if not self._emulated:
            return await self._builder.build(self._folder, source, space=candidate.space, sm=self._device.sm)
        return await emulated_build(
            self._builder, self._toolchain, self._judged_folder, candidate, source, self._device)

    async def _reference_build(self) -> Build | None:
        if self._contract.reference != "cuda":
            return None
        path, text = reference_text(self._judged_folder)
        reference = Candidate(id="reference", source=text, space="cuda_libs_torch", author="user")
        built = await self._build(reference, text)
        if isinstance(built, Failure) or built.extension is None:
            reason = built.reason if isinstance(built, Failure) else "it cannot be executed here"
            raise InputError(f"the user's own kernel does not build: {reason}", hint="make it compile first", file=path)
        return built

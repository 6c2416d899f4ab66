"""The processes that judge one contract: a judge, and a fresh candidate process for every candidate."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts import codec
from contracts.contract import Contract
from contracts.errors import HieraError, InputError, WorkerError, WorkerTimeoutError
from engine.evaluate import replies, sandbox
from engine.evaluate.verify import seeds
from engine.evaluate.watch import Allowance, watch
from engine.processes import Worker
from engine.records import Build
from engine.toolchain import Toolchain

START_S = 180.0
LOAD_S = 60.0
GUARD_SETS = 12
# A freed block must come back with its poison, not as fresh zero pages, where no GPU allocator does that.
HOST_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "1073741824",
                    "OMP_NUM_THREADS": "1"}


class NotStartedError(WorkerError):
    """No process starts that could load a candidate: the machine is at fault, not the candidate."""


class Prestarted:
    """Processes that start torch and the device while the contract is still being made.

    Args:
        python: The user's interpreter.
        device: `cpu` or `cuda:N`.
        shares: Whether shares of time will be measured, so that their process starts as well.
    """

    def __init__(self, python: str, device: str, *, shares: bool) -> None:
        self.folder = _shared_folder(device)
        self.device = device
        self._left = {"judge": _judge(python, self.folder), "candidate": _candidate(python, self.folder, device, {})}
        if shares:
            self._left["shares"] = Worker("shares", python=python)
        self._warming = {role: asyncio.create_task(self._warm(worker)) for role, worker in self._left.items()}

    async def _warm(self, worker: Worker) -> None:
        # Whoever uses the process next sees its trouble; nobody waits here.
        with contextlib.suppress(HieraError):
            await worker.call("warm", timeout_s=START_S, device=self.device)

    def take(self, role: str) -> Worker | None:
        """The process of this role, whose end is the taker's from now on; the folder goes with the judge."""
        return self._left.pop(role, None)

    async def close(self) -> None:
        """End those that nobody took."""
        left, self._left = self._left, {}
        for role, worker in left.items():
            self._warming[role].cancel()
            await asyncio.wait({self._warming[role]})
            await worker.close()
        if "judge" in left:
            shutil.rmtree(self.folder, ignore_errors=True)


class Session:
    """Judge and candidates of one contract at one place.

    Args:
        toolchain: Names the user's interpreter.
        contract: What is judged.
        folder: The contract folder with the reference.
        device: `cpu` or `cuda:N`.
        budget_bytes: For argument sets, asked when a judge opens; what a single set needs is taken in any case.
        reference: Build of the user's kernel where the contract's reference is CUDA text.
        prestarted: Processes that are warm already, for the first judge and candidate; ended here once taken.
        allowance: What a candidate may take of host and device memory.
        beside: Gives a context in which the device may be used beside other jobs: whoever times waits for its end.
    """

    def __init__(
        self, toolchain: Toolchain, contract: Contract, folder: Path, device: str, *, budget_bytes: Callable[[], int],
        reference: Build | None = None, prestarted: Prestarted | None = None, allowance: Allowance | None = None,
        beside: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.contract, self.device, self._beside = contract, device, beside
        self._allowance = allowance or Allowance()
        self._toolchain, self._folder, self._budget_bytes, self._reference = toolchain, folder, budget_bytes, reference
        self._shared: Path | None = None
        self._prestarted = prestarted if prestarted is not None and prestarted.device == device else None
        self._warm_candidate: Worker | None = None
        self.judge: Worker | None = None
        self._opened_in: int | None = None
        self.opened: dict[str, Any] = {}
        self.trivial: tuple[str, ...] = ()
        self.trivial_note = ""
        self.weights_carry = False
        self.confined = False
        self._spare: asyncio.Task[Worker] | None = None
        self._host_copies = False
        self._candidates: set[Worker] = set()
        self._watchers: dict[Worker, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Start the judge and look whether the task can tell a kernel from a constant.

        Raises:
            InputError: The user's reference cannot be used as it is.
            WorkerError: The judge does not start.
        """
        await self.open_judge()
        assert self.judge is not None
        try:
            await self._null_test()
        except WorkerTimeoutError:
            raise
        except WorkerError:
            # The module may refuse values unlike its example's, such as probabilities beyond 1. On a GPU that can be
            # an assertion in a kernel, after which the process is of no use.
            self.confined = True
            await self._drop()
            await self.open_judge()
            await self._null_test()
        self.warm()

    async def _null_test(self) -> None:
        assert self.judge is not None
        drawn = seeds()
        try:
            async with self._beside():
                found = await self.judge.call("null_test", timeout_s=START_S, families=["randn", "example"],
                                              seeds=[next(drawn) >> 8 for _ in range(4)])
            self.trivial, self.trivial_note = tuple(found["passed"]), ""
            self.weights_carry = found["carrying"]
        except InputError as error:
            # Two references at once can be too much for the device where one is not.
            self.trivial_note = error.problem

    async def reopen(self) -> None:
        """Start the judge again after it failed; candidates' processes go with it."""
        await self._drop()
        await self.open_judge()
        self.warm()

    def spoil(self) -> None:
        """Let the judge be opened anew before its next use: what failed in it may have left the device in disorder."""
        self._opened_in = None

    async def ready(self) -> None:
        """Open the judge anew where its process is gone or another one: a request that was cancelled takes it along.

        Only once `open` is done. Raises what `open` raises.
        """
        if self.opened and not self.is_open:
            await self.reopen()

    @property
    def is_open(self) -> bool:
        """True while the process that was opened is the one that runs."""
        return self.judge is not None and self.judge.pid is not None and self.judge.pid == self._opened_in

    def warm(self) -> None:
        """Start the next candidate's process ahead of its build."""
        if self._spare is None:
            self._spare = asyncio.create_task(self._start_candidate({}))

    async def candidate(
        self, build: Build, environment: Mapping[str, str] | None = None
    ) -> tuple[Worker, dict[str, Any]]:
        """A locked-down process that has loaded `build`, and what its lockdown reports.

        Raises:
            NotStartedError: No process starts, before anything of the candidate ran in it.
            HieraError: It could not load; the process is gone.
        """
        try:
            worker = await self._take(environment or {})
            await self._wipe(worker)
        except WorkerError as error:
            raise NotStartedError(error.problem, hint=error.hint) from error
        assert build.extension is not None
        assert worker.pid is not None
        measures = await sandbox.candidate_report(cuda=self.device != "cpu")
        if watched := self._allowance.how(worker.pid):
            measures[watched] = "in force"
        self._watchers[worker] = asyncio.create_task(watch(worker, self._allowance))
        staged = self._staged(build.extension)
        try:
            reply = await worker.call("load", timeout_s=LOAD_S, extension=str(staged), module=build.module,
                                      entry=self.contract.entry, writable=[], readable=self._readable())
            if not replies.sound("load", reply, {}):
                raise WorkerError("the reply is not one of our worker's: something else wrote it",
                                  hint="let the code that runs there leave the pipes alone")
        except BaseException:
            await self.end(worker)
            raise
        finally:
            shutil.rmtree(staged.parent, ignore_errors=True)
        # Code of the candidate ran before this was said.
        told = {replies.brief(name): replies.brief(state) for name, state in reply["lockdown"].items()}
        return worker, measures | told

    async def end(self, worker: Worker) -> None:
        """End a candidate's process; the next one starts meanwhile."""
        self._candidates.discard(worker)
        watcher = self._watchers.pop(worker, None)
        if watcher is not None:
            watcher.cancel()
        await worker.close()

    async def sound(self) -> bool:
        """Does the device still compute? The judge's own context is tried, then a fresh one."""
        for attempt in range(2):
            try:
                reply = await own(self.judge).call("canary", timeout_s=30)
                if reply["sound"]:
                    return True
            except HieraError:
                pass
            if attempt == 0:
                with contextlib.suppress(HieraError):
                    await self.reopen()
        return False

    async def close(self) -> None:
        """End every process and give the shared memory back; `ready` opens none after that."""
        self.opened = {}
        await self._drop()

    def use_reference(self, build: Build) -> None:
        """Let the judge run this build of the user's own kernel as the reference."""
        self._reference = build

    async def open_judge(self) -> None:
        """Start the judge alone.

        Raises what `open` raises.
        """
        prestarted, self._prestarted = self._prestarted, None
        if prestarted is not None and (judge := prestarted.take("judge")) is not None:
            self._shared, self.judge = prestarted.folder, judge
            self._warm_candidate = prestarted.take("candidate")
        else:
            self._shared = _shared_folder(self.device)
            self.judge = _judge(self._toolchain.python, self._shared)
        extension = None
        if self._reference is not None:
            extension = {"path": self._reference.extension, "module": self._reference.module,
                         "entry": self.contract.entry}
        try:
            async with self._beside():
                self.opened = await self.judge.call(
                    "open", timeout_s=START_S, contract=codec.to_data(self.contract), folder=str(self._folder),
                    device=self.device, shared=str(self._shared), sets=GUARD_SETS,
                    budget_bytes=self._budget_bytes(), extension=extension, host_copies=self._host_copies,
                    carrying=self.weights_carry, confined=self.confined)
        except BaseException:
            await self._drop()
            raise
        self._opened_in = self.judge.pid

    async def _take(self, environment: Mapping[str, str]) -> Worker:
        if environment:
            return await self._start_candidate(environment)
        spare, self._spare = self._spare, None
        try:
            worker = await (spare or self._start_candidate({}))
        except WorkerError as error:
            # Nothing of a candidate has run yet: what fails here is the sandbox or the machine.
            if await sandbox.give_up(error.problem, cuda=self.device != "cpu"):
                return await self._take(environment)
            if self._host_copies or "cudaIpc" not in error.problem:
                raise
            # Handles can be made here but not opened: every tensor then goes through the host, slowly.
            self._host_copies = True
            await self.reopen()
            worker = await self._start_candidate({})
        self.warm()
        return worker

    async def _start_candidate(self, environment: Mapping[str, str]) -> Worker:
        worker, self._warm_candidate = (None if environment else self._warm_candidate), None
        if worker is None:
            assert self._shared is not None
            worker = _candidate(self._toolchain.python, self._shared, self.device, environment)
        self._candidates.add(worker)
        try:
            await worker.call("start", timeout_s=START_S, device=self.device, arguments=self.opened["arguments"],
                              outputs=self.opened["outputs"], flags=dict(self.contract.flags))
        except BaseException:
            await self.end(worker)
            raise
        return worker

    async def _wipe(self, worker: Worker) -> None:
        """Leave nothing of an earlier candidate in the memory that this process shares with the judge."""
        try:
            async with self._beside():
                await own(self.judge).call("wipe", timeout_s=LOAD_S)
        except BaseException:
            await self.end(worker)
            raise

    def _readable(self) -> list[str]:
        toolchain = self._toolchain
        return [path for path in (toolchain.cuda_home, *toolchain.site_packages) if path]

    def _staged(self, extension: str) -> Path:
        """A copy of the extension and the libraries beside it, in a folder where no other candidate's lie."""
        assert self._shared is not None
        folder = Path(tempfile.mkdtemp(prefix="load-", dir=self._shared))
        for path in Path(extension).parent.glob("*.so*"):
            shutil.copy2(path, folder / path.name)
        return folder / Path(extension).name

    async def _drop(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.cancel()
            with contextlib.suppress(asyncio.CancelledError, HieraError):
                await spare
        if self._warm_candidate is not None:
            await self._warm_candidate.close()
            self._warm_candidate = None
        self._prestarted = None
        for worker in list(self._candidates):
            await self.end(worker)
        if self.judge is not None:
            await self.judge.close()
            self.judge = None
        if self._shared is not None:
            shutil.rmtree(self._shared, ignore_errors=True)
            self._shared = None


def _shared_folder(device: str) -> Path:
    root = Path("/dev/shm")
    base = root if device == "cpu" and root.is_dir() else Path(tempfile.gettempdir())
    return Path(tempfile.mkdtemp(prefix="hiera-", dir=base))


def _judge(python: str, folder: Path) -> Worker:
    return Worker("judge", python=python, cwd=folder)


def _candidate(python: str, folder: Path, device: str, environment: Mapping[str, str]) -> Worker:
    host = HOST_ENVIRONMENT if device == "cpu" else {}
    return Worker("candidate", python=python, cwd=folder, env={"PYTHONWARNINGS": "ignore", **host, **environment},
                  wrap=lambda: sandbox.candidate_prefix(folder, cuda=device != "cpu", python=python))


def own(judge: Worker | None) -> Worker:
    """The judge, which must run.

    Raises:
        WorkerError: It does not.
    """
    if judge is None:
        raise WorkerError("the judge does not run", hint="call prepare() first")
    return judge

"""From the text of cuda_source.cu to an importable extension, in seconds.

The text is compiled unchanged by one nvcc call, against light headers that shadow torch's (`engine/runtime`). The
binding, cpp_source.cpp, is compiled once per task with torch's own headers. Both end as shared objects of their own,
because torch's real inline functions and our light ones must never merge.

Any process that has imported the same torch loads a build like this; the dotted name keeps pybind11 from taking two
candidates for one module:

    loader = importlib.machinery.ExtensionFileLoader(build.module, build.extension)
    spec = importlib.machinery.ModuleSpec(build.module, loader, origin=build.extension)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)

The folder of `build.extension` holds all that is needed beside torch and NVIDIA's libraries.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import cattrs

from contracts import codec
from contracts.contract import Space
from contracts.errors import ToolError
from engine.evaluate import audit, messages, screen
from engine.evaluate.binding import read_binding
from engine.evaluate.cache import BuildCache, file_key, text_key
from engine.evaluate.compiler import Compiled, compile_in
from engine.evaluate.inputs import architecture, local_headers
from engine.evaluate.libraries import DRIVER, LIBRARIES, RUNTIME, find_library, include_folders, library_of
from engine.evaluate.prepare import INCLUDE, Prepared, Preparer
from engine.evaluate.tiers import needs_torch_headers, standard_of, write_torch_tier
from engine.records import Build, BuildError, Failure
from engine.toolchain import Toolchain

FORMAT = "1"
MAX_EXTENSION_BYTES = 64 << 20
TIMEOUT_S = 180.0
# torch's own flags for extensions: half arithmetic by conversion, never by hidden operators.
NVCC_FLAGS = (
    "-lineinfo", "-Xptxas", "-v", "--expt-relaxed-constexpr", "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__",
    "-Xcudafe", "--error_limit=20", "-Wno-deprecated-gpu-targets",
)
HOST_FLAGS = "-fPIC,-O2,-fvisibility-inlines-hidden,-fno-gnu-unique,-fmax-errors=20,-Wno-init-list-lifetime"


class Builder:
    """Builds candidates, several at a time, with everything cached by its content.

    Args:
        toolchain: The programs to use.
        cache_dir: Folder for everything that is built; safe to share between processes.
        jobs: Compilers that run at once; the number of cores where None.
    """

    def __init__(self, toolchain: Toolchain, cache_dir: Path, *, jobs: int | None = None) -> None:
        self.toolchain = toolchain
        self.cache = BuildCache(cache_dir)
        self._slots = asyncio.Semaphore(jobs or max(2, len(os.sched_getaffinity(0))))
        self._preparer = Preparer(toolchain, self.cache, self._slots)
        self._preparing: dict[tuple[str, bool], asyncio.Task[Prepared]] = {}

    async def begin(self) -> None:
        """Build what all tasks of this torch share, ahead of the first one: about five seconds once per torch.

        Raises:
            ToolError: No compiler, or no torch.
        """
        await self._preparer.begin()

    async def prepare(self, folder: Path, *, emulated: bool = False) -> Prepared:
        """Build what all candidates of a contract folder share: a second once per task, seven with torch's headers.

        Args:
            folder: The contract folder.
            emulated: The binding then takes CPU tensors for CUDA ones.

        Raises:
            ContractError: cpp_source.cpp is missing or does not compile.
            ToolError: No compiler, or no torch.
        """
        key = (read_binding(folder / "cpp_source.cpp").text, emulated)
        task = self._preparing.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._preparer.prepare(folder, emulated=emulated))
            # A failure is also told where nobody waits for it any more.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._preparing[key] = task
        # Shared by all candidates of the task: one that fails early must not stop it.
        return await asyncio.shield(task)

    async def build(
        self, folder: Path, source: str, *, space: Space, sm: str, extra_flags: Sequence[str] = ()
    ) -> Build | Failure:
        """Build one candidate.

        Args:
            folder: The contract folder; its cpp_source.cpp is the binding.
            source: The text of cuda_source.cu.
            space: What the candidate may link to; enforced on the object's symbols.
            sm: Compute capability, such as `9.0`.
            extra_flags: Further flags for nvcc.

        Raises:
            ContractError: cpp_source.cpp is missing or does not compile.
            ToolError: nvcc or g++ is missing or does not fit torch, or the disk is full.
        """
        started = time.monotonic()
        self.toolchain.require_nvcc()
        declared = read_binding(folder / "cpp_source.cpp")
        failure = screen.screen(source, entries=declared.declared)
        if failure is not None:
            return failure
        local = local_headers(folder, source)
        key = text_key(
            FORMAT, source, declared.text, space, architecture(sm), *extra_flags, self._environment_key(),
            *(f"{name}\0{text}" for name, text in sorted(local.items())),
        )
        ready = self._cached(key, started)
        if ready is not None:
            return ready
        # The first candidate of a task does not wait for the binding: both compile side by side.
        preparing = asyncio.create_task(self.prepare(folder))
        try:
            with self.cache.work_folder() as work:
                return await self._build(work, key, source, local, preparing, space, sm, extra_flags, started)
        finally:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)

    async def compile_only(
        self, source: str, sm: str, *, space: Space = "cuda_libs_torch", extra_flags: Sequence[str] = ()
    ) -> Build | Failure:
        """Compile the device code alone, for static facts: half a second. No binding, nothing to load.

        Raises:
            ToolError: nvcc or torch is missing, or the disk is full.
        """
        started = time.monotonic()
        if self.toolchain.nvcc is None:
            self.toolchain.require_nvcc()
        failure = screen.screen(source)
        if failure is not None:
            return failure
        with self.cache.work_folder() as work:
            source_path = self._write_source(source, {})
            done = await self._nvcc(
                work, source, source_path, space, sm, ("-cubin", "-o", "candidate.cubin", *extra_flags)
            )
            if done.status != 0:
                return self._failed(done, source)
            facts = await self._facts(done.log)
        return Build(
            seconds=time.monotonic() - started, tier="compile only", kernels=facts,
            warnings=messages.warnings(done.log), compiled_for=f"sm_{architecture(sm)}",
        )

    async def _build(
        self, work: Path, key: str, source: str, local: dict[str, str], preparing: asyncio.Future[Prepared],
        space: Space, sm: str, extra_flags: Sequence[str], started: float,
    ) -> Build | Failure:
        source_path = self._write_source(source, local)
        tier = "light"
        to_object = ("-c", "-o", "candidate.o", *extra_flags)
        done = await self._nvcc(work, source, source_path, space, sm, to_object)
        if done.status != 0 and await needs_torch_headers(done.log, source, self.toolchain):
            tier = "torch"
            done = await self._nvcc_with_torch(work, source, source_path, space, sm, to_object)
        if done.status != 0:
            return self._failed(done, source)
        candidate = work / "candidate.o"
        symbols = await audit.read_symbols(candidate)
        failure = audit.audit(symbols, space, source)
        if failure is not None:
            return failure
        prepared = await preparing
        failure = undefined_entry(prepared, symbols.defined)
        if failure is not None:
            return failure
        out = work / "out"
        out.mkdir()
        linked = await self._link(work, out, key, prepared, candidate, symbols)
        if isinstance(linked, Failure):
            return linked
        build = Build(
            seconds=time.monotonic() - started, tier=tier, kernels=await self._facts(done.log),
            warnings=messages.warnings(done.log), extension=linked.name,
            module=f"hiera_{key[:12]}.{prepared.module}", compiled_for=f"sm_{architecture(sm)}",
        )
        (out / "build.json").write_text(json.dumps(codec.to_data(build)))
        (out / "compiler.log").write_text(messages.clean(done.log))
        final = self.cache.publish(out, self.cache.builds / key)
        return _with_extension(build, final)

    async def _nvcc(
        self, work: Path, source: str, source_path: Path, space: Space, sm: str, flags: Sequence[str]
    ) -> Compiled:
        """One nvcc call against the light headers."""
        await self._preparer.write_declarations(source, work / "include")
        lenient = ("-DHIERA_MINI_LENIENT",) if self._preparer.lenient else ()
        includes = (f"-I{work / 'include'}", f"-I{INCLUDE}", *lenient)
        return await self._run_nvcc(work, source, source_path, space, sm, standard_of(source, "c++17"), includes, flags)

    async def _nvcc_with_torch(
        self, work: Path, source: str, source_path: Path, space: Space, sm: str, flags: Sequence[str]
    ) -> Compiled:
        """Nvcc against torch's headers: first only those that the text names, then all of them."""
        standard = standard_of(source, "c++20" if self.toolchain.torch_release >= (2, 10) else "c++17")
        done = Compiled(1, "")
        for whole in (False, True):
            folder = work / ("whole" if whole else "part")
            if not write_torch_tier(folder, source, self._preparer.index, whole=whole):
                continue
            includes = (f"-I{folder}", "-DAT_PER_OPERATOR_HEADERS", "-DTORCH_API_INCLUDE_EXTENSION_H",
                        *self.toolchain.torch_flags)
            done = await self._run_nvcc(work, source, source_path, space, sm, standard, includes, flags)
            if done.status == 0 or not await needs_torch_headers(done.log, source, self.toolchain):
                break
        return done

    async def _run_nvcc(
        self, work: Path, source: str, source_path: Path, space: Space, sm: str, standard: str,
        includes: Sequence[str], flags: Sequence[str],
    ) -> Compiled:
        toolchain = self.toolchain
        assert toolchain.nvcc is not None
        arch = architecture(sm)
        added = [] if re.search(r"#\s*include\s*[<\"](?:torch|ATen|c10)/", source) else ["-include", "torch/types.h"]
        if re.search(r"\b(?:CU[a-z]\w+|cu[A-Z]\w+)\b", source) and "<cuda.h>" not in source:
            added += ["-include", "cuda.h"]
        library_folders = [] if space == "cuda" else include_folders(toolchain, cutlass=True)
        command = [
            toolchain.nvcc, "-ccbin", toolchain.require_compiler(), f"-std={standard}",
            "-gencode", f"arch=compute_{arch},code=sm_{arch}", str(source_path), *includes, *added,
            *(part for folder in library_folders for part in ("-isystem", str(folder))),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(toolchain.cxx11_abi)}", *NVCC_FLAGS, "-Xcompiler", HOST_FLAGS, *flags,
        ]
        readable = [toolchain.cuda_home or "/usr/local/cuda", str(INCLUDE), str(source_path.parent),
                    *(str(folder) for folder in library_folders), *toolchain.site_packages, toolchain.python_include]
        async with self._slots:
            done = await compile_in(work, command, readable=readable, timeout_s=TIMEOUT_S)
        return Compiled(done.status, done.log.replace(str(source_path), messages.SOURCE_NAME))

    async def _link(
        self, work: Path, out: Path, key: str, prepared: Prepared, candidate: Path, symbols: audit.Symbols
    ) -> Path | Failure:
        """Two shared objects: the candidate, and the binding that leans on it."""
        toolchain = self.toolchain
        libraries = self._libraries(name for name, _ in symbols.undefined)
        if isinstance(libraries, Failure):
            return libraries
        own = out / f"libhiera_candidate_{key[:12]}.so"
        extension = out / f"{prepared.module}{toolchain.ext_suffix}"
        rpaths = dict.fromkeys(["$ORIGIN", *(str(path.parent) for path in libraries), str(toolchain.torch_lib)])
        rpath = "-Wl,-rpath," + ":".join(rpaths)
        common = ["-shared", "-Wl,--no-as-needed,--allow-shlib-undefined"]
        runtime = [str(prepared.runtime)] if prepared.runtime else []
        compiler = toolchain.require_compiler()
        driver = [prepared.stub("cuda")] if any(DRIVER.match(name) for name, _ in symbols.undefined) else []
        commands = (
            [compiler, *common, str(candidate), "-o", str(own), f"-Wl,-soname,{own.name}", *runtime,
             *map(str, libraries), *driver, *prepared.torch_stubs, rpath],
            [compiler, *common, str(prepared.binding), str(own), "-o", str(extension), *map(str, prepared.libraries),
             *prepared.torch_stubs, prepared.stub("torch_python"), rpath],
        )
        for command in commands:
            done = await compile_in(work, command, readable=self._link_folders(libraries, prepared))
            if done.status != 0:
                _raise_when_disk_is_full(done.log)
                return Failure(stage="build", reason="the objects could not be linked: " + _first_line(done.log),
                               log_tail=messages.tail(done.log), errors=messages.errors(done.log, ""))
        size = own.stat().st_size + extension.stat().st_size
        if size > MAX_EXTENSION_BYTES:
            return Failure(stage="build", reason=f"the built library is {size >> 20} MiB large, more than "
                                                 f"{MAX_EXTENSION_BYTES >> 20} MiB")
        for library in prepared.libraries:
            _link_or_copy(library, out / library.name)
        return extension

    def _libraries(self, names: Iterable[str]) -> list[Path] | Failure:
        """The CUDA runtime, and the NVIDIA libraries that define `names`."""
        wanted = list(dict.fromkeys(filter(None, map(library_of, names))))
        found: list[Path] = []
        for stem, title in ((RUNTIME, "the CUDA runtime"), *((LIBRARIES[name][0], name) for name in wanted)):
            path = find_library(self.toolchain, stem)
            if path is None:
                return Failure(
                    stage="build",
                    reason=f"{title} (lib{stem}.so) is not installed here; choose a space without it or install it",
                )
            found.append(path)
        return found

    def _link_folders(self, libraries: Sequence[Path], prepared: Prepared) -> list[str]:
        folders = [str(path.parent) for path in libraries]
        return [*folders, str(prepared.binding.parent), str(prepared.stubs),
                *([str(prepared.runtime.parent)] if prepared.runtime else [])]

    async def _facts(self, log: str) -> tuple[messages.KernelFacts, ...]:
        mangled = messages.mangled_kernels(log)
        return messages.kernel_facts(log, await messages.demangle(mangled))

    def _failed(self, done: Compiled, source: str) -> Failure:
        _raise_when_disk_is_full(done.log)
        found = messages.errors(done.log, source)
        if found:
            place = f"{messages.SOURCE_NAME}:{found[0].line}: " if found[0].line else ""
            reason = f"{place}{found[0].message}"
        elif done.status == 124:
            reason = f"the compiler ran longer than {TIMEOUT_S:g} s and was stopped"
        else:
            reason = f"the compiler ended with status {done.status}: {_first_line(done.log)}"
        return Failure(stage="build", reason=reason, log_tail=messages.tail(done.log), errors=found)

    def _write_source(self, source: str, local: dict[str, str]) -> Path:
        """The text at a path of its own that stays, so that profilers find the lines it was compiled from."""
        key = text_key(source, *(f"{name}\0{text}" for name, text in sorted(local.items())))
        final = self.cache.sources / key
        path = final / messages.SOURCE_NAME
        if not path.exists():
            with self.cache.work_folder() as work:
                out = work / "out"
                out.mkdir()
                for name, text in {messages.SOURCE_NAME: source, **local}.items():
                    (out / name).parent.mkdir(parents=True, exist_ok=True)
                    (out / name).write_text(text, encoding="utf-8")
                self.cache.publish(out, final)
        return path

    def _cached(self, key: str, started: float) -> Build | None:
        folder = self.cache.builds / key
        try:
            build = codec.from_data(json.loads((folder / "build.json").read_text()), Build)
        except (OSError, ValueError, cattrs.BaseValidationError):
            build = None
        if build is None or build.extension is None or not (folder / build.extension).exists():
            if folder.exists():
                self.cache.discard(folder)
            return None
        self.cache.touch(folder)
        return _with_extension(build, folder, seconds=time.monotonic() - started, cached=True)

    def _environment_key(self) -> str:
        return text_key(self.toolchain.key, runtime_key())


def runtime_key() -> str:
    """Hash of the light headers and the runtime's source."""
    runtime = INCLUDE.parent
    headers = [path for folder in (INCLUDE, runtime / "binding") for path in sorted(folder.rglob("*.h"))]
    return file_key([*headers, runtime / "hiera_rt.cpp", runtime / "hiera_py.cpp"])


def undefined_entry(prepared: Prepared, defined: Mapping[str, str]) -> Failure | None:
    """A declared function that is not among the symbols that the candidate defines, or has another signature there."""
    for mangled, readable in prepared.needs.items():
        if mangled in defined:
            continue
        name = readable.split("(")[0]
        similar = [shown for shown in defined.values() if shown.split("(")[0] == name]
        has = f"it defines {similar[0]}" if similar else "it does not define it"
        reason = f"cpp_source.cpp declares {readable}, but {has} in cuda_source.cu"
        return Failure(stage="build", reason=reason, errors=(BuildError(line=None, message=reason),))
    return None


def _with_extension(build: Build, folder: Path, **changes: object) -> Build:
    from dataclasses import replace

    return replace(build, extension=str(folder / (build.extension or "")), **changes)


def _first_line(log: str) -> str:
    return next((line.strip() for line in messages.clean(log).splitlines() if line.strip()), "it wrote nothing")[:300]


def _raise_when_disk_is_full(log: str) -> None:
    if "No space left on device" in log:
        raise ToolError("the disk that holds the build cache is full", hint="free some space, or move the cache folder")


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

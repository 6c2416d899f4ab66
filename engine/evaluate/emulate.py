"""Candidates on a machine without a GPU: the same text, compiled by the host compiler, run by the CPU.

`engine/runtime/emulator` plays CUDA; tensors are CPU tensors that the host code takes for CUDA ones. The result is an
extension like any other: the candidate process loads it and calls the entry. It says whether a kernel is right, and
nothing about how fast it is on a GPU.

The environment of the process that runs it:

* `HIERA_EMU_ORDER=reversed` runs blocks, warps and lanes backwards. A result that changes is a race.
* `HIERA_EMU_LIMIT_S` is the CPU time one launch may take (30). Longer is reported as a kernel that does not end.
* `HIERA_EMU_SMS` is the number of multiprocessors the host code sees (8).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

from contracts import codec
from engine.evaluate import audit, messages, operators, screen
from engine.evaluate.binding import read_binding
from engine.evaluate.build import Builder, local_headers, runtime_key, undefined_entry
from engine.evaluate.cache import file_key, text_key
from engine.evaluate.compiler import Compiled, compile_in
from engine.evaluate.cuda_to_host import blockers, transform
from engine.evaluate.prepare import INCLUDE, Prepared
from engine.evaluate.tiers import standard_of
from engine.records import Build, BuildError, Failure

__all__ = ["blockers", "build_emulated", "transform"]

EMULATOR = INCLUDE.parent / "emulator"
TIMEOUT_S = 120.0
FORMAT = "3"
# Contraction as nvcc does by default; no type-based aliasing, because kernels reinterpret memory freely.
FLAGS = (
    "-O2", "-g1", "-fPIC", "-ffp-contract=fast", "-fno-strict-aliasing", "-fvisibility-inlines-hidden",
    "-fno-gnu-unique", "-fmax-errors=20", "-w", "-Wno-narrowing", "-DHIERA_EMU=1",
    # A CUDA thread that is given up inside the initialisation of a static must not leave its lock behind.
    "-fno-threadsafe-statics",
    # A float4 at an address that is no multiple of 16 is a fault on a GPU, whatever this compiler makes of it.
    "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
    # As in torch's own builds, and ours with nvcc.
    "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
)


async def build_emulated(builder: Builder, folder: Path, source: str, *, sm: str = "9.0") -> Build | Failure:
    """Build one candidate for the CPU.

    Args:
        builder: Its toolchain, cache and prepared binding are used; nvcc is not.
        folder: The contract folder; its cpp_source.cpp is the binding.
        source: The text of cuda_source.cu.
        sm: Compute capability that `__CUDA_ARCH__` and the device properties name.

    Returns:
        A build of tier `emulated`, or why there is none. Text that the emulator cannot run gives a `Failure` whose
        reason begins with `cannot be run without a GPU`: that says nothing against the candidate.

    Raises:
        ContractError: cpp_source.cpp is missing or does not compile.
        ToolError: There is no host compiler or no torch.
    """
    started = time.monotonic()
    declared = read_binding(folder / "cpp_source.cpp")
    refused = screen.screen(source, entries=declared.declared)
    if refused is not None:
        return refused
    blocked = blockers(source)
    if blocked:
        return Failure(stage="build", reason="cannot be run without a GPU: the source uses " + ", ".join(blocked))
    try:
        text = transform(source)
    except ValueError as error:
        return Failure(stage="build", reason=f"{messages.SOURCE_NAME}: {error}")
    local = local_headers(folder, source)
    key = text_key(
        FORMAT, "emulated", source, declared.text, sm, builder.toolchain.key, emulator_key(), processor(),
        *(f"{name}\0{content}" for name, content in sorted(local.items())),
    )
    ready = _cached(builder, key, started)
    if ready is not None:
        return ready
    prepared = await builder.prepare(folder, emulated=True)
    with builder.cache.work_folder() as work:
        for name, content in local.items():
            path = work / "local" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(transform(content), encoding="utf-8")
        operators.write_headers(prepared.index, source, work / "include")
        done = await _compile(builder, work, source, text, sm)
        if done.status != 0:
            return _failed(done, source)
        missing = undefined_entry(prepared, await audit.defined_symbols(work / "candidate.o"))
        if missing is not None:
            return missing
        out = work / "out"
        out.mkdir()
        linked = await _link(builder, work, out, key, prepared)
        if isinstance(linked, Failure):
            return linked
        build = Build(
            seconds=time.monotonic() - started, tier="emulated", extension=linked.name,
            module=f"hiera_{key[:12]}.{prepared.module}",
        )
        (out / "build.json").write_text(json.dumps(codec.to_data(build)))
        final = builder.cache.publish(out, builder.cache.builds / key)
        return replace(build, extension=str(final / linked.name))


def _cached(builder: Builder, key: str, started: float) -> Build | None:
    folder = builder.cache.builds / key
    try:
        build = codec.from_data(json.loads((folder / "build.json").read_text()), Build)
    except (OSError, ValueError):
        return None
    if build.extension is None or not (folder / build.extension).exists():
        return None
    builder.cache.touch(folder)
    return replace(build, extension=str(folder / build.extension), seconds=time.monotonic() - started, cached=True)


async def _compile(builder: Builder, work: Path, source: str, text: str, sm: str) -> Compiled:
    header = "" if re.search(r"#\s*include\s*[<\"](?:torch|ATen|c10)/", source) else "#include <torch/types.h>\n"
    (work / "candidate.cpp").write_text(
        f'#include <hiera_emu/all.h>\n{header}#line 1 "{messages.SOURCE_NAME}"\n{text}', encoding="utf-8"
    )
    command = [
        builder.toolchain.require_compiler(), f"-std={standard_of(source, 'c++17')}", *FLAGS,
        *_tuned(builder.toolchain.gxx_version),
        f"-DHIERA_EMU_ARCH={sm.replace('.', '')}0", f"-D_GLIBCXX_USE_CXX11_ABI={int(builder.toolchain.cxx11_abi)}",
        "-Iinclude", "-Ilocal", f"-I{EMULATOR}", f"-I{INCLUDE}", "-c", "candidate.cpp", "-o", "candidate.o",
    ]
    async with builder._slots:  # noqa: SLF001 - one limit for all compilers of a builder.
        return await compile_in(work, command, readable=[str(EMULATOR), str(INCLUDE)], timeout_s=TIMEOUT_S)


def _tuned(gxx_version: str) -> tuple[str, ...]:
    """Flags for this machine's processor."""
    if platform.machine() != "x86_64":
        return ()
    # With half arithmetic in hardware g++ vectorises float -> half -> float into nothing: what splits a float into two
    # halves then finds the second one empty. Older compilers know neither the instructions nor the flag.
    halves = int(re.match(r"\d*", gxx_version)[0] or 0) >= 12
    return ("-march=native", *(("-mno-avx512fp16",) if halves else ()))


async def _link(builder: Builder, work: Path, out: Path, key: str, prepared: Prepared) -> Path | Failure:
    """The candidate, and the binding that leans on it: two shared objects, as for the GPU."""
    toolchain = builder.toolchain
    own = out / f"libhiera_candidate_{key[:12]}.so"
    extension = out / f"{prepared.module}{toolchain.ext_suffix}"
    common = ["-shared", "-Wl,--no-as-needed,--allow-shlib-undefined", f"-Wl,-rpath,$ORIGIN:{toolchain.torch_lib}"]
    # The kernels run on the CPU: torch's CUDA libraries are not asked for.
    torch = [stub for stub in prepared.torch_stubs if not stub.endswith("_cuda.so")]
    runtime = [str(prepared.runtime)] if prepared.runtime else []
    compiler = toolchain.require_compiler()
    readable = [str(folder) for folder in (prepared.stubs, prepared.binding.parent, toolchain.torch_lib)]
    for command in (
        [compiler, *common, "candidate.o", "-o", str(own), f"-Wl,-soname,{own.name}", *runtime, *torch],
        [compiler, *common, str(prepared.binding), str(own), "-o", str(extension), *map(str, prepared.libraries),
         *torch, prepared.stub("torch_python")],
    ):
        done = await compile_in(work, command, readable=readable)
        if done.status != 0:
            return _failed(done, "")
    for library in prepared.libraries:
        _link_or_copy(library, out / library.name)
    return extension


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _failed(done: Compiled, source: str) -> Failure:
    found = messages.errors(done.log, source) or (BuildError(line=None, message=f"status {done.status}"),)
    place = f" at {messages.SOURCE_NAME}:{found[0].line}" if found[0].line else ""
    return Failure(
        stage="build", reason=f"cannot be run without a GPU: the host compiler refuses it{place}: {found[0].message}",
        log_tail=messages.tail(done.log), errors=found,
    )


@cache
def emulator_key() -> str:
    """Hash of all that a build takes from us."""
    return text_key(file_key(sorted(EMULATOR.rglob("*.h"))), runtime_key())


@cache
def processor() -> str:
    """What `-march=native` stands for on this machine."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    flags = re.search(r"^(?:flags|Features)\s*:.*$", text, re.MULTILINE)
    return text_key(platform.machine(), flags[0] if flags else "")

"""What candidates share: torch's operator index and the runtime library once per torch, the binding once per task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from contracts.errors import ContractError, ToolError
from engine.evaluate import messages, operators
from engine.evaluate.audit import undefined_symbols
from engine.evaluate.binding import BindingSource, read_binding
from engine.evaluate.cache import BuildCache, file_key, text_key
from engine.evaluate.compiler import Compiled, compile_in
from engine.toolchain import Toolchain

INCLUDE = Path(__file__).resolve().parent.parent / "runtime" / "include"
RUNTIME_SOURCE = INCLUDE.parent / "hiera_rt.cpp"
PYTHON_SOURCE = INCLUDE.parent / "hiera_py.cpp"
# A fifth of the time that torch's and pybind11's headers need, for bindings that only pass values on.
LIGHT_BINDING = INCLUDE.parent / "binding"
# Stand-ins with the names of libraries that are loaded already: the linker need not read 74,000 symbols.
STUBS = ("c10", "torch_cpu", "torch", "torch_python", "c10_cuda", "torch_cuda")
HOST_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-fno-gnu-unique")
# A third of torch/extension.h's time, and all that a binding commonly needs.
_SHORT_EXTENSION = """#pragma once
#include <torch/csrc/utils/pybind.h>
#include <ATen/core/Tensor.h>
namespace torch {
using namespace at;
using at::Tensor;
}
"""
_WHOLE_EXTENSION = """#pragma once
#include_next <torch/extension.h>
"""
# Emulated run: kernels execute on the CPU, and so the binding must take CPU tensors for CUDA ones.
_EMULATED = """#define is_cuda is_cpu
#define kCUDA kCPU
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What every candidate of a task is linked with.

    Attributes:
        binding: The compiled cpp_source.cpp.
        module: The extension's own module name.
        exported: Names that Python sees.
        needs: Functions that the candidate must define: mangled to readable names.
        runtime: libhiera_rt; None where this torch's layouts differ, and then only torch's headers serve.
        python: libhiera_py, where the binding leans on it; None where it was compiled with torch's headers.
        stubs: Folder of empty libraries with torch's sonames.
        index: The operators of this torch.
        include: The light headers.
    """

    binding: Path
    module: str
    exported: tuple[str, ...]
    needs: dict[str, str]
    runtime: Path | None
    python: Path | None
    stubs: Path
    index: operators.OperatorIndex
    include: Path = INCLUDE

    def stub(self, name: str) -> str:
        """Path of the stand-in for lib`name`.so."""
        return str(self.stubs / f"lib{name}.so")

    @property
    def libraries(self) -> list[Path]:
        """Our own libraries that a build leans on."""
        return [path for path in (self.runtime, self.python) if path is not None]

    @property
    def torch_stubs(self) -> list[str]:
        """Stand-ins for the libraries of torch that candidates may refer to."""
        names = [name for name in STUBS if name != "torch_python"]
        return [self.stub(name) for name in names if Path(self.stub(name)).exists()]


class Preparer:
    """Builds the shared parts, each once in a process and once in the cache.

    Args:
        toolchain: The programs to use.
        cache: Where the parts are kept.
        slots: Limits compilers that run at once.
    """

    def __init__(self, toolchain: Toolchain, cache: BuildCache, slots: asyncio.Semaphore) -> None:
        self._toolchain = toolchain
        self._cache = cache
        self._slots = slots
        self._index: operators.OperatorIndex | None = None
        self._lenient: bool | None = None
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def index(self) -> operators.OperatorIndex:
        """The operators of this torch."""
        if self._index is None:
            name = text_key(self._toolchain.key, str(self._toolchain.torch_include))
            self._index = operators.load_index(
                self._toolchain.torch_include, self._cache.root / f"operators-{name[:16]}.json"
            )
        return self._index

    @property
    def lenient(self) -> bool:
        """True where this torch lets AT_DISPATCH take the deprecated `x.type()`."""
        if self._lenient is None:
            dispatch = self._toolchain.torch_include / "ATen" / "Dispatch.h"
            self._lenient = "DeprecatedTypeProperties" in dispatch.read_text(errors="replace")
        return self._lenient

    async def write_declarations(self, source: str, folder: Path) -> None:
        """Write the declarations that `source` needs."""
        if self._index is None:
            await asyncio.to_thread(lambda: self.index)
        operators.write_headers(self.index, source, folder)

    async def begin(self) -> None:
        """Build what all tasks of this torch share.

        Raises:
            ToolError: No compiler, or no torch.
        """
        await asyncio.gather(self._runtime(), asyncio.to_thread(lambda: self.index))

    async def prepare(self, folder: Path, *, emulated: bool = False) -> Prepared:
        """All shared parts for a contract folder.

        Raises:
            ContractError: cpp_source.cpp is missing or does not compile.
            ToolError: No compiler, or no torch.
        """
        path = folder / "cpp_source.cpp"
        source = read_binding(path)
        runtime, binding = await asyncio.gather(self._runtime(), self._binding(source, path, emulated=emulated))
        library, python = runtime / "libhiera_rt.so", runtime / "libhiera_py.so"
        await asyncio.to_thread(lambda: self.index)
        facts = json.loads((binding / "binding.json").read_text())
        if facts["light"] and not (library.exists() and python.exists()):
            binding = await self._binding(source, path, emulated=emulated, light=False)
            facts = json.loads((binding / "binding.json").read_text())
        return Prepared(
            binding=binding / "binding.o", module=source.module, exported=source.exported, needs=facts["needs"],
            runtime=library if library.exists() else None, python=python if facts["light"] else None,
            stubs=runtime, index=self.index,
        )

    async def _once(self, final: Path, make: Callable[[Path, Path], Awaitable[None]]) -> Path:
        """`final`, made by `make(work, out)` when it is not there yet."""
        async with self._locks.setdefault(str(final), asyncio.Lock()):
            if not final.is_dir():
                with self._cache.work_folder() as work:
                    out = work / "out"
                    out.mkdir()
                    await make(work, out)
                    self._cache.publish(out, final)
        return final

    async def _runtime(self) -> Path:
        toolchain = self._toolchain
        compiler = toolchain.require_compiler()
        texts = [path.read_text(encoding="utf-8") for path in (RUNTIME_SOURCE, PYTHON_SOURCE)]

        async def make(work: Path, out: Path) -> None:
            stubs = [name for name in (*STUBS, "cuda") if toolchain.torch_cuda or not name.endswith("_cuda")]
            for name in stubs:
                soname = "libcuda.so.1" if name == "cuda" else f"lib{name}.so"
                await self._compile(
                    work, [compiler, "-shared", "-x", "c++", "/dev/null", "-o", str(out / f"lib{name}.so"),
                           f"-Wl,-soname,{soname}"], required=True,
                )

            async def library(source: Path, name: str, *needed: str) -> None:
                # Compilers write their log into the folder they run in.
                folder = work / name
                folder.mkdir()
                built = folder / f"{name}.so"
                done = await self._compile(
                    folder, [compiler, *HOST_FLAGS, "-shared", "-DAT_PER_OPERATOR_HEADERS", *toolchain.torch_flags,
                             str(source), "-o", built.name, f"-Wl,-soname,{built.name}",
                             "-Wl,--no-as-needed,--allow-shlib-undefined",
                             *(str(out / f"lib{stub}.so") for stub in needed), "-ldl",
                             f"-Wl,-rpath,{toolchain.torch_lib}"], required=False, shown=[str(out)])
                if done.status == 0:
                    built.replace(out / built.name)

            await asyncio.gather(library(RUNTIME_SOURCE, "libhiera_rt", "torch_cpu", "c10"),
                                 library(PYTHON_SOURCE, "libhiera_py", "torch_python", "torch_cpu", "c10"))

        return await self._once(self._cache.runtimes / text_key(toolchain.key, *texts), make)

    async def _binding(self, source: BindingSource, path: Path, *, emulated: bool, light: bool = True) -> Path:
        """The binding compiled: without torch's headers where it only passes values on and `light` allows it."""
        toolchain = self._toolchain
        compiler = toolchain.require_compiler()
        light = light and not source.needs_torch
        key = text_key(toolchain.key, source.text, source.module, str(emulated), _SHORT_EXTENSION, _EMULATED,
                       file_key(sorted(LIGHT_BINDING.rglob("*.h"))) if light else "")

        async def make(work: Path, out: Path) -> None:
            (work / "cpp_source.cpp").write_text(source.text, encoding="utf-8")
            if light and await self._light_binding(source, work, out):
                await self._note_binding(source, out, light=True)
                return
            done = Compiled(1, "")
            for name, header in (("short", _SHORT_EXTENSION), ("whole", _WHOLE_EXTENSION)):
                folder = work / name / "torch"
                folder.mkdir(parents=True)
                text = header + (_EMULATED if emulated else "")
                (folder / "extension.h").write_text(text)
                if name == "short":
                    for alias in ("types.h", "torch.h", "all.h"):
                        (folder / alias).write_text("#include <torch/extension.h>\n")
                done = await self._compile(
                    work, [compiler, *HOST_FLAGS, f"-DTORCH_EXTENSION_NAME={source.module}",
                           "-DTORCH_API_INCLUDE_EXTENSION_H", "-DAT_PER_OPERATOR_HEADERS", f"-I{folder.parent}",
                           *toolchain.torch_flags, "-c", "cpp_source.cpp", "-o", str(out / "binding.o")],
                    required=False,
                )
                if done.status == 0:
                    break
            if done.status != 0:
                raise _binding_error(done, path)
            await self._note_binding(source, out, light=False)

        return await self._once(self._cache.bindings / key, make)

    async def _light_binding(self, source: BindingSource, work: Path, out: Path) -> bool:
        toolchain = self._toolchain
        # Its tensors must not stand in for those of the candidate that leans on them.
        done = await self._compile(
            work, [toolchain.require_compiler(), *HOST_FLAGS, "-fvisibility-inlines-hidden",
                   f"-DTORCH_EXTENSION_NAME={source.module}",
                   f"-D_GLIBCXX_USE_CXX11_ABI={int(toolchain.cxx11_abi)}", f"-I{LIGHT_BINDING}",
                   f"-I{toolchain.python_include}", "-c", "cpp_source.cpp", "-o", str(out / "binding.o")],
            required=False)
        return done.status == 0

    async def _note_binding(self, source: BindingSource, out: Path, *, light: bool) -> None:
        undefined = await undefined_symbols(out / "binding.o")
        needs = {mangled: readable for mangled, readable in undefined if readable.split("(")[0] in source.declared}
        (out / "binding.json").write_text(json.dumps({"needs": needs, "light": light, **asdict(source)}))

    async def _compile(
        self, work: Path, command: list[str], *, required: bool, shown: Sequence[str] = ()
    ) -> Compiled:
        toolchain = self._toolchain
        readable = [toolchain.torch_dir or "", toolchain.python_include, str(RUNTIME_SOURCE.parent),
                    toolchain.cuda_home or "", *toolchain.site_packages, *shown]
        async with self._slots:
            done = await compile_in(work, command, readable=[path for path in readable if path])
        if required and done.status != 0:
            raise ToolError(
                f"{command[0]} does not work: {messages.tail(done.log).strip()[-300:]}",
                hint="install a working g++ (Debian, Ubuntu: apt install g++)",
            )
        return done


def _binding_error(done: Compiled, path: Path) -> ContractError:
    for line in done.log.splitlines():
        name, _, rest = line.partition("cpp_source.cpp:")
        number, _, text = rest.partition(":")
        if not name.strip() and number.isdigit() and "error" in text:
            problem = text.split("error:", 1)[-1].strip()
            return ContractError(
                f"cpp_source.cpp does not compile: {problem}", hint="correct the declaration", file=path,
                line=int(number),
            )
    said = messages.tail(done.log).strip()[-400:]
    return ContractError(f"cpp_source.cpp does not compile: {said}", hint="correct the file", file=path)

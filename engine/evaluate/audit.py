"""The symbol audit: what a candidate's object wants from outside decides which space it is in.

An allow-list over the undefined symbols. It is a tripwire: inline system calls evade it, and the sandbox is the guard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.contract import SPACES, Space
from contracts.errors import ToolError
from engine import processes
from engine.evaluate.libraries import library_of
from engine.records import BuildError, Failure

NEVER = "never"
# ATen operators that make, initialise or re-describe a tensor and compute nothing: allowed in every space.
_PLAIN_OPERATORS = re.compile(
    r"(?:empty|new_empty|zeros|new_zeros|ones|new_ones|full|new_full|fill|zero|view|_unsafe_view|reshape|_reshape_alias|"
    r"transpose|t|permute|squeeze|unsqueeze|expand|select|slice|narrow|split|split_with_sizes|tensor_split|chunk|unbind|"
    r"flatten|unflatten|as_strided|detach|alias|contiguous|clone|resize|item|_local_scalar_dense|movedim|swapaxes|"
    r"record_stream|is_pinned|_version|unfold|diagonal|numpy_T|mT|set|lift_fresh)"
    r"(?:_(?:like|strided|as|dim|int|Tensor|Scalar|memory_format|permuted|symint|dtype|out|dimname|copy|using_ints|"
    r"names|source_\w+|list|sections|indices|dims))*_{0,2}$"
)
_C_RUNTIME = re.compile(
    r"(?:__)?(?:mem(?:cpy|set|move|cmp|chr)|str(?:len|nlen|cmp|ncmp|casecmp|cpy|ncpy|cat|ncat|chr|rchr|str|tok|error|"
    r"to[ld]|toll|toul|toull|tof)|v?s?n?printf|v?fprintf|puts|putchar|putc|fputs|fputc|fwrite|fflush|malloc|free|calloc|"
    r"realloc|posix_memalign|aligned_alloc|abort|exit|atexit|assert_fail|stack_chk_fail|errno_location|getenv|time|"
    r"clock|clock_gettime|gettimeofday|qsort|bsearch|s?rand|rand_r|atoi|atol|atof|abs|labs|isoc(?:99|23)_\w+|"
    r"sysconf|sched_yield|longjmp_chk|fentry|tls_get_addr|gmon_start|ctype_b_loc|ctype_tolower_loc|ctype_toupper_loc|"
    r"tolower|toupper|isalpha|isdigit|isspace|pthread_(?:once|key_create|mutex_\w+|rwlock_\w+|self|cond_\w+))(?:_chk)?$"
)
_C_DATA = frozenset(["stderr", "stdout", "__dso_handle", "_GLOBAL_OFFSET_TABLE_", "_DYNAMIC"])
_MATHS = re.compile(
    r"_{0,2}(?:a?(?:sin|cos|tan)h?|atan2|sincos|exp|exp2|exp10|expm1|log|log2|log10|log1p|logb|ilogb|pow|sqrt|cbrt|"
    r"hypot|erfc?|[tl]gamma|lgamma_r|ceil|floor|round|trunc|rint|nearbyint|lrint|llrint|lround|llround|fmod|remainder|"
    r"remquo|fmin|fmax|fdim|fma|fabs|copysign|ldexp|scalbl?n|frexp|modf|nextafter|nan|j[01n]|y[01n]|isnan|isinf|finite|"
    r"fpclassify|signbit|powi[sdtx]f2|mul[sdtxh]c3|div[sdtxh]c3|u?divti3|u?modti3|extendhf\w*|trunc\w*hf2)"
    r"[fl]?(?:_finite)?$"
)
_COMPILER = re.compile(
    r"(?:_Unwind_\w+|__cxa_\w+|__gxx_personality_v0|__cudart_\w+|__atomic_\w+|__gcc_personality_v0)$"
)
_CXX = re.compile(
    r"(?:(?:vtable|typeinfo|typeinfo name|VTT|guard variable|construction vtable) for )?"
    r"(?:(?:non-virtual thunk to )?(?:std|__gnu_cxx|__cxxabiv1)::|operator (?:new|delete)|(?:\w[\w:<>, ]* )?std::)"
)
_CXX_REFUSED = re.compile(
    r"std::(?:thread|jthread|basic_(?:if|of|f)stream|basic_filebuf|filesystem|random_device|__basic_file)"
)
_RUNTIME_REFUSED = re.compile(
    r"cuda(?:DeviceReset|Ipc\w*|Profiler\w*|DeviceEnablePeerAccess|LaunchHostFunc\w*|StreamAddCallback\w*)$"
)
_DRIVER_ALLOWED = re.compile(
    r"cu(?:TensorMap\w+|GetError\w+|LaunchKernel\w*|Func[SG]etAttribute|FuncSetCacheConfig|CtxGetCurrent|CtxGetDevice|"
    r"DeviceGet\w*|Occupancy\w+|Init|KernelGet\w+|Stream(?:Synchronize|Wait\w*|Write\w*|IsCapturing|GetCaptureInfo\w*))$"
)
_TORCH_REFUSED = re.compile(
    r"\bc10::(?:Dispatcher|OperatorHandle|impl::OperatorEntry)|"
    r"\btorch::(?:Library|CppFunction|jit|detail::TorchLibraryInit)|"
    r"\bat::Context::set|\bat::globalContext|CUDACachingAllocator::(?!raw_|get\b|allocator\b)|\bc10::impl::PyInterpreter"
)
_TORCH_PLAIN = re.compile(
    r"(?:(?:vtable|typeinfo|typeinfo name|VTT) for )?(?:[\w:<>&*, ]+ )?"
    r"(?:c10|caffe2)::|at::(?:Tensor|TensorBase|TensorMaker|TensorGeometry)::|at::cuda::|at::detail::(?:empty|get)\w*|"
    r"at::(?:operator<<|toString|print)|at::Generator::"
)
_TORCH_LIBRARY = re.compile(
    r"\bat::cuda::(?:getCurrentCUDABlas\w*|getCurrentCUDASparse\w*|blas::|solver::)|at::native::getCudnnHandle"
)


# libcu++ and CUB find the driver's functions by name.
_TOOLKIT_INCLUDE = re.compile(r"#\s*include\s*<(?:cub|thrust|cuda|nv|cutlass|cute)/")
_TOOLKIT_SYMBOLS = frozenset(["dlopen", "dlsym", "dlclose", "dlerror"])


@dataclass(frozen=True, slots=True)
class Finding:
    """One symbol that the space does not allow.

    Attributes:
        symbol: Readable name.
        why: What is wrong with it, to follow "`symbol` ".
        allowed_in: The smallest space that allows it, or `never`.
    """

    symbol: str
    why: str
    allowed_in: Space | str


@dataclass(frozen=True, slots=True)
class Symbols:
    """What an object needs and has.

    Attributes:
        undefined: (mangled, readable) names that it needs from outside.
        defined: Global mangled names that it defines, to readable ones.
    """

    undefined: Sequence[tuple[str, str]]
    defined: Mapping[str, str]


async def undefined_symbols(object_file: Path, *, timeout_s: float = 30.0) -> list[tuple[str, str]]:
    """(mangled, readable) names that `object_file` needs from outside."""
    raw, readable = await _nm_twice(object_file, "-pu", timeout_s=timeout_s)
    names = [line.split(None, 1)[1] for line in raw if line.strip()]
    shown = [line.strip().split(None, 1)[1] for line in readable if line.strip()]
    return list(zip(names, shown, strict=True)) if len(names) == len(shown) else [(n, n) for n in names]


async def defined_symbols(object_file: Path, *, timeout_s: float = 30.0) -> dict[str, str]:
    """Global mangled names that `object_file` defines, to readable ones."""
    raw, readable = await _nm_twice(object_file, "-pg", "--defined-only", timeout_s=timeout_s)
    names = [line.split()[-1] for line in raw if line.strip()]
    shown = [re.sub(r"^[0-9a-f]+ \w ", "", line) for line in readable if line.strip()]
    return dict(zip(names, shown, strict=len(names) == len(shown)))


async def read_symbols(object_file: Path) -> Symbols:
    """The symbols of the candidate alone, before it is linked.

    Raises:
        ToolError: binutils' `nm` is missing or does not work.
    """
    undefined, defined = await asyncio.gather(undefined_symbols(object_file), defined_symbols(object_file))
    return Symbols(undefined, defined)


def audit(symbols: Symbols, space: Space, source: str = "") -> Failure | None:
    """Why the candidate's object is not allowed in `space`, or None.

    Args:
        symbols: Of its object.
        space: What it may use.
        source: Its text, which tells what the toolkit's own headers brought in.
    """
    findings = judge(symbols.undefined, space)
    if _TOOLKIT_INCLUDE.search(source) and not re.search(r"\bdl(?:open|sym|close|error)\b", source):
        findings = [finding for finding in findings if finding.symbol not in _TOOLKIT_SYMBOLS]
    findings += [
        Finding(name, "takes the place of the binding's own entry point", NEVER)
        for name in symbols.defined if name.startswith("PyInit_")
    ]
    if not findings:
        return None
    first = findings[0]
    reason = f"symbol audit: `{_brief(first.symbol)}` {first.why}"
    if first.allowed_in != NEVER:
        reason += f"; the candidate is declared {space}, the space {first.allowed_in} allows it"
    messages = tuple(
        BuildError(line=None, message=f"`{_brief(finding.symbol)}` {finding.why} (allowed in: {finding.allowed_in})")
        for finding in findings[:20]
    )
    return Failure(stage="screen", reason=reason, errors=messages)


def judge(symbols: Sequence[tuple[str, str]], space: Space) -> list[Finding]:
    """What of `symbols`, (mangled, readable) pairs, is not allowed in `space`. The gravest come first."""
    found: list[Finding] = []
    for mangled, readable in symbols:
        finding = _classify(mangled, readable)
        if finding and (finding.allowed_in == NEVER or SPACES.index(finding.allowed_in) > SPACES.index(space)):
            found.append(finding)
    return sorted(found, key=lambda f: f.allowed_in != NEVER)


def _classify(mangled: str, readable: str) -> Finding | None:
    """The finding for one symbol, None where every space allows it."""
    if mangled.startswith("_Z"):
        return _classify_cxx(readable)
    if mangled.startswith("hm_"):
        return Finding("at::cat", "is an ATen operator", "cuda_libs_torch") if mangled == "hm_cat" else None
    if re.match(r"_?_?cuda[A-Z]", mangled):
        return Finding(mangled, "reaches outside the candidate", NEVER) if _RUNTIME_REFUSED.match(mangled) else None
    library = library_of(mangled)
    if library:
        return Finding(mangled, f"is a {library} function", "cuda_libs")
    if mangled.startswith(("Py", "_Py")):
        return Finding(mangled, "is part of Python, which a kernel has no use for", NEVER)
    if re.match(r"cu[A-Z]", mangled):
        allowed = _DRIVER_ALLOWED.match(mangled)
        return None if allowed else Finding(mangled, "is a driver function that a kernel has no use for", NEVER)
    if mangled.startswith(("nccl", "nvrtc", "nvml", "aoti_", "torch_")):
        return Finding(mangled, "belongs to a library that no space allows", NEVER)
    known = (_C_RUNTIME, _MATHS, _COMPILER)
    if mangled in _C_DATA or any(pattern.match(mangled.split("@")[0]) for pattern in known):
        return None
    return Finding(mangled, "is a system function that a kernel has no use for", NEVER)


def _classify_cxx(readable: str) -> Finding | None:
    if _TORCH_REFUSED.search(readable):
        return Finding(readable, "changes torch itself", NEVER)
    operator = re.search(r"\bat::_ops::(\w+)::", readable)
    if operator:
        if _PLAIN_OPERATORS.match(operator[1]):
            return None
        return Finding(f"at::{operator[1]}", "is an ATen operator", "cuda_libs_torch")
    if _TORCH_LIBRARY.search(readable):
        return Finding(readable, "is torch's handle of an NVIDIA library", "cuda_libs")
    if re.match(r"(?:\w[\w:<>, ]* )?(?:at|torch)::", readable) and not _TORCH_PLAIN.match(readable):
        return Finding(readable, "is a function of torch", "cuda_libs_torch")
    if _CXX_REFUSED.search(readable.split("(")[0]):
        return Finding(readable, "makes threads or opens files, which a kernel has no use for", NEVER)
    if _CXX.match(readable) or _TORCH_PLAIN.match(readable):
        return None
    # Undefined functions of the candidate's own are the linker's matter: they are reported with their names there.
    return None


def _brief(symbol: str) -> str:
    return symbol if len(symbol) <= 120 else symbol[:117] + "..."


async def _nm_twice(object_file: Path, *options: str, timeout_s: float) -> tuple[list[str], list[str]]:
    """The lines with mangled and with readable names."""
    return await asyncio.gather(
        _nm(object_file, *options, timeout_s=timeout_s), _nm(object_file, *options, "-C", timeout_s=timeout_s))


async def _nm(object_file: Path, *options: str, timeout_s: float) -> list[str]:
    try:
        done = await processes.run(["nm", *options, str(object_file)], timeout_s=timeout_s)
    except FileNotFoundError:
        raise ToolError("nm was not found", hint="install binutils (Debian, Ubuntu: apt install binutils)") from None
    if done.status != 0:
        raise ToolError(f"nm cannot read {object_file.name}: {done.stderr.strip()[:200]}", hint="install binutils")
    return done.stdout.splitlines()

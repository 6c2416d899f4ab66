"""When the light headers do not do: whether torch's real ones would, and how to include as few of them as possible.

Only a name that torch has and the light headers lack is worth a minute of compiling; every other error is the
candidate's own and goes back at once.
"""

from __future__ import annotations

import re
from pathlib import Path

from contracts.errors import WorkerTimeoutError
from engine import processes
from engine.evaluate.operators import OperatorIndex
from engine.evaluate.prepare import INCLUDE
from engine.toolchain import Toolchain

_MISSING_MEMBER = re.compile(
    r"error: (?:namespace \"(?:at|torch|c10)[\w:]*\"|class \"(?:at|c10|torch|hiera_mini)::[^\"]*\"|"
    r"struct \"(?:at|c10|torch|hiera_mini)::[^\"]*\") has no member \"(?P<name>\w+)\""
)
_MISSING_MACRO = re.compile(
    r"error: identifier \"(?P<name>(?:TORCH|C10|AT|CUDA_KERNEL|GPU)_\w+|gpuAtomic\w+)\" is undefined"
)
_NOT_A_NAMESPACE = re.compile(r"error: (?:name followed by \"::\" must be a class|name must be a namespace name)")
_MISSING_HEADER = re.compile(r"fatal error: (?P<path>(?:torch|ATen|c10|caffe2|pybind11)/[\w./]+): No such file")
_CXX20 = re.compile(
    r"\bconcept\b|\brequires\b|\bconsteval\b|\bconstinit\b|<=>|\bco_(?:await|yield|return)\b|\bstd::(?:span|ranges|"
    r"bit_cast|popcount|countl_zero|countr_zero|has_single_bit|source_location|type_identity|remove_cvref)|"
    r"#\s*include\s*<(?:concepts|ranges|span|bit|numbers|source_location|format)>|"
    r"\[[^\]\n]*\]\s*<\s*(?:typename|class|int)\b"
)
# Parts of torch that torch/extension.h has and a handful of ATen headers do not.
_NEEDS_WHOLE = re.compile(
    r"\btorch::(?:nn|autograd|jit|optim|data|indexing|serialize|tensor|special|fft|linalg)\b|TORCH_LIBRARY"
)

_PART = """#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
{operators}
namespace torch {{
using namespace at;
using at::Tensor;
}}
#include "hiera_binding.h"
"""
# A PYBIND11_MODULE inside cuda_source.cu is dropped, as with the light headers.
_WHOLE = """#pragma once
#include_next <torch/extension.h>
#undef PYBIND11_MODULE
#define PYBIND11_MODULE(name, variable) [[maybe_unused]] static void hm_unused_binding(pybind11::module_& variable)
"""


def standard_of(source: str, default: str) -> str:
    """The C++ standard for `source`: C++20's library headers cost half a second, so only where the text needs it."""
    return "c++20" if _CXX20.search(source) else default


async def needs_torch_headers(log: str, source: str, toolchain: Toolchain) -> bool:
    """True when `log` complains of a name that torch has and the light headers lack."""
    if _NOT_A_NAMESPACE.search(log) and _NEEDS_WHOLE.search(source):
        return True
    for match in _MISSING_HEADER.finditer(log):
        roots = (toolchain.torch_include, toolchain.torch_include / "torch" / "csrc" / "api" / "include")
        if any((root / match["path"]).exists() for root in roots):
            return True
    names = {match["name"] for pattern in (_MISSING_MEMBER, _MISSING_MACRO) for match in pattern.finditer(log)}
    for name in sorted(names)[:8]:
        if await _occurs(name, toolchain.torch_include):
            return True
    return False


async def _occurs(name: str, include: Path) -> bool:
    """True when torch's headers contain the word `name`."""
    folders = [str(include / part) for part in ("c10", "ATen", "torch")]
    command = ["grep", "-rqwF", "--include=*.h", "--include=*.cuh", name, *folders]
    try:
        return (await processes.run(command, timeout_s=20)).status == 0
    except (FileNotFoundError, WorkerTimeoutError):
        return False


def write_torch_tier(folder: Path, source: str, index: OperatorIndex, *, whole: bool) -> bool:
    """Write the headers that stand before torch's own into `folder`; False when this way cannot serve `source`.

    Args:
        folder: Made here; goes first on the include path.
        source: The candidate's text.
        index: The operators of this torch.
        whole: All of torch/extension.h, or only what the text names.
    """
    if not whole and _NEEDS_WHOLE.search(source):
        return False
    (folder / "torch").mkdir(parents=True)
    if whole:
        (folder / "torch" / "extension.h").write_text(_WHOLE)
        return True
    (folder / "hiera_binding.h").write_text((INCLUDE / "hiera_mini" / "binding.h").read_text())
    words = set(re.findall(r"[A-Za-z_]\w*", source))
    named = sorted(words & (index.functions.keys() | index.methods.keys()))
    lines = "\n".join(f"#if __has_include(<ATen/ops/{n}.h>)\n#include <ATen/ops/{n}.h>\n#endif" for n in named)
    (folder / "torch" / "extension.h").write_text(_PART.format(operators=lines))
    (folder / "ATen").mkdir()
    for alias in ("torch/types.h", "torch/torch.h", "torch/all.h", "ATen/ATen.h", "ATen/Functions.h"):
        (folder / alias).write_text("#include <torch/extension.h>\n")
    return True

"""NVIDIA's libraries: where their headers and shared objects are. Those that torch uses itself come first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from engine.toolchain import Toolchain

# Library to (name of the shared object, prefix of its functions, a header).
LIBRARIES: dict[str, tuple[str, str, str]] = {
    "cuBLAS": ("cublas", "cublas", "cublas_v2.h"),
    "cuBLASLt": ("cublasLt", "cublasLt", "cublasLt.h"),
    "cuDNN": ("cudnn", "cudnn", "cudnn.h"),
    "cuFFT": ("cufft", "cufft", "cufft.h"),
    "cuRAND": ("curand", "curand", "curand.h"),
    "cuSPARSE": ("cusparse", "cusparse", "cusparse.h"),
    "cuSOLVER": ("cusolver", "cusolver", "cusolverDn.h"),
}
RUNTIME = "cudart"
DRIVER = re.compile(r"cu[A-Z][A-Za-z0-9_]*$")


def library_of(symbol: str) -> str | None:
    """The library that defines a C function, by its prefix; None for others."""
    return max(
        (name for name, (_, prefix, _) in LIBRARIES.items() if re.match(prefix + r"[A-Z_]", symbol)),
        key=lambda name: len(LIBRARIES[name][1]), default=None,
    )


def find_library(toolchain: Toolchain, stem: str) -> Path | None:
    """The shared object `lib<stem>.so.N` that a process with this torch loads, or None.

    torch's pip packages bring their own copies; an equal soname makes both users share one in the process.
    """
    pattern = re.compile(rf"lib{re.escape(stem)}\.so(\.\d+)?$")
    wanted = (toolchain.torch_cuda or "").split(".")[0]
    found: list[Path] = []
    for folder in _library_folders(toolchain):
        if folder.is_dir():
            found += sorted((p for p in folder.glob(f"lib{stem}.so*") if pattern.match(p.name)), reverse=True)
    # The runtime's major version is part of torch's identity; other libraries have numbers of their own.
    if stem == RUNTIME and wanted:
        found = [p for p in found if p.name.endswith(f".so.{wanted}")] or found
    return next((p for p in found if not p.name.endswith(".so")), None)


def include_folders(toolchain: Toolchain, *, cutlass: bool) -> list[Path]:
    """Folders of library headers that the toolkit itself does not have."""
    folders: list[Path] = []
    for root in toolchain.site_packages:
        folders += sorted(Path(root).glob("nvidia/*/include"))
    # Debian's cuDNN packages put their header into the compiler's own folder: nothing to add for it.
    folders += [Path(p) / "include" for p in (os.environ.get("CUDNN_HOME"), os.environ.get("CUDNN_PATH")) if p]
    kept = [f for f in folders if _has_header(f)]
    if cutlass:
        kept += _cutlass_folders(toolchain)
    return kept


def _has_header(folder: Path) -> bool:
    return any((folder / header).exists() for _, _, header in LIBRARIES.values())


def _cutlass_folders(toolchain: Toolchain) -> list[Path]:
    named = (os.environ.get("CUTLASS_PATH"), os.environ.get("CUTLASS_DIR"))
    places = [Path(p) / "include" for p in named if p]
    for root in toolchain.site_packages:
        places.append(Path(root) / "cutlass_library" / "source" / "include")
        places.append(Path(root) / "flashinfer" / "data" / "cutlass" / "include")
    places += [Path(p) / "cutlass" / "include" for p in ("/usr/local", "/opt")]
    first = next((p for p in places if (p / "cutlass" / "cutlass.h").exists()), None)
    if first is None:
        return []
    tools = first.parent / "tools" / "util" / "include"
    return [first, *([tools] if tools.is_dir() else [])]


def _library_folders(toolchain: Toolchain) -> Iterable[Path]:
    for root in toolchain.site_packages:
        yield from sorted(Path(root).glob("nvidia/*/lib"))
    if toolchain.torch_dir:
        yield toolchain.torch_lib
    if toolchain.cuda_home:
        yield Path(toolchain.cuda_home) / "lib64"
        yield Path(toolchain.cuda_home) / "lib"
        yield from sorted(Path(toolchain.cuda_home).glob("targets/*/lib"))
    yield Path("/usr/lib/x86_64-linux-gnu")
    yield Path("/usr/lib/aarch64-linux-gnu")
    yield Path("/usr/lib64")

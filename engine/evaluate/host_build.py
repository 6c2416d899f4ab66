"""A build for the CPU with nvcc's opinion beside it: what a candidate gets on a machine without a GPU."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from engine.evaluate.build import Builder
from engine.evaluate.emulate import build_emulated
from engine.records import Build, Candidate, Device, Failure
from engine.toolchain import Toolchain

NOT_EMULATED = "cannot be run without a GPU"


async def emulated_build(
    builder: Builder, toolchain: Toolchain, folder: Path, candidate: Candidate, source: str, device: Device
) -> Build | Failure:
    """A build that runs on the CPU, and nvcc's opinion of the full source where nvcc is installed.

    Facts about registers come from nvcc; the extension from the host compiler.
    """
    if toolchain.nvcc is None or toolchain.nvcc_problem:
        return await build_emulated(builder, folder, source, sm=device.sm)
    compiled, built = await asyncio.gather(
        builder.compile_only(candidate.source, device.sm, space=candidate.space),
        build_emulated(builder, folder, source, sm=device.sm))
    if isinstance(compiled, Failure) and isinstance(built, Build) and lacks_library(compiled):
        # This toolkit came without a library's headers, which says nothing against the candidate.
        return replace(built, warnings=(*built.warnings, f"not compiled by nvcc here: {compiled.reason}"))
    if isinstance(compiled, Failure):
        return compiled
    if isinstance(built, Failure):
        # The emulator's limits say nothing against the candidate: what nvcc made of it stays.
        unable = built.reason.startswith(NOT_EMULATED)
        return replace(compiled, warnings=(*compiled.warnings, built.reason)) if unable else built
    return replace(built, kernels=compiled.kernels, compiled_for=compiled.compiled_for,
                   seconds=max(built.seconds, compiled.seconds))


def lacks_library(failure: Failure) -> bool:
    """True when nvcc found no header of NVIDIA's own libraries, which are installed apart from it."""
    header = r"\b(cublas|cudnn|cufft|cusparse|curand|cutlass)\w*(/\w+)*\.h(pp)?: No such file"
    return re.search(header, failure.reason) is not None

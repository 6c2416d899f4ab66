"""Rules for all tests."""

import ctypes
import shutil
import sys

import pytest

from engine import toolchain as toolchains


def _why_no_gpu() -> str:
    if shutil.which("nvcc") is None:
        return "no nvcc"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver ({error})"
    return ""


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """The same random inputs in every run: one in a few hundred draws of sums is outside any fixed tolerance."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
async def toolchain() -> toolchains.Toolchain:
    """What builds for this interpreter, which must have torch."""
    found = await toolchains.find_toolchain(sys.executable)
    if found.torch_dir is None:
        pytest.skip("this interpreter has no torch")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none, with the reason."""
    reason = _why_no_gpu()
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))

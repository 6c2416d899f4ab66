"""Rules for all tests."""

import ctypes
import shutil

import pytest


def _why_no_gpu() -> str:
    if shutil.which("nvcc") is None:
        return "no nvcc"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver ({error})"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none, with the reason."""
    reason = _why_no_gpu()
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))

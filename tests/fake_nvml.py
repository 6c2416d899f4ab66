"""A stand-in for NVIDIA's management library: a real shared object that says what a test writes into a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from engine import nvml
from engine.devices import target_device
from engine.records import Device

SOURCE = Path(__file__).parent / "data" / "nvml" / "fake_nvml.c"
CARD = "memory 151000000000 1000000000\nsm 1980\nmem 3201\ntemperature 41\npower 312500\nreasons 0\n"


def device(pci: str = "") -> Device:
    from dataclasses import replace

    return replace(target_device("H200"), kind="cuda", pci=pci)


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> str:
    compiler = shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in with")
    path = tmp_path_factory.mktemp("nvml") / "libfake_nvml.so"
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)], check=True)
    return str(path)


@pytest.fixture
def say(library, tmp_path, monkeypatch):
    """Tell the stand-in what to say; it is in the real library's place for this test."""
    file = tmp_path / "nvml.txt"
    monkeypatch.setattr(nvml, "LIBRARY", library)
    # The C library reads the process's own environment.
    monkeypatch.setitem(os.environ, "FAKE_NVML", str(file))

    def write(text: str) -> None:
        part = file.with_suffix(".part")
        part.write_text(text)
        part.replace(file)  # The library must never see half a text.

    write(CARD)
    return write

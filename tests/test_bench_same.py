"""Same against same: what counts as a goal missed."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("same_vs_same", Path(__file__).parents[1] / "bench" / "same_vs_same.py")
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)


@pytest.mark.parametrize(("same", "less", "parts", "missed"), [
    ((200, 6), (50, 40), "same,fewer", False), ((200, 7), (50, 40), "same,fewer", True),
    ((200, 6), (50, 39), "same,fewer", True), ((0, 0), (50, 40), "same,fewer", True),
    ((200, 0), (0, 0), "same,fewer", True), ((200, 0), (0, 0), "same", False), ((0, 0), (50, 50), "fewer", False)])
def test_a_goal_is_missed_too_where_nothing_was_timed(same, less, parts, missed):
    told = [{"pairs": pairs, "claimed_faster": faster} if pairs else bench.summary([]) for pairs, faster in (same, less)]
    assert bench.missed(*told, parts) is missed

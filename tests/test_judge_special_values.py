"""NaN and infinity in a reference's outputs: what a candidate must show, and what only the CPU's library invents."""

import pytest

from tests.probe_harness import worker_module

torch = pytest.importorskip("torch")
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(("exact", "strict", "given", "accepted"), [
    # torch's own fp32 gelu(inf) is NaN on CPUs with a vector library, and inf elsewhere.
    ([INF, INF, 1.0, 2.0], [NAN, NAN, 1.0, 2.0], [INF, INF, 1.0, 2.0], True),
    ([NAN, NAN, 1.0, 2.0], [NAN, NAN, 1.0, 2.0], [NAN, NAN, 1.0, 2.0], True),
    ([NAN, NAN, 1.0, 2.0], [NAN, NAN, 1.0, 2.0], [INF, INF, 1.0, 2.0], False),
    ([INF, INF, 1.0, 2.0], [NAN, NAN, 1.0, 2.0], [0.0, 0.0, 1.0, 2.0], False),
    ([INF, INF, 1.0, 2.0], [INF, INF, 1.0, 2.0], [NAN, NAN, 1.0, 2.0], True),
    # A fast convolution of the reference's own spreads NaN over the plane, another one does not; fp64 says what must be.
    ([NAN, 5.0, 1.0, 2.0], [NAN, NAN, NAN, NAN], [NAN, 5.0, 1.0, 2.0], True),
    ([NAN, 5.0, 1.0, 2.0], [NAN, NAN, NAN, NAN], [0.0, 5.0, 1.0, 2.0], False),
])
def test_nan_is_asked_for_where_fp64_has_it(exact, strict, given, accepted):
    compare = worker_module("judge_compare")
    expected = compare.Expected(torch.tensor(exact, dtype=torch.float64), torch.tensor(strict), None, False)
    result = compare.judge_output(torch.tensor(given), expected, zero_mean=True)
    assert (compare.special_why(result, expected, local=True, any_order=False) == "") == accepted

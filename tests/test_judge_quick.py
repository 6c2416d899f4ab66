"""What makes the judge fast says the same as the long way: sums without masks, many small outputs, kept references."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.worker.main import load_package

if "_hiera_worker" not in sys.modules:
    load_package(str(Path(__file__).resolve().parent.parent / "engine" / "worker"))

from _hiera_worker import judge, judge_compare, judge_kept, judge_state, slabs

CPU = torch.device("cpu")


def numbers(*shape, seed=5):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cases():
    exact = numbers(50_000) * 3
    rounding = exact.float() + 1e-6 * numbers(50_000, seed=6).float()
    one = exact.float().clone()
    one[777] += 0.5
    nan = exact.float().clone()
    nan[3] = float("nan")
    poison = exact.float().clone()
    poison.view(torch.int32)[9] = slabs.POISON_WORD
    far = exact.float() * 1.001
    wide = numbers(50_000) * 1e4
    infinite = exact.clone()
    infinite[5] = float("inf")
    return {
        "rounding": (exact, rounding), "one element": (exact, one), "no number": (exact, nan), "poison": (exact, poison),
        "a constant factor": (exact, far), "large values": (wide, wide.float()), "zeros": (exact, torch.zeros(50_000)),
        "halves": (exact, exact.half()), "doubles": (exact, exact.clone()), "infinite": (infinite, infinite.float()),
        "nothing at all": (exact[:0], exact[:0].float()),
    }


@pytest.mark.parametrize("name", list(cases()))
@pytest.mark.parametrize("zero_mean", [True, False])
def test_sums_without_masks_say_what_all_masks_say(name, zero_mean, monkeypatch):
    exact, values = cases()[name]
    strict = exact.to(values.dtype)
    usual = strict + strict * 1e-7 if values.dtype is torch.float32 else strict

    def verdict():
        expected = judge_compare.Expected(exact, strict, usual, keep_usual=True)
        return judge_compare.judge_output(values, expected, zero_mean), vars(expected)

    quick, quick_expected = verdict()
    monkeypatch.setattr(judge_compare, "_finite_errors", lambda *_: None)
    monkeypatch.setattr(judge_compare, "_finite_sizes", lambda *_: None)
    long, long_expected = verdict()

    assert quick.keys() == long.keys()
    for key, value in long.items():
        # Sums in another order: the last digits may differ, which a mean error near zero is made of.
        near = pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value
        assert quick[key] == near, key
    for key in ("rms", "largest", "mean_size", "spread"):
        assert quick_expected[key] == pytest.approx(long_expected[key], rel=1e-6), key
    assert (quick_expected["blank"] is None) == (long_expected["blank"] is None)


def test_an_honest_output_takes_the_short_way_and_a_wrong_one_does_not(monkeypatch):
    taken = []
    full = judge_compare._any_errors
    monkeypatch.setattr(judge_compare, "_any_errors", lambda *a: taken.append(1) or full(*a))
    exact = numbers(1000)
    expected = judge_compare.Expected(exact, exact.float(), None, keep_usual=False)
    assert judge_compare.judge_output(exact.float(), expected, True)["match"]
    assert not taken
    assert not judge_compare.judge_output(exact.float() + 0.1, expected, True)["match"]
    assert taken


def test_what_flags_allow_counts_where_there_is_no_fp64_reference():
    wanted = numbers(5000).float()
    low = wanted + 2e-3 * numbers(5000, seed=6).float()  # Such as TF32: some elements are off by more than the cap.
    other = wanted + 2e-3 * numbers(5000, seed=7).float()
    expected = judge_compare.Expected(None, wanted, low, keep_usual=False)
    assert judge_compare.judge_output(other, expected, zero_mean=True)["match"]
    assert not judge_compare.judge_output(other + 0.05, expected, zero_mean=True)["match"]
    strict = judge_compare.Expected(None, wanted, None, keep_usual=False)
    assert not judge_compare.judge_output(other, strict, zero_mean=True)["match"]


def test_complex_numbers_are_judged_by_their_parts():
    exact = torch.view_as_complex(numbers(5000, 2))
    usual = exact.to(torch.complex64)
    expected = judge_compare.Expected(exact, usual, None, keep_usual=True)
    assert (expected.dtype, expected.shape) == (torch.complex64, (5000,))
    near = usual * (1 + 1e-7)
    assert not torch.equal(near, usual)
    assert judge_compare.judge_output(near, expected, zero_mean=True)["match"]
    assert not judge_compare.judge_output(usual.conj(), expected, zero_mean=True)["match"]
    assert not judge_compare.judge_output(usual * 1.001, expected, zero_mean=True)["match"]
    assert judge_compare.passes_trivially(expected, judge_compare.Expected(-exact, -usual, None, True)) == []


def test_complex_numbers_that_are_none_are_those_of_the_reference():
    exact = torch.view_as_complex(numbers(500, 2))
    exact[7], exact[8] = complex("nan"), complex(0, float("inf"))
    usual = exact.to(torch.complex64)
    expected = judge_compare.Expected(exact, usual, None, keep_usual=False)

    def why(values):
        return judge_compare.special_why(judge_compare.judge_output(values, expected, True), expected, True, False)

    assert why(usual) == ""
    assert "finite" in why(usual.nan_to_num(0.0, posinf=0.0)) or "NaN" in why(usual.nan_to_num(0.0, posinf=0.0))


def test_sums_of_several_ranges_are_those_of_each(tmp_path):
    slab = slabs.Slab.create(str(tmp_path / "slab"), 1 << 16, CPU)
    slab.bytes.copy_((torch.arange(slab.bytes.numel()) * 7919 % 251).to(torch.uint8))
    ranges = [(0, 64), (64, 71), (128, 128), (4096, 65536), (8, 72)]
    assert slab.checksums(ranges) == [slab.checksum(*one) for one in ranges]
    before = slab.checksums(ranges)
    slab.bytes[70] += 1
    changed = [was != now for was, now in zip(before, slab.checksums(ranges), strict=True)]
    assert changed == [False, True, False, False, True]


# Notes down how often it is run.
MODULE = """
import torch
RUNS = []
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        RUNS.append(x.dtype)
        self.seen += x.sum()
        return x * self.weight
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""


def tensor(*shape, dtype="float32"):
    stride = [int(torch.tensor(shape[i + 1:]).prod()) for i in range(len(shape))]
    return {"dtype": dtype, "shape": list(shape), "stride": stride}


def opened(tmp_path, random=False, known=True, module=MODULE, arguments=None, outputs=None):
    """Open a contract of a module; notes of its runs, where it takes any."""
    (tmp_path / "groundtruth.py").write_text(module)
    arguments = arguments or [{"name": "x", "role": "input", "path": "x", "tensor": tensor(4, 8)},
                 {"name": "w", "role": "parameter", "path": "weight", "tensor": tensor(8)},
                 {"name": "s", "role": "buffer", "path": "seen", "tensor": tensor(), "mutable": True}]
    contract = {"arguments": arguments, "reference": "module", "mode": "eval", "flags": {}, "random": random,
                "variants": [{"tensors": {a["name"]: a["tensor"] for a in arguments},
                              "outputs": outputs or [tensor(4, 8)], "graph": {"nodes": []} if known else None}]}
    (tmp_path / "shared").mkdir()
    judge.handle("open", {"contract": contract, "device": "cpu", "folder": str(tmp_path), "sets": 3,
                          "budget_bytes": 1 << 20, "shared": str(tmp_path / "shared")}, None)
    return getattr(sys.modules["_hiera_groundtruth"], "RUNS", [])


def drawn(seed, family="randn", **more):
    return judge.handle("draw", {"variant": 0, "family": family, "seed": seed, "fixed_seed": 7, "set": 0, "phase": 0,
                                 **more}, None)


def expect(seed=1, keep=True):
    reply = judge.handle("expect", {"seed": seed, "keep": keep}, None)
    return reply, [one.exact.clone() for one in judge_state.State.expected]


def test_the_same_values_are_not_run_through_the_reference_twice(tmp_path):
    runs = opened(tmp_path)
    drawn(11)
    reply, first = expect()
    once = len(runs)
    assert once == 2  # fp32 and fp64
    drawn(11, phase=5)  # Elsewhere in memory, the same values.
    again, second = expect(seed=99)  # Nothing is random in the call: its seed does not matter.
    assert len(runs) == once
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert reply == again, "the seconds are those that the reference took: they bound a candidate's calls"


# Gives some of its arguments back as they are: a mask, indices, a weight, doubles.
RETURNING = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))
    def forward(self, x, wide, where):
        return x * 2, x, wide.view(-1), where, self.weight, x[:, :1].expand(4, 3), x.t(), x[:, 1::2], where[1:1]
def get_inputs():
    return [torch.randn(4, 8), torch.randn(4, 8, dtype=torch.float64), torch.randint(0, 9, (4, 8))]
def get_init_inputs():
    return []
"""


def test_what_is_kept_is_no_view_of_memory_that_is_drawn_anew(tmp_path):
    x, wide, where = tensor(4, 8), tensor(4, 8, dtype="float64"), tensor(4, 8, dtype="int64")
    made = [{"name": "x", "role": "input", "path": "x", "tensor": x},
            {"name": "wide", "role": "input", "path": "wide", "tensor": wide},
            {"name": "where", "role": "input", "path": "where", "tensor": where, "low": 0, "high": 8},
            {"name": "w", "role": "parameter", "path": "weight", "tensor": tensor(8)}]
    opened(tmp_path, module=RETURNING, arguments=made, outputs=[
        x, x, tensor(32, dtype="float64"), where, tensor(8), tensor(4, 3), tensor(8, 4), tensor(4, 4),
        tensor(0, 8, dtype="int64")])
    state = judge_state.State
    for draw in ({}, {"seed": 12}, {"phase": 5}):  # The last one are the first one's values, elsewhere in memory.
        drawn(**{"seed": 11, **draw})
        reply, _ = expect()
        values = state.values
        x, where = values["x"], values["where"]
        given = (x * 2, x, values["wide"].view(-1), where, values["w"], x[:, :1].expand(4, 3), x.t(), x[:, 1::2],
                 where[1:1])
        assert [tuple(place["reference_stride"]) for place in reply["outputs"]] == [one.stride() for one in given]
        for value, place in zip(given, reply["outputs"], strict=True):
            state.out.view(*(place[key] for key in ("offset", "dtype", "shape", "stride"))).copy_(value)
        found = judge.handle("check", {"zero_mean": True}, None)
        assert [one["match"] for one in found["results"]] == [True] * len(given), draw


# Writes into memory that it made once and keeps, and gives that back.
FILLING = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.room = torch.zeros(4, 8)
    def forward(self, x):
        torch.add(x, 1, out=self.room)
        return self.room
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""


def test_what_is_kept_is_not_what_a_module_fills_again(tmp_path):
    opened(tmp_path, module=FILLING, arguments=[{"name": "x", "role": "input", "path": "x", "tensor": tensor(4, 8)}])
    drawn(11)
    _, first = expect()
    drawn(12)
    expect()
    drawn(11)
    _, again = expect()
    assert torch.equal(again[0], first[0])


def test_other_values_weights_or_state_are(tmp_path):
    runs = opened(tmp_path)
    drawn(11)
    _, first = expect()
    for other in ({"seed": 12}, {"seed": 11, "fixed_seed": 8}, {"seed": 11, "family": "shifted"}):
        count = len(runs)
        drawn(**other)
        _, found = expect()
        assert len(runs) > count, other
        assert not torch.equal(found[0], first[0]), other
    drawn(11)
    count = len(runs)
    assert judge.handle("change", {"seed": 3, "argument": "x", "where": "inside"}, None)["changed"]
    _, changed = expect()
    assert len(runs) > count
    assert int((changed[0] != first[0]).sum()) == 1


@pytest.mark.parametrize("told", [{"random": True}, {"known": False}])
def test_what_a_random_call_must_give_belongs_to_its_seed(told, tmp_path):
    runs = opened(tmp_path, **told)
    drawn(11)
    expect(seed=1)
    count = len(runs)
    expect(seed=2)
    assert len(runs) > count
    count = len(runs)
    expect(seed=1)
    assert len(runs) == count


def test_only_what_is_asked_for_is_kept_and_no_more_than_fits(tmp_path):
    runs = opened(tmp_path)
    drawn(11)
    expect(keep=False)
    count = len(runs)
    expect(keep=False)
    assert len(runs) > count
    state = judge_state.State
    state.kept = judge_kept.Kept(budget_bytes=300)  # One result: 4 x 8 doubles, and a state of one.
    expect()
    assert 0 < state.kept.bytes <= 300
    drawn(12)
    expect()
    assert state.kept.bytes <= 300
    judge.handle("release", {}, None)
    assert not state.kept


@pytest.mark.parametrize(("card", "kept"), [(8 << 30, 1 << 29), (128 << 30, 8 << 30)])
def test_no_more_is_kept_than_a_sixteenth_of_the_card(card, kept, monkeypatch):
    monkeypatch.setattr(judge_state.State, "device", torch.device("cuda"), raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=card))
    assert judge_state.keep_bytes() == kept


def test_short_memory_costs_what_is_kept_and_not_the_request(tmp_path, monkeypatch):
    runs = opened(tmp_path)
    drawn(11)
    expect()
    once, failures = judge._expectation, iter([True])

    def short(*arguments):
        if next(failures, False):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return once(*arguments)

    monkeypatch.setattr(judge, "_expectation", short)
    drawn(12)
    expect()
    drawn(11)
    count = len(runs)
    expect()
    assert len(runs) > count, "what was kept is gone"


def test_fp64_is_not_given_up_for_what_is_kept(tmp_path, monkeypatch):
    opened(tmp_path)
    drawn(11)
    expect()
    run, failures = judge.Reference.run, iter([True])

    def short(self, tensors, precision):
        if precision == "double" and next(failures, False):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, tensors, precision)

    monkeypatch.setattr(judge.Reference, "run", short)
    drawn(12)
    reply, _ = expect()
    assert reply["note"] == ""
    assert judge_state.State.expected[0].has_double


def test_timed_sets_keep_their_places_and_get_new_inputs(tmp_path):
    opened(tmp_path)
    fill = {"family": "example", "seed": 1, "fixed_seed": 2}
    first = judge.handle("fill_sets", {**fill, "fixed": True, "poison": True}, None)
    state = judge_state.State
    sets, before = state.sets, [{k: v.clone() for k, v in one.items()} for one in state.sets]
    again = judge.handle("fill_sets", {**fill, "seed": 50, "fixed_seed": 60, "fixed": False}, None)
    assert len(first["sets"]) == 3
    assert again["sets"] == []
    assert state.sets is sets
    for old, new in zip(before, sets, strict=True):
        assert not torch.equal(old["x"], new["x"])
        assert torch.equal(old["w"], new["w"])
    assert not torch.equal(sets[0]["x"], sets[1]["x"])

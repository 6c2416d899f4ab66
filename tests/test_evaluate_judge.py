"""The judge's parts by themselves: input families, references, the numeric rule, shared memory, the lockdown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.worker.main import load_package

WORKER = str(Path(__file__).resolve().parent.parent / "engine" / "worker")
if "_hiera_worker" not in sys.modules:
    load_package(WORKER)

from _hiera_worker import (  # noqa: E402
    blocks,
    candidate,
    judge_change,
    judge_compare,
    judge_inputs,
    judge_reference,
    slabs,
)

CPU = torch.device("cpu")
NOT_FINITE = {"not a number", "infinite", "minus infinity"}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("family", judge_inputs.FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_families_fill_everything_and_differ_by_seed(family, dtype):
    found = judge_inputs.profile(torch.rand(8, 40))
    one, same, other = (torch.full((8, 40), float("nan"), dtype=dtype) for _ in range(3))
    for tensor, seed in ((one, 1), (same, 1), (other, 2)):
        judge_inputs.fill(tensor, family, found, generator(seed), "input")
    assert torch.equal(one.nan_to_num(7), same.nan_to_num(7))
    assert not torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    assert bool(torch.isfinite(one).all()) == (family not in NOT_FINITE)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (2, 3, 4)])
@pytest.mark.parametrize("family", judge_inputs.FAMILIES)
def test_families_take_any_shape(family, shape):
    tensor = torch.full(shape, float("nan"))
    judge_inputs.fill(tensor, family, judge_inputs.Profile("normal"), generator(), "input")
    assert family in NOT_FINITE or bool(torch.isfinite(tensor).all())


def test_integers_labels_and_masks_keep_to_their_values():
    for example, low, high in ((torch.randint(3, 9, (50,)), None, None), (torch.zeros(5, dtype=torch.int32), 2, 4)):
        found = judge_inputs.profile(example, low, high)
        drawn = torch.empty(500, dtype=example.dtype)
        judge_inputs.fill(drawn, "randn", found, generator(), "input")
        assert int(drawn.min()) >= (low or 3)
        assert int(drawn.max()) <= (high or 8)
        assert len(drawn.unique()) > 1
    labels = judge_inputs.profile(torch.tensor([-1.0, 1.0]).repeat(40))
    drawn = torch.empty(100)
    judge_inputs.fill(drawn, "needle", labels, generator(), "input")
    assert set(drawn.tolist()) == {-1.0, 1.0}


def test_weights_are_never_special():
    weight = torch.empty(64)
    judge_inputs.fill(weight, "randn", judge_inputs.profile(torch.ones(64)), generator(), "parameter")
    assert not bool((weight == 1).any())
    assert float(weight.std()) > 0.1
    variance = torch.empty(64)
    judge_inputs.fill(variance, "randn", judge_inputs.profile(torch.ones(64)), generator(), "buffer")
    assert float(variance.min()) > 0


def expected(exact, strict=None, usual=None):
    strict = exact.float() if strict is None else strict
    return judge_compare.Expected(exact, strict, usual, keep_usual=True)


def verdict(values, exact):
    return judge_compare.judge_output(values.reshape(-1), expected(exact), zero_mean=True)


def matrix(*shape):
    return torch.randn(*shape, generator=generator(3), dtype=torch.float64)


def test_precision_of_a_product_is_told_apart():
    a, b = matrix(64, 256).float(), matrix(256, 48).float()
    exact = a.double() @ b.double()
    assert verdict(a @ b, exact)["match"]
    assert verdict((a @ b).sum(0).expand(64, 48) / 64, exact)["match"] is False
    tf32 = [(m.view(torch.int32) & ~0x1FFF).view(torch.float32) for m in (a, b)]
    lower = verdict(tf32[0] @ tf32[1], exact)
    assert not lower["match"]
    assert not lower["strict"]
    assert not verdict((a.half() @ b.half()).float(), exact)["match"]
    reversed_sum = (a.flip(1) @ b.flip(0))
    assert verdict(reversed_sum, exact)["strict"]


def test_a_module_that_runs_in_tf32_may_stay_so_under_match_only():
    a, b = matrix(64, 256).float(), matrix(256, 48).float()
    exact = a.double() @ b.double()
    tf32 = [(m.view(torch.int32) & ~0x1FFF).view(torch.float32) for m in (a, b)]
    low = tf32[0] @ tf32[1]
    wanted = judge_compare.Expected(exact, a @ b, low, keep_usual=True)
    found = judge_compare.judge_output((low + 1e-7).reshape(-1), wanted, zero_mean=True)
    assert found["match"]
    assert not found["strict"]


def test_one_wrong_element_nan_and_poison_are_seen():
    exact = matrix(100, 100)
    values = exact.float()
    values[57, 3] += 0.01
    assert not verdict(values, exact)["match"]
    values = exact.float()
    values[1, 2] = float("nan")
    assert "NaN" in verdict(values, exact)["why"]
    values.view(torch.int32)[5, 5] = slabs.POISON_WORD
    assert verdict(values, exact)["poison"] == 1


def test_null_test_knows_a_task_that_says_nothing():
    zero = expected(torch.zeros(50, dtype=torch.float64))
    assert set(judge_compare.passes_trivially(zero, zero)) == {"zeros", "a constant", "another seed's output"}
    one, other = expected(matrix(50, 50).softmax(1)), expected(matrix(50, 50).flip(0).softmax(1))
    assert judge_compare.passes_trivially(one, other) == []


def test_integers_are_exact():
    exact = torch.arange(10)
    wanted = judge_compare.Expected(exact, exact.clone(), None, keep_usual=False)
    assert judge_compare.judge_output(exact.clone(), wanted, zero_mean=True)["match"]
    assert not judge_compare.judge_output(exact + (exact == 4), wanted, zero_mean=True)["match"]


def reference(tmp_path, text, **contract):
    (tmp_path / "groundtruth.py").write_text(text)
    x = {"name": "x", "role": "input", "path": "x", "tensor": {"dtype": "float32", "shape": [64], "stride": [1]}}
    full = {"reference": "module", "mode": "train", "flags": {}, "arguments": [x], **contract}
    return judge_reference.Reference(str(tmp_path), full, CPU)


MODULE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.randn(64)]
"""


def test_double_reference_keeps_double_through_explicit_dtypes(tmp_path):
    found = reference(tmp_path, MODULE.format("(x.to(torch.float32) + torch.ones(64, dtype=torch.float32) / 3).exp()"))
    x = torch.randn(64)
    (exact,) = found.run({"x": x}, "double")
    assert exact.dtype is torch.float64
    assert float((exact - (x.double() + 1 / 3).exp()).abs().max()) < 1e-12


@pytest.mark.parametrize("random", ["torch.nn.functional.dropout(x, 0.3, True)", "x * torch.rand_like(x)",
                                    "x + torch.randn(64)", "x[torch.randperm(64)]",
                                    "x + torch.randint(0, 9, (64,))", "torch.nn.functional.rrelu(x, training=True)"])
def test_double_reference_draws_the_same_random_numbers(tmp_path, random):
    found = reference(tmp_path, MODULE.format(random))
    x = torch.randn(64)
    torch.manual_seed(5)
    (strict,) = found.run({"x": x}, "strict")
    torch.manual_seed(5)
    (exact,) = found.run({"x": x}, "double")
    assert exact.dtype is torch.float64
    assert torch.allclose(strict.double(), exact, atol=1e-6)


def test_shared_weights_stay_shared_and_buffers_are_returned(tmp_path):
    text = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4, bias=False)
        self.b = torch.nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("count", torch.zeros(()))
    def forward(self, x):
        self.count = self.count + 1
        return self.b(self.a(x))
def get_inputs():
    return [torch.randn(2, 4)]
"""
    layout = {"dtype": "float32", "shape": [4, 4], "stride": [4, 1]}
    arguments = [
        {"name": "x", "role": "input", "path": "x", "tensor": layout},
        {"name": "w", "role": "parameter", "path": "a.weight", "tensor": layout},
        {"name": "count", "role": "buffer", "path": "count", "tensor": {"dtype": "float32", "shape": [], "stride": []},
         "mutable": True},
    ]
    found = reference(tmp_path, text, arguments=arguments)
    values = {"x": torch.randn(2, 4), "w": torch.randn(4, 4), "count": torch.tensor(3.0)}
    output, count = found.run(values, "strict")
    assert torch.allclose(output, values["x"] @ values["w"].T @ values["w"].T, atol=1e-5)
    assert float(count) == 4
    assert float(values["count"]) == 3


@pytest.mark.parametrize("update", ["self.total.add_(x.sum())", "self.total = self.total + x.sum()"])
def test_what_one_run_gave_is_not_changed_by_the_next(tmp_path, update):
    # Otherwise the error of the strict reference would be that of whichever run was the last.
    text = f"""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
    def forward(self, x):
        {update}
        return x, self.total
def get_inputs():
    return [torch.randn(64)]
"""
    arguments = [
        {"name": "x", "role": "input", "path": "x", "tensor": {"dtype": "float32", "shape": [64], "stride": [1]}},
        {"name": "total", "role": "buffer", "path": "total", "tensor": {"dtype": "float32", "shape": [], "stride": []},
         "mutable": True},
    ]
    found = reference(tmp_path, text, arguments=arguments)
    x, total = torch.ones(64), torch.zeros(())
    first = found.run({"x": x, "total": total}, "strict")
    found.run({"x": 2 * x, "total": total}, "configured")
    assert [float(value.sum()) for value in first] == [64, 64, 64]


def test_checksum_sees_every_byte_and_order():
    data = torch.arange(80, dtype=torch.uint8)
    first = slabs.checksum(data)
    for place in (0, 9, 79):
        changed = data.clone()
        changed[place] ^= 1
        assert slabs.checksum(changed) != first
    swapped = data.clone()
    swapped[0:8], swapped[8:16] = data[8:16], data[0:8]
    assert slabs.checksum(swapped) != first


def test_a_slab_is_shared_and_guarded(tmp_path):
    slab = slabs.Slab.create(str(tmp_path / "slab"), 1 << 17, CPU)
    other = slabs.Slab.open(slab.describe(), CPU)
    slab.poison()
    offset, size = slabs.Layout().place({"dtype": "float32", "shape": [3, 5], "stride": [5, 1]})
    slab.view(offset, "float32", [3, 5], [5, 1]).copy_(torch.arange(15.0).view(3, 5))
    assert torch.equal(other.view(offset, "float32", [3, 5], [5, 1]), torch.arange(15.0).view(3, 5))
    assert bool(torch.isnan(other.view(offset + size, "float32", [4], [1])).all())
    assert offset >= slabs.GUARD_BYTES


LOCKED = """
import ctypes, json, os, socket, sys
sys.path.insert(0, {worker!r})
from main import load_package
load_package({worker!r})
from _hiera_worker import lockdown
report = lockdown.lock([{mine!r}], [])
def refused(call):
    try:
        call()
    except (OSError, PermissionError) as error:
        return type(error).__name__
    return "allowed"
libc = ctypes.CDLL(None, use_errno=True)
def kept(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
import threading
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
name = threading.get_native_id()
print(json.dumps({{"report": report, "found": {{
    "fork": refused(os.fork), "exec": refused(lambda: os.execv("/bin/true", ["true"])),
    "network": refused(lambda: socket.socket(socket.AF_INET)), "kill": refused(lambda: os.kill(os.getppid(), 0)),
    "write": refused(lambda: open({other!r}, "w")), "read": refused(lambda: open({secret!r})),
    "own": refused(lambda: open({mine!r} + "/x", "w")),
    "memory": refused(lambda: kept("shmget", 0, 4096, 0o1600)), "queue": refused(lambda: kept("msgget", 0, 0o1600)),
    "semaphore": refused(lambda: kept("semget", 0, 1, 0o1600)),
    "machine": refused(lambda: open("/proc/sys/kernel/core_pattern", "a")),
    "neighbour": refused(lambda: open("/proc/%d/oom_score_adj" % os.getppid(), "a")),
    "thread": refused(lambda: os.write(os.open("/proc/self/task/%d/comm" % name, os.O_RDWR), b"named"))}}}}))
"""


def test_lockdown_refuses_what_a_kernel_does_not_need(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    secret = tmp_path / "groundtruth.py"
    secret.write_text("secret")
    text = LOCKED.format(worker=WORKER, mine=str(mine), other=str(tmp_path / "other"), secret=str(secret))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, cwd=mine)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    doors = {"fork": "seccomp", "exec": "seccomp", "network": "seccomp", "kill": "seccomp", "memory": "seccomp",
             "queue": "seccomp", "semaphore": "seccomp", "write": "landlock",
             "read": "landlock", "machine": "landlock", "neighbour": "landlock"}
    for door, measure in doors.items():
        if answer["report"][measure] == "in force":
            assert answer["found"][door] != "allowed", door
    assert answer["found"]["own"] == answer["found"]["thread"] == "allowed"


ANY = judge_inputs.Profile("normal")


def test_the_last_element_is_changed_so_much_that_a_mean_of_a_million_shows_it():
    values = torch.randn(1000, 1000)
    before = values.clone()

    judge_change.change(values, ANY, "last", generator())

    assert values[-1, -1] - before[-1, -1] == pytest.approx(64.0, rel=1e-4)
    assert int((values != before).sum()) == 1
    assert abs(float((values * values).mean() - (before * before).mean())) > 1e-3


@pytest.mark.parametrize("seed", range(20))
def test_a_change_inside_stays_away_from_where_fingerprints_look(seed):
    values = torch.randn(20, 30)
    before = values.clone()

    judge_change.change(values, ANY, "inside", generator(seed))

    (place,) = (values != before).flatten().nonzero().flatten().tolist()
    assert judge_change.EDGE <= place < 600 - judge_change.EDGE


@pytest.mark.parametrize("where", ["inside", "last", "swap", "anywhere"])
@pytest.mark.parametrize(("values", "found"), [
    (torch.randn(40, 3), ANY), (torch.randn(()), ANY), (torch.randn(7).half(), ANY),
    (torch.randn(6, 1).expand(6, 5), ANY), (torch.rand(9) > 0.5, judge_inputs.Profile("bool")),
    (torch.randint(2, 6, (50,)), judge_inputs.Profile("integer", 2, 5)),
    (torch.tensor([1.0, -1.0] * 20), judge_inputs.Profile("few values", values=[-1.0, 1.0])),
    (torch.randn(8, dtype=torch.complex64), ANY)], ids=lambda v: str(getattr(v, "dtype", "")))
def test_a_change_can_be_taken_back(values, found, where):
    before = values.clone()

    changed = judge_change.change(values, found, where, generator(3))

    assert bool(changed) == (not torch.equal(values, before))
    assert changed or where == "swap"
    if where == "swap" and changed:
        assert sorted(values.flatten().tolist(), key=str) == sorted(before.flatten().tolist(), key=str)
    if found.kind == "integer":
        assert 2 <= int(values.min()) <= int(values.max()) <= 5
    if found.kind == "few values":
        assert set(values.tolist()) == {-1.0, 1.0}
    judge_change.undo(values, changed)
    assert torch.equal(values, before)


def test_integers_that_can_have_one_value_only_are_not_changed():
    assert judge_change.change(torch.zeros(5, dtype=torch.int64), judge_inputs.Profile("integer"), "last",
                               generator()) == []


def test_an_honest_variance_of_constant_rows_may_round_its_mean():
    row = torch.randn(20, 1).expand(20, 300).contiguous()
    exact = row.double().var(1)
    wanted = judge_compare.Expected(exact, exact.float(), None, False)
    rounded = torch.full((20,), 3e-12)
    wanted.strict.rms, wanted.strict.largest = 1e-14, 2e-14

    assert not judge_compare.judge_output(rounded, wanted, zero_mean=False)["match"]
    assert judge_compare.judge_output(rounded, wanted, zero_mean=False, loose=True)["match"]
    assert not judge_compare.judge_output(rounded + 1e-3, wanted, zero_mean=False, loose=True)["match"]


def special(values, exact, *, local=True, any_order=False):
    wanted = expected(exact) if exact.is_floating_point() else judge_compare.Expected(None, exact, None, False)
    found = judge_compare.judge_output(values.reshape(-1), wanted, zero_mean=True)
    return judge_compare.special_why(found, wanted, local, any_order)


def test_special_values_must_come_out_as_the_references_do():
    exact = matrix(6, 50)
    exact[0, :20], exact[1, 3] = float("nan"), float("inf")
    right = exact.float()
    assert special(right, exact) == ""
    assert "NaN" in special(right.nan_to_num(0.0, float("inf")), exact)
    infinite = matrix(6, 50)
    infinite[1, 3:5] = float("inf")
    assert "finite" in special(infinite.float().clamp_max(1e30), infinite)
    spread = right.clone()
    spread[2] = float("nan")
    assert special(spread, exact) == ""
    wrong = right.clone()
    wrong[3, 3] += 1
    assert special(wrong, exact)
    assert special(wrong, exact, local=False) == ""


def test_places_of_the_largest_are_compared_for_nan_unless_the_task_mixes_or_leaves_the_order_open():
    places = torch.arange(6)
    assert special(places.clone(), places) == ""
    assert special(places + 1, places)
    assert special(places + 1, places, local=False) == ""
    assert special(places + 1, places, any_order=True) == ""


def test_numbers_below_the_normal_ones_may_be_rounded_but_not_flushed():
    exact = (matrix(30, 40) * torch.finfo(torch.float32).smallest_normal / 16).float().double() / 3
    assert verdict(exact.float(), exact)["match"]
    assert verdict((exact * 3).float() * torch.tensor(1 / 3), exact)["match"]
    assert not verdict(torch.zeros(30, 40), exact)["match"]


def test_sums_of_numbers_below_the_normal_ones_may_round_more_but_not_lose_them():
    exact = matrix(20, 30).abs() * 1e-42
    wanted = expected(exact)
    for values, lost in ((exact.float() * torch.tensor(1.01), False), (torch.zeros(20, 30), True)):
        found = judge_compare.judge_output(values.reshape(-1), wanted, True)
        assert bool(judge_compare.special_why(found, wanted, True, False, tiny=True)) == lost


def test_a_bias_far_below_the_tolerance_is_measured_in_units_of_rounding():
    exact = matrix(200, 200).softmax(1)
    honest, scaled = verdict(exact.float(), exact), verdict((exact * (1 + 4e-6)).float(), exact)
    shifted = verdict((exact + 2e-8).float(), exact)
    assert honest["match"]
    assert scaled["match"]
    assert shifted["match"]
    assert abs(honest["lean"]) < 0.1
    assert abs(honest["bias"]) < 0.1
    assert scaled["lean"] > 1
    assert shifted["bias"] > 1


def test_one_long_chain_of_additions_is_no_bias():
    values = torch.randn(8, 32768, generator=generator(1)).square()
    exact, chain = values.double().mean(1), torch.zeros(8)
    for column in values.t():
        chain = chain + column
    wanted = judge_compare.Expected(exact, values.mean(1), None, False)
    alone = judge_compare.judge_output(chain / 32768, wanted, True)
    wanted.chain = 32768
    allowed = judge_compare.judge_output(chain / 32768, wanted, True)
    assert abs(allowed["lean"]) < 1 < abs(alone["lean"])


def test_an_uneven_reference_sets_no_cap_for_single_elements():
    exact = torch.randn(512, generator=generator(1)).double()
    spot, other = torch.zeros(512), torch.zeros(512)
    spot[3], other[7] = 9e-4, 2e-3  # A network that amplifies rounding does so elsewhere in another honest kernel.
    exact[3] = exact[7] = 0.5
    size = exact.square().mean().sqrt().float()

    def judged(reference):
        wanted = judge_compare.Expected(exact, (exact.float() + reference * size), None, False)
        return judge_compare.judge_output(exact.float() + other * size, wanted, True)

    assert judged(spot)["match"]
    assert "off by more than" in judged(torch.zeros(512))["why"]


def test_a_task_that_a_copy_of_its_input_would_pass_says_nothing():
    one, other = matrix(20, 20), matrix(20, 20) * 2
    found = judge_compare.passes_trivially(expected(one), expected(other), [other.float()])
    assert found == ["a copy of an input"]
    assert judge_compare.passes_trivially(expected(one.exp()), expected(other.exp()), [other.float()]) == []


MEASURED = """
import resource, sys
sys.path.insert(0, {worker!r})
from main import load_package
load_package({worker!r})
import torch
from _hiera_worker import judge_compare, judge_inputs
torch.set_num_threads(1)
CHUNK = 1 << 18
scale = judge_compare.CHUNK // CHUNK
assert judge_inputs.CHUNK == judge_compare.CHUNK
judge_compare.CHUNK = judge_inputs.CHUNK = CHUNK
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
strict = torch.empty(1 << 14, 1 << 10)
strict.zero_()
small = torch.zeros(64, 1 << 10)
def fill(tensor):
    found = judge_inputs.Profile("normal")
    for family in judge_inputs.FAMILIES:
        judge_inputs.fill(tensor, family, found, torch.Generator().manual_seed(1), "input")
    judge_inputs.fill(tensor, "randn", judge_inputs.Profile("few values", values=[1.0, 2.0]), torch.Generator(), "input")
fill(small)
before = peak()
fill(strict)
filled = peak() - before
strict.normal_()
exact, values = strict.double(), strict.clone()
judge_compare.judge_output(small.reshape(-1), judge_compare.Expected(small.double(), small, None, False), True)
before = peak()
wanted = judge_compare.Expected(exact, strict, None, False)
judge_compare.judge_output(values.reshape(-1), wanted, True)
print(filled * scale, (peak() - before) * scale, strict.numel() * 4)
"""


def test_tensors_are_drawn_and_judged_in_chunks_that_need_less_than_a_gibibyte():
    # Chunks of the real size would need tensors of gigabytes to tell: smaller ones, and the result in proportion.
    text = MEASURED.format(worker=WORKER)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300,
                          env={"MALLOC_MMAP_THRESHOLD_": "65536", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    filled, judged, size = map(int, done.stdout.split())
    assert size == 1 << 26
    assert filled < 1 << 30
    assert judged < 1 << 30


def test_versions_in_timed_blocks_grow_for_what_is_new_and_not_for_weights(tmp_path, monkeypatch):
    state = candidate._Held()
    monkeypatch.setattr(candidate, "_State", state)
    state.slab = slabs.Slab.create(str(tmp_path / "arguments"), 1 << 16, CPU)

    def described(offset):
        return {"offset": offset, "dtype": "float32", "shape": [4], "stride": [1]}

    weight = candidate._arguments([described(4096)])[0]
    unknown = weight._version
    candidate.sets({"sets": [[described(0), described(4096)], [described(8192), described(4096)]]})
    (first, same_weight), (second, _) = state.sets
    assert same_weight is weight
    assert weight._version > unknown, "its values are new"
    before = first._version, second._version, weight._version
    candidate._touch(candidate._refilled())
    assert (first._version, second._version, weight._version) == (before[0] + 1, before[1] + 1, before[2])


def holding(tmp_path, monkeypatch):
    """A candidate's process before its extension is loaded."""
    state = candidate._Held()
    monkeypatch.setattr(candidate, "_State", state)
    state.device, state.clock = CPU, blocks.Clock(CPU)
    state.slab, state.out = (slabs.Slab.create(str(tmp_path / name), 1 << 16, CPU) for name in ("arguments", "outputs"))
    return state


def test_an_error_that_a_call_leaves_behind_is_told_before_torch_raises_it(tmp_path, monkeypatch):
    state, pending = holding(tmp_path, monkeypatch), []

    def entry():
        pending.append("invalid argument")
        return torch.ones(4)

    def copy_out(outputs, places):
        # As torch's copy on a GPU: its last line asks for the pending error and raises it.
        if pending:
            raise RuntimeError("CUDA error: " + pending.pop())
        return [True]

    state.entry = entry
    monkeypatch.setattr(candidate, "_last_error", lambda: (1, pending.pop()) if pending else (0, ""))
    monkeypatch.setattr(candidate, "_copy_out", copy_out)
    reply = candidate.call({"arguments": [], "outputs": [], "seed": 1})
    assert (reply["error"], reply["copied"]) == ("invalid argument", [True])


def test_a_timed_block_begins_with_the_memory_of_the_last_one(tmp_path, monkeypatch):
    state, seen = holding(tmp_path, monkeypatch), []

    def entry():
        seen.append(len(state.timed))
        return torch.ones(4)

    state.entry, state.sets, state.held = entry, [[], []], [["of a call"]]
    for _ in range(2):
        candidate.block({"order": [0, 1], "seed": 1})
        assert len(state.timed) == 2
    assert seen == [0, 0, 0, 0]
    candidate.drop({"timed": True})
    assert (state.timed, state.held) == ([], [["of a call"]]), "a glance amid the verification leaves its results alone"


def test_inputs_that_repeat_are_copied_for_a_late_call(tmp_path, monkeypatch):
    state, seen = holding(tmp_path, monkeypatch), []
    state.slab.view(4096, "float32", [3, 5], [0, 1]).data[0].copy_(torch.arange(5.0))
    state.entry = lambda x: seen.append(x.clone()) or torch.ones(4)
    described = {"offset": 4096, "dtype": "float32", "shape": [3, 5], "stride": [0, 1]}
    reply = candidate.call({"arguments": [described], "outputs": [], "seed": 1, "late": True})
    assert reply["error"] == ""
    assert torch.equal(seen[0], torch.arange(5.0).expand(3, 5))


class Event:
    """Stands for torch.cuda.Event: remembers where it was recorded."""

    current, made = "ours", []

    def __init__(self, enable_timing):
        self.made.append(self)

    def record(self, stream=None):
        self.stream = stream or self.current

    def elapsed_time(self, _other):
        return 1.0


def test_a_call_that_switches_streams_does_not_take_the_events_with_it(monkeypatch):
    monkeypatch.setattr(Event, "made", [])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Event.current)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(blocks.Clock, "flush", lambda _clock: None)
    monkeypatch.setattr(Event, "current", "ours")
    clock = blocks.Clock(CPU)
    clock.cuda = True
    times, _ = clock.block(lambda _arguments: monkeypatch.setattr(Event, "current", "theirs"), [None, None])
    assert [event.stream for event in Event.made] == ["ours"] * 4
    assert times == [1000.0, 1000.0]
    monkeypatch.setattr(Event, "elapsed_time", lambda _start, _end: 0.0)
    times, _ = clock.block(lambda _arguments: None, [None])
    assert times[0] > 0, "the parent takes a time of nothing for a forgery"

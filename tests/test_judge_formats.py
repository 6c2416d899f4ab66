"""The rule `match` where the module as configured errs more in another memory format than in the example's."""

import pytest

from tests.probe_harness import worker_module

torch = pytest.importorskip("torch")

# On a CPU a convolution is as exact in every format: this module rounds as TF32 where a GPU would take such a kernel.
MODULE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv{n}d(4, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm{n}d(8)
    def forward(self, x):
        y = self.norm(self.conv(rounded(x)))
        return {result}
def rounded(x):
    if x.is_contiguous() or not torch.backends.cudnn.allow_tf32:
        return x
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
def get_inputs():
    return [torch.randn({shape})]
def get_init_inputs():
    return []
"""
SHAPES = {2: [4, 4, 12, 10], 3: [2, 4, 6, 5, 4]}
WEIGHTS = {"weight": "conv.weight", "bias": "conv.bias", "gain": "norm.weight", "shift": "norm.bias"}
STATISTICS = {"mean": "norm.running_mean", "variance": "norm.running_var"}
SEED = 11


def spec(shape, dtype="float32"):
    stride, step = [], 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= size
    return {"dtype": dtype, "shape": list(shape), "stride": stride}


class Opened:
    """A judge in this process that holds one draw's expectation, and the references to take answers from."""

    def __init__(self, folder, monkeypatch, n=2, result="y", applies=True):
        self.judge, self.formats = worker_module("judge"), worker_module("judge_formats")
        if applies:
            monkeypatch.setattr(self.formats, "applies", lambda: True)
        self.state, shape = self.judge.State, SHAPES[n]
        (folder / "groundtruth.py").write_text(MODULE.format(n=n, result=result, shape=", ".join(map(str, shape))))
        shapes = {"x": shape, "weight": [8, 4] + [3] * n, **{k: [8] for k in ("bias", "gain", "shift", *STATISTICS)}}
        tensors = {name: spec(s) for name, s in shapes.items()} | {"count": spec([], "int64")}
        arguments = [{"name": "x", "role": "input", "path": "x"}]
        arguments += [{"name": k, "role": "parameter", "path": v} for k, v in WEIGHTS.items()]
        arguments += [{"name": k, "role": "buffer", "path": v, "mutable": True} for k, v in STATISTICS.items()]
        arguments += [{"name": "count", "role": "buffer", "path": "norm.num_batches_tracked", "mutable": True}]
        contract = {
            "reference": "module", "mode": "train", "flags": {"cudnn.allow_tf32": True},
            "arguments": [{**a, "tensor": tensors[a["name"]]} for a in arguments],
            "variants": [{"tensors": tensors, "outputs": [spec([shape[0], 8, *shape[2:]])]}]}
        self.call("open", contract=contract, device="cpu", folder=str(folder), shared=str(folder), sets=1,
                  budget_bytes=1 << 26)
        self.call("draw", variant=0, family="randn", seed=3, fixed_seed=4, set=0, phase=0)
        self.before = {name: value.clone() for name, value in self.state.values.items()}
        self.call("expect", seed=SEED)

    def call(self, kind, **request):
        return self.judge.handle(kind, request, None)

    def answers(self, precision, channels_last=False):
        """What a kernel would give that does as the module does: outputs, then mutated arguments."""
        values = dict(self.before)
        if channels_last:
            x = values["x"]
            values["x"] = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
        torch.manual_seed(SEED)
        return self.state.reference.run(values, precision)

    def give(self, answers):
        """Write them where a candidate leaves its own."""
        (place,), (output, *changed) = self.state.outputs, answers
        self.state.out.view(place["offset"], place["dtype"], place["shape"], place["stride"]).copy_(output)
        for name, value in zip(self.state.mutable, changed, strict=True):
            self.state.values[name].copy_(value)

    def check(self, **request):
        return self.call("check", zero_mean=True, **request)

    def count_runs(self, monkeypatch):
        seen, run = [], self.state.reference.run
        monkeypatch.setattr(self.state.reference, "run",
                            lambda tensors, precision: seen.append(precision) or run(tensors, precision))
        return seen


@pytest.mark.parametrize("n", [2, 3])
def test_what_the_module_does_in_channels_last_matches_and_is_not_strict(tmp_path, monkeypatch, n):
    opened = Opened(tmp_path, monkeypatch, n)
    answers = opened.answers("configured", channels_last=True)

    opened.give(answers)
    found = opened.check()

    assert [r["match"] for r in found["results"]] == [True] * 4, found
    assert not found["results"][0]["strict"]
    assert not found["results"][2]["strict"]
    assert found["results"][0]["rms_ratio"] > 256, "or the formats had not to be asked"
    assert found["untouched"]
    assert found["guards"]


def test_without_a_gpu_or_convolutions_the_formats_are_not_asked(tmp_path, monkeypatch):
    opened = Opened(tmp_path, monkeypatch, applies=False)
    opened.give(opened.answers("configured", channels_last=True))
    assert not opened.check()["results"][0]["match"]

    monkeypatch.setattr(opened.state, "device", torch.device("cuda"))
    assert opened.formats.applies()
    variant = opened.state.contract["variants"][0]
    for op, convolves in (("aten.mm.default", False), ("aten.convolution.default", True)):
        variant["graph"] = {"nodes": [{"op": op}]}
        assert opened.formats.applies() == convolves
    monkeypatch.setattr(opened.state, "configurable", False)
    assert not opened.formats.applies()
    monkeypatch.setattr(opened.state, "configurable", True)
    monkeypatch.setattr(opened.state, "set_bytes", 1 << 31)
    assert not opened.formats.applies()
    monkeypatch.setattr(opened.state, "set_bytes", 1 << 20)
    opened.state.contract["reference"] = "cuda"
    assert not opened.formats.applies()


@pytest.mark.parametrize("wrong", ["zeros", "ten times the error", "one element", "variance", "no number"])
def test_wrong_results_fail_all_the_same(tmp_path, monkeypatch, wrong):
    opened = Opened(tmp_path, monkeypatch)
    right, answers = opened.answers("strict"), opened.answers("configured", channels_last=True)
    output, variance = answers[0], answers[2]
    if wrong == "zeros":
        output.zero_()
    elif wrong == "ten times the error":
        output.add_(10 * (output - right[0]))
    elif wrong == "one element":
        output[1, 2, 3, 4] += 0.1
    elif wrong == "variance":
        variance.mul_(1.01)
    else:
        output[0, 0, 0, 0] = float("nan")

    opened.give(answers)
    found = opened.check()

    number = 2 if wrong == "variance" else 0
    assert [r["match"] for r in found["results"]] == [n != number for n in range(4)], found
    assert found["results"][number]["why"]


def test_mutable_arguments_are_compared_as_the_candidate_left_them_and_put_back(tmp_path, monkeypatch):
    opened = Opened(tmp_path, monkeypatch)
    answers = opened.answers("configured", channels_last=True)
    answers[1] = opened.before["mean"]  # As a candidate that forgets to update it.
    opened.give(answers)
    found = opened.check()
    assert [r["match"] for r in found["results"]] == [True, False, True, True]
    assert found["untouched"]
    for name, value in opened.before.items():
        assert torch.equal(opened.state.values[name], value), name

    opened.give(opened.answers("configured", channels_last=True))
    assert all(r["match"] for r in opened.check()["results"])


def test_references_run_once_a_draw_and_only_where_a_verdict_depends_on_them(tmp_path, monkeypatch):
    opened = Opened(tmp_path, monkeypatch)
    right, low = opened.answers("strict"), opened.answers("configured", channels_last=True)
    seen = opened.count_runs(monkeypatch)
    opened.give(right)
    assert all(r["match"] and r["strict"] for r in opened.check()["results"])
    opened.give(low)
    opened.check(special=True)
    assert seen == []
    for _ in range(2):
        opened.give(low)
        assert all(r["match"] for r in opened.check()["results"])
    assert seen == ["strict", "configured"]

    opened.call("expect", seed=SEED + 1)
    del seen[:]
    opened.give(low)
    assert all(r["match"] for r in opened.check()["results"])
    assert seen == ["strict", "configured"]


def test_dropout_that_draws_in_the_order_of_memory_allows_nothing(tmp_path, monkeypatch):
    # Its other mask in channels-last is an error as large as the output itself.
    opened = Opened(tmp_path, monkeypatch, result="torch.nn.functional.dropout(y, 0.5)")
    answers = opened.answers("configured", channels_last=True)
    answers[0] = answers[0] * 1.5
    opened.give(answers)
    found = opened.check()
    assert [r["match"] for r in found["results"]] == [False, True, True, True]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("view size is not compatible")])
def test_a_format_that_cannot_be_run_leaves_the_first_verdict(tmp_path, monkeypatch, error):
    opened = Opened(tmp_path, monkeypatch)
    opened.give(opened.answers("configured", channels_last=True))

    def run(_tensors, _precision):
        raise error

    monkeypatch.setattr(opened.state.reference, "run", run)
    found = opened.check()
    assert not found["results"][0]["match"]
    assert found["untouched"]


def test_the_module_holds_what_timed_calls_read_afterwards(tmp_path, monkeypatch):
    opened = Opened(tmp_path, monkeypatch)
    low = opened.answers("configured", channels_last=True)
    opened.call("fill_sets", family="randn", seed=5, fixed_seed=4)
    opened.call("audit", set=0, seed=SEED)
    model = opened.state.reference.model
    held = model.conv.weight.data_ptr(), model.norm.running_mean.data_ptr()
    opened.give([low[0], *(opened.state.values[name].clone() for name in opened.state.mutable)])
    seen = opened.count_runs(monkeypatch)
    opened.check()
    assert seen == ["strict", "configured"]
    assert (model.conv.weight.data_ptr(), model.norm.running_mean.data_ptr()) == held
    assert model.conv.weight.is_contiguous()

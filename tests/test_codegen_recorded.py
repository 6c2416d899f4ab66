"""Programs that replay a recorded call: right for other values, weights and addresses, and only where a replay is right."""

import re
import shutil

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from engine.evaluate.cuda_to_host import blockers
from tests.program_harness import Lab, program_of

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
GRAPH = {"launches": "graph"}


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(20, 24), nn.Linear(24, 20)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.back(F.softmax(self.there(x), 1)))
        return x, x.sum(1)


def softmaxes():
    return nn.Sequential(nn.Linear(20, 20), nn.Softmax(1), nn.Linear(20, 20), nn.Softmax(1)).eval().requires_grad_(False)


def offered(module, inputs, space="cuda"):
    program, _, _ = program_of(module, inputs, space=space)
    return [t.values for t in program.tunables if t.key == "launches"]


@needs_compiler
@pytest.mark.timeout(600)
def test_replays_follow_new_values_weights_and_addresses(tmp_path):
    module = Deep().eval()
    program, contract, state = program_of(module, [torch.randn(5, 20)], space="cuda", choices=GRAPH)
    function = Lab(tmp_path).load(contract, program.source)
    held = []
    for _ in range(3):
        x = torch.randn(5, 20)
        with torch.no_grad():
            for tensor in state:
                tensor.copy_(torch.randn_like(tensor) * 0.3)
            want = module(x)

        got = function(*(tensor.clone() for tensor in state), x)

        held.append((got, want))
    for got, want in held:  # Later calls left earlier results alone.
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
    assert len({t.data_ptr() for got, _ in held for t in got}) == 6


@needs_compiler
@pytest.mark.timeout(600)
def test_a_call_inside_of_a_callers_graph_becomes_part_of_it(tmp_path):
    module, x = softmaxes(), torch.randn(5, 20)
    program, contract, state = program_of(module, [x], space="cuda", choices=GRAPH)
    replayed = re.search(r"return (Net_replayed\([^)]*\));", program.source)[1]
    source = program.source.replace(f"return {replayed};", f"""{replayed};
  at::cuda::CUDAGraph callers;
  callers.capture_begin();
  const at::Tensor result = {replayed};
  callers.capture_end();
  callers.replay();
  return result;""")

    torch.testing.assert_close(Lab(tmp_path).load(contract, source)(*state, x), module(x))


@needs_compiler
@pytest.mark.timeout(600)
def test_a_failure_while_a_call_is_recorded_ends_the_recording(tmp_path):
    module, x = softmaxes(), torch.randn(5, 20)
    program, contract, state = program_of(module, [x], space="cuda", choices=GRAPH)
    source = program.source.replace("const std::vector<at::Tensor>& own) {", """const std::vector<at::Tensor>& own) {
    static int calls = 0;
    TORCH_CHECK(++calls != 2, "fails while it is recorded");""")
    function = Lab(tmp_path).load(contract, source)

    with pytest.raises(RuntimeError, match="fails while it is recorded"):
        function(*state, x)
    torch.testing.assert_close(function(*state, x), module(x))


class Called(Deep):
    def forward(self, stream, copy_into):
        return super().forward(stream * copy_into)


@needs_compiler
@pytest.mark.timeout(600)
@pytest.mark.parametrize("choices", [{}, GRAPH], ids=["single", "graph"])
def test_arguments_may_be_called_as_the_host_code_calls_its_own(tmp_path, choices):
    Lab(tmp_path).check(Called().eval(), [torch.randn(5, 20), torch.randn(5, 20)], space="cuda", choices=choices)


def test_a_graph_is_a_choice_beside_the_default():
    inputs = [torch.randn(5, 20)]
    program, _, _ = program_of(Deep().eval(), inputs, space="cuda")
    choice = next(t for t in program.tunables if t.key == "launches")

    assert "CUDAGraph" not in program.source
    assert (choice.values, choice.direction) == (("single", "graph"), "C")
    assert offered(nn.GRU(4, 6).eval(), inputs=[torch.randn(3, 2, 4)], space="cuda_libs_torch")
    assert offered(nn.ReLU().eval(), inputs) == [], "one launch gains nothing"


def test_what_a_replay_would_get_wrong_is_not_recorded():
    class Stateful(Deep):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(20))

        def forward(self, x):
            self.calls += 1
            return super().forward(x * self.calls)

    assert offered(Stateful().eval(), [torch.randn(5, 20)]) == []
    dropping = nn.Sequential(*(nn.Sequential(nn.Linear(20, 20), nn.Dropout(0.5)) for _ in range(4))).train()
    assert offered(dropping, [torch.randn(5, 20)], "cuda_libs_torch") == []
    assert offered(Deep().eval(), [torch.randn(1, 20).expand(5, 20)]) == [], "arguments that repeat their elements"


def test_the_emulator_refuses_graphs_of_libraries_by_name():
    program, _, _ = program_of(Deep().eval(), [torch.randn(5, 20)], choices=GRAPH)

    assert re.search(r"at::linear|at::matmul|at::addmm", program.source)
    assert blockers(program.source) == ("CUDA graphs of library calls",)
    own, _, _ = program_of(Deep().eval(), [torch.randn(5, 20)], space="cuda", choices=GRAPH)
    assert blockers(own.source) == ()

"""Files and modules that cannot be used: each refusal names the file, the line, and the way out."""

from pathlib import Path

import pytest

from tests.probe_harness import probe, worker_module

HEAD = "import torch\nimport torch.nn as nn\n"
MODEL = HEAD + """
class Model(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.fc = nn.Linear(n, n)
    def forward(self, x):
        {body}

def get_inputs():
    return [{inputs}]
"""


def model(body: str = "return self.fc(x)", inputs: str = "torch.randn(3, 4)") -> str:
    return MODEL.format(body=body, inputs=inputs)


CASES = {
    # title: (text, line, words of the problem, words of the hint)
    "syntax error": (HEAD + "class Model(nn.Module:\n    pass\n", 3, "syntax error", "syntax"),
    "missing package": (HEAD + "import not_a_package_anywhere\n", 3, "not_a_package_anywhere", "install"),
    "exit on import": (HEAD + "raise SystemExit(3)\n", 3, "SystemExit", "__main__"),
    "error on import": (HEAD + "x = 1 / 0\n", 3, "ZeroDivisionError", "import"),
    "no such class": (model().replace("Model", "Other"), 1, "no class or function 'Model'", "Other"),
    "not a module": (HEAD + "class Model:\n    pass\n", 3, "neither", "name one of"),
    "already built": (model() + "Model = Model()\n", 4, "already built", "name its class"),
    "no example inputs": (model().split("def get_inputs")[0], 4, "no example inputs", "def get_inputs()"),
    "too many inputs": (model(inputs="torch.randn(3, 4), torch.randn(3)"), 11, "does not fit", "one value for each"),
    "constructor needs arguments": (model().replace("n=4", "n"), 4, "no get_init_inputs()", "get_init_inputs"),
    "constructor raises": (
        model().replace("super().__init__()", "raise ValueError('odd size')"), 6, "odd size", "constructor"
    ),
    "get_inputs raises": (model(inputs="undefined_name"), 12, "undefined_name", "get_inputs"),
    "forward raises": (model("raise KeyError('gone')"), 9, "gone", "get_inputs"),
    "shapes do not fit": (model(inputs="torch.randn(3, 5)"), 9, "forward raises", "get_inputs"),
    "branch on a value": (model("return x if x.sum() > 0 else -x"), 9, "depends on tensor values", "torch.where"),
    "item": (model("return x * x.max().item()"), 9, "depends on tensor values", ".item()"),
    "shape from values": (model("return x[x > 0]"), 9, "depends on tensor values", "torch.where"),
    "layers in a list": (
        model("return self.layers[0](x)").replace(
            "super().__init__()", "super().__init__(); self.layers = [torch.nn.Linear(4, 4)]"),
        4, "neither argument, parameter nor buffer", "nn.ModuleList"
    ),
    "a momentum that a counter gives": (
        model("return self.norm(x)").replace(
            "super().__init__()", "super().__init__(); self.norm = torch.nn.BatchNorm1d(4, momentum=None)"),
        9, "depends on tensor values", ".item()"
    ),
    "numpy": (model("return torch.from_numpy(x.numpy() + 1)"), 9, "leaves torch", "torch operators"),
    "autocast for a GPU": (
        model("with torch.autocast('cuda'): return self.fc(x)"), 9, "autocast", "outside of forward"
    ),
    "no tensor comes out": (model("return 3"), 4, "returns no tensor", "at least one tensor"),
    "an object comes out": (model("return x, object()"), 4, "forward returns", "return tensors"),
    "exits in the constructor": (
        model().replace("super().__init__()", "raise SystemExit"), 6, "SystemExit", "constructor"
    ),
}


@pytest.mark.parametrize("title", CASES)
def test_refused_with_line_and_way_out(tmp_path: Path, title: str) -> None:
    text, line, problem, hint = CASES[title]
    with pytest.raises(worker_module("wire").Refusal) as caught:
        probe(tmp_path, text)
    refusal = caught.value
    assert problem in refusal.problem
    assert hint in refusal.hint
    assert refusal.file == str(tmp_path / "user_model.py")
    assert refusal.line == line
    assert "\n" not in refusal.problem


def test_autocast_that_is_off_is_no_reason(tmp_path: Path) -> None:
    reply = probe(tmp_path, model("with torch.autocast('cuda', enabled=False): return self.fc(x.float())"))
    assert [a["name"] for a in reply["arguments"]] == ["x", "fc_weight", "fc_bias"]


def test_an_error_in_a_helper_module_is_shown_there(tmp_path: Path) -> None:
    (tmp_path / "helper_for_refusal.py").write_text("def scale(x):\n    raise RuntimeError('helper fails')\n")
    text = model("return scale(x)") + "from helper_for_refusal import scale\n"
    with pytest.raises(worker_module("wire").Refusal) as caught:
        probe(tmp_path, text)
    # The user's own file comes first: that is the line that has to change or to be followed.
    assert (caught.value.file, caught.value.line) == (str(tmp_path / "user_model.py"), 9)

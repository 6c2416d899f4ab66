"""The binding without torch's headers passes on the same values, and refuses the same ones, as pybind11's."""

import json
import platform
import sys
from dataclasses import replace

import pytest

from engine import processes
from engine.evaluate import emulate
from engine.evaluate.build import Builder
from engine.evaluate.emulate import build_emulated
from engine.evaluate.prepare import Preparer
from engine.records import Build

DECLARED = """#include <torch/extension.h>
std::tuple<torch::Tensor, double, std::vector<torch::Tensor>, std::optional<torch::Tensor>, std::string, bool, int64_t>
several(torch::Tensor x, const torch::Tensor& y, int64_t n, double a, bool b, std::optional<torch::Tensor> o,
        std::vector<int64_t> sizes, std::vector<torch::Tensor> more, const std::string& name);
void nothing(torch::Tensor x);
torch::Tensor raises(int64_t which);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("several", &several, "text");
  m.def("nothing", &nothing);
  m.def("raises", &raises);
  m.def("counted", [](const py::args& given) { return (int64_t)given.size(); });
  m.def("third", [](const py::args& given) { return given[2].cast<int64_t>(); });
  m.def("unsigned", [](size_t n, uint8_t small) { return std::to_string(n) + " " + std::to_string(small); });
}
"""
SOURCE = """#include <torch/extension.h>
#include <stdexcept>
#include <tuple>
#include <vector>
#include <string>
std::tuple<torch::Tensor, double, std::vector<torch::Tensor>, std::optional<torch::Tensor>, std::string, bool, int64_t>
several(torch::Tensor x, const torch::Tensor& y, int64_t n, double a, bool b, std::optional<torch::Tensor> o,
        std::vector<int64_t> sizes, std::vector<torch::Tensor> more, const std::string& name) {
  int64_t sum = n;
  for (auto size : sizes) sum += size;
  return {y, a, more, o, name, !b, sum + x.numel()};
}
void nothing(torch::Tensor x) {}
torch::Tensor raises(int64_t which) {
  if (which == 0) TORCH_CHECK(false, "refused ", which);
  if (which == 1) throw std::out_of_range("outside");
  if (which == 2) throw std::invalid_argument("wrong");
  return torch::Tensor();
}
"""
CALLS = """
import importlib.machinery, importlib.util, json, sys, torch
name, path = sys.argv[1:]
spec = importlib.machinery.ModuleSpec(name, importlib.machinery.ExtensionFileLoader(name, path), origin=path)
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
x, y, z = torch.arange(6.), torch.ones(2), torch.zeros(3)
several = lambda **k: module.several(*{"x": x, "y": y, "n": 3, "a": 2, "b": True, "o": None, "sizes": [4, 5], "more": (x, z),
                                       "name": "tést", **k}.values())
def seen(call):
    try:
        value = call()
    except Exception as error:
        text = str(error)
        return [type(error).__name__, next((w for w in ("refused 0", "outside", "wrong") if w in text), "")]
    plain = lambda v: v.tolist() if isinstance(v, torch.Tensor) else [plain(i) for i in v] if isinstance(v, (list, tuple)) else v
    return [type(value).__name__, plain(value)]
big = 2**63 - 1
found = [seen(several), seen(lambda: several(o=z)), seen(lambda: several(sizes=())), seen(lambda: several(x=1)),
         seen(lambda: several(n=2.5)), seen(lambda: several(n=big - 15)), seen(lambda: several(n=big + 1)),
         seen(lambda: several(a="2")), seen(lambda: several(b=1)), seen(lambda: several(more=[x, None])),
         seen(lambda: several(name=3)), seen(lambda: several(o=torch.nn.Parameter(z))),
         seen(lambda: module.nothing(x)), seen(module.nothing), seen(lambda: module.nothing(x, x)),
         *[seen(lambda: module.raises(i)) for i in range(4)], seen(lambda: module.counted(1, "a", None)),
         seen(lambda: module.third(1, 2, 3)), seen(lambda: module.third(1)), seen(lambda: module.unsigned(-1, 2)),
         seen(lambda: module.unsigned(2**64 - 1, 255)), seen(lambda: module.unsigned(2**64, 2)),
         seen(lambda: module.unsigned(1, 256))]
same = several()[0] is y
before = sys.getrefcount(z)
for _ in range(100):
    several(o=z, more=[z]); seen(lambda: several(o=z, more=[z, 1]))
print(json.dumps([found, same, sys.getrefcount(z) - before]))
"""


async def called(toolchain, root, folder, source):
    builder = Builder(toolchain, root)
    build = await build_emulated(builder, folder, source)
    assert isinstance(build, Build), build
    done = await processes.run([sys.executable, "-c", CALLS, build.module, build.extension], timeout_s=120)
    assert done.status == 0, done.stderr
    prepared = await builder.prepare(folder, emulated=True)
    return json.loads(done.stdout.splitlines()[-1]), prepared.python is not None


async def test_same_values_and_refusals_as_by_pybind11(toolchain, tmp_path, monkeypatch):
    (tmp_path / "cpp_source.cpp").write_text(DECLARED)
    light, was_light = await called(toolchain, tmp_path / "light", tmp_path, SOURCE)

    async def never(*_args):
        return False

    monkeypatch.setattr(Preparer, "_light_binding", never)
    heavy, heavy_was_light = await called(toolchain, tmp_path / "heavy", tmp_path, SOURCE)
    assert (was_light, heavy_was_light) == (True, False)
    for number, (mine, theirs) in enumerate(zip(light[0], heavy[0], strict=True)):
        assert mine == theirs, number
    assert light[1:] == heavy[1:] == [True, 0]
    assert light[0][0] == ["tuple", [[1.0, 1.0], 2.0, [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 3], None, "tést", False, 18]]


def bound(text):
    return f"torch::Tensor f(torch::Tensor x);\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ {text}; }}"


@pytest.mark.parametrize("declared", [
    "torch::Tensor f(at::IntArrayRef sizes);",
    "torch::Tensor f(torch::Tensor x) { return x.relu(); }",
    "torch::Tensor f(at::ScalarType kind);",
    "torch::Tensor f(char kind);",
    # What would compile without them, and mean something else.
    bound('m.def("f", &f, py::arg("x") = 1.0)'),
    bound('m.def("f", &f); m.def("f", [](torch::Tensor x, torch::Tensor y) { return f(x); })'),
    "#if TORCH_VERSION_MAJOR >= 2\ntorch::Tensor f(torch::Tensor x);\n#else\ntorch::Tensor f();\n#endif",
])
async def test_what_needs_torchs_headers_gets_them(toolchain, tmp_path, declared):
    (tmp_path / "cpp_source.cpp").write_text(f"#include <torch/extension.h>\n{declared}\n")
    prepared = await Builder(toolchain, tmp_path / "cache").prepare(tmp_path, emulated=True)
    assert set(prepared.exported) == {"f"}
    assert prepared.python is None


async def test_a_torch_whose_layouts_differ_gets_its_own_headers(toolchain, tmp_path, monkeypatch):
    whole = Preparer._runtime

    async def without(self):
        made = await whole(self)
        (made / "libhiera_py.so").unlink(missing_ok=True)
        return made

    monkeypatch.setattr(Preparer, "_runtime", without)
    (tmp_path / "cpp_source.cpp").write_text("#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x);\n")
    prepared = await Builder(replace(toolchain), tmp_path / "cache").prepare(tmp_path, emulated=True)
    assert prepared.python is None
    assert prepared.needs


SPLIT = """#include <torch/extension.h>
#include <cuda_fp16.h>
struct Halves { __half high, low; };
struct alignas(8) Half4 { __half x, y, z, w; };
__device__ Halves apart(float v) {
  Halves h;
  h.high = __float2half_rn(v);
  h.low = __float2half_rn(v - __half2float(h.high));
  return h;
}
__global__ void split(const float4* x, Half4* high, Half4* low) {
  const float4 v = x[threadIdx.x];
  const Halves a = apart(v.x), b = apart(v.y), c = apart(v.z), d = apart(v.w);
  high[threadIdx.x] = {a.high, b.high, c.high, d.high};
  low[threadIdx.x] = {a.low, b.low, c.low, d.low};
}
torch::Tensor f(torch::Tensor x) {
  auto y = torch::empty({2, 8}, x.options().dtype(torch::kHalf));
  auto* parts = reinterpret_cast<Half4*>(y.data_ptr<at::Half>());
  split<<<1, 2>>>(reinterpret_cast<const float4*>(x.data_ptr<float>()), parts, parts + 2);
  return y;
}
"""
SPLIT_CALL = """
import importlib.machinery, importlib.util, sys, torch
name, path = sys.argv[1:]
spec = importlib.machinery.ModuleSpec(name, importlib.machinery.ExtensionFileLoader(name, path), origin=path)
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
x = torch.linspace(0.1, 0.9, 8)
print(float((module.f(x).double().sum(0) - x).abs().max()))
"""


def test_half_arithmetic_of_the_processor_is_left_out():
    # Seen to lose the rounding of a kernel's halves with g++ 12.2; not in the small one below.
    tuned = {version: emulate._tuned(version) for version in ("11.4.0", "12.2.0", "14", "")}
    if platform.machine() == "x86_64":
        assert [("-mno-avx512fp16" in flags, "-march=native" in flags) for flags in tuned.values()] == [
            (False, True), (True, True), (True, True), (False, True)]
    else:
        assert not any(tuned.values())


async def test_halves_are_rounded(toolchain, tmp_path):
    (tmp_path / "cpp_source.cpp").write_text("#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x);\n")
    build = await build_emulated(Builder(toolchain, tmp_path / "cache"), tmp_path, SPLIT)
    assert isinstance(build, Build), build
    done = await processes.run([sys.executable, "-c", SPLIT_CALL, build.module, build.extension], timeout_s=60)
    assert done.status == 0, done.stderr
    assert float(done.stdout) < 1e-6

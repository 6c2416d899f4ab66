"""Exercise the evaluator on a GPU: honest kernels of three spaces, cheats that only a GPU shows, one large tensor.

    python bench/gpu_check_evaluator.py [--confirm] [--profile] [--only NAME,NAME] [--json FILE]

Prints one line a candidate: verdict, the deciding check, speed-up with interval, seconds per stage. Exit
status 1 when a verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contracts import codec
from contracts.contract import Argument, Contract, Variant
from contracts.errors import HieraError
from contracts.folder import write_folder
from contracts.tensors import TensorSpec
from engine.evaluate.build import Builder
from engine.evaluate.local import LocalEvaluator, Settings
from engine.records import Candidate, Device
from engine.toolchain import find_toolchain

HEAD = """#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
"""
SOFTMAX = HEAD + """
#include <cmath>
__global__ void softmax_rows(const float* x, float* y, int columns) {
  __shared__ float part[32];
  const float* row = x + (size_t)blockIdx.x * columns;
  float* out = y + (size_t)blockIdx.x * columns;
  float top = -INFINITY; bool bad = false;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) { float v = row[i]; bad |= isnan(v); top = fmaxf(top, v); }
  if (__syncthreads_or(bad)) { for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = NAN; return; }
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = top;
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; ++i) top = fmaxf(top, part[i]);
  __syncthreads();
  float sum = 0.f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - top);
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.f;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += part[i];
  float scale = 1.f / sum;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = expf(row[i] - top) * scale;
}
static void launch(const torch::Tensor& x, torch::Tensor& y, cudaStream_t stream) {
  softmax_rows<<<x.size(0), 512, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(1));
}
torch::Tensor softmax_forward(torch::Tensor x) {
  auto y = torch::empty_like(x);
  BODY
  return y;
}
"""
JOINED = """static cudaStream_t side = nullptr; static cudaEvent_t a, b;
  if (!side) { cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking); cudaEventCreateWithFlags(&a, cudaEventDisableTiming); cudaEventCreateWithFlags(&b, cudaEventDisableTiming); }
  auto main_stream = at::cuda::getCurrentCUDAStream().stream();
  cudaEventRecord(a, main_stream); cudaStreamWaitEvent(side, a, 0); launch(x, y, side); cudaEventRecord(b, side); cudaStreamWaitEvent(main_stream, b, 0);"""
UNJOINED = JOINED.rsplit("cudaEventRecord(b, side)", 1)[0]
UNFORKED = """static cudaStream_t side = nullptr; if (!side) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  launch(x, y, side);"""
PLAIN = "launch(x, y, at::cuda::getCurrentCUDAStream());"
LINEAR = HEAD + """
#include <cublas_v2.h>
__global__ void bias_relu(float* y, const float* bias, long total, int columns) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < total; i += (long)gridDim.x * blockDim.x) {
    float v = y[i] + bias[i % columns];
    y[i] = v < 0.f ? 0.f : v;
  }
}
torch::Tensor linear_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
  int m = (int)x.size(0), k = (int)x.size(1), n = (int)weight.size(0);
  auto y = torch::empty({m, n}, x.options());
  static cublasHandle_t handle = nullptr;
  if (!handle) cublasCreate(&handle);
  auto stream = at::cuda::getCurrentCUDAStream().stream();
  cublasSetStream(handle, stream);
  cublasSetMathMode(handle, MATH);
  float one = 1.f, zero = 0.f;
  cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, weight.data_ptr<float>(), k, x.data_ptr<float>(), k, &zero, y.data_ptr<float>(), n);
  bias_relu<<<1024, 256, 0, stream>>>(y.data_ptr<float>(), bias.data_ptr<float>(), (long)m * n, n);
  return y;
}
"""
CONV = HEAD + """
torch::Tensor conv_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
  return at::relu(at::conv2d(x, weight, bias, {1, 1}, {1, 1}));
}
"""
SCALE = HEAD + """
__global__ void scale_relu(const float4* x, float4* y, long count) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < count; i += (long)gridDim.x * blockDim.x) {
    float4 v = x[i];
    v.x = (v.x < 0.f ? 0.f : v.x) * 2.f; v.y = (v.y < 0.f ? 0.f : v.y) * 2.f;
    v.z = (v.z < 0.f ? 0.f : v.z) * 2.f; v.w = (v.w < 0.f ? 0.f : v.w) * 2.f;
    y[i] = v;
  }
}
__global__ void scale_relu_plain(const float* x, float* y, long count) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < count; i += (long)gridDim.x * blockDim.x) {
    y[i] = (x[i] < 0.f ? 0.f : x[i]) * 2.f;
  }
}
torch::Tensor scale_forward(torch::Tensor x) {
  auto y = torch::empty_like(x);
  if (reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 != 0 || x.numel() % 4 != 0) {
    scale_relu_plain<<<132 * 16, 512, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
  }
  scale_relu<<<132 * 16, 512, 0, at::cuda::getCurrentCUDAStream()>>>(reinterpret_cast<const float4*>(x.data_ptr<float>()), reinterpret_cast<float4*>(y.data_ptr<float>()), x.numel() / 4);
  return y;
}
"""
TRUTH = """import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        INIT
    def forward(self, x):
        return FORWARD
def get_inputs():
    return [torch.rand(SHAPE)]
def get_init_inputs():
    return []
"""


def spec(*shape: int) -> TensorSpec:
    return TensorSpec.contiguous("float32", shape)


def contract(name: str, shape: tuple[int, ...], out: tuple[int, ...], weights: dict[str, tuple[str, tuple[int, ...]]],
             init: str, forward: str) -> tuple[Contract, str]:
    arguments = [Argument(name="x", role="input", tensor=spec(*shape), path="x")]
    arguments += [Argument(name=n, role="parameter", tensor=spec(*s), path=path) for n, (path, s) in weights.items()]
    variants = []
    for label, batch in (("example", shape[0]), ("batch 3", 3)):
        tensors = {a.name: a.tensor for a in arguments} | {"x": spec(batch, *shape[1:])}
        variants.append(Variant(name=label, tensors=tensors, outputs=(spec(batch, *out[1:]),)))
    truth = TRUTH.replace("INIT", init).replace("FORWARD", forward).replace("SHAPE", ", ".join(map(str, shape)))
    made = Contract(name=name, entry=f"{name}_forward", arguments=tuple(arguments), output_tree=0, variants=tuple(variants),
                    flags={"cudnn.allow_tf32": True, "cuda.matmul.allow_tf32": False})
    return made, truth


TASKS = {
    "softmax": (contract("softmax", (4096, 4096), (4096, 4096), {}, "pass", "torch.softmax(x, dim=1)"), {
        "own kernel": ("cuda", SOFTMAX.replace("BODY", PLAIN), None),
        "joined stream": ("cuda", SOFTMAX.replace("BODY", JOINED), None),
        "not joined": ("cuda", SOFTMAX.replace("BODY", UNJOINED), "stream order|numeric|poison|wall clock|fresh inputs"),
        "not forked": ("cuda", SOFTMAX.replace("BODY", UNFORKED), "stream order|numeric|poison|wall clock|fresh inputs"),
        "zeros": ("cuda_libs_torch", SOFTMAX.replace("BODY", "y.zero_();"), "numeric"),
        "half": ("cuda_libs_torch", SOFTMAX.replace("BODY", "y = at::softmax(x.to(at::kHalf), 1).to(at::kFloat);"), "numeric"),
        "illegal access": ("cuda", SOFTMAX.replace("BODY", "softmax_rows<<<x.size(0), 512>>>(x.data_ptr<float>(), nullptr, (int)x.size(1));"), "runs|cuda errors"),
        "bad launch": ("cuda", SOFTMAX.replace("BODY", "softmax_rows<<<x.size(0), 512, 300000>>>(x.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(1));"), "cuda errors"),
        "after a crash": ("cuda", SOFTMAX.replace("BODY", PLAIN) + "// again", None),
    }),
    "linear": (contract("linear", (2048, 4096), (2048, 4096), {"weight": ("layer.weight", (4096, 4096)), "bias": ("layer.bias", (4096,))},
                        "self.layer = torch.nn.Linear(4096, 4096)", "torch.relu(self.layer(x))"), {
        "cublas fp32": ("cuda_libs", LINEAR.replace("MATH", "CUBLAS_DEFAULT_MATH"), None),
        "cublas tf32": ("cuda_libs", LINEAR.replace("MATH", "CUBLAS_TF32_TENSOR_OP_MATH"), "numeric"),
    }),
    "conv": (contract("conv", (16, 64, 56, 56), (16, 128, 56, 56), {"weight": ("layer.weight", (128, 64, 3, 3)), "bias": ("layer.bias", (128,))},
                      "self.layer = torch.nn.Conv2d(64, 128, 3, padding=1)", "torch.relu(self.layer(x))"), {
        "aten": ("cuda_libs_torch", CONV, None),
    }),
    "small": (contract("scale", (32, 1024), (32, 1024), {}, "pass", "torch.relu(x) * 2"), {
        "own kernel": ("cuda", SCALE, None),
    }),
    "large": (contract("scale", (16384, 65536), (16384, 65536), {}, "pass", "torch.relu(x) * 2"), {
        "4 GiB": ("cuda", SCALE, None),
    }),
}


def device() -> Device:
    """This machine's GPU; torch is asked in a child so that no context stays here."""
    import subprocess

    code = ("import torch,json;p=torch.cuda.get_device_properties(0);print(json.dumps([p.name,p.major,p.minor,"
            "p.multi_processor_count,p.L2_cache_size,p.total_memory]))")
    name, major, minor, count, l2, memory = json.loads(subprocess.check_output([sys.executable, "-c", code], text=True))
    return Device(kind="cuda", name=name, sm=f"{major}.{minor}", sm_count=count, l2_bytes=l2, memory_bytes=memory,
                  dram_bytes_per_s=4.8e12 if "H200" in name else 0.0)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--confirm", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    gpu, toolchain = device(), await find_toolchain(sys.executable)
    print(f"{gpu.name} sm {gpu.sm}, torch {toolchain.torch_version}, nvcc {toolchain.nvcc_version}")
    wrong, rows = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        builder = Builder(toolchain, Path(scratch) / "cache")
        for name, ((made, truth), candidates) in TASKS.items():
            if options.only and name not in options.only.split(","):
                continue
            folder = Path(scratch) / name
            write_folder(folder, made, groundtruth=truth, signature="x", source=next(iter(candidates.values()))[1])
            settings = Settings(profile_above=0.0 if options.profile else None)
            evaluator = LocalEvaluator(toolchain, gpu, made, folder, builder, settings=settings)
            begin = time.perf_counter()
            try:
                await evaluator.prepare()
                session = evaluator.session
                print(f"\n{name}: prepared in {time.perf_counter() - begin:.1f} s, {session.opened['arguments']['transport']}, "
                      f"{session.opened['sets']} sets, trivial {session.trivial}")
                for label, (space, source, expected) in candidates.items():
                    candidate = Candidate(id=label, source=source, space=space, author="user")  # To the end.
                    found = await evaluator.evaluate(made, candidate)
                    if options.confirm and found.timing is not None and expected is None:
                        found = await evaluator.confirm(made, candidate, found)
                    wrong += report(label, found, expected)
                    rows.append({"task": name, "candidate": label, **codec.to_data(found)})
                begin = time.perf_counter()
                print("  baseline", await evaluator.baseline(), f"{time.perf_counter() - begin:.1f} s")
                if name == "softmax":
                    again = await evaluator.evaluate(made, Candidate(
                        id="vs", source=SOFTMAX.replace("BODY", PLAIN), space="cuda", author="user"))
                    wrong += report("with compile", again, None)
            except (HieraError, AssertionError, KeyError, OSError, ValueError):
                wrong += 1
                traceback.print_exc()
                if evaluator.session.judge is not None:
                    print(evaluator.session.judge.log_tail[-2000:])
            finally:
                await evaluator.close()
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    print("\nall as expected" if not wrong else f"\n{wrong} verdicts are not as expected")
    return int(wrong > 0)


def report(label: str, found, expected: str | None) -> int:
    """One line; 1 when the verdict is not the expected one."""
    checks = found.verification.checks if found.verification is not None else ()
    failures = [c.name for c in checks if c.status == "fail"]
    fine = found.failure is None if expected is None else bool(set(failures) & set(expected.split("|")))
    build = f"{found.build.seconds:.1f}" if found.build is not None else "-"
    line = f"  {'ok ' if fine else 'BAD'} {label:16s} {found.stage:9s} build {build} s, all {found.seconds:.1f} s"
    if found.timing is not None:
        t = found.timing
        line += (f", {t.median_us:.1f} us, {t.speedup:.3f}x [{t.ci95[0]:.3f}, {t.ci95[1]:.3f}] wall {t.wall_us} "
                 f"blocks {len(t.candidate_us)} vs compile {t.speedup_vs_compile}")
    print(line, flush=True)
    if found.failure is not None:
        print(f"      {found.failure.reason[:300]} {failures}")
    if found.confirmed is not None:
        print(f"      confirmed {found.confirmed}")
    if found.verification is not None and (not fine or found.timing is not None):
        skipped = [f"{c.name}: {c.status}" for c in checks if c.status.startswith("not run")]
        print(f"      {found.verification.isolation}; {dict(found.verification.metrics)}; {skipped}")
        print("      " + next((c.detail for c in checks if c.name == "numeric"), "")[:400])
    if not fine and found.failure is not None and found.failure.log_tail:
        print(found.failure.log_tail[-1500:])
    if found.counters is not None:
        print(f"      counters {found.counters.status[:200]} {found.counters.limiter}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""Kernels run on the CPU give what torch gives, in both thread orders, and rule breakers are told where they break."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.evaluate.build import Builder
from engine.evaluate.emulate import build_emulated
from engine.records import Build, Failure
from engine.toolchain import find_toolchain

KERNELS = Path(__file__).parent / "data" / "kernels"
DECLARATION = "torch::Tensor forward(torch::Tensor x, torch::Tensor y);\n"
WITH_MODULE = """#include <torch/extension.h>
torch::Tensor forward(torch::Tensor x, torch::Tensor y);
torch::Tensor checked(torch::Tensor x, torch::Tensor y) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(y.device().is_cuda() && y.device().type() == torch::kCUDA, "y must be a CUDA tensor");
    return forward(x, y);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &checked, "adds"); }
"""
# name, number of input pairs, largest absolute error
CASES = [
    ("elementwise", 2, 1e-6), ("row_sum", 2, 1e-4), ("softmax", 3, 2e-3), ("cluster_softmax", 2, 1e-6),
    ("matmul_tiled", 2, 1e-4), ("stencil", 1, 1e-12),
    ("transpose", 1, 0), ("atomics", 1, 1e-9), ("warp_lanes", 1, 1e-5), ("wmma", 1, 1e-3), ("half_arithmetic", 1, 0.02),
    ("cublas", 1, 1e-4), ("cublaslt", 1, 1e-4), ("aten", 1, 1e-5), ("host_checks", 1, 0),
]
BROKEN = {
    "race": """
__global__ void reverse(const float* x, float* out) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    out[blockIdx.x * 256 + threadIdx.x] = tile[255 - threadIdx.x];
}
LAUNCH(reverse, <<<2, 256>>>(x.data_ptr<float>(), out.data_ptr<float>()))""",
    "missing lanes": """
__global__ void partial(const float* x, float* out) {
    float v = x[threadIdx.x];
    if (threadIdx.x < 8)
        for (int o = 4; o; o /= 2)
            v += __shfl_down_sync(0xffffffffu, v, o);
    __syncthreads();
    out[threadIdx.x] = v;
}
LAUNCH(partial, <<<1, 64>>>(x.data_ptr<float>(), out.data_ptr<float>()))""",
    "split barrier": """
__global__ void split(float* out) {
    if (threadIdx.x < 40) __syncthreads();
    else { out[0] = 1.0f;
        __syncthreads(); }
}
LAUNCH(split, <<<1, 64>>>(out.data_ptr<float>()))""",
    "endless": """
__global__ void spin(volatile float* out) {
    while (out[5] == 0.0f) {}
}
LAUNCH(spin, <<<1, 64>>>(out.data_ptr<float>()))""",
    "endless with barriers": """
__global__ void spin(volatile float* out) {
    while (out[5] == 0.0f) __syncthreads();
}
LAUNCH(spin, <<<1, 64>>>(out.data_ptr<float>()))""",
    "wild pointer": """
__global__ void wild(float* out) {
    if (threadIdx.x == 7) out[size_t(1) << 40] = 1.0f;
}
LAUNCH(wild, <<<1, 64>>>(out.data_ptr<float>()))""",
    "too many threads": """
__global__ void nothing(float*) {}
LAUNCH(nothing, <<<1, 2048>>>(out.data_ptr<float>()))""",
    "shared without opt-in": """
__global__ void nothing(float*) {}
LAUNCH(nothing, <<<1, 32, 60000>>>(out.data_ptr<float>()))""",
    "beyond shared": """
__global__ void beyond(float* out) {
    extern __shared__ float row[];
    row[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = row[threadIdx.x];
}
LAUNCH(beyond, <<<1, 64, 32 * sizeof(float)>>>(out.data_ptr<float>()))""",
    "cluster too early": """
__global__ void early(float* out) {
    __shared__ float own;
    const auto cluster = cooperative_groups::this_cluster();
    own = 1.0f;
    out[threadIdx.x] = *cluster.map_shared_rank(&own, 1);
    cluster.sync();
}
LAUNCH(early, CLUSTERS(4, 2))""",
    "cluster too late": """
__global__ void late(float* out) {
    __shared__ float own;
    const auto cluster = cooperative_groups::this_cluster();
    own = 1.0f;
    cluster.sync();
    out[threadIdx.x] = *cluster.map_shared_rank(&own, 1 - cluster.block_rank());
}
LAUNCH(late, CLUSTERS(4, 2))""",
    "cluster of part": """
__global__ void part(float* out) {
    const auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x < 40) cluster.sync();
    else __syncthreads();
}
LAUNCH(part, CLUSTERS(4, 2))""",
    "broken cluster": """
__global__ void nothing(float* out) {}
LAUNCH(nothing, CLUSTERS(5, 2))""",
    "wide cluster": """
__global__ void nothing(float* out) {}
LAUNCH(nothing, CLUSTERS(16, 16))""",
    "unwritten shared": """
__global__ void unwritten(float* out) {
    extern __shared__ float row[];
    __shared__ float one;
    out[threadIdx.x] = row[threadIdx.x];
    out[32 + threadIdx.x] = one;
    if (threadIdx.x == 31) one = 1.0f;
}
LAUNCH(unwritten, <<<1, 32, 256>>>(out.data_ptr<float>()))""",
}


CLUSTERS = """{{ cudaLaunchAttribute cluster; cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = {size}; cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {{}}; config.gridDim = dim3({blocks}); config.blockDim = dim3(64);
    config.attrs = &cluster; config.numAttrs = 1;
    cudaLaunchKernelEx(&config, {callee}, out.data_ptr<float>()); }}"""


def broken(name: str) -> str:
    kernel, _, launch = BROKEN[name].strip().partition("\nLAUNCH(")
    callee, _, rest = launch.removesuffix(")").partition(", ")
    call = f"{callee}{rest}"
    if found := re.fullmatch(r"CLUSTERS\((\d+), (\d+)\)", rest):
        call = CLUSTERS.format(callee=callee, blocks=found[1], size=found[2])
        kernel = f"\n#include <cooperative_groups.h>\n{kernel}"
    return (
        f"{kernel}\n#include <torch/extension.h>\ntorch::Tensor forward(torch::Tensor x, torch::Tensor) {{\n"
        f"    auto out = torch::zeros_like(x);\n    {call};\n    return out;\n}}\n"
    )


class Lab:
    """Builds on demand, and a child process that runs what was built."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "contract"
        self.folder.mkdir()
        (self.folder / "cpp_source.cpp").write_text(DECLARATION)
        self.builder = Builder(asyncio.run(find_toolchain(sys.executable)), root / "cache")
        self.child = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "emulated_child.py")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def build(self, source: str, folder: Path | None = None) -> Build | Failure:
        # A semaphore belongs to the loop that first waits for it: each build gets a fresh builder over one cache.
        builder = Builder(self.builder.toolchain, self.builder.cache.root)
        return asyncio.run(build_emulated(builder, folder or self.folder, source))

    def run(self, build: Build | Failure, case: str, index: int = 0, *, values: bool = False, **env: str) -> dict:
        assert isinstance(build, Build), build
        request = {"extension": build.extension, "module": build.module, "case": case, "index": index, "env": env,
                   "values": values}
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    pytest.importorskip("torch", reason="the emulator's tensors are torch's")
    made = Lab(tmp_path_factory.mktemp("emulate"))
    yield made
    made.child.stdin.close()
    made.child.wait(timeout=60)


@pytest.mark.parametrize(("name", "pairs", "tolerance"), CASES, ids=[case[0] for case in CASES])
def test_kernel_agrees_with_torch_in_both_orders(lab, name, pairs, tolerance):
    build = lab.build((KERNELS / f"{name}.cu").read_text())
    for index in range(pairs):
        for env in ({}, {"HIERA_EMU_ORDER": "reversed"}):
            answer = lab.run(build, name, index, **env)

            assert "raised" not in answer, answer
            assert answer["error"] is not None, answer
            assert answer["error"] <= tolerance, answer


def test_build_is_an_extension_of_tier_emulated_and_comes_from_the_cache_next_time(lab):
    source = (KERNELS / "elementwise.cu").read_text()
    first, second = lab.build(source), lab.build(source)

    assert (first.tier, second.cached, second.extension) == ("emulated", True, first.extension)
    assert Path(first.extension).exists()


def test_binding_with_a_module_of_its_own_and_device_checks(lab, tmp_path):
    (tmp_path / "cpp_source.cpp").write_text(WITH_MODULE)
    build = lab.build((KERNELS / "host_checks.cu").read_text(), tmp_path)

    assert lab.run(build, "host_checks")["error"] == 0


def test_missing_barrier_shows_as_a_difference_between_the_orders(lab):
    build = lab.build(broken("race"))
    forward = lab.run(build, "race", values=True)["values"]
    backward = lab.run(build, "race", values=True, HIERA_EMU_ORDER="reversed")["values"]

    assert forward != backward
    assert "nan" in forward  # The tile was read before it was written.


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("missing lanes", ("kernel partial", "cuda_source.cu:12", "mask ffffffff", "__shfl_down_sync at line 5")),
        ("split barrier", ("kernel split", "different barriers", "line 2", "line 4")),
        ("wild pointer", ("kernel wild", "thread (7,0,0)", "invalid memory access")),
        ("too many threads", ("kernel nothing", "more than 1024 threads", "block (2048,1,1)")),
        ("shared without opt-in", ("cudaFuncSetAttribute",)),
        ("beyond shared", ("kernel beyond", "wrote at byte 128", "gives it 128 bytes")),
        ("cluster too early", ("block (0,0,0) reaches into", "of its cluster of 2", "may not run yet: cluster.sync()")),
        ("cluster too late", ("block (1,0,0) reaches into", "may have ended: cluster.sync()")),
        ("cluster of part", ("24 of 64 live threads wait at __syncthreads and 40 at a cluster's barrier",)),
        ("broken cluster", ("the grid is no multiple of the cluster (2,1,1)", "grid (5,1,1)")),
        ("wide cluster", ("clusters of more than 8 blocks need cudaFuncAttributeNonPortableClusterSizeAllowed",)),
    ],
)
def test_rule_breaker_is_told_where(lab, name, parts):
    raised = lab.run(lab.build(broken(name)), name)["raised"]

    assert [part for part in parts if part not in raised] == [], raised


@pytest.mark.parametrize(("name", "place"), [("endless", "thread (0,0,0): "), ("endless with barriers", "at line 2: ")])
def test_kernel_that_never_ends_is_stopped(lab, name, place):
    raised = lab.run(lab.build(broken(name)), name, HIERA_EMU_LIMIT_S="0.2")["raised"]

    assert "kernel spin" in raised
    assert f"{place}did not end within 0.2 s" in raised


def test_process_works_on_after_a_broken_kernel(lab):
    lab.run(lab.build(broken("wild pointer")), "wild pointer")

    assert lab.run(lab.build((KERNELS / "row_sum.cu").read_text()), "row_sum")["error"] < 1e-4


def test_unwritten_shared_memory_reads_as_nan(lab):
    values = lab.run(lab.build(broken("unwritten shared")), "unwritten shared", values=True)["values"]

    assert values[:64] == ["nan"] * 64


def test_compile_error_names_the_line_of_the_source(lab):
    source = (KERNELS / "host_checks.cu").read_text().replace("staged[threadIdx.x] = x[i];", "staged[threadIdx.x] = z[i];")
    failure = lab.build(source)

    assert isinstance(failure, Failure)
    assert failure.errors[0].line == source[: source.index("z[i]")].count("\n") + 1
    assert failure.reason.startswith("cannot be run without a GPU")


def test_entry_with_another_signature_is_refused(lab):
    source = broken("race").replace("torch::Tensor x, torch::Tensor)", "torch::Tensor x, int64_t)")
    failure = lab.build(source)

    assert isinstance(failure, Failure)
    assert "cpp_source.cpp declares forward" in failure.reason


def test_what_cannot_be_emulated_is_refused_before_any_compiling(lab):
    source = broken("race").replace("__shared__ float tile[256];", '__shared__ float tile[256]; asm volatile("bar.sync 1;");')
    failure = lab.build(source)

    assert failure.reason == "cannot be run without a GPU: the source uses inline PTX"

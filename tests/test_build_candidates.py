"""Real builds with nvcc: spaces, error lines, cache, kill, parallel runs, loading under the CPU torch."""

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from contracts.errors import ContractError, ToolError
from engine.evaluate import build as build_module
from engine.evaluate import compiler, sandbox
from engine.evaluate.build import Builder, architecture
from engine.evaluate.libraries import find_library
from engine.records import Build, Failure
from engine.toolchain import Toolchain, find_toolchain
from tests import build_sources as sources

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()), reason="nvcc is not installed"
    ),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """One cache for all tests of this file: the runtime library is built once."""
    return tmp_path_factory.mktemp("builds")


@pytest.fixture
async def toolchain() -> Toolchain:
    found = await find_toolchain(sys.executable)
    if found.torch_dir is None:
        pytest.skip("this interpreter has no torch")
    return found


@pytest.fixture
def builder(toolchain, cache) -> Builder:
    return Builder(toolchain, cache)


def folder(tmp_path: Path, binding: str, **more: str) -> Path:
    (tmp_path / "cpp_source.cpp").write_text(binding)
    for name, text in more.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    return tmp_path


def fresh(source: str) -> str:
    """`source` with a text of its own, so that no cache knows it."""
    return source + f"// {time.time_ns()}\n"


def python(build: Build, code: str) -> subprocess.CompletedProcess:
    """Run `code` with the extension as `m`, in a process of its own, loaded as a worker loads it."""
    text = f"""
import importlib.machinery, importlib.util, torch
torch.set_num_threads(1)
loader = importlib.machinery.ExtensionFileLoader({build.module!r}, {build.extension!r})
spec = importlib.machinery.ModuleSpec({build.module!r}, loader, origin={build.extension!r})
m = importlib.util.module_from_spec(spec)
loader.exec_module(m)
{textwrap.dedent(code)}
"""
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


async def test_own_kernels_build_light_with_facts_and_warnings(builder, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    source = fresh(sources.SPACE_CUDA.replace("x = x.contiguous();", "int unused_value; x = x.contiguous();"))
    build = await builder.build(where, source, space="cuda", sm="9.0")
    assert isinstance(build, Build), build
    assert build.tier == "light"
    assert build.compiled_for == "sm_90a"
    (kernel,) = build.kernels
    assert kernel.name == "row_sum<128>"
    assert 8 <= kernel.registers <= 255
    assert kernel.shared_bytes == 16
    assert kernel.spill_bytes == 0
    line = source[: source.index("unused_value")].count("\n") + 1
    assert any(text.startswith(f"line {line}:") and "unused_value" in text for text in build.warnings)
    done = python(build, "print(m.row_sum_forward.__name__)\nm.row_sum_forward(torch.zeros(2, 4))")
    assert "row_sum_forward" in done.stdout
    assert "RuntimeError: x must be a CUDA tensor, got cpu" in done.stderr


async def test_same_text_comes_from_the_cache(builder, toolchain, cache, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    source = fresh(sources.SPACE_CUDA)
    first = await builder.build(where, source, space="cuda", sm="9.0")
    again = await Builder(toolchain, cache).build(where, source, space="cuda", sm="9.0")
    assert not first.cached
    assert again.cached
    assert again.seconds < 0.5
    assert dataclasses.replace(again, cached=False, seconds=first.seconds) == first
    other = await builder.build(where, source, space="cuda", sm="8.0")
    assert not other.cached
    assert other.extension != first.extension


async def test_aten_host_code_gives_torchs_own_results(builder, tmp_path):
    where = folder(tmp_path, sources.BINDING_TORCH)
    build = await builder.build(where, sources.SPACE_TORCH, space="cuda_libs_torch", sm="9.0")
    assert isinstance(build, Build), build
    assert build.tier == "light"
    done = python(build, """
        import torch.nn.functional as F
        x, w, b = torch.randn(8, 16), torch.randn(12, 16), torch.randn(12)
        for bias in (b, None):
            h = F.linear(x, w, bias)
            q = F.layer_norm(h.softmax(-1), [12])
            r = (q * 2.0 + h.mean(-1, keepdim=True)).sum(0, keepdim=True).expand_as(h).contiguous()
            y, v = m.forward(x, w, bias, 0.1)
            assert torch.equal(y, F.leaky_relu(r, 0.1))
            assert torch.equal(v, torch.cat([r, -r], 1).max(1)[0] + 0.5 - x[0][0])
        for _ in range(2000):
            m.forward(x, w)
        try:
            m.forward(x, torch.zeros(3, 5))
        except RuntimeError as error:
            assert "mat1 and mat2 shapes cannot be multiplied" in str(error)
        else:
            raise AssertionError("no error")
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("space", ["cuda", "cuda_libs"])
async def test_smaller_spaces_refuse_aten_operators_by_name(builder, tmp_path, space):
    where = folder(tmp_path, sources.BINDING_TORCH)
    failure = await builder.build(where, sources.SPACE_TORCH, space=space, sm="9.0")
    assert isinstance(failure, Failure)
    assert failure.stage == "screen"
    assert "at::" in failure.reason
    assert "cuda_libs_torch" in failure.reason
    named = " ".join(error.message for error in failure.errors)
    assert "at::linear" in named
    assert "at::cat" in named


async def test_metadata_accessors_and_errors_match_torch(builder, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_HOST)
    build = await builder.build(where, sources.HOST_ONLY, space="cuda", sm="9.0")
    assert isinstance(build, Build), build
    done = python(build, """
        x = torch.randn(3, 5, requires_grad=True)
        y = m.twice_forward(x, 1)
        assert torch.equal(y, x * 2) and not y.requires_grad
        for bad, text in ((x.t(), "x must be contiguous"), (x.double(), "expected float, got double"),
                          (x, "Dimension out of range")):
            try:
                m.twice_forward(bad, 7)
            except (RuntimeError, IndexError) as error:
                assert text in str(error).replace("Double", "double"), error
            else:
                raise AssertionError(text)
    """)
    assert done.returncode == 0, done.stderr


async def test_library_calls_link_only_where_the_space_allows(builder, toolchain, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_LIBS)
    build = await builder.build(where, sources.SPACE_LIBS, space="cuda_libs", sm="9.0")
    if find_library(toolchain, "cublas") is None:
        assert isinstance(build, Failure)
        assert "cublas" in build.reason
        return
    assert isinstance(build, Build), build
    failure = await builder.build(where, sources.SPACE_LIBS, space="cuda", sm="9.0")
    assert isinstance(failure, Failure)
    assert "cuBLAS" in failure.reason
    assert "cuda_libs" in failure.reason


async def test_errors_carry_the_users_own_lines_quickly(builder, tmp_path):
    where = folder(tmp_path, "torch::Tensor run(torch::Tensor x);\n")
    await builder.prepare(where)
    bad = textwrap.dedent("""\
        #include <torch/extension.h>
        __global__ void k(float* p, int n) {
          int i = threadIdx.x;
          p[i] = undeclared_thing + n;
        }
        torch::Tensor run(torch::Tensor x) {
          k<<<1, 32>>>(x.data_ptr<float>(), 3);
          return torch::no_such_op(x);
        }
    """)
    failure = await builder.build(where, bad, space="cuda", sm="9.0")
    assert isinstance(failure, Failure)
    assert failure.stage == "build"
    assert [error.line for error in failure.errors] == [4, 8]
    assert failure.reason == 'cuda_source.cu:4: identifier "undeclared_thing" is undefined'
    assert "no_such_op" in failure.errors[1].message


async def test_too_much_shared_memory_names_the_kernels_line(builder, tmp_path):
    where = folder(tmp_path, "void run();\n")
    source = textwrap.dedent("""

        __global__ void huge(float* p) {
          __shared__ float s[80000];
          s[threadIdx.x] = p[0];
          __syncthreads();
          p[threadIdx.x] = s[31 - threadIdx.x];
        }
        void run() { huge<<<1, 32>>>(nullptr); }
    """)
    failure = await builder.build(where, source, space="cuda", sm="9.0")
    assert isinstance(failure, Failure)
    assert failure.errors[0].line == 3
    assert "too much shared data" in failure.errors[0].message


async def test_wrong_signature_is_told_with_both(builder, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA.replace("torch::Tensor x)", "torch::Tensor x, double a)"))
    failure = await builder.build(where, sources.SPACE_CUDA, space="cuda", sm="9.0")
    assert isinstance(failure, Failure)
    assert "row_sum_forward(at::Tensor, double)" in failure.reason
    assert "it defines row_sum_forward(at::Tensor)" in failure.reason


async def test_broken_binding_names_file_and_line(builder, tmp_path):
    where = folder(tmp_path, "\n\ntorch::Tensor row_sum_forward(torch::Tensr x);\n")
    with pytest.raises(ContractError) as caught:
        await builder.prepare(where)
    assert caught.value.line == 3
    assert caught.value.file.endswith("cpp_source.cpp")
    with pytest.raises(ContractError, match="declares no function"):
        await builder.prepare(folder(tmp_path, "#include <torch/extension.h>\n"))
    (tmp_path / "cpp_source.cpp").unlink()
    with pytest.raises(ContractError, match=r"no cpp_source\.cpp"):
        await builder.build(tmp_path, sources.SPACE_CUDA, space="cuda", sm="9.0")


async def test_local_headers_of_the_contract_are_found_and_part_of_the_key(builder, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA, tile__cuh="#define TILE 128\n")
    source = fresh('#include "tile.cuh"\n' + sources.SPACE_CUDA.replace("row_sum<128><<<", "row_sum<TILE><<<"))
    first = await builder.build(where, source, space="cuda", sm="9.0")
    assert isinstance(first, Build), first
    (where / "tile.cuh").write_text("#define TILE 64\n")
    second = await builder.build(where, source, space="cuda", sm="9.0")
    assert not second.cached
    assert second.kernels[0].name == "row_sum<64>"


async def test_compile_only_needs_no_binding(builder):
    build = await builder.compile_only(sources.SPACE_CUDA, "9.0")
    assert isinstance(build, Build), build
    assert build.tier == "compile only"
    assert build.extension is None
    assert build.kernels[0].name == "row_sum<128>"


async def test_parallel_builds_share_the_cores(toolchain, cache, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    builder = Builder(toolchain, cache, jobs=2)
    texts = [fresh(sources.SPACE_CUDA) + f"// {n}\n" for n in range(3)]
    built = await asyncio.gather(*(builder.build(where, text, space="cuda", sm="9.0") for text in (*texts, texts[0])))
    assert all(isinstance(build, Build) for build in built), built
    assert len({build.extension for build in built}) == 3
    assert not any(builder.cache.work.iterdir())


async def test_killed_build_leaves_nothing_that_blocks_the_next(builder, toolchain, cache, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    source = fresh(sources.SPACE_CUDA)
    (where / "candidate.cu").write_text(source)
    script = f"""
import asyncio, sys
from pathlib import Path
from engine.toolchain import find_toolchain
from engine.evaluate.build import Builder
async def main():
    builder = Builder(await find_toolchain({toolchain.python!r}), Path({str(cache)!r}))
    where = Path({str(where)!r})
    print("started", flush=True)
    await builder.build(where, (where / "candidate.cu").read_text(), space="cuda", sm="9.0")
asyncio.run(main())
"""
    root = Path(__file__).parent.parent
    child = subprocess.Popen(  # noqa: ASYNC220 - the test kills it.
        [sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"started\n"
    work = cache / "work"
    for _ in range(200):
        if any(path.name.startswith(f"{child.pid}-") for path in work.iterdir()):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("the child never began to build")
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert any(path.name.startswith(f"{child.pid}-") for path in work.iterdir())
    async with asyncio.timeout(120):
        build = await Builder(toolchain, cache).build(where, source, space="cuda", sm="9.0")
    assert isinstance(build, Build), build
    assert not build.cached
    assert not any(path.name.startswith(f"{child.pid}-") for path in work.iterdir())


async def test_cancelled_build_ends_its_compiler(builder, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    await builder.prepare(where)
    task = asyncio.create_task(builder.build(where, fresh(sources.SPACE_CUDA), space="cuda", sm="9.0"))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(builder.cache.work.iterdir())


async def test_damaged_cache_entry_is_built_again(builder, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    source = fresh(sources.SPACE_CUDA)
    first = await builder.build(where, source, space="cuda", sm="9.0")
    (Path(first.extension).parent / "build.json").write_text("{")
    again = await builder.build(where, source, space="cuda", sm="9.0")
    assert isinstance(again, Build), again
    assert not again.cached
    assert (await builder.build(where, source, space="cuda", sm="9.0")).cached


async def test_compile_bomb_is_stopped(builder, tmp_path, monkeypatch):
    where = folder(tmp_path, "void run();\n")
    monkeypatch.setattr("engine.evaluate.build.TIMEOUT_S", 3.0)
    bomb = textwrap.dedent("""
        template <int A, int B> struct F { static constexpr long v = F<A - 1, 2 * B>::v + F<A - 1, 2 * B + 1>::v; };
        template <int B> struct F<0, B> { static constexpr long v = B; };
        void run() { static_assert(F<24, 1>::v > 0); }
    """)
    failure = await builder.build(where, bomb, space="cuda", sm="9.0")
    assert isinstance(failure, Failure)
    assert failure.stage == "build"


async def test_missing_nvcc_is_a_tool_error(toolchain, cache, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    without = dataclasses.replace(toolchain, nvcc=None, nvcc_problem="nvcc was not found")
    with pytest.raises(ToolError, match="nvcc was not found"):
        await Builder(without, cache).build(where, sources.SPACE_CUDA, space="cuda", sm="9.0")
    other = dataclasses.replace(toolchain, nvcc_problem="nvcc 12.4 does not fit torch, which was built with CUDA 13.0")
    with pytest.raises(ToolError, match="does not fit torch"):
        await Builder(other, cache).build(where, sources.SPACE_CUDA, space="cuda", sm="9.0")


ISOLATIONS = ["bubblewrap", "landlock and seccomp", "network namespace", "resource limits only"]


async def isolated(monkeypatch, name: str) -> sandbox.Isolation:
    """Let every build run in this isolation, or skip the test."""
    for choice in [*sandbox._choices(), sandbox.LIMITS_ONLY]:
        if choice.name == name and await sandbox._works(choice):
            monkeypatch.setattr(sandbox, "_known", [choice])
            return choice
    pytest.skip(f"{name} does not work on this machine")
    return sandbox.LIMITS_ONLY


@pytest.mark.parametrize("name", ISOLATIONS)
async def test_builds_run_in_every_isolation(builder, tmp_path, monkeypatch, name):
    choice = await isolated(monkeypatch, name)
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    build = await builder.build(where, fresh(sources.SPACE_CUDA), space="cuda", sm="9.0")
    assert isinstance(build, Build), build
    assert sandbox._known == [choice], "it was given up for a weaker one"
    work = tmp_path / "work"
    work.mkdir()
    secret, outside = tmp_path / "groundtruth.py", tmp_path / "outside"
    secret.write_text("the answer")
    script = (f"cat {secret}; touch {outside}; "
              f"{sys.executable} -c 'import socket; socket.create_connection((\"127.0.0.1\", 9), 1)'")
    done = await compiler.compile_in(work, ["/bin/sh", "-c", script], readable=[sys.prefix, sys.base_prefix])
    if choice.private_files:
        assert "the answer" not in done.log
        assert not outside.exists()
    if choice.kind == "landlock":
        assert "PermissionError" in done.log


@pytest.mark.parametrize("name", ISOLATIONS[:2])
@pytest.mark.parametrize("line", ['#include "/etc/passwd"', '#include "SECRET"', 'asm(".incbin \"SECRET\"");'])
async def test_a_source_cannot_read_what_it_is_not_shown(builder, tmp_path, monkeypatch, name, line):
    await isolated(monkeypatch, name)
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    secret = tmp_path / "groundtruth.py"
    secret.write_text("the_answer is = 42;\n")
    source = fresh(sources.SPACE_CUDA + line.replace("SECRET", str(secret)) + "\n")
    found = await builder.build(where, source, space="cuda", sm="9.0")
    assert isinstance(found, Failure), "it was read"
    assert "root:" not in found.log_tail
    assert "the_answer" not in found.log_tail


BOMBS = {
    "memory": "template <int N> struct B { B<N - 1> a; B<N - 1> b; static constexpr int v = B<N - 1>::v + N; };\n"
              "template <> struct B<0> { static constexpr int v = 0; char c; };\n"
              "template <unsigned long long N> struct D { using L = typename D<2 * N>::L; using R = typename "
              "D<2 * N + 1>::L; };\nstatic_assert(sizeof(D<1>) && D<1>::L::v);\n",
    "time": "constexpr unsigned long long f(unsigned long long n) { unsigned long long s = 0; "
            "while (n) s += n * n; return s; }\nstatic_assert(f(7) != 1);\n",
    "output": "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(x)))\n"
              "__device__ const char bomb[] = B(B(\"0123456789\"));\n",
}


@pytest.mark.parametrize("kind", BOMBS)
async def test_a_compile_bomb_costs_its_own_build_only(builder, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(build_module, "TIMEOUT_S", 8.0)
    monkeypatch.setattr(compiler, "MEMORY_BYTES", 1 << 30)
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    await builder.prepare(where)
    began = time.monotonic()
    found = await builder.build(where, fresh(BOMBS[kind] + sources.SPACE_CUDA), space="cuda", sm="9.0")
    assert isinstance(found, Failure)
    assert time.monotonic() - began < 60
    assert list((builder.cache.work).iterdir()) == []


@pytest.mark.slow
async def test_a_name_only_torch_has_falls_back_to_its_headers(builder, tmp_path):
    where = folder(tmp_path, "int64_t storage_bytes(torch::Tensor x);\n")
    source = textwrap.dedent("""
        #include <torch/extension.h>
        int64_t storage_bytes(torch::Tensor x) { return x.storage().nbytes(); }
        PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("storage_bytes", &storage_bytes, py::arg("x")); }
    """)
    build = await builder.build(where, source, space="cuda_libs_torch", sm="9.0")
    assert isinstance(build, Build), build
    assert build.tier == "torch"
    done = python(build, "print(m.storage_bytes(torch.zeros(8)))")
    assert done.stdout.strip() == "32", done.stderr


async def test_build_record_survives_json(builder, tmp_path):
    where = folder(tmp_path, sources.DECLARATION_CUDA)
    build = await builder.build(where, sources.SPACE_CUDA, space="cuda", sm="9.0")
    data = json.loads((Path(build.extension).parent / "build.json").read_text())
    assert data["kernels"][0]["name"] == "row_sum<128>"


@pytest.mark.parametrize(("sm", "expected"), [("9.0", "90a"), ("8.6", "86"), ("sm_100", "100a"), ("12.0", "120a"), ("90a", "90a")])
def test_architecture_takes_the_device_specific_variant(sm, expected):
    assert architecture(sm) == expected

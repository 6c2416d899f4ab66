"""Bindings, operator declarations, tiers, toolchain and cache, without nvcc."""

import asyncio
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import ConfigError, ContractError, ToolError
from engine import processes
from engine import toolchain as toolchains
from engine.evaluate import libraries, operators, tiers
from engine.evaluate.binding import read_binding
from engine.evaluate.cache import BuildCache, text_key
from engine.evaluate.prepare import INCLUDE


def binding(tmp_path, text):
    (tmp_path / "cpp_source.cpp").write_text(text)
    return read_binding(tmp_path / "cpp_source.cpp")


def test_a_bare_declaration_gets_a_module(tmp_path):
    made = binding(tmp_path, "// torch::Tensor no(int);\ntorch::Tensor f(torch::Tensor x,\n  double a = f2(1));\n")
    assert made.exported == made.declared == ("f",)
    assert 'm.def("f", &f);' in made.text
    assert "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)" in made.text


def test_several_declarations_and_tuples(tmp_path):
    made = binding(
        tmp_path,
        "#include <torch/extension.h>\n#include <tuple>\nusing T = torch::Tensor;\n"
        "std::tuple<T, std::vector<T>> f(const T& x, std::optional<T> b);\nextern void g(T x);\n"
        "std::vector<at::Tensor>\nh(at::TensorList xs);\n",
    )
    assert made.exported == ("f", "g", "h")


def test_a_whole_module_is_used_as_it_is(tmp_path):
    made = binding(
        tmp_path,
        "#include <torch/extension.h>\ntorch::Tensor launch(torch::Tensor x);\n"
        "torch::Tensor forward(torch::Tensor x) { if (x.dim()) { return launch(x); } return x; }\n"
        'PYBIND11_MODULE(my_name, m) { m.def("forward", &forward); m.def("run", [](int a) { return a; }); }\n',
    )
    assert made.module == "my_name"
    assert made.exported == ("forward", "run")
    assert made.declared == ("launch",)
    assert made.text.count("PYBIND11_MODULE") == 1


def test_wrappers_without_a_module_are_what_is_exported(tmp_path):
    made = binding(tmp_path, "void launch(float* p);\ntorch::Tensor f(torch::Tensor x) { launch(0); return x; }\n")
    assert made.exported == ("f",)
    assert made.declared == ("launch",)


def test_no_function_is_an_error(tmp_path):
    with pytest.raises(ContractError, match="declares no function"):
        binding(tmp_path, "struct A { int x; };\nusing B = A;\n")


async def test_operator_index_is_read_once_and_survives_damage(toolchain, tmp_path):
    cache = tmp_path / "operators.json"
    index = operators.load_index(toolchain.torch_include, cache)
    assert len(index.structs) > 2000
    assert {"conv2d", "softmax", "empty_like"} <= index.functions.keys()
    assert {"sum", "view", "item"} <= index.methods.keys()
    assert operators.load_index(Path("/nowhere"), cache) == index
    cache.write_text("{")
    assert operators.load_index(toolchain.torch_include, cache) == index
    with pytest.raises(ToolError, match="headers cannot be read"):
        operators.read_index(tmp_path)


async def test_only_named_operators_are_declared(toolchain, tmp_path):
    index = operators.load_index(toolchain.torch_include, tmp_path / "operators.json")
    made = operators.headers(index, "auto y = at::relu(x).sum(); std::string s; y = torch::cat({y});")
    assert "relu::call" in made.definitions
    assert "sum::call" in made.definitions
    assert "hm_cat" in made.definitions
    assert "conv2d" not in made.definitions
    assert "#include <string>" in made.declarations
    assert "_version" not in made.declarations + made.definitions
    made = operators.headers(index, "x._version()")
    assert "int64_t _version() const;" in made.declarations
    assert "struct _version " in made.definitions
    operators.write_headers(index, "#include <ATen/ops/matmul.h>\n", tmp_path / "out")
    assert (tmp_path / "out" / "ATen" / "ops" / "matmul.h").exists()


@pytest.mark.parametrize(("source", "needed"), [
    ("copy.expand(x.sizes()); rand(1);", False), ("AT_DISPATCH_FLOATING_TYPES(t, n, f);", False),
    ("AT_DISPATCH_ALL_TYPES_AND2(a, b, t, n, f);", True), ("AT_DISPATCH_REDUCED_FLOATING_TYPES(t, n, f);", True),
    ("AT_DISPATCH_FLOATING_TYPES_AND_HALF(t, n, f);", True), ("__half h;", True), ("c10::BFloat16 b;", True),
])
def test_the_16_bit_types_come_only_where_they_are_needed(source, needed):
    made = operators.headers(operators.OperatorIndex({}, {}, {}, {}), source)
    assert ("HIERA_MINI_HALF" in made.declarations) == needed


async def test_every_shadow_header_has_a_real_one(toolchain):
    roots = (toolchain.torch_include, toolchain.torch_include / "torch" / "csrc" / "api" / "include")
    for path in INCLUDE.rglob("*.h"):
        name = path.relative_to(INCLUDE)
        if name.parts[0] in {"torch", "ATen", "c10", "pybind11"}:
            assert any((root / name).exists() for root in roots), name


async def test_own_methods_are_not_declared_twice(toolchain, tmp_path):
    index = operators.load_index(toolchain.torch_include, tmp_path / "operators.json")
    text = (INCLUDE / "hiera_mini" / "tensor.h").read_text()
    body = text[text.index("class Tensor {"): text.index("#ifdef HM_METHOD_DECLS")]
    own = set(re.findall(r"^  [\w:&<>* ]+? (\w+)\([^\n]*\) const", body, re.M))
    assert "is_contiguous" in own
    assert own & index.methods.keys() <= operators._OWN_METHODS


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
async def test_every_declared_operator_is_exported_by_libtorch(toolchain, tmp_path):
    """The light headers' whole surface against this torch: names that would fail only when loaded."""
    cuda = Path(toolchain.cuda_home or "/usr/local/cuda") / "include"
    if not (cuda / "cuda_runtime.h").exists():
        pytest.skip("no CUDA headers")
    index = operators.load_index(toolchain.torch_include, tmp_path / "operators.json")
    (tmp_path / "hiera_ops_decl.h").write_text("#pragma once\n#include <string>\n")
    declared = "".join(f"struct {name} {{ static {call}; }};\n" for name, call in index.structs.items())
    (tmp_path / "hiera_ops.h").write_text(f"#pragma once\nnamespace at {{ namespace _ops {{\n{declared}}} }}\n")
    table = "".join(f"(void*)&at::_ops::{name}::call,\n" for name in index.structs)
    (tmp_path / "all.cpp").write_text(f"#include <hiera_mini/all.h>\nvoid* table[] = {{\n{table}}};\n")
    target = tmp_path / "all.o"
    subprocess.run(  # noqa: ASYNC221 - nothing else runs.
        ["g++", "-std=c++17", f"-I{tmp_path}", f"-I{INCLUDE}", f"-I{cuda}", "-c",
         str(tmp_path / "all.cpp"), "-o", str(target)], check=True, timeout=100,
    )
    wanted = {line.split()[-1] for line in run("nm", "-u", str(target)) if "_ops" in line}
    exported = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only",
                                                               str(toolchain.torch_lib / "libtorch_cpu.so"))}
    assert len(wanted) == len(index.structs)
    assert not wanted - exported


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


async def test_only_names_that_torch_has_are_worth_its_headers(toolchain):
    async def needs(log, source=""):
        return await tiers.needs_torch_headers(log, source, toolchain)

    assert await needs('cuda_source.cu(2): error: class "at::Tensor" has no member "storage"')
    assert not await needs('cuda_source.cu(2): error: class "at::Tensor" has no member "no_such_thing_at_all"')
    assert not await needs('cuda_source.cu(2): error: identifier "undeclared_thing" is undefined')
    assert await needs("cuda_source.cu:1:10: fatal error: ATen/cuda/Atomic.cuh: No such file or directory")
    assert not await needs("cuda_source.cu:1:10: fatal error: ATen/cuda/Nope.cuh: No such file or directory")
    message = 'cuda_source.cu(2): error: name followed by "::" must be a class or namespace name'
    assert await needs(message, "torch::nn::functional::relu(x)")
    assert not await needs(message, "tourch::relu(x)")


def test_newer_language_only_where_the_text_uses_it():
    assert tiers.standard_of("template <typename T> void f();", "c++17") == "c++17"
    for text in ("template <class T> concept C = true;", "auto f = []<typename T>(T x) {};", "#include <span>\n", "a <=> b"):
        assert tiers.standard_of(text, "c++17") == "c++20"


def test_libraries_are_told_by_their_functions():
    assert libraries.library_of("cublasLtMatmul") == "cuBLASLt"
    assert libraries.library_of("cublasSgemm_v2") == "cuBLAS"
    assert libraries.library_of("cudnnCreate") == "cuDNN"
    assert libraries.library_of("cudaMalloc") is None


async def test_the_copy_that_torch_uses_is_found_first(toolchain, tmp_path):
    site = tmp_path / "site-packages"
    for name in ("libcudart.so.12", "libcudart.so.13", "libcublas.so.13"):
        path = site / "nvidia" / "cu13" / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    header = site / "nvidia" / "cu13" / "include" / "cublas_v2.h"
    header.parent.mkdir()
    header.touch()
    found = dataclasses.replace(toolchain, site_packages=(str(site),), torch_cuda="12.8")
    assert libraries.find_library(found, "cudart").name == "libcudart.so.12"
    found = dataclasses.replace(found, torch_cuda="13.0")
    assert libraries.find_library(found, "cudart").name == "libcudart.so.13"
    assert libraries.find_library(found, "cublas") == site / "nvidia" / "cu13" / "lib" / "libcublas.so.13"
    assert libraries.find_library(found, "nothing") is None
    assert header.parent in libraries.include_folders(found, cutlass=False)


async def test_toolchain_is_found_without_importing_torch(toolchain):
    assert toolchain.torch_version
    assert (toolchain.torch_include / "ATen").is_dir()
    assert toolchain.ext_suffix.endswith(".so")
    code = (
        "import asyncio, sys\nfrom engine.toolchain import find_toolchain\n"
        "asyncio.run(find_toolchain(sys.executable))\nprint('torch' in sys.modules)"
    )
    seen = subprocess.run(  # noqa: ASYNC221 - nothing else runs.
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert seen.stdout.strip() == "False"


async def test_an_nvcc_that_does_not_fit_torch_is_said_so(tmp_path, monkeypatch):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(toolchains, "_nvcc_paths", lambda _: iter([nvcc]))
    path, version, problem = await toolchains._find_nvcc((), "13.0")
    assert (path, version) == (str(nvcc), "11.8")
    assert problem == "nvcc 11.8 does not fit torch, which was built with CUDA 13.0"
    assert (await toolchains._find_nvcc((), None))[2] == ""
    monkeypatch.setattr(toolchains, "_nvcc_paths", lambda _: iter([]))
    assert (await toolchains._find_nvcc((), None))[0] is None


def fake_python(path, *, torch):
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\nexit {0 if torch else 1}\n")
    path.chmod(0o755)
    return path


def test_the_interpreter_with_torch_is_chosen(tmp_path, monkeypatch):
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    active = fake_python(tmp_path / "active" / "bin" / "python", torch=False)
    near = fake_python(tmp_path / "project" / ".venv" / "bin" / "python", torch=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    found, why = toolchains.find_python(tmp_path / "project" / "src" / "model.py", None)
    assert found == str(near)
    assert ".venv" in why
    fake_python(tmp_path / "other" / "python", torch=True)
    assert toolchains.find_python(tmp_path, str(tmp_path / "other" / "python"))[1] == "configured"
    with pytest.raises(ConfigError, match="has no torch"):
        toolchains.find_python(tmp_path, str(active))
    with pytest.raises(ConfigError, match="is not there"):
        toolchains.find_python(tmp_path, "/nowhere/python")
    monkeypatch.setattr(toolchains, "_has_torch", lambda _: False)
    with pytest.raises(ToolError, match=r"tried .*active"):
        toolchains.find_python(tmp_path, None)


async def test_a_broken_interpreter_is_a_tool_error(tmp_path):
    with pytest.raises(ToolError, match="does not work"):
        await toolchains.find_toolchain(str(fake_python(tmp_path / "bin" / "python", torch=False)))
    with pytest.raises(ToolError, match="cannot be run"):
        await toolchains.find_toolchain(str(tmp_path / "nothing"))


def test_cache_clears_what_dead_processes_left(tmp_path):
    cache = BuildCache(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (cache.work / f"{dead.pid}-0-1").mkdir()
    with cache.work_folder() as own:
        again = BuildCache(tmp_path)
        assert list(again.work.iterdir()) == [own]
        (own / "out").mkdir()
        (own / "out" / "a").write_text("1")
        final = cache.publish(own / "out", cache.builds / "key")
        (own / "out").mkdir()
        assert cache.publish(own / "out", cache.builds / "key") == final
        assert (final / "a").read_text() == "1"
    assert not list(cache.work.iterdir())


def test_cache_drops_the_longest_unused(tmp_path, monkeypatch):
    cache = BuildCache(tmp_path)
    for place, name in enumerate(("old", "new")):
        folder = cache.builds / name
        folder.mkdir()
        (folder / "x.so").write_bytes(b"x" * 100)
        os.utime(folder, (place, place))
    monkeypatch.setattr("engine.evaluate.cache.MAX_BYTES", 150)
    BuildCache(tmp_path)
    assert [path.name for path in cache.builds.iterdir()] == ["new"]


def test_keys_depend_on_where_parts_end():
    assert text_key("ab", "c") != text_key("a", "bc")


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.003, 0.01, 0.05])
async def test_a_tool_that_is_cancelled_while_it_starts_does_not_hang(delay_s):
    task = asyncio.create_task(processes.run(["sleep", "60"], timeout_s=60))
    await asyncio.sleep(delay_s)
    task.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await task

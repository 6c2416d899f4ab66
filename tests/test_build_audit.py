"""The symbol audit: spaces by what an object needs, and symbols that no space allows."""

import shutil
import subprocess
import textwrap

import pytest

from engine.evaluate.audit import NEVER, audit, judge, read_symbols

needs_compiler = pytest.mark.skipif(not (shutil.which("g++") and shutil.which("nm")), reason="no g++ or nm")


@pytest.mark.parametrize(
    ("mangled", "readable", "allowed_in"),
    [
        ("_ZN2at4_ops10empty_like4callE", "at::_ops::empty_like::call(at::Tensor const&)", None),
        ("_ZN2at4_ops19empty_memory_format4callE", "at::_ops::empty_memory_format::call(c10::ArrayRef<long>)", None),
        ("_ZN2at4_ops5zeros4callE", "at::_ops::zeros::call(c10::ArrayRef<c10::SymInt>)", None),
        ("_ZN2at4_ops4view4callE", "at::_ops::view::call(at::Tensor const&)", None),
        ("_ZN2at4_ops13transpose_int4callE", "at::_ops::transpose_int::call(at::Tensor const&, long, long)", None),
        ("_ZN2at4_ops13empty_strided4callE", "at::_ops::empty_strided::call()", None),
        ("_ZN2at4_ops6conv2d4callE", "at::_ops::conv2d::call(at::Tensor const&)", "cuda_libs_torch"),
        ("_ZN2at4_ops3sum4callE", "at::_ops::sum::call(at::Tensor const&)", "cuda_libs_torch"),
        ("_ZN2at4_ops3addE", "at::_ops::add_Tensor::call(at::Tensor const&)", "cuda_libs_torch"),
        ("_ZN2at4_ops8zeta_outE", "at::_ops::special_zeta::call(at::Tensor const&)", "cuda_libs_torch"),
        ("_ZN2at6native7softmaxE", "at::native::softmax(at::Tensor const&)", "cuda_libs_torch"),
        ("hm_cat", "hm_cat", "cuda_libs_torch"),
        ("hm_contiguous", "hm_contiguous", None),
        ("cublasSgemm_v2", "cublasSgemm_v2", "cuda_libs"),
        ("cublasLtMatmul", "cublasLtMatmul", "cuda_libs"),
        ("cudnnConvolutionForward", "cudnnConvolutionForward", "cuda_libs"),
        ("cufftExecC2C", "cufftExecC2C", "cuda_libs"),
        ("curandGenerate", "curandGenerate", "cuda_libs"),
        ("_ZN2at4cuda24getCurrentCUDABlasHandleEb", "at::cuda::getCurrentCUDABlasHandle(bool)", "cuda_libs"),
        ("_ZN2at4cuda26getCurrentDevicePropertiesEv", "at::cuda::getCurrentDeviceProperties()", None),
        ("cudaMemcpyAsync", "cudaMemcpyAsync", None),
        ("__cudaLaunchKernel", "__cudaLaunchKernel", None),
        ("cudaStreamBeginCapture", "cudaStreamBeginCapture", None),
        ("cudaDeviceReset", "cudaDeviceReset", NEVER),
        ("cudaIpcGetMemHandle", "cudaIpcGetMemHandle", NEVER),
        ("cuTensorMapEncodeTiled", "cuTensorMapEncodeTiled", None),
        ("cuMemGetAddressRange_v2", "cuMemGetAddressRange_v2", NEVER),
        ("PyRun_SimpleString", "PyRun_SimpleString", NEVER),
        ("_Py_Dealloc", "_Py_Dealloc", NEVER),
        *((name, name, NEVER) for name in (
            "fork", "execve", "socket", "connect", "dlopen", "dlsym", "open", "open64", "fopen", "ptrace", "setenv",
            "system", "pthread_create", "mmap", "mprotect", "syscall", "kill", "_exit", "signal", "nvrtcCompileProgram",
            "process_vm_writev", "unlink",
        )),
        *((name, name, None) for name in (
            "memcpy", "memset", "strlen", "snprintf", "printf", "malloc", "free", "exit", "expf", "tanhf", "pow", "sqrt",
            "__cxa_guard_acquire", "_Unwind_Resume", "__gxx_personality_v0", "stderr", "__assert_fail", "fmaxf",
            "lgamma", "__memcpy_chk", "atexit",
        )),
        ("_ZNSt6thread15_M_start_threadE", "std::thread::_M_start_thread(std::unique_ptr<std::thread::_State>)", NEVER),
        ("_ZNSt14basic_ifstreamIcE", "std::basic_ifstream<char>::basic_ifstream(char const*)", NEVER),
        ("_ZSt20__throw_length_errorPKc", "std::__throw_length_error(char const*)", None),
        ("_ZTISt13runtime_error", "typeinfo for std::runtime_error", None),
        ("_Znwm", "operator new(unsigned long)", None),
        ("_ZN3c105ErrorC1E", "c10::Error::Error(c10::SourceLocation, std::string)", None),
        ("_ZN3c1010Dispatcher", "c10::Dispatcher::realSingleton()", NEVER),
        ("_ZN2at7Context19setAllowTF32CuBLASEb", "at::Context::setAllowTF32CuBLAS(bool)", NEVER),
    ],
)
def test_each_symbol_has_its_smallest_space(mangled, readable, allowed_in):
    spaces = ["cuda", "cuda_libs", "cuda_libs_torch"]
    first = spaces.index(allowed_in) if allowed_in in spaces else (0 if allowed_in is None else len(spaces))
    for place, space in enumerate(spaces):
        findings = judge([(mangled, readable)], space)
        assert bool(findings) == (place < first), (space, findings)
        assert all(finding.allowed_in == allowed_in for finding in findings)


def compiled(tmp_path, text):
    source = tmp_path / "candidate.cpp"
    source.write_text(textwrap.dedent(text))
    target = tmp_path / "candidate.o"
    subprocess.run(["g++", "-std=c++17", "-O1", "-fPIC", "-c", str(source), "-o", str(target)], check=True)
    return target


@needs_compiler
async def test_an_object_that_opens_files_is_refused_by_name(tmp_path):
    target = compiled(tmp_path, """
        #include <fcntl.h>
        int f() { return open("/tmp/answer", O_RDONLY); }
    """)
    failure = audit(await read_symbols(target), "cuda_libs_torch")
    assert failure is not None
    assert failure.stage == "screen"
    assert "`open" in failure.reason


@needs_compiler
async def test_an_object_that_takes_the_bindings_entry_point_is_refused(tmp_path):
    target = compiled(tmp_path, 'extern "C" void* PyInit_hiera_ext() { return nullptr; }')
    failure = audit(await read_symbols(target), "cuda")
    assert failure is not None
    assert "PyInit_hiera_ext" in failure.reason


@needs_compiler
async def test_honest_host_code_passes_in_the_smallest_space(tmp_path):
    target = compiled(tmp_path, """
        #include <cmath>
        #include <cstdio>
        #include <map>
        #include <mutex>
        #include <stdexcept>
        #include <string>
        #include <unordered_map>
        #include <vector>
        static std::mutex mutex;
        static std::unordered_map<std::string, std::vector<int>> cache;
        double f(int n, const std::string& name) {
          std::lock_guard<std::mutex> lock(mutex);
          static std::map<int, double> values;
          if (n < 0) throw std::runtime_error("negative: " + std::to_string(n));
          cache[name].push_back(n);
          std::printf("%d", n);
          return values[n] += std::exp(n) + std::fmod(n, 3) + std::tanh(n);
        }
    """)
    assert audit(await read_symbols(target), "cuda") is None


@needs_compiler
async def test_loader_functions_pass_only_when_a_toolkit_header_brings_them(tmp_path):
    target = compiled(tmp_path, """
        #include <dlfcn.h>
        void* f() { return dlsym(dlopen("libcuda.so.1", 1), "x"); }
    """)
    assert audit(await read_symbols(target), "cuda", "#include <cub/cub.cuh>\n") is None
    assert audit(await read_symbols(target), "cuda", "#include <cub/cub.cuh>\nvoid* p = dlsym(nullptr, 0);") is not None
    assert audit(await read_symbols(target), "cuda", "int x;") is not None


@needs_compiler
async def test_symbols_are_read_in_pairs(tmp_path):
    target = compiled(tmp_path, "void b(int); namespace a { void c(double*); } void d() { b(1); a::c(nullptr); }")
    symbols = await read_symbols(target)
    assert dict(symbols.undefined)["_ZN1a1cEPd"] == "a::c(double*)"
    assert symbols.defined["_Z1dv"] == "d()"

"""CUDA text to host text: launches and shared memory are rewritten, lines stay, blockers are named."""

from pathlib import Path

import pytest

from engine.evaluate.cuda_to_host import blockers, transform

KERNELS = sorted((Path(__file__).parent / "data" / "kernels").glob("*.cu"))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_lines_stay_and_nothing_of_cuda_syntax_is_left(path):
    before = path.read_text()
    after = transform(before)

    assert after.count("\n") == before.count("\n")
    assert "<<<" not in after
    assert blockers(before) == ()


def launch(shown, callee, configuration):
    return (
        f'::hiera_emu::launch({{"{shown}", __FILE__, __LINE__}}, '
        f"[&](auto... hiera_a) {{ {callee}(hiera_a...); }}, {configuration})"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("k<<<g, b>>>(x);", launch("k", "k", "g, b") + "(x);"),
        ("ns::k<float, (N > 2)><<<dim3(1, 2), 32, n >> 2, s>>>(x);",
         launch("ns::k<float, (N > 2)>", "ns::k<float, (N > 2)>", "dim3(1, 2), 32, n >> 2, s") + "(x);"),
        ("k <T, U<int>> <<< 1, f(2, 3) >>> (x);",
         launch("k <T, U<int>>", "k <T, U<int>>", " 1, f(2, 3) ") + " (x);"),
        ("k<<<1,\n  2>>>(\n x);", launch("k", "k", "1,\n  2") + "(\n x);"),
        ("table[i + 1]<<<1, 2>>>(x);", launch("table[i + 1]", "table[i + 1]", "1, 2") + "(x);"),
        ("choose(n)<<<1, 2>>>(x);", launch("choose(n)", "choose(n)", "1, 2") + "(x);"),
        ("return (a ? k : l)<<<1, 2>>>(x);",
         "return " + launch("(a ? k : l)", "(a ? k : l)", "1, 2") + "(x);"),
        ('s = "k<<<1, 2>>>(x)"; // k<<<1, 2>>>(x)', 's = "k<<<1, 2>>>(x)"; // k<<<1, 2>>>(x)'),
        ("extern __shared__ float s[];", "float* const s = reinterpret_cast<float*>(::hiera_emu::dynamic_shared);"),
        ("extern __shared__ __align__(16) unsigned char s[];",
         "unsigned char* const s = reinterpret_cast<unsigned char*>(::hiera_emu::dynamic_shared);"),
        ("__shared__ float a[N][M + 1], b;",
         "__shared__ float a[N][M + 1], b; ::hiera_emu::poison_shared(a); ::hiera_emu::poison_shared(b);"),
        ("static __shared__ alignas(16) Pair<int, 2> p[4];",
         "__shared__ __align__(16) Pair<int, 2> p[4]; ::hiera_emu::poison_shared(p);"),
        ("__noinline__ void f();", "__attribute__((noinline)) void f();"),
        ("k<<<1, 2>>>(NULL);", launch("k", "k", "1, 2") + "(nullptr);"),
        ("#pragma unroll 4\nfor", "\nfor"),
        ("// __shared__ float a[2];\n", "// __shared__ float a[2];\n"),
    ],
)
def test_rewriting(source, expected):
    assert transform(source) == expected


def test_launch_without_end_is_refused_with_its_line():
    with pytest.raises(ValueError, match="line 2"):
        transform("int x;\nk<<<1, 2(x);")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('asm volatile("mov.u32 %0, %laneid;" : "=r"(x));', "inline PTX"),
        ("#include <cub/cub.cuh>", "CUB, Thrust or libcu++"),
        ("cg::this_grid().sync();", "grid synchronisation"),
        ("__global__ void __cluster_dims__(4, 1, 1) k();", "cluster sizes in a kernel's declaration"),
        ("cudaLaunchKernelExC(&config, (void*)k, arguments);", "cooperative or untyped launches"),
        ("cudaGraphLaunch(g, s);", "CUDA graphs"),
        ("__nv_fp8_e4m3 x;", "8-bit floating point"),
        ("cudnnConvolutionForward(h);", "cuDNN"),
        ("cuda::memcpy_async(a, b, n, p);", "asynchronous copies and pipelines"),
    ],
)
def test_blockers_are_named(source, named):
    assert blockers(source) == (named,)


def test_comments_do_not_block():
    assert blockers("// asm volatile(\"x\");\n/* cudaGraphLaunch */ int asm_count;") == ()

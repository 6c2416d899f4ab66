"""Moves on a user's own text: each a small edit, comments kept, the adaptor untouched."""

from contracts.cuda_adaptor import MARK
from engine.codegen import Recipe
from engine.codegen.rewrite_cu import rewrite

SOURCE = """\
#define TILE 32  // not 64
constexpr int kThreads = 256;
constexpr int kRows = 10000;
// for (exp(1.0)) { 256 }
__global__ void soft(const float* x, float* y, int n) {
  float s = 0.0;
  for (int i = threadIdx.x; i < n; i += 256) {
    s += exp(x[i] * 1.5e-3);  // 2.0
  }
  y[0] = s;
}
void run(const float* x, float* y, int n) {
  soft<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""


def made(**choices: int | str | bool) -> str:
    return rewrite(SOURCE, Recipe(space="cuda", choices={k.replace("__", "."): v for k, v in choices.items()})).source


def test_no_choices_change_nothing() -> None:
    assert made() == SOURCE


def test_the_moves_offered_have_a_direction_and_the_users_value_first() -> None:
    tunables = {t.key: t for t in rewrite(SOURCE, Recipe(space="cuda")).tunables}

    assert {k: (t.direction, t.values[0]) for k, t in tunables.items()} == {
        "constant.kThreads": ("P", 256), "block.0": ("P", 256), "restrict.soft": ("M", False),
        "launch_bounds.soft": ("P", 0), "unroll.soft": ("C", 0), "single.soft": ("T", False),
        "constant.TILE": ("R", 32),
    }


def test_a_block_size_changes_with_its_rounding() -> None:
    assert "soft<<<(n + 127) / 128, 128>>>(x, y, n);" in made(block__0=128)


def test_pointers_become_restrict() -> None:
    assert "soft(const float* __restrict__ x, float* __restrict__ y, int n)" in made(restrict__soft=True)


def test_loops_are_unrolled_where_they_stand() -> None:
    assert "\n  #pragma unroll 4\n  for (int i = threadIdx.x;" in made(unroll__soft=4)


def test_float_kernels_lose_their_doubles_but_not_their_comments() -> None:
    text = made(single__soft=True)

    assert "float s = 0.0f;" in text
    assert "s += expf(x[i] * 1.5e-3f);  // 2.0" in text
    assert "// for (exp(1.0)) { 256 }" in text


def test_constants_change_in_place() -> None:
    assert made(constant__TILE=64).startswith("#define TILE 64  // not 64\n")


def test_several_moves_and_the_adaptor() -> None:
    source = SOURCE + MARK + "\nvoid adaptor() { exp(1.0); }\n"

    text = rewrite(source, Recipe(space="cuda", choices={"launch_bounds.soft": 256, "single.soft": True})).source

    assert "__global__ void __launch_bounds__(256) soft(" in text
    assert text.endswith(MARK + "\nvoid adaptor() { exp(1.0); }\n")

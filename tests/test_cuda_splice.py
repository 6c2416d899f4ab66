"""A program put into the user's `.cu` file: what is theirs stays, and the file still builds with what it offers."""

from __future__ import annotations

import pytest

from contracts.cuda_splice import spliced, with_bindings

USER = """\
// my file
// hiera: arg x in float32[64]
// hiera: returns float32[64]
// hiera: reference torch.relu(x)
#include <torch/extension.h>
#include "mine.h"

int other(int n) { return n; }  // used elsewhere

// One thread an element.
__global__ void old_kernel(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x] > 0 ? x[threadIdx.x] : 0;
}

// What Python calls.
torch::Tensor work(torch::Tensor x) {
\tauto y = torch::empty_like(x);
\told_kernel<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>());
\treturn y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("work", &work);
}
"""
PROGRAM = """\
// work: relu
#include <torch/extension.h>
#include <c10/cuda/CUDAGuard.h>

struct Pack { float at[4]; };

__global__ void relu_kernel(const float* x, float* y) {
  y[threadIdx.x] = fmaxf(x[threadIdx.x], 0);
}

torch::Tensor work(torch::Tensor x) {
  auto y = at::empty_like(x);
  relu_kernel<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>());
  return y;
}
"""
SPLICED = """\
// my file
// hiera: arg x in float32[64]
// hiera: returns float32[64]
// hiera: reference torch.relu(x)
#include <torch/extension.h>
#include "mine.h"
#include <c10/cuda/CUDAGuard.h>

int other(int n) { return n; }  // used elsewhere

// One thread an element.

// ---- HIERA: work ----
// work: relu

struct Pack { float at[4]; };

__global__ void relu_kernel(const float* x, float* y) {
  y[threadIdx.x] = fmaxf(x[threadIdx.x], 0);
}
// ---- HIERA: end of work ----

// What Python calls.
torch::Tensor work(torch::Tensor x) {
  auto y = at::empty_like(x);
  relu_kernel<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>());
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("work", &work);
}
"""


def test_only_the_function_changes() -> None:
    assert spliced(USER, PROGRAM, "work") == SPLICED


@pytest.mark.parametrize("comment", ["/* What Python calls. */", "/**\n * What Python\n * calls.\n */", "// What\n/* Python\n   calls. */"])
def test_a_comment_above_the_function_stays_with_it(comment: str) -> None:
    made = spliced(USER.replace("// What Python calls.", comment), PROGRAM, "work")
    assert made == SPLICED.replace("// What Python calls.", comment)


def test_a_later_program_takes_the_place_of_an_earlier_one() -> None:
    later = PROGRAM.replace("relu_kernel", "faster_kernel")
    assert spliced(SPLICED, later, "work") == SPLICED.replace("relu_kernel", "faster_kernel")


@pytest.mark.parametrize("theirs", ["int relu_kernel = 3;\n", "struct Pack {};\n", "#define Pack 3\n"])
def test_names_of_the_users_are_kept_apart(theirs: str) -> None:
    text = spliced(USER.replace("int other", theirs + "int other"), PROGRAM, "work")
    assert "namespace hiera_work {\n" in text
    assert text.count("torch::Tensor work(torch::Tensor x) {") == 2
    assert "// What Python calls.\ntorch::Tensor work(torch::Tensor x) {\n  return hiera_work::work(x);\n}\n" in text


def test_another_signature_of_the_users_stays() -> None:
    text = spliced(USER.replace("work(torch::Tensor x)", "work(const at::Tensor& x)"), PROGRAM, "work")
    assert "torch::Tensor work(const at::Tensor& x) {\n  return hiera_work::work(x);\n}" in text


@pytest.mark.parametrize("also", ["void more(float* x) { old_kernel<<<1, 1>>>(x, x); }\n", "// see\nauto* p = &old_kernel;\n"])
def test_a_kernel_that_something_else_uses_stays(also: str) -> None:
    assert "__global__ void old_kernel" in spliced(USER + also, PROGRAM, "work")


def test_conditional_includes_and_guards() -> None:
    text = USER.replace('#include "mine.h"\n', '#if 1\n#include "mine.h"\n#endif\n')
    assert "#include <torch/extension.h>\n#include <c10/cuda/CUDAGuard.h>\n#if 1\n" in spliced(text, PROGRAM, "work")
    guarded = f"#ifndef A\n#define A\n{USER}#endif\n"
    assert spliced(guarded, PROGRAM, "work").startswith("#include <c10/cuda/CUDAGuard.h>\n#ifndef A\n")


def test_a_text_without_the_function_is_left_to_the_program() -> None:
    assert spliced("int x;\n", PROGRAM, "work") == PROGRAM


def test_lost_bindings_come_back() -> None:
    bare = USER.split("PYBIND11")[0]
    assert with_bindings(bare, USER) == USER
    assert with_bindings(USER, USER) == USER


def test_braces_in_the_text_of_a_binding_are_not_its_end() -> None:
    user = USER.replace('&work);', '&work, "of \\"{\\" {");  // {') + "\nint last() { return 1; }\n"

    assert with_bindings(USER.split("PYBIND11")[0], user) == user.split("\nint last()")[0]

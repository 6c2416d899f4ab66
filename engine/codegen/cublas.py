"""Matrix products by cuBLAS, in exactly the arithmetic that the reference used."""

from __future__ import annotations

from collections.abc import Mapping

from engine.codegen.cpp import number
from engine.codegen.matmul import Matmul
from engine.codegen.products import ExternCode

_DATA = {"float64": "CUDA_R_64F", "float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}

HANDLE = """\
#define CUBLAS_CHECK(call)                                                                          \\
  do {                                                                                              \\
    const cublasStatus_t cublas_status = (call);                                                    \\
    TORCH_CHECK(cublas_status == CUBLAS_STATUS_SUCCESS, "cuBLAS failed with status ", int(cublas_status)); \\
  } while (0)

// One handle a device, made on first use; its work goes to the stream given.
static cublasHandle_t cublas_handle(int device, cudaStream_t stream) {
  static cublasHandle_t handles[64] = {};
  TORCH_CHECK(device >= 0 && device < 64, "device index ", device, " is out of range");
  if (handles[device] == nullptr) CUBLAS_CHECK(cublasCreate(&handles[device]));
  CUBLAS_CHECK(cublasSetStream(handles[device], stream));
  return handles[device];
}
"""


def serves(matmul: Matmul, dtype: str) -> bool:
    """True when one strided-batched call computes the product."""
    return dtype in _DATA and len(matmul.batch) <= 1 and matmul.added is None and lies_well(matmul)


def lies_well(matmul: Matmul) -> bool:
    """True when every matrix is stored row after row or column after column, the result row after row."""
    return (
        matmul.c_n == 1 and matmul.c_m >= matmul.n
        and _transposed(matmul.a_m, matmul.a_k, matmul.m, matmul.k) is not None
        and _transposed(matmul.b_k, matmul.b_n, matmul.k, matmul.n) is not None
        and max(matmul.m, matmul.n, matmul.k) < 2**31
    )


def write(
    matmul: Matmul, *, dtype: str, expressions: Mapping[str, str], flags: Mapping[str, bool]
) -> ExternCode:
    """One call. cuBLAS counts columns first, so C = A B is asked for as transposed C = transposed B times transposed A.

    Args:
        matmul: A product that `serves` accepts.
        dtype: Element type.
        expressions: at::Tensor expression of every value.
        flags: The contract's backend flags: TF32 only where the reference used it.
    """
    a_transposed, a_leading = _transposed(matmul.a_m, matmul.a_k, matmul.m, matmul.k) or (False, 1)
    b_transposed, b_leading = _transposed(matmul.b_k, matmul.b_n, matmul.k, matmul.n) or (False, 1)
    tf32 = dtype == "float32" and bool(flags.get("cuda.matmul.allow_tf32"))
    compute = {"float64": "CUBLAS_COMPUTE_64F", "float32": "CUBLAS_COMPUTE_32F_FAST_TF32" if tf32 else (
        "CUBLAS_COMPUTE_32F")}.get(dtype, "CUBLAS_COMPUTE_32F")
    scale = "double" if dtype == "float64" else "float"
    data = _DATA[dtype]
    batch = matmul.batch[0] if matmul.batch else None
    steps = (batch.b, batch.a, batch.c) if batch else (0, 0, 0)
    a, b, c = (expressions[name] for name in (matmul.a, matmul.b, matmul.out))
    count = batch.size if batch else 1
    alpha, beta = f"{c}_alpha", f"{c}_beta"
    operations = ["CUBLAS_OP_T" if transposed else "CUBLAS_OP_N" for transposed in (b_transposed, a_transposed)]
    lines = [
        f"const {scale} {alpha} = {number(matmul.alpha)}, {beta} = 0;",
        "CUBLAS_CHECK(cublasGemmStridedBatchedEx(",
        f"    cublas_handle({c}.get_device(), stream), {', '.join(operations)},",
        f"    /*m=*/{matmul.n}, /*n=*/{matmul.m}, /*k=*/{matmul.k}, &{alpha},",
        f"    {b}.const_data_ptr(), {data}, {b_leading}, {steps[0]},",
        f"    {a}.const_data_ptr(), {data}, {a_leading}, {steps[1]}, &{beta},",
        f"    {c}.data_ptr(), {data}, {max(matmul.c_m, 1)}, {steps[2]}, {count}, {compute}, CUBLAS_GEMM_DEFAULT));",
    ]
    return ExternCode(host_code=lines, library_text=[HANDLE], library_calls=["cublasGemmStridedBatchedEx"])


def _transposed(outer: int, inner: int, rows: int, columns: int) -> tuple[bool, int] | None:
    """Whether a rows x columns operand lies column after column, and its leading dimension; None if neither way."""
    if inner == 1 or columns == 1:
        leading = outer if rows > 1 else columns
        return (False, max(leading, 1)) if leading >= columns else None
    if outer == 1 or rows == 1:
        leading = inner if columns > 1 else rows
        return (True, max(leading, 1)) if leading >= rows else None
    return None

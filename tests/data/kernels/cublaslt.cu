// forward: relu(x @ y + y[0]) by cublasLtMatmul with a bias epilogue
#include <ATen/cuda/CUDAContext.h>
#include <cublasLt.h>
#include <torch/extension.h>

#define CHECK(call) TORCH_CHECK((call) == CUBLAS_STATUS_SUCCESS, "cuBLASLt failed: " #call)

torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    const int64_t m = x.size(0), k = x.size(1), n = y.size(1);
    auto out = torch::empty({m, n}, x.options());
    auto bias = y.select(0, 0).contiguous();
    const float one = 1.0f, zero = 0.0f;
    cublasLtHandle_t handle;
    CHECK(cublasLtCreate(&handle));
    cublasLtMatmulDesc_t how;
    CHECK(cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
    const void* bias_pointer = bias.data_ptr<float>();
    CHECK(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    CHECK(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer, sizeof(bias_pointer)));
    // Row-major out = x @ y is column-major out^T = y^T @ x^T; the bias runs along the rows of out^T.
    cublasLtMatrixLayout_t left, right, result;
    CHECK(cublasLtMatrixLayoutCreate(&left, CUDA_R_32F, n, k, n));
    CHECK(cublasLtMatrixLayoutCreate(&right, CUDA_R_32F, k, m, k));
    CHECK(cublasLtMatrixLayoutCreate(&result, CUDA_R_32F, n, m, n));
    CHECK(cublasLtMatmul(handle, how, &one, y.data_ptr<float>(), left, x.data_ptr<float>(), right, &zero,
                         out.data_ptr<float>(), result, out.data_ptr<float>(), result, nullptr, nullptr, 0,
                         at::cuda::getCurrentCUDAStream()));
    cublasLtMatrixLayoutDestroy(left);
    cublasLtMatrixLayoutDestroy(right);
    cublasLtMatrixLayoutDestroy(result);
    cublasLtMatmulDescDestroy(how);
    cublasLtDestroy(handle);
    return out;
}

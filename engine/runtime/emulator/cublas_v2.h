// cuBLAS matrix products on the CPU, column-major as the original. Sums run along k in the compute
// type; the block of columns keeps them in cache.
#pragma once
#include <hiera_emu/half.h>

#include <vector>

typedef struct hiera_emu_blas* cublasHandle_t;
enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C };
enum cudaDataType_t {
    CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_8I = 3, CUDA_R_32I = 10, CUDA_R_16BF = 14,
};
typedef cudaDataType_t cudaDataType;
enum cublasComputeType_t {
    CUBLAS_COMPUTE_16F = 64,
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_PEDANTIC = 69,
    CUBLAS_COMPUTE_64F = 70,
    CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_16BF = 75,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
};
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DFALT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 };
enum cublasMath_t {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_TENSOR_OP_MATH = 1,
    CUBLAS_PEDANTIC_MATH = 2,
    CUBLAS_TF32_TENSOR_OP_MATH = 3,
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16,
};
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };

inline cublasStatus_t cublasCreate(cublasHandle_t* handle) { return *handle = nullptr, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
    return *mode = CUBLAS_DEFAULT_MATH, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetPointerMode(cublasHandle_t, cublasPointerMode_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
inline const char* cublasGetStatusString(cublasStatus_t s) { return s ? "CUBLAS_STATUS error" : "CUBLAS_STATUS_SUCCESS"; }
inline const char* cublasGetStatusName(cublasStatus_t s) { return cublasGetStatusString(s); }

namespace hiera_emu {

// c = alpha * op(a) * op(b) + beta * c, one column of c at a time.
template <typename In, typename Out, typename Sum>
void gemm(bool transpose_a, bool transpose_b, int m, int n, int k, Sum alpha, const In* a, int lda, const In* b, int ldb,
          Sum beta, Out* c, int ldc) {
    // op(a) with rows contiguous, so that both orders run over memory in order.
    std::vector<Sum> left(size_t(m) * k), column(m);
    for (int p = 0; p < k; ++p)
        for (int i = 0; i < m; ++i)
            left[size_t(p) * m + i] = convert<Sum>(transpose_a ? a[p + size_t(i) * lda] : a[i + size_t(p) * lda]);
    for (int j = 0; j < n; ++j) {
        std::fill(column.begin(), column.end(), Sum(0));
        for (int p = 0; p < k; ++p) {
            const Sum factor = convert<Sum>(transpose_b ? b[j + size_t(p) * ldb] : b[p + size_t(j) * ldb]);
            const Sum* from = &left[size_t(p) * m];
            for (int i = 0; i < m; ++i) column[i] += from[i] * factor;
        }
        for (int i = 0; i < m; ++i) {
            Out& out = c[i + size_t(j) * ldc];
            out = convert<Out>(alpha * column[i] + (beta == Sum(0) ? Sum(0) : beta * convert<Sum>(out)));
        }
    }
}

inline size_t item_bytes(cudaDataType type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 4;
}

// alpha and beta are double for 64F, else float (or half for the half compute type).
inline cublasStatus_t gemm_by_type(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha,
                                   const void* a, cudaDataType a_type, int lda, const void* b, cudaDataType b_type, int ldb,
                                   const void* beta, void* c, cudaDataType c_type, int ldc, int compute) {
    if (a_type != b_type) return CUBLAS_STATUS_NOT_SUPPORTED;
    auto run = [&](auto in, auto out, auto scale, auto sum) {
        using In = decltype(in);
        using Out = decltype(out);
        using Scale = decltype(scale);
        using Sum = decltype(sum);
        gemm(ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, convert<Sum>(*static_cast<const Scale*>(alpha)),
             static_cast<const In*>(a), lda, static_cast<const In*>(b), ldb, convert<Sum>(*static_cast<const Scale*>(beta)),
             static_cast<Out*>(c), ldc);
        return CUBLAS_STATUS_SUCCESS;
    };
    auto is = [&](cudaDataType in, cudaDataType out) { return a_type == in && c_type == out; };
    if (is(CUDA_R_64F, CUDA_R_64F)) return run(double(), double(), double(), double());
    if (is(CUDA_R_32F, CUDA_R_32F)) return run(float(), float(), float(), float());
    if (is(CUDA_R_16F, CUDA_R_16F) && compute == CUBLAS_COMPUTE_16F) return run(half(), half(), half(), float());
    if (is(CUDA_R_16F, CUDA_R_16F)) return run(half(), half(), float(), float());
    if (is(CUDA_R_16F, CUDA_R_32F)) return run(half(), float(), float(), float());
    if (is(CUDA_R_16BF, CUDA_R_16BF)) return run(nv_bfloat16(), nv_bfloat16(), float(), float());
    if (is(CUDA_R_16BF, CUDA_R_32F)) return run(nv_bfloat16(), float(), float(), float());
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // namespace hiera_emu

#define HIERA_EMU_GEMM(name, T)                                                                                        \
    inline cublasStatus_t cublas##name(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, \
                                       const T* alpha, const T* a, int lda, const T* b, int ldb, const T* beta, T* c,   \
                                       int ldc) {                                                                      \
        hiera_emu::gemm(ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);         \
        return CUBLAS_STATUS_SUCCESS;                                                                                  \
    }                                                                                                                  \
    inline cublasStatus_t cublas##name##StridedBatched(                                                                \
        cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha,        \
        const T* a, int lda, long long step_a, const T* b, int ldb, long long step_b, const T* beta, T* c, int ldc,    \
        long long step_c, int count) {                                                                                 \
        for (int i = 0; i < count; ++i)                                                                                \
            cublas##name(handle, ta, tb, m, n, k, alpha, a + i * step_a, lda, b + i * step_b, ldb, beta,               \
                         c + i * step_c, ldc);                                                                         \
        return CUBLAS_STATUS_SUCCESS;                                                                                  \
    }                                                                                                                  \
    inline cublasStatus_t cublas##name##Batched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,     \
                                                int m, int n, int k, const T* alpha, const T* const a[], int lda,      \
                                                const T* const b[], int ldb, const T* beta, T* const c[], int ldc,     \
                                                int count) {                                                           \
        for (int i = 0; i < count; ++i)                                                                                \
            cublas##name(handle, ta, tb, m, n, k, alpha, a[i], lda, b[i], ldb, beta, c[i], ldc);                       \
        return CUBLAS_STATUS_SUCCESS;                                                                                  \
    }
HIERA_EMU_GEMM(Sgemm, float)
HIERA_EMU_GEMM(Dgemm, double)
#undef HIERA_EMU_GEMM

inline cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                                   const void* alpha, const void* a, cudaDataType a_type, int lda, const void* b,
                                   cudaDataType b_type, int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                                   int compute, cublasGemmAlgo_t) {
    return hiera_emu::gemm_by_type(ta, tb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute);
}
inline cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                                 int k, const void* alpha, const void* a, cudaDataType a_type, int lda,
                                                 long long step_a, const void* b, cudaDataType b_type, int ldb,
                                                 long long step_b, const void* beta, void* c, cudaDataType c_type, int ldc,
                                                 long long step_c, int count, int compute, cublasGemmAlgo_t) {
    auto at = [](const void* base, long long step, int i, cudaDataType type) {
        return const_cast<char*>(static_cast<const char*>(base)) + i * step * (long long)hiera_emu::item_bytes(type);
    };
    for (int i = 0; i < count; ++i) {
        cublasStatus_t status = hiera_emu::gemm_by_type(
            ta, tb, m, n, k, alpha, at(a, step_a, i, a_type), a_type, lda, at(b, step_b, i, b_type), b_type, ldb, beta,
            at(c, step_c, i, c_type), c_type, ldc, compute);
        if (status) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// Matrix times vector, and the vector calls that go with it.
#define HIERA_EMU_VECTOR_CALLS(P, T)                                                                                      \
    inline cublasStatus_t cublas##P##gemv(cublasHandle_t, cublasOperation_t op, int m, int n, const T* alpha, const T* a, \
                                          int lda, const T* x, int step_x, const T* beta, T* y, int step_y) {             \
        const int rows = op == CUBLAS_OP_N ? m : n, length = op == CUBLAS_OP_N ? n : m;                                   \
        for (int i = 0; i < rows; ++i) {                                                                                  \
            T sum = 0;                                                                                                    \
            for (int p = 0; p < length; ++p)                                                                              \
                sum += (op == CUBLAS_OP_N ? a[i + size_t(p) * lda] : a[p + size_t(i) * lda]) * x[size_t(p) * step_x];     \
            T& out = y[size_t(i) * step_y];                                                                               \
            out = *alpha * sum + (*beta == T(0) ? T(0) : *beta * out);                                                    \
        }                                                                                                                 \
        return CUBLAS_STATUS_SUCCESS;                                                                                     \
    }                                                                                                                     \
    inline cublasStatus_t cublas##P##axpy(cublasHandle_t, int n, const T* alpha, const T* x, int step_x, T* y,            \
                                          int step_y) {                                                                   \
        for (int i = 0; i < n; ++i) y[size_t(i) * step_y] += *alpha * x[size_t(i) * step_x];                              \
        return CUBLAS_STATUS_SUCCESS;                                                                                     \
    }                                                                                                                     \
    inline cublasStatus_t cublas##P##scal(cublasHandle_t, int n, const T* alpha, T* x, int step_x) {                      \
        for (int i = 0; i < n; ++i) x[size_t(i) * step_x] *= *alpha;                                                      \
        return CUBLAS_STATUS_SUCCESS;                                                                                     \
    }                                                                                                                     \
    inline cublasStatus_t cublas##P##dot(cublasHandle_t, int n, const T* x, int step_x, const T* y, int step_y, T* out) { \
        *out = 0;                                                                                                         \
        for (int i = 0; i < n; ++i) *out += x[size_t(i) * step_x] * y[size_t(i) * step_y];                                \
        return CUBLAS_STATUS_SUCCESS;                                                                                     \
    }
HIERA_EMU_VECTOR_CALLS(S, float)
HIERA_EMU_VECTOR_CALLS(D, double)
#undef HIERA_EMU_VECTOR_CALLS

// torch's own handle: its declaration comes with the light headers, in the form of the installed torch. Defined by
// mangled name, because the two forms cannot stand beside each other as overloads.
extern "C" {
__attribute__((weak, used)) inline cublasHandle_t hiera_emu_blas_handle()
    asm("_ZN2at4cuda24getCurrentCUDABlasHandleEv");
__attribute__((weak, used)) inline cublasHandle_t hiera_emu_blas_handle() { return nullptr; }
__attribute__((weak, used)) inline cublasHandle_t hiera_emu_blas_handle_of(bool)
    asm("_ZN2at4cuda24getCurrentCUDABlasHandleEb");
__attribute__((weak, used)) inline cublasHandle_t hiera_emu_blas_handle_of(bool) { return nullptr; }
}

// cublasLtMatmul on the CPU: transposes, strided batches, column and row order, bias, ReLU and GELU epilogues.
// Anything else (scales, auxiliary outputs, other orders) answers CUBLAS_STATUS_NOT_SUPPORTED.
#pragma once
#include <cublas_v2.h>

typedef struct hiera_emu_blas_lt* cublasLtHandle_t;
enum cublasLtOrder_t { CUBLASLT_ORDER_COL = 0, CUBLASLT_ORDER_ROW = 1 };
enum cublasLtPointerMode_t { CUBLASLT_POINTER_MODE_HOST = 0, CUBLASLT_POINTER_MODE_DEVICE = 1 };
enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_RELU = 2,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_RELU_BIAS = 6,
    CUBLASLT_EPILOGUE_GELU = 32,
    CUBLASLT_EPILOGUE_GELU_BIAS = 36,
};
enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_COMPUTE_TYPE = 0,
    CUBLASLT_MATMUL_DESC_SCALE_TYPE = 1,
    CUBLASLT_MATMUL_DESC_POINTER_MODE = 2,
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
};
enum cublasLtMatrixLayoutAttribute_t {
    CUBLASLT_MATRIX_LAYOUT_TYPE = 0,
    CUBLASLT_MATRIX_LAYOUT_ORDER = 1,
    CUBLASLT_MATRIX_LAYOUT_ROWS = 2,
    CUBLASLT_MATRIX_LAYOUT_COLS = 3,
    CUBLASLT_MATRIX_LAYOUT_LD = 4,
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
};
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_SEARCH_MODE = 0,
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};

struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute;
    cudaDataType scale;
    int transpose_a, transpose_b, epilogue;
    const void* bias;
    int bias_type;  // -1: that of D.
    bool unsupported;
};
struct cublasLtMatrixLayoutOpaque_t {
    int type, order, batch;
    uint64_t rows, columns;
    int64_t leading, step;
};
struct cublasLtMatmulPreferenceOpaque_t { uint64_t workspace; };
struct cublasLtMatmulAlgo_t { uint64_t data[8]; };
typedef cublasLtMatmulDescOpaque_t* cublasLtMatmulDesc_t;
typedef cublasLtMatrixLayoutOpaque_t* cublasLtMatrixLayout_t;
typedef cublasLtMatmulPreferenceOpaque_t* cublasLtMatmulPreference_t;
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
};

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return *handle = nullptr, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType scale) {
    *made = new cublasLtMatmulDescOpaque_t{compute, scale, 0, 0, CUBLASLT_EPILOGUE_DEFAULT, nullptr, -1, false};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t one) { return delete one, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t one, cublasLtMatmulDescAttributes_t name,
                                                     const void* value, size_t) {
    const int number = *static_cast<const int*>(value);
    switch (name) {
        case CUBLASLT_MATMUL_DESC_TRANSA: one->transpose_a = number; break;
        case CUBLASLT_MATMUL_DESC_TRANSB: one->transpose_b = number; break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE: one->epilogue = number; break;
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: one->bias = *static_cast<const void* const*>(value); break;
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: one->bias_type = number; break;
        case CUBLASLT_MATMUL_DESC_POINTER_MODE: break;  // Host and device memory are the same here.
        default: one->unsupported = true;
    }
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t leading) {
    *made = new cublasLtMatrixLayoutOpaque_t{type, CUBLASLT_ORDER_COL, 1, rows, columns, leading, 0};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t one) { return delete one, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t one, cublasLtMatrixLayoutAttribute_t name,
                                                       const void* value, size_t) {
    switch (name) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: one->type = *static_cast<const int*>(value); break;
        case CUBLASLT_MATRIX_LAYOUT_ORDER: one->order = *static_cast<const int*>(value); break;
        case CUBLASLT_MATRIX_LAYOUT_ROWS: one->rows = *static_cast<const uint64_t*>(value); break;
        case CUBLASLT_MATRIX_LAYOUT_COLS: one->columns = *static_cast<const uint64_t*>(value); break;
        case CUBLASLT_MATRIX_LAYOUT_LD: one->leading = *static_cast<const int64_t*>(value); break;
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: one->batch = *static_cast<const int*>(value); break;
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: one->step = *static_cast<const int64_t*>(value); break;
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
    *made = new cublasLtMatmulPreferenceOpaque_t{0};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t one) {
    return delete one, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                           const void*, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int wanted,
                                                     cublasLtMatmulHeuristicResult_t* results, int* count) {
    if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    results[0] = {};
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

namespace hiera_emu {

// One matrix with its element at (row, column), whatever its type, order and transposition.
struct MatrixView {
    char* data;
    const cublasLtMatrixLayoutOpaque_t& layout;
    bool transposed;

    size_t offset(int64_t row, int64_t column) const {
        if (transposed) std::swap(row, column);
        return size_t(layout.order == CUBLASLT_ORDER_COL ? row + column * layout.leading : row * layout.leading + column);
    }
    double get(int64_t row, int64_t column) const {
        const size_t i = offset(row, column);
        switch (layout.type) {
            case CUDA_R_32F: return reinterpret_cast<const float*>(data)[i];
            case CUDA_R_64F: return reinterpret_cast<const double*>(data)[i];
            case CUDA_R_16F: return convert<double>(reinterpret_cast<const __half*>(data)[i]);
            default: return convert<double>(reinterpret_cast<const __nv_bfloat16*>(data)[i]);
        }
    }
    void set(int64_t row, int64_t column, double value) const {
        const size_t i = offset(row, column);
        switch (layout.type) {
            case CUDA_R_32F: reinterpret_cast<float*>(data)[i] = float(value); break;
            case CUDA_R_64F: reinterpret_cast<double*>(data)[i] = value; break;
            case CUDA_R_16F: reinterpret_cast<__half*>(data)[i] = convert<__half>(value); break;
            default: reinterpret_cast<__nv_bfloat16*>(data)[i] = convert<__nv_bfloat16>(value);
        }
    }
};

inline bool has_view(const cublasLtMatrixLayoutOpaque_t& layout) {
    bool type = layout.type == CUDA_R_32F || layout.type == CUDA_R_64F || layout.type == CUDA_R_16F || layout.type == CUDA_R_16BF;
    return type && (layout.order == CUBLASLT_ORDER_COL || layout.order == CUBLASLT_ORDER_ROW);
}

inline double epilogue(double value, int kind) {
    if (kind == CUBLASLT_EPILOGUE_RELU || kind == CUBLASLT_EPILOGUE_RELU_BIAS) return value > 0 ? value : 0;
    if (kind == CUBLASLT_EPILOGUE_GELU || kind == CUBLASLT_EPILOGUE_GELU_BIAS)  // cuBLASLt's is the tanh form.
        return 0.5 * value * (1 + std::tanh(0.7978845608028654 * (value + 0.044715 * value * value * value)));
    return value;
}

inline bool known_epilogue(int kind) {
    return kind == CUBLASLT_EPILOGUE_DEFAULT || kind == CUBLASLT_EPILOGUE_RELU || kind == CUBLASLT_EPILOGUE_BIAS ||
           kind == CUBLASLT_EPILOGUE_RELU_BIAS || kind == CUBLASLT_EPILOGUE_GELU || kind == CUBLASLT_EPILOGUE_GELU_BIAS;
}

}  // namespace hiera_emu

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t how, const void* alpha, const void* a,
                                     cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                                     const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                                     cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*, size_t,
                                     cudaStream_t) {
    using namespace hiera_emu;
    if (how->unsupported || !known_epilogue(how->epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (auto* layout : {a_layout, b_layout, c_layout, d_layout})
        if (!has_view(*layout)) return CUBLAS_STATUS_NOT_SUPPORTED;
    auto scalar = [&](const void* p) {
        return how->scale == CUDA_R_64F ? *static_cast<const double*>(p) : double(*static_cast<const float*>(p));
    };
    if (how->scale != CUDA_R_64F && how->scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    const double scale = scalar(alpha), keep = scalar(beta);
    auto view = [](const void* base, const cublasLtMatrixLayoutOpaque_t& layout, int i, bool transposed) {
        char* start = const_cast<char*>(static_cast<const char*>(base));
        return MatrixView{start + i * layout.step * int64_t(item_bytes(cudaDataType(layout.type))), layout, transposed};
    };
    const int64_t rows = int64_t(d_layout->rows), columns = int64_t(d_layout->columns);
    const int64_t depth = int64_t(how->transpose_a ? a_layout->rows : a_layout->columns);
    auto bias_layout = *d_layout;
    bias_layout.order = CUBLASLT_ORDER_COL;
    if (how->bias_type >= 0) bias_layout.type = how->bias_type;
    for (int i = 0; i < d_layout->batch; ++i) {
        MatrixView left = view(a, *a_layout, i, how->transpose_a), right = view(b, *b_layout, i, how->transpose_b);
        MatrixView old = view(c, *c_layout, i, false), out = view(d, *d_layout, i, false);
        // Converted once: the inner loop then runs over plain floats.
        std::vector<double> line(static_cast<size_t>(depth)), all(static_cast<size_t>(depth * columns));
        for (int64_t j = 0; j < columns; ++j)
            for (int64_t p = 0; p < depth; ++p) all[size_t(j * depth + p)] = right.get(p, j);
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t p = 0; p < depth; ++p) line[size_t(p)] = left.get(r, p);
            const double shift = how->bias && (how->epilogue & 4) ? view(how->bias, bias_layout, 0, false).get(r, 0) : 0;
            for (int64_t j = 0; j < columns; ++j) {
                double sum = 0;
                for (int64_t p = 0; p < depth; ++p) sum += line[size_t(p)] * all[size_t(j * depth + p)];
                double value = scale * sum + (keep == 0 ? 0 : keep * old.get(r, j)) + shift;
                out.set(r, j, epilogue(value, how->epilogue));
            }
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" {
__attribute__((weak, used)) inline cublasLtHandle_t hiera_emu_blas_lt_handle()
    asm("_ZN2at4cuda26getCurrentCUDABlasLtHandleEv");
__attribute__((weak, used)) inline cublasLtHandle_t hiera_emu_blas_lt_handle() { return nullptr; }
}

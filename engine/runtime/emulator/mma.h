// nvcuda::wmma. CUDA leaves open which lane holds which element, so here lane l holds the l-th
// 32nd of the tile in row-major order. Products are summed in float.
#pragma once
#include <hiera_emu/half.h>

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32; }

template <typename T> struct emulated_element { using type = T; };
template <> struct emulated_element<precision::tf32> { using type = float; };
template <typename Use, int M, int N, int K> struct emulated_shape;
template <int M, int N, int K> struct emulated_shape<matrix_a, M, N, K> { enum { rows = M, columns = K }; };
template <int M, int N, int K> struct emulated_shape<matrix_b, M, N, K> { enum { rows = K, columns = N }; };
template <int M, int N, int K> struct emulated_shape<accumulator, M, N, K> { enum { rows = M, columns = N }; };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
    using element_type = typename emulated_element<T>::type;
    enum {
        rows = emulated_shape<Use, M, N, K>::rows,
        columns = emulated_shape<Use, M, N, K>::columns,
        num_elements = rows * columns / 32,
        num_storage_elements = num_elements,
    };
    element_type x[num_elements];
};

template <typename Fragment, typename T>
void fill_fragment(Fragment& f, T value) {
    for (auto& element : f.x) element = hiera_emu::convert<typename Fragment::element_type>(value);
}

// Memory offset of the calling lane's i-th element.
template <typename Fragment>
size_t emulated_offset(int i, unsigned stride, bool by_rows) {
    int index = hiera_emu::lane() * Fragment::num_elements + i;
    size_t row = size_t(index / Fragment::columns), column = size_t(index % Fragment::columns);
    return by_rows ? row * stride + column : column * stride + row;
}
template <typename Fragment, typename T>
void emulated_load(Fragment& f, const T* from, unsigned stride, bool by_rows, int line) {
    for (int i = 0; i < Fragment::num_elements; ++i) f.x[i] = from[emulated_offset<Fragment>(i, stride, by_rows)];
    __syncwarp(0xffffffffu, line);
}
template <typename Use, int M, int N, int K, typename T, typename E>
void load_matrix_sync(fragment<Use, M, N, K, T, row_major>& f, const E* from, unsigned stride, int line = __builtin_LINE()) {
    emulated_load(f, from, stride, true, line);
}
template <typename Use, int M, int N, int K, typename T, typename E>
void load_matrix_sync(fragment<Use, M, N, K, T, col_major>& f, const E* from, unsigned stride, int line = __builtin_LINE()) {
    emulated_load(f, from, stride, false, line);
}
template <typename Fragment, typename E>
void load_matrix_sync(Fragment& f, const E* from, unsigned stride, layout_t layout, int line = __builtin_LINE()) {
    emulated_load(f, from, stride, layout == mem_row_major, line);
}
template <typename Fragment, typename E>
void store_matrix_sync(E* to, const Fragment& f, unsigned stride, layout_t layout, int line = __builtin_LINE()) {
    __syncwarp(0xffffffffu, line);
    for (int i = 0; i < Fragment::num_elements; ++i)
        to[emulated_offset<Fragment>(i, stride, layout == mem_row_major)] = f.x[i];
    __syncwarp(0xffffffffu, line);
}

inline float __float_to_tf32(float x) {
    return hiera_emu::bits<float>((hiera_emu::bits<unsigned>(x) + 0x1000) & ~0x1fffu);
}

// The whole matrix of a fragment, from all 32 lanes.
template <typename Fragment>
void emulated_gather(const Fragment& f, float* matrix, int line) {
    for (int i = 0; i < Fragment::num_elements; ++i) {
        float value = hiera_emu::convert<float>(f.x[i]);
        hiera_emu::Slots slots = hiera_emu::exchange(0xffffffffu, &value, sizeof value, "wmma::mma_sync", line);
        for (int lane = 0; lane < 32; ++lane)
            std::memcpy(&matrix[lane * Fragment::num_elements + i], slots[lane], sizeof value);
    }
}
template <typename D, typename A, typename B, typename C>
void mma_sync(D& d, const A& a, const B& b, const C& c, int line = __builtin_LINE()) {
    float left[A::rows * A::columns], right[B::rows * B::columns];
    emulated_gather(a, left, line);
    emulated_gather(b, right, line);
    for (int i = 0; i < D::num_elements; ++i) {
        int index = hiera_emu::lane() * D::num_elements + i, row = index / D::columns, column = index % D::columns;
        float sum = hiera_emu::convert<float>(c.x[i]);
        for (int k = 0; k < A::columns; ++k) sum += left[row * A::columns + k] * right[k * B::columns + column];
        d.x[i] = hiera_emu::convert<typename D::element_type>(sum);
    }
}

}  // namespace wmma
}  // namespace nvcuda

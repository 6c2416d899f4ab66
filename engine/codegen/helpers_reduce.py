"""Device functions that combine values over lanes, warps and blocks."""

from __future__ import annotations

_OP = """\
struct {name} {{
    template <class T>
    static __device__ __forceinline__ T combine(T a, T b) {{
        return {text};
    }}
}};
"""


def _op(name: str, text: str, needs: tuple[str, ...] = ()) -> tuple[tuple[str, ...], str]:
    return needs, _OP.format(name=name, text=text)


REDUCE_SNIPPETS: dict[str, tuple[tuple[str, ...], str]] = {
    "Sum": _op("Sum", "a + b"),
    "Product": _op("Product", "a * b"),
    "Largest": _op("Largest", "max_nan(a, b)", ("max_nan",)),
    "Smallest": _op("Smallest", "min_nan(a, b)", ("min_nan",)),
    "Any": _op("Any", "a | b"),
    "All": _op("All", "a & b"),
    "Best": ((), """\
// A value and where it was found. NaN beats everything; equal values: the first position wins, as in PyTorch.
template <class T>
struct Best {
    T value;
    int64_t at;
};

template <class T>
__device__ __forceinline__ Best<T> shuffle_xor(Best<T> best, int distance) {
    return {__shfl_xor_sync(0xffffffffu, best.value, distance), __shfl_xor_sync(0xffffffffu, best.at, distance)};
}

struct LargestAt {
    template <class T>
    static __device__ __forceinline__ Best<T> combine(Best<T> a, Best<T> b) {
        bool const a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
        bool const equal = a.value == b.value || (a_is_nan && b_is_nan);
        bool const a_wins = equal ? a.at < b.at : a_is_nan || (!b_is_nan && a.value > b.value);
        return a_wins ? a : b;
    }
};

struct SmallestAt {
    template <class T>
    static __device__ __forceinline__ Best<T> combine(Best<T> a, Best<T> b) {
        bool const a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
        bool const equal = a.value == b.value || (a_is_nan && b_is_nan);
        bool const a_wins = equal ? a.at < b.at : a_is_nan || (!b_is_nan && a.value < b.value);
        return a_wins ? a : b;
    }
};
"""),
    "Moments": ((), """\
// Count, mean and sum of squared distances from the mean of some values. Chan's formula joins two of them without
// the cancellation that a plain sum of squares suffers.
template <class T>
struct Moments {
    T count;
    T mean;
    T squares;
};

template <class T>
__device__ __forceinline__ Moments<T> shuffle_xor(Moments<T> m, int distance) {
    return {__shfl_xor_sync(0xffffffffu, m.count, distance), __shfl_xor_sync(0xffffffffu, m.mean, distance),
            __shfl_xor_sync(0xffffffffu, m.squares, distance)};
}

struct JoinMoments {
    template <class T>
    static __device__ __forceinline__ Moments<T> combine(Moments<T> a, Moments<T> b) {
        T const count = a.count + b.count;
        T const share = count > T(0) ? b.count / count : T(0);
        T const distance = b.mean - a.mean;
        return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
    }
};

// Collects moments one value at a time, relative to the first value seen, so that large means do no harm.
template <class T>
struct MomentCollector {
    T first = T(0), sum = T(0), squares = T(0), count = T(0);

    __device__ __forceinline__ void add(T value) {
        first = count == T(0) ? value : first;
        T const distance = value - first;
        sum += distance;
        squares += distance * distance;
        count += T(1);
    }

    __device__ __forceinline__ Moments<T> moments() const {
        T const mean = count > T(0) ? sum / count : T(0);
        return {count, first + mean, squares - sum * mean};
    }
};
"""),
    "MaxSum": ((), """\
// The largest value so far, and the sum of e^(value - largest): softmax statistics in one pass.
template <class T>
struct MaxSum {
    T largest;
    T sum;

    __device__ __forceinline__ void add(T value) {
        // Equal values, infinities included, must not subtract: inf - inf is NaN.
        T const smaller_term = value == largest ? T(1) : exp(-fabs(value - largest));
        bool const grows = value > largest;
        sum = grows ? sum * smaller_term + T(1) : sum + smaller_term;
        largest = grows ? value : largest;
    }

    // Both as one pass after the other would find them: not a number where a value is, the sum also at inf - inf.
    __device__ __forceinline__ T top() const { return sum != sum ? sum : largest; }
    __device__ __forceinline__ T total() const { return sum + (largest - largest); }
};

template <class T>
__device__ __forceinline__ MaxSum<T> shuffle_xor(MaxSum<T> m, int distance) {
    return {__shfl_xor_sync(0xffffffffu, m.largest, distance), __shfl_xor_sync(0xffffffffu, m.sum, distance)};
}

struct JoinMaxSum {
    template <class T>
    static __device__ __forceinline__ MaxSum<T> combine(MaxSum<T> a, MaxSum<T> b) {
        T const smaller_term = a.largest == b.largest ? T(1) : exp(-fabs(a.largest - b.largest));
        return a.largest > b.largest ? MaxSum<T>{a.largest, a.sum + b.sum * smaller_term}
                                     : MaxSum<T>{b.largest, b.sum + a.sum * smaller_term};
    }
};
"""),
    "group_reduce": ((), """\
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}

// Combines over groups of kLanes neighbouring lanes; every lane gets its group's result. Butterfly order, so the
// result does not depend on the lane.
template <int kLanes, class Op, class T>
__device__ __forceinline__ T group_reduce(T value) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        value = Op::combine(value, shuffle_xor(value, distance));
    }
    return value;
}
"""),
    "block_reduce": (("group_reduce",), """\
// Combines over a block of kThreads threads (a power of two of warps); every thread gets the result.
template <int kThreads, class Op, class T>
__device__ __forceinline__ T block_reduce(T value) {
    constexpr int kWarps = kThreads / 32;
    __shared__ T of_warp[kWarps];
    value = group_reduce<32, Op>(value);
    __syncthreads();  // An earlier use of of_warp is over.
    if (threadIdx.x % 32 == 0) {
        of_warp[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return group_reduce<kWarps, Op>(of_warp[threadIdx.x % kWarps]);
}
"""),
    "block_scan": ((), """\
// Exclusive scan over a block of kThreads threads: what the threads before this one hold together. `total` gets
// everything. `nothing` is the value that changes nothing.
template <int kThreads, class Op, class T>
__device__ __forceinline__ T block_scan(T value, T nothing, T& total) {
    constexpr int kWarps = kThreads / 32;
    __shared__ T of_warp[kWarps];
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T inclusive = value;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        T const earlier = __shfl_up_sync(0xffffffffu, inclusive, distance);
        inclusive = lane >= distance ? Op::combine(earlier, inclusive) : inclusive;
    }
    __syncthreads();  // An earlier use of of_warp is over.
    if (lane == 31) {
        of_warp[warp] = inclusive;
    }
    __syncthreads();
    T before = nothing;
    total = nothing;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
        before = other < warp ? Op::combine(before, of_warp[other]) : before;
        total = Op::combine(total, of_warp[other]);
    }
    T const neighbour = __shfl_up_sync(0xffffffffu, inclusive, 1);
    return lane == 0 ? before : Op::combine(before, neighbour);
}
"""),
    "column_reduce": ((), """\
// Combines over threadIdx.y; every thread gets the result of its threadIdx.x.
template <int kColumns, int kDepth, class Op, class T>
__device__ __forceinline__ T column_reduce(T value) {
    __shared__ T partial[kDepth][kColumns];
    __syncthreads();  // An earlier use of partial is over.
    partial[threadIdx.y][threadIdx.x] = value;
    __syncthreads();
    value = partial[0][threadIdx.x];
    for (int y = 1; y < kDepth; ++y) {
        value = Op::combine(value, partial[y][threadIdx.x]);
    }
    return value;
}
"""),
}

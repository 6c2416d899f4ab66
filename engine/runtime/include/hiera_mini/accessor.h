// Tensor accessors, with torch's names and layouts (they are passed to kernels by value).
#pragma once
#include <cuda_runtime.h>
#include <hiera_mini/array_ref.h>

namespace at {
using namespace c10;

template <typename T> struct DefaultPtrTraits {
  typedef T* PtrType;
};
template <typename T> struct RestrictPtrTraits {
  typedef T* __restrict__ PtrType;
};

template <typename T, size_t N, template <typename U> class P = DefaultPtrTraits, typename I = int64_t>
class TensorAccessor {
 public:
  typedef typename P<T>::PtrType PtrType;
  __host__ __device__ TensorAccessor(PtrType data, const I* sizes, const I* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  __host__ __device__ TensorAccessor<T, N - 1, P, I> operator[](I i) const {
    return {data_ + strides_[0] * i, sizes_ + 1, strides_ + 1};
  }
  __host__ __device__ I size(I i) const { return sizes_[i]; }
  __host__ __device__ I stride(I i) const { return strides_[i]; }
  __host__ __device__ PtrType data() const { return data_; }

 private:
  PtrType data_;
  const I* sizes_;
  const I* strides_;
};

template <typename T, template <typename U> class P, typename I> class TensorAccessor<T, 1, P, I> {
 public:
  typedef typename P<T>::PtrType PtrType;
  __host__ __device__ TensorAccessor(PtrType data, const I* sizes, const I* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  __host__ __device__ T& operator[](I i) const { return data_[strides_[0] * i]; }
  __host__ __device__ I size(I i) const { return sizes_[i]; }
  __host__ __device__ I stride(I i) const { return strides_[i]; }
  __host__ __device__ PtrType data() const { return data_; }

 private:
  PtrType data_;
  const I* sizes_;
  const I* strides_;
};

template <typename T, size_t N, template <typename U> class P = DefaultPtrTraits, typename I = int64_t>
class GenericPackedTensorAccessor {
 public:
  typedef typename P<T>::PtrType PtrType;
  GenericPackedTensorAccessor(T* data, const int64_t* sizes, const int64_t* strides) : data_(data) {
    for (size_t i = 0; i < N; ++i) {
      sizes_[i] = static_cast<I>(sizes[i]);
      strides_[i] = static_cast<I>(strides[i]);
    }
  }
  __host__ __device__ decltype(auto) operator[](I i) const {
    if constexpr (N == 1)
      return (data_[strides_[0] * i]);
    else
      return TensorAccessor<T, N - 1, P, I>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
  }
  __host__ __device__ I size(I i) const { return sizes_[i]; }
  __host__ __device__ I stride(I i) const { return strides_[i]; }
  __host__ __device__ PtrType data() const { return data_; }

 private:
  PtrType data_;
  I sizes_[N];
  I strides_[N];
};
template <typename T, size_t N, template <typename U> class P = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, P, int32_t>;
template <typename T, size_t N, template <typename U> class P = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, P, int64_t>;
}  // namespace at

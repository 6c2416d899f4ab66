// at::Tensor: one pointer, as in torch. Operators come from declarations cut out of the installed torch's headers
// (engine/evaluate/operators.py): only those that the source names, as HM_METHOD_DECLS and in hiera_ops.h.
#pragma once
#include <hiera_mini/accessor.h>
#include <hiera_mini/check.h>
#ifdef HIERA_MINI_HALF
#include <hiera_mini/half.h>
#endif

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace hiera_mini {
#ifdef HIERA_EMU
inline bool recording = false;  // Launches that are recorded keep pointers, so what they point to stays.
#endif

// What the deprecated x.type() gives. torch no longer lets AT_DISPATCH take it; HIERA_MINI_LENIENT does.
struct DeprecatedType {
  ScalarType type;
  Device device;
  bool is_cuda() const { return device.is_cuda(); }
  ScalarType scalarType() const { return type; }
  const char* toString() const { return c10::toString(type); }
#ifdef HIERA_MINI_LENIENT
  operator ScalarType() const { return type; }
#endif
};
}  // namespace hiera_mini

namespace at {
using namespace c10;
using c10::BFloat16;
using c10::Half;

constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short,
                     kInt = ScalarType::Int, kLong = ScalarType::Long, kHalf = ScalarType::Half,
                     kFloat = ScalarType::Float, kDouble = ScalarType::Double, kBool = ScalarType::Bool,
                     kBFloat16 = ScalarType::BFloat16, kComplexFloat = ScalarType::ComplexFloat,
                     kComplexDouble = ScalarType::ComplexDouble, kFloat8_e4m3fn = ScalarType::Float8_e4m3fn,
                     kFloat8_e5m2 = ScalarType::Float8_e5m2, kUInt16 = ScalarType::UInt16,
                     kUInt32 = ScalarType::UInt32, kUInt64 = ScalarType::UInt64;
constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong, kFloat16 = kHalf,
                     kFloat32 = kFloat, kFloat64 = kDouble;

// Only ever passed as an empty std::optional, by operators that draw random numbers.
class Generator {
 public:
  Generator() = delete;
  ~Generator() {}

 private:
  void* impl_;
};

class Tensor {
 public:
  Tensor() noexcept : impl_(hm_undefined()) {}
  Tensor(const Tensor& other) noexcept : impl_(other.impl_) { hm_retain(impl_); }
  Tensor(Tensor&& other) noexcept : impl_(other.impl_) { other.impl_ = hm_undefined(); }
  Tensor& operator=(const Tensor& other) & noexcept {
    Tensor copy(other);
    std::swap(impl_, copy.impl_);
    return *this;
  }
  Tensor& operator=(Tensor&& other) & noexcept {
    std::swap(impl_, other.impl_);
    return *this;
  }
  ~Tensor() {
#ifdef HIERA_EMU
    if (hiera_mini::recording) return;
#endif
    hm_release(impl_);
  }

  bool defined() const { return impl_ != hm_undefined(); }
  void reset() { *this = Tensor(); }
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  size_t use_count() const { return static_cast<size_t>(hm_use_count(this)); }
  int64_t dim() const { return hm_dim(this); }
  int64_t ndimension() const { return hm_dim(this); }
  int64_t numel() const { return hm_numel(this); }
  int64_t size(int64_t d) const { return hm_size(this, d); }
  int64_t stride(int64_t d) const { return hm_stride(this, d); }
  int64_t storage_offset() const { return hm_storage_offset(this); }
  IntArrayRef sizes() const { return {hm_sizes(this), static_cast<size_t>(hm_dim(this))}; }
  IntArrayRef strides() const { return {hm_strides(this), static_cast<size_t>(hm_dim(this))}; }
  ScalarType scalar_type() const { return static_cast<ScalarType>(hm_dtype(this)); }
  hiera_mini::TypeMeta dtype() const { return {scalar_type()}; }
  hiera_mini::DeprecatedType type() const { return {scalar_type(), device()}; }
#ifdef HIERA_EMU  // Emulated run: the candidate takes its tensors for CUDA ones.
  Device device() const { return {DeviceType::CUDA, 0}; }
  int64_t get_device() const { return 0; }
#else
  Device device() const {
    return {static_cast<DeviceType>(hm_device_type(this)), static_cast<DeviceIndex>(hm_device_index(this))};
  }
  int64_t get_device() const { return hm_device_index(this); }
#endif
  Layout layout() const { return static_cast<Layout>(hm_layout(this)); }
  bool is_cuda() const { return device().is_cuda(); }
  bool is_cpu() const { return device().is_cpu(); }
  bool is_meta() const { return device().is_meta(); }
  bool is_sparse() const { return layout() == Layout::Sparse; }
  bool requires_grad() const { return hm_requires_grad(this); }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    return hm_is_contiguous(this, static_cast<int>(format));
  }
  bool is_non_overlapping_and_dense() const { return hm_is_dense(this); }
  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    Tensor result;
    hm_contiguous(this, static_cast<int>(format), &result);
    return result;
  }
  size_t element_size() const { return elementSize(scalar_type()); }
  size_t itemsize() const { return element_size(); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * element_size(); }
  // Out of line: the host compiler is slow where each of hundreds of allocations has a copy of it.
  __attribute__((noinline)) hiera_mini::TensorOptions options() const {
    return TensorOptions().dtype(scalar_type()).device(device()).layout(layout());
  }

  void* data_ptr() const { return hm_data(this); }
  void* mutable_data_ptr() const { return hm_data(this); }
  const void* const_data_ptr() const { return hm_data(this); }
  template <typename T> T* data_ptr() const { return static_cast<T*>(typed<T>(false)); }
  template <typename T> T* mutable_data_ptr() const { return static_cast<T*>(typed<T>(false)); }
  template <typename T> const T* const_data_ptr() const { return static_cast<const T*>(typed<T>(true)); }
  template <typename T> T* data() const { return data_ptr<T>(); }

  template <typename T, size_t N> TensorAccessor<T, N> accessor() const {
    check_dim(N);
    return {data_ptr<T>(), hm_sizes(this), hm_strides(this)};
  }
  template <typename T, size_t N, template <typename U> class P = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, P> packed_accessor32() const {
    check_dim(N);
    if (numel() > std::numeric_limits<int32_t>::max())
      HM_FAIL("numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
    return {data_ptr<T>(), hm_sizes(this), hm_strides(this)};
  }
  template <typename T, size_t N, template <typename U> class P = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, P> packed_accessor64() const {
    check_dim(N);
    return {data_ptr<T>(), hm_sizes(this), hm_strides(this)};
  }
  template <typename T, size_t N, template <typename U> class P = DefaultPtrTraits, typename I = int64_t>
  GenericPackedTensorAccessor<T, N, P, I> packed_accessor() const {
    check_dim(N);
    return {data_ptr<T>(), hm_sizes(this), hm_strides(this)};
  }

#ifdef HM_METHOD_DECLS
  template <typename T> T item() const { return item().template to<T>(); }
  HM_METHOD_DECLS
#endif

 private:
  template <typename T> void* typed(bool is_const) const {
    return hm_typed_data(this, static_cast<int>(CppTypeToScalarType<std::remove_const_t<T>>::value), is_const);
  }
  void check_dim(size_t expected) const {
    if (static_cast<size_t>(dim()) != expected)
      HM_FAIL("TensorAccessor expected ", expected, " dims but tensor has ", dim());
  }
  void* impl_;
};
static_assert(sizeof(Tensor) == sizeof(void*), "at::Tensor is one pointer");
using TensorList = ArrayRef<Tensor>;

template <typename T> struct OpMathType { using type = T; };
template <> struct OpMathType<Half> { using type = float; };
template <> struct OpMathType<BFloat16> { using type = float; };
template <typename T> using opmath_type = typename OpMathType<T>::type;

// On the GPU torch accumulates float in float, and everything integral in int64_t.
template <typename T, bool is_cuda> struct AccumulateType {
  using type = std::conditional_t<
      std::is_same_v<T, bool>, bool,
      std::conditional_t<std::is_integral_v<T>, int64_t,
                         std::conditional_t<std::is_same_v<T, double> || (std::is_same_v<T, float> && !is_cuda), double,
                                            float>>>;
};
template <typename T, bool is_cuda> using acc_type = typename AccumulateType<T, is_cuda>::type;

template <typename T> inline T ceil_div(T a, T b) { return (a + b - 1) / b; }

// Memory that someone else owns. The form with a deleter is torch's own (it needs std::function).
inline Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& options = {}) {
  if (strides.size() != sizes.size()) HM_FAIL("from_blob: sizes and strides differ in length");
  const Device device = options.device();
  Tensor result;
  hm_from_blob(data, sizes.data(), strides.data(), sizes.size(), static_cast<int>(options.dtype().type),
               static_cast<int>(device.type()), device.index(), &result);
  return result;
}
inline Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& options = {}) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return from_blob(data, sizes, strides, options);
}

inline std::optional<Device> device_of(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Device>(tensor.device()) : std::nullopt;
}
}  // namespace at

// Symbols of libc10.
namespace c10 {
struct GradMode {
  static bool is_enabled();
  static void set_enabled(bool enabled);
};
class NoGradGuard {
 public:
  NoGradGuard() : previous_(GradMode::is_enabled()) { GradMode::set_enabled(false); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;
  ~NoGradGuard() { GradMode::set_enabled(previous_); }

 private:
  bool previous_;
};
}  // namespace c10

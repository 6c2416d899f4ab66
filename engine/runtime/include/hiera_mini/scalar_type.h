// Small enumerations and Device: same names, values and layouts as torch's.
#pragma once
#include <hiera_mini/runtime.h>

#include <optional>
#include <string_view>
#include <type_traits>

namespace c10 {
using std::make_optional;
using std::nullopt;
using std::nullopt_t;
using std::optional;
using std::string_view;

enum class ScalarType : int8_t {
  Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, QInt8, QUInt8,
  QInt32, BFloat16, QUInt4x2, QUInt2x4, Bits1x8, Bits2x4, Bits4x2, Bits8, Bits16, Float8_e5m2, Float8_e4m3fn,
  Float8_e5m2fnuz, Float8_e4m3fnuz, UInt16, UInt32, UInt64, Undefined = 127
};
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };
enum class Layout : int8_t { Strided, Sparse, SparseCsr, Mkldnn };
enum class DeviceType : int8_t { CPU = 0, CUDA = 1, Meta = 14 };
using DeviceIndex = int8_t;

constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kMeta = DeviceType::Meta;
constexpr Layout kStrided = Layout::Strided;

struct Device final {
  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ != -1; }
  bool is_cuda() const { return type_ == DeviceType::CUDA; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  bool is_meta() const { return type_ == DeviceType::Meta; }
  bool operator==(const Device& other) const { return type_ == other.type_ && index_ == other.index_; }
  bool operator!=(const Device& other) const { return !(*this == other); }

 private:
  DeviceType type_;
  DeviceIndex index_ = -1;
};

// Half and BFloat16 are defined in half.h, which is included only where the source needs it.
struct Half;
struct BFloat16;

template <typename T> struct CppTypeToScalarType;
#define HM_SCALAR_TYPES(_)                                                                                         \
  _(uint8_t, Byte) _(int8_t, Char) _(int16_t, Short) _(int32_t, Int) _(int64_t, Long) _(Half, Half) _(float, Float) \
  _(double, Double) _(bool, Bool) _(BFloat16, BFloat16) _(uint16_t, UInt16) _(uint32_t, UInt32) _(uint64_t, UInt64)
#define HM_TYPE_TO_SCALAR_TYPE(T, S)                                 \
  template <> struct CppTypeToScalarType<T> {                        \
    static constexpr ScalarType value = ScalarType::S;               \
  };
HM_SCALAR_TYPES(HM_TYPE_TO_SCALAR_TYPE)
template <> struct CppTypeToScalarType<long long> { static constexpr ScalarType value = ScalarType::Long; };
#undef HM_TYPE_TO_SCALAR_TYPE

namespace impl {
template <ScalarType S> struct ScalarTypeToCPPType;
#define HM_SCALAR_TYPE_TO_TYPE(T, S)                        \
  template <> struct ScalarTypeToCPPType<ScalarType::S> {   \
    using type = T;                                         \
  };
HM_SCALAR_TYPES(HM_SCALAR_TYPE_TO_TYPE)
#undef HM_SCALAR_TYPE_TO_TYPE
template <ScalarType S> using ScalarTypeToCPPTypeT = typename ScalarTypeToCPPType<S>::type;
}  // namespace impl

inline const char* toString(ScalarType type) { return hm_dtype_name(static_cast<int>(type)); }
inline size_t elementSize(ScalarType type) { return hm_element_size(static_cast<int>(type)); }
inline bool isFloatingType(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half ||
         type == ScalarType::BFloat16;
}
inline bool isReducedFloatingType(ScalarType type) { return type == ScalarType::Half || type == ScalarType::BFloat16; }
inline bool isIntegralType(ScalarType type, bool include_bool) {
  const int value = static_cast<int>(type);
  return (value >= 0 && value <= 4) || (value >= 27 && value <= 29) || (include_bool && type == ScalarType::Bool);
}
}  // namespace c10

namespace at::Reduction {  // What loss functions take for `reduction`.
enum Reduction { None, Mean, Sum, END };
}  // namespace at::Reduction

// TypeMeta and TensorOptions. Their layout differs from torch's, so they live in hiera_mini: their mangled names
// differ too, and no weak symbol of ours can take the place of one of torch's.
#pragma once
#include <hiera_mini/array_ref.h>

namespace hiera_mini {
using namespace c10;

struct TypeMeta {
  ScalarType type;
  TypeMeta(ScalarType value) : type(value) {}
  size_t itemsize() const { return elementSize(type); }
  const char* name() const { return toString(type); }
  ScalarType toScalarType() const { return type; }
};
inline bool operator==(TypeMeta a, TypeMeta b) { return a.type == b.type; }
inline bool operator!=(TypeMeta a, TypeMeta b) { return a.type != b.type; }
inline bool operator==(TypeMeta a, ScalarType b) { return a.type == b; }
inline bool operator!=(TypeMeta a, ScalarType b) { return a.type != b; }
inline bool operator==(ScalarType a, TypeMeta b) { return a == b.type; }
inline bool operator!=(ScalarType a, TypeMeta b) { return a != b.type; }

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(TypeMeta type) : dtype_(type.type) {}
  TensorOptions(Device device) : device_(device) {}
  TensorOptions(DeviceType type) : device_(Device(type)) {}
  TensorOptions(Layout layout) : layout_(layout) {}
  TensorOptions(MemoryFormat format) : memory_format_(format) {}

  TensorOptions dtype(std::optional<ScalarType> type) const { return with(&TensorOptions::dtype_, type); }
  TensorOptions dtype(ScalarType type) const { return dtype(std::optional<ScalarType>(type)); }
  TensorOptions dtype(TypeMeta type) const { return dtype(type.type); }
  template <typename T> TensorOptions dtype() const { return dtype(CppTypeToScalarType<T>::value); }
  TensorOptions device(std::optional<Device> value) const { return with(&TensorOptions::device_, value); }
  TensorOptions device(Device value) const { return device(std::optional<Device>(value)); }
  TensorOptions device(DeviceType type, DeviceIndex index = -1) const {
    return device(std::optional<Device>(Device(type, index)));
  }
  TensorOptions device_index(DeviceIndex index) const { return device(DeviceType::CUDA, index); }
  TensorOptions layout(std::optional<Layout> value) const { return with(&TensorOptions::layout_, value); }
  TensorOptions pinned_memory(std::optional<bool> value) const { return with(&TensorOptions::pinned_, value); }
  TensorOptions requires_grad(std::optional<bool> value) const { return with(&TensorOptions::requires_grad_, value); }
  TensorOptions memory_format(std::optional<MemoryFormat> value) const {
    return with(&TensorOptions::memory_format_, value);
  }

  TypeMeta dtype() const { return dtype_.value_or(ScalarType::Float); }
  Device device() const { return device_.value_or(Device(DeviceType::CPU)); }
  Layout layout() const { return layout_.value_or(Layout::Strided); }
  bool requires_grad() const { return requires_grad_.value_or(false); }
  std::optional<ScalarType> dtype_opt() const { return dtype_; }
  std::optional<Layout> layout_opt() const { return layout_; }
  std::optional<bool> pinned_memory_opt() const { return pinned_; }
  std::optional<MemoryFormat> memory_format_opt() const { return memory_format_; }
#ifdef HIERA_EMU  // Emulated run: the tensors that the candidate takes for CUDA ones live on the CPU.
  std::optional<Device> device_opt() const {
    return device_ && device_->is_cuda() ? std::optional<Device>(Device(DeviceType::CPU)) : device_;
  }
#else
  std::optional<Device> device_opt() const { return device_; }
#endif

 private:
  template <typename M, typename V> TensorOptions with(M TensorOptions::*member, V value) const {
    TensorOptions copy = *this;
    copy.*member = value;
    return copy;
  }
  std::optional<ScalarType> dtype_;
  std::optional<Layout> layout_;
  std::optional<Device> device_;
  std::optional<bool> pinned_, requires_grad_;
  std::optional<MemoryFormat> memory_format_;
};
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions dtype(TypeMeta type) { return TensorOptions(type); }
template <typename T> TensorOptions dtype() { return TensorOptions(CppTypeToScalarType<T>::value); }
inline TensorOptions device(Device value) { return TensorOptions(value); }
inline TensorOptions device(DeviceType type, DeviceIndex index = -1) { return TensorOptions(Device(type, index)); }
inline TensorOptions layout(Layout value) { return TensorOptions(value); }
inline TensorOptions requires_grad(bool value = true) { return TensorOptions().requires_grad(value); }
inline TensorOptions memory_format(MemoryFormat value) { return TensorOptions(value); }
}  // namespace hiera_mini

namespace caffe2 {
using hiera_mini::TypeMeta;
}

namespace c10 {
using hiera_mini::device;
using hiera_mini::dtype;
using hiera_mini::layout;
using hiera_mini::memory_format;
using hiera_mini::requires_grad;
using hiera_mini::TensorOptions;
// Called by the bodies that are cut out of torch's generated headers.
inline std::optional<ScalarType> optTypeMetaToScalarType(std::optional<ScalarType> type) { return type; }
inline ScalarType typeMetaToScalarType(hiera_mini::TypeMeta type) { return type.type; }
namespace impl {
inline std::optional<MemoryFormat> check_tensor_options_and_extract_memory_format(
    const TensorOptions& options, std::optional<MemoryFormat> format) {
  return format ? format : options.memory_format_opt();
}
}  // namespace impl
}  // namespace c10

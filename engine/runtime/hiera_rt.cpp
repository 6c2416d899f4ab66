// libhiera_rt.so: compiled once per torch install, with torch's real headers.
//
// The functions behind hiera_mini/runtime.h, and the proof that hiera_mini's layouts are this torch's: a torch that
// changes one of them fails here, and then every candidate is built with the real headers instead.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/Scalar.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstring>
#include <type_traits>

static_assert(sizeof(at::Tensor) == sizeof(void*));
static_assert(sizeof(c10::Scalar) == 32 && alignof(c10::Scalar) == 16);
static_assert(sizeof(c10::SymInt) == 8 && sizeof(c10::Device) == 2 && sizeof(c10::IntArrayRef) == 16);
static_assert(sizeof(at::OptionalIntArrayRef) == 24 && std::is_trivially_copyable_v<at::OptionalIntArrayRef>);
static_assert(!std::is_trivially_copyable_v<c10::SymInt>);
static_assert(std::is_trivially_copyable_v<c10::Device> && std::is_trivially_copyable_v<c10::IntArrayRef>);
template <typename E> constexpr bool is_byte = std::is_same_v<std::underlying_type_t<E>, int8_t>;
static_assert(is_byte<c10::ScalarType> && is_byte<c10::Layout> && is_byte<c10::MemoryFormat>);
static_assert(is_byte<c10::DeviceType>);
static_assert(std::is_same_v<std::optional<at::Tensor>, ::std::optional<at::Tensor>>);

#define SAME_VALUE(NAME, VALUE) static_assert(static_cast<int>(c10::ScalarType::NAME) == (VALUE))
SAME_VALUE(Byte, 0);
SAME_VALUE(Char, 1);
SAME_VALUE(Short, 2);
SAME_VALUE(Int, 3);
SAME_VALUE(Long, 4);
SAME_VALUE(Half, 5);
SAME_VALUE(Float, 6);
SAME_VALUE(Double, 7);
SAME_VALUE(ComplexFloat, 9);
SAME_VALUE(Bool, 11);
SAME_VALUE(BFloat16, 15);
SAME_VALUE(Float8_e5m2, 23);
SAME_VALUE(Float8_e4m3fn, 24);
SAME_VALUE(UInt16, 27);
SAME_VALUE(UInt64, 29);
static_assert(int(c10::DeviceType::CUDA) == 1 && int(c10::MemoryFormat::ChannelsLast) == 2);
static_assert(int(c10::Layout::Strided) == 0);

static const at::Tensor& as_tensor(const void* p) { return *static_cast<const at::Tensor*>(p); }
static c10::TensorImpl* undefined() { return c10::UndefinedTensorImpl::singleton(); }

#define API extern "C" __attribute__((visibility("default")))

API void* hm_undefined() noexcept { return undefined(); }
API void hm_retain(void* impl) noexcept {
  if (impl != undefined()) c10::raw::intrusive_ptr::incref(static_cast<c10::TensorImpl*>(impl));
}
API void hm_release(void* impl) noexcept {
  if (impl != undefined()) c10::raw::intrusive_ptr::decref(static_cast<c10::TensorImpl*>(impl));
}
API int64_t hm_use_count(const void* t) { return static_cast<int64_t>(as_tensor(t).use_count()); }

API int64_t hm_dim(const void* t) { return as_tensor(t).dim(); }
API int64_t hm_numel(const void* t) { return as_tensor(t).numel(); }
API int64_t hm_storage_offset(const void* t) { return as_tensor(t).storage_offset(); }
API const int64_t* hm_sizes(const void* t) { return as_tensor(t).sizes().data(); }
API const int64_t* hm_strides(const void* t) { return as_tensor(t).strides().data(); }
API int64_t hm_size(const void* t, int64_t dim) { return as_tensor(t).size(dim); }
API int64_t hm_stride(const void* t, int64_t dim) { return as_tensor(t).stride(dim); }
API int hm_dtype(const void* t) { return static_cast<int>(as_tensor(t).scalar_type()); }
API int hm_device_type(const void* t) { return static_cast<int>(as_tensor(t).device().type()); }
API int hm_device_index(const void* t) { return as_tensor(t).device().index(); }
API int hm_layout(const void* t) { return static_cast<int>(as_tensor(t).layout()); }
API bool hm_requires_grad(const void* t) { return as_tensor(t).requires_grad(); }
API bool hm_is_contiguous(const void* t, int format) {
  return as_tensor(t).is_contiguous(static_cast<c10::MemoryFormat>(format));
}
API bool hm_is_dense(const void* t) { return as_tensor(t).is_non_overlapping_and_dense(); }
API void* hm_data(const void* t) { return as_tensor(t).mutable_data_ptr(); }
API void* hm_typed_data(const void* t, int dtype, bool is_const) {
  const at::Tensor& tensor = as_tensor(t);
  TORCH_CHECK(static_cast<int>(tensor.scalar_type()) == dtype, "expected scalar type ",
              static_cast<c10::ScalarType>(dtype), " but found ", tensor.scalar_type());
  return is_const ? const_cast<void*>(tensor.const_data_ptr()) : tensor.mutable_data_ptr();
}
API size_t hm_element_size(int dtype) { return c10::elementSize(static_cast<c10::ScalarType>(dtype)); }
API const char* hm_dtype_name(int dtype) { return c10::toString(static_cast<c10::ScalarType>(dtype)); }

API void hm_scalar_double(void* p, double value) { new (p) c10::Scalar(value); }
API void hm_scalar_int(void* p, int64_t value) { new (p) c10::Scalar(value); }
API void hm_scalar_bool(void* p, bool value) { new (p) c10::Scalar(value); }
API double hm_scalar_to_double(const void* p) { return static_cast<const c10::Scalar*>(p)->toDouble(); }
API int64_t hm_scalar_to_int(const void* p) { return static_cast<const c10::Scalar*>(p)->toLong(); }
API bool hm_scalar_is_floating(const void* p) { return static_cast<const c10::Scalar*>(p)->isFloatingPoint(); }

API void hm_throw(const char* file, int line, const char* function, const char* message) {
  throw c10::Error({function, file, static_cast<uint32_t>(line)}, message);
}

API void hm_contiguous(const void* t, int format, void* out) {
  *static_cast<at::Tensor*>(out) = as_tensor(t).contiguous(static_cast<c10::MemoryFormat>(format));
}
API void hm_cat(const void* tensors, size_t count, int64_t dim, void* out) {
  *static_cast<at::Tensor*>(out) = at::cat(at::TensorList(static_cast<const at::Tensor*>(tensors), count), dim);
}
API void hm_from_blob(void* data, const int64_t* sizes, const int64_t* strides, size_t dims, int dtype, int device_type,
                      int device_index, void* out) {
  const c10::Device device(static_cast<c10::DeviceType>(device_type), static_cast<c10::DeviceIndex>(device_index));
  *static_cast<at::Tensor*>(out) =
      at::for_blob(data, at::IntArrayRef(sizes, dims))
          .strides(at::IntArrayRef(strides, dims))
          .target_device(device)
          .options(at::TensorOptions().dtype(static_cast<c10::ScalarType>(dtype)).device(device))
          .make_tensor();
}

// torch's CUDA half is not linked: the same library serves a CPU-only torch, where there is no stream.
static void* cuda_function(const char* name) {
  static void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  return library ? dlsym(library, name) : nullptr;
}
API void* hm_cuda_stream(int device) {
  using Get = int (*)(int32_t, void**);
  static const Get get = reinterpret_cast<Get>(cuda_function("aoti_torch_get_current_cuda_stream"));
  void* stream = nullptr;
  if (get) get(device, &stream);
  return stream;
}
API void* hm_open_stream_guard(void* stream, int device) {
  using Open = int (*)(void*, int32_t, void**);
  static const Open open = reinterpret_cast<Open>(cuda_function("aoti_torch_create_cuda_stream_guard"));
  void* guard = nullptr;
  if (open) open(stream, device, &guard);
  return guard;
}
API void hm_close_stream_guard(void* guard) {
  using Close = int (*)(void*);
  static const Close close = reinterpret_cast<Close>(cuda_function("aoti_torch_delete_cuda_stream_guard"));
  if (close && guard) close(guard);
}

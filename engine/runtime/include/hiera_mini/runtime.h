// The C functions of libhiera_rt.so (../../hiera_rt.cpp). It is compiled once per torch install with torch's
// real headers and holds everything that needs the insides of TensorImpl. `const void*` is a `const at::Tensor*`.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
// Tensor handles: the intrusive pointer that a Tensor holds.
void* hm_undefined() noexcept;
void hm_retain(void* impl) noexcept;
void hm_release(void* impl) noexcept;
int64_t hm_use_count(const void* tensor);

// Metadata.
int64_t hm_dim(const void* tensor);
int64_t hm_numel(const void* tensor);
int64_t hm_storage_offset(const void* tensor);
const int64_t* hm_sizes(const void* tensor);
const int64_t* hm_strides(const void* tensor);
int64_t hm_size(const void* tensor, int64_t dim);
int64_t hm_stride(const void* tensor, int64_t dim);
int hm_dtype(const void* tensor);
int hm_device_type(const void* tensor);
int hm_device_index(const void* tensor);
int hm_layout(const void* tensor);
bool hm_requires_grad(const void* tensor);
bool hm_is_contiguous(const void* tensor, int memory_format);
bool hm_is_dense(const void* tensor);
void* hm_data(const void* tensor);
void* hm_typed_data(const void* tensor, int dtype, bool is_const);
size_t hm_element_size(int dtype);
const char* hm_dtype_name(int dtype);

// Scalars: 32 bytes, aligned to 16, trivially movable.
void hm_scalar_double(void* scalar, double value);
void hm_scalar_int(void* scalar, int64_t value);
void hm_scalar_bool(void* scalar, bool value);
double hm_scalar_to_double(const void* scalar);
int64_t hm_scalar_to_int(const void* scalar);
bool hm_scalar_is_floating(const void* scalar);

// Errors arrive in Python as RuntimeError, as torch's own do.
[[noreturn]] void hm_throw(const char* file, int line, const char* function, const char* message);

// The current stream of a device (-1: the current device); null where torch has no CUDA.
void* hm_cuda_stream(int device);
// Makes a stream torch's current one until the guard is closed; null where torch has no CUDA.
void* hm_open_stream_guard(void* stream, int device);
void hm_close_stream_guard(void* guard);

// Operators whose C++ signatures the generated declarations cannot carry.
void hm_cat(const void* tensors, size_t count, int64_t dim, void* out);
void hm_contiguous(const void* tensor, int memory_format, void* out);
void hm_from_blob(void* data, const int64_t* sizes, const int64_t* strides, size_t dims, int dtype, int device_type,
                  int device_index, void* out);
}

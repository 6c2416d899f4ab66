// Messages and the TORCH_CHECK family. No <string>: parsing it costs 0.2 s a candidate, so text goes through a buffer.
#pragma once
#include <cuda_runtime.h>
#include <hiera_mini/options.h>

#include <cstdio>

namespace hiera_mini {
class Message {
 public:
  const char* c_str() const { return text_; }
#ifdef HIERA_MINI_STRING  // The source names std::string, so <string> is included already.
  operator std::string() const { return text_; }
#endif
  void put(const char* text) {
    if (!text) text = "(null)";
    while (*text && length_ + 1 < sizeof text_) text_[length_++] = *text++;
    text_[length_] = 0;
  }

 private:
  char text_[2048] = {0};
  size_t length_ = 0;
};

inline void append(Message& out, const char* text) { out.put(text); }
inline void append(Message& out, char* text) { out.put(text); }
inline void append(Message& out, char value) {
  const char text[2] = {value, 0};
  out.put(text);
}
inline void append(Message& out, bool value) { out.put(value ? "1" : "0"); }
inline void append(Message& out, ScalarType type) { out.put(toString(type)); }
inline void append(Message& out, TypeMeta type) { out.put(toString(type.type)); }
inline void append(Message& out, long long value) {
  char text[24];
  std::snprintf(text, sizeof text, "%lld", value);
  out.put(text);
}
inline void append(Message& out, double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%g", value);
  out.put(text);
}
inline void append(Message& out, DeviceType type) {
  out.put(type == DeviceType::CUDA ? "cuda" : type == DeviceType::CPU ? "cpu" : "device");
}
inline void append(Message& out, Device device) {
  append(out, device.type());
  if (device.has_index()) {
    out.put(":");
    append(out, static_cast<long long>(device.index()));
  }
}
inline void append(Message& out, std::string_view text) {
  for (char c : text) append(out, c);
}
inline void append(Message& out, IntArrayRef values) {
  out.put("[");
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out.put(", ");
    append(out, static_cast<long long>(values[i]));
  }
  out.put("]");
}
template <typename T, std::enable_if_t<std::is_integral_v<T> || std::is_enum_v<T>, int> = 0>
void append(Message& out, T value) {
  append(out, static_cast<long long>(value));
}
template <typename T, std::enable_if_t<std::is_floating_point_v<T> && !std::is_same_v<T, double>, int> = 0>
void append(Message& out, T value) {
  append(out, static_cast<double>(value));
}
template <typename T> auto append(Message& out, const T& text) -> decltype(text.c_str(), void()) {
  out.put(text.c_str());
}

template <typename... A> Message message(const A&... parts) {
  Message out;
  (append(out, parts), ...);
  return out;
}
inline Message check_message(const char* condition) {
  return message("Expected ", condition, " to be true, but got false.");
}
template <typename... A> Message check_message(const char*, const A&... parts) { return message(parts...); }

// Failing is out of line: a host function checks after every launch, and the host compiler is slow where each check
// has a buffer of its own. Parts are taken by value: a reference would need the address of `static const int` members,
// which sources declare and do not define.
template <typename... A>
[[noreturn]] __attribute__((noinline, cold)) void fail(const char* file, int line, const char* function, A... parts) {
  hm_throw(file, line, function, message(parts...).c_str());
}
template <typename... A>
[[noreturn]] __attribute__((noinline, cold)) void fail_check(const char* file, int line, const char* function,
                                                             const char* condition, A... parts) {
  hm_throw(file, line, function, check_message(condition, parts...).c_str());
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_cuda(const char* file, int line, const char* function,
                                                                   cudaError_t error) {
  (void)cudaGetLastError();
  fail(file, line, function, "CUDA error: ", cudaGetErrorString(error));
}
}  // namespace hiera_mini

#define HM_FAIL(...) ::hiera_mini::fail(__FILE__, __LINE__, __func__, __VA_ARGS__)
#define TORCH_CHECK(condition, ...)                                                                       \
  do {                                                                                                    \
    if (!(condition)) ::hiera_mini::fail_check(__FILE__, __LINE__, __func__, #condition, ##__VA_ARGS__); \
  } while (0)
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(...) ((void)0)
#define TORCH_CHECK_INDEX TORCH_CHECK
#define TORCH_CHECK_VALUE TORCH_CHECK
#define TORCH_CHECK_TYPE TORCH_CHECK
#define TORCH_CHECK_LINALG TORCH_CHECK
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define TORCH_CHECK_EQ(a, b) TORCH_CHECK((a) == (b), "Check failed: " #a " == " #b)
#define TORCH_CHECK_NE(a, b) TORCH_CHECK((a) != (b), "Check failed: " #a " != " #b)
#define TORCH_CHECK_LE(a, b) TORCH_CHECK((a) <= (b), "Check failed: " #a " <= " #b)
#define TORCH_CHECK_LT(a, b) TORCH_CHECK((a) < (b), "Check failed: " #a " < " #b)
#define TORCH_CHECK_GE(a, b) TORCH_CHECK((a) >= (b), "Check failed: " #a " >= " #b)
#define TORCH_CHECK_GT(a, b) TORCH_CHECK((a) > (b), "Check failed: " #a " > " #b)
#define AT_ASSERT TORCH_CHECK
#define AT_ASSERTM TORCH_CHECK
#define AT_ERROR(...) HM_FAIL(__VA_ARGS__)
#define TORCH_WARN(...) ((void)0)
#define TORCH_WARN_ONCE(...) ((void)0)
#define AT_WARN(...) ((void)0)

#define C10_CUDA_CHECK(call)                                                                      \
  do {                                                                                            \
    const cudaError_t hm_error = (call);                                                          \
    if (hm_error != cudaSuccess) ::hiera_mini::fail_cuda(__FILE__, __LINE__, __func__, hm_error); \
  } while (0)
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define TORCH_CUDABLAS_CHECK(call)                                                                \
  do {                                                                                            \
    const auto hm_status = (call);                                                                \
    if (static_cast<int>(hm_status) != 0)                                                         \
      HM_FAIL("CUDA error: cuBLAS status ", static_cast<int>(hm_status));                         \
  } while (0)

#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_RESTRICT __restrict__
#define C10_UNUSED [[maybe_unused]]
#define C10_ALWAYS_INLINE inline __attribute__((always_inline))
#define C10_LIKELY(x) (__builtin_expect(static_cast<bool>(x), 1))
#define C10_UNLIKELY(x) (__builtin_expect(static_cast<bool>(x), 0))
#define C10_LAUNCH_BOUNDS_1(a) __launch_bounds__(a)
#define C10_LAUNCH_BOUNDS_2(a, b) __launch_bounds__(a, b)
#define C10_WARP_SIZE 32

namespace c10 {
template <typename... A> hiera_mini::Message str(const A&... parts) { return hiera_mini::message(parts...); }
}

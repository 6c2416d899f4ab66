// SymInt, ArrayRef, OptionalArrayRef and Scalar, with torch's layouts (hiera_rt.cpp checks them when it is compiled).
#pragma once
#include <hiera_mini/scalar_type.h>

#include <array>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace c10 {

class SymInt {
 public:
  SymInt(int64_t value = 0) : data_(value) {}
  // Not trivially copyable in torch, so it is passed by reference there: it must be so here too.
  SymInt(const SymInt& other) : data_(other.data_) {}
  SymInt& operator=(const SymInt& other) {
    data_ = other.data_;
    return *this;
  }
  ~SymInt() {}
  operator int64_t() const { return data_; }
  int64_t expect_int() const { return data_; }
  int64_t guard_int(const char*, int64_t) const { return data_; }

 private:
  int64_t data_;
};

template <typename T> class ArrayRef {
 public:
  using value_type = T;
  using iterator = const T*;
  using const_iterator = const T*;
  using size_type = size_t;

  constexpr ArrayRef() : data_(nullptr), length_(0) {}
  constexpr ArrayRef(const T& element) : data_(&element), length_(1) {}
  constexpr ArrayRef(const T* data, size_t length) : data_(data), length_(length) {}
  constexpr ArrayRef(const T* begin, const T* end) : data_(begin), length_(end - begin) {}
  template <typename A> ArrayRef(const std::vector<T, A>& v) : data_(v.data()), length_(v.size()) {
    static_assert(!std::is_same_v<T, bool>, "ArrayRef<bool> cannot be made from std::vector<bool>");
  }
  template <size_t N> constexpr ArrayRef(const std::array<T, N>& a) : data_(a.data()), length_(N) {}
  template <size_t N> constexpr ArrayRef(const T (&a)[N]) : data_(a), length_(N) {}
  constexpr ArrayRef(const std::initializer_list<T>& list)
      : data_(list.begin() == list.end() ? nullptr : list.begin()), length_(list.size()) {}

  constexpr const T* begin() const { return data_; }
  constexpr const T* end() const { return data_ + length_; }
  constexpr const T* data() const { return data_; }
  constexpr size_t size() const { return length_; }
  constexpr bool empty() const { return !length_; }
  constexpr const T& operator[](size_t i) const { return data_[i]; }
  const T& at(size_t i) const {
    if (i >= length_) hm_throw(__FILE__, __LINE__, __func__, "ArrayRef: invalid index");
    return data_[i];
  }
  const T& front() const { return at(0); }
  const T& back() const { return at(length_ - 1); }
  ArrayRef slice(size_t first, size_t count) const { return {data_ + first, count}; }
  ArrayRef slice(size_t first) const { return {data_ + first, length_ - first}; }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  bool equals(ArrayRef other) const {
    if (other.length_ != length_) return false;
    for (size_t i = 0; i < length_; ++i)
      if (!(data_[i] == other.data_[i])) return false;
    return true;
  }

 private:
  const T* data_;
  size_t length_;
};
template <typename T> bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); }
template <typename T> bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
template <typename T> bool operator==(ArrayRef<T> a, const std::vector<T>& b) { return a.equals(b); }
template <typename T> bool operator!=(ArrayRef<T> a, const std::vector<T>& b) { return !a.equals(b); }
template <typename T> bool operator==(const std::vector<T>& a, ArrayRef<T> b) { return b.equals(a); }

using IntArrayRef = ArrayRef<int64_t>;
using SymIntArrayRef = ArrayRef<SymInt>;
inline SymIntArrayRef fromIntArrayRefSlow(IntArrayRef a) {
  return {reinterpret_cast<const SymInt*>(a.data()), a.size()};
}
inline IntArrayRef asIntArrayRefUnchecked(SymIntArrayRef a) {
  return {reinterpret_cast<const int64_t*>(a.data()), a.size()};
}

template <typename T> class OptionalArrayRef final {
 public:
  constexpr OptionalArrayRef() noexcept = default;
  constexpr OptionalArrayRef(std::nullopt_t) noexcept {}
  OptionalArrayRef(const OptionalArrayRef&) = default;
  OptionalArrayRef& operator=(const OptionalArrayRef&) = default;
  OptionalArrayRef(ArrayRef<T> array) : wrapped_(array) {}
  OptionalArrayRef(const std::optional<ArrayRef<T>>& array) : wrapped_(array) {}
  OptionalArrayRef(const T& value) : wrapped_(ArrayRef<T>(value)) {}
  OptionalArrayRef(const std::vector<T>& v) : wrapped_(ArrayRef<T>(v)) {}
  OptionalArrayRef(const std::initializer_list<T>& list) : wrapped_(ArrayRef<T>(list)) {}
  bool has_value() const { return wrapped_.has_value(); }
  explicit operator bool() const { return wrapped_.has_value(); }
  const ArrayRef<T>& value() const { return wrapped_.value(); }
  const ArrayRef<T>& operator*() const { return *wrapped_; }
  const ArrayRef<T>* operator->() const { return &*wrapped_; }

 private:
  std::optional<ArrayRef<T>> wrapped_;
};
using OptionalIntArrayRef = OptionalArrayRef<int64_t>;
using OptionalSymIntArrayRef = OptionalArrayRef<SymInt>;

class Scalar {
 public:
  Scalar() { hm_scalar_int(bytes_, 0); }
  template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0> Scalar(T value) {
    if constexpr (std::is_same_v<T, bool>) hm_scalar_bool(bytes_, value);
    else if constexpr (std::is_integral_v<T>) hm_scalar_int(bytes_, static_cast<int64_t>(value));
    else hm_scalar_double(bytes_, static_cast<double>(value));
  }
  Scalar(const Scalar& other) { std::memcpy(bytes_, other.bytes_, sizeof bytes_); }
  Scalar& operator=(const Scalar& other) {
    std::memcpy(bytes_, other.bytes_, sizeof bytes_);
    return *this;
  }
  ~Scalar() {}
  bool isFloatingPoint() const { return hm_scalar_is_floating(bytes_); }
  double toDouble() const { return hm_scalar_to_double(bytes_); }
  float toFloat() const { return static_cast<float>(toDouble()); }
  int64_t toLong() const { return hm_scalar_to_int(bytes_); }
  int toInt() const { return static_cast<int>(toLong()); }
  bool toBool() const { return toDouble() != 0; }
  template <typename T> T to() const {
    if constexpr (std::is_same_v<T, bool>) return toBool();
    else if constexpr (std::is_integral_v<T>) return static_cast<T>(toLong());
    else return static_cast<T>(toDouble());
  }

 private:
  alignas(16) unsigned char bytes_[32];
};
}  // namespace c10

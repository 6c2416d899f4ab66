// c10::irange.
#pragma once
#include <cstdint>
#include <type_traits>

namespace hiera_mini {
template <typename I> struct IntegerRange {
  struct iterator {
    I value;
    I operator*() const { return value; }
    iterator& operator++() {
      ++value;
      return *this;
    }
    bool operator!=(const iterator& other) const { return value != other.value; }
  };
  I first, last;
  iterator begin() const { return {first}; }
  iterator end() const { return {last}; }
};
}  // namespace hiera_mini

namespace c10 {
template <typename A, typename B, std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B>, int> = 0>
hiera_mini::IntegerRange<B> irange(A begin, B end) {
  const B first = static_cast<B>(begin);
  return {first, end < first ? first : end};
}
template <typename I, std::enable_if_t<std::is_integral_v<I>, int> = 0>
hiera_mini::IntegerRange<I> irange(I end) {
  return {I(0), end < I(0) ? I(0) : end};
}
}  // namespace c10

// A PYBIND11_MODULE inside cuda_source.cu: the contract's cpp_source.cpp is the binding, so this one is parsed and
// dropped. pybind11 is a forward here, never the real library.
#pragma once

namespace hiera_mini {
struct Module {
  template <typename... A> Module& def(A&&...) { return *this; }
  template <typename... A> Module& attr(A&&...) { return *this; }
  const char*& doc() {
    static const char* text;
    return text;
  }
};
}  // namespace hiera_mini

#ifndef TORCH_EXTENSION_NAME
#define TORCH_EXTENSION_NAME hm_extension
#endif
#define PYBIND11_MODULE(name, variable) [[maybe_unused]] static void hm_unused_binding(::hiera_mini::Module& variable)

namespace pybind11 {
using module = ::hiera_mini::Module;
using module_ = ::hiera_mini::Module;
struct arg {
  arg(const char*) {}
  template <typename T> arg& operator=(T&&) { return *this; }
};
template <typename... A> struct call_guard {};
struct gil_scoped_release {};
}  // namespace pybind11
namespace py = pybind11;

// torch/extension.h for the contract's binding alone: what passes tensors and numbers between Python and the host
// function, without torch's and pybind11's headers, which take a compiler seconds. A binding that needs more does not
// compile here, and is then compiled with the real ones. Tensors are one pointer, as in torch; libhiera_rt.so counts
// their references and libhiera_py.so knows Python's side of them.
#pragma once
#include <Python.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

extern "C" {
void* hm_undefined() noexcept;
void hm_retain(void* impl) noexcept;
void hm_release(void* impl) noexcept;
// A new reference to the tensor in a Python object; null where it holds none.
void* hp_unpack(PyObject* object);
// A Python object for a tensor, whose reference it takes.
PyObject* hp_wrap(void* impl);
}

namespace at {
class Tensor {
 public:
  Tensor() noexcept : impl_(hm_undefined()) {}
  explicit Tensor(void* taken) noexcept : impl_(taken) {}
  Tensor(const Tensor& other) noexcept : impl_(other.impl_) { hm_retain(impl_); }
  Tensor(Tensor&& other) noexcept : impl_(other.impl_) { other.impl_ = hm_undefined(); }
  Tensor& operator=(Tensor other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
  }
  ~Tensor() { hm_release(impl_); }
  void* release() noexcept { return std::exchange(impl_, hm_undefined()); }

 private:
  void* impl_;
};
}  // namespace at

namespace c10 {
using std::nullopt;
using std::optional;
}  // namespace c10

namespace torch {
using at::Tensor;
using std::nullopt;
using std::optional;
}  // namespace torch

namespace pybind11 {
struct type_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace pybind11

namespace hiera_binding {
[[noreturn]] inline void refuse(const char* wanted, PyObject* given) {
  throw pybind11::type_error(std::string("expected ") + wanted + ", not " + Py_TYPE(given)->tp_name);
}

template <typename T> struct From;  // Not defined for types that need torch's own headers.

template <> struct From<at::Tensor> {
  static at::Tensor take(PyObject* object) {
    void* impl = hp_unpack(object);
    if (!impl) refuse("a tensor", object);
    return at::Tensor(impl);
  }
};
template <> struct From<bool> {
  static bool take(PyObject* object) {
    const PyNumberMethods* methods = Py_TYPE(object)->tp_as_number;
    if (object != Py_None && !(methods && methods->nb_bool)) refuse("a bool", object);
    const int value = PyObject_IsTrue(object);
    if (value >= 0) return value > 0;
    PyErr_Clear();
    refuse("a bool", object);
  }
};
template <typename T>
  requires(std::is_integral_v<T>)
struct From<T> {
  using Wide = std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
  static T take(PyObject* object) {
    if (!PyIndex_Check(object)) refuse("an int", object);
    PyObject* number = PyNumber_Index(object);
    const auto value = !number ? Wide(-1) : std::is_signed_v<T> ? Wide(PyLong_AsLongLong(number))
                                                                : Wide(PyLong_AsUnsignedLongLong(number));
    Py_XDECREF(number);
    if (value == Wide(-1) && PyErr_Occurred()) {
      PyErr_Clear();
      refuse(std::is_signed_v<T> ? "an int of 64 bits" : "an int of 64 bits and no sign", object);
    }
    // Not for characters, which pybind11 takes from a str.
    if (!std::in_range<T>(value)) refuse("a smaller int", object);
    return static_cast<T>(value);
  }
};
template <typename T>
  requires(std::is_floating_point_v<T>)
struct From<T> {
  static T take(PyObject* object) {
    const double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      refuse("a float", object);
    }
    return static_cast<T>(value);
  }
};
template <> struct From<std::string> {
  static std::string take(PyObject* object) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
    if (!text) {
      PyErr_Clear();
      refuse("a str", object);
    }
    return std::string(text, static_cast<std::size_t>(size));
  }
};
template <typename T> struct From<std::optional<T>> {
  static std::optional<T> take(PyObject* object) {
    return object == Py_None ? std::nullopt : std::optional<T>(From<T>::take(object));
  }
};
template <typename T> struct From<std::vector<T>> {
  static std::vector<T> take(PyObject* object) {
    if (!PyList_Check(object) && !PyTuple_Check(object)) refuse("a list", object);
    std::vector<T> values;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      values.push_back(From<T>::take(PySequence_Fast_GET_ITEM(object, i)));
    }
    return values;
  }
};

inline PyObject* none() {
  Py_INCREF(Py_None);
  return Py_None;
}
// Declared first: they hold one another.
template <typename T> PyObject* give(std::optional<T> value);
template <typename... T> PyObject* give(std::tuple<T...> values);
template <typename T> PyObject* give(std::vector<T> values);
inline PyObject* give(at::Tensor value) { return hp_wrap(value.release()); }
// Nothing else turns into a bool, as a pointer would.
template <std::same_as<bool> T> PyObject* give(T value) { return PyBool_FromLong(value); }
inline PyObject* give(const std::string& text) {
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}
inline PyObject* give(double value) { return PyFloat_FromDouble(value); }
inline PyObject* give(std::int64_t value) { return PyLong_FromLongLong(value); }
template <typename T> PyObject* give(std::optional<T> value) {
  return value ? give(std::move(*value)) : none();
}
// Takes the items' references; null, with Python's error set, where one of them is null.
inline PyObject* filled(PyObject* sequence, const std::vector<PyObject*>& items, bool list) {
  bool whole = sequence != nullptr;
  for (PyObject* item : items) whole = whole && item;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!whole) {
      Py_XDECREF(items[i]);
    } else if (list) {
      PyList_SET_ITEM(sequence, static_cast<Py_ssize_t>(i), items[i]);
    } else {
      PyTuple_SET_ITEM(sequence, static_cast<Py_ssize_t>(i), items[i]);
    }
  }
  if (!whole) Py_CLEAR(sequence);
  return sequence;
}
template <typename... T> PyObject* give(std::tuple<T...> values) {
  const std::vector<PyObject*> items =
      std::apply([](auto&... value) { return std::vector<PyObject*>{give(std::move(value))...}; }, values);
  return filled(PyTuple_New(static_cast<Py_ssize_t>(items.size())), items, false);
}
template <typename T> PyObject* give(std::vector<T> values) {
  std::vector<PyObject*> items;
  for (T& value : values) items.push_back(give(std::move(value)));
  return filled(PyList_New(static_cast<Py_ssize_t>(items.size())), items, true);
}

struct Given {
  PyObject* tuple;
  std::size_t size() const { return static_cast<std::size_t>(PyTuple_GET_SIZE(tuple)); }
  struct Item {
    PyObject* object;
    template <typename T> T cast() const { return From<T>::take(object); }
  };
  Item operator[](std::size_t place) const {
    if (place >= size()) throw std::out_of_range("there are fewer arguments");
    return {PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(place))};
  }
};

template <typename F> PyObject* answer(const F& call) {
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    return none();
  } else {
    return give(call());
  }
}

struct Function {
  virtual ~Function() = default;
  virtual PyObject* call(const Given& given) const = 0;
};
template <typename F> struct Of;  // A function of these types, made from anything that is called like it.
template <typename R, typename... A> struct Of<R(A...)> {
  template <typename F> struct Made : Function {
    const char* name;
    F function;
    Made(const char* called, F given) : name(called), function(std::move(given)) {}
    PyObject* call(const Given& given) const override { return spread(given, std::index_sequence_for<A...>()); }
    template <std::size_t... I> PyObject* spread(const Given& given, std::index_sequence<I...>) const {
      if constexpr (std::is_same_v<std::tuple<std::decay_t<A>...>, std::tuple<Given>>) {
        return answer([&] { return function(given); });
      } else {
        if (given.size() != sizeof...(A)) {
          throw pybind11::type_error(std::string(name) + "() takes " + std::to_string(sizeof...(A)) +
                                     " arguments, not " + std::to_string(given.size()));
        }
        // Braces: from left to right, so that the first wrong argument is named.
        std::tuple<std::decay_t<A>...> values{From<std::decay_t<A>>::take(given[I].object)...};
        return answer([&] { return function(std::forward<A>(std::get<I>(values))...); });
      }
    }
  };
};
template <typename R, typename... A> Of<R(A...)> type_of(R (*)(A...));
template <typename F, typename R, typename... A> Of<R(A...)> type_of_call(R (F::*)(A...) const);
template <typename F>
  requires(std::is_class_v<F>)
decltype(type_of_call(&F::operator())) type_of(F);

inline PyObject* call(PyObject* self, PyObject* arguments) {
  const auto* function = static_cast<const Function*>(PyCapsule_GetPointer(self, nullptr));
  if (!function) return nullptr;
  try {
    return function->call({arguments});
  } catch (const pybind11::type_error& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an exception of an unknown type");
  }
  return nullptr;
}
}  // namespace hiera_binding

namespace pybind11 {
using args = ::hiera_binding::Given;

// A parameter's name. Calls come with every argument in its place, so it is not kept; a default would be needed.
struct arg {
  explicit arg(const char*) {}
};

struct module_ {
  PyObject* object;
  const char* text = nullptr;
  const char*& doc() { return text; }
  template <typename F, typename... Extra> module_& def(const char* name, F&& function, const Extra&...) {
    using Plain = std::decay_t<F>;
    using Made = typename decltype(::hiera_binding::type_of(std::declval<Plain>()))::template Made<Plain>;
    // As long as the process: the module may be asked for its functions until then.
    auto* definition = new PyMethodDef{name, &::hiera_binding::call, METH_VARARGS, nullptr};
    const ::hiera_binding::Function* made = new Made(name, std::forward<F>(function));
    PyObject* self = PyCapsule_New(const_cast<::hiera_binding::Function*>(made), nullptr, nullptr);
    PyObject* callable = self ? PyCFunction_New(definition, self) : nullptr;
    Py_XDECREF(self);
    if (callable && PyModule_AddObject(object, name, callable) < 0) Py_DECREF(callable);
    return *this;
  }
};
using module = module_;
}  // namespace pybind11
namespace py = pybind11;

#define HIERA_JOINED(a, b) a##b
#define HIERA_JOIN(a, b) HIERA_JOINED(a, b)
#define HIERA_TEXT_OF(a) #a
#define HIERA_TEXT(a) HIERA_TEXT_OF(a)
#define PYBIND11_MODULE(name, variable)                                                                       \
  static void hiera_define(pybind11::module_& variable);                                                      \
  extern "C" __attribute__((visibility("default"))) PyObject* HIERA_JOIN(PyInit_, name)() {                   \
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, HIERA_TEXT(name), nullptr, -1, nullptr};          \
    pybind11::module_ made{PyModule_Create(&definition)};                                                     \
    if (made.object) hiera_define(made);                                                                      \
    if (made.object && PyErr_Occurred()) Py_CLEAR(made.object);                                               \
    return made.object;                                                                                       \
  }                                                                                                           \
  static void hiera_define(pybind11::module_& variable)

// libhiera_py.so: compiled once per torch install, with torch's real headers. Python's side of a tensor, for bindings
// that are compiled without those headers (binding/torch/extension.h).
#include <torch/csrc/autograd/python_variable.h>

#define API extern "C" __attribute__((visibility("default")))

API void* hp_unpack(PyObject* object) {
  return THPVariable_Check(object) ? at::Tensor(THPVariable_Unpack(object)).unsafeReleaseTensorImpl() : nullptr;
}

API PyObject* hp_wrap(void* impl) {
  using Handle = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  return THPVariable_Wrap(at::Tensor(Handle::reclaim(static_cast<c10::TensorImpl*>(impl))));
}

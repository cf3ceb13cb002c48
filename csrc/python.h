// Python called from an op.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_tpu {

// Holds the GIL. Dynamo doesn't look at frames meanwhile: inside a function that it traced it would compile our own code.
class PythonFromOp {
 public:
  PythonFromOp() {
    callback_ = set_callback()(pybind11::none());
  }

  ~PythonFromOp() {
    try {
      set_callback()(callback_);
    } catch (const pybind11::error_already_set&) {
      // The interpreter is ending.
    }
  }

  PythonFromOp(const PythonFromOp&) = delete;
  PythonFromOp& operator=(const PythonFromOp&) = delete;

 private:
  static pybind11::object set_callback() {
    return pybind11::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame");
  }

  pybind11::gil_scoped_acquire gil_;
  pybind11::object callback_;
};

}  // namespace torch_tpu

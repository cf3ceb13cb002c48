#include "build.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/complex.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_layouts.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include "modes.h"
#include "python.h"

namespace py = pybind11;

namespace torch_tpu {

namespace {

py::object dtype_object(c10::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

py::tuple dims_tuple(c10::IntArrayRef dims) {
  py::tuple result(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    result[i] = dims[i];
  }
  return result;
}

py::object number(const c10::Scalar& value) {
  if (value.isBoolean()) {
    return py::bool_(value.toBool());
  }
  if (value.isFloatingPoint()) {
    return py::float_(value.toDouble());
  }
  if (value.isComplex()) {
    auto c = value.toComplexDouble();
    return py::cast(std::complex<double>(c.real(), c.imag()));
  }
  return py::int_(value.toLong());
}

// Walks the arguments in the order `read` did, so that operands get the numbers they have in the call.
struct Converter {
  const Call& call;
  py::module_ eager = py::module_::import("torch_tpu.eager");
  size_t tensors = 0, scalars = 0;

  py::object scalar(const py::object& value, bool is_number) {
    const RuntimeScalar& s = call.scalars[scalars];
    return eager.attr("ScalarOperand")(scalars++, value, dtype_object(s.dtype), is_number);
  }

  py::object tensor(const at::Tensor& t) {
    if (!t.defined()) {
      return py::none();
    }
    if (t.device().type() != c10::DeviceType::PrivateUse1) {
      return scalar(number(t.item()), call.scalars[scalars].is_number);
    }
    size_t i = tensors++;
    const View& view = call.views[i];
    py::dict fields;
    fields["index"] = i;
    fields["storage"] = call.storage_of[i];
    fields["dtype"] = dtype_object(t.scalar_type());
    fields["sizes"] = dims_tuple(t.sizes());
    fields["strides"] = dims_tuple(t.strides());
    fields["offset"] = t.storage_offset();
    fields["kind"] = static_cast<int64_t>(view.kind);
    fields["radix"] = dims_tuple(view.radix);
    fields["extent"] = dims_tuple(view.extent);
    fields["step"] = dims_tuple(view.step);
    fields["axis"] = dims_tuple(view.axis);
    fields["starts"] = view.start.size();
    fields["row_dim"] = call.row_dim[i];
    fields["conj"] = t.is_conj();
    fields["neg"] = t.is_neg();
    return eager.attr("TensorOperand")(**fields);
  }

  py::object convert(const c10::IValue& value, const c10::Type& type, bool runtime) {
    if (value.isTensor()) {
      return tensor(value.toTensor());
    }
    if (value.isNone()) {
      return py::none();
    }
    if (value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble()) {
      py::object plain = number(value.toScalar());
      if (runtime) {
        return scalar(plain, true);
      }
      const c10::Type* inner = &type;
      if (auto optional = type.cast<c10::OptionalType>()) {
        inner = optional->getElementType().get();
      }
      switch (inner->kind()) {
        case c10::TypeKind::ScalarTypeType:
          return dtype_object(value.toScalarType());
        case c10::TypeKind::LayoutType:
          return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPLayout(value.toLayout())));
        case c10::TypeKind::MemoryFormatType:
          return py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(value.toMemoryFormat()));
        default:
          return plain;
      }
    }
    if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
      const c10::Type* element = c10::AnyType::get().get();
      if (auto list = type.cast<c10::ListType>()) {
        element = list->getElementType().get();
      }
      py::list result;
      for (const c10::IValue& item : value.toListRef()) {
        result.append(convert(item, *element, runtime));
      }
      return result;
    }
    if (value.isString()) {
      return py::str(value.toStringRef());
    }
    return py::none();  // devices and generators do not change the program
  }
};

// Lowering runs plain Python over fake tensors: no autograd, autocast, functorch or user modes.
struct ModesOff {
  c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet({c10::DispatchKey::BackendSelect, c10::DispatchKey::ADInplaceOrView}),
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset};
  c10::AutoGradMode grad{false};
};

}  // namespace

ProgramPtr build_program(const Call& call, const torch::jit::Stack& stack) {
  const OpInfo& op = *call.op;
  PythonFromOp python;
  ModesOff off;
  auto arguments = torch::jit::last(stack, op.written.size());
  const auto& schema = op.handle.schema();
  Converter converter{call};
  py::list values;
  for (size_t i = 0; i < op.written.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    values.append(converter.convert(arguments[i], *argument.real_type(), op.runtime[i]));
  }
  py::list storages;
  for (size_t s = 0; s < call.blocks.size(); ++s) {
    const Block& block = *call.blocks[s];
    size_t nbytes = 0;
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      if (call.storage_of[i] == static_cast<int64_t>(s)) {
        nbytes = call.tensors[i].storage().nbytes();
      }
    }
    storages.append(converter.eager.attr("Storage")(dims_tuple(block.dims), dtype_object(block.dtype), block.buffer != nullptr,
                                                    block.buffer != nullptr ? 0 : nbytes));
  }
  py::object built = converter.eager.attr("build")(op.name, values, storages, call.rows >= 0, cpu_fallback());
  return built.cast<std::shared_ptr<Program>>();
}

}  // namespace torch_tpu

#include "call.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <unordered_map>

#include "device.h"
#include "modes.h"
#include "python.h"

namespace torch_tpu {

namespace {

// Tags keep the parts of a key apart.
enum Tag : int64_t {
  kNone = 1,
  kTensor,
  kPadded,
  kHostNumber,
  kHostScalar,
  kList,
  kInt,
  kFloat,
  kComplex,
  kBool,
  kText,
  kUndefined
};

OpInfo describe(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  OpInfo info{handle, name, {}, {}};
  PythonFromOp python;
  auto told = pybind11::module_::import("torch_tpu.eager").attr("op_info")(name);
  auto runtime = told.attr("runtime").cast<std::vector<std::string>>();
  info.rows = told.attr("rows").cast<bool>();
  info.host_indices = told.attr("host_indices").cast<bool>();
  info.random = told.attr("random").cast<bool>();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    info.runtime.push_back(std::find(runtime.begin(), runtime.end(), argument.name()) != runtime.end());
    info.written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    info.out = info.out || argument.is_out();
    if (argument.name() == "check_errors") {
      info.check_errors = static_cast<int64_t>(i);
    }
    if (argument.name() == "generator") {
      info.generator = static_cast<int64_t>(i);
    }
  }
  return info;
}

bool is_wide(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double || dtype == c10::ScalarType::ComplexDouble;
}

// The value of a 0-d CPU tensor, past the dispatcher for the types wrapped numbers have.
c10::Scalar host_value(const at::Tensor& tensor) {
  if (tensor.is_conj() || tensor.is_neg()) {
    return tensor.item();
  }
  const void* data = tensor.unsafeGetTensorImpl()->data();
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      return *static_cast<const double*>(data);
    case c10::ScalarType::Long:
      return *static_cast<const int64_t*>(data);
    case c10::ScalarType::Bool:
      return *static_cast<const bool*>(data);
    default:
      return tensor.item();
  }
}

// Whether a number lies outside what an integer type holds, about; whole ones below zero count as large ones where
// there is no sign.
bool overflows(double value, c10::ScalarType dtype) {
  bool is_signed = c10::isSignedType(dtype);
  double limit = std::ldexp(1.0, static_cast<int>(8 * c10::elementSize(dtype)) - is_signed);
  bool wraps = !is_signed && value == std::trunc(value);
  return !(value < limit && value >= (is_signed ? -limit : wraps ? 1 - limit : 0));
}

struct Reader {
  const OpInfo& op;
  bool with_rows;
  Call& call;
  int64_t bucket = -1;
  double previous = 0;  // number

  void put(int64_t word) {
    call.key.push_back(word);
  }
  void put(c10::IntArrayRef words) {
    call.key.push_back(static_cast<int64_t>(words.size()));
    call.key.append(words.begin(), words.end());
  }

  void put_scalar(const c10::Scalar& value, bool is_number, c10::ScalarType dtype) {
    RuntimeScalar scalar{dtype, {0, 0}, is_number};
    auto store = [&](auto typed) { std::memcpy(scalar.bits, &typed, sizeof(typed)); };
    switch (dtype) {
      case c10::ScalarType::Bool:
        store(value.toBool());
        break;
      case c10::ScalarType::Byte:
        store(value.toByte());
        break;
      case c10::ScalarType::Char:
        store(value.toChar());
        break;
      case c10::ScalarType::Short:
        store(value.toShort());
        break;
      case c10::ScalarType::Int:
        store(value.toInt());
        break;
      case c10::ScalarType::Long:
        store(value.toLong());
        break;
      case c10::ScalarType::Half:
        store(value.toHalf());
        break;
      case c10::ScalarType::BFloat16:
        store(value.toBFloat16());
        break;
      case c10::ScalarType::Float:
        store(value.toFloat());
        break;
      case c10::ScalarType::Double:
        store(value.toDouble());
        break;
      case c10::ScalarType::ComplexFloat:
        store(value.toComplexFloat());
        break;
      case c10::ScalarType::ComplexDouble:
        store(value.toComplexDouble());
        break;
      default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, op.name, ": a 0-d CPU tensor of dtype ", c10::toString(dtype),
                                    " cannot be mixed with tpu tensors; move it with .to('tpu')");
    }
    put(is_number ? kHostNumber : kHostScalar);
    put(static_cast<int64_t>(dtype));
    call.scalars.push_back(scalar);
  }

  void put_number(const c10::Scalar& value) {
    c10::ScalarType dtype = c10::ScalarType::Long;
    if (value.isBoolean()) {
      dtype = c10::ScalarType::Bool;
    } else if (value.isFloatingPoint()) {
      dtype = call.wide ? c10::ScalarType::Double : c10::ScalarType::Float;
    } else if (value.isComplex()) {
      dtype = call.wide ? c10::ScalarType::ComplexDouble : c10::ScalarType::ComplexFloat;
    }
    put_scalar(value, true, dtype);
    put_standing(value);
  }

  // Ops refuse numbers for their order, their sign or the dtype they don't fit: those make calls of their own, so that they
  // come to Python, which raises what the CPU raises.
  void put_standing(const c10::Scalar& value) {
    if (value.isBoolean() || value.isComplex()) {
      return;
    }
    double number = value.toDouble();
    if (op.random) {
      constexpr double most_of_half = 65504;
      put((number < 0) | (number == 0) << 1 | (number < 1) << 2 | (number == 1) << 3 | (number < previous) << 4 |
          (number == previous) << 5 | static_cast<int64_t>(std::isfinite(number)) << 6 |
          (std::abs(number) <= most_of_half) << 7);
      for (c10::ScalarType dtype :
           {c10::ScalarType::Char, c10::ScalarType::Byte, c10::ScalarType::Short, c10::ScalarType::Int}) {
        put(overflows(number, dtype) | overflows(number - 1, dtype) << 1);  // ranges end before their last number
      }
      previous = number;
    }
    if (!call.tensors.empty() && c10::isIntegralType(call.tensors[0].scalar_type(), false)) {
      put(overflows(number, call.tensors[0].scalar_type()) | (number == 0) << 1);
    }
  }

  void put_static(const c10::Scalar& value) {
    if (value.isComplex()) {
      auto c = value.toComplexDouble();
      put(kComplex);
      put_bits(c.real());
      put_bits(c.imag());
    } else if (value.isFloatingPoint()) {
      put(kFloat);
      put_bits(value.toDouble());
    } else {
      put(value.isBoolean() ? kBool : kInt);
      put(value.toLong());
    }
  }

  void put_bits(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, 8);
    put(bits);
  }

  // A CPU operand: 0-d ones are numbers, index tensors are moved, the rest is a mix of devices.
  void put_host(const at::Tensor& tensor) {
    if (tensor.dim() == 0) {
      bool is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
      if (is_number) {
        put_number(host_value(tensor));
      } else {
        put_scalar(host_value(tensor), false, tensor.scalar_type());
      }
      return;
    }
    TORCH_CHECK(op.generator < 0, "Expected a 'cpu' device type for generator but found 'tpu' (when calling ", op.name, ")");
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, tpu:", call.device,
                " and ", tensor.device(), " (when calling ", op.name, "). Move the tensor with .to('tpu')");
  }

  // A storage that was never written has no buffer to tell its size.
  void put_unwritten(const at::Tensor& tensor) {
    size_t nbytes = tensor.storage().nbytes();
    size_t needed =
        at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
    TORCH_CHECK(needed <= nbytes, op.name, ": a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(), " needs ",
                needed, " bytes, its storage has ", nbytes, ". Was the storage freed with resize_(0)?");
    put(static_cast<int64_t>(nbytes));
  }

  void put_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      put(kUndefined);
      return;
    }
    if (tensor.device().type() != c10::DeviceType::PrivateUse1) {
      TORCH_CHECK(tensor.device().is_cpu() || tensor.is_meta(), op.name, ": expected tensors on tpu, found one on ",
                  tensor.device());
      put_host(tensor);
      return;
    }
    TORCH_CHECK(tensor.device().index() == call.device,
                "Expected all tensors to be on the same device, but found at least two devices, tpu:", call.device, " and ",
                tensor.device(), " (when calling ", op.name, ")");
    Block& block = block_of(tensor);
    block.check();
    int64_t storage = 0, count = static_cast<int64_t>(call.blocks.size());
    while (storage < count && call.blocks[storage] != &block) {
      ++storage;
    }
    if (storage == count) {
      call.blocks.push_back(&block);
    } else if (op.out) {
      // Ops refuse an `out=` that overlaps an operand, which depends on how far apart they are.
      size_t first = std::find(call.storage_of.begin(), call.storage_of.end(), storage) - call.storage_of.begin();
      put(tensor.storage_offset() - call.tensors[first].storage_offset());
    }
    View view;
    bool may_pad = with_rows && (call.rows < 0 || (call.rows == block.rows && bucket == block.dims[0]));
    int64_t row_dim = may_pad ? padded_view_of(tensor, block, view) : -1;
    if (row_dim >= 0) {
      call.rows = block.rows;
      bucket = block.dims[0];
      put(kPadded);
      put(bucket);
      put(row_dim);
      // Dimensions of one element outside the rows have strides that depend on the true count, and no meaning.
      for (int64_t i = 0; i < tensor.dim(); ++i) {
        put(i == row_dim ? -1 : tensor.size(i));
        put(i == row_dim || tensor.size(i) == 1 ? 0 : tensor.stride(i));
      }
    } else {
      view = view_of(tensor, block);
      put(kTensor);
      put(tensor.sizes());
      if (view.kind != ViewKind::kEmpty) {
        put(tensor.strides());
      }
    }
    put(static_cast<int64_t>(tensor.scalar_type()) | static_cast<int64_t>(view.kind) << 8 |
        static_cast<int64_t>(block.dtype) << 16 | static_cast<int64_t>(block.buffer != nullptr) << 24 |
        static_cast<int64_t>(tensor.is_conj()) << 25 | static_cast<int64_t>(tensor.is_neg()) << 26 | storage << 32);
    put(block.dims);
    if (view.kind == ViewKind::kSlice) {
      put(view.radix);
      put(view.extent);
    }
    if (block.buffer == nullptr) {
      put_unwritten(tensor);
    }
    call.tensors.push_back(tensor);
    call.views.push_back(std::move(view));
    call.storage_of.push_back(storage);
    call.row_dim.push_back(row_dim);
  }

  void put_value(const c10::IValue& value, bool runtime) {
    if (value.isTensor()) {
      put_tensor(value.toTensor());
    } else if (value.isNone()) {
      put(kNone);
    } else if (value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble()) {
      if (runtime) {
        put_number(value.toScalar());
      } else {
        put_static(value.toScalar());
      }
    } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
      put(kList);
      auto list = value.toListRef();
      put(static_cast<int64_t>(list.size()));
      for (const c10::IValue& item : list) {
        put_value(item, runtime);
      }
    } else if (value.isString()) {
      put(kText);
      const std::string& text = value.toStringRef();
      put(static_cast<int64_t>(text.size()));
      for (char c : text) {
        put(c);
      }
    } else if (value.isDevice() || value.isGenerator()) {
      put(kNone);
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(false, op.name, ": an argument of type ", value.tagKind(),
                                  " is not supported on device 'tpu'");
    }
  }
};

void scan_value(const c10::IValue& value, Call& call, bool* any) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1) {
      if (!*any) {
        call.device = tensor.device().index();
        call.wide = false;
        *any = true;
      }
      call.wide = call.wide || is_wide(tensor.scalar_type());
    }
  } else if (value.isTensorList() || value.isOptionalTensorList() || value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor() && !item.isNone()) {
        break;
      }
      scan_value(item, call, any);
    }
  } else if (value.isDevice() && call.device < 0 && value.toDevice().has_index()) {
    call.device = value.toDevice().index();
  }
}

}  // namespace

const OpInfo& op_info(const c10::OperatorHandle& handle) {
  thread_local std::unordered_map<const void*, const OpInfo*> seen;
  const void* id = &handle.schema();
  auto found = seen.find(id);
  if (C10_LIKELY(found != seen.end())) {
    return *found->second;
  }
  // Described without the lock: it takes the GIL. Two threads may both do it; the first one's stays.
  static auto* all = new std::unordered_map<std::string, std::unique_ptr<OpInfo>>;
  static std::mutex mutex;
  auto fresh = std::make_unique<OpInfo>(describe(handle));
  std::lock_guard<std::mutex> lock(mutex);
  auto& kept = (*all)[fresh->name];
  if (kept == nullptr) {
    kept = std::move(fresh);
  }
  seen[id] = kept.get();
  return *kept;
}

Dims Call::starts() const {
  Dims all;
  for (const View& view : views) {
    all.append(view.start.begin(), view.start.end());
  }
  if (rows >= 0) {
    all.push_back(rows);
  }
  return all;
}

void scan(const OpInfo& op, const torch::jit::Stack& stack, Call& call) {
  bool any = false;
  for (const c10::IValue& value : torch::jit::last(stack, op.written.size())) {
    scan_value(value, call, &any);
  }
  if (call.device < 0) {
    call.device = current_device();
  }
}

void read(const OpInfo& op, const torch::jit::Stack& stack, bool with_rows, Call& call) {
  call.op = &op;
  size_t count = op.written.size();
  auto arguments = torch::jit::last(stack, count);
  Reader reader{op, with_rows, call};
  reader.put(reinterpret_cast<int64_t>(&op));
  reader.put(modes_key());
  reader.put(call.wide);
  for (size_t i = 0; i < count; ++i) {
    reader.put_value(arguments[i], op.runtime[i]);
  }
}

}  // namespace torch_tpu

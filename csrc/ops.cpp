#include "ops.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/all.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "device.h"
#include "dispatch.h"
#include "storage.h"
#include "views.h"

namespace torch_tpu {

namespace {

constexpr int64_t kSmallBuffer = 1 << 16;  // bytes below which a whole buffer is fetched to read a part of it

bool on_tpu(const at::Tensor& tensor) {
  return tensor.device().type() == c10::DeviceType::PrivateUse1;
}

int device_index(std::optional<c10::Device> device) {
  return device.has_value() && device->has_index() ? device->index() : current_device();
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool>) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided, "sparse and other layouts (", *layout,
                              ") are not supported on device 'tpu': use dense tensors (to_dense(), sparse=False)");
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(sizes[i] >= 0, "Trying to create tensor with negative dimension ", sizes[i], ": ", sizes);
    TORCH_CHECK(strides[i] >= 0, "Trying to create tensor with negative stride ", strides[i]);
  }
  return make_tensor(sizes, strides, dtype.value_or(c10::get_default_dtype_as_scalartype()), device_index(device));
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DimVector strides;
  auto wanted = format.value_or(at::MemoryFormat::Contiguous);
  if (wanted == at::MemoryFormat::ChannelsLast) {
    TORCH_CHECK(sizes.size() == 4, "required rank 4 tensor to use channels_last format");
    strides = c10::get_channels_last_strides_2d(sizes);
  } else if (wanted == at::MemoryFormat::ChannelsLast3d) {
    TORCH_CHECK(sizes.size() == 5, "required rank 5 tensor to use channels_last_3d format");
    strides = c10::get_channels_last_strides_3d(sizes);
  } else {
    strides = c10::contiguous_strides(sizes);
  }
  return empty_strided(sizes, strides, dtype, layout, device, pinned);
}

// The dimensions of a dense tensor in the order of its storage.
Dims storage_order(const at::Tensor& tensor) {
  Dims order;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return order;
}

bool is_whole(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         static_cast<size_t>(tensor.numel()) * tensor.itemsize() == tensor.storage().nbytes();
}

void call_copy(const at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{self, src, non_blocking};
  run_op(handle, &stack);
}

// Notices tensors that differ in one length only. After a few lengths their buffers get a power of two of rows, so that the ops
// that take such operands compile once for each power of two and not for each length.
class VaryingRows {
 public:
  // True once tensors of this dtype and these sizes, but for dimension `dim`, came in a few lengths, and this one is new.
  bool varies(const at::Tensor& tensor, int64_t dim) {
    if (tensor.dim() == 0 || tensor.numel() == 0 || tensor.numel() * static_cast<int64_t>(tensor.itemsize()) > kLargest) {
      return false;
    }
    std::vector<int64_t> key(tensor.sizes().begin(), tensor.sizes().end());
    int64_t length = std::exchange(key[dim], -1);
    key.push_back(static_cast<int64_t>(tensor.scalar_type()));
    std::lock_guard<std::mutex> lock(mutex_);
    if (seen_.size() > kMostShapes) {
      seen_.clear();
    }
    auto& lengths = seen_[key];
    if (lengths.size() < kFew) {
      lengths.insert(length);
    }
    return lengths.count(length) == 0;
  }

 private:
  static constexpr size_t kFew = 4, kMostShapes = 4096;
  static constexpr int64_t kLargest = 64 << 20;
  std::mutex mutex_;
  std::map<std::vector<int64_t>, std::set<int64_t>> seen_;
};

void host_to_device(const at::Tensor& self, const at::Tensor& src) {
  at::Tensor values = src.detach().to(self.scalar_type()).resolve_conj().resolve_neg().expand(self.sizes());
  bool whole = is_whole(self) && !self.is_conj() && !self.is_neg();
  at::Tensor target =
      whole ? self : make_tensor(self.sizes(), values.contiguous().strides(), self.scalar_type(), self.device().index());
  Dims order = storage_order(target);
  values = values.permute(order).contiguous();
  pjrt::BufferPtr buffer = pjrt::upload(values.const_data_ptr(), values.scalar_type(), values.sizes(), self.device().index());
  {
    std::lock_guard<std::mutex> lock(launch_lock(self.device().index()));
    Block& block = block_of(target);
    block.set(std::move(buffer), values.sizes(), values.scalar_type());
    block.failure.clear();
    block.rows = -1;
  }
  if (!whole) {
    call_copy(self, target, false);
  }
}

// Raw storages (uint8 tensors over memory of another type, as deepcopy and torch.load make them) keep the type.
bool copy_raw(const at::Tensor& self, const at::Tensor& src) {
  if (self.scalar_type() != at::kByte || src.scalar_type() != at::kByte || !is_whole(self) || !is_whole(src) ||
      self.sizes() != src.sizes()) {
    return false;
  }
  pjrt::BufferPtr buffer;
  Dims dims;
  c10::ScalarType dtype;
  {
    std::lock_guard<std::mutex> lock(launch_lock(src.device().index()));
    const Block& block = block_of(src);
    block.check();
    buffer = block.buffer;
    dims = block.dims;
    dtype = block.dtype;
  }
  size_t nbytes = c10::multiply_integers(dims) * c10::elementSize(dtype);
  if (buffer == nullptr || dtype == at::kByte || nbytes != self.storage().nbytes()) {
    return false;
  }
  std::string bytes(nbytes, '\0');
  buffer->to_host(bytes.data(), nbytes);
  pjrt::BufferPtr copy = pjrt::upload(bytes.data(), dtype, dims, self.device().index());
  std::lock_guard<std::mutex> lock(launch_lock(self.device().index()));
  block_of(self).set(std::move(copy), dims, dtype);
  return true;
}

// A typed view of raw bytes (torch.load, deepcopy): from now on the memory is of that type.
void retype(const at::Tensor& tensor) {
  Block& block = block_of(tensor);
  size_t nbytes = tensor.storage().nbytes(), item = tensor.itemsize();
  if (block.dtype != at::kByte || tensor.scalar_type() == at::kByte || nbytes == 0 || nbytes % item != 0) {
    return;
  }
  int64_t count = static_cast<int64_t>(nbytes / item);
  if (block.buffer == nullptr) {
    block.dtype = tensor.scalar_type();
    return;
  }
  std::string bytes(block.elements(), '\0');
  block.buffer->to_host(bytes.data(), bytes.size());
  pjrt::BufferPtr typed = pjrt::upload(bytes.data(), tensor.scalar_type(), {count}, block.device);
  std::lock_guard<std::mutex> lock(launch_lock(block.device));
  block.set(std::move(typed), {count}, tensor.scalar_type());
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  if (self.is_same(src) || self.numel() == 0) {
    TORCH_CHECK(at::is_expandable_to(src.sizes(), self.sizes()), "The size of tensor a ", self.sizes(),
                " must match the size of tensor b ", src.sizes());
    return self;
  }
  if (on_tpu(self) && on_tpu(src)) {
    if (self.device() != src.device()) {
      at::Tensor dense = src.contiguous().resolve_conj().resolve_neg();
      at::Tensor there = make_tensor(dense.sizes(), dense.strides(), dense.scalar_type(), self.device().index());
      pjrt::BufferPtr buffer;
      Dims dims;
      c10::ScalarType dtype;
      {
        std::lock_guard<std::mutex> lock(launch_lock(src.device().index()));
        if (block_of(dense).buffer == nullptr || !is_whole(dense) || block_of(dense).rows >= 0) {
          dense = at::Tensor();
        } else {
          buffer = block_of(dense).buffer;
          dims = block_of(dense).dims;
          dtype = block_of(dense).dtype;
        }
      }
      if (!dense.defined()) {
        host_to_device(self, to_host(src));
        return self;
      }
      {
        std::lock_guard<std::mutex> lock(launch_lock(self.device().index()));
        block_of(there).set(pjrt::copy_to_device(*buffer, self.device().index()), dims, dtype);
      }
      call_copy(self, there, non_blocking);
    } else if (!copy_raw(self, src)) {
      call_copy(self, src, non_blocking);
    }
  } else if (on_tpu(self)) {
    TORCH_CHECK(src.device().is_cpu(), "cannot copy from ", src.device(), " to ", self.device());
    host_to_device(self, src);
  } else {
    TORCH_CHECK(self.device().is_cpu(), "cannot copy from ", src.device(), " to ", self.device());
    at::Tensor values = src;
    if (values.scalar_type() != self.scalar_type() && c10::elementSize(self.scalar_type()) < values.itemsize()) {
      values = values.to(self.scalar_type());  // the smaller type crosses
    }
    self.copy_(to_host(values));
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor target = dst;
  return copy_(target, self, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::Tensor target = dst;
  if (target.sizes() != self.sizes()) {
    target.resize_(self.sizes());
  }
  return copy_(target, self, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  return at::native::_local_scalar_dense_cpu(to_host(self));
}

// Read at once: an error belongs where it is made.
void assert_async(const at::Tensor& self) {
  at::_assert_async(to_host(self));
}

void assert_async_msg(const at::Tensor& self, std::string_view message) {
  at::_assert_async(to_host(self), message);
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  at::Tensor shape =
      at::empty(sizes, self.options().device(at::kMeta).memory_format(format.value_or(at::MemoryFormat::Contiguous)));
  auto* impl = self.unsafeGetTensorImpl();
  size_t nbytes = (shape.numel() == 0 ? 0 : self.storage_offset() + shape.numel()) * self.itemsize();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (nbytes > storage->nbytes()) {
    resize_storage(*storage, nbytes);
  }
  if (self.sizes() != sizes || format.has_value()) {
    impl->set_sizes_and_strides(sizes, shape.strides());
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef sizes,
                        c10::IntArrayRef strides) {
  TORCH_CHECK(source.device_type() == c10::DeviceType::PrivateUse1, "Attempted to set the storage of a tensor on device \"",
              self.device(), "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  c10::DimVector dense = c10::contiguous_strides(sizes);
  impl->set_sizes_and_strides(sizes, strides.size() == sizes.size() ? strides : c10::IntArrayRef(dense));
  size_t needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), offset);
  if (needed > self.storage().nbytes()) {
    resize_storage(*impl->unsafe_storage().unsafeGetStorageImpl(), needed);
  }
  retype(self);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  int64_t count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() != source.unsafeGetTensorImpl()) {
    return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
  }
  return self;
}

at::Tensor& set_(at::Tensor& self) {
  return set_storage(self, make_tensor({0}, {1}, self.scalar_type(), self.device().index()).storage(), 0, {0}, {});
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

// Parameters keep their identity when they move between host and device (weights stay tied).
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto family = [](const at::Tensor& t) { return on_tpu(t) || (t.device().is_cpu() && t.layout() == at::kStrided); };
  return (family(self) && family(from)) || self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

// The schema hides that running statistics are written; the legit form says so.
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& var, bool training, double momentum, double eps) {
  if (mean.has_value() && mean->defined() && var.has_value() && var->defined()) {
    at::Tensor m = *mean, v = *var;
    return at::_native_batch_norm_legit(input, weight, bias, m, v, training, momentum, eps);
  }
  return at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> native_batch_norm_out(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& var, bool training, double momentum, double eps,
    at::Tensor& out, at::Tensor& save_mean, at::Tensor& save_invstd) {
  if (mean.has_value() && mean->defined() && var.has_value() && var->defined()) {
    at::Tensor m = *mean, v = *var;
    return at::_native_batch_norm_legit_out(out, save_mean, save_invstd, input, weight, bias, m, v, training, momentum, eps);
  }
  return at::_native_batch_norm_legit_out(out, save_mean, save_invstd, input, weight, bias, training, momentum, eps);
}

// The statistics of channels begin empty.
void observe(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto arguments = torch::jit::last(*stack, 13);
  if (arguments[11].toBool() && arguments[3].toTensor().numel() == 0) {
    int64_t channels = arguments[0].toTensor().size(arguments[10].toInt());
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    arguments[3].toTensor().resize_({channels}).fill_(kInfinity);
    arguments[4].toTensor().resize_({channels}).fill_(-kInfinity);
    arguments[5].toTensor().resize_({channels});
    arguments[6].toTensor().resize_({channels});
  }
  run_op(op, stack);
}

// A conversion on the device is a program like any other; one that crosses devices is an allocation and a copy.
void to_copy(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor& self = torch::jit::peek(*stack, 0, 7).toTensor();
  const c10::IValue& device = torch::jit::peek(*stack, 3, 7);
  bool stays = on_tpu(self) && (device.isNone() || device.toDevice() == self.device() ||
                                (device.toDevice().type() == self.device().type() && !device.toDevice().has_index() &&
                                 self.device().index() == current_device()));
  if (stays) {
    run_op(op, stack);
    return;
  }
  auto optional_type = [&](size_t i) { return torch::jit::peek(*stack, i, 7).toOptional<int64_t>(); };
  auto dtype = optional_type(1), layout = optional_type(2), format = optional_type(6);
  at::Tensor result = at::native::_to_copy(self, dtype ? std::optional(static_cast<at::ScalarType>(*dtype)) : std::nullopt,
                                           layout ? std::optional(static_cast<at::Layout>(*layout)) : std::nullopt,
                                           device.toOptional<c10::Device>(), torch::jit::peek(*stack, 4, 7).toOptional<bool>(),
                                           torch::jit::peek(*stack, 5, 7).toBool(),
                                           format ? std::optional(static_cast<at::MemoryFormat>(*format)) : std::nullopt);
  torch::jit::drop(*stack, 7);
  stack->push_back(std::move(result));
}

// arange of integers is the one from 0, scaled and shifted by runtime scalars: a program per length, not per position.
void arange(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  size_t count = op.schema().arguments().size();
  bool stepped = count == 7;
  at::Scalar start = torch::jit::peek(*stack, 0, count).toScalar(), end = torch::jit::peek(*stack, 1, count).toScalar();
  at::Scalar step = stepped ? torch::jit::peek(*stack, 2, count).toScalar() : at::Scalar(1);
  const c10::IValue& dtype = torch::jit::peek(*stack, stepped ? 3 : 2, count);
  auto whole = [](const at::Scalar& s) { return s.isIntegral(/*includeBool=*/false); };
  bool integers = whole(start) && whole(end) && whole(step) && (dtype.isNone() || dtype.toScalarType() == at::kLong);
  int64_t first = integers ? start.toLong() : 0, by = integers ? step.toLong() : 1;
  if (!integers || first == 0 || by == 0 || (by > 0) != (end.toLong() >= first)) {
    run_op(op, stack);
    return;
  }
  int64_t length = (end.toLong() - first + by + (by > 0 ? -1 : 1)) / by;
  c10::Device device = torch::jit::peek(*stack, stepped ? 5 : 4, count)
                           .toOptional<c10::Device>()
                           .value_or(c10::Device(c10::DeviceType::PrivateUse1));
  torch::jit::drop(*stack, count);
  at::Tensor result = at::arange(length, at::TensorOptions().dtype(at::kLong).device(device));
  stack->push_back(by == 1 ? result.add_(first) : result.mul_(by).add_(first));
}

// The tensor over a buffer with room for `total` rows along `dim`, before which its dimensions have one element. By way of the
// host: no program for each number of rows.
at::Tensor with_room(const at::Tensor& tensor, int64_t dim, int64_t total) {
  int64_t rows = tensor.size(dim);
  if (block_of(tensor).rows == rows && block_of(tensor).dims[0] >= total && tensor.is_contiguous()) {
    return tensor;
  }
  at::Tensor values = to_host(tensor).contiguous();
  Dims sizes(values.sizes().begin() + dim, values.sizes().end());
  at::Tensor rows_first = values.view(sizes);
  sizes[0] = rows_with_room(total);
  at::Tensor padded = at::zeros(sizes, values.options());
  padded.narrow(0, 0, rows).copy_(rows_first);
  int device = tensor.device().index();
  at::Tensor result = make_tensor(values.sizes(), values.strides(), values.scalar_type(), device);
  Block& block = block_of(result);
  block.set(pjrt::upload(padded.const_data_ptr(), padded.scalar_type(), sizes, device), sizes, padded.scalar_type());
  block.rows = rows;
  return result;
}

// A tensor that grows by what is joined to it, as caches of keys and values do, gets room to grow: a program for each power of
// two of lengths and not for each length.
void cat(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static auto* lengths = new VaryingRows;
  auto tensors = torch::jit::peek(*stack, 0, 2).toTensorVector();
  int64_t dim = torch::jit::peek(*stack, 1, 2).toInt();
  if (tensors.size() == 2 && on_tpu(tensors[0]) && on_tpu(tensors[1]) && tensors[0].dim() == tensors[1].dim()) {
    at::Tensor& first = tensors[0];
    dim = dim < 0 ? dim + first.dim() : dim;
    bool leads = dim >= 0 && dim < first.dim() && first.numel() > 0 && tensors[1].numel() > 0 &&
                 first.scalar_type() == tensors[1].scalar_type() && !first.is_conj() && !first.is_neg();
    for (int64_t i = 0; leads && i < dim; ++i) {
      leads = first.size(i) == 1;
    }
    if (leads && lengths->varies(first, dim)) {
      first = with_room(first, dim, first.size(dim) + tensors[1].size(dim));
      torch::jit::peek(*stack, 0, 2) = tensors;
    }
  }
  run_op(op, stack);
}

bool is_mask(const c10::IValue& index) {
  return index.isTensor() && index.toTensor().defined() &&
         (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte);
}

// x[mask] = values: as many values as the mask has elements, which varies.
void index_put(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static auto* lengths = new VaryingRows;
  size_t count = op.schema().arguments().size();
  auto indices = torch::jit::peek(*stack, 1, count).toListRef();
  const at::Tensor& values = torch::jit::peek(*stack, 2, count).toTensor();
  bool masked = std::any_of(indices.begin(), indices.end(), is_mask);
  if (masked && on_tpu(values) && values.dim() > 0 && values.size(0) > 1 && block_of(values).rows < 0 &&
      lengths->varies(values, 0)) {
    at::Tensor padded = with_room(values, 0, values.size(0));
    torch::jit::peek(*stack, 2, count) = padded;
  }
  run_op(op, stack);
}

// Nested tensors are not supported: a padding mask stays a mask.
bool nested_tensor_from_mask_left_aligned(const at::Tensor&, const at::Tensor&) {
  return false;
}

// Results whose size is a value: the value is read, then the size is static.
void repeat_interleave(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::Tensor repeats = torch::jit::peek(*stack, 0, 2).toTensor();
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt, "repeats has to be Long or Int tensor");
  TORCH_CHECK(repeats.numel() == 0 || repeats.min().item<int64_t>() >= 0, "repeats can not be negative");
  c10::IValue& output_size = torch::jit::peek(*stack, 1, 2);
  if (output_size.isNone()) {
    output_size = repeats.sum().item<int64_t>();
  }
  run_op(op, stack);
}

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t minlength) {
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  TORCH_CHECK(self.dim() == 1 && at::isIntegralType(self.scalar_type(), false),
              "bincount only supports 1-d non-negative integral inputs.");
  bool weighted = weights.has_value() && weights->defined();
  TORCH_CHECK(!weighted || weights->sizes() == self.sizes(), "weights should be 1-d and have the same length as input");
  if (self.numel() == 0) {
    return at::zeros({minlength}, self.options().dtype(at::kLong));  // whatever the weights are
  }
  TORCH_CHECK(self.min().item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
  int64_t length = std::max(minlength, self.max().item<int64_t>() + 1);
  auto dtype = !weighted ? at::kLong : weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  at::Tensor counts = at::zeros({length}, self.options().dtype(dtype));
  at::Tensor what = weighted ? weights->to(dtype) : at::ones_like(self, self.options().dtype(dtype));
  return counts.index_add_(0, self.to(at::kLong), what);
}

at::Tensor& into(at::Tensor& out, const at::Tensor& result) {
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), "Expected object of scalar type ", result.scalar_type(),
              " but got scalar type ", out.scalar_type(), " for argument 'out'");
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  at::assert_no_overlap(out, self);
  return into(out, self.nonzero());
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  return into(out, self.masked_select(mask));
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", self.device(), " and ",
              other.device());
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "Expected object of data type ", self.scalar_type(),
              " but got data type ", other.scalar_type(), " for argument 'other' in call to equal");
  return self.sizes() == other.sizes() && (self.numel() == 0 || self.eq(other).all().item<bool>());
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() && self.strides() == other.strides();
}

void record_stream(at::Tensor&, c10::Stream) {
}

}  // namespace

at::Tensor to_host(const at::Tensor& tensor) {
  at::Tensor source = tensor.detach();
  if (source.numel() == 0) {
    return at::empty_strided(source.sizes(), source.strides(), source.options().device(at::kCPU));
  }
  int device = source.device().index();
  auto snapshot = [&] {
    std::lock_guard<std::mutex> lock(launch_lock(device));
    const Block& block = block_of(source);
    block.check();
    return std::make_tuple(block.buffer, block.elements() * static_cast<int64_t>(c10::elementSize(block.dtype)));
  };
  auto [buffer, bytes] = snapshot();
  int64_t wanted = source.numel() * static_cast<int64_t>(source.itemsize());
  if (buffer != nullptr && bytes > kSmallBuffer && bytes > 2 * wanted) {
    source = source.clone(at::MemoryFormat::Contiguous);
    std::tie(buffer, bytes) = snapshot();
  }
  int64_t item = static_cast<int64_t>(source.itemsize());
  int64_t span = static_cast<int64_t>(source.storage().nbytes());
  int64_t elements = (std::max(bytes, span) + item - 1) / item;
  at::Tensor flat = at::empty({elements}, source.options().device(at::kCPU));
  if (buffer == nullptr) {
    flat.zero_();
  } else {
    buffer->to_host(flat.mutable_data_ptr(), bytes);
  }
  at::Tensor values = flat.as_strided(source.sizes(), source.strides(), source.storage_offset());
  if (source.is_conj()) {
    values = values.conj();
  }
  if (source.is_neg()) {
    values = values.neg();
  }
  return values.resolve_conj();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("_assert_async", assert_async);
  m.impl("_assert_async.msg", assert_async_msg);
  m.impl("resize_", resize_);
  m.impl("set_", set_);
  m.impl("set_.source_Storage", set_source_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_source_tensor);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("native_batch_norm", native_batch_norm);
  m.impl("native_batch_norm.out", native_batch_norm_out);
  m.impl("_fused_moving_avg_obs_fq_helper", torch::CppFunction::makeFromBoxedFunction<&observe>());
  m.impl("_to_copy", torch::CppFunction::makeFromBoxedFunction<&to_copy>());
  m.impl("repeat_interleave.Tensor", torch::CppFunction::makeFromBoxedFunction<&repeat_interleave>());
  m.impl("bincount", bincount);
  m.impl("nonzero.out", nonzero_out);
  m.impl("masked_select.out", masked_select_out);
  m.impl("index_put", torch::CppFunction::makeFromBoxedFunction<&index_put>());
  m.impl("index_put_", torch::CppFunction::makeFromBoxedFunction<&index_put>());
  m.impl("_index_put_impl_", torch::CppFunction::makeFromBoxedFunction<&index_put>());
  m.impl("cat", torch::CppFunction::makeFromBoxedFunction<&cat>());
  m.impl("arange.start", torch::CppFunction::makeFromBoxedFunction<&arange>());
  m.impl("arange.start_step", torch::CppFunction::makeFromBoxedFunction<&arange>());
  m.impl("_nested_tensor_from_mask_left_aligned", nested_tensor_from_mask_left_aligned);
  m.impl("equal", equal);
  m.impl("is_set_to", is_set_to);
  m.impl("record_stream", record_stream);
}

// Copies resolve these bits themselves; the default would copy first, and recurse.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace torch_tpu

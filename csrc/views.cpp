#include "views.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

namespace torch_tpu {

namespace {

struct Step {
  int64_t stride, size, axis;
};
using Steps = c10::SmallVector<Step, 8>;

// The dimensions of a tensor that move through memory, largest stride first.
Steps moving(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  Steps steps;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && strides[i] > 0) {
      steps.push_back({strides[i], sizes[i], static_cast<int64_t>(i)});
    }
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.stride > b.stride; });
  return steps;
}

// Arranges `total` elements so that each step is a slice along one dimension: dimension i has the unit (stride in elements)
// gcd(unit of dimension i-1, stride i). Fails where a slice would leave its dimension, that is wrap into the next row.
bool arrange(const Steps& steps, int64_t total, int64_t offset, View& view) {
  view.radix.clear();
  view.extent.clear();
  view.step.clear();
  view.start.clear();
  view.axis.clear();
  int64_t above = 0, rest = offset;
  auto add = [&](int64_t unit, int64_t step, int64_t size, int64_t axis) {
    int64_t radix = view.radix.empty() ? (total + unit - 1) / unit : above / unit;
    int64_t extent = (size - 1) * step + 1, start = rest / unit;
    rest %= unit;
    above = unit;
    view.radix.push_back(radix);
    view.extent.push_back(extent);
    view.step.push_back(step);
    view.start.push_back(start);
    view.axis.push_back(axis);
    return start + extent <= radix;
  };
  for (const Step& s : steps) {
    int64_t unit = view.radix.empty() ? s.stride : std::gcd(above, s.stride);
    if (!add(unit, s.stride / unit, s.size, s.axis)) {
      return false;
    }
  }
  return above == 1 || add(1, 1, 1, -1);
}

// The buffer's own dimensions added as slices of one element, where they fit: the chip then keeps its layout.
Steps with_buffer_dims(const Steps& steps, c10::IntArrayRef dims) {
  Steps all(steps);
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] > 1) {
      bool fits = true;
      for (const Step& s : steps) {
        fits = fits && s.stride != stride &&
               (s.stride > stride ? s.stride % stride == 0 : stride % s.stride == 0 && (s.size - 1) * s.stride < stride);
      }
      if (fits) {
        all.push_back({stride, 1, -1});
      }
    }
    stride *= dims[i];
  }
  std::stable_sort(all.begin(), all.end(), [](const Step& a, const Step& b) { return a.stride > b.stride; });
  return all;
}

View slice_or_gather(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset, int64_t total, bool same_items,
                     const Block& block) {
  View view;
  Steps steps = moving(sizes, strides);
  view.kind = ViewKind::kSlice;
  if (same_items && arrange(with_buffer_dims(steps, block.dims), total, offset, view)) {
    return view;
  }
  if (!arrange(steps, total, offset, view)) {
    view = View{};
    view.kind = ViewKind::kGather;
    view.start.push_back(offset);
  }
  return view;
}

}  // namespace

View view_of(const at::TensorBase& tensor, const Block& block) {
  View view;
  int64_t numel = tensor.numel();
  if (numel == 0) {
    view.kind = ViewKind::kEmpty;
    return view;
  }
  int64_t item = static_cast<int64_t>(tensor.itemsize());
  bool same_items = block.buffer != nullptr && static_cast<int64_t>(c10::elementSize(block.dtype)) == item;
  // A block that was never written has no buffer: the tensor's storage says how many elements it has.
  int64_t total = same_items                ? block.elements()
                  : block.buffer != nullptr ? block.elements() * static_cast<int64_t>(c10::elementSize(block.dtype)) / item
                                            : static_cast<int64_t>(tensor.storage().nbytes()) / item;
  int64_t offset = tensor.storage_offset();
  if (offset == 0 && numel == total && tensor.is_non_overlapping_and_dense()) {
    return view;
  }
  return slice_or_gather(tensor.sizes(), tensor.strides(), offset, total, same_items, block);
}

int64_t padded_view_of(const at::TensorBase& tensor, const Block& block, View& view) {
  if (block.rows < 0 || tensor.itemsize() != c10::elementSize(block.dtype)) {
    return -1;
  }
  int64_t total = block.elements(), row = total / std::max<int64_t>(block.dims[0], 1), offset = tensor.storage_offset();
  int64_t dim = 0;
  while (dim < tensor.dim() && (tensor.size(dim) != block.rows || tensor.stride(dim) != row)) {
    ++dim;
  }
  if (dim == tensor.dim() || offset >= std::max<int64_t>(row, 1) || total == 0) {
    return -1;
  }
  Dims sizes(tensor.sizes().begin(), tensor.sizes().end());
  sizes[dim] = block.dims[0];
  bool whole = offset == 0 && tensor.is_contiguous() && c10::multiply_integers(sizes) == total;
  view = whole ? View{} : slice_or_gather(sizes, tensor.strides(), offset, total, true, block);
  return dim;
}

}  // namespace torch_tpu

// How a tensor (sizes, strides, offset) is cut out of the buffer of its storage.
#pragma once

#include <ATen/core/TensorBase.h>

#include "storage.h"

namespace torch_tpu {

enum class ViewKind : int64_t {
  kEmpty,   // no elements: no buffer is read
  kWhole,   // all of the buffer, its dimensions permuted
  kSlice,   // a rectangular (possibly stepped) slice of the buffer's elements arranged as `radix`
  kGather,  // anything else: element by element, offset + sum(index * stride)
};

// A recipe. The kind and the arrays beside `start` are part of a program's signature; `start` is a runtime argument.
struct View {
  ViewKind kind = ViewKind::kWhole;
  // kSlice: the buffer's elements, padded up to a multiple, seen as an array of shape `radix`; along each dimension `extent`
  // elements from `start`, of which every `step`-th is taken; `axis` is the tensor's dimension that results, -1 for none.
  Dims radix, extent, step, start;
  c10::SmallVector<int64_t, 6> axis;
};

// The recipe of a tensor over a block. Pure arithmetic on the host.
View view_of(const at::TensorBase& tensor, const Block& block);

// The same for a tensor whose rows are those of a padded block, with all rows of the block. Returns the tensor's dimension
// that the rows are, -1 if it is no such tensor.
int64_t padded_view_of(const at::TensorBase& tensor, const Block& block, View& view);

}  // namespace torch_tpu

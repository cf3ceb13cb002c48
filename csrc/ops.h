// Copies between host and device, and reading values: the ops that are not programs.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu {

// A CPU tensor with the values of a device tensor, of the same sizes and dtype. Waits for them.
at::Tensor to_host(const at::Tensor& tensor);

}  // namespace torch_tpu

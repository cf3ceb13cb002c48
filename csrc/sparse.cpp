// Sparse layouts are not supported: every op on them says so and what to do instead.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace torch_tpu {

namespace {

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(),
                              ": sparse tensors are not supported on device 'tpu'. Use dense tensors: to_dense() before "
                              "moving, sparse=False in Embedding and EmbeddingBag");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

// PyTorch's kernels for every device come before a fallback.
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  for (const char* name : {"sparse_compressed_tensor.comp_plain_value_size", "sparse_compressed_tensor.comp_plain_value",
                           "_sparse_compressed_tensor_with_dims"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

}  // namespace

}  // namespace torch_tpu

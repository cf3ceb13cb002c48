// Which attention `scaled_dot_product_attention` takes: one fused program, with its own gradient.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace torch_tpu {

namespace {

bool fits(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool grouped) {
  auto dense = [](const at::Tensor& t) {
    return t.layout() == at::kStrided && (t.dim() == 4 || t.dim() == 3) && at::isFloatingType(t.scalar_type());
  };
  // Batches that broadcast are for the composite.
  auto alike = [&](const at::Tensor& t) { return t.dim() == query.dim() && t.sym_size(0) == query.sym_size(0); };
  if (!(dense(query) && dense(key) && dense(value) && alike(key) && alike(value) && key.sym_size(1) == value.sym_size(1))) {
    return false;
  }
  // So are heads that don't match: it says what is wrong.
  return query.dim() == 3 || query.sym_size(1) == key.sym_size(1) ||
         (grouped && key.sym_size(1) != 0 && query.sym_size(1) % key.sym_size(1) == 0);
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>&,
               double, bool, std::optional<double>, bool grouped) {
  bool fused = fits(query, key, value, grouped) && at::globalContext().userEnabledOverrideableSDP();
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

}  // namespace

}  // namespace torch_tpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::choose)
}

namespace torch_tpu {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", choose);
}

}  // namespace torch_tpu

#include "modes.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <atomic>

namespace torch_tpu {

namespace {
std::atomic<bool> g_debug{false}, g_fallback{false};
}

bool debug_mode() {
  return g_debug.load(std::memory_order_relaxed);
}

void set_debug_mode(bool on) {
  g_debug = on;
}

bool cpu_fallback() {
  return g_fallback.load(std::memory_order_relaxed);
}

void set_cpu_fallback(bool on) {
  g_fallback = on;
}

int64_t modes_key() {
  const at::Context& context = at::globalContext();
  auto precision = static_cast<int64_t>(context.float32MatmulPrecision());
  auto dtype = static_cast<int64_t>(c10::get_default_dtype_as_scalartype());
  return precision | dtype << 8 | static_cast<int64_t>(context.deterministicAlgorithms()) << 16 |
         static_cast<int64_t>(debug_mode()) << 17;
}

}  // namespace torch_tpu

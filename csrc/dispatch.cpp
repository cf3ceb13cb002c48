#include "dispatch.h"

#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/to.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "build.h"
#include "call.h"
#include "device.h"
#include "modes.h"
#include "program.h"

namespace torch_tpu {

namespace {

using Key = c10::SmallVector<int64_t, 64>;

// The programs of this process. A key is in flight while one thread builds it; others wait for that one.
class ProgramCache {
 public:
  ProgramPtr find(const Key& key) {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto found = programs_.find(key);
    return found == programs_.end() ? nullptr : found->second;
  }

  ProgramPtr find_or_build(const Key& key, const std::function<ProgramPtr()>& build) {
    std::shared_ptr<Flight> flight;
    {
      std::lock_guard<std::mutex> lock(flights_mutex_);
      if (ProgramPtr done = find(key)) {
        return done;
      }
      auto& slot = flights_[key];
      if (slot != nullptr) {
        flight = slot;
      } else {
        slot = std::make_shared<Flight>();
      }
    }
    if (flight != nullptr) {
      std::unique_lock<std::mutex> lock(flight->mutex);
      flight->landed.wait(lock, [&] { return flight->done; });
      return find(key);  // null if the build failed: the caller builds again and raises its own error
    }
    ProgramPtr program;
    try {
      program = build();
    } catch (...) {
      land(key, nullptr);
      throw;
    }
    land(key, program);
    return program;
  }

  void clear() {
    Programs dropped;  // freed when the lock is
    std::unique_lock<std::shared_mutex> lock(mutex_);
    dropped.swap(programs_);
  }

  void set_limit(size_t limit) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    limit_ = limit;
  }

  void forget_fallbacks() {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    std::erase_if(programs_, [](const auto& entry) { return entry.second->fallback; });
  }

 private:
  struct Flight {
    std::mutex mutex;
    std::condition_variable landed;
    bool done = false;
  };

  void land(const Key& key, const ProgramPtr& program) {
    if (program != nullptr) {
      Programs dropped;
      std::unique_lock<std::shared_mutex> lock(mutex_);
      if (programs_.size() >= limit_) {
        dropped.swap(programs_);
      }
      programs_[key] = program;
    }
    std::shared_ptr<Flight> flight;
    {
      std::lock_guard<std::mutex> lock(flights_mutex_);
      flight = flights_[key];
      flights_.erase(key);
    }
    {
      std::lock_guard<std::mutex> lock(flight->mutex);
      flight->done = true;
    }
    flight->landed.notify_all();
  }

  using Programs = std::unordered_map<Key, ProgramPtr, WordsHash>;

  std::shared_mutex mutex_;
  Programs programs_;
  size_t limit_ = SIZE_MAX;
  std::mutex flights_mutex_;
  std::unordered_map<Key, std::shared_ptr<Flight>, WordsHash> flights_;
};

ProgramCache& cache() {
  static auto* one = new ProgramCache;
  return *one;
}

std::mutex g_fallback_mutex;
std::map<std::string, int64_t> g_fallbacks;

void run_on_cpu(const OpInfo& op, torch::jit::Stack* stack) {
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(g_fallback_mutex);
    first = g_fallbacks[op.name]++ == 0;
  }
  if (first) {
    TORCH_WARN(op.name, " has no lowering for device 'tpu' and falls back to the CPU, as TORCH_TPU_FALLBACK=cpu asks; ",
               "this copies its operands at every call. torch.tpu.cpu_fallbacks() counts such ops");
  }
  at::native::cpu_fallback(op.handle, stack);
}

bool is_host_index(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().device().is_cpu() && value.toTensor().dim() > 0 &&
         at::isIntegralType(value.toTensor().scalar_type(), true);
}

// Index tensors may lie on the CPU; they are moved, as on other devices.
void move_host_indices(const OpInfo& op, torch::jit::Stack& stack) {
  auto arguments = torch::jit::last(stack, op.written.size());
  if (arguments.empty() || !arguments[0].isTensor() || arguments[0].toTensor().device().is_cpu()) {
    return;
  }
  c10::Device device = arguments[0].toTensor().device();
  for (size_t i = 1; i < op.written.size(); ++i) {
    c10::IValue& value = torch::jit::peek(stack, i, op.written.size());
    if (!value.isOptionalTensorList() && !value.isTensorList()) {
      continue;
    }
    auto items = value.toListRef();
    if (std::none_of(items.begin(), items.end(), is_host_index)) {
      continue;
    }
    c10::List<std::optional<at::Tensor>> moved;
    for (const c10::IValue& item : items) {
      moved.push_back(is_host_index(item) ? std::optional<at::Tensor>(item.toTensor().to(device))
                                          : item.toOptional<at::Tensor>());
    }
    value = moved;
  }
}

// What torch.linalg's `*_ex` do if they are asked to check. Reads `info`, so it waits.
void check_errors(const OpInfo& op, const at::Tensor& info) {
  std::string name = op.name.substr(0, op.name.find('.'));
  name = name.substr(name.find("linalg_") + std::strlen("linalg_"));
  bool is_of_torch = name == "lu_factor_ex" || name == "solve_ex" || name == "ldl_factor_ex";
  at::_linalg_check_errors(info, (is_of_torch ? "torch.linalg." : "linalg.") + name, info.dim() == 0);
}

}  // namespace

void run_op(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  ensure_started();
  const OpInfo& op = op_info(handle);
  if (op.host_indices) {
    move_host_indices(op, *stack);
  }
  bool with_rows = op.rows;
  Returns results;
  while (true) {
    Call call;
    ProgramPtr program;
    Outputs outputs;
    bool exact = false;   // operands with padded rows must enter with their true number
    bool resize = false;  // `out=` tensors have another shape than the results
    scan(op, *stack, call);
    check_device(call.device);
    {
      std::lock_guard<std::mutex> lock(launch_lock(call.device));
      read(op, *stack, with_rows, call);
      program = cache().find(call.key);
      exact = program != nullptr && (program->specialise || call.rows > program->most_rows);
      resize = program != nullptr && !program->resizes.empty();
      if (program != nullptr && !exact && !resize && !program->fallback) {
        outputs = launch(*program, call, *stack);
      }
    }
    if (program == nullptr) {
      // Everything may have changed once the program is there: read the call again.
      cache().find_or_build(call.key, [&] { return build_program(call, *stack); });
      continue;
    }
    count_memory_hit();
    if (exact) {
      with_rows = false;
      continue;
    }
    if (resize) {
      resize_outputs(*program, call);
      continue;
    }
    if (program->fallback) {
      run_on_cpu(op, stack);
      return;
    }
    results = wrap(*program, call, outputs);
    break;
  }
  bool is_checked = op.check_errors >= 0 && torch::jit::peek(*stack, op.check_errors, op.written.size()).toBool();
  torch::jit::drop(*stack, op.written.size());
  stack->insert(stack->end(), std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
  if (is_checked) {
    check_errors(op, stack->back().toTensor());
  }
}

void register_ops(const std::vector<std::string>& names) {
  // Never destroyed: the registrations live as long as the process.
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const std::string& name : names) {
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_op>());
  }
}

void clear_programs() {
  cache().clear();
}

void set_most_programs(size_t limit) {
  cache().set_limit(limit);
}

void allow_cpu_fallback(bool on) {
  set_cpu_fallback(on);
  if (!on) {
    cache().forget_fallbacks();
  }
}

std::map<std::string, int64_t> cpu_fallbacks() {
  std::lock_guard<std::mutex> lock(g_fallback_mutex);
  return g_fallbacks;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_op>());
}

}  // namespace torch_tpu

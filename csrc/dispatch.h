// The straight line: op -> signature -> cache -> launch. One boxed kernel serves every op.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace torch_tpu {

// The kernel of the backend: runs `op` on the arguments on the stack and leaves its returns there.
void run_op(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Registers the kernel for ops that have another kernel which would win (structured and composite ops).
void register_ops(const std::vector<std::string>& names);

// Forgets all programs in memory.
void clear_programs();

// When there are that many programs in memory, all are forgotten before another one comes.
void set_most_programs(size_t limit);

// Lets ops that have no lowering run on the CPU, or raise again, also those that ran there before.
void allow_cpu_fallback(bool on);

// The ops that ran on the CPU because the user asked for it, and how often.
std::map<std::string, int64_t> cpu_fallbacks();

}  // namespace torch_tpu

// Settings that change what is compiled or how it is run.
#pragma once

#include <cstdint>

namespace torch_tpu {

// Debug mode: every launch is waited for, and indices are checked.
bool debug_mode();
void set_debug_mode(bool on);

// CPU fallback of ops that have no lowering: off unless the user says so.
bool cpu_fallback();
void set_cpu_fallback(bool on);

// The settings as one word of a signature: matmul precision, default dtype, determinism, debug mode.
int64_t modes_key();

}  // namespace torch_tpu

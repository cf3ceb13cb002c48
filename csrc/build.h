// The miss: hands a call to Python, which lowers and compiles it, and takes the program back.
#pragma once

#include <ATen/core/stack.h>

#include "call.h"
#include "program.h"

namespace torch_tpu {

// Builds the program of a call with all of PyTorch's modes off. Takes the GIL; the caller holds no lock.
ProgramPtr build_program(const Call& call, const torch::jit::Stack& stack);

}  // namespace torch_tpu

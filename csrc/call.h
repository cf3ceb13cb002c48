// One call of an op: its operands, what of them changes the program (the signature) and what only changes values.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <string>
#include <vector>

#include "storage.h"
#include "views.h"

namespace torch_tpu {

// What the table of lowerings says of an op, and what its schema says, read once.
struct OpInfo {
  c10::OperatorHandle handle;
  std::string name;
  std::vector<bool> runtime;  // per argument: a number that is a value of the program
  std::vector<bool> written;  // per argument: the op writes to it
  int64_t generator = -1;     // the argument that is the generator
  int64_t check_errors = -1;  // the argument that asks to raise what the last result, `info`, says
  bool rows = false;          // takes operands whose number of rows is only known at run time
  bool host_indices = false;  // takes CPU tensors of any rank as indices
  bool random = false;        // draws from the generator
  bool out = false;           // writes to `out=` tensors
};
const OpInfo& op_info(const c10::OperatorHandle& handle);

// The hash of a vector of words: signatures, and the values of constants.
struct WordsHash {
  size_t operator()(c10::IntArrayRef words) const {
    uint64_t hash = words.size();
    for (int64_t word : words) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// A number that enters the program as an argument.
struct RuntimeScalar {
  c10::ScalarType dtype;
  uint64_t bits[2];
  bool is_number;  // promotes as a Python number does, not as a 0-d tensor
};

struct Call {
  const OpInfo* op = nullptr;
  int device = -1;
  bool wide = true;                         // floats enter as float64: an operand is, or there is none
  c10::SmallVector<at::Tensor, 8> tensors;  // the device operands, in order
  c10::SmallVector<View, 8> views;
  c10::SmallVector<int64_t, 8> storage_of;  // tensor -> index of its storage
  c10::SmallVector<int64_t, 8> row_dim;     // tensor -> its dimension of which it enters with all rows of its buffer, or -1
  c10::SmallVector<Block*, 8> blocks;       // the distinct storages
  c10::SmallVector<RuntimeScalar, 4> scalars;
  int64_t rows = -1;                  // the common number of rows of the padded operands, -1: none
  c10::SmallVector<int64_t, 64> key;  // the signature

  // The starts of all views, then the number of rows: one int64 vector argument.
  Dims starts() const;
};

// Finds the device of a call.
void scan(const OpInfo& op, const torch::jit::Stack& stack, Call& call);

// Reads a scanned call's operands and writes its signature. with_rows: operands with padded rows enter without their true
// count. Raises for operands on other devices. The caller holds the device's launch lock.
void read(const OpInfo& op, const torch::jit::Stack& stack, bool with_rows, Call& call);

}  // namespace torch_tpu

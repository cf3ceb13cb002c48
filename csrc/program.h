// A compiled program with what is needed to run it on tensors: inputs to collect, outputs to wrap, storages to update.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "pjrt.h"
#include "storage.h"

namespace torch_tpu {

constexpr int64_t kRows = -1;  // in sizes: the number of rows, known at run time only

struct NewTensor {
  int64_t output;  // of the executable; -1: no elements, nothing to hold
  c10::ScalarType dtype;
  Dims sizes, strides, dims;  // dims: of the buffer
  int64_t grown = 0;          // rows it has more than the padded operands
  int64_t count = -1;         // output that holds the true number of rows (data-dependent ops), -1: sizes are exact
};

struct Write {
  int64_t storage, output;
  bool donated;  // the program takes the old buffer's memory
  c10::ScalarType dtype;
  Dims dims;
};

struct Resize {
  int64_t tensor;  // among the tensor arguments
  Dims sizes, strides;
};

// Debug mode: an output of two int64 that tells whether an index is out of range, and which; then the error.
struct BoundsCheck {
  int64_t output;
  std::string error, text;  // the exception's name; its words, {} for the index
};

// What a return of the op is: an argument, a new tensor, a number, nothing, or a list of these.
struct Return {
  enum Kind : int64_t { kArgument, kNew, kInt, kNone, kList } kind;
  int64_t index = 0;
  std::vector<Return> items;
};

// Where an argument of the executable comes from.
struct Input {
  enum Kind : int64_t { kStorage, kStarts, kScalar, kRandom } kind;
  int64_t index = 0;
};

struct Program {
  std::string name, doing;                       // the op, and "running " it, for errors
  std::shared_ptr<pjrt::Executable> executable;  // null: nothing to compute
  std::vector<Input> inputs;
  std::vector<NewTensor> tensors;
  std::vector<Write> writes;
  std::vector<Resize> resizes;  // if any, that is all there is to do before the call is read again
  std::vector<Return> returns;
  std::vector<BoundsCheck> checks;
  uint64_t random_numbers = 0;    // how many the program draws
  int64_t output_bytes = 0;       // of new tensors, for the memory check
  int64_t most_rows = INT64_MAX;  // what grows by rows writes them behind the operand's: its buffer has room for so many
  bool specialise = false;        // no program for padded rows: look up again with exact sizes
  bool fallback = false;          // no lowering: the user asked for the CPU
  mutable std::atomic<int64_t> launches{0};
};
using ProgramPtr = std::shared_ptr<const Program>;

// The tensors, scalars and generator of one call of an op.
struct Call;

using Returns = c10::SmallVector<c10::IValue, 4>;

// What a launch left: the buffers of the executable's outputs.
using Outputs = c10::SmallVector<pjrt::BufferPtr, 4>;

// Gives `out=` tensors the shapes of the results, as on any device: they keep their storage and their place in it, and the
// call is another one then.
void resize_outputs(const Program& program, const Call& call);

// Launches a program for a call and updates the storages it writes to. The caller holds the device's launch lock.
Outputs launch(const Program& program, Call& call, const torch::jit::Stack& stack);

// Wraps the outputs as the op's returns. Waits for the true sizes of data-dependent results. Takes no lock.
Returns wrap(const Program& program, const Call& call, const Outputs& outputs);

// The benchmark hook: remembers the launches of this thread, then runs the last one's executable alone, its arguments
// resident, `repeats` times in a loop. Seconds of one execute: the floor of what an op can cost.
void remember_launches(bool on);
double measure_last_launch(int64_t repeats);

struct Stats {
  int64_t launches = 0, memory_hits = 0, disk_hits = 0, compiles = 0, uploads = 0;
  double compile_seconds = 0;
};
Stats stats();
void count_compile(double seconds);
void count_disk_hit();
void count_memory_hit();

}  // namespace torch_tpu

#include "program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <sstream>
#include <unordered_map>

#include "call.h"
#include "device.h"
#include "modes.h"

namespace torch_tpu {

namespace {

std::atomic<int64_t> g_launches{0}, g_memory_hits{0}, g_disk_hits{0}, g_compiles{0}, g_uploads{0};
std::atomic<double> g_compile_seconds{0};

// The last launch of a thread that benchmarks. Donated arguments are replaced by copies, then by the outputs that took their
// memory.
struct LastLaunch {
  bool remember = false;
  std::shared_ptr<pjrt::Executable> executable;
  std::vector<pjrt::BufferPtr> arguments;
  std::vector<std::pair<size_t, size_t>> donated;  // argument, output
  int device = 0;
};
thread_local LastLaunch t_last;

void remember(const Program& program, const Call& call, std::vector<pjrt::BufferPtr> arguments, const Outputs& outputs) {
  t_last.executable = program.executable;
  t_last.device = call.device;
  t_last.donated.clear();
  for (const Write& write : program.writes) {
    for (size_t i = 0; write.donated && i < program.inputs.size(); ++i) {
      if (program.inputs[i].kind == Input::kStorage && program.inputs[i].index == write.storage) {
        t_last.donated.emplace_back(i, write.output);
        const Block& block = *call.blocks[write.storage];
        std::string bytes(block.elements() * c10::elementSize(block.dtype), '\0');
        outputs[write.output]->to_host(bytes.data(), bytes.size());
        arguments[i] = pjrt::upload(bytes.data(), block.dtype, block.dims, call.device);
      }
    }
  }
  t_last.arguments = std::move(arguments);
}

// Device copies of scalars and starts, by device, type and value: uploading one takes longer than finding it again.
// Used under the launch lock of the device only.
class Constants {
 public:
  const pjrt::BufferPtr& get(c10::ScalarType dtype, c10::IntArrayRef words, c10::IntArrayRef dims, int device) {
    if (table_.size() >= kCapacity) {
      table_.clear();
    }
    key_.assign({static_cast<int64_t>(dtype), static_cast<int64_t>(dims.size())});
    key_.append(words.begin(), words.end());
    auto found = table_.find(key_);
    if (found == table_.end()) {
      g_uploads.fetch_add(1, std::memory_order_relaxed);
      found = table_.emplace(key_, pjrt::upload(words.data(), dtype, dims, device)).first;
    }
    return found->second;
  }

 private:
  static constexpr size_t kCapacity = 8192;
  using Key = c10::SmallVector<int64_t, 4>;
  Key key_;
  std::unordered_map<Key, pjrt::BufferPtr, WordsHash> table_;
};

Constants& constants(int device) {
  static auto* all = new std::array<Constants, kMaxDevices>;
  return (*all)[device];
}

struct Wrapper {
  const Call& call;
  c10::ArrayRef<at::Tensor> fresh;

  c10::IValue operator()(const Return& r) const {
    switch (r.kind) {
      case Return::kArgument:
        return call.tensors[r.index];
      case Return::kNew:
        return fresh[r.index];
      case Return::kInt:
        return r.index;
      case Return::kNone:
        return at::Tensor();
      case Return::kList: {
        c10::List<at::Tensor> list;
        list.reserve(r.items.size());
        for (const Return& item : r.items) {
          list.push_back((*this)(item).toTensor());
        }
        return list;
      }
    }
    return {};
  }
};

// The true sizes of a result with padded rows, and the strides of the dimensions of one element before them.
void set_rows(Dims& sizes, Dims& strides, size_t dim, int64_t rows) {
  sizes[dim] = rows;
  for (size_t i = 0; i < dim; ++i) {
    strides[i] = std::max<int64_t>(rows, 1) * strides[dim];
  }
}

// A tensor of `count` rows over a buffer of more: the buffer is cut to a power of two of rows, so that what follows
// compiles once for each power of two and not for each count.
at::Tensor cut_rows(const NewTensor& spec, const pjrt::BufferPtr& buffer, int64_t count, int device) {
  Dims sizes(spec.sizes);
  at::Tensor all = make_tensor(sizes, spec.strides, spec.dtype, device);
  if (all.numel() > 0) {
    block_of(all).set(buffer, spec.dims, spec.dtype);
  }
  int64_t bucket = rows_with_room(count);
  size_t dim = 0;  // of the rows: outermost in memory
  while (spec.sizes[dim] != spec.dims[0] || (all.numel() > 0 && spec.strides[dim] * spec.dims[0] != all.numel())) {
    ++dim;
  }
  if (bucket < sizes[dim]) {
    at::AutoDispatchBelowADInplaceOrView below;
    all = all.narrow(static_cast<int64_t>(dim), 0, bucket).clone();
  }
  sizes[dim] = count;
  all.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, all.strides().vec());
  if (dim == 0 && all.storage().nbytes() > 0 && !block_of(all).dims.empty()) {
    block_of(all).rows = count;
  }
  return all;
}

void check_bounds(const BoundsCheck& check, const pjrt::Buffer& told) {
  int64_t words[2] = {0, 0};
  told.to_host(words, sizeof(words));
  if (words[0] == 0) {
    return;
  }
  std::string text = check.text;
  if (size_t place = text.find("{}"); place != std::string::npos) {
    text.replace(place, 2, std::to_string(words[1]));
  }
  TORCH_CHECK_INDEX(check.error != "IndexError", text);
  TORCH_CHECK(false, text);
}

std::string shapes(const Call& call) {
  std::ostringstream text;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    text << (i ? ", " : "") << call.tensors[i].toString() << call.tensors[i].sizes();
  }
  return text.str();
}

}  // namespace

void resize_outputs(const Program& program, const Call& call) {
  for (const Resize& resize : program.resizes) {
    at::Tensor tensor = call.tensors[resize.tensor];
    at::native::resize_output(tensor, resize.sizes);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(resize.sizes, resize.strides);
  }
}

Outputs launch(const Program& program, Call& call, const torch::jit::Stack& stack) {
  int device = call.device;
  c10::SmallVector<PJRT_Buffer*, 8> outputs;
  Outputs owned;
  if (program.executable != nullptr) {
    check_memory(program.output_bytes + program.executable->temp_bytes(), device, program.doing);
    c10::SmallVector<pjrt::BufferPtr, 16> kept;
    for (const Input& input : program.inputs) {
      switch (input.kind) {
        case Input::kStorage:
          kept.push_back(call.blocks[input.index]->buffer);
          break;
        case Input::kStarts: {
          Dims starts = call.starts();
          int64_t count = static_cast<int64_t>(starts.size());
          kept.push_back(constants(device).get(c10::ScalarType::Long, starts, {count}, device));
          break;
        }
        case Input::kScalar: {
          const RuntimeScalar& scalar = call.scalars[input.index];
          int64_t words[2];
          std::memcpy(words, scalar.bits, sizeof(words));
          kept.push_back(constants(device).get(scalar.dtype, words, {}, device));
          break;
        }
        case Input::kRandom: {
          const auto& given =
              call.op->generator < 0 ? c10::IValue() : torch::jit::peek(stack, call.op->generator, call.op->written.size());
          GeneratorState state =
              reserve(given.isGenerator() ? given.toGenerator() : default_generator(device), program.random_numbers);
          uint32_t words[4] = {static_cast<uint32_t>(state.seed), static_cast<uint32_t>(state.seed >> 32),
                               static_cast<uint32_t>(state.offset), static_cast<uint32_t>(state.offset >> 32)};
          kept.push_back(pjrt::upload(words, c10::ScalarType::UInt32, {4}, device));
          break;
        }
      }
    }
    c10::SmallVector<PJRT_Buffer*, 16> arguments;
    for (const pjrt::BufferPtr& buffer : kept) {
      arguments.push_back(buffer->raw());
    }
    outputs.resize(program.executable->num_outputs());
    PJRT_Error* error = program.executable->execute(arguments.data(), arguments.size(), device, outputs.data());
    if (error != nullptr) {
      try {
        pjrt::check(error, program.name + " on " + shapes(call));
      } catch (const std::exception& e) {
        for (const Write& write : program.writes) {
          if (write.donated) {
            call.blocks[write.storage]->failure = e.what();
          }
        }
        throw;
      }
    }
    g_launches.fetch_add(1, std::memory_order_relaxed);
    program.launches.fetch_add(1, std::memory_order_relaxed);
    owned.reserve(outputs.size());
    for (PJRT_Buffer* output : outputs) {
      owned.push_back(std::make_shared<pjrt::Buffer>(output));
    }
    if (C10_UNLIKELY(t_last.remember)) {
      remember(program, call, {kept.begin(), kept.end()}, owned);
    }
    if (!owned.empty()) {
      note_launch(device, owned.back());
    }
    if (program.executable->temp_bytes() > 0) {
      note_temporaries(program.executable->temp_bytes() + program.output_bytes, device);
    }
  }

  for (const Write& write : program.writes) {
    Block& block = *call.blocks[write.storage];
    block.set(owned[write.output], write.dims, write.dtype);
  }
  if (debug_mode()) {
    for (const pjrt::BufferPtr& buffer : owned) {
      buffer->wait(program.name + " on " + shapes(call));
    }
  }
  return owned;
}

Returns wrap(const Program& program, const Call& call, const Outputs& outputs) {
  for (const BoundsCheck& check : program.checks) {
    check_bounds(check, *outputs[check.output]);
  }
  c10::SmallVector<at::Tensor, 4> fresh;
  fresh.reserve(program.tensors.size());
  for (const NewTensor& spec : program.tensors) {
    if (spec.count >= 0) {
      int32_t count = 0;
      outputs[spec.count]->to_host(&count, sizeof(count));
      fresh.push_back(cut_rows(spec, outputs[spec.output], count, call.device));
      continue;
    }
    auto padded = std::find(spec.sizes.begin(), spec.sizes.end(), kRows);
    int64_t rows = -1;
    if (padded == spec.sizes.end()) {
      fresh.push_back(make_tensor(spec.sizes, spec.strides, spec.dtype, call.device));
    } else {
      Dims sizes(spec.sizes), strides(spec.strides);
      rows = call.rows + spec.grown;
      set_rows(sizes, strides, padded - spec.sizes.begin(), rows);
      fresh.push_back(make_tensor(sizes, strides, spec.dtype, call.device));
    }
    if (spec.output >= 0) {
      Block& block = block_of(fresh.back());
      block.set(outputs[spec.output], spec.dims, spec.dtype);
      block.rows = rows;
    }
  }
  Wrapper wrapper{call, fresh};
  Returns results;
  results.reserve(program.returns.size());
  for (const Return& r : program.returns) {
    results.push_back(wrapper(r));
  }
  return results;
}

void remember_launches(bool on) {
  t_last = LastLaunch{};
  t_last.remember = on;
}

double measure_last_launch(int64_t repeats) {
  TORCH_CHECK(t_last.executable != nullptr, "no launch was remembered on this thread");
  std::vector<PJRT_Buffer*> arguments, outputs(t_last.executable->num_outputs());
  for (const auto& buffer : t_last.arguments) {
    arguments.push_back(buffer->raw());
  }
  std::vector<pjrt::BufferPtr> alive(outputs.size());
  auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) {
    pjrt::check(t_last.executable->execute(arguments.data(), arguments.size(), t_last.device, outputs.data()), "measuring");
    for (size_t k = 0; k < outputs.size(); ++k) {
      alive[k] = std::make_shared<pjrt::Buffer>(outputs[k]);
    }
    for (auto [argument, output] : t_last.donated) {
      t_last.arguments[argument] = alive[output];
      arguments[argument] = outputs[output];
    }
  }
  for (const auto& buffer : alive) {
    buffer->wait("measuring");
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / static_cast<double>(repeats);
}

Stats stats() {
  return {g_launches, g_memory_hits, g_disk_hits, g_compiles, g_uploads, g_compile_seconds};
}

void count_compile(double seconds) {
  g_compiles.fetch_add(1);
  g_compile_seconds = g_compile_seconds + seconds;
}

void count_disk_hit() {
  g_disk_hits.fetch_add(1);
}

void count_memory_hit() {
  g_memory_hits.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace torch_tpu

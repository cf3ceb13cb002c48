#include "storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/accumulate.h>
#include <c10/util/llvmMathExtras.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "device.h"

namespace torch_tpu {

namespace {

struct Memory {
  std::atomic<int64_t> allocated{0}, peak{0}, total_allocated{0}, total_freed{0};
  std::atomic<int64_t> active_blocks{0}, allocations{0}, ooms{0}, temporaries_peak{0};
};
std::array<Memory, kMaxDevices> g_memory;
std::atomic<int64_t> g_limit{0};

void raise_max(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

std::string mib(int64_t bytes) {
  return bytes < (1 << 20) ? std::to_string(bytes) + " bytes" : std::to_string(bytes >> 20) + " MiB";
}

void delete_block(void* block) {
  delete static_cast<Block*>(block);
}

// Addresses start far above anything mapped, so that a stray read faults instead of reading something else.
std::atomic<uintptr_t> g_next_address{uintptr_t{1} << 50};

const char* next_address(size_t nbytes) {
  size_t span = (nbytes + 511) / 512 * 512 + 512;
  return reinterpret_cast<const char*>(g_next_address.fetch_add(span, std::memory_order_relaxed));
}

// The list of live blocks, for the rare look-up by address.
std::mutex g_blocks_mutex;
Block* g_blocks = nullptr;

struct TpuAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    return allocate_block(nbytes, current_device());
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "device memory of 'tpu' has no address: copy tensors, not pointers");
  }
  bool initialized() override {
    return pjrt::started();
  }
  void emptyCache(c10::MempoolId_t) override {
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    MemoryStats now = memory_stats(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      auto& all = (*bytes)[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      all.current = now.allocated;
      all.peak = now.peak;
      all.allocated = now.total_allocated;
      all.freed = now.total_freed;
    }
    for (auto* count : {&stats.allocation, &stats.active}) {
      auto& all = (*count)[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      all.current = now.active_blocks;
      all.allocated = now.allocations;
      all.freed = now.allocations - now.active_blocks;
    }
    stats.num_ooms = now.ooms;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    g_memory.at(device).total_allocated = 0;
    g_memory.at(device).total_freed = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    reset_peak_memory_stats(device);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    int64_t total = memory_limit();
    return {static_cast<size_t>(std::max<int64_t>(0, total - memory_stats(device).allocated)), total};
  }
};

TpuAllocator g_allocator;
const bool g_registered = [] {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &g_allocator);
  return true;
}();

}  // namespace

c10::DeviceAllocator* allocator() {
  return &g_allocator;
}

Block::Block(int device, size_t nbytes) : device(device), nbytes(0), address(next_address(nbytes)) {
  check_memory(static_cast<int64_t>(nbytes), device, "allocating a tensor");
  Memory& memory = g_memory[device];
  memory.active_blocks.fetch_add(1, std::memory_order_relaxed);
  memory.allocations.fetch_add(1, std::memory_order_relaxed);
  account(nbytes);
  std::lock_guard<std::mutex> lock(g_blocks_mutex);
  next_ = g_blocks;
  if (next_ != nullptr) {
    next_->previous_ = this;
  }
  g_blocks = this;
}

Block::~Block() {
  {
    std::lock_guard<std::mutex> lock(g_blocks_mutex);
    (previous_ != nullptr ? previous_->next_ : g_blocks) = next_;
    if (next_ != nullptr) {
      next_->previous_ = previous_;
    }
  }
  account(0);
  g_memory[device].active_blocks.fetch_sub(1, std::memory_order_relaxed);
}

void Block::account(size_t bytes) {
  Memory& memory = g_memory[device];
  int64_t change = static_cast<int64_t>(bytes) - static_cast<int64_t>(nbytes);
  nbytes = bytes;
  int64_t total = memory.allocated.fetch_add(change, std::memory_order_relaxed) + change;
  if (change > 0) {
    memory.total_allocated.fetch_add(change, std::memory_order_relaxed);
    raise_max(memory.peak, total);
  } else {
    memory.total_freed.fetch_sub(change, std::memory_order_relaxed);
  }
}

int64_t Block::elements() const {
  return c10::multiply_integers(dims);
}

void Block::set(pjrt::BufferPtr new_buffer, c10::IntArrayRef new_dims, c10::ScalarType new_dtype) {
  buffer = std::move(new_buffer);
  if (dims.empty() || new_dims.empty() || dims[0] != new_dims[0]) {
    rows = -1;
  }
  dims.assign(new_dims.begin(), new_dims.end());
  dtype = new_dtype;
  size_t bytes = elements() * c10::elementSize(dtype);
  if (bytes > nbytes) {
    account(bytes);
  }
}

void Block::check() const {
  TORCH_CHECK(failure.empty(), "this tensor's value was lost when an in-place update of it failed: ", failure);
}

Block& block_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  if (C10_LIKELY(data.get_deleter() == &delete_block)) {
    return *static_cast<Block*>(data.get_context());
  }
  // PyTorch wraps raw addresses when it writes storages to files, and those of DLPack.
  Block* block = find_block(data.get());
  TORCH_CHECK(block != nullptr, "a storage on tpu at an address that is none of the device's");
  return *block;
}

Block* find_block(const void* address) {
  std::lock_guard<std::mutex> lock(g_blocks_mutex);
  for (Block* block = g_blocks; block != nullptr; block = block->next_) {
    if (address >= block->address && address < block->address + std::max<size_t>(block->nbytes, 1)) {
      return block;
    }
  }
  return nullptr;
}

Block& block_of(const at::TensorBase& tensor) {
  return block_of(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

c10::DataPtr allocate_block(size_t nbytes, int device) {
  ensure_started();
  check_device(device);
  auto block = std::make_unique<Block>(device, nbytes);
  void* address = const_cast<char*>(block->address);
  return {address, block.release(), &delete_block,
          c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device))};
}

at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, int device) {
  size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  c10::DataPtr data = allocate_block(nbytes, device);
  static_cast<Block*>(data.get_context())->dtype = dtype;
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data),
                                                       allocator(), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

int64_t rows_with_room(int64_t rows) {
  return std::max<int64_t>(16, static_cast<int64_t>(c10::llvm::PowerOf2Ceil(rows)));
}

void resize_storage(c10::StorageImpl& storage, size_t nbytes) {
  if (nbytes == storage.nbytes()) {
    return;
  }
  Block& old = block_of(storage);
  c10::DataPtr data = allocate_block(nbytes, old.device);
  Block& fresh = *static_cast<Block*>(data.get_context());
  fresh.dtype = old.dtype;
  size_t kept = std::min(nbytes, storage.nbytes());
  if (old.buffer != nullptr && kept > 0) {
    // Rare (growing a tensor in place), so through the host rather than with a program for each pair of sizes.
    old.check();
    size_t item = c10::elementSize(old.dtype);
    std::string bytes(std::max(old.elements() * item, (nbytes + item - 1) / item * item), '\0');
    old.buffer->to_host(bytes.data(), old.elements() * item);
    std::fill(bytes.begin() + kept, bytes.end(), '\0');
    int64_t elements = (nbytes + item - 1) / item;
    fresh.set(pjrt::upload(bytes.data(), old.dtype, {elements}, old.device), {elements}, old.dtype);
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(nbytes);
}

MemoryStats memory_stats(int device) {
  const Memory& m = g_memory.at(device);
  return {m.allocated, m.peak, m.total_allocated, m.total_freed, m.active_blocks, m.allocations, m.ooms, m.temporaries_peak};
}

void reset_peak_memory_stats(int device) {
  Memory& memory = g_memory.at(device);
  memory.peak = memory.allocated.load();
  memory.temporaries_peak = 0;
}

void set_memory_limit(int64_t bytes) {
  g_limit = bytes;
}

int64_t memory_limit() {
  return g_limit;
}

void check_memory(int64_t bytes, int device, std::string_view doing) {
  Memory& memory = g_memory.at(device);
  int64_t used = memory.allocated.load(std::memory_order_relaxed), limit = memory_limit();
  if (bytes > 0 && limit > 0 && used + bytes > limit) {
    memory.ooms.fetch_add(1);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory on tpu:", device, " while ", doing, ": ", mib(bytes),
                     " asked for, ", mib(used), " in use, the limit is ", mib(limit),
                     ". Free tensors, use a smaller batch, or raise TORCH_TPU_MEMORY_LIMIT (bytes)");
  }
}

void note_temporaries(int64_t bytes, int device) {
  Memory& memory = g_memory[device];
  raise_max(memory.temporaries_peak, bytes);
  raise_max(memory.peak, memory.allocated.load(std::memory_order_relaxed) + bytes);
}

}  // namespace torch_tpu

// What backs a torch storage on the device: one PJRT buffer whose row-major order is the storage's order.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <string>

#include "pjrt.h"

namespace torch_tpu {

using Dims = c10::SmallVector<int64_t, 6>;

// The block of memory of one storage; the context of its DataPtr. Guarded by the device's launch lock.
struct Block {
  Block(int device, size_t nbytes);  // raises OutOfMemoryError past the limit
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  int device;
  size_t nbytes;                                  // accounted bytes: the storage's, or the buffer's if that has more rows
  pjrt::BufferPtr buffer;                         // null: never written, reads as zeros
  Dims dims;                                      // of the buffer
  c10::ScalarType dtype = c10::ScalarType::Byte;  // of the buffer
  int64_t rows = -1;                              // a result of unknown size: only the first `rows` of dims[0] count
  std::string failure;                            // not empty: a donated update failed and the value is lost

  int64_t elements() const;
  void set(pjrt::BufferPtr new_buffer, c10::IntArrayRef new_dims, c10::ScalarType new_dtype);
  // Raises the failure if the value is lost.
  void check() const;

  const char* address;  // virtual: unique, never mapped, good for identity and arithmetic only

 private:
  friend Block* find_block(const void* address);
  void account(size_t bytes);
  Block *previous_ = nullptr, *next_ = nullptr;  // all live blocks
};

// The live block whose memory an address is in, null if none.
Block* find_block(const void* address);

// The block of a tensor on the device, and the same for a storage.
Block& block_of(const at::TensorBase& tensor);
Block& block_of(const c10::StorageImpl& storage);

// A DataPtr with a fresh block.
c10::DataPtr allocate_block(size_t nbytes, int device);

// A tensor over fresh memory. Raises OutOfMemoryError past the limit.
at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, int device);

// The rows of the buffer of a tensor with so many rows, if their number varies: the next power of two, 16 at least.
int64_t rows_with_room(int64_t rows);

// Changes the bytes of a storage, keeping its contents as far as they reach.
void resize_storage(c10::StorageImpl& storage, size_t nbytes);

c10::DeviceAllocator* allocator();

// Memory of one device, in bytes. The limit is set before first use.
struct MemoryStats {
  int64_t allocated = 0, peak = 0, total_allocated = 0, total_freed = 0;
  int64_t active_blocks = 0, allocations = 0, ooms = 0, temporaries_peak = 0;
};
MemoryStats memory_stats(int device);
void reset_peak_memory_stats(int device);
void set_memory_limit(int64_t bytes);
int64_t memory_limit();
// Raises OutOfMemoryError if `bytes` more do not fit, naming what was asked, what is in use and the limit.
void check_memory(int64_t bytes, int device, std::string_view doing);
// Notes the scratch memory of a launch for the peak.
void note_temporaries(int64_t bytes, int device);

constexpr int kMaxDevices = 64;

}  // namespace torch_tpu

// The PJRT C API with owners for its objects and exceptions for its errors. Knows nothing of tensors.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pjrt_c_api.h"

namespace torch_tpu::pjrt {

// The loaded plugin's function table; raises if no client has been made.
const PJRT_Api* api();

// Raises the error as the exception PyTorch users expect (OutOfMemoryError, NotImplementedError, RuntimeError), prefixed
// by what was being done. No-op on nullptr.
void check(PJRT_Error* error, std::string_view doing);

// Names a create option of the plugin.
struct Option {
  std::string name;
  int64_t value;
};

// Loads the plugin at `path` and makes the process's client. Raises if it is no plugin or has no device; may be retried.
void start(const std::string& path, const std::vector<Option>& options);
bool started();
int device_count();
std::string platform_name();
std::string device_kind(int device);
std::pair<int, int> api_version();
// The StableHLO version the plugin reads ("1.13.3"), empty if it does not tell.
std::string stablehlo_version();

// A device buffer. Destroying one that a running program reads is safe: PJRT defers.
class Buffer {
 public:
  explicit Buffer(PJRT_Buffer* raw) : raw_(raw) {
  }
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  PJRT_Buffer* raw() const {
    return raw_;
  }
  // Blocks until the value is there; raises the error of the program that failed to make it.
  void wait(std::string_view doing) const;
  bool ready() const;
  // Raises nothing, copies `size` bytes in row-major order, and blocks until done.
  void to_host(void* out, size_t size) const;
  PJRT_Event* ready_event() const;

 private:
  PJRT_Buffer* raw_;
};
using BufferPtr = std::shared_ptr<Buffer>;

// Copies row-major host memory to the device; `data` may be freed at return.
BufferPtr upload(const void* data, c10::ScalarType dtype, c10::IntArrayRef dims, int device);
BufferPtr copy_to_device(const Buffer& buffer, int device);

class Executable {
 public:
  // program: StableHLO, a portable artifact. options: a serialized CompileOptionsProto.
  static std::shared_ptr<Executable> compile(const std::string& program, const std::string& options);
  static std::shared_ptr<Executable> deserialize(const std::string& bytes);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Launches on one device. `outputs` must hold num_outputs() entries and is overwritten; the caller owns them.
  PJRT_Error* execute(PJRT_Buffer* const* arguments, size_t count, int device, PJRT_Buffer** outputs) const;
  std::string serialize() const;
  size_t num_outputs() const {
    return num_outputs_;
  }
  // Bytes of scratch memory a launch takes beside its arguments and outputs; 0 if unknown.
  int64_t temp_bytes() const {
    return temp_bytes_;
  }

 private:
  explicit Executable(PJRT_LoadedExecutable* raw);
  PJRT_LoadedExecutable* raw_;
  size_t num_outputs_ = 0;
  int64_t temp_bytes_ = 0;
};

// Seconds on the monotonic clock, and the time at which an event fires. Takes ownership of `event`.
class Completion {
 public:
  explicit Completion(PJRT_Event* event);
  bool done() const;
  void wait() const;
  double when() const;  // seconds; waits

 private:
  struct State;
  std::shared_ptr<State> state_;
};

PJRT_Buffer_Type buffer_type(c10::ScalarType dtype);

}  // namespace torch_tpu::pjrt

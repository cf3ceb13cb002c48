// The device as PyTorch sees it: current device, start of the runtime, streams, events, generators.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <mutex>
#include <optional>

#include "pjrt.h"

namespace torch_tpu {

int current_device();
void set_current_device(int device);

// How many devices there are, without starting the runtime.
void set_device_count(int count);
int device_count();
// Raises if there is no such device.
void check_device(int device);

// Makes the PJRT client at first use, through the Python function that finds the plugin. Raises in a forked child.
void ensure_started();
bool in_bad_fork();
void refuse_in_fork();

// One in-order queue a device: whoever launches or changes buffers holds its lock. Never take the GIL under it. Raises in a
// forked child, where the queue's threads are missing.
std::mutex& launch_lock(int device);
// Notes the newest launch's buffer, under the lock; events complete with it.
void note_launch(int device, pjrt::BufferPtr buffer);
pjrt::BufferPtr last_launch(int device);
// Waits for all launches of a device; raises the error of one that failed.
void synchronize(int device);

// The generator of a device: Philox seed and offset, both on the host.
struct GeneratorState {
  uint64_t seed, offset;
};
const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// Takes `numbers` random numbers: returns the state to draw them from and moves the offset on.
GeneratorState reserve(const at::Generator& generator, uint64_t numbers);

}  // namespace torch_tpu

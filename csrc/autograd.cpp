// The autograd engine makes its queue of each device at its first backward. Where the package is imported after that, ours
// is added.
#include "autograd.h"

#include <torch/csrc/autograd/engine.h>

#include <thread>

#include "device.h"

namespace torch_tpu {

namespace {

// A derived class may name protected members of its base.
struct Access : torch::autograd::Engine {
  static auto queues() {
    return &Access::device_ready_queues_;
  }
};

}  // namespace

void join_autograd() {
  torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  auto& queues = engine.*Access::queues();
  if (queues.empty()) {
    return;  // not started yet: it will find the device by itself
  }
  for (int device = static_cast<int>(queues.size()); device < device_count(); ++device) {
    queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
    std::thread([&engine, device, queue = queues.back()] { engine.thread_init(device, queue, false); }).detach();
  }
}

}  // namespace torch_tpu

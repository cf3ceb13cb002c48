// The autograd engine makes its queue of each device at its first backward. Where the package is imported after that, ours is
// added.
#include "autograd.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <thread>

#include "device.h"
#include "storage.h"

namespace torch_tpu {

namespace {

// A derived class may name protected members of its base.
struct Access : torch::autograd::Engine {
  static auto queues() {
    return &Access::device_ready_queues_;
  }
  static auto pool() {
    return &Access::thread_pool_shared_;
  }
};

struct Nothing final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    return {};
  }
};

}  // namespace

void join_autograd() {
  torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  auto& queues = engine.*Access::queues();
  if (engine.*Access::pool() == nullptr) {
    return;  // not started yet: it will find the device by itself
  }
  for (int device = static_cast<int>(queues.size()); device < device_count(); ++device) {
    queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
    std::thread([&engine, device, queue = queues.back()] { engine.thread_init(device, queue, false); }).detach();
  }
}

void settle_autograd() {
  torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  if (in_bad_fork()) {
    return;  // the threads stayed in the parent
  }
  // A task of our own, from a thread without Python state: when it is done, the ones before it are gone.
  int count = std::min<int>(device_count(), static_cast<int>((engine.*Access::queues()).size()));
  std::thread([&engine, count] {
    for (int device = 0; device < count && pjrt::started(); ++device) {
      at::Tensor gradient = make_tensor({}, {}, c10::ScalarType::Float, device);
      auto node = c10::make_intrusive<Nothing>();
      node->add_input_metadata(gradient);
      engine.execute({torch::autograd::Edge(node, 0)}, {gradient}, /*keep_graph=*/false, /*create_graph=*/false,
                     /*accumulate_grad=*/true);
    }
  }).join();
}

}  // namespace torch_tpu

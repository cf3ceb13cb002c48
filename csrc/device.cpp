#include "device.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <random>

#include "python.h"
#include "storage.h"

namespace torch_tpu {

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

thread_local int t_device = 0;
std::atomic<int> g_count{0};
std::atomic<bool> g_forked{false};

struct Queue {
  std::mutex lock;
  pjrt::BufferPtr last;
  // Independent programs may finish out of order, so synchronizing waits for the recent launches, not for the last only.
  std::array<std::weak_ptr<pjrt::Buffer>, 1024> recent;
  size_t next = 0;
};
// Never destroyed: threads may still launch while the process ends.
std::array<Queue, kMaxDevices>& queues() {
  static auto* all = new std::array<Queue, kMaxDevices>;
  return *all;
}

c10::Device make_device(int index) {
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

struct TpuGenerator final : c10::GeneratorImpl {
  explicit TpuGenerator(int device)
      : c10::GeneratorImpl(make_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {
  }
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override {
    offset_ = offset;
  }
  uint64_t get_offset() const override {
    return offset_;
  }
  uint64_t current_seed() const override {
    return seed_;
  }
  uint64_t seed() override {
    std::random_device random;
    uint64_t fresh = ((static_cast<uint64_t>(random()) << 32) | random()) & 0x1FFFFFFFFFFFFF;
    set_current_seed(fresh);
    return fresh;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.device().is_cpu() && state.numel() == 16,
                "the random state of 'tpu' is a CPU uint8 tensor of 16 bytes: the seed, then the offset");
    const auto* bytes = static_cast<const uint8_t*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  TpuGenerator* clone_impl() const override {
    auto* copy = new TpuGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;
  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override {
    return make_device(current_device());
  }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      set_current_device(device.index());
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) {
      t_device = device.index();
    }
  }
  // One queue a device: every stream is the default stream.
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<pjrt::Completion*>(event);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag) const override {
    delete static_cast<pjrt::Completion*>(*event);
    *event = nullptr;
    ensure_started();
    int index = stream.device_index() >= 0 ? stream.device_index() : device;
    pjrt::BufferPtr last = last_launch(index);
    if (last == nullptr) {
      float nothing = 0;  // nothing was launched yet: an event that is complete now
      last = pjrt::upload(&nothing, c10::ScalarType::Float, {}, index);
    }
    *event = new pjrt::Completion(last->ready_event());
  }
  void block(void*, const c10::Stream&) const override {
  }  // the queue is in order
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<pjrt::Completion*>(event)->done();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      static_cast<pjrt::Completion*>(event)->wait();
    }
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "both events must be recorded before their elapsed time is asked");
    return 1e3 * (static_cast<pjrt::Completion*>(end)->when() - static_cast<pjrt::Completion*>(start)->when());
  }
  bool queryStream(const c10::Stream& stream) const override {
    pjrt::BufferPtr last = last_launch(stream.device_index());
    return last == nullptr || last->ready();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream.device_index());
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    synchronize(device < 0 ? current_device() : device);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {
  }
};

// Host memory needs no pinning for PJRT: it is ordinary memory that remembers it was asked for.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    auto* host = c10::GetAllocator(c10::DeviceType::CPU)->raw_allocate(nbytes);
    {
      std::lock_guard<std::mutex> lock(mutex);
      ranges[reinterpret_cast<uintptr_t>(host)] = nbytes;
    }
    return {host, host, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool holds(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex);
    auto after = ranges.upper_bound(reinterpret_cast<uintptr_t>(pointer));
    if (after == ranges.begin()) {
      return false;
    }
    --after;
    return reinterpret_cast<uintptr_t>(pointer) < after->first + std::max<size_t>(after->second, 1);
  }
  static PinnedAllocator& instance() {
    static auto* one = new PinnedAllocator;
    return *one;
  }
  static void release(void* host) {
    {
      std::lock_guard<std::mutex> lock(instance().mutex);
      instance().ranges.erase(reinterpret_cast<uintptr_t>(host));
    }
    c10::GetAllocator(c10::DeviceType::CPU)->raw_deallocate(host);
  }
  std::mutex mutex;
  std::map<uintptr_t, size_t> ranges;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return pjrt::started();
  }
  void init() const override {
    ensure_started();
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_current_device(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    int old = current_device();
    if (device >= 0) {
      set_current_device(device);
    }
    return static_cast<c10::DeviceIndex>(old);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? current_device() : device);
  }
  bool isPinnedPtr(const void* pointer) const override {
    return PinnedAllocator::instance().holds(pointer);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &PinnedAllocator::instance();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), nbytes);
  }
};

const bool g_registered = [] {
  static Guard guard;
  c10::impl::registerDeviceGuard(kType, &guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

int current_device() {
  return t_device;
}

void set_current_device(int device) {
  check_device(device);
  t_device = device;
}

void set_device_count(int count) {
  g_count = count;
}

int device_count() {
  return g_count;
}

void check_device(int device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "invalid device index tpu:", device, ": there ",
              device_count() == 1 ? "is 1 device" : "are " + std::to_string(device_count()) + " devices",
              ". On the CPU plugin TORCH_TPU_NUM_DEVICES sets how many");
}

bool in_bad_fork() {
  return g_forked;
}

void refuse_in_fork() {
  TORCH_CHECK(!g_forked.load(std::memory_order_relaxed),
              "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, you must use the 'spawn' "
              "start method");
}

void ensure_started() {
  if (C10_LIKELY(pjrt::started() && !g_forked.load(std::memory_order_relaxed))) {
    return;
  }
  refuse_in_fork();
  PythonFromOp python;
  pybind11::module_::import("torch_tpu.runtime").attr("start")();
  static const bool watched = [] {
    pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
    return true;
  }();
  (void)watched;
}

std::mutex& launch_lock(int device) {
  refuse_in_fork();
  return queues()[device].lock;
}

void note_launch(int device, pjrt::BufferPtr buffer) {
  Queue& queue = queues()[device];
  queue.recent[queue.next++ % queue.recent.size()] = buffer;
  queue.last.swap(buffer);
}

pjrt::BufferPtr last_launch(int device) {
  Queue& queue = queues().at(device);
  std::lock_guard<std::mutex> lock(queue.lock);
  return queue.last;
}

void synchronize(int device) {
  ensure_started();
  check_device(device);
  std::vector<pjrt::BufferPtr> waiting;
  {
    Queue& queue = queues()[device];
    std::lock_guard<std::mutex> lock(queue.lock);
    for (auto& recent : queue.recent) {
      if (pjrt::BufferPtr buffer = recent.lock()) {
        waiting.push_back(std::move(buffer));
      }
    }
  }
  for (const pjrt::BufferPtr& buffer : waiting) {
    buffer->wait("synchronizing tpu:" + std::to_string(device));
  }
}

const at::Generator& default_generator(int device) {
  check_device(device);
  static auto* all = new std::array<at::Generator, kMaxDevices>;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  at::Generator& one = (*all)[device];
  if (!one.defined()) {
    one = at::make_generator<TpuGenerator>(device);  // starts from PyTorch's default seed, as the CPU's does
  }
  return one;
}

at::Generator new_generator(int device) {
  check_device(device);
  return at::make_generator<TpuGenerator>(device);
}

GeneratorState reserve(const at::Generator& generator, uint64_t numbers) {
  TORCH_CHECK(generator.device().type() == kType, "Expected a 'tpu' device type for generator but found '",
              generator.device().type(), "'");
  auto* state = static_cast<TpuGenerator*>(generator.unsafeGetGeneratorImpl());
  std::lock_guard<std::mutex> lock(state->mutex_);
  GeneratorState result{state->seed_, state->offset_};
  state->offset_ += numbers;
  return result;
}

}  // namespace torch_tpu

#include "pjrt.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace torch_tpu::pjrt {

namespace {

std::atomic<const PJRT_Api*> g_api{nullptr};
PJRT_Client* g_client = nullptr;
std::vector<PJRT_Device*> g_devices;
std::mutex g_start_mutex;

#define PJRT_ARGS(name, type) \
  type name{};                \
  name.struct_size = type##_STRUCT_SIZE

struct Message {
  PJRT_Error_Code code;
  std::string text;
};

Message take(const PJRT_Api* table, PJRT_Error* error) {
  PJRT_ARGS(code, PJRT_Error_GetCode_Args);
  code.error = error;
  table->PJRT_Error_GetCode(&code);
  PJRT_ARGS(message, PJRT_Error_Message_Args);
  message.error = error;
  table->PJRT_Error_Message(&message);
  Message result{code.code, std::string(message.message, message.message_size)};
  PJRT_ARGS(destroy, PJRT_Error_Destroy_Args);
  destroy.error = error;
  table->PJRT_Error_Destroy(&destroy);
  return result;
}

void raise(const PJRT_Api* table, PJRT_Error* error, std::string_view doing) {
  if (error == nullptr) {
    return;
  }
  Message message = take(table, error);
  std::string text = std::string(doing) + ": " + message.text;
  switch (message.code) {
    case PJRT_Error_Code_RESOURCE_EXHAUSTED:
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    case PJRT_Error_Code_UNIMPLEMENTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    default:
      TORCH_CHECK(false, text);
  }
}

void destroy_event(PJRT_Event* event) {
  PJRT_ARGS(args, PJRT_Event_Destroy_Args);
  args.event = event;
  api()->PJRT_Event_Destroy(&args);
}

// Waits for an event and destroys it.
PJRT_Error* await(PJRT_Event* event) {
  PJRT_ARGS(args, PJRT_Event_Await_Args);
  args.event = event;
  PJRT_Error* error = api()->PJRT_Event_Await(&args);
  destroy_event(event);
  return error;
}

const PJRT_Api* load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "cannot load the PJRT plugin ", path, ": ", dlerror(),
              ". Set TORCH_TPU_PJRT_PLUGIN to a PJRT plugin's shared object, or unset it to use the default");
  auto get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  TORCH_CHECK(get != nullptr, path,
              " is not a PJRT plugin (it has no GetPjrtApi). Set TORCH_TPU_PJRT_PLUGIN to a PJRT plugin's shared "
              "object, or unset it to use the default");
  const PJRT_Api* table = get();
  PJRT_ARGS(args, PJRT_Plugin_Initialize_Args);
  raise(table, table->PJRT_Plugin_Initialize(&args), "initializing the PJRT plugin " + path);
  return table;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

const PJRT_Api* api() {
  const PJRT_Api* table = g_api.load(std::memory_order_relaxed);
  TORCH_CHECK(table != nullptr, "the tpu runtime has not been started");
  return table;
}

void check(PJRT_Error* error, std::string_view doing) {
  if (error != nullptr) {
    raise(api(), error, doing);
  }
}

bool started() {
  return g_api.load() != nullptr;
}

void start(const std::string& path, const std::vector<Option>& options) {
  std::lock_guard<std::mutex> lock(g_start_mutex);
  if (started()) {
    return;
  }
  const PJRT_Api* table = load(path);
  std::vector<PJRT_NamedValue> values;
  for (const Option& option : options) {
    PJRT_NamedValue value{};
    value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    value.name = option.name.data();
    value.name_size = option.name.size();
    value.type = PJRT_NamedValue_kInt64;
    value.int64_value = option.value;
    value.value_size = 1;
    values.push_back(value);
  }
  PJRT_ARGS(create, PJRT_Client_Create_Args);
  create.create_options = values.data();
  create.num_options = values.size();
  raise(table, table->PJRT_Client_Create(&create), "starting the PJRT client of " + path);
  PJRT_ARGS(devices, PJRT_Client_AddressableDevices_Args);
  devices.client = create.client;
  raise(table, table->PJRT_Client_AddressableDevices(&devices), "listing the devices of " + path);
  TORCH_CHECK(devices.num_addressable_devices > 0, "the PJRT plugin ", path, " has no device");
  g_devices.assign(devices.addressable_devices, devices.addressable_devices + devices.num_addressable_devices);
  g_client = create.client;
  g_api.store(table);
}

int device_count() {
  return static_cast<int>(g_devices.size());
}

std::string platform_name() {
  PJRT_ARGS(args, PJRT_Client_PlatformName_Args);
  args.client = g_client;
  check(api()->PJRT_Client_PlatformName(&args), "asking for the platform's name");
  return {args.platform_name, args.platform_name_size};
}

std::string device_kind(int device) {
  PJRT_ARGS(describe, PJRT_Device_GetDescription_Args);
  describe.device = g_devices.at(device);
  check(api()->PJRT_Device_GetDescription(&describe), "describing a device");
  PJRT_ARGS(kind, PJRT_DeviceDescription_Kind_Args);
  kind.device_description = describe.device_description;
  check(api()->PJRT_DeviceDescription_Kind(&kind), "asking for a device's kind");
  return {kind.device_kind, kind.device_kind_size};
}

std::pair<int, int> api_version() {
  return {api()->pjrt_api_version.major_version, api()->pjrt_api_version.minor_version};
}

std::string stablehlo_version() {
  PJRT_ARGS(args, PJRT_Plugin_Attributes_Args);
  check(api()->PJRT_Plugin_Attributes(&args), "asking for the plugin's attributes");
  for (size_t i = 0; i < args.num_attributes; ++i) {
    const PJRT_NamedValue& value = args.attributes[i];
    if (std::string_view(value.name, value.name_size) == "stablehlo_current_version" &&
        value.type == PJRT_NamedValue_kInt64List && value.value_size == 3) {
      const int64_t* v = value.int64_array_value;
      return std::to_string(v[0]) + "." + std::to_string(v[1]) + "." + std::to_string(v[2]);
    }
  }
  return "";
}

PJRT_Buffer_Type buffer_type(c10::ScalarType dtype) {
  using c10::ScalarType;
  switch (dtype) {
    case ScalarType::Bool:
      return PJRT_Buffer_Type_PRED;
    case ScalarType::Byte:
      return PJRT_Buffer_Type_U8;
    case ScalarType::Char:
      return PJRT_Buffer_Type_S8;
    case ScalarType::Short:
      return PJRT_Buffer_Type_S16;
    case ScalarType::UInt16:
      return PJRT_Buffer_Type_U16;
    case ScalarType::Int:
      return PJRT_Buffer_Type_S32;
    case ScalarType::UInt32:
      return PJRT_Buffer_Type_U32;
    case ScalarType::Long:
      return PJRT_Buffer_Type_S64;
    case ScalarType::UInt64:
      return PJRT_Buffer_Type_U64;
    case ScalarType::Half:
      return PJRT_Buffer_Type_F16;
    case ScalarType::BFloat16:
      return PJRT_Buffer_Type_BF16;
    case ScalarType::Float:
      return PJRT_Buffer_Type_F32;
    case ScalarType::Double:
      return PJRT_Buffer_Type_F64;
    case ScalarType::ComplexFloat:
      return PJRT_Buffer_Type_C64;
    case ScalarType::ComplexDouble:
      return PJRT_Buffer_Type_C128;
    case ScalarType::Float8_e5m2:
      return PJRT_Buffer_Type_F8E5M2;
    case ScalarType::Float8_e4m3fn:
      return PJRT_Buffer_Type_F8E4M3FN;
    case ScalarType::Float8_e5m2fnuz:
      return PJRT_Buffer_Type_F8E5M2FNUZ;
    case ScalarType::Float8_e4m3fnuz:
      return PJRT_Buffer_Type_F8E4M3FNUZ;
    case ScalarType::Float8_e8m0fnu:
      return PJRT_Buffer_Type_F8E8M0FNU;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "dtype ", c10::toString(dtype),
                                  " is not supported on device 'tpu'; convert the tensor before moving it");
  }
}

Buffer::~Buffer() {
  PJRT_ARGS(args, PJRT_Buffer_Destroy_Args);
  args.buffer = raw_;
  if (PJRT_Error* error = api()->PJRT_Buffer_Destroy(&args)) {
    take(api(), error);
  }
}

PJRT_Event* Buffer::ready_event() const {
  PJRT_ARGS(args, PJRT_Buffer_ReadyEvent_Args);
  args.buffer = raw_;
  check(api()->PJRT_Buffer_ReadyEvent(&args), "waiting for a buffer");
  return args.event;
}

void Buffer::wait(std::string_view doing) const {
  check(await(ready_event()), doing);
}

bool Buffer::ready() const {
  PJRT_Event* event = ready_event();
  PJRT_ARGS(args, PJRT_Event_IsReady_Args);
  args.event = event;
  PJRT_Error* error = api()->PJRT_Event_IsReady(&args);
  destroy_event(event);
  check(error, "asking whether a buffer is ready");
  return args.is_ready;
}

void Buffer::to_host(void* out, size_t size) const {
  if (size == 0) {
    return;
  }
  PJRT_ARGS(args, PJRT_Buffer_ToHostBuffer_Args);
  args.src = raw_;
  args.dst = out;
  args.dst_size = size;
  check(api()->PJRT_Buffer_ToHostBuffer(&args), "copying from the device");
  check(await(args.event), "copying from the device");
}

BufferPtr upload(const void* data, c10::ScalarType dtype, c10::IntArrayRef dims, int device) {
  PJRT_ARGS(args, PJRT_Client_BufferFromHostBuffer_Args);
  args.client = g_client;
  args.data = data;
  args.type = buffer_type(dtype);
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = g_devices.at(device);
  check(api()->PJRT_Client_BufferFromHostBuffer(&args), "copying to the device");
  auto buffer = std::make_shared<Buffer>(args.buffer);
  destroy_event(args.done_with_host_buffer);
  return buffer;
}

BufferPtr copy_to_device(const Buffer& buffer, int device) {
  PJRT_ARGS(args, PJRT_Buffer_CopyToDevice_Args);
  args.buffer = buffer.raw();
  args.dst_device = g_devices.at(device);
  check(api()->PJRT_Buffer_CopyToDevice(&args), "copying to another device");
  return std::make_shared<Buffer>(args.dst_buffer);
}

Executable::Executable(PJRT_LoadedExecutable* raw) : raw_(raw) {
  PJRT_ARGS(get, PJRT_LoadedExecutable_GetExecutable_Args);
  get.loaded_executable = raw_;
  check(api()->PJRT_LoadedExecutable_GetExecutable(&get), "inspecting a program");
  PJRT_ARGS(outputs, PJRT_Executable_NumOutputs_Args);
  outputs.executable = get.executable;
  check(api()->PJRT_Executable_NumOutputs(&outputs), "inspecting a program");
  num_outputs_ = outputs.num_outputs;
  PJRT_ARGS(stats, PJRT_Executable_GetCompiledMemoryStats_Args);
  stats.executable = get.executable;
  if (PJRT_Error* error = api()->PJRT_Executable_GetCompiledMemoryStats(&stats)) {
    take(api(), error);  // some plugins do not tell
  } else {
    temp_bytes_ = stats.temp_size_in_bytes;
  }
  PJRT_ARGS(destroy, PJRT_Executable_Destroy_Args);
  destroy.executable = get.executable;
  check(api()->PJRT_Executable_Destroy(&destroy), "inspecting a program");
}

Executable::~Executable() {
  PJRT_ARGS(args, PJRT_LoadedExecutable_Destroy_Args);
  args.executable = raw_;
  if (PJRT_Error* error = api()->PJRT_LoadedExecutable_Destroy(&args)) {
    take(api(), error);
  }
}

std::shared_ptr<Executable> Executable::compile(const std::string& program, const std::string& options) {
  PJRT_ARGS(code, PJRT_Program);
  code.code = const_cast<char*>(program.data());
  code.code_size = program.size();
  static constexpr std::string_view kFormat = "mlir";
  code.format = kFormat.data();
  code.format_size = kFormat.size();
  PJRT_ARGS(args, PJRT_Client_Compile_Args);
  args.client = g_client;
  args.program = &code;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  check(api()->PJRT_Client_Compile(&args), "compiling");
  return std::shared_ptr<Executable>(new Executable(args.executable));
}

std::shared_ptr<Executable> Executable::deserialize(const std::string& bytes) {
  PJRT_ARGS(args, PJRT_Executable_DeserializeAndLoad_Args);
  args.client = g_client;
  args.serialized_executable = bytes.data();
  args.serialized_executable_size = bytes.size();
  check(api()->PJRT_Executable_DeserializeAndLoad(&args), "loading a compiled program");
  return std::shared_ptr<Executable>(new Executable(args.loaded_executable));
}

std::string Executable::serialize() const {
  PJRT_ARGS(get, PJRT_LoadedExecutable_GetExecutable_Args);
  get.loaded_executable = raw_;
  check(api()->PJRT_LoadedExecutable_GetExecutable(&get), "serializing a program");
  PJRT_ARGS(args, PJRT_Executable_Serialize_Args);
  args.executable = get.executable;
  PJRT_Error* error = api()->PJRT_Executable_Serialize(&args);
  PJRT_ARGS(destroy, PJRT_Executable_Destroy_Args);
  destroy.executable = get.executable;
  std::string bytes;
  if (error == nullptr) {
    bytes.assign(args.serialized_bytes, args.serialized_bytes_size);
    args.serialized_executable_deleter(args.serialized_executable);
  }
  check(api()->PJRT_Executable_Destroy(&destroy), "serializing a program");
  check(error, "serializing a program");
  return bytes;
}

PJRT_Error* Executable::execute(PJRT_Buffer* const* arguments, size_t count, int device, PJRT_Buffer** outputs) const {
  PJRT_ARGS(options, PJRT_ExecuteOptions);
  PJRT_ARGS(args, PJRT_LoadedExecutable_Execute_Args);
  args.executable = raw_;
  args.options = &options;
  args.argument_lists = &arguments;
  args.num_devices = 1;
  args.num_args = count;
  args.output_lists = &outputs;
  args.execute_device = g_devices[device];
  return api()->PJRT_LoadedExecutable_Execute(&args);
}

struct Completion::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  double when = 0;
};

Completion::Completion(PJRT_Event* event) : state_(std::make_shared<State>()) {
  // The callback holds the state, so that it may outlive this object.
  PJRT_ARGS(args, PJRT_Event_OnReady_Args);
  args.event = event;
  args.user_arg = new std::shared_ptr<State>(state_);
  args.callback = [](PJRT_Error* error, void* arg) {
    std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(arg));
    if (error != nullptr) {
      take(api(), error);  // the buffers that failed raise when they are read
    }
    {
      std::lock_guard<std::mutex> lock((*state)->mutex);
      (*state)->done = true;
      (*state)->when = now();
    }
    (*state)->changed.notify_all();
  };
  check(api()->PJRT_Event_OnReady(&args), "recording an event");
  destroy_event(event);
}

bool Completion::done() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->done;
}

void Completion::wait() const {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
}

double Completion::when() const {
  wait();
  return state_->when;
}

}  // namespace torch_tpu::pjrt

// The module torch_tpu._C: what Python needs of the core.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "autograd.h"
#include "device.h"
#include "dispatch.h"
#include "modes.h"
#include "ops.h"
#include "program.h"
#include "storage.h"

namespace py = pybind11;

namespace torch_tpu {

namespace {

using Released = py::call_guard<py::gil_scoped_release>;

Dims dims(const std::vector<int64_t>& from) {
  return {from.begin(), from.end()};
}

c10::ScalarType scalar_type(py::handle dtype) {
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

// returns: ("argument", tensor) | ("new", tensor) | ("int", number) | ("none",) | ("list", [..]).
Return parse_return(const py::tuple& item) {
  auto kind = item[0].cast<std::string>();
  if (kind == "argument") {
    return {Return::kArgument, item[1].cast<int64_t>(), {}};
  }
  if (kind == "new") {
    return {Return::kNew, item[1].cast<int64_t>(), {}};
  }
  if (kind == "int") {
    return {Return::kInt, item[1].cast<int64_t>(), {}};
  }
  if (kind == "none") {
    return {Return::kNone, 0, {}};
  }
  Return list{Return::kList, 0, {}};
  for (const auto& inner : item[1].cast<py::list>()) {
    list.items.push_back(parse_return(inner.cast<py::tuple>()));
  }
  return list;
}

Input::Kind parse_input(const std::string& kind) {
  return kind == "storage"  ? Input::kStorage
         : kind == "starts" ? Input::kStarts
         : kind == "scalar" ? Input::kScalar
                            : Input::kRandom;
}

std::shared_ptr<Program> make_program(std::string name, std::shared_ptr<pjrt::Executable> executable, const py::list& inputs,
                                      const py::list& tensors, const py::list& writes, const py::list& resizes,
                                      const py::list& returns, uint64_t random_numbers, const py::list& checks) {
  auto program = std::make_shared<Program>();
  program->name = std::move(name);
  program->doing = "running " + program->name;
  program->executable = std::move(executable);
  program->random_numbers = random_numbers;
  for (const auto& item : inputs) {
    auto pair = item.cast<std::pair<std::string, int64_t>>();
    program->inputs.push_back({parse_input(pair.first), pair.second});
  }
  for (const auto& item : tensors) {
    auto t = item.cast<py::tuple>();  // output, dtype, sizes, strides, dims, count, grown
    NewTensor spec{t[0].cast<int64_t>(),
                   scalar_type(t[1]),
                   dims(t[2].cast<std::vector<int64_t>>()),
                   dims(t[3].cast<std::vector<int64_t>>()),
                   dims(t[4].cast<std::vector<int64_t>>()),
                   t[6].cast<int64_t>(),
                   t[5].cast<int64_t>()};
    int64_t bytes = static_cast<int64_t>(c10::elementSize(spec.dtype));
    for (int64_t d : spec.dims) {
      bytes *= d;
    }
    program->output_bytes += bytes;
    if (spec.grown > 0 && spec.output >= 0) {
      program->most_rows = std::min(program->most_rows, spec.dims[0] - spec.grown);
    }
    program->tensors.push_back(std::move(spec));
  }
  for (const auto& item : writes) {
    auto t = item.cast<py::tuple>();  // storage, output, dtype, dims, donated
    program->writes.push_back({t[0].cast<int64_t>(), t[1].cast<int64_t>(), t[4].cast<bool>(), scalar_type(t[2]),
                               dims(t[3].cast<std::vector<int64_t>>())});
  }
  for (const auto& item : resizes) {
    auto t = item.cast<py::tuple>();  // tensor, sizes, strides
    program->resizes.push_back(
        {t[0].cast<int64_t>(), dims(t[1].cast<std::vector<int64_t>>()), dims(t[2].cast<std::vector<int64_t>>())});
  }
  for (const auto& item : checks) {
    auto t = item.cast<py::tuple>();  // output, error, text
    program->checks.push_back({t[0].cast<int64_t>(), t[1].cast<std::string>(), t[2].cast<std::string>()});
  }
  for (const auto& item : returns) {
    program->returns.push_back(parse_return(item.cast<py::tuple>()));
  }
  return program;
}

std::shared_ptr<Program> special_program(std::string name, bool specialise) {
  auto program = std::make_shared<Program>();
  program->name = std::move(name);
  program->specialise = specialise;
  program->fallback = !specialise;
  return program;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The core of torch_tpu: PJRT client, storages, dispatch.";

  py::class_<pjrt::Executable, std::shared_ptr<pjrt::Executable>>(m, "Executable")
      .def_static(
          "compile",
          [](const py::bytes& program, const py::bytes& options) {
            std::string p = program, o = options;
            py::gil_scoped_release released;
            return pjrt::Executable::compile(p, o);
          },
          "Compile a portable StableHLO artifact with a serialized CompileOptionsProto.")
      .def_static("deserialize",
                  [](const py::bytes& bytes) {
                    std::string b = bytes;
                    py::gil_scoped_release released;
                    return pjrt::Executable::deserialize(b);
                  })
      .def("serialize", [](const pjrt::Executable& self) { return py::bytes(self.serialize()); });

  py::class_<Program, std::shared_ptr<Program>>(m, "Program")
      .def(py::init(&make_program))
      .def_static("specialise", [](std::string name) { return special_program(std::move(name), true); })
      .def_static("fallback", [](std::string name) { return special_program(std::move(name), false); })
      .def_property_readonly("launches", [](const Program& self) { return self.launches.load(); });

  m.def("start", [](const std::string& path, const std::vector<std::pair<std::string, int64_t>>& options) {
    std::vector<pjrt::Option> values;
    for (const auto& [name, value] : options) {
      values.push_back({name, value});
    }
    py::gil_scoped_release released;
    pjrt::start(path, values);
  });
  m.def("started", &pjrt::started);
  m.def("ensure_started", &ensure_started, Released());
  m.def("in_bad_fork", &in_bad_fork);
  m.def("platform_name", &pjrt::platform_name);
  m.def("device_kind", &pjrt::device_kind);
  m.def("pjrt_api_version", &pjrt::api_version);
  m.def("stablehlo_version", &pjrt::stablehlo_version);
  m.def("runtime_device_count", &pjrt::device_count);
  m.def("set_device_count", &set_device_count);
  m.def("join_autograd", &join_autograd, "Give the devices queues in an autograd engine that started before the import.");
  m.def("settle_autograd", &settle_autograd, Released());
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("synchronize", &synchronize, Released());
  m.def("default_generator", &default_generator);

  m.def("register_ops", &register_ops);
  m.def("clear_programs", &clear_programs);
  m.def("set_most_programs", &set_most_programs);
  m.def("cpu_fallbacks", &cpu_fallbacks);
  m.def("set_cpu_fallback", &allow_cpu_fallback);
  m.def("cpu_fallback", &cpu_fallback);
  m.def("set_debug_mode", &set_debug_mode);
  m.def("debug_mode", &debug_mode);
  m.def("count_compile", &count_compile);
  m.def("count_disk_hit", &count_disk_hit);
  m.def("stats", [] {
    Stats s = stats();
    py::dict d;
    d["compiles"] = s.compiles;
    d["memory_hits"] = s.memory_hits;
    d["disk_hits"] = s.disk_hits;
    d["launches"] = s.launches;
    d["uploads"] = s.uploads;
    d["compile_seconds"] = s.compile_seconds;
    return d;
  });
  m.def("remember_launches", &remember_launches);
  m.def("measure_last_launch", &measure_last_launch, Released());

  m.def("set_memory_limit", &set_memory_limit);
  m.def("memory_limit", &memory_limit);
  m.def("reset_peak_memory_stats", &reset_peak_memory_stats);
  m.def("memory_stats", [](int device) {
    MemoryStats s = memory_stats(device);
    py::dict d;
    d["allocated"] = s.allocated;
    d["peak"] = s.peak;
    d["total_allocated"] = s.total_allocated;
    d["total_freed"] = s.total_freed;
    d["active_blocks"] = s.active_blocks;
    d["allocations"] = s.allocations;
    d["ooms"] = s.ooms;
    d["temporaries_peak"] = s.temporaries_peak;
    return d;
  });
}

}  // namespace torch_tpu

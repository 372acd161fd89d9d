// `_core.record_program`: what an emitted program does, worker by worker.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings_gil.h"
#include "bindings_parts.h"
#include "runtime/recorder.h"

namespace py = pybind11;

namespace {

py::object record_program(std::uintptr_t entry, std::uintptr_t profiled, std::uintptr_t single, int cores, int subops,
                          const std::vector<std::pair<std::uintptr_t, std::size_t>>& kernels,
                          std::vector<std::size_t> regions, std::size_t scratch_stride, std::size_t events_words) {
  if (entry == 0 || profiled == 0 || single == 0 || cores < 1 || cores > sk::kMaxCores || regions.size() < 3) {
    raise("InputError",
          {"three entries, a number of cores and three regions are needed", "record_program", "", "", ""});
  }
  sk::RecorderConfig config{
      .entry = reinterpret_cast<SkEntry>(entry),
      .profiled = reinterpret_cast<SkEntry>(profiled),
      .single = reinterpret_cast<SkSingleEntry>(single),
      .cores = cores,
      .subops = subops,
      .regions = std::move(regions),
      .scratch_stride = scratch_stride,
      .events_words = events_words,
  };
  for (const auto& [address, operands] : kernels) config.kernels.push_back({address, operands});
  sk::Recording made;
  {
    const GilReleased released;
    made = sk::record_program(config);
  }
  switch (made.outcome) {
    case sk::Recording::Outcome::wrong:
      raise("VerificationError", {made.message, made.location, made.expected, made.found, ""});
    case sk::Recording::Outcome::no_memory:
      raise("MachineError", {"the system refuses addresses", "record_program", "", "", "raise the limit (ulimit -v)"});
    case sk::Recording::Outcome::refused:
      return py::none();
    case sk::Recording::Outcome::recorded:
      break;
  }
  py::list result;
  for (const auto& steps : made.cores) {
    py::list rows;
    for (const auto& step : steps) rows.append(py::tuple(py::cast(step)));
    result.append(std::move(rows));
  }
  return result;
}

}  // namespace

void register_recorder(py::module_& m) {
  m.def("record_program", record_program, py::arg("entry"), py::arg("profiled"), py::arg("single"), py::arg("cores"),
        py::arg("subops"), py::arg("kernels"), py::arg("regions"), py::arg("scratch_stride"), py::arg("events_words"));
}

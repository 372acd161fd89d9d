// `_core.Probe`: what the machine can do, measured outside of the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "bindings_gil.h"
#include "bindings_parts.h"
#include "probe/probe.h"
#include "runtime/pool.h"

namespace py = pybind11;

namespace {

std::unique_ptr<sk::Probe> make_probe(const std::vector<int>& cpus) {
  if (cpus.empty() || cpus.size() > static_cast<std::size_t>(sk::kMaxCores)) {
    raise("InputError", {"impossible number of CPUs", "Probe", "1 to " + std::to_string(sk::kMaxCores),
                         std::to_string(cpus.size()), ""});
  }
  try {
    const GilReleased released;
    return std::make_unique<sk::Probe>(cpus);
  } catch (const std::system_error& error) {
    raise("MachineError", {"the system refuses another thread", "Probe", "", error.what(), ""});
  }
}

void check(const sk::Probe& probe, const char* what, int value, int least) {
  if (value >= least && value < probe.cores() + least) return;
  raise("InputError",
        {std::string("impossible ") + what, "Probe",
         std::to_string(least) + " to " + std::to_string(probe.cores() + least - 1), std::to_string(value), ""});
}

void check_pair(const sk::Probe& probe, int from, int to) {
  check(probe, "core", from, 0);
  check(probe, "core", to, 0);
  if (from == to) raise("InputError", {"a core and itself", "Probe", "two cores", std::to_string(from), ""});
}

double read_rate(sk::Probe& probe, std::size_t bytes, int cores, bool same) {
  check(probe, "number of cores", cores, 1);
  double found;
  {
    const GilReleased released;
    found = probe.read(bytes, cores, same);
  }
  if (found < 0.0) raise_no_memory(bytes * static_cast<std::size_t>(same ? 1 : cores));
  return found;
}

double handover_ns(sk::Probe& probe, int from, int to) {
  check_pair(probe, from, to);
  const GilReleased released;
  return probe.handover_ns(from, to);
}

double line_ns(sk::Probe& probe, int from, int to) {
  check_pair(probe, from, to);
  const GilReleased released;
  return probe.line_ns(from, to);
}

double wake_ns(sk::Probe& probe, int count) {
  check(probe, "number of sleepers", count + 1, 1);
  const GilReleased released;
  return probe.wake_ns(count);
}

}  // namespace

void register_probe(py::module_& m) {
  py::class_<sk::Probe>(m, "Probe")
      .def(py::init(&make_probe), py::arg("cpus"))
      .def("read", read_rate, py::arg("nbytes"), py::arg("cores") = 1, py::arg("same") = false)
      .def("rate", &sk::Probe::rate, py::arg("kind"), py::call_guard<GilReleased>())
      .def("handover_ns", handover_ns, py::arg("first") = 0, py::arg("second") = 1)
      .def("line_ns", line_ns, py::arg("writer") = 0, py::arg("reader") = 1)
      .def("wake_ns", wake_ns, py::arg("count"))
      .def("code_line_ns", &sk::Probe::code_line_ns, py::arg("nbytes"), py::call_guard<GilReleased>())
      .def_property_readonly("cores", &sk::Probe::cores)
      .def_property_readonly("trials", &sk::Probe::trials)
      .def_property_readonly("disturbed", &sk::Probe::disturbed);
}

// What a crash in generated code is told by (runtime/crash.h), for Python: names of functions by address.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings_parts.h"
#include "runtime/crash.h"

namespace py = pybind11;

void register_crash(py::module_& m) {
  using Row = std::tuple<std::uint64_t, std::uint64_t, std::string, bool>;
  py::class_<sk::KnownCode>(m, "KnownCode")
      .def(py::init([](const std::vector<Row>& rows) {
             std::vector<sk::CodeName> names;
             for (const auto& [begin, end, text, is_task] : rows) names.push_back({begin, end, text, is_task});
             return std::make_unique<sk::KnownCode>(std::move(names));
           }),
           py::arg("names"));
}

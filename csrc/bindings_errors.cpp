// Errors of superkernel.core.errors, raised from C++; see bindings_parts.h.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <string>

#include "bindings_parts.h"

namespace py = pybind11;

void raise(const char* kind, const ErrorText& text, const py::object& details) {
  using namespace py::literals;
  const py::object type = py::module_::import("superkernel.core.errors").attr(kind);
  const py::object error = type(text.message, "location"_a = text.location, "expected"_a = text.expected,
                                "found"_a = text.found, "hint"_a = text.hint);
  if (!details.is_none()) error.attr("details") = details;
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

void raise_no_memory(std::size_t bytes) {
  raise("MachineError",
        {"not enough memory", "", std::to_string(bytes) + " bytes", "", "free memory or use a smaller model"});
}

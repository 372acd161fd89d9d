// `_core.ProgramRecorder`: what a linked program of an accelerator does, hart by hart.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings_parts.h"
#include "sim/device/program_recorder.h"

namespace py = pybind11;

namespace {

using sk::sim::Declared;
using sk::sim::ProgramRecorder;

class RecorderObject {
 public:
  using Segment = std::tuple<std::uint64_t, std::uint64_t, py::bytes, bool, bool>;
  using Function = std::pair<std::uint64_t, std::size_t>;

  RecorderObject(const py::dict& target, std::uint64_t entry, std::uint64_t private_address,
                 const std::vector<Segment>& segments, const std::vector<Function>& functions,
                 std::uint64_t instructions_max) {
    sk::sim::ProgramConfig config{target_from(target), entry, private_address, {}, {}, instructions_max};
    for (const auto& [address, bytes, data, writable, executable] : segments) {
      config.segments.push_back({address, bytes, std::string(data), writable, executable});
    }
    for (const auto& [address, arguments] : functions) config.functions.push_back({address, arguments});
    if (!recorder_.create(std::move(config))) throw std::bad_alloc();
  }

  void write(std::uint64_t address, const py::buffer& data) { recorder_.write(address, span_of(data.request())); }

  // The buffer that `make` gives must stay as long as this object: it keeps it.
  void view(std::uint64_t address, std::uint64_t bytes, const py::function& make) {
    recorder_.view(address, bytes, [this, make, bytes] {
      kept_.push_back(std::make_unique<py::buffer_info>(make().cast<py::buffer>().request()));
      if (span_of(*kept_.back()).size() != bytes) throw py::value_error("not as many bytes as were announced");
      return span_of(*kept_.back());
    });
  }

  // Per hart: steps (rows of 6 words), arguments by call, uses (rows of 4 words).
  py::list launch(std::uint64_t number, const py::function& on_call) {
    const auto declared = [&](std::uint32_t hart, std::size_t function, std::span<const std::uint64_t> arguments) {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      py::tuple given(arguments.size());
      for (std::size_t i = 0; i < arguments.size(); ++i) given[i] = arguments[i];
      std::vector<Declared> rows;
      for (const py::handle row : on_call(hart, function, given)) {
        const auto [operand, write, begin, bytes, stride, count] =
            row.cast<std::tuple<std::int64_t, bool, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>>();
        rows.push_back({operand, write, begin, bytes, stride, count});
      }
      return rows;
    };
    py::list found;
    for (const auto& hart : recorder_.launch(number, declared)) {
      py::list arguments;
      for (const auto& row : hart.arguments) arguments.append(py::tuple(py::cast(row)));
      found.append(py::make_tuple(bytes_of(hart.steps), arguments, bytes_of(hart.uses)));
    }
    return found;
  }

  py::list wrong() const {
    py::list found;
    for (const auto& one : recorder_.wrong()) {
      found.append(py::make_tuple(one.message, one.location, one.expected, one.found));
    }
    return found;
  }

  const ProgramRecorder& recorder() const { return recorder_; }

 private:
  static std::span<const std::uint8_t> span_of(const py::buffer_info& info) {
    return {static_cast<const std::uint8_t*>(info.ptr), static_cast<std::size_t>(info.size * info.itemsize)};
  }
  template <class Row>
  static py::bytes bytes_of(const std::vector<Row>& rows) {
    return {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(Row)};
  }

  ProgramRecorder recorder_;
  std::vector<std::unique_ptr<py::buffer_info>> kept_;
};

}  // namespace

void register_program(py::module_& m) {
  py::class_<RecorderObject>(m, "ProgramRecorder")
      .def(py::init<const py::dict&, std::uint64_t, std::uint64_t, const std::vector<RecorderObject::Segment>&,
                    const std::vector<RecorderObject::Function>&, std::uint64_t>(),
           py::arg("target"), py::arg("entry"), py::arg("private_address"), py::arg("segments"), py::arg("functions"),
           py::arg("instructions_max"))
      .def("write", &RecorderObject::write, py::arg("address"), py::arg("data"))
      .def("view", &RecorderObject::view, py::arg("address"), py::arg("bytes"), py::arg("make"))
      .def("launch", &RecorderObject::launch, py::arg("number"), py::arg("on_call"))
      .def_property_readonly("wrong", &RecorderObject::wrong)
      .def_property_readonly("executed", [](const RecorderObject& self) { return self.recorder().executed(); })
      .def_property_readonly("commands", [](const RecorderObject& self) { return self.recorder().commands(); });
}

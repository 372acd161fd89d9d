// `_core.entries_object`: the entries of a plan as machine code. What is new with each plan is read from Python's own
// objects, attribute by attribute: to make tuples of them first would take longer than all the rest.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings_parts.h"
#include "entries/entries_x86.h"

namespace py = pybind11;

namespace {

using sk::entries::Base;
using sk::entries::Location;
using sk::entries::RunTask;
using sk::entries::SetCount;
using sk::entries::Spec;
using sk::entries::Step;
using sk::entries::Task;
using sk::entries::WaitFor;

// The name of an attribute, made once.
class Field {
 public:
  explicit Field(const char* name) : name_(py::reinterpret_steal<py::object>(PyUnicode_InternFromString(name))) {}
  py::object of(const py::handle& object) const {
    PyObject* found = PyObject_GetAttr(object.ptr(), name_.ptr());
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }
  std::int64_t number(const py::handle& object) const { return of(object).cast<std::int64_t>(); }
  std::size_t index(const py::handle& object) const { return of(object).cast<std::size_t>(); }

 private:
  py::object name_;
};

// Reads what superkernel/codegen/host/entry_spec.py declares.
class Reader {
 public:
  // `spaces`: the base pointers in the order of `Base`; `kinds`: the classes of steps in the order of `Step`.
  Reader(const std::array<py::object, 3>& spaces, const std::array<py::object, 3>& kinds, std::int64_t spin_bytes,
         std::int64_t spin_lines)
      : spaces_(spaces), kinds_(kinds), spin_bytes_(spin_bytes), spin_lines_(spin_lines) {}

  Task task(const py::handle& from) {
    const py::object symbol = symbol_.of(from), checked = checked_.of(from);
    Task made{subop_.number(from), core_.number(from), {}, operands(operands_.of(from)),
              begin_.number(from), end_.number(from),  {}};
    if (!symbol.is_none()) made.symbol = symbol.cast<std::string>();
    if (!checked.is_none()) made.checked = checked.cast<std::size_t>();
    return made;
  }

  Step step(const py::handle& from) const {
    const py::handle kind = py::type::handle_of(from);
    if (kind.is(kinds_[0])) return RunTask{task_.index(from)};
    if (kind.is(kinds_[1])) {
      const std::int64_t bytes = weight_bytes_.number(from);
      return WaitFor{producer_.number(from),
                     count_.number(from),
                     wait_.number(from),
                     location(weights_.of(from)),
                     (bytes + spin_bytes_ - 1) / spin_bytes_ * spin_lines_,
                     locations(data_.of(from))};
    }
    if (!kind.is(kinds_[2])) throw py::type_error("not a step");
    return SetCount{count_.number(from)};
  }

 private:
  // Tasks of a sub-operator share their operands.
  const std::vector<Location>& operands(const py::object& from) {
    const auto [found, is_new] = known_.try_emplace(from.ptr());
    if (is_new) found->second = locations(from);
    return found->second;
  }

  std::vector<Location> locations(const py::handle& from) const {
    std::vector<Location> made;
    for (const py::handle& each : from) made.push_back(location(each));
    return made;
  }

  Location location(const py::handle& from) const {
    const py::object space = space_.of(from);
    for (std::size_t n = 0; n < spaces_.size(); ++n) {
      if (space.is(spaces_[n])) return {static_cast<Base>(n), offset_.number(from), slot_.number(from)};
    }
    throw py::type_error("not a base pointer");
  }

  const std::array<py::object, 3>&spaces_, &kinds_;
  std::int64_t spin_bytes_, spin_lines_;
  std::unordered_map<PyObject*, std::vector<Location>> known_;
  const Field space_{"space"}, offset_{"offset"}, slot_{"slot"}, subop_{"subop"}, core_{"core"}, symbol_{"symbol"},
      operands_{"operands"}, begin_{"begin"}, end_{"end"}, checked_{"checked"}, task_{"task"}, producer_{"producer"},
      count_{"count"}, wait_{"wait"}, weights_{"weights"}, weight_bytes_{"weight_bytes"}, data_{"data"};
};

py::bytes entries_object(const py::tuple& tasks, const py::tuple& programs, std::vector<std::int64_t> sets,
                         std::int64_t subops, const std::array<py::object, 3>& spaces,
                         const std::array<py::object, 3>& kinds, std::size_t table_waits, std::int64_t spin_bytes,
                         std::int64_t spin_lines) {
  if (spin_bytes < 1) throw py::value_error("spin_bytes");
  Reader reader(spaces, kinds, spin_bytes, spin_lines);
  Spec spec{{}, {}, std::move(sets), subops, table_waits};
  spec.tasks.reserve(tasks.size());
  for (const py::handle& each : tasks) spec.tasks.push_back(reader.task(each));
  for (const py::handle& program : programs) {
    std::vector<Step>& steps = spec.programs.emplace_back();
    for (const py::handle& each : program) steps.push_back(reader.step(each));
  }
  const std::vector<std::uint8_t> made = sk::entries::entries_object(spec);
  return {reinterpret_cast<const char*>(made.data()), made.size()};
}

}  // namespace

void register_entries(py::module_& m) {
  m.def("entries_object", entries_object, py::arg("tasks"), py::arg("programs"), py::arg("sets"), py::arg("subops"),
        py::kw_only(), py::arg("spaces"), py::arg("kinds"), py::arg("table_waits"), py::arg("spin_bytes"),
        py::arg("spin_lines"));
}

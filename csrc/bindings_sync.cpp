// `_core.Conflicts`: which accesses of tasks conflict, and which waits are enough.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "bindings_gil.h"
#include "bindings_parts.h"
#include "regions/region.h"
#include "sync/conflicts.h"

namespace py = pybind11;

namespace {

using Column = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void refuse(const char* expected) {
  raise("InputError", {"no columns of accesses", "Conflicts", expected, "", ""});
}

// Rows of `width` numbers.
template <std::size_t width, typename Row>
py::array_t<std::int32_t> array_of(const std::vector<Row>& rows) {
  static_assert(sizeof(Row) == width * sizeof(std::int32_t));
  return py::array_t<std::int32_t>({rows.size(), width}, reinterpret_cast<const std::int32_t*>(rows.data()));
}

sk::sync::Conflicts conflicts_of(const Column& accesses, const Column& regions) {
  if (accesses.ndim() != 2 || accesses.shape(1) != 6) refuse("rows of run, task, place, operand, write, regions");
  if (regions.ndim() != 2 || regions.shape(1) != 4) refuse("rows of start, length, stride, count");
  const auto rows = accesses.unchecked<2>();
  const auto parts = regions.unchecked<2>();
  std::vector<sk::sync::Access> all;
  all.reserve(static_cast<std::size_t>(rows.shape(0)));
  std::int64_t first = 0;
  for (py::ssize_t n = 0; n < rows.shape(0); ++n) {
    for (const py::ssize_t column : {0, 1, 2, 5}) {
      if (rows(n, column) < 0 || rows(n, column) >= kMost) refuse("numbers from 0 on");
    }
    if (n > 0 && (rows(n, 0) < rows(n - 1, 0) || rows(n, 1) < rows(n - 1, 1))) refuse("the order of tasks");
    const std::int64_t last = first + rows(n, 5);
    if (last == first || last > parts.shape(0)) refuse("as many regions as accesses say");
    const auto number = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
    all.push_back({number(rows(n, 0)), number(rows(n, 1)), number(rows(n, 2)), number(rows(n, 3)), rows(n, 4) != 0,
                   number(first), number(last)});
    first = last;
  }
  std::vector<sk::Region> shapes;
  shapes.reserve(static_cast<std::size_t>(parts.shape(0)));
  for (py::ssize_t n = 0; n < parts.shape(0); ++n) {
    shapes.push_back({parts(n, 0), parts(n, 1), parts(n, 2), parts(n, 3)});
    if (parts(n, 1) < 1 || parts(n, 3) < 1) refuse("regions that have bytes");
  }
  return {std::move(all), std::move(shapes)};
}

py::object next(sk::sync::Conflicts& conflicts) {
  std::vector<sk::sync::Pair> found;
  bool more = false;
  {
    const GilReleased released;
    more = conflicts.next(found);
  }
  if (!more) throw py::stop_iteration();
  return array_of<2>(found);
}

py::tuple needs(sk::sync::Conflicts& conflicts, const std::vector<std::int32_t>& core_of, std::int32_t cores) {
  const std::vector<sk::sync::Access>& accesses = conflicts.accesses();
  if (!accesses.empty() && static_cast<std::size_t>(accesses.back().task) >= core_of.size()) refuse("a core per task");
  for (const std::int32_t core : core_of) {
    if (core < 0 || core >= cores) refuse("cores from 0 on");
  }
  sk::sync::Needs made;
  {
    const GilReleased released;
    made = sk::sync::needs(conflicts, core_of, cores);
  }
  constexpr std::size_t kWidth = 5;
  static_assert(sizeof(sk::sync::Need) == kWidth * sizeof(std::int32_t));
  std::size_t count = 0;
  for (const auto& of_core : made.kept) count += of_core.size();
  py::array_t<std::int32_t> kept({count, kWidth});
  auto* row = reinterpret_cast<sk::sync::Need*>(kept.mutable_data());
  for (auto& of_core : made.kept) {
    row = std::copy(of_core.begin(), of_core.end(), row);
    of_core = {};  // never all of them twice
  }
  return py::make_tuple(std::move(kept),
                        py::array_t<std::int32_t>(static_cast<py::ssize_t>(made.implied.size()), made.implied.data()));
}

}  // namespace

void register_sync(py::module_& m) {
  py::class_<sk::sync::Conflicts>(m, "Conflicts")
      .def(py::init(&conflicts_of), py::arg("accesses"), py::arg("regions"))
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", next)
      .def("needs", needs, py::arg("core_of"), py::arg("cores"));
}

// `_core.Arena`: where buffers lie.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bindings_parts.h"
#include "scheduler/arena.h"

namespace py = pybind11;

namespace {

using sk::scheduler::Arena;
using sk::scheduler::Run;

[[noreturn]] void refuse(const char* expected) {
  raise("InputError", {"no buffers to place", "Arena", expected, "", ""});
}

Arena arena_of(std::vector<std::int64_t> sizes, const std::vector<std::vector<std::array<std::int64_t, 3>>>& rows,
               std::int64_t align, std::int64_t limit) {
  if (rows.size() != sizes.size()) refuse("the runs of each buffer");
  if (align < 1 || limit < 0) refuse("an alignment of at least 1, a limit of at least 0");
  if (std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; })) refuse("sizes from 0 on");
  std::vector<std::vector<Run>> runs;
  runs.reserve(rows.size());
  for (const auto& of_buffer : rows) {
    std::vector<Run>& own = runs.emplace_back();
    own.reserve(of_buffer.size());
    for (const auto& [low, high, core] : of_buffer) own.push_back({low, high, core});
  }
  return {std::move(sizes), std::move(runs), align, limit};
}

std::int64_t place(Arena& arena, std::size_t buffer, const py::array_t<bool, py::array::c_style>& meets) {
  if (buffer >= arena.buffers() || arena.is_placed(buffer)) refuse("a buffer that is not placed yet");
  if (meets.ndim() != 1 || static_cast<std::size_t>(meets.shape(0)) != arena.buffers()) refuse("a row of all buffers");
  return arena.place(buffer, std::span<const bool>(meets.data(), arena.buffers()));
}

}  // namespace

void register_scheduler(py::module_& m) {
  py::class_<Arena>(m, "Arena")
      .def(py::init(&arena_of), py::arg("sizes"), py::arg("runs"), py::arg("align"), py::arg("limit"))
      .def("place", place, py::arg("buffer"), py::arg("meets"));
}

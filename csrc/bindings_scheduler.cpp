// `_core.ListScheduler`, `_core.VectorClock`: sub-operators onto cores; `_core.Arena`: where buffers lie.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings_parts.h"
#include "regions/region.h"
#include "scheduler/arena.h"
#include "scheduler/list_scheduler.h"
#include "scheduler/vector_clock.h"

namespace py = pybind11;

namespace {

using sk::scheduler::Arena;
using sk::scheduler::Interference;
using sk::scheduler::ListScheduler;
using sk::scheduler::Partition;
using sk::scheduler::Place;
using sk::scheduler::Run;
using sk::scheduler::SubOp;
using sk::scheduler::VectorClock;

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

std::int64_t place(Arena& arena, std::size_t buffer, const py::array_t<std::uint8_t, py::array::c_style>& meets) {
  if (buffer >= arena.buffers() || arena.is_placed(buffer)) refuse("a buffer that is not placed yet");
  if (meets.ndim() != 1 || static_cast<std::size_t>(meets.shape(0)) != arena.buffers()) refuse("a row of all buffers");
  const std::span<const std::uint8_t> given(meets.data(), arena.buffers());
  std::vector<Interference> found;
  found.reserve(given.size());
  for (const std::uint8_t each : given) {
    if (each > static_cast<std::uint8_t>(Interference::kOtherCores)) refuse("numbers from 0 to 2");
    found.push_back(static_cast<Interference>(each));
    if (found.back() == Interference::kOtherCores && !arena.has_runs(buffer, found.size() - 1)) {
      refuse("runs of both where other cores count");
    }
  }
  return arena.place(buffer, found);
}

[[noreturn]] void refuse_schedule(const char* expected) {
  raise("InputError", {"nothing that can be scheduled", "ListScheduler", expected, "", ""});
}

bool is_below(std::int64_t number, std::size_t count) {
  return number >= 0 && static_cast<std::size_t>(number) < count;
}

// Accesses of superkernel.scheduler.tiling as they come from Python.
class AccessReader {
 public:
  explicit AccessReader(py::function asked) : asked_(std::move(asked)) {}

  std::vector<sk::scheduler::RangeAccess> operator()(std::int32_t work, std::int32_t partition,
                                                     std::int32_t range) const {
    const auto [accesses, stored] =
        asked_(work, partition, range).cast<std::pair<py::sequence, std::optional<std::int64_t>>>();
    std::vector<sk::scheduler::RangeAccess> found;
    found.reserve(accesses.size());
    for (const py::handle& access : accesses) {
      sk::scheduler::RangeAccess& made = found.emplace_back();
      made.operand = part(access, operand_).cast<std::int32_t>();
      made.write = part(access, write_).cast<bool>();
      if (made.write) made.stored = stored;
      for (const py::handle& region : part(access, regions_)) {
        made.regions.push_back(
            {number(region, start_), number(region, length_), number(region, stride_), number(region, count_)});
      }
      if (made.regions.empty()) refuse_schedule("accesses of bytes");
    }
    return found;
  }

 private:
  static py::object part(const py::handle& of, const py::str& name) {
    PyObject* found = PyObject_GetAttr(of.ptr(), name.ptr());
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
  }

  static std::int64_t number(const py::handle& of, const py::str& name) { return part(of, name).cast<std::int64_t>(); }

  py::function asked_;
  py::str operand_{"operand"}, write_{"write"}, regions_{"regions"};
  py::str start_{"start"}, length_{"length"}, stride_{"stride"}, count_{"count"};
};

using SubOpRow = std::tuple<std::int32_t, std::vector<std::vector<std::pair<std::int32_t, std::int64_t>>>,
                            std::vector<std::int32_t>, std::vector<std::int32_t>, bool>;

std::vector<SubOp> subops_of(std::vector<SubOpRow> rows, std::size_t works) {
  std::vector<SubOp> subops;
  subops.reserve(rows.size());
  for (auto& [work, chains, inputs, before, first_core] : rows) {
    if (!is_below(work, works)) refuse_schedule("partitions of each sub-operator");
    SubOp& made = subops.emplace_back(SubOp{work, {}, std::move(inputs), std::move(before), first_core});
    for (const auto& chain : chains) {
      if (chain.empty()) refuse_schedule("a buffer of each operand");
      std::vector<Place>& places = made.operands.emplace_back();
      for (const auto& [buffer, offset] : chain) {
        if (buffer < 0) refuse_schedule("numbers from 0 on");
        places.push_back({buffer, offset});
      }
    }
    for (const std::int32_t input : made.inputs) {
      if (!is_below(input, made.operands.size())) refuse_schedule("inputs among the operands");
    }
    for (const std::int32_t earlier : made.before) {
      if (!is_below(earlier, rows.size())) refuse_schedule("sub-operators ahead by their numbers");
    }
  }
  return subops;
}

ListScheduler scheduler_of(std::vector<SubOpRow> rows,
                           const std::vector<std::vector<std::pair<std::vector<double>, double>>>& works,
                           py::function accesses, std::vector<std::vector<double>> handovers_ns, double handover_ns,
                           double line_ns, std::vector<std::int32_t> apart) {
  const std::size_t cores = handovers_ns.size();
  if (cores == 0 || apart.empty()) refuse_schedule("at least one core");
  for (const auto& row : handovers_ns) {
    if (row.size() != cores) refuse_schedule("a time from each core to each");
  }
  for (const std::int32_t core : apart) {
    if (!is_below(core, cores)) refuse_schedule("cores by their numbers");
  }
  std::vector<std::vector<Partition>> partitions;
  for (const auto& work : works) {
    if (work.empty()) refuse_schedule("a partition of each sub-operator");
    std::vector<Partition>& made = partitions.emplace_back();
    for (const auto& [work_ns, longest_ns] : work) {
      if (work_ns.size() > cores) refuse_schedule("no more ranges than cores");
      made.push_back({work_ns, longest_ns});
    }
  }
  std::vector<SubOp> subops = subops_of(std::move(rows), partitions.size());
  return {std::move(subops),
          std::move(partitions),
          AccessReader(std::move(accesses)),
          {std::move(handovers_ns), handover_ns, line_ns},
          std::move(apart)};
}

std::vector<std::int32_t> run_schedule(ListScheduler& scheduler) {
  if (!scheduler.has_cores()) refuse_schedule("as many ranges as cores apart, or as all");
  return scheduler.run();
}

py::list placements(const ListScheduler& scheduler) {
  py::list found;
  for (const auto& each : scheduler.placements()) {
    found.append(py::make_tuple(each.partition, py::tuple(py::cast(each.cores)), each.finish_ns, each.reason));
  }
  return found;
}

py::list touched(const ListScheduler& scheduler, const std::vector<std::int32_t>& order) {
  for (const std::int32_t subop : order) {
    if (!is_below(subop, scheduler.placements().size())) refuse_schedule("sub-operators by their numbers");
  }
  py::list found;
  for (const auto& each : scheduler.touched(order)) {
    py::dict last;
    for (const auto& [core, position] : each.last) last[py::int_(core)] = position;
    found.append(py::make_tuple(each.buffer, last, each.ready, py::tuple(py::cast(each.runs)), each.apart));
  }
  return found;
}

void run_clock(VectorClock& clock, std::int32_t position, std::int32_t core,
               const std::vector<std::pair<std::int32_t, std::int32_t>>& sources) {
  const auto is_core = [&](std::int32_t number) { return number >= 0 && number < clock.cores(); };
  if (!is_core(core)) throw py::key_error("no such core");
  for (const auto& [at, other] : sources) {
    if (!is_core(other) || !clock.has_run(at, other)) throw py::key_error("a source that has not run");
  }
  clock.run(position, core, sources);
}

std::vector<std::int32_t> at_clock(const VectorClock& clock, std::int32_t position,
                                   const std::vector<std::int32_t>& cores) {
  for (const std::int32_t core : cores) {
    if (!clock.has_run(position, core)) throw py::key_error("a task that has not run");
  }
  return clock.at(position, cores);
}

}  // namespace

void register_scheduler(py::module_& m) {
  py::class_<VectorClock>(m, "VectorClock")
      .def(py::init<std::int32_t>(), py::arg("cores"))
      .def("run", run_clock, py::arg("position"), py::arg("core"), py::arg("sources"))
      .def("at", at_clock, py::arg("position"), py::arg("cores"));
  py::class_<ListScheduler>(m, "ListScheduler")
      .def(py::init(&scheduler_of), py::arg("subops"), py::arg("partitions"), py::arg("accesses"),
           py::arg("handovers_ns"), py::arg("handover_ns"), py::arg("line_ns"), py::arg("apart"))
      .def("run", run_schedule)
      .def("run_in_order", &ListScheduler::run_in_order, py::arg("reason"))
      .def("placements", placements)
      .def("makespan_ns", &ListScheduler::makespan_ns)
      .def("touched", touched, py::arg("order"));
  py::class_<Arena>(m, "Arena")
      .def(py::init(&arena_of), py::arg("sizes"), py::arg("runs"), py::arg("align"), py::arg("limit"))
      .def("place", place, py::arg("buffer"), py::arg("meets"));
}

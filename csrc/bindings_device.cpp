// The timed accelerator for Python: memory, declarations, launches, and what they counted.
//
// Model: thin. superkernel/sim/device.py checks arguments, reads the program's file and raises the errors; here numbers
// go in and dictionaries of numbers come out. A launch runs without the GIL, in pieces, between which Python delivers
// signals; a second thread that touches the device meanwhile is refused.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings_gil.h"
#include "bindings_parts.h"
#include "sim/device/device.h"

namespace py = pybind11;
using namespace py::literals;

namespace {

using sk::sim::ControlStats;
using sk::sim::Core;
using sk::sim::Device;
using sk::sim::EngineQueue;
using sk::sim::EngineStats;

constexpr std::uint64_t kEventsPerLook = 16;  // at the clock
constexpr std::chrono::milliseconds kPiece{50};

constexpr const char* kEngineNames[] = {
#define X(name, window) #name,
    SK_ENGINES(X)
#undef X
};

py::dict engine_of(const EngineStats& stats) {
  return py::dict("busy"_a = stats.busy, "commands"_a = stats.commands, "flags"_a = stats.flags,
                  "bytes_read"_a = stats.bytes_read, "bytes_written"_a = stats.bytes_written,
                  "waits_empty"_a = stats.waits_empty, "waits_flag"_a = stats.waits_flag,
                  "waits_memory"_a = stats.waits_memory, "first_cycle"_a = stats.first, "last_cycle"_a = stats.last);
}

// Rows of 64-bit words, for NumPy: a core has one per marker, and one per marker and engine that it has commands for.
// superkernel/sim/counters.py knows the columns; dictionaries of all rows took longer than most launches.
using Words = std::vector<std::uint64_t>;

py::bytes bytes_of(const Words& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(std::uint64_t)};
}

void add_control(Words& words, std::uint32_t marker, const ControlStats& stats) {
  words.insert(words.end(), {marker, stats.cycles, stats.instructions, stats.first, stats.last, stats.accesses,
                             stats.cold, stats.capacity, stats.prefetches, stats.prefetched_timely,
                             stats.prefetched_late, stats.prefetched_useless});
  words.insert(words.end(), stats.stalls.begin(), stats.stalls.end());
}

void add_engine(Words& words, std::uint64_t row, std::uint64_t engine, const EngineStats& stats) {
  words.insert(words.end(),
               {row, engine, stats.busy, stats.commands, stats.flags, stats.bytes_read, stats.bytes_written,
                stats.waits_empty, stats.waits_flag, stats.waits_memory, stats.first, stats.last});
}

py::dict core_of(const Core& core) {
  Words control, by_marker;
  std::uint64_t row = 0;
  for (const sk::sim::MarkerStats* const stats : core.markers.sorted()) {
    add_control(control, stats->marker, stats->control);
    for (std::size_t e = 1; stats->engines && e < stats->engines->size(); ++e) {
      const EngineStats& engine = (*stats->engines)[e];
      if (engine.commands + engine.flags != 0) add_engine(by_marker, row, e, engine);
    }
    ++row;
  }
  py::dict engines;
  for (std::size_t e = 1; e + 1 < sk::sim::kWindows; ++e) {
    if (core.queues[e] != nullptr) engines[kEngineNames[e]] = engine_of(core.queues[e]->stats);
  }
  return py::dict("type"_a = sk::sim::name_of(core.type), "group"_a = core.group, "cycles"_a = core.unit.cycles(),
                  "instructions"_a = core.unit.retired, "asleep"_a = core.asleep,
                  "cross_wait_cycles"_a = core.cross_stalls, "control_rows"_a = bytes_of(control),
                  "engine_rows"_a = bytes_of(by_marker), "engines"_a = engines);
}

py::dict memory_of(const sk::sim::MemoryStats& stats) {
  return py::dict("line_reads"_a = stats.line_reads, "line_writes"_a = stats.line_writes, "hits"_a = stats.hits,
                  "misses"_a = stats.misses, "merged"_a = stats.merged, "read_bytes"_a = stats.read_bytes,
                  "write_bytes"_a = stats.write_bytes, "hbm_read_bytes"_a = stats.hbm_read_bytes,
                  "hbm_write_bytes"_a = stats.hbm_write_bytes, "shared"_a = stats.shared,
                  "limit_cycles"_a = stats.limit_cycles, "bank_cycles"_a = stats.bank_cycles,
                  "channel_cycles"_a = stats.channel_cycles, "core_rate_cycles"_a = stats.core_rate_cycles,
                  "fetches"_a = stats.fetches, "fetch_same_line_cycles"_a = stats.fetch_same_line_cycles,
                  "prefetched_present"_a = stats.prefetched_present, "prefetched_timely"_a = stats.prefetched_timely,
                  "prefetched_late"_a = stats.prefetched_late, "prefetched_useless"_a = stats.prefetched_useless);
}

class DeviceObject {
 public:
  using Segment = std::tuple<std::uint64_t, std::uint64_t, py::bytes, bool, bool>;

  DeviceObject(const py::dict& target, std::uint64_t entry, std::optional<std::uint64_t> private_address,
               const std::vector<Segment>& segments, const py::dict& options, std::uint64_t delays) {
    sk::sim::DeviceConfig config;
    config.target = target_from(target);
    config.entry = entry;
    config.private_address = private_address;
    for (const auto& [address, bytes, data, writable, executable] : segments) {
      config.segments.push_back({address, bytes, std::string(data), writable, executable});
    }
    config.timed = options["timed"].cast<bool>();
    config.data = options["data"].cast<bool>();
    config.races = options["races"].cast<bool>();
    config.check_unwritten = options["unwritten"].cast<bool>();
    config.check_flags = options["flags"].cast<bool>();
    config.trace = options["trace"].cast<bool>();
    config.time_control = options["time_control"].cast<bool>();
    config.delays = delays;
    config.step = options["step"].cast<std::uint64_t>();
    config.instructions_max = options["instructions_max"].cast<std::uint64_t>();
    if (!device_.create(std::move(config))) throw std::bad_alloc();
  }

  void write(std::uint64_t address, const py::buffer& data) {
    const py::buffer_info info = data.request();
    idle().write(address,
                 {static_cast<const std::uint8_t*>(info.ptr), static_cast<std::size_t>(info.size * info.itemsize)});
  }

  void reserve(std::uint64_t address, std::uint64_t count) { idle().reserve(address, count); }

  std::uint64_t first_unwritten(std::uint64_t address, std::uint64_t count) {
    return idle().first_unwritten(address, count);
  }

  py::bytes read(std::uint64_t address, std::uint64_t count) {
    const auto bytes = idle().read(address, count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // The device, which must not be at work.
  Device& idle() {
    if (running_) throw py::value_error("the device is running in another thread");
    return device_;
  }

  std::string launch(std::uint64_t number, bool cold, double limit_s) {
    using Clock = std::chrono::steady_clock;
    idle().begin_launch(number, cold);
    Device::State state = Device::State::running;
    const auto start = Clock::now();
    const auto seconds = [](double value) {
      std::array<char, 32> text;
      std::snprintf(text.data(), text.size(), "%.3g s", value);
      return std::string(text.data());
    };
    while (state == Device::State::running) {
      running_ = true;
      {
        const GilReleased released;
        const auto end = Clock::now() + kPiece;
        do state = device_.run(kEventsPerLook);
        while (state == Device::State::running && Clock::now() < end);
      }
      running_ = false;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      const double taken_s = std::chrono::duration<double>(Clock::now() - start).count();
      if (state == Device::State::running && taken_s > limit_s) {
        device_.stop_late(seconds(limit_s), seconds(taken_s));
        state = Device::State::failed;
      }
    }
    return state == Device::State::ended ? "ended" : "failed";
  }

  py::dict failure() {
    const sk::sim::Failure& failure = idle().failure();
    return py::dict("kind"_a = failure.kind, "message"_a = failure.message, "expected"_a = failure.expected,
                    "found"_a = failure.found, "hint"_a = failure.hint, "command"_a = failure.command,
                    "core"_a = failure.core, "marker"_a = failure.marker, "pc"_a = failure.pc,
                    "cycle"_a = failure.cycle, "details"_a = failure.details);
  }

  py::dict results() {
    Device& device = idle();
    py::list cores;
    for (const auto& core : device.cores()) cores.append(core_of(*core));
    return py::dict("cycles"_a = device.exit_cycle(), "cores"_a = cores, "sdma"_a = engine_of(device.sdma()->stats),
                    "memory"_a = memory_of(device.memory_stats()), "console"_a = py::bytes(device.console()),
                    "data_dependent"_a = device.data_dependent());
  }

  py::bytes trace() {
    const auto records = idle().trace();
    return {reinterpret_cast<const char*>(records.data()), records.size() * sizeof(sk::sim::TraceRecord)};
  }

 private:
  Device device_;
  bool running_ = false;
};

}  // namespace

void register_device(py::module_& m) {
  py::class_<DeviceObject>(m, "SimDevice")
      .def(py::init<const py::dict&, std::uint64_t, std::optional<std::uint64_t>,
                    const std::vector<DeviceObject::Segment>&, const py::dict&, std::uint64_t>(),
           py::arg("target"), py::arg("entry"), py::arg("private_address"), py::arg("segments"), py::arg("options"),
           py::arg("delays") = 0)
      .def("write", &DeviceObject::write, py::arg("address"), py::arg("data"))
      .def("reserve", &DeviceObject::reserve, py::arg("address"), py::arg("count"))
      .def("read", &DeviceObject::read, py::arg("address"), py::arg("count"))
      .def("first_unwritten", &DeviceObject::first_unwritten, py::arg("address"), py::arg("count"))
      .def(
          "declare",
          [](DeviceObject& self, std::uint32_t sub_operator, std::uint32_t core, bool writes,
             const std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges) {
            for (const auto& [begin, end] : ranges) self.idle().declare(sub_operator, core, writes, begin, end);
          },
          py::arg("sub_operator"), py::arg("core"), py::arg("writes"), py::arg("ranges"))
      .def(
          "declare_scratch",
          [](DeviceObject& self, std::uint64_t begin, std::uint64_t end) { self.idle().declare_scratch(begin, end); },
          py::arg("begin"), py::arg("end"))
      .def(
          "warm",
          [](DeviceObject& self, std::uint64_t address, std::uint64_t count) { self.idle().warm(address, count); },
          py::arg("address"), py::arg("count"))
      .def("forget_l2", [](DeviceObject& self) { self.idle().forget_l2(); })
      .def("launch", &DeviceObject::launch, py::arg("number"), py::arg("cold"), py::arg("limit_s") = HUGE_VAL)
      .def("failure", &DeviceObject::failure)
      .def("results", &DeviceObject::results)
      .def("trace", &DeviceObject::trace)
      .def("control_time",
           [](DeviceObject& self) { return std::make_pair(self.idle().control_ns(), self.idle().control_slices()); })
      .def_property_readonly("retired", [](DeviceObject& self) { return self.idle().retired(); });
}

// The extension module superkernel._core: its functions, and the classes that the other files register; only the files
// csrc/bindings* know pybind11 and Python.
//
// Model: thin. Python arguments become pointers and numbers, csrc/runtime and csrc/sim work, outcomes become values or
// typed errors of superkernel.core.errors. The stub with the public documentation is superkernel/_core.pyi.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings_gil.h"
#include "bindings_parts.h"
#include "runtime/clock.h"
#include "runtime/cpu.h"
#include "runtime/kernel.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

namespace py = pybind11;

namespace {

py::array_t<std::uint8_t> alloc_aligned(std::size_t bytes) {
  auto buffer = std::make_unique<sk::AlignedBuffer>();
  if (!buffer->allocate(bytes)) raise_no_memory(bytes);
  sk::AlignedBuffer* raw = buffer.get();
  const py::capsule owner(buffer.release(), [](void* memory) { delete static_cast<sk::AlignedBuffer*>(memory); });
  return py::array_t<std::uint8_t>(static_cast<py::ssize_t>(bytes), raw->data(), owner);
}

std::size_t move_to_node(const py::array_t<std::uint8_t, py::array::c_style>& memory, int node) {
  const std::uint8_t* data = memory.data();
  const auto bytes = static_cast<std::size_t>(memory.nbytes());
  const GilReleased released;
  return sk::move_to_node(data, bytes, node);
}

void set_option(const std::string& name, std::int64_t value) {
  sk::PoolOptions& options = sk::pool_options();
  if (name == "spin_ns" && value >= 0) {
    options.spin_ns = value;
  } else if (name == "spin_ns_max" && value >= 0) {
    options.spin_ns_max = value;
  } else if (name == "pin") {
    options.pin = value != 0;
    const GilReleased released;
    sk::Pool::instance().apply_pinning();
  } else if (name == "pin_caller") {
    options.pin_caller = value != 0;
  } else if (name == "stepwise" && value >= 0 && value <= 2) {
    options.stepwise = static_cast<sk::Stepwise>(value);
  } else if (name == "check_counters") {
    sk::check_counters_option() = value != 0;
  } else {
    raise("InputError", {"no such option or value", "set_option",
                         "spin_ns >= 0, spin_ns_max >= 0, pin, pin_caller, stepwise 0 to 2, check_counters",
                         name + " = " + std::to_string(value), ""});
  }
}

py::dict pool_info() {
  using namespace py::literals;
  sk::PoolInfo info;
  {
    const GilReleased released;
    info = sk::Pool::instance().info();
  }
  const auto list_of = [](const std::vector<int>& values) {
    py::list list;
    for (int value : values) list.append(value);
    return list;
  };
  return py::dict("threads"_a = info.threads, "parked"_a = info.parked, "cpus"_a = list_of(info.cpus),
                  "worker_cpus"_a = list_of(info.worker_cpus), "launches"_a = info.launches, "wakes"_a = info.wakes,
                  "moves"_a = info.moves, "taken"_a = info.taken, "stepwise"_a = info.stepwise,
                  "disturbed"_a = info.disturbed, "spin_ns"_a = info.spin_ns, "spin_ns_max"_a = info.spin_ns_max,
                  "spin_ns_now"_a = info.spin_ns_now, "pin"_a = info.pin, "pin_caller"_a = info.pin_caller,
                  "asymmetric_barrier"_a = info.asymmetric_barrier, "cores_max"_a = sk::kMaxCores);
}

py::dict abi_layout() {
  using namespace py::literals;
  return py::dict(
      "version"_a = SK_ABI_VERSION, "flag_stride"_a = SK_FLAG_STRIDE, "context_bytes"_a = sizeof(SkContext),
      "offsets"_a =
          py::dict("epoch"_a = offsetof(SkContext, epoch), "arena"_a = offsetof(SkContext, arena),
                   "constants"_a = offsetof(SkContext, constants), "io"_a = offsetof(SkContext, io),
                   "flags"_a = offsetof(SkContext, flags), "scratch"_a = offsetof(SkContext, scratch),
                   "scratch_stride"_a = offsetof(SkContext, scratch_stride), "events"_a = offsetof(SkContext, events),
                   "events_stride"_a = offsetof(SkContext, events_stride), "abort"_a = offsetof(SkContext, abort),
                   "spin_limit"_a = offsetof(SkContext, spin_limit), "wait_slow"_a = offsetof(SkContext, wait_slow),
                   "host_call"_a = offsetof(SkContext, host_call), "clock"_a = offsetof(SkContext, clock)));
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Host runtime: worker pool, kernels, clock and probe of the machine. See _core.pyi.";
  register_sources(m);
  register_kernel(m);
  register_crash(m);
  register_calls(m);
  register_machine(m);
  register_engines(m);
  register_device(m);
  register_recorder(m);
  register_program(m);
  register_probe(m);
  register_sync(m);
  register_scheduler(m);
  register_entries(m);
  m.attr("OversubscriptionWarning") = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "superkernel._core.OversubscriptionWarning", "A kernel has more threads than the process may use CPUs.",
      PyExc_RuntimeWarning, nullptr));
  m.attr("ABI_VERSION") = SK_ABI_VERSION;
  m.attr("CHAIN_CYCLES") = sk::kChainCycles;
  m.def("alloc_aligned", alloc_aligned, py::arg("nbytes"));
  m.def("move_to_node", move_to_node, py::arg("memory").noconvert(), py::arg("node"));
  m.def("tsc_hz", sk::ticks_hz, py::call_guard<GilReleased>());
  m.def("tsc_is_native", sk::ticks_are_native);
  m.def("tsc_now", sk::ticks);
  m.def("available_cpus", [] { return sk::allowed_cpus().size(); });
  m.def("allowed_cpus", sk::allowed_cpus);
  m.def("may_use_tiles", sk::may_use_tiles);
  m.def("abi_layout", abi_layout);
  m.def("set_option", set_option, py::arg("name"), py::arg("value"));
  m.def("pool_info", pool_info);
}

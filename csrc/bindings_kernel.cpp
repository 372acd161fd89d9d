// `_core.Kernel`: a kernel of the runtime as a Python object, its launches and their failures.
//
// Model: thin. Python arguments become pointers (bindings_pins.h), the GIL is given up where that pays
// (bindings_gil.h), csrc/runtime works, and the outcome becomes values or typed errors of superkernel.core.errors.
//
// Invariant: objects whose memory a run uses are referenced by the run, whatever other threads do to the caller's list
// meanwhile.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings_gil.h"
#include "bindings_parts.h"
#include "bindings_pins.h"
#include "runtime/clock.h"
#include "runtime/cpu.h"
#include "runtime/kernel.h"

namespace py = pybind11;

namespace {

const char* reason_name(sk::AbortReason reason) {
  switch (reason) {
    case sk::AbortReason::kNone:
      return "none";
    case sk::AbortReason::kDeadlock:
      return "deadlock";
    case sk::AbortReason::kWatchdog:
      return "watchdog";
    case sk::AbortReason::kHostCall:
      return "host_call";
    case sk::AbortReason::kInterrupt:
      return "interrupt";
    case sk::AbortReason::kEntryCode:
      return "entry_code";
    case sk::AbortReason::kCounters:
      return "counters";
    case sk::AbortReason::kNested:
      return "nested";
    case sk::AbortReason::kNoThread:
      return "no_thread";
    case sk::AbortReason::kForked:
      return "forked";
    case sk::AbortReason::kMissingEntry:
      return "missing_entry";
    case sk::AbortReason::kBusy:
      return "busy";
    case sk::AbortReason::kClosed:
      return "closed";
    case sk::AbortReason::kNoMemory:
      return "no_memory";
  }
  return "unknown";
}

py::object abort_details(const sk::AbortInfo& info, const std::vector<sk::BlockedWait>& waits) {
  using namespace py::literals;
  if (info.reason == sk::AbortReason::kNone) return py::none();
  py::list rows;
  for (const sk::BlockedWait& each : waits) {
    rows.append(py::dict("core"_a = each.core, "wait"_a = each.wait, "producer"_a = each.producer,
                         "threshold"_a = each.threshold, "actual"_a = each.actual, "late"_a = each.late));
  }
  return py::dict("reason"_a = reason_name(info.reason), "core"_a = info.core, "wait"_a = info.wait,
                  "producer"_a = info.producer, "threshold"_a = info.threshold, "actual"_a = info.actual,
                  "epoch"_a = info.epoch, "elapsed_ns"_a = info.elapsed_ns, "waits"_a = rows);
}

[[noreturn]] void raise_watchdog(const sk::AbortInfo& info, const sk::KernelConfig& config, const py::object& details) {
  const auto producer = static_cast<std::size_t>(info.producer);
  std::string expected =
      "the counter of core " + std::to_string(info.producer) + " at " + std::to_string(info.threshold);
  if (info.producer >= 0 && producer < config.sets.size()) {
    expected += " (its set " + std::to_string(info.threshold - info.epoch * config.sets[producer]) + " of " +
                std::to_string(config.sets[producer]) + " in launch " + std::to_string(info.epoch) + ")";
  }
  const bool deadlock = info.reason == sk::AbortReason::kDeadlock;
  const std::string elapsed = std::to_string(info.elapsed_ns / 1000);
  raise("WatchdogError",
        {deadlock ? "no core can go on" : "the kernel did not finish within the watchdog time of " + elapsed + " us",
         "core " + std::to_string(info.core) + ", wait " + std::to_string(info.wait), expected,
         std::to_string(info.actual),
         (deadlock ? "core " : "raise watchdog_ns if the machine is loaded; otherwise core ") +
             std::to_string(info.producer) + " never came to that set"},
        details);
}

}  // namespace

class KernelObject {
 public:
  KernelObject(std::uintptr_t entry, std::uintptr_t single, std::uintptr_t profiled, int cores, std::size_t arena_bytes,
               std::size_t scratch_bytes, const py::object& constants, std::size_t io_count,
               std::vector<std::uint64_t> sets, int subops, std::size_t events_words, py::object host_call,
               const py::sequence& shared, std::shared_ptr<sk::Workspace> workspace, bool stepwise,
               py::object keepalive)
      : host_call_(std::move(host_call)), keepalive_(std::move(keepalive)) {
    if (cores < 1 || cores > sk::kMaxCores) {
      raise("InputError", {"impossible number of cores", "argument cores", "1 to " + std::to_string(sk::kMaxCores),
                           std::to_string(cores), ""});
    }
    if (!sets.empty() && sets.size() != static_cast<std::size_t>(cores)) {
      raise("InputError", {"one number of sets per core is needed", "argument sets", std::to_string(cores),
                           std::to_string(sets.size()), ""});
    }
    if (subops < 0) {
      raise("InputError", {"a count cannot be negative", "argument subops", ">= 0", std::to_string(subops), ""});
    }
    if (!host_call_.is_none() && PyCallable_Check(host_call_.ptr()) == 0) {
      raise("InputError", {"not callable", "argument host_call", "a callable or None", py::repr(host_call_), ""});
    }
    warn_if_oversubscribed(cores);
    sk::KernelConfig config{
        .entry = reinterpret_cast<SkEntry>(entry),
        .single = reinterpret_cast<SkSingleEntry>(single),
        .profiled = reinterpret_cast<SkEntry>(profiled),
        .cores = cores,
        .arena_bytes = arena_bytes,
        .scratch_bytes = scratch_bytes,
        .workspace = std::move(workspace),
        .io_count = io_count,
        .sets = std::move(sets),
        .subops = subops,
        .events_words = events_words,
        .stepwise = stepwise && host_call_.is_none(),
    };
    take_constants(constants, config);
    take_shared(shared, config);
    const std::size_t bytes =
        arena_bytes + config.constants_bytes + static_cast<std::size_t>(cores) * (scratch_bytes + 8 * events_words);
    kernel_ = sk::Kernel::create(std::move(config));
    if (kernel_ == nullptr) raise_no_memory(bytes);
    if (!kernel_->constants_in_place()) constants_ = py::none();
  }

  // See `launch` of bindings_parts.h.
  void launch(std::span<std::uint8_t* const> io, std::int64_t watchdog_ns, const sk::Atomic<bool>* closed) {
    Session session;
    sk::AbortReason reason = sk::AbortReason::kBusy;
    sk::RunOptions options{.watchdog_ns = watchdog_ns, .hooks = {.user = &session}, .closed = closed};
    if (gil_.holds() && host_call_.is_none()) {
      options.hooks.poll = poll_holding_gil;
      options.patient = false;  // who holds the kernel or the pool may want the GIL
      reason = measured_run(io, options);
      if (session.state != nullptr) take_gil(session.state);
    }
    if (reason == sk::AbortReason::kBusy) {
      options.hooks.poll = on_main_thread() ? poll_signals : nullptr;
      options.hooks.host_call = call_host;
      options.patient = true;
      session.host_call = host_call_.is_none() ? nullptr : host_call_.ptr();
      session.state = PyEval_SaveThread();
      const std::int64_t start = sk::now_ns();
      reason = kernel_->run(io, options);
      const std::int64_t ns = sk::now_ns() - start;
      take_gil(session.state);
      gil_.add(ns);
    }
    if (reason != sk::AbortReason::kNone) [[unlikely]]
      raise_abort(reason, session);
  }

  void run(const py::handle& io, std::int64_t watchdog_ns) {
    in_session(io, watchdog_ns, [&](auto pointers, const auto& options) { return kernel_->run(pointers, options); });
  }

  // By round: ns of plain, profiled and one-by-one launches, time stamps around and within those that leave them, how
  // often threads lost their CPU beside each kind, and how fast each core's CPU ran.
  py::dict profile(const py::handle& io, int rounds, int warmup, bool settle, bool single, std::int64_t watchdog_ns) {
    using namespace py::literals;
    check_rounds(rounds, warmup);
    const auto count = static_cast<py::ssize_t>(rounds);
    const sk::KernelConfig& config = kernel_->config();
    py::array_t<std::int64_t> plain(count), profiled(count), one_by_one(single ? count : 0);
    const py::ssize_t singles = one_by_one.size();
    const std::vector<py::ssize_t> kinds{count, static_cast<py::ssize_t>(sk::kLaunchKinds)}, each{count, config.cores};
    py::array_t<std::int64_t> preemptions(kinds), chain_ticks(each);
    py::array_t<std::uint64_t> edges(std::vector<py::ssize_t>{count, 2});
    py::array_t<std::uint64_t> single_edges(std::vector<py::ssize_t>{singles, 2});
    py::array_t<std::uint64_t> single_events(std::vector<py::ssize_t>{singles, config.cores, config.subops, 2});
    py::array_t<std::uint64_t> events(std::vector<py::ssize_t>{count, static_cast<py::ssize_t>(config.cores),
                                                               static_cast<py::ssize_t>(config.events_words)});
    // Warm-up rounds write into the first row.
    const sk::ProfileRows rows{.rounds = static_cast<std::size_t>(rounds),
                               .plain = span_of(plain),
                               .profiled = span_of(profiled),
                               .single = span_of(one_by_one),
                               .edges = span_of(edges),
                               .events = span_of(events),
                               .single_edges = span_of(single_edges),
                               .single_events = span_of(single_events),
                               .preemptions = span_of(preemptions),
                               .chain_ticks = span_of(chain_ticks)};
    std::fill(rows.preemptions.begin(), rows.preemptions.end(), 0);
    if (rounds > 0) {
      in_session(io, watchdog_ns, [&](auto pointers, const auto& options) {
        return kernel_->profile(pointers, options, warmup, settle, rows);
      });
    }
    return py::dict("plain_ns"_a = plain, "profiled_ns"_a = profiled, "single_ns"_a = one_by_one, "edges"_a = edges,
                    "events"_a = events, "single_edges"_a = single_edges, "single_events"_a = single_events,
                    "preemptions"_a = preemptions, "chain_ticks"_a = chain_ticks);
  }

  py::array_t<std::int64_t> count(const py::handle& io, int launches, std::int64_t watchdog_ns) {
    check_rounds(launches, 0);
    py::array_t<std::int64_t> counts(std::vector<py::ssize_t>{static_cast<py::ssize_t>(kernel_->config().cores),
                                                              static_cast<py::ssize_t>(sk::kHardwareCounts)});
    const auto view = span_of(counts);
    in_session(io, watchdog_ns,
               [&](auto pointers, const auto& options) { return kernel_->count(pointers, options, launches, view); });
    return counts;
  }

  py::array_t<std::int64_t> run_single(const py::handle& io, std::int64_t watchdog_ns) {
    py::array_t<std::int64_t> ns(static_cast<py::ssize_t>(kernel_->config().subops));
    const auto view = span_of(ns);
    in_session(io, watchdog_ns,
               [&](auto pointers, const auto& options) { return kernel_->run_single(pointers, options, view); });
    return ns;
  }

  py::array_t<std::int64_t> time(const py::handle& io, int rounds, int warmup, std::int64_t watchdog_ns) {
    check_rounds(rounds, warmup);
    py::array_t<std::int64_t> fused(static_cast<py::ssize_t>(rounds));
    const auto view = span_of(fused);
    in_session(io, watchdog_ns,
               [&](auto pointers, const auto& options) { return kernel_->time(pointers, options, warmup, view); });
    return fused;
  }

  py::object last_abort() {
    sk::AbortInfo info;
    std::vector<sk::BlockedWait> waits;
    {
      const GilReleased released;
      info = kernel_->last_abort();
      waits = kernel_->last_waits();
    }
    return abort_details(info, waits);
  }

  const sk::Kernel& kernel() const { return *kernel_; }
  sk::Kernel& kernel() { return *kernel_; }
  std::uint8_t* arena() { return kernel_->arena(); }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(host_call_.ptr());
    Py_VISIT(keepalive_.ptr());
    Py_VISIT(constants_.ptr());
    Py_VISIT(shared_.ptr());
    return 0;
  }
  void clear() {
    host_call_ = py::none();  // the code and the constants stay: something may still run
  }

 private:
  // A run with the GIL held, if it can be had at once.
  sk::AbortReason measured_run(std::span<std::uint8_t* const> io, const sk::RunOptions& options) {
    if (!gil_.measures()) return kernel_->run(io, options);
    const std::int64_t start = sk::now_ns();
    const sk::AbortReason reason = kernel_->run(io, options);
    if (reason == sk::AbortReason::kNone) gil_.add(sk::now_ns() - start);
    return reason;
  }

  template <typename T>
  static std::span<T> span_of(py::array_t<T>& array) {
    return {array.mutable_data(), static_cast<std::size_t>(array.size())};
  }

  static void check_rounds(int rounds, int warmup) {
    if (rounds >= 0 && warmup >= 0) return;
    raise("InputError", {"a count cannot be negative", "arguments rounds, warmup", ">= 0",
                         std::to_string(rounds) + ", " + std::to_string(warmup), ""});
  }

  static void warn_if_oversubscribed(int cores) {
    static bool warned = false;  // under the GIL
    const std::size_t cpus = sk::allowed_cpus().size();
    if (warned || static_cast<std::size_t>(cores) <= cpus) return;
    const std::string text = "the kernel runs on " + std::to_string(cores) +
                             " threads, but this process may use only " + std::to_string(cpus) +
                             " CPUs: threads take turns, expect it to be slow";
    const py::object category = py::module_::import("superkernel._core").attr("OversubscriptionWarning");
    py::module_::import("superkernel.core.warn").attr("warn")(text, category);
    warned = true;
  }

  void take_constants(const py::object& constants, sk::KernelConfig& config) {
    if (constants.is_none()) return;
    if (py::isinstance<py::array>(constants)) {
      const auto array = py::reinterpret_borrow<py::array>(constants);
      if ((array.flags() & IoPins::kContiguous) == 0) {
        raise("InputError",
              {"the array is not contiguous", "argument constants", "C order without gaps", "a strided view", ""});
      }
      config.constants = static_cast<const std::uint8_t*>(array.data());
      config.constants_bytes = static_cast<std::size_t>(array.nbytes());
      constants_ = constants;
      return;
    }
    constants_ = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(constants.ptr()));
    if (!constants_) throw py::error_already_set();
    const Py_buffer* view = PyMemoryView_GET_BUFFER(constants_.ptr());
    if (PyBuffer_IsContiguous(view, 'C') == 0) {
      raise("InputError",
            {"the buffer is not contiguous", "argument constants", "C order without gaps", "a strided view", ""});
    }
    config.constants = static_cast<const std::uint8_t*>(view->buf);
    config.constants_bytes = static_cast<std::size_t>(view->len);
  }

  void take_shared(const py::sequence& shared, sk::KernelConfig& config) {
    shared_ = py::tuple(shared);
    for (const py::handle& each : shared_) {
      const std::string where = "argument shared, number " + std::to_string(config.shared.size());
      if (!py::isinstance<py::array>(each)) {
        raise("InputError", {"not an array", where, "bytes, aligned to 64", py::repr(each), ""});
      }
      const auto array = py::reinterpret_borrow<py::array>(each);
      const auto* data = static_cast<const std::uint8_t*>(array.data());
      if ((array.flags() & IoPins::kContiguous) == 0 || reinterpret_cast<std::uintptr_t>(data) % 64 != 0) {
        raise("InputError",
              {"not where kernels may read it", where, "bytes without gaps, aligned to 64", "another array", ""});
      }
      config.shared.emplace_back(data, static_cast<std::size_t>(array.nbytes()));
    }
  }

  template <typename Work>
  void in_session(const py::handle& io, std::int64_t watchdog_ns, const Work& work) {
    IoPins pins(io, kernel_->config().io_count);
    Session session;
    session.host_call = host_call_.is_none() ? nullptr : host_call_.ptr();
    const sk::RunOptions options{
        .watchdog_ns = watchdog_ns,
        .hooks = {.user = &session, .host_call = call_host, .poll = on_main_thread() ? poll_signals : nullptr},
    };
    session.state = PyEval_SaveThread();
    const sk::AbortReason reason = work(pins.pointers(), options);
    take_gil(session.state);
    pins.release();
    if (reason != sk::AbortReason::kNone) [[unlikely]]
      raise_abort(reason, session);
  }

  [[noreturn]] void raise_abort(sk::AbortReason reason, Session& session) {
    if (session.error) throw std::move(*session.error);
    if (reason == sk::AbortReason::kNested) {
      raise("InputError",
            {"a kernel was run from inside a host call, or from a signal handler during a launch, of the same thread",
             "", "", "", "compute on the host there, or run the other kernel from another thread"});
    }
    if (reason == sk::AbortReason::kNoMemory) raise_no_memory(kernel_->memory_bytes());
    if (reason == sk::AbortReason::kClosed) {
      raise("InputError", {"the bound kernel is closed", "", "", "", "bind the kernel again"});
    }
    const sk::AbortInfo info = kernel_->last_abort();
    const py::object details = abort_details(info, kernel_->last_waits());
    switch (reason) {
      case sk::AbortReason::kDeadlock:
      case sk::AbortReason::kWatchdog:
        raise_watchdog(info, kernel_->config(), details);
      case sk::AbortReason::kHostCall:
        raise("InternalError", {"the kernel calls the host, but was made without host_call", "", "", "", ""}, details);
      case sk::AbortReason::kCounters:
        raise("InternalError",
              {"a progress counter disagrees with the plan after the run", "core " + std::to_string(info.core),
               std::to_string(info.threshold), std::to_string(info.actual), ""},
              details);
      case sk::AbortReason::kNoThread:
        raise("MachineError",
              {"the system refuses another thread", "", std::to_string(kernel_->config().cores - 1) + " workers", "",
               "look at the limits on processes and memory (ulimit -u, cgroup pids.max)"},
              details);
      case sk::AbortReason::kForked:
        raise("UnsupportedError",
              {"the process was forked inside a host call; this is the child, whose workers are gone", "", "", "",
               "fork between runs"},
              details);
      case sk::AbortReason::kMissingEntry:
        raise("InputError",
              {"the kernel was made without the entry that this call needs", "", "a function address", "0", ""},
              details);
      default:
        raise("InternalError", {"the kernel's entry reports a failure without a cause", "", "0", "not 0", ""}, details);
    }
  }

  py::object host_call_;
  py::object keepalive_;
  py::object constants_ = py::none();
  py::tuple shared_;
  std::unique_ptr<sk::Kernel> kernel_;
  GilPolicy gil_;
};

KernelObject& kernel_object(const py::handle& kernel) { return py::cast<KernelObject&>(kernel); }

sk::Kernel& runtime_kernel(KernelObject& kernel) { return kernel.kernel(); }

void launch(KernelObject& kernel, std::span<std::uint8_t* const> io, std::int64_t watchdog_ns,
            const std::atomic<bool>* closed) {
  kernel.launch(io, watchdog_ns, closed);
}

namespace {

// Lets the cycle collector see through a kernel: host_call usually is a method of the object that holds the kernel.
py::custom_type_setup kernel_gc([](PyHeapTypeObject* heap_type) {
  PyTypeObject* type = &heap_type->ht_type;
  type->tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!py::detail::is_holder_constructed(self)) return 0;
    return py::cast<KernelObject&>(py::handle(self)).traverse(visit, arg);
  };
  type->tp_clear = [](PyObject* self) {
    if (py::detail::is_holder_constructed(self)) py::cast<KernelObject&>(py::handle(self)).clear();
    return 0;
  };
});

}  // namespace

void register_kernel(py::module_& m) {
  py::class_<sk::Workspace, std::shared_ptr<sk::Workspace>>(m, "Workspace")
      .def(py::init<>())
      .def_property_readonly("nbytes", &sk::Workspace::bytes);
  py::class_<KernelObject>(m, "Kernel", kernel_gc)
      .def(py::init<std::uintptr_t, std::uintptr_t, std::uintptr_t, int, std::size_t, std::size_t, const py::object&,
                    std::size_t, std::vector<std::uint64_t>, int, std::size_t, py::object, const py::sequence&,
                    std::shared_ptr<sk::Workspace>, bool, py::object>(),
           py::arg("entry"), py::arg("single"), py::arg("profiled"), py::arg("cores"), py::arg("arena_bytes"),
           py::arg("scratch_bytes"), py::arg("constants"), py::arg("io_count"), py::arg("sets"), py::arg("subops"),
           py::arg("events_words"), py::arg("host_call") = py::none(), py::kw_only(), py::arg("shared") = py::tuple(),
           py::arg("workspace") = py::none(), py::arg("stepwise") = false, py::arg("keepalive") = py::none())
      .def("run", &KernelObject::run, py::arg("io"), py::arg("watchdog_ns") = 0)
      .def("profile", &KernelObject::profile, py::arg("io"), py::arg("rounds"), py::arg("warmup") = 10,
           py::arg("settle") = true, py::arg("single") = false, py::arg("watchdog_ns") = 0)
      .def("count", &KernelObject::count, py::arg("io"), py::arg("launches"), py::arg("watchdog_ns") = 0)
      .def("run_single", &KernelObject::run_single, py::arg("io"), py::arg("watchdog_ns") = 0)
      .def("time", &KernelObject::time, py::arg("io"), py::arg("rounds"), py::arg("warmup") = 10,
           py::arg("watchdog_ns") = 0)
      .def("last_abort", &KernelObject::last_abort)
      .def("arena",
           [](const py::object& self) {
             KernelObject& object = py::cast<KernelObject&>(self);
             const auto bytes = static_cast<py::ssize_t>(object.kernel().config().arena_bytes);
             return py::array_t<std::uint8_t>(bytes, object.arena(), self);
           })
      .def_property_readonly("cores", [](const KernelObject& self) { return self.kernel().config().cores; })
      .def_property_readonly("io_count", [](const KernelObject& self) { return self.kernel().config().io_count; })
      .def_property_readonly("subops", [](const KernelObject& self) { return self.kernel().config().subops; })
      .def_property_readonly("constants_in_place",
                             [](const KernelObject& self) { return self.kernel().constants_in_place(); });
}

// The extension module superkernel._core; only the files csrc/bindings* know pybind11 and Python.
//
// Model: thin. It turns Python arguments into pointers, gives up the GIL, lets csrc/runtime work, takes the GIL back
// and turns the outcome into values or typed errors of superkernel.errors. The stub with the public documentation is
// superkernel/_core.pyi.
//
// Invariants:
//  - The GIL is given up before any lock of the runtime is taken, and a host call takes it back on the thread that gave
//  it up:
//    no order of locks can deadlock.
//  - Objects whose memory a run uses are referenced by the run, whatever other threads do to the caller's list
//  meanwhile.
//  - While the interpreter shuts down nobody is thrown out of the GIL's wait (that would unwind through generated
//  code): the
//    thread waits for the end of the process instead.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/limits.h"
#include "bindings_parts.h"
#include "runtime/clock.h"
#include "runtime/cpu.h"
#include "runtime/kernel.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "sim/compressed.h"
#include "sim/machine.h"

namespace py = pybind11;

// ---- errors
// ----------------------------------------------------------------------------------------------------------

void raise(const char* kind, const ErrorText& text, const py::object& details) {
  using namespace py::literals;
  const py::object type = py::module_::import("superkernel.errors").attr(kind);
  const py::object error = type(text.message, "location"_a = text.location, "expected"_a = text.expected,
                                "found"_a = text.found, "hint"_a = text.hint);
  if (!details.is_none()) error.attr("details") = details;
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

namespace {

[[noreturn]] void raise_no_memory(std::size_t bytes) {
  raise("MachineError",
        {"not enough memory", "", std::to_string(bytes) + " bytes", "", "free memory or use a smaller model"});
}

// ---- GIL
// -------------------------------------------------------------------------------------------------------------

}  // namespace

bool shutting_down() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

namespace {

void take_gil(PyThreadState* state) {
  while (shutting_down()) pause();
  PyEval_RestoreThread(state);
}

// Python delivers signals on the main thread only; asking from another one would cost a wait for the GIL.
bool on_main_thread() {
  struct Answer {
    std::uint32_t generation = ~std::uint32_t{0};
    bool is_main = false;
  };
  thread_local Answer answer;
  if (answer.generation != sk::fork_generation()) {
    answer = {sk::fork_generation(), syscall(SYS_gettid) == getpid()};
  }
  return answer.is_main;
}

// ---- base pointers
// ---------------------------------------------------------------------------------------------------

constexpr int kNumpyContiguous = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_;

// The pointers of one run and references to the objects behind them. `release()` must be called with the GIL held;
// there is no destructor on purpose: a thread that ends without the GIL must not touch reference counts.
class IoPins {
 public:
  IoPins(const py::handle& io, std::size_t expected) {
    const py::object fast = py::reinterpret_steal<py::object>(PySequence_Fast(io.ptr(), "io must be a sequence"));
    if (!fast) throw py::error_already_set();
    const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
    if (count != expected) {
      raise("InputError",
            {"wrong number of base pointers", "argument io", std::to_string(expected), std::to_string(count), ""});
    }
    if (count > kInline) {
      more_pointers_.resize(count);
      more_owners_.resize(count);
    }
    for (; size_ < count; ++size_) {
      try {
        pin(PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(size_)), count > kInline);
      } catch (...) {
        release();
        throw;
      }
    }
  }
  IoPins(const IoPins&) = delete;
  IoPins& operator=(const IoPins&) = delete;

  std::span<std::uint8_t* const> pointers() const {
    return {more_pointers_.empty() ? pointers_.data() : more_pointers_.data(), size_};
  }

  void release() {
    PyObject** owners = more_owners_.empty() ? owners_.data() : more_owners_.data();
    for (std::size_t i = 0; i < size_; ++i) Py_XDECREF(owners[i]);
    size_ = 0;
  }

 private:
  static constexpr std::size_t kInline = 32;

  void pin(PyObject* item, bool more) {
    PyObject*& owner = more ? more_owners_[size_] : owners_[size_];
    std::uint8_t*& pointer = more ? more_pointers_[size_] : pointers_[size_];
    owner = nullptr;
    if (py::isinstance<py::array>(item)) {
      const auto* array = py::detail::array_proxy(item);
      if ((array->flags & kNumpyContiguous) == 0) raise_not_contiguous();
      owner = Py_NewRef(item);
      pointer = reinterpret_cast<std::uint8_t*>(array->data);
    } else if (PyLong_Check(item)) {
      pointer = static_cast<std::uint8_t*>(PyLong_AsVoidPtr(item));
      if (pointer == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
    } else {
      owner = PyMemoryView_FromObject(item);
      if (owner == nullptr) throw py::error_already_set();
      if (PyBuffer_IsContiguous(PyMemoryView_GET_BUFFER(owner), 'C') == 0) {
        Py_CLEAR(owner);
        raise_not_contiguous();
      }
      pointer = static_cast<std::uint8_t*>(PyMemoryView_GET_BUFFER(owner)->buf);
    }
  }

  [[noreturn]] void raise_not_contiguous() const {
    raise("InputError", {"the array is not contiguous", "argument io, item " + std::to_string(size_),
                         "C order without gaps", "a strided view", "numpy.ascontiguousarray"});
  }

  std::size_t size_ = 0;
  std::array<std::uint8_t*, kInline> pointers_;
  std::array<PyObject*, kInline> owners_;
  std::vector<std::uint8_t*> more_pointers_;
  std::vector<PyObject*> more_owners_;
};

// ---- Kernel
// ----------------------------------------------------------------------------------------------------------

const char* reason_name(sk::AbortReason reason) {
  switch (reason) {
    case sk::AbortReason::kNone:
      return "none";
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
  }
  return "unknown";
}

py::object abort_details(const sk::AbortInfo& info) {
  using namespace py::literals;
  if (info.reason == sk::AbortReason::kNone) return py::none();
  return py::dict("reason"_a = reason_name(info.reason), "core"_a = info.core, "wait"_a = info.wait,
                  "producer"_a = info.producer, "threshold"_a = info.threshold, "actual"_a = info.actual,
                  "epoch"_a = info.epoch, "elapsed_ns"_a = info.elapsed_ns);
}

// What the hooks of one run share with the thread that started it.
struct Session {
  PyThreadState* state = nullptr;  // null while this thread holds the GIL
  PyObject* host_call = nullptr;   // borrowed: the kernel that runs holds it
  std::optional<py::error_already_set> error;
};

std::int32_t call_host(void* user, std::int32_t subop) {
  Session& session = *static_cast<Session*>(user);
  if (session.host_call == nullptr) return 1;
  take_gil(session.state);
  PyObject* result = PyObject_CallFunction(session.host_call, "i", static_cast<int>(subop));
  if (result == nullptr) session.error.emplace();
  Py_XDECREF(result);
  session.state = PyEval_SaveThread();
  return session.error ? 1 : 0;
}

std::int32_t poll_signals(void* user) {
  Session& session = *static_cast<Session*>(user);
  take_gil(session.state);
  const bool interrupted = PyErr_CheckSignals() != 0;
  if (interrupted) session.error.emplace();
  session.state = PyEval_SaveThread();
  return interrupted ? 1 : 0;
}

// The poll hook of a launch that began with the GIL held: one that lasts unexpectedly long gives it up.
std::int32_t poll_holding_gil(void* user) {
  Session& session = *static_cast<Session*>(user);
  if (session.state != nullptr) return on_main_thread() ? poll_signals(user) : 0;
  const bool interrupted = on_main_thread() && PyErr_CheckSignals() != 0;
  if (interrupted) session.error.emplace();
  session.state = PyEval_SaveThread();
  return interrupted ? 1 : 0;
}

// Decides whether launches of one kernel give up the GIL. Giving it up and taking it back costs as much as the smallest
// launch, and serves nobody within a time in which no other thread would get far. The decision follows a running
// average of measured launches: every one while the GIL is given up, as at first, later one of sixteen. Under the GIL.
class GilPolicy {
 public:
  bool holds() const { return average_ns_ < kHoldBelowNs; }
  bool measures() { return !holds() || ++count_ % kPeriod == 0; }
  void add(std::int64_t ns) {
    const std::int64_t sample = std::min(ns, kSampleMaxNs);  // a launch that was preempted says little
    average_ns_ = average_ns_ == kUnknown ? sample : average_ns_ + (sample - average_ns_) / 8;
  }

 private:
  static constexpr std::int64_t kHoldBelowNs = 20'000;
  static constexpr std::int64_t kSampleMaxNs = 4 * kHoldBelowNs;
  static constexpr std::int64_t kUnknown = INT64_MAX;
  static constexpr std::uint32_t kPeriod = 16;
  std::int64_t average_ns_ = kUnknown;
  std::uint32_t count_ = 0;
};

[[noreturn]] void raise_watchdog(const sk::AbortInfo& info, const sk::KernelConfig& config) {
  const auto producer = static_cast<std::size_t>(info.producer);
  std::string expected =
      "the counter of core " + std::to_string(info.producer) + " at " + std::to_string(info.threshold);
  if (info.producer >= 0 && producer < config.sets.size()) {
    expected += " (its set " + std::to_string(info.threshold - info.epoch * config.sets[producer]) + " of " +
                std::to_string(config.sets[producer]) + " in launch " + std::to_string(info.epoch) + ")";
  }
  raise("WatchdogError",
        {"the kernel did not finish within the watchdog time of " + std::to_string(info.elapsed_ns / 1000) + " us",
         "core " + std::to_string(info.core) + ", wait " + std::to_string(info.wait), expected,
         std::to_string(info.actual),
         "raise watchdog_ns if the machine is loaded; otherwise core " + std::to_string(info.producer) +
             " never came to that set"},
        abort_details(info));
}

}  // namespace

class KernelObject {
 public:
  KernelObject(std::uintptr_t entry, std::uintptr_t single, std::uintptr_t profiled, int cores, std::size_t arena_bytes,
               std::size_t scratch_bytes, const py::object& constants, std::size_t io_count,
               std::vector<std::uint64_t> sets, int subops, std::size_t events_words, py::object host_call,
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
        .io_count = io_count,
        .sets = std::move(sets),
        .subops = subops,
        .events_words = events_words,
    };
    take_constants(constants, config);
    const std::size_t bytes =
        arena_bytes + config.constants_bytes + static_cast<std::size_t>(cores) * (scratch_bytes + 8 * events_words);
    kernel_ = sk::Kernel::create(std::move(config));
    if (kernel_ == nullptr) raise_no_memory(bytes);
    if (!kernel_->constants_in_place()) constants_ = py::none();
  }

  // See `launch` of bindings_parts.h.
  void launch(std::span<std::uint8_t* const> io, std::int64_t watchdog_ns, const std::atomic<bool>* closed) {
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

  py::array_t<std::uint64_t> run_profiled(const py::handle& io, std::int64_t watchdog_ns) {
    const sk::KernelConfig& config = kernel_->config();
    py::array_t<std::uint64_t> events(
        {static_cast<py::ssize_t>(config.cores), static_cast<py::ssize_t>(config.events_words)});
    const std::span<std::uint64_t> words(events.mutable_data(), static_cast<std::size_t>(events.size()));
    in_session(io, watchdog_ns,
               [&](auto pointers, const auto& options) { return kernel_->run_profiled(pointers, options, words); });
    return events;
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

  py::tuple compare(const py::handle& io, int rounds, int warmup, std::int64_t watchdog_ns) {
    check_rounds(rounds, warmup);
    py::array_t<std::int64_t> fused(static_cast<py::ssize_t>(rounds)), single(static_cast<py::ssize_t>(rounds));
    const auto fused_view = span_of(fused), single_view = span_of(single);
    in_session(io, watchdog_ns, [&](auto pointers, const auto& options) {
      return kernel_->compare(pointers, options, warmup, fused_view, single_view);
    });
    return py::make_tuple(fused, single);
  }

  py::object last_abort() {
    sk::AbortInfo info;
    PyThreadState* state = PyEval_SaveThread();
    info = kernel_->last_abort();
    take_gil(state);
    return abort_details(info);
  }

  const sk::Kernel& kernel() const { return *kernel_; }
  sk::Kernel& kernel() { return *kernel_; }
  std::uint8_t* arena() { return kernel_->arena(); }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(host_call_.ptr());
    Py_VISIT(keepalive_.ptr());
    Py_VISIT(constants_.ptr());
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

  static std::span<std::int64_t> span_of(py::array_t<std::int64_t>& array) {
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
    if (PyErr_WarnEx(category.ptr(), text.c_str(), 1) != 0) throw py::error_already_set();
    warned = true;
  }

  void take_constants(const py::object& constants, sk::KernelConfig& config) {
    if (constants.is_none()) return;
    if (py::isinstance<py::array>(constants)) {
      const auto array = py::reinterpret_borrow<py::array>(constants);
      if ((array.flags() & kNumpyContiguous) == 0) {
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
      raise("InputError", {"a kernel was run from inside a host call of the same thread", "", "", "",
                           "compute on the host there, or run the other kernel from another thread"});
    }
    if (reason == sk::AbortReason::kClosed) {
      raise("InputError", {"the bound kernel is closed", "", "", "", "bind the kernel again"});
    }
    const sk::AbortInfo info = kernel_->last_abort();
    const py::object details = abort_details(info);
    switch (reason) {
      case sk::AbortReason::kWatchdog:
        raise_watchdog(info, kernel_->config());
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

// ---- module functions
// ------------------------------------------------------------------------------------------------

py::array_t<std::uint8_t> alloc_aligned(std::size_t bytes) {
  auto buffer = std::make_unique<sk::AlignedBuffer>();
  if (!buffer->allocate(bytes)) raise_no_memory(bytes);
  sk::AlignedBuffer* raw = buffer.get();
  const py::capsule owner(buffer.release(), [](void* memory) { delete static_cast<sk::AlignedBuffer*>(memory); });
  return py::array_t<std::uint8_t>(static_cast<py::ssize_t>(bytes), raw->data(), owner);
}

void set_option(const std::string& name, std::int64_t value) {
  sk::PoolOptions& options = sk::pool_options();
  if (name == "spin_ns" && value >= 0) {
    options.spin_ns = value;
  } else if (name == "pin") {
    options.pin = value != 0;
    const py::gil_scoped_release released;
    sk::Pool::instance().apply_pinning();
  } else if (name == "pin_caller") {
    options.pin_caller = value != 0;
  } else if (name == "check_counters") {
    sk::check_counters_option() = value != 0;
  } else {
    raise("InputError", {"no such option or value", "set_option", "spin_ns >= 0, pin, pin_caller, check_counters",
                         name + " = " + std::to_string(value), ""});
  }
}

py::dict pool_info() {
  using namespace py::literals;
  sk::PoolInfo info;
  {
    const py::gil_scoped_release released;
    info = sk::Pool::instance().info();
  }
  const auto list_of = [](const std::vector<int>& values) {
    py::list list;
    for (int value : values) list.append(value);
    return list;
  };
  return py::dict("threads"_a = info.threads, "parked"_a = info.parked, "cpus"_a = list_of(info.cpus),
                  "worker_cpus"_a = list_of(info.worker_cpus), "launches"_a = info.launches, "wakes"_a = info.wakes,
                  "moves"_a = info.moves, "spin_ns"_a = info.spin_ns, "pin"_a = info.pin,
                  "pin_caller"_a = info.pin_caller, "asymmetric_barrier"_a = info.asymmetric_barrier,
                  "cores_max"_a = sk::kMaxCores);
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

double read_bandwidth(std::size_t bytes, int threads) {
  if (threads < 1 || threads > sk::kMaxCores) {
    raise("InputError", {"impossible number of threads", "measure_read_bandwidth",
                         "1 to " + std::to_string(sk::kMaxCores), std::to_string(threads), ""});
  }
  double gigabytes_per_s;
  {
    const py::gil_scoped_release released;
    gigabytes_per_s = sk::measure_read_bandwidth(bytes, threads);
  }
  if (gigabytes_per_s < 0.0) raise("MachineError", {"memory or threads refused", "measure_read_bandwidth", "", "", ""});
  return gigabytes_per_s;
}

double core_to_core_ns() {
  double ns;
  {
    const py::gil_scoped_release released;
    ns = sk::measure_core_to_core_ns();
  }
  if (ns < 0.0) raise("MachineError", {"the system refuses another thread", "measure_core_to_core_ns", "", "", ""});
  return ns;
}

void bind_kernel(py::module_& m) {
  py::class_<KernelObject>(m, "Kernel", kernel_gc)
      .def(py::init<std::uintptr_t, std::uintptr_t, std::uintptr_t, int, std::size_t, std::size_t, const py::object&,
                    std::size_t, std::vector<std::uint64_t>, int, std::size_t, py::object, py::object>(),
           py::arg("entry"), py::arg("single"), py::arg("profiled"), py::arg("cores"), py::arg("arena_bytes"),
           py::arg("scratch_bytes"), py::arg("constants"), py::arg("io_count"), py::arg("sets"), py::arg("subops"),
           py::arg("events_words"), py::arg("host_call") = py::none(), py::kw_only(), py::arg("keepalive") = py::none())
      .def("run", &KernelObject::run, py::arg("io"), py::arg("watchdog_ns") = 0)
      .def("run_profiled", &KernelObject::run_profiled, py::arg("io"), py::arg("watchdog_ns") = 0)
      .def("run_single", &KernelObject::run_single, py::arg("io"), py::arg("watchdog_ns") = 0)
      .def("time", &KernelObject::time, py::arg("io"), py::arg("rounds"), py::arg("warmup") = 10,
           py::arg("watchdog_ns") = 0)
      .def("compare", &KernelObject::compare, py::arg("io"), py::arg("rounds"), py::arg("warmup") = 10,
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

// ---- simulator
// -------------------------------------------------------------------------------------------------------------

[[noreturn]] void raise_problem(const char* kind, const sk::sim::Problem& problem, const char* hint) {
  raise(kind, {problem.message, problem.location, problem.expected, problem.found, hint});
}

// A machine that other threads cannot touch while one runs it without the GIL.
struct MachineObject : sk::sim::Machine {
  bool running = false;
};

MachineObject& idle(MachineObject& machine) {
  if (machine.running) raise("InputError", {"the machine is running in another thread", "SimMachine", "", "", ""});
  return machine;
}

std::unique_ptr<MachineObject> make_machine(const py::bytes& elf, std::uint32_t harts, std::uint64_t memory_base,
                                            std::uint64_t memory_bytes, std::uint64_t quantum,
                                            const std::array<std::uint32_t, 4>& icache) {
  const auto text = static_cast<std::string_view>(elf);
  const std::span file(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  sk::sim::ElfImage image;
  if (const auto problem = sk::sim::read_elf(file, image); !problem.message.empty()) {
    raise_problem("FileFormatError", problem, "");
  }
  sk::sim::MachineConfig config{
      harts, memory_base, memory_bytes, quantum, {icache[0], icache[1], icache[2], icache[3]}};
  if (memory_bytes == 0) config.memory_bytes = sk::sim::default_memory_bytes(image, memory_base);
  if (const auto problem = sk::sim::config_problem(config); !problem.message.empty()) {
    raise_problem("InputError", problem, "");
  }
  auto machine = std::make_unique<MachineObject>();
  if (!machine->create(config)) raise_no_memory(config.memory_bytes);
  if (const auto problem = machine->load(file, image); !problem.message.empty()) {
    raise_problem("FileFormatError", problem, "link the program elsewhere, or move or enlarge the memory");
  }
  return machine;
}

// In pieces, between which Python may deliver signals.
std::string run_machine(MachineObject& machine, std::uint64_t instructions) {
  idle(machine);
  constexpr std::uint64_t kPiece = 50'000'000;
  sk::sim::End end = sk::sim::End::limit;
  const std::uint64_t start = machine.executed();
  while (end == sk::sim::End::limit && machine.executed() - start < instructions) {
    machine.running = true;
    {
      const py::gil_scoped_release released;
      end = machine.run(std::min(kPiece, instructions - (machine.executed() - start)));
    }
    machine.running = false;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  return std::array{"none", "exited", "limit", "asleep", "trap_loop", "bad_request"}[static_cast<std::size_t>(end)];
}

std::span<std::uint8_t> machine_bytes(MachineObject& machine, std::uint64_t address, std::uint64_t count) {
  idle(machine);
  const std::uint64_t offset = address - machine.memory_base();
  const std::span<std::uint8_t> memory = machine.memory();
  if (offset > memory.size() || count > memory.size() - offset) {
    raise("InputError", {"outside the simulated memory", "address " + std::to_string(address), "", "", ""});
  }
  return memory.subspan(offset, count);
}

py::dict hart_state(MachineObject& machine, std::size_t number) {
  using namespace py::literals;
  idle(machine);
  if (number >= machine.harts().size()) {
    raise("InputError",
          {"no such hart", "", "below " + std::to_string(machine.harts().size()), std::to_string(number), ""});
  }
  const sk::sim::Hart& hart = machine.harts()[number];
  const sk::sim::CacheStats& cache = hart.icache.stats();
  py::list x, f;
  for (std::size_t i = 0; i < 32; ++i) {
    x.append(hart.x[i]);
    f.append(hart.f[i]);
  }
  return py::dict("x"_a = x, "f"_a = f, "pc"_a = hart.pc, "mode"_a = hart.mode == sk::sim::Mode::machine ? "M" : "U",
                  "asleep"_a = hart.asleep, "fcsr"_a = hart.frm << 5 | hart.fflags, "mcause"_a = hart.mcause,
                  "mepc"_a = hart.mepc, "mtval"_a = hart.mtval, "mtvec"_a = hart.mtvec, "retired"_a = hart.retired,
                  "traps"_a = hart.traps, "cycles"_a = hart.cycles(),
                  "icache"_a = py::dict("accesses"_a = cache.accesses, "misses"_a = cache.misses,
                                        "cold_misses"_a = cache.cold_misses, "prefetches"_a = cache.prefetches,
                                        "prefetches_late"_a = cache.prefetches_late));
}

py::list sim_instructions() {
  py::list rows;
  for (const sk::sim::Instruction& row : sk::sim::instructions()) {
    rows.append(py::make_tuple(row.name, row.mask, row.match, row.operands));
  }
  return rows;
}

void bind_simulator(py::module_& m) {
  py::class_<MachineObject>(m, "SimMachine")
      .def(py::init(&make_machine), py::arg("elf"), py::kw_only(), py::arg("harts") = 1,
           py::arg("memory_base") = 0x80000000, py::arg("memory_bytes") = 0, py::arg("quantum") = 10000,
           py::arg("icache") = std::array<std::uint32_t, 4>{0, 128, 4, 150})
      .def("run", &run_machine, py::arg("instructions"))
      .def("hart", &hart_state, py::arg("number"))
      .def(
          "read",
          [](MachineObject& machine, std::uint64_t address, std::uint64_t count) {
            const auto bytes = machine_bytes(machine, address, count);
            return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          py::arg("address"), py::arg("count"))
      .def(
          "write",
          [](MachineObject& machine, std::uint64_t address, const py::bytes& data) {
            const auto text = static_cast<std::string_view>(data);
            std::copy(text.begin(), text.end(), machine_bytes(machine, address, text.size()).begin());
            machine.flush_decoded();
          },
          py::arg("address"), py::arg("data"))
      .def("console", [](MachineObject& machine) { return py::bytes(idle(machine).take_console()); })
      .def_property_readonly("exit_code", [](MachineObject& machine) { return idle(machine).exit_code(); })
      .def_property_readonly("end_hart", [](MachineObject& machine) { return idle(machine).end_hart(); })
      .def_property_readonly("executed", [](MachineObject& machine) { return idle(machine).executed(); })
      .def_property_readonly("time", [](MachineObject& machine) { return idle(machine).time(); });
  m.def("sim_instructions", sim_instructions);
  m.def("sim_disassemble", sk::sim::disassemble, py::arg("word"), py::arg("pc") = 0);
  m.def("sim_expand_compressed", sk::sim::expand_compressed, py::arg("half"));
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Host runtime: worker pool, kernels, clock and machine limits. See _core.pyi.";
  bind_kernel(m);
  register_calls(m);
  bind_simulator(m);
  register_engines(m);
  register_device(m);
  m.attr("OversubscriptionWarning") = py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "superkernel._core.OversubscriptionWarning", "A kernel has more threads than the process may use CPUs.",
      PyExc_RuntimeWarning, nullptr));
  m.attr("ABI_VERSION") = SK_ABI_VERSION;
  m.def("alloc_aligned", alloc_aligned, py::arg("nbytes"));
  m.def("tsc_hz", sk::ticks_hz, py::call_guard<py::gil_scoped_release>());
  m.def("tsc_is_native", sk::ticks_are_native);
  m.def("tsc_now", sk::ticks);
  m.def("available_cpus", [] { return sk::allowed_cpus().size(); });
  m.def("abi_layout", abi_layout);
  m.def("set_option", set_option, py::arg("name"), py::arg("value"));
  m.def("pool_info", pool_info);
  m.def("measure_fma_peak_f32", sk::measure_fma_peak_f32, py::arg("ms") = 20.0,
        py::call_guard<py::gil_scoped_release>());
  m.def("measure_read_bandwidth", read_bandwidth, py::arg("bytes"), py::arg("threads") = 1);
  m.def("measure_core_to_core_ns", core_to_core_ns);
}

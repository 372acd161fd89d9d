// Giving the GIL up and taking it back around launches, and the hooks that need it meanwhile.
//
// Invariants:
//  - The GIL is given up before any lock of the runtime is taken, and a host call takes it back on the thread that gave
//    it up: no order of locks can deadlock.
//  - An interpreter that shuts down ends every other thread that asks for the GIL, by unwinding its stack (before
//    CPython 3.14). Here that would run through generated code and destructors, which ends the process instead. So
//    whatever may ask stands in `stay_at_exit`: the thread waits for the end of the process there.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

// Sleeps until the process ends.
[[noreturn]] void await_exit();

// Does `work`, which may ask for the GIL; never returns where that ends this thread.
template <typename Work>
auto stay_at_exit(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const abi::__forced_unwind&) {
    await_exit();
  }
}

// Takes the GIL back; never returns where the interpreter goes down.
void take_gil(PyThreadState* state);

// Gives the GIL up for a scope.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() { take_gil(state_); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// Python delivers signals on the main thread only; asking from another one would cost a wait for the GIL.
bool on_main_thread();

// What the hooks of one run share with the thread that started it.
struct Session {
  PyThreadState* state = nullptr;  // null while this thread holds the GIL
  PyObject* host_call = nullptr;   // borrowed: the kernel that runs holds it
  std::optional<pybind11::error_already_set> error;
};

// Hooks of the runtime: `user` is the Session. A host call, signals of a launch without the GIL, and of one that began
// with it: one that lasts unexpectedly long gives it up.
std::int32_t call_host(void* user, std::int32_t subop);
std::int32_t poll_signals(void* user);
std::int32_t poll_holding_gil(void* user);

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

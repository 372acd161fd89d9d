// Time: the counter that generated code stamps events with, its rate, and nanoseconds for deadlines and measurements.
//
// Model: `ticks()` is rdtsc on x86-64 with an invariant counter, cntvct_el0 on AArch64, otherwise CLOCK_MONOTONIC in
// nanoseconds. Invariant: ticks of all cores are comparable and run at one rate, `ticks_hz()`.
#pragma once

#include <cstdint>

namespace sk {

// Nanoseconds of CLOCK_MONOTONIC.
std::int64_t now_ns() noexcept;

// The present time in ticks; also the `clock` callback of SkContext.
std::uint64_t ticks() noexcept;

// Ticks per second. On x86-64 measured against CLOCK_MONOTONIC over the time since the library was loaded (at least 20
// ms: the first call may block that long), then fixed for the process.
double ticks_hz() noexcept;

// A span of ticks in whole nanoseconds, by `ticks_hz`.
std::int64_t ticks_to_ns(std::uint64_t ticks) noexcept;

// True where `ticks()` reads a CPU register rather than asking the kernel.
bool ticks_are_native() noexcept;

}  // namespace sk

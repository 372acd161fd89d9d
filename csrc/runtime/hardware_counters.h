// What the CPU counts on one thread, where the operating system lets us ask: cycles, instructions, cache misses; and
// what can be seen without asking: lost time slices, and how fast the CPU runs now.
//
// Model: `open` starts the counters of the calling thread, in user mode alone; `close` stops them and keeps what they
// counted. An event that cannot be had (no such counter, not allowed, a virtual machine) is -1, and nothing is said.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sk {

inline constexpr std::size_t kHardwareCounts = 3;  // cycles, instructions, misses of the last cache

class HardwareCounters {
 public:
  HardwareCounters() noexcept {
    files_.fill(-1);
    counts_.fill(-1);
  }
  ~HardwareCounters() { close(); }
  HardwareCounters(const HardwareCounters&) = delete;
  HardwareCounters& operator=(const HardwareCounters&) = delete;

  void open() noexcept;
  void close() noexcept;
  const std::array<std::int64_t, kHardwareCounts>& counts() const noexcept { return counts_; }

 private:
  std::array<int, kHardwareCounts> files_;
  std::array<std::int64_t, kHardwareCounts> counts_;
};

// How often the calling thread has lost its CPU to another one while it wanted to go on.
std::int64_t thread_preemptions() noexcept;

// Length of a chain of additions, each of which takes what the one before it gave: a cycle each, on every CPU known to
// us, whatever the other thread of its core does. Long enough for the counter of `ticks()`.
#if defined(__x86_64__)
inline constexpr std::int64_t kChainCycles = 1024;
#else
inline constexpr std::int64_t kChainCycles = 16384;
#endif

// Ticks of such a chain on the calling thread's CPU, the least of a few: its frequency at this moment. 0: not known.
std::int64_t chain_ticks() noexcept;

}  // namespace sk

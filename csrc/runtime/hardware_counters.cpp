#include "runtime/hardware_counters.h"

#include <linux/perf_event.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/clock.h"

namespace sk {

namespace {

constexpr std::array<std::uint64_t, kHardwareCounts> kEvents = {PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS,
                                                                PERF_COUNT_HW_CACHE_MISSES};
constexpr int kChains = 3;  // of which an interrupt meets one

int open_event(std::uint64_t event) noexcept {
  perf_event_attr wanted{};
  wanted.type = PERF_TYPE_HARDWARE;
  wanted.size = sizeof(wanted);
  wanted.config = event;
  wanted.exclude_kernel = 1;
  wanted.exclude_hv = 1;
  return static_cast<int>(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

// Nothing behind the chain starts before it is done, nor the other way round: ticks are read in between.
std::int64_t run_chain() noexcept {
#if defined(__x86_64__) || defined(__aarch64__)
  std::uint64_t value = 1;
  const std::uint64_t start = ticks();
  for (std::int64_t i = 0; i < kChainCycles; i += 16) {
#if defined(__x86_64__)
    asm volatile(".rept 16\n\tadd %1, %0\n\t.endr\n\t" : "+r"(value) : "r"(start) : "cc");
#else
    asm volatile(".rept 16\n\tadd %0, %0, %1\n\t.endr\n\t" : "+r"(value) : "r"(start));
#endif
  }
#if defined(__x86_64__)
  asm volatile("lfence" ::: "memory");
#else
  asm volatile("isb" ::: "memory");
#endif
  return static_cast<std::int64_t>(ticks() - start);
#else
  return 0;
#endif
}

}  // namespace

void HardwareCounters::open() noexcept {
  counts_.fill(-1);
  for (std::size_t i = 0; i < kHardwareCounts; ++i) files_[i] = open_event(kEvents[i]);
}

void HardwareCounters::close() noexcept {
  for (std::size_t i = 0; i < kHardwareCounts; ++i) {
    if (files_[i] < 0) continue;
    std::int64_t counted = -1;
    if (read(files_[i], &counted, sizeof(counted)) == sizeof(counted)) counts_[i] = counted;
    static_cast<void>(::close(files_[i]));
    files_[i] = -1;
  }
}

std::int64_t thread_preemptions() noexcept {
  rusage used{};
  return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
}

std::int64_t chain_ticks() noexcept {
  std::int64_t least = run_chain();
  for (int i = 1; i < kChains; ++i) least = std::min(least, run_chain());
  return least;
}

}  // namespace sk

#include "runtime/clock.h"

#include <time.h>

#include <cerrno>
#include <cmath>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sk {

namespace {

#if defined(__x86_64__)
// CPUID 80000007h EDX bit 8: the counter runs at one rate in all power states.
bool detect_invariant_tsc() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0x80000007u, &eax, &ebx, &ecx, &edx) != 0 && ((edx >> 8) & 1u) != 0;
}

bool invariant_tsc() noexcept {
  static const bool invariant = detect_invariant_tsc();
  return invariant;
}

struct Anchor {
  std::uint64_t ticks;
  std::int64_t ns;
};

// One pair of readings as close together as five tries get: a reading interrupted in the middle would falsify the rate.
Anchor read_anchor() noexcept {
  Anchor best{};
  std::uint64_t best_gap = ~std::uint64_t{0};
  for (int attempt = 0; attempt < 5; ++attempt) {
    const std::uint64_t before = __builtin_ia32_rdtsc();
    const std::int64_t ns = now_ns();
    const std::uint64_t gap = __builtin_ia32_rdtsc() - before;
    if (gap < best_gap) {
      best_gap = gap;
      best = Anchor{before + gap / 2, ns};
    }
  }
  return best;
}

const Anchor load_anchor = read_anchor();

double measure_hz() noexcept {
  constexpr std::int64_t kMinimumNs = 20'000'000;
  const std::int64_t elapsed = now_ns() - load_anchor.ns;
  if (elapsed < kMinimumNs) {
    timespec rest{0, static_cast<long>(kMinimumNs - elapsed)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) == EINTR) {
    }
  }
  const Anchor now = read_anchor();
  return static_cast<double>(now.ticks - load_anchor.ticks) * 1e9 / static_cast<double>(now.ns - load_anchor.ns);
}
#endif

}  // namespace

std::int64_t now_ns() noexcept {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

#if defined(__x86_64__)

bool ticks_are_native() noexcept { return invariant_tsc(); }

std::uint64_t ticks() noexcept {
  return invariant_tsc() ? __builtin_ia32_rdtsc() : static_cast<std::uint64_t>(now_ns());
}

double ticks_hz() noexcept {
  static const double hz = invariant_tsc() ? measure_hz() : 1e9;
  return hz;
}

#elif defined(__aarch64__)

bool ticks_are_native() noexcept { return true; }

std::uint64_t ticks() noexcept {
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
}

double ticks_hz() noexcept {
  std::uint64_t hz;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hz));
  return static_cast<double>(hz);
}

#else

bool ticks_are_native() noexcept { return false; }
std::uint64_t ticks() noexcept { return static_cast<std::uint64_t>(now_ns()); }
double ticks_hz() noexcept { return 1e9; }

#endif

std::int64_t ticks_to_ns(std::uint64_t ticks) noexcept {
  return std::llround(static_cast<double>(ticks) * 1e9 / ticks_hz());
}

}  // namespace sk

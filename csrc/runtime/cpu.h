// The CPUs this process may use, in the order workers take them, and the few instructions the spin loops need.
#pragma once

#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace sk {

// CPUs allowed by the affinity of the calling thread: first one hardware thread of each physical core, then the
// siblings, each group ascending, so that N workers sit on N physical cores as long as there are so many. Never empty.
std::vector<int> allowed_cpus();

// Whether the CPU has AMX's tiles and the system lets this process use them. Tiles are 8 KB of state that every
// signal's frame then has room for: Linux wants to be asked, once, for all threads, those to come included; a child of
// a fork has what its parent had.
bool may_use_tiles() noexcept;

// Tells the core that it is in a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; isb waits about as long as pause
#else
  asm volatile("" ::: "memory");
#endif
}

// Rounding mode and denormal handling of the calling thread. Workers take over the caller's, so that a value does not
// depend on which core computed it.
inline std::uint64_t fp_control() noexcept {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fu;  // without the sticky exception flags
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
#else
  return 0;
#endif
}

inline void set_fp_control([[maybe_unused]] std::uint64_t value) noexcept {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(value));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(value));
#endif
}

}  // namespace sk

// Which of LLVM's CPU features this machine has. Only those that generated code may use (`superkernel/target/cpu.py`).
#include <cstring>

#include "library/library.h"
#include "runtime/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace sk::library {

namespace {

#if defined(__x86_64__)

enum Register { kEax, kEbx, kEcx, kEdx };

// Bits of XCR0: what the system keeps for each thread.
constexpr std::uint64_t kNone = 0, kAvx = 0x6, kAvx512 = 0xe6, kTiles = 0x60000;

struct Feature {
  const char* name;
  unsigned leaf;
  unsigned subleaf;
  Register where;
  int bit;
  std::uint64_t kept;
};

// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID; LZCNT: AMD64 volume 3, appendix E.
constexpr Feature kFeatures[] = {
    {"sse4.2", 1, 0, kEcx, 20, kNone},
    {"popcnt", 1, 0, kEcx, 23, kNone},
    {"movbe", 1, 0, kEcx, 22, kNone},
    {"lzcnt", 0x80000001, 0, kEcx, 5, kNone},
    {"bmi", 7, 0, kEbx, 3, kNone},
    {"bmi2", 7, 0, kEbx, 8, kNone},
    {"avx", 1, 0, kEcx, 28, kAvx},
    {"fma", 1, 0, kEcx, 12, kAvx},
    {"f16c", 1, 0, kEcx, 29, kAvx},
    {"avx2", 7, 0, kEbx, 5, kAvx},
    {"avx512f", 7, 0, kEbx, 16, kAvx512},
    {"avx512dq", 7, 0, kEbx, 17, kAvx512},
    {"avx512ifma", 7, 0, kEbx, 21, kAvx512},
    {"avx512cd", 7, 0, kEbx, 28, kAvx512},
    {"avx512bw", 7, 0, kEbx, 30, kAvx512},
    {"avx512vl", 7, 0, kEbx, 31, kAvx512},
    {"avx512vbmi", 7, 0, kEcx, 1, kAvx512},
    {"avx512vbmi2", 7, 0, kEcx, 6, kAvx512},
    {"avx512vnni", 7, 0, kEcx, 11, kAvx512},
    {"avx512bitalg", 7, 0, kEcx, 12, kAvx512},
    {"avx512vpopcntdq", 7, 0, kEcx, 14, kAvx512},
    {"avx512bf16", 7, 1, kEax, 5, kAvx512},
    {"amx-bf16", 7, 0, kEdx, 22, kTiles},
    {"amx-tile", 7, 0, kEdx, 24, kTiles},
    {"amx-int8", 7, 0, kEdx, 25, kTiles},
};

std::uint64_t kept_by_system() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kXgetbv = 1u << 27;  // CPUID 1 ECX, OSXSAVE
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kXgetbv) == 0) return 0;
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return std::uint64_t{edx} << 32 | eax;
}

bool has(const char* name) noexcept {
  static const std::uint64_t kept = kept_by_system();
  for (const Feature& feature : kFeatures) {
    if (std::strcmp(feature.name, name) != 0) continue;
    unsigned found[4] = {};
    if (__get_cpuid_count(feature.leaf, feature.subleaf, &found[kEax], &found[kEbx], &found[kEcx], &found[kEdx]) == 0) {
      return false;
    }
    if ((found[feature.where] >> feature.bit & 1) == 0 || (kept & feature.kept) != feature.kept) return false;
    return feature.kept != kTiles || may_use_tiles();
  }
  return false;
}

#elif defined(__aarch64__)

bool has(const char* name) noexcept {
  constexpr unsigned long kDots = 1ul << 20;  // HWCAP_ASIMDDP
  return std::strcmp(name, "dotprod") == 0 && (getauxval(AT_HWCAP) & kDots) != 0;
}

#else

bool has(const char*) noexcept { return false; }

#endif

}  // namespace

const char* missing_feature(std::span<const char* const> features) noexcept {
  for (const char* name : features) {
    if (!has(name)) return name;
  }
  return nullptr;
}

}  // namespace sk::library

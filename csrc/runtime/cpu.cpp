#include "runtime/cpu.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace sk {

namespace {

constexpr int kMostCpus = 8192;

// The lowest CPU of the physical core that `cpu` belongs to, from the sysfs list "0,4" or "0-1"; `cpu` itself where
// unknown.
int first_sibling(int cpu) {
  char path[96];
  std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return cpu;
  int first = cpu;
  if (std::fscanf(file, "%d", &first) != 1) first = cpu;
  std::fclose(file);
  return first;
}

std::vector<int> affinity() {
  std::vector<int> cpus;
  cpu_set_t* set = CPU_ALLOC(kMostCpus);
  if (set == nullptr) return cpus;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  CPU_ZERO_S(bytes, set);
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
  }
  CPU_FREE(set);
  return cpus;
}

}  // namespace

std::vector<int> allowed_cpus() {
  const std::vector<int> cpus = affinity();
  if (cpus.empty()) return {0};
  // A hardware thread is ranked by how many allowed siblings stand before it: rank 0 is one thread of each core.
  std::vector<int> core_of;
  core_of.reserve(cpus.size());
  for (int cpu : cpus) core_of.push_back(first_sibling(cpu));
  std::vector<std::pair<long, int>> ranked;
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    const auto rank = std::count(core_of.begin(), core_of.begin() + static_cast<std::ptrdiff_t>(i), core_of[i]);
    ranked.emplace_back(rank, cpus[i]);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<int> order;
  for (const auto& [rank, cpu] : ranked) order.push_back(cpu);
  return order;
}

bool may_use_tiles() noexcept {
#if defined(__x86_64__)
  static const bool granted = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned kTiles = 1u << 24;  // CPUID 7.0 EDX
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTiles) == 0) return false;
    constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

}  // namespace sk

// Stress of the runtime without Python, for the thread sanitizer: several threads run several kernels of one to four
// cores, some launches hang and are ended by the watchdog, options change meanwhile. The entries are what generated
// code does, in C++.
//
// `stress_runtime` ends with 0 if all values are right (and the sanitizer is silent). `stress_runtime canary` leaves
// out one wait: the sanitizer must report it, which shows that it looks at all.
#include <superkernel_abi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/cpu.h"
#include "runtime/kernel.h"

namespace {

constexpr int kMostCores = 4;
std::atomic<int> failures{0};

struct Shared {
  std::int64_t cores = 0;
  bool wait = true;
  bool hang = false;  // core 1 does not set its counter
  std::array<std::int64_t, kMostCores * SK_FLAG_STRIDE> values{};
  std::array<std::int64_t, kMostCores> sums{};
};

void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  failures.fetch_add(1);
}

std::int32_t exchange(SkContext* ctx, std::int32_t core) {
  Shared& shared = *reinterpret_cast<Shared*>(ctx->io[0]);
  const std::uint64_t threshold = ctx->epoch + 1;
  ++shared.values[static_cast<std::size_t>(core) * SK_FLAG_STRIDE];
  if (!(shared.hang && core == 1)) {
    std::atomic_ref(ctx->flags[core * SK_FLAG_STRIDE]).store(threshold, std::memory_order_release);
  }
  std::int64_t sum = 0;
  for (std::int32_t p = 0; p < shared.cores; ++p) {
    std::uint32_t spins = 0;
    while (shared.wait && std::atomic_ref(ctx->flags[p * SK_FLAG_STRIDE]).load(std::memory_order_acquire) < threshold) {
      sk::cpu_relax();
      if (++spins < ctx->spin_limit) continue;
      if (ctx->wait_slow(ctx, core, p, threshold, p) != 0) return 1;
      spins = 0;
    }
    sum += shared.values[static_cast<std::size_t>(p) * SK_FLAG_STRIDE];
  }
  shared.sums[static_cast<std::size_t>(core)] = sum;
  return 0;
}

std::unique_ptr<sk::Kernel> make_kernel(int cores) {
  sk::KernelConfig config;
  config.entry = exchange;
  config.cores = cores;
  config.io_count = 1;
  config.sets.assign(static_cast<std::size_t>(cores), 1);
  return sk::Kernel::create(std::move(config));
}

void work(int cores, int rounds, bool hangs) {
  Shared shared;
  shared.cores = cores;
  const auto kernel = make_kernel(cores);
  const std::array<std::uint8_t*, 1> io{reinterpret_cast<std::uint8_t*>(&shared)};
  for (int round = 1; round <= rounds; ++round) {
    shared.hang = hangs && round % 50 == 0;
    const auto reason = kernel->run(io, {.watchdog_ns = shared.hang ? 3'000'000 : 60'000'000'000, .hooks = {}});
    expect(reason == (shared.hang ? sk::AbortReason::kWatchdog : sk::AbortReason::kNone), "outcome of a run");
    if (shared.hang) continue;
    for (int core = 0; core < cores; ++core) {
      expect(shared.sums[static_cast<std::size_t>(core)] == std::int64_t{cores} * round, "sum seen by a core");
    }
  }
}

int stress() {
  std::vector<std::thread> threads;
  for (int cores = 1; cores <= kMostCores; ++cores) threads.emplace_back(work, cores, 300, cores > 1);
  threads.emplace_back([] {
    for (int i = 0; i < 50; ++i) {
      sk::pool_options().pin = i % 2 != 0;
      sk::pool_options().spin_ns = i % 3 * 20'000;
      sk::Pool::instance().apply_pinning();
      expect(sk::Pool::instance().info().threads < kMostCores, "number of workers");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  for (std::thread& thread : threads) thread.join();
  return failures.load() == 0 ? 0 : 1;
}

// A kernel whose cores read what the others write without waiting.
int canary() {
  Shared shared;
  shared.cores = 2;
  shared.wait = false;
  const auto kernel = make_kernel(2);
  const std::array<std::uint8_t*, 1> io{reinterpret_cast<std::uint8_t*>(&shared)};
  for (int round = 0; round < 2000; ++round) kernel->run(io, {});
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return argc > 1 && std::strcmp(argv[1], "canary") == 0 ? canary() : stress(); }

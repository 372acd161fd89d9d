#include "bench/limits.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "runtime/clock.h"
#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

namespace sk {

namespace {

constexpr int kTrials = 7;
constexpr std::int64_t kFmaSteps = 20'000;  // loop turns of one FMA burst: tens of microseconds
constexpr int kFmaChains = 12;              // independent sums: latency 4 times two units, and some to spare
constexpr int kPingPongs = 10'000;

// An FMA burst returns a value that depends on every step; lanes() says how many floats a step of one chain handles.
struct FmaBurst {
  float (*run)(std::int64_t steps, float seed);
  int lanes;
};

// Sums a whole number of 256-byte blocks.
using ReadSum = std::uint64_t (*)(const std::uint8_t* data, std::size_t bytes);

// Makes the compiler believe that the value is used.
template <typename T>
void consume(T value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) float fma_avx512(std::int64_t steps, float seed) {
  __m512 sum[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) sum[i] = _mm512_set1_ps(seed + static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.5f), term = _mm512_set1_ps(seed);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kFmaChains; ++i) sum[i] = _mm512_fmadd_ps(sum[i], factor, term);
  }
  for (int i = 1; i < kFmaChains; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  return _mm512_cvtss_f32(sum[0]);
}

__attribute__((target("avx2,fma"))) float fma_avx2(std::int64_t steps, float seed) {
  __m256 sum[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) sum[i] = _mm256_set1_ps(seed + static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.5f), term = _mm256_set1_ps(seed);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kFmaChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], factor, term);
  }
  for (int i = 1; i < kFmaChains; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  return _mm256_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f"))) std::uint64_t read_avx512(const std::uint8_t* data, std::size_t bytes) {
  __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  for (std::size_t at = 0; at < bytes; at += 256) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(data + at + 64 * i));
  }
  alignas(64) std::uint64_t words[8];
  const __m512i left = _mm512_xor_si512(sum[0], sum[1]), right = _mm512_xor_si512(sum[2], sum[3]);
  _mm512_store_si512(words, _mm512_xor_si512(left, right));
  return words[0] + words[7];
}

__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::uint8_t* data, std::size_t bytes) {
  __m256i sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (std::size_t at = 0; at < bytes; at += 256) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      sum[i] = _mm256_xor_si256(sum[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
    }
  }
  for (int i = 1; i < 8; ++i) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sum[0], 0));
}

#endif

#if defined(__aarch64__)

float fma_generic(std::int64_t steps, float seed) {
  float32x4_t sum[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) sum[i] = vdupq_n_f32(seed + static_cast<float>(i));
  const float32x4_t factor = vdupq_n_f32(0.5f), term = vdupq_n_f32(seed);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kFmaChains; ++i) sum[i] = vfmaq_f32(sum[i], term, factor);
  }
  for (int i = 1; i < kFmaChains; ++i) sum[0] = vaddq_f32(sum[0], sum[i]);
  return vgetq_lane_f32(sum[0], 0);
}

#else

// Four floats, multiplied and added: what the baseline instruction set does without a fused unit.
float fma_generic(std::int64_t steps, float seed) {
  using Lanes = float __attribute__((vector_size(16)));
  Lanes sum[kFmaChains];
  for (int i = 0; i < kFmaChains; ++i) sum[i] = Lanes{seed, seed, seed, seed} + static_cast<float>(i);
  const Lanes term = {seed, seed, seed, seed};
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kFmaChains; ++i) sum[i] = sum[i] * 0.5f + term;
  }
  for (int i = 1; i < kFmaChains; ++i) sum[0] += sum[i];
  return sum[0][0];
}

#endif

std::uint64_t read_generic(const std::uint8_t* data, std::size_t bytes) {
  using Words = std::uint64_t __attribute__((vector_size(16)));
  Words sum[4] = {};
  for (std::size_t at = 0; at < bytes; at += 64) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) sum[i] ^= *reinterpret_cast<const Words*>(data + at + 16 * i);
  }
  sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
  return sum[0][0] + sum[0][1];
}

FmaBurst pick_fma() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {fma_avx512, 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {fma_avx2, 8};
#endif
  return {fma_generic, 4};
}

ReadSum pick_read() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_generic;
}

// Jobs of the pool get their data behind the context pointer.
struct ReadTask {
  SkContext ctx;
  const std::uint8_t* data;
  std::size_t share;
  int passes;
  ReadSum sum;
};

std::int32_t read_entry(SkContext* ctx, std::int32_t core) {
  const auto& task = *reinterpret_cast<const ReadTask*>(ctx);
  const std::uint8_t* mine = task.data + static_cast<std::size_t>(core) * task.share;
  std::uint64_t sum = 0;
  for (int pass = 0; pass < task.passes; ++pass) sum += task.sum(mine, task.share);
  consume(sum);
  return 0;
}

struct PingPongTask {
  SkContext ctx;
  alignas(kApartBytes) std::atomic<std::uint64_t> ball{0};
  alignas(kApartBytes) std::int64_t elapsed_ns = 0;
};

void await_ball(const std::atomic<std::uint64_t>& ball, std::uint64_t value) {
  for (int spins = 0; ball.load(std::memory_order_acquire) != value; ++spins) {
    if (spins > 100'000) sched_yield();  // the other side lost its CPU
  }
}

// Core 0 makes the ball odd, core 1 even again.
std::int32_t ping_pong_entry(SkContext* ctx, std::int32_t core) {
  auto& task = *reinterpret_cast<PingPongTask*>(ctx);
  const std::int64_t start = now_ns();
  for (std::uint64_t turn = 0; turn < kPingPongs; ++turn) {
    if (core == 0) {
      task.ball.store(2 * turn + 1, std::memory_order_release);
      await_ball(task.ball, 2 * turn + 2);
    } else {
      await_ball(task.ball, 2 * turn + 1);
      task.ball.store(2 * turn + 2, std::memory_order_release);
    }
  }
  if (core == 0) task.elapsed_ns = now_ns() - start;
  return 0;
}

}  // namespace

double measure_fma_peak_f32(double ms) {
  const FmaBurst burst = pick_fma();
  const double flops = 2.0 * static_cast<double>(kFmaSteps) * kFmaChains * burst.lanes;
  const std::int64_t end = now_ns() + static_cast<std::int64_t>(std::max(ms, 0.0) * 1e6);
  double best = 0.0;
  do {
    const std::int64_t start = now_ns();
    consume(burst.run(kFmaSteps, 1.0f));
    best = std::max(best, flops / static_cast<double>(std::max<std::int64_t>(now_ns() - start, 1)));
  } while (now_ns() < end);
  return best;
}

double measure_read_bandwidth(std::size_t bytes, int threads) {
  constexpr std::size_t kBlock = 256;
  const auto count = static_cast<std::size_t>(threads);
  const std::size_t share = std::max(bytes / count / kBlock, std::size_t{1}) * kBlock;
  AlignedBuffer buffer;
  if (!buffer.allocate(share * count, 64)) return -1.0;
  std::fill_n(buffer.data(), share * count, std::uint8_t{1});  // real pages, not the shared zero page
  constexpr std::size_t kLeastBytes = std::size_t{8} << 20;  // per trial and thread, so that the launch does not count
  const int passes = static_cast<int>(std::max<std::size_t>(kLeastBytes / share, 1));
  ReadTask task{.ctx = {}, .data = buffer.data(), .share = share, .passes = passes, .sum = pick_read()};
  const Job job{.entry = read_entry, .single = nullptr, .ctx = &task.ctx, .subop = 0};
  double best = 0.0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::int64_t start = now_ns();
    if (Pool::instance().launch(job, threads) != LaunchStatus::kDone) return -1.0;
    const double total = static_cast<double>(share) * static_cast<double>(passes) * static_cast<double>(threads);
    best = std::max(best, total / static_cast<double>(std::max<std::int64_t>(now_ns() - start, 1)));
  }
  return best;
}

double measure_core_to_core_ns() {
  if (allowed_cpus().size() < 2) return std::numeric_limits<double>::quiet_NaN();
  double best = std::numeric_limits<double>::infinity();
  for (int trial = 0; trial < kTrials; ++trial) {
    PingPongTask task{};
    const Job job{.entry = ping_pong_entry, .single = nullptr, .ctx = &task.ctx, .subop = 0};
    if (Pool::instance().launch(job, 2) != LaunchStatus::kDone) return -1.0;
    best = std::min(best, static_cast<double>(task.elapsed_ns) / (2.0 * kPingPongs));
  }
  return best;
}

}  // namespace sk

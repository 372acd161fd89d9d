#include "probe/loops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "runtime/cpu.h"

namespace sk {

namespace {

constexpr int kChains = 12;  // independent sums: latency 4 times two units, and some to spare

// Makes the compiler believe that the value is used.
template <typename T>
void consume(T value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

// As `consume`, of a value that stays in a vector register.
template <typename T>
void keep(T& value) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(value));
#else
  asm volatile("" : "+w"(value));
#endif
}

using Floats = float __attribute__((vector_size(16)));
using Words = std::uint64_t __attribute__((vector_size(16)));

// Four floats, multiplied and added: what the baseline instruction set does.
void multiply_add_plain(std::int64_t steps) {
  Floats sum[kChains] = {}, factor = {0.5f, 0.5f, 0.5f, 0.5f}, term = {1.0f, 1.0f, 1.0f, 1.0f};
  keep(factor);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
#if defined(__aarch64__)
      sum[i] = (Floats)vfmaq_f32((float32x4_t)term, (float32x4_t)sum[i], (float32x4_t)factor);
#else
      sum[i] = sum[i] * factor + term;
#endif
      keep(sum[i]);
    }
  }
}

void read_plain(const std::uint8_t* data, std::size_t bytes) {
  Words sum[4] = {};
  for (std::size_t at = 0; at < bytes; at += 64) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) sum[i] ^= *reinterpret_cast<const Words*>(data + at + 16 * i);
  }
  sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
  consume(sum[0][0] + sum[0][1]);
}

#if defined(__x86_64__)

// Of wider ones: clang knows their registers only where the instruction set is on.
__attribute__((target("avx512f"))) inline void keep(__m512& value) { asm volatile("" : "+v"(value)); }
__attribute__((target("avx512f"))) inline void keep(__m512i& value) { asm volatile("" : "+v"(value)); }
__attribute__((target("avx2"))) inline void keep(__m256& value) { asm volatile("" : "+v"(value)); }
__attribute__((target("avx2"))) inline void keep(__m256i& value) { asm volatile("" : "+v"(value)); }

__attribute__((target("avx512f"))) void multiply_add_avx512(std::int64_t steps) {
  __m512 sum[kChains];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  const __m512 factor = _mm512_set1_ps(0.5f), term = _mm512_set1_ps(1.0f);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(sum[i], factor, term);
  }
  for (__m512& s : sum) keep(s);
}

__attribute__((target("avx2,fma"))) void multiply_add_avx2(std::int64_t steps) {
  __m256 sum[kChains];
  for (__m256& s : sum) s = _mm256_setzero_ps();
  const __m256 factor = _mm256_set1_ps(0.5f), term = _mm256_set1_ps(1.0f);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], factor, term);
  }
  for (__m256& s : sum) keep(s);
}

__attribute__((target("avx512f,avx512bf16"))) void dot_bf16(std::int64_t steps) {
  __m512 sum[kChains];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  const __m512bh left = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f));
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], left, left);
  }
  for (__m512& s : sum) keep(s);
}

__attribute__((target("avx512f,avx512vnni"))) void dot_int8(std::int64_t steps) {
  __m512i sum[kChains];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  const __m512i left = _mm512_set1_epi8(1);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], left, left);
  }
  for (__m512i& s : sum) keep(s);
}

__attribute__((target("avx512f"))) void read_avx512(const std::uint8_t* data, std::size_t bytes) {
  __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  for (std::size_t at = 0; at < bytes; at += kReadBlock) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(data + at + 64 * i));
  }
  for (__m512i& s : sum) keep(s);
}

__attribute__((target("avx2"))) void read_avx2(const std::uint8_t* data, std::size_t bytes) {
  __m256i sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (std::size_t at = 0; at < bytes; at += kReadBlock) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      sum[i] = _mm256_xor_si256(sum[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
    }
  }
  for (__m256i& s : sum) keep(s);
}

// ---- AMX: four sums, two tiles of either factor, all of 16 rows of 64 bytes; factors are loaded for each step, from
// the first-level cache, as kernels do

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

alignas(64) const std::uint8_t kFactors[4][1024] = {};

#define SK_FOUR_PRODUCTS(product)  \
  _tile_loadd(4, kFactors[0], 64); \
  _tile_loadd(5, kFactors[1], 64); \
  _tile_loadd(6, kFactors[2], 64); \
  product(0, 4, 6);                \
  product(2, 5, 6);                \
  _tile_loadd(7, kFactors[3], 64); \
  product(1, 4, 7);                \
  product(3, 5, 7)

__attribute__((target("amx-tile"))) void load_tiles() {
  const TileConfig config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

__attribute__((target("amx-tile,amx-bf16"))) void tiles_bf16(std::int64_t steps) {
  load_tiles();
  for (std::int64_t step = 0; step < steps; ++step) {
    SK_FOUR_PRODUCTS(_tile_dpbf16ps);
  }
  _tile_release();
}

__attribute__((target("amx-tile,amx-int8"))) void tiles_int8(std::int64_t steps) {
  load_tiles();
  for (std::int64_t step = 0; step < steps; ++step) {
    SK_FOUR_PRODUCTS(_tile_dpbssd);
  }
  _tile_release();
}

// Whether tiles can be multiplied as the bit of CPUID 7.0 EDX says.
bool has_tiles(int bit) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && ((edx >> bit) & 1u) != 0 && may_use_tiles();
}

#endif

}  // namespace

Burst burst_of(std::string_view kind) {
  constexpr double kTwo = 2.0 * kChains;
#if defined(__x86_64__)
  constexpr int kAmxBf16 = 22, kAmxInt8 = 25;
  if (kind == "avx512" && __builtin_cpu_supports("avx512f")) return {multiply_add_avx512, kTwo * 16};
  if (kind == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {multiply_add_avx2, kTwo * 8};
  }
  if (kind == "bf16" && __builtin_cpu_supports("avx512bf16")) return {dot_bf16, kTwo * 32};
  if (kind == "int8" && __builtin_cpu_supports("avx512vnni")) return {dot_int8, kTwo * 64};
  if (kind == "amx_bf16" && has_tiles(kAmxBf16)) return {tiles_bf16, 2.0 * 4 * 16 * 16 * 32};
  if (kind == "amx_int8" && has_tiles(kAmxInt8)) return {tiles_int8, 2.0 * 4 * 16 * 16 * 64};
#endif
  if (kind == "plain") return {multiply_add_plain, kTwo * 4};
  return {};
}

ReadLoop read_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_plain;
}

}  // namespace sk

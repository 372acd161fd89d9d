// Elements as lanes: every command computes on blocks of f32 or 32-bit integers, whatever the type in memory.
//
// Model: a block is a short array on the stack; elements are loaded into it, the operation runs over it in a loop that
// the compiler turns into vectors, and the result is rounded and stored. A block is read as a whole before it is
// written, which makes operations in place right; rows behind one another are treated as one.
//
// Invariant: operations on single lanes are correctly rounded IEEE operations and integer arithmetic, so that the bits
// do not depend on the instruction set.

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;

constexpr std::size_t kBlock = 512;
constexpr u32 kNan = 0x7fc00000;

template <class Lane>
struct alignas(64) Block {
  Lane lane[kBlock];
};

inline u32 bits_of(float x) { return std::bit_cast<u32>(x); }
inline float float_of(u32 bits) { return std::bit_cast<float>(bits); }
inline float canonical(float x) { return x != x ? float_of(kNan) : x; }

// ---- f16 and bf16 -------------------------------------------------------------------------------------------------

// Exact. Subnormals become normal in the multiplication by 2^112.
inline float float_of_half(u16 half) {
  const u32 magnitude = u32{half & 0x7fffu} << 13;
  const u32 scaled = bits_of(float_of(magnitude) * 0x1p112f);
  const u32 special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return float_of(scaled | special | u32{half & 0x8000u} << 16);
}

// To nearest even. NaN keeps nothing but its sign: callers make it canonical first.
inline u16 half_of_float(float x) {
  const u32 bits = bits_of(x);
  const u32 magnitude = bits & 0x7fffffffu;
  // Adding 0.5 puts the last place of a subnormal half at the last place of the sum, which the addition rounds.
  const u32 small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const u32 normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const u32 large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const u32 finite = magnitude < 0x38800000u ? small : normal;
  return static_cast<u16>((magnitude >= 0x47800000u ? large : finite) | (bits >> 16 & 0x8000u));
}

inline u16 brain_of_float(float x) {
  const u32 bits = bits_of(x);
  return static_cast<u16>(x != x ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#if SK_F16C
inline void floats_of_halves(const u8* from, float* lane, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(static_cast<const __m128i*>(static_cast<const void*>(from + 2 * i)));
    _mm256_storeu_ps(lane + i, _mm256_cvtph_ps(halves));
  }
  for (; i < n; ++i) {
    u16 half;
    std::memcpy(&half, from + 2 * i, sizeof half);
    lane[i] = float_of_half(half);
  }
}
inline void halves_of_floats(const float* lane, u8* to, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(lane + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(static_cast<__m128i*>(static_cast<void*>(to + 2 * i)), halves);
  }
  for (; i < n; ++i) {
    const u16 half = half_of_float(lane[i]);
    std::memcpy(to + 2 * i, &half, sizeof half);
  }
}
#else
inline void floats_of_halves(const u8* from, float* lane, std::size_t n) {
  alignas(64) u16 half[kBlock];
  std::memcpy(half, from, n * sizeof(u16));
  for (std::size_t i = 0; i < n; ++i) lane[i] = float_of_half(half[i]);
}
inline void halves_of_floats(const float* lane, u8* to, std::size_t n) {
  alignas(64) u16 half[kBlock];
  for (std::size_t i = 0; i < n; ++i) half[i] = half_of_float(lane[i]);
  std::memcpy(to, half, n * sizeof(u16));
}
#endif

inline void floats_of_brains(const u8* from, float* lane, std::size_t n) {
  alignas(64) u16 brain[kBlock];
  std::memcpy(brain, from, n * sizeof(u16));
  for (std::size_t i = 0; i < n; ++i) lane[i] = float_of(u32{brain[i]} << 16);
}
inline void brains_of_floats(const float* lane, u8* to, std::size_t n) {
  alignas(64) u16 brain[kBlock];
  for (std::size_t i = 0; i < n; ++i) brain[i] = brain_of_float(lane[i]);
  std::memcpy(to, brain, n * sizeof(u16));
}

// ---- between memory and lanes -------------------------------------------------------------------------------------

// Loads and stores take at most kBlock elements. They go through typed arrays, which loops become vectors over.
template <class Element, class Lane>
void widen(const u8* from, Lane* lane, std::size_t n) {
  alignas(64) Element element[kBlock];
  std::memcpy(element, from, n * sizeof(Element));
  for (std::size_t i = 0; i < n; ++i) lane[i] = static_cast<Lane>(element[i]);
}

template <class Element>
void narrow(const i32* lane, u8* to, std::size_t n) {
  alignas(64) Element element[kBlock];
  for (std::size_t i = 0; i < n; ++i) element[i] = static_cast<Element>(lane[i]);
  std::memcpy(to, element, n * sizeof(Element));
}

// Integers are rounded to nearest even where f32 cannot hold them.
inline void load(ElementType type, const u8* from, float* lane, std::size_t n) {
  switch (type) {
    case ElementType::f16:
      return floats_of_halves(from, lane, n);
    case ElementType::bf16:
      return floats_of_brains(from, lane, n);
    case ElementType::i32:
      return widen<i32>(from, lane, n);
    case ElementType::i16:
      return widen<std::int16_t>(from, lane, n);
    case ElementType::i8:
      return widen<std::int8_t>(from, lane, n);
    case ElementType::u8:
      return widen<u8>(from, lane, n);
    default:
      std::memcpy(lane, from, 4 * n);
  }
}

inline void load(ElementType type, const u8* from, i32* lane, std::size_t n) {
  switch (type) {
    case ElementType::i16:
    case ElementType::f16:  // as bits
      return widen<std::int16_t>(from, lane, n);
    case ElementType::i8:
      return widen<std::int8_t>(from, lane, n);
    case ElementType::u8:
      return widen<u8>(from, lane, n);
    default:
      std::memcpy(lane, from, 4 * n);
  }
}

// To f32, f16 or bf16, rounded to nearest even, NaN canonical. The lanes are changed.
inline void store(ElementType type, float* lane, u8* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) lane[i] = canonical(lane[i]);
  if (type == ElementType::f16) return halves_of_floats(lane, to, n);
  if (type == ElementType::bf16) return brains_of_floats(lane, to, n);
  std::memcpy(to, lane, 4 * n);
}

// The low bits of each lane.
inline void store(ElementType type, const i32* lane, u8* to, std::size_t n) {
  const u64 item = bytes_of(type);
  if (item == 2) return narrow<u16>(lane, to, n);
  if (item == 1) return narrow<u8>(lane, to, n);
  std::memcpy(to, lane, 4 * n);
}

// ---- operations on a lane -----------------------------------------------------------------------------------------

// a * b + c, rounded once.
inline float fused(float a, float b, float c) {
#if SK_FMA
  return __builtin_fmaf(a, b, c);
#else
  // The product is exact in double. The sum is rounded to odd there: it has more than two bits to spare, so that the
  // second rounding sees all that it must know.
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  const double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  const u64 bits = std::bit_cast<u64>(sum);
  const bool adjust = error != 0 && sum - sum == 0 && (bits & 1) == 0;
  const bool away = (error > 0) == (sum > 0);
  const u64 odd = away ? bits + 1 : bits - 1;
  return static_cast<float>(std::bit_cast<double>(adjust ? odd : bits));
#endif
}

// The order of numbers as the order of integers: -0 below +0.
inline i32 order_of(float x) {
  const auto bits = std::bit_cast<i32>(x);
  return bits ^ static_cast<i32>(static_cast<u32>(bits >> 31) >> 1);
}
inline float of_order(i32 order) {
  return std::bit_cast<float>(order ^ static_cast<i32>(static_cast<u32>(order >> 31) >> 1));
}

inline float larger_of(float a, float b) {
  const i32 x = order_of(a), y = order_of(b);
  return a != a || b != b ? float_of(kNan) : of_order(x > y ? x : y);
}
inline float smaller_of(float a, float b) {
  const i32 x = order_of(a), y = order_of(b);
  return a != a || b != b ? float_of(kNan) : of_order(x < y ? x : y);
}
inline i32 larger_of(i32 a, i32 b) { return a > b ? a : b; }
inline i32 smaller_of(i32 a, i32 b) { return a < b ? a : b; }

// Modulo 2^32.
inline i32 wrapped_add(i32 a, i32 b) { return static_cast<i32>(static_cast<u32>(a) + static_cast<u32>(b)); }
inline i32 wrapped_sub(i32 a, i32 b) { return static_cast<i32>(static_cast<u32>(a) - static_cast<u32>(b)); }
inline i32 wrapped_mul(i32 a, i32 b) { return static_cast<i32>(static_cast<u32>(a) * static_cast<u32>(b)); }

// ---- exp and ln ---------------------------------------------------------------------------------------------------
// In double without fused operations: far closer than a last place of f32, and the same bits everywhere.

// e^x = 2^n e^r with |r| <= ln(2) / 2; the series of e^r to r^11, whose remainder is below 2^-45 of the result.
inline float exp_of(float value) {
  constexpr double kShift = 0x1.8p52;  // adding it rounds to a whole number, which then stands in the low bits
  const double wide = value;
  const double x = wide > 100 ? 100.0 : (wide < -120 ? -120.0 : wide);  // e^100 is infinite in f32, e^-120 is 0
  const double shifted = x * 0x1.71547652b82fep0 + kShift;
  const double n = shifted - kShift;
  const double r = (x - n * 0x1.62e42fefa0000p-1) - n * 0x1.cf79abc9e3b39p-40;
  double p = 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const double power = std::bit_cast<double>((std::bit_cast<u64>(shifted) + 1023) << 52);
  return static_cast<float>(p * power);
}

// x = 2^e m with m from sqrt(1/2) to sqrt(2); ln m = 2 atanh(s), s = (m - 1) / (m + 1); the series to s^19.
inline float ln_of(float value) {
  constexpr u64 kSqrtHalf = 0x3fe6a09e667f3bcd;
  constexpr u64 kFraction = (u64{1} << 52) - 1;
  const double x = value;  // subnormals of f32 are normal here
  const u64 bits = std::bit_cast<u64>(x);
  const u64 steps = bits - kSqrtHalf;
  const auto exponent = static_cast<std::int64_t>(steps) >> 52;
  // The whole number as double, by bits: a conversion of 64-bit integers is not in every instruction set.
  const double e = std::bit_cast<double>(static_cast<u64>(exponent) + std::bit_cast<u64>(0x1.8p52)) - 0x1.8p52;
  const double m = std::bit_cast<double>((steps & kFraction) + kSqrtHalf);
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  p = p * z + 1.0;
  const auto normal = static_cast<float>(e * 0x1.62e42fefa39efp-1 + 2.0 * s * p);
  const float special = value == 0.0f ? -std::numeric_limits<float>::infinity() : value;  // +infinity and NaN stay
  const float positive = value > 0.0f && value <= std::numeric_limits<float>::max() ? normal : special;
  return value < 0.0f ? float_of(kNan) : positive;
}

// IEEE 754 binary32 and binary64 arithmetic as RISC-V defines it, on integers only.
//
// Model: values are bit patterns (std::uint32_t, std::uint64_t). Every operation rounds once, by `Env::mode`, and
// raises flags in `Env::flags` with RISC-V's numbering. NaN results are the canonical NaN; underflow is detected after
// rounding, as the specification demands.
//
// Invariant: the host's floating-point unit is never used, so that neither its rounding mode, nor flush-to-zero, nor
// the compiler's options can change a result. NaN boxing is not known here: see float.cpp.
#pragma once

#include <cstdint>

namespace sk::sim::fp {

inline constexpr std::uint32_t kInexact = 1;
inline constexpr std::uint32_t kUnderflow = 2;
inline constexpr std::uint32_t kOverflow = 4;
inline constexpr std::uint32_t kDivideByZero = 8;
inline constexpr std::uint32_t kInvalid = 16;

// The numbers are those of the instructions' rm field.
enum class Rounding : std::uint8_t { nearest_even, toward_zero, down, up, nearest_away };

struct Env {
  Rounding mode = Rounding::nearest_even;
  std::uint32_t flags = 0;
};

template <class U>
struct Format;
template <>
struct Format<std::uint32_t> {
  static constexpr int kFractionBits = 23;
  static constexpr int kExponentBits = 8;
};
template <>
struct Format<std::uint64_t> {
  static constexpr int kFractionBits = 52;
  static constexpr int kExponentBits = 11;
};

template <class U>
inline constexpr U kSignBit = U{1} << (8 * sizeof(U) - 1);
template <class U>
inline constexpr U kInfinity = ((U{1} << Format<U>::kExponentBits) - 1) << Format<U>::kFractionBits;
template <class U>
inline constexpr U kCanonicalNan = kInfinity<U> | U{1} << (Format<U>::kFractionBits - 1);

template <class U>
U add(U a, U b, Env& env);
template <class U>
U mul(U a, U b, Env& env);
template <class U>
U div(U a, U b, Env& env);
template <class U>
U sqrt(U a, Env& env);
// a * b + c, rounded once. Infinity times zero is invalid even where c is a quiet NaN.
template <class U>
U fma(U a, U b, U c, Env& env);

// minimumNumber and maximumNumber: a NaN loses against a number, -0 is less than +0.
template <class U>
U min(U a, U b, Env& env);
template <class U>
U max(U a, U b, Env& env);

template <class U>
bool equal(U a, U b, Env& env);  // quiet: invalid for signaling NaNs only
template <class U>
bool less(U a, U b, Env& env);  // signaling: invalid for every NaN
template <class U>
bool less_equal(U a, U b, Env& env);

// The ten-bit mask of FCLASS: bit 0 -infinity, 1 negative normal, 2 negative subnormal, 3 -0, 4 +0, 5 subnormal,
// 6 normal, 7 +infinity, 8 signaling NaN, 9 quiet NaN.
template <class U>
std::uint64_t classify(U a);

// Rounds to an integer of `bits` (32 or 64); out of range and NaN: invalid, saturated (NaN as the largest). 32-bit
// results, the unsigned ones too, come sign-extended to 64 bits.
template <class U>
std::uint64_t to_integer(U a, int bits, bool is_signed, Env& env);
// From a 64-bit integer; 32-bit sources are extended by the caller.
template <class U>
U from_integer(std::uint64_t value, bool is_signed, Env& env);
// Between the two formats.
template <class To, class From>
To convert(From a, Env& env);

}  // namespace sk::sim::fp

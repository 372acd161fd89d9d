// See softfloat.h.
//
// A finite number is unpacked to sign, exponent and a 64-bit significand whose top bit is set: value = significand /
// 2^63
// * 2^exponent. Sums and products are carried in 128 bits, value = bits / 2^125 * 2^exponent, bits lost on the way
// right being or-ed into bit 0 (a sticky bit). For both formats at least 21 low bits of an exact product are zero, so a
// sticky bit arises only where the operands' exponents are so far apart that no cancellation can bring it up to the
// rounding position.
#include "sim/softfloat.h"

#include <bit>
#include <initializer_list>

namespace sk::sim::fp {
namespace {

__extension__ using u128 = unsigned __int128;

enum class Kind : std::uint8_t { zero, finite, infinite, quiet_nan, signaling_nan };

struct Unpacked {
  Kind kind;
  bool sign;
  int exponent;
  std::uint64_t significand;

  bool nan() const { return kind >= Kind::quiet_nan; }
};

template <class U>
inline constexpr int kBias = (1 << (Format<U>::kExponentBits - 1)) - 1;
template <class U>
inline constexpr int kExponentMax = (1 << Format<U>::kExponentBits) - 1;
template <class U>
inline constexpr U kFractionMask = (U{1} << Format<U>::kFractionBits) - 1;

template <class U>
U with_sign(bool sign, U magnitude) {
  return sign ? magnitude | kSignBit<U> : magnitude;
}

template <class U>
Unpacked unpack(U a) {
  constexpr int kBits = Format<U>::kFractionBits;
  const std::uint64_t fraction = a & kFractionMask<U>;
  const int biased = static_cast<int>(a >> kBits) & kExponentMax<U>;
  const bool sign = (a & kSignBit<U>) != 0;
  if (biased == kExponentMax<U>) {
    if (fraction == 0) return {Kind::infinite, sign, 0, 0};
    return {(fraction >> (kBits - 1)) != 0 ? Kind::quiet_nan : Kind::signaling_nan, sign, 0, 0};
  }
  if (biased == 0) {
    if (fraction == 0) return {Kind::zero, sign, 0, 0};
    const int shift = std::countl_zero(fraction);
    return {Kind::finite, sign, 64 - shift - kBias<U> - kBits, fraction << shift};
  }
  return {Kind::finite, sign, biased - kBias<U>, (fraction | std::uint64_t{1} << kBits) << (63 - kBits)};
}

// Right shift that keeps the fact that something was lost in bit 0.
template <class T>
T shift_right_sticky(T value, int count) {
  if (count <= 0) return value;
  constexpr int kWidth = 8 * sizeof(T);
  if (count >= kWidth) return value != 0 ? T{1} : T{0};
  return value >> count | T{(value << (kWidth - count)) != 0};
}

// Whether the magnitude above `rest` grows by one: `rest` is what is cut off, `half` half a unit of what stays.
bool rounds_up(bool sign, bool odd, std::uint64_t rest, std::uint64_t half, Rounding mode) {
  switch (mode) {
    case Rounding::nearest_even:
      return rest > half || (rest == half && odd);
    case Rounding::nearest_away:
      return rest >= half;
    case Rounding::down:
      return sign && rest != 0;
    case Rounding::up:
      return !sign && rest != 0;
    case Rounding::toward_zero:
      break;
  }
  return false;
}

template <class U>
U overflowed(bool sign, Env& env) {
  env.flags |= kOverflow | kInexact;
  const bool to_infinity = env.mode == Rounding::nearest_even || env.mode == Rounding::nearest_away ||
                           (env.mode == Rounding::down && sign) || (env.mode == Rounding::up && !sign);
  return with_sign<U>(sign, to_infinity ? kInfinity<U> : kInfinity<U> - 1);
}

// Rounds significand / 2^63 * 2^exponent; the top bit of the significand is set, bit 0 may be sticky.
template <class U>
U round_pack(bool sign, int exponent, std::uint64_t significand, Env& env) {
  constexpr int kBits = Format<U>::kFractionBits;
  constexpr int kDropped = 63 - kBits;
  constexpr std::uint64_t kRestMask = (std::uint64_t{1} << kDropped) - 1;
  constexpr std::uint64_t kHalf = std::uint64_t{1} << (kDropped - 1);
  const auto rounded = [&](std::uint64_t bits) {
    const std::uint64_t kept = bits >> kDropped;
    return kept + (rounds_up(sign, (kept & 1) != 0, bits & kRestMask, kHalf, env.mode) ? 1 : 0);
  };
  int biased = exponent + kBias<U>;
  bool tiny = false;
  if (biased <= 0) {
    // Tiny after rounding: not tiny only where rounding with unlimited exponents reaches the smallest normal number.
    tiny = biased < 0 || rounded(significand) >> (kBits + 1) == 0;
    significand = shift_right_sticky(significand, 1 - biased);
    biased = 0;
  }
  if (biased >= kExponentMax<U>) return overflowed<U>(sign, env);
  const std::uint64_t kept = rounded(significand);
  // `kept` of a normal number holds the leading one, which adds 1 to the exponent field; so does a carry out of it.
  const std::uint64_t field = biased > 0 ? static_cast<std::uint64_t>(biased - 1) : 0;
  const U magnitude = static_cast<U>((field << kBits) + kept);
  if (magnitude >= kInfinity<U>) return overflowed<U>(sign, env);
  if ((significand & kRestMask) != 0) env.flags |= tiny ? kInexact | kUnderflow : kInexact;
  return with_sign<U>(sign, magnitude);
}

// A nonzero magnitude bits / 2^125 * 2^exponent.
struct Wide {
  bool sign;
  int exponent;
  u128 bits;
};

Wide widen(const Unpacked& a) { return {a.sign, a.exponent, u128{a.significand} << 62}; }

Wide product(const Unpacked& a, const Unpacked& b) {
  return {a.sign != b.sign, a.exponent + b.exponent, (u128{a.significand} * b.significand) >> 1};
}

template <class U>
U round_wide(const Wide& a, Env& env) {
  const auto high = static_cast<std::uint64_t>(a.bits >> 64);
  const int top = high != 0 ? 127 - std::countl_zero(high)  // number of the highest set bit
                            : 63 - std::countl_zero(static_cast<std::uint64_t>(a.bits));
  const u128 normal = top > 63 ? shift_right_sticky(a.bits, top - 63) : a.bits << (63 - top);
  return round_pack<U>(a.sign, a.exponent + top - 125, static_cast<std::uint64_t>(normal), env);
}

template <class U>
U add_wide(Wide a, Wide b, Env& env) {
  if (a.exponent < b.exponent) {
    a.bits = shift_right_sticky(a.bits, b.exponent - a.exponent);
    a.exponent = b.exponent;
  } else {
    b.bits = shift_right_sticky(b.bits, a.exponent - b.exponent);
  }
  if (a.sign == b.sign) return round_wide<U>({a.sign, a.exponent, a.bits + b.bits}, env);
  if (a.bits == b.bits) return with_sign<U>(env.mode == Rounding::down, 0);
  if (a.bits > b.bits) return round_wide<U>({a.sign, a.exponent, a.bits - b.bits}, env);
  return round_wide<U>({b.sign, a.exponent, b.bits - a.bits}, env);
}

template <class U>
U invalid(Env& env) {
  env.flags |= kInvalid;
  return kCanonicalNan<U>;
}

// The result of an operation with a NaN among its operands.
template <class U>
U propagate(std::initializer_list<Kind> kinds, Env& env) {
  for (const Kind kind : kinds) {
    if (kind == Kind::signaling_nan) env.flags |= kInvalid;
  }
  return kCanonicalNan<U>;
}

// The sign of a sum of two zeros.
bool zero_sum_sign(bool a, bool b, Rounding mode) { return a == b ? a : mode == Rounding::down; }

// floor(sqrt(value)), digit by digit.
std::uint64_t integer_sqrt(u128 value, bool& exact) {
  u128 rest = value;
  u128 root = 0;
  for (u128 bit = u128{1} << 126; bit != 0; bit >>= 2) {
    if (rest >= root + bit) {
      rest -= root + bit;
      root = (root >> 1) + bit;
    } else {
      root >>= 1;
    }
  }
  exact = rest == 0;
  return static_cast<std::uint64_t>(root);
}

}  // namespace

template <class U>
U add(U a, U b, Env& env) {
  const Unpacked x = unpack(a);
  const Unpacked y = unpack(b);
  if (x.nan() || y.nan()) return propagate<U>({x.kind, y.kind}, env);
  if (x.kind == Kind::infinite) return y.kind == Kind::infinite && x.sign != y.sign ? invalid<U>(env) : a;
  if (y.kind == Kind::infinite) return b;
  if (x.kind == Kind::zero) {
    return y.kind == Kind::zero ? with_sign<U>(zero_sum_sign(x.sign, y.sign, env.mode), 0) : b;
  }
  if (y.kind == Kind::zero) return a;
  return add_wide<U>(widen(x), widen(y), env);
}

template <class U>
U mul(U a, U b, Env& env) {
  const Unpacked x = unpack(a);
  const Unpacked y = unpack(b);
  if (x.nan() || y.nan()) return propagate<U>({x.kind, y.kind}, env);
  const bool sign = x.sign != y.sign;
  if (x.kind == Kind::infinite || y.kind == Kind::infinite) {
    return x.kind == Kind::zero || y.kind == Kind::zero ? invalid<U>(env) : with_sign<U>(sign, kInfinity<U>);
  }
  if (x.kind == Kind::zero || y.kind == Kind::zero) return with_sign<U>(sign, 0);
  return round_wide<U>(product(x, y), env);
}

template <class U>
U fma(U a, U b, U c, Env& env) {
  const Unpacked x = unpack(a);
  const Unpacked y = unpack(b);
  const Unpacked z = unpack(c);
  const bool no_product =
      (x.kind == Kind::infinite && y.kind == Kind::zero) || (x.kind == Kind::zero && y.kind == Kind::infinite);
  if (no_product) env.flags |= kInvalid;
  if (x.nan() || y.nan() || z.nan()) return propagate<U>({x.kind, y.kind, z.kind}, env);
  if (no_product) return kCanonicalNan<U>;
  const bool sign = x.sign != y.sign;
  if (x.kind == Kind::infinite || y.kind == Kind::infinite) {
    return z.kind == Kind::infinite && z.sign != sign ? invalid<U>(env) : with_sign<U>(sign, kInfinity<U>);
  }
  if (z.kind == Kind::infinite) return c;
  if (x.kind == Kind::zero || y.kind == Kind::zero) {
    return z.kind == Kind::zero ? with_sign<U>(zero_sum_sign(sign, z.sign, env.mode), 0) : c;
  }
  if (z.kind == Kind::zero) return round_wide<U>(product(x, y), env);
  return add_wide<U>(product(x, y), widen(z), env);
}

template <class U>
U div(U a, U b, Env& env) {
  const Unpacked x = unpack(a);
  const Unpacked y = unpack(b);
  if (x.nan() || y.nan()) return propagate<U>({x.kind, y.kind}, env);
  const bool sign = x.sign != y.sign;
  if (x.kind == Kind::infinite) return y.kind == Kind::infinite ? invalid<U>(env) : with_sign<U>(sign, kInfinity<U>);
  if (y.kind == Kind::infinite) return with_sign<U>(sign, 0);
  if (y.kind == Kind::zero) {
    if (x.kind == Kind::zero) return invalid<U>(env);
    env.flags |= kDivideByZero;
    return with_sign<U>(sign, kInfinity<U>);
  }
  if (x.kind == Kind::zero) return with_sign<U>(sign, 0);
  const u128 dividend = u128{x.significand} << 63;
  const u128 quotient = dividend / y.significand;  // 63 or 64 bits, value quotient / 2^63
  const u128 sticky = dividend - quotient * y.significand != 0 ? 1 : 0;
  return round_wide<U>({sign, x.exponent - y.exponent, quotient << 62 | sticky}, env);
}

template <class U>
U sqrt(U a, Env& env) {
  const Unpacked x = unpack(a);
  if (x.nan()) return propagate<U>({x.kind}, env);
  if (x.kind == Kind::zero) return a;
  if (x.sign) return invalid<U>(env);
  if (x.kind == Kind::infinite) return a;
  // value = radicand / 2^126 * 2^even with even = exponent or exponent - 1, so that root / 2^63 * 2^(even / 2) is the
  // root.
  const bool odd = (x.exponent & 1) != 0;
  const u128 radicand = u128{x.significand} << (odd ? 64 : 63);
  bool exact = false;
  const std::uint64_t root = integer_sqrt(radicand, exact);
  return round_pack<U>(false, (x.exponent - (odd ? 1 : 0)) / 2, root | (exact ? 0 : 1), env);
}

namespace {

// Whether a < b for numbers; `tie` answers for equal ones (zeros of either sign are equal).
template <class U>
bool ordered(U a, U b, bool tie) {
  const U magnitude_a = a & ~kSignBit<U>;
  const U magnitude_b = b & ~kSignBit<U>;
  if ((magnitude_a | magnitude_b) == 0 || a == b) return tie;
  const bool negative_a = magnitude_a != a;
  const bool negative_b = magnitude_b != b;
  if (negative_a != negative_b) return negative_a;
  return negative_a ? magnitude_b < magnitude_a : magnitude_a < magnitude_b;
}

template <class U>
U select(U a, U b, bool want_less, Env& env) {
  const Unpacked x = unpack(a);
  const Unpacked y = unpack(b);
  if (x.kind == Kind::signaling_nan || y.kind == Kind::signaling_nan) env.flags |= kInvalid;
  if (x.nan()) return y.nan() ? kCanonicalNan<U> : b;
  if (y.nan()) return a;
  const bool a_less = x.kind == Kind::zero && y.kind == Kind::zero ? x.sign : ordered(a, b, false);
  return a_less == want_less ? a : b;
}

}  // namespace

template <class U>
U min(U a, U b, Env& env) {
  return select(a, b, true, env);
}

template <class U>
U max(U a, U b, Env& env) {
  return select(a, b, false, env);
}

template <class U>
bool equal(U a, U b, Env& env) {
  const Unpacked x = unpack(a);
  const Unpacked y = unpack(b);
  if (x.nan() || y.nan()) {
    if (x.kind == Kind::signaling_nan || y.kind == Kind::signaling_nan) env.flags |= kInvalid;
    return false;
  }
  return a == b || (x.kind == Kind::zero && y.kind == Kind::zero);
}

template <class U>
bool less(U a, U b, Env& env) {
  if (unpack(a).nan() || unpack(b).nan()) {
    env.flags |= kInvalid;
    return false;
  }
  return ordered(a, b, false);
}

template <class U>
bool less_equal(U a, U b, Env& env) {
  if (unpack(a).nan() || unpack(b).nan()) {
    env.flags |= kInvalid;
    return false;
  }
  return ordered(a, b, true);
}

template <class U>
std::uint64_t classify(U a) {
  const Unpacked x = unpack(a);
  int bit = 9;
  switch (x.kind) {
    case Kind::quiet_nan:
      break;
    case Kind::signaling_nan:
      bit = 8;
      break;
    case Kind::infinite:
      bit = x.sign ? 0 : 7;
      break;
    case Kind::zero:
      bit = x.sign ? 3 : 4;
      break;
    case Kind::finite: {
      const bool normal = (a & kInfinity<U>) != 0;
      bit = x.sign ? (normal ? 1 : 2) : (normal ? 6 : 5);
      break;
    }
  }
  return std::uint64_t{1} << bit;
}

template <class U>
std::uint64_t to_integer(U a, int bits, bool is_signed, Env& env) {
  const Unpacked x = unpack(a);
  const std::uint64_t largest = ~std::uint64_t{0} >> (64 - bits + (is_signed ? 1 : 0));
  const std::uint64_t limit = !x.sign || x.nan() ? largest : is_signed ? largest + 1 : 0;  // of the magnitude
  const auto result = [&](std::uint64_t magnitude) {
    const std::uint64_t value = x.sign && !x.nan() ? 0 - magnitude : magnitude;
    return bits == 32 ? static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(value))) : value;
  };
  if (x.kind == Kind::zero) return 0;
  if (x.kind != Kind::finite || x.exponent >= 64) {
    env.flags |= kInvalid;
    return result(limit);
  }
  std::uint64_t whole = 0;
  std::uint64_t rest = 1;  // of 2^64; anything below one half will do for tiny values
  if (x.exponent >= 0) {
    whole = x.significand >> (63 - x.exponent);
    rest = x.exponent == 63 ? 0 : x.significand << (x.exponent + 1);
  } else if (x.exponent == -1) {
    rest = x.significand;
  }
  if (rounds_up(x.sign, (whole & 1) != 0, rest, std::uint64_t{1} << 63, env.mode)) ++whole;
  if (whole > limit) {
    env.flags |= kInvalid;
    return result(limit);
  }
  if (rest != 0) env.flags |= kInexact;
  return result(whole);
}

template <class U>
U from_integer(std::uint64_t value, bool is_signed, Env& env) {
  if (value == 0) return 0;
  const bool sign = is_signed && value >> 63 != 0;
  const std::uint64_t magnitude = sign ? 0 - value : value;
  const int shift = std::countl_zero(magnitude);
  return round_pack<U>(sign, 63 - shift, magnitude << shift, env);
}

template <class To, class From>
To convert(From a, Env& env) {
  const Unpacked x = unpack(a);
  if (x.nan()) return propagate<To>({x.kind}, env);
  if (x.kind == Kind::infinite) return with_sign<To>(x.sign, kInfinity<To>);
  if (x.kind == Kind::zero) return with_sign<To>(x.sign, 0);
  return round_pack<To>(x.sign, x.exponent, x.significand, env);
}

#define SK_INSTANTIATE(U)                                   \
  template U add<U>(U, U, Env&);                            \
  template U mul<U>(U, U, Env&);                            \
  template U div<U>(U, U, Env&);                            \
  template U sqrt<U>(U, Env&);                              \
  template U fma<U>(U, U, U, Env&);                         \
  template U min<U>(U, U, Env&);                            \
  template U max<U>(U, U, Env&);                            \
  template bool equal<U>(U, U, Env&);                       \
  template bool less<U>(U, U, Env&);                        \
  template bool less_equal<U>(U, U, Env&);                  \
  template std::uint64_t classify<U>(U);                    \
  template std::uint64_t to_integer<U>(U, int, bool, Env&); \
  template U from_integer<U>(std::uint64_t, bool, Env&);
SK_INSTANTIATE(std::uint32_t)
SK_INSTANTIATE(std::uint64_t)
#undef SK_INSTANTIATE
template std::uint32_t convert<std::uint32_t, std::uint64_t>(std::uint64_t, Env&);
template std::uint64_t convert<std::uint64_t, std::uint32_t>(std::uint32_t, Env&);

}  // namespace sk::sim::fp

// The floating-point group of instructions: register files, NaN boxing, rounding modes and flags around softfloat.h.
//
// Model: a single-precision operand that is not boxed (upper 32 bits not all ones) reads as the canonical NaN; a
// single-precision result is written boxed. Every write to f or fflags marks the unit dirty in mstatus.
#include <type_traits>

#include "sim/hart.h"
#include "sim/isa.h"
#include "sim/softfloat.h"

namespace sk::sim {
namespace {

constexpr std::int32_t kDynamic = 7;

template <class U>
U read_float(const Hart& hart, std::uint8_t number) {
  const std::uint64_t value = hart.f[number];
  if constexpr (sizeof(U) == 8) {
    return value;
  } else {
    return value >> 32 == 0xffffffff ? static_cast<U>(value) : fp::kCanonicalNan<U>;
  }
}

template <class U>
std::uint64_t box(U value) {
  if constexpr (sizeof(U) == 8) {
    return value;
  } else {
    return std::uint64_t{0xffffffff} << 32 | value;
  }
}

std::uint64_t sign_extend_word(std::uint64_t value) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(value)));
}

std::uint64_t zero_extend_word(std::uint64_t value) { return static_cast<std::uint32_t>(value); }

// What an instruction computes: one of these is set.
struct Result {
  enum class To : std::uint8_t { none, float_register, integer_register } to = To::none;
  std::uint64_t value = 0;
};

Result to_float(std::uint64_t value) { return {Result::To::float_register, value}; }
Result to_integer(std::uint64_t value) { return {Result::To::integer_register, value}; }

// What an instruction on the format U does.
template <class U>
Result compute(const Hart& hart, const Record& record, Op op, fp::Env& env) {
  using Other = std::conditional_t<sizeof(U) == 4, std::uint64_t, std::uint32_t>;
  constexpr U kSign = fp::kSignBit<U>;
  const U a = read_float<U>(hart, record.rs1);
  const U b = read_float<U>(hart, record.rs2);
  const U c = read_float<U>(hart, record.rs3);
  const std::uint64_t x = hart.x[record.rs1];
  const auto boxed = [](U value) { return to_float(box(value)); };
#define SK_ROWS(single, twice, result) \
  case Op::single:                     \
  case Op::twice:                      \
    return result;
#define SK_ON(row, result) SK_ROWS(row##_s, row##_d, result)
#define SK_FROM(kind, result) SK_ROWS(fcvt_s_##kind, fcvt_d_##kind, result)
  switch (op) {
    SK_ON(fmadd, boxed(fp::fma<U>(a, b, c, env)))
    SK_ON(fmsub, boxed(fp::fma<U>(a, b, c ^ kSign, env)))
    SK_ON(fnmsub, boxed(fp::fma<U>(a ^ kSign, b, c, env)))
    SK_ON(fnmadd, boxed(fp::fma<U>(a ^ kSign, b, c ^ kSign, env)))
    SK_ON(fadd, boxed(fp::add<U>(a, b, env)))
    SK_ON(fsub, boxed(fp::add<U>(a, b ^ kSign, env)))
    SK_ON(fmul, boxed(fp::mul<U>(a, b, env)))
    SK_ON(fdiv, boxed(fp::div<U>(a, b, env)))
    SK_ON(fsqrt, boxed(fp::sqrt<U>(a, env)))
    SK_ON(fsgnj, boxed((a & ~kSign) | (b & kSign)))
    SK_ON(fsgnjn, boxed((a & ~kSign) | (~b & kSign)))
    SK_ON(fsgnjx, boxed(a ^ (b & kSign)))
    SK_ON(fmin, boxed(fp::min<U>(a, b, env)))
    SK_ON(fmax, boxed(fp::max<U>(a, b, env)))
    SK_ON(fcvt_w, to_integer(fp::to_integer<U>(a, 32, true, env)))
    SK_ON(fcvt_wu, to_integer(fp::to_integer<U>(a, 32, false, env)))
    SK_ON(fcvt_l, to_integer(fp::to_integer<U>(a, 64, true, env)))
    SK_ON(fcvt_lu, to_integer(fp::to_integer<U>(a, 64, false, env)))
    SK_ON(fclass, to_integer(fp::classify<U>(a)))
    SK_ON(feq, to_integer(fp::equal<U>(a, b, env) ? 1 : 0))
    SK_ON(flt, to_integer(fp::less<U>(a, b, env) ? 1 : 0))
    SK_ON(fle, to_integer(fp::less_equal<U>(a, b, env) ? 1 : 0))
    SK_FROM(w, boxed(fp::from_integer<U>(sign_extend_word(x), true, env)))
    SK_FROM(wu, boxed(fp::from_integer<U>(zero_extend_word(x), false, env)))
    SK_FROM(l, boxed(fp::from_integer<U>(x, true, env)))
    SK_FROM(lu, boxed(fp::from_integer<U>(x, false, env)))
    SK_ROWS(fcvt_s_d, fcvt_d_s, boxed(fp::convert<U, Other>(read_float<Other>(hart, record.rs1), env)))
    // Bits are moved boxed or not.
    SK_ROWS(fmv_x_w, fmv_x_d, to_integer(sizeof(U) == 4 ? sign_extend_word(hart.f[record.rs1]) : hart.f[record.rs1]))
    SK_ROWS(fmv_w_x, fmv_d_x, boxed(static_cast<U>(x)))
    default:
      return {};
  }
#undef SK_FROM
#undef SK_ON
#undef SK_ROWS
}

Result dispatch(const Hart& hart, const Record& record, fp::Env& env) {
  const Op op = record.op == Op::line_check ? record.then : record.op;
  const bool is_double = (record.bits >> 25 & 1) != 0;  // the field fmt, which all of them have
  return is_double ? compute<std::uint64_t>(hart, record, op, env) : compute<std::uint32_t>(hart, record, op, env);
}

}  // namespace

bool execute_float(Hart& hart, const Record& record) {
  if (!hart.float_enabled()) return false;
  // The decoder lets only 0 to 4 and 7 into `imm` of instructions with a rounding mode; the others have 0 there.
  const std::int32_t rounding = record.imm == kDynamic ? hart.frm : record.imm;
  if (rounding > 4) return false;
  fp::Env env{static_cast<fp::Rounding>(rounding), 0};
  const Result result = dispatch(hart, record, env);
  if (result.to == Result::To::none) return false;
  if (env.flags != 0) {
    hart.fflags = static_cast<std::uint8_t>(hart.fflags | env.flags);
    hart.mark_float_dirty();
  }
  if (result.to == Result::To::float_register) {
    hart.f[record.rd] = result.value;
    hart.mark_float_dirty();
  } else {
    hart.x[record.rd] = result.value;
  }
  return true;
}

}  // namespace sk::sim

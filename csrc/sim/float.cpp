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

// Instructions on one format U. `op` is the operation's number counted within the format's own instructions.
enum class Action : std::uint8_t {
  fmadd,
  fmsub,
  fnmsub,
  fnmadd,
  fadd,
  fsub,
  fmul,
  fdiv,
  fsqrt,
  fsgnj,
  fsgnjn,
  fsgnjx,
  fmin,
  fmax,
  fcvt_w,
  fcvt_wu,
  fcvt_l,
  fcvt_lu,
  fmv_to_x,
  fclass,
  feq,
  flt,
  fle,
  from_w,
  from_wu,
  from_l,
  from_lu,
  fmv_from_x,
  from_other
};

template <class U>
Result compute(const Hart& hart, const Record& record, Action action, fp::Env& env) {
  using Other = std::conditional_t<sizeof(U) == 4, std::uint64_t, std::uint32_t>;
  constexpr U kSign = fp::kSignBit<U>;
  const U a = read_float<U>(hart, record.rs1);
  const U b = read_float<U>(hart, record.rs2);
  const U c = read_float<U>(hart, record.rs3);
  const std::uint64_t x = hart.x[record.rs1];
  const auto boxed = [](U value) { return to_float(box(value)); };
  switch (action) {
    case Action::fmadd:
      return boxed(fp::fma<U>(a, b, c, env));
    case Action::fmsub:
      return boxed(fp::fma<U>(a, b, c ^ kSign, env));
    case Action::fnmsub:
      return boxed(fp::fma<U>(a ^ kSign, b, c, env));
    case Action::fnmadd:
      return boxed(fp::fma<U>(a ^ kSign, b, c ^ kSign, env));
    case Action::fadd:
      return boxed(fp::add<U>(a, b, env));
    case Action::fsub:
      return boxed(fp::add<U>(a, b ^ kSign, env));
    case Action::fmul:
      return boxed(fp::mul<U>(a, b, env));
    case Action::fdiv:
      return boxed(fp::div<U>(a, b, env));
    case Action::fsqrt:
      return boxed(fp::sqrt<U>(a, env));
    case Action::fsgnj:
      return boxed((a & ~kSign) | (b & kSign));
    case Action::fsgnjn:
      return boxed((a & ~kSign) | (~b & kSign));
    case Action::fsgnjx:
      return boxed(a ^ (b & kSign));
    case Action::fmin:
      return boxed(fp::min<U>(a, b, env));
    case Action::fmax:
      return boxed(fp::max<U>(a, b, env));
    case Action::fcvt_w:
      return to_integer(fp::to_integer<U>(a, 32, true, env));
    case Action::fcvt_wu:
      return to_integer(fp::to_integer<U>(a, 32, false, env));
    case Action::fcvt_l:
      return to_integer(fp::to_integer<U>(a, 64, true, env));
    case Action::fcvt_lu:
      return to_integer(fp::to_integer<U>(a, 64, false, env));
    case Action::fmv_to_x: {  // moves bits, boxed or not
      const std::uint64_t raw = hart.f[record.rs1];
      return to_integer(sizeof(U) == 4 ? sign_extend_word(raw) : raw);
    }
    case Action::fclass:
      return to_integer(fp::classify<U>(a));
    case Action::feq:
      return to_integer(fp::equal<U>(a, b, env) ? 1 : 0);
    case Action::flt:
      return to_integer(fp::less<U>(a, b, env) ? 1 : 0);
    case Action::fle:
      return to_integer(fp::less_equal<U>(a, b, env) ? 1 : 0);
    case Action::from_w:
      return boxed(fp::from_integer<U>(sign_extend_word(x), true, env));
    case Action::from_wu:
      return boxed(fp::from_integer<U>(zero_extend_word(x), false, env));
    case Action::from_l:
      return boxed(fp::from_integer<U>(x, true, env));
    case Action::from_lu:
      return boxed(fp::from_integer<U>(x, false, env));
    case Action::fmv_from_x:
      return boxed(static_cast<U>(x));
    case Action::from_other:
      return boxed(fp::convert<U, Other>(read_float<Other>(hart, record.rs1), env));
  }
  return {};
}

Result dispatch(const Hart& hart, const Record& record, fp::Env& env) {
#define SK_BOTH(row, action)                                          \
  case Op::row##_s:                                                   \
    return compute<std::uint32_t>(hart, record, Action::action, env); \
  case Op::row##_d:                                                   \
    return compute<std::uint64_t>(hart, record, Action::action, env);
#define SK_ONE(row, format, action) \
  case Op::row:                     \
    return compute<format>(hart, record, Action::action, env);
  switch (record.op == Op::line_check ? record.then : record.op) {
    SK_BOTH(fmadd, fmadd)
    SK_BOTH(fmsub, fmsub)
    SK_BOTH(fnmsub, fnmsub)
    SK_BOTH(fnmadd, fnmadd)
    SK_BOTH(fadd, fadd)
    SK_BOTH(fsub, fsub)
    SK_BOTH(fmul, fmul)
    SK_BOTH(fdiv, fdiv)
    SK_BOTH(fsqrt, fsqrt)
    SK_BOTH(fsgnj, fsgnj)
    SK_BOTH(fsgnjn, fsgnjn)
    SK_BOTH(fsgnjx, fsgnjx)
    SK_BOTH(fmin, fmin)
    SK_BOTH(fmax, fmax)
    SK_BOTH(fcvt_w, fcvt_w)
    SK_BOTH(fcvt_wu, fcvt_wu)
    SK_BOTH(fcvt_l, fcvt_l)
    SK_BOTH(fcvt_lu, fcvt_lu)
    SK_BOTH(fclass, fclass)
    SK_BOTH(feq, feq)
    SK_BOTH(flt, flt)
    SK_BOTH(fle, fle)
    SK_ONE(fmv_x_w, std::uint32_t, fmv_to_x)
    SK_ONE(fmv_x_d, std::uint64_t, fmv_to_x)
    SK_ONE(fmv_w_x, std::uint32_t, fmv_from_x)
    SK_ONE(fmv_d_x, std::uint64_t, fmv_from_x)
    SK_ONE(fcvt_s_w, std::uint32_t, from_w)
    SK_ONE(fcvt_s_wu, std::uint32_t, from_wu)
    SK_ONE(fcvt_s_l, std::uint32_t, from_l)
    SK_ONE(fcvt_s_lu, std::uint32_t, from_lu)
    SK_ONE(fcvt_d_w, std::uint64_t, from_w)
    SK_ONE(fcvt_d_wu, std::uint64_t, from_wu)
    SK_ONE(fcvt_d_l, std::uint64_t, from_l)
    SK_ONE(fcvt_d_lu, std::uint64_t, from_lu)
    SK_ONE(fcvt_s_d, std::uint32_t, from_other)
    SK_ONE(fcvt_d_s, std::uint64_t, from_other)
    default:
      return {};
  }
#undef SK_BOTH
#undef SK_ONE
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

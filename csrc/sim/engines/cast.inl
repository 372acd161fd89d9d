// v_cast: between element types, with a direction of rounding.
//
// Model: every source type fits double exactly. A number is rounded there, once, to the destination's grid, and is then
// exact in the destination.

enum Direction : u64 { kNearestEven, kFloor, kCeil, kTrunc, kNearestAway };

// To a whole number; the sign of zero is that of x.
template <Direction kDirection>
double whole(double x) {
  if constexpr (kDirection == kNearestEven) return __builtin_copysign(__builtin_rint(x), x);
  if constexpr (kDirection == kFloor) return __builtin_copysign(__builtin_floor(x), x);
  if constexpr (kDirection == kCeil) return __builtin_copysign(__builtin_ceil(x), x);
  if constexpr (kDirection == kTrunc) return __builtin_trunc(x);
  // The sum is exact wherever a half matters: sources have at most 32 bits.
  return __builtin_trunc(x + __builtin_copysign(0.5, x));
}

struct FloatFormat {
  int fraction_bits;
  int exponent_least;  // of normal numbers
  double largest;
};

constexpr FloatFormat format_of(ElementType type) {
  if (type == ElementType::f16) return {10, -14, 65504.0};
  if (type == ElementType::bf16) return {7, -126, 0x1.fep127};
  return {23, -126, 0x1.fffffep127};
}

// To the nearest number of a format in the direction. NaN and infinity stay.
template <Direction kDirection>
double rounded(double x, FloatFormat format) {
  const int exponent = static_cast<int>(std::bit_cast<u64>(x) >> 52 & 0x7ff) - 1023;
  const int last = (exponent > format.exponent_least ? exponent : format.exponent_least) - format.fraction_bits;
  const double unit = std::bit_cast<double>(static_cast<u64>(last + 1023) << 52);
  const double back = std::bit_cast<double>(static_cast<u64>(1023 - last) << 52);
  const double result = whole<kDirection>(x * back) * unit;
  const double size = __builtin_fabs(result);
  // Beyond the largest number the direction may lead back to it.
  const bool inward = kDirection == kTrunc || (kDirection == kFloor && x > 0) || (kDirection == kCeil && x < 0);
  const double beyond = __builtin_copysign(inward ? format.largest : __builtin_inf(), x);
  const bool special = __builtin_fabs(x) > 0x1p128 || x != x;  // infinity; no finite source is so large
  return special ? x : (size > format.largest ? beyond : result);
}

struct Bounds {
  double low, high;
};

constexpr Bounds bounds_of(ElementType type) {
  switch (type) {
    case ElementType::i16:
      return {-32768, 32767};
    case ElementType::i8:
      return {-128, 127};
    case ElementType::u8:
      return {0, 255};
    default:
      return {-2147483648.0, 2147483647.0};
  }
}

constexpr bool is_float(ElementType type) {
  return type == ElementType::f32 || type == ElementType::f16 || type == ElementType::bf16;
}

struct Cast {
  ElementType from, to;
  u64 rows, cols;
  u8* dst;
  u64 dst_stride;
  const u8* src;
  u64 src_stride;
};

// Calls use(src, dst, count) for blocks.
template <class Use>
void for_cast_blocks(Cast d, Use use) {
  const u64 src_item = bytes_of(d.from);
  const u64 dst_item = bytes_of(d.to);
  if (d.rows > 1 && d.src_stride == d.cols * src_item && d.dst_stride == d.cols * dst_item) {
    d.cols *= d.rows;
    d.rows = 1;
  }
  for (u64 r = 0; r < d.rows; ++r) {
    for (u64 c = 0; c < d.cols; c += kBlock) {
      const std::size_t n = std::min<std::size_t>(kBlock, d.cols - c);
      use(d.src + r * d.src_stride + c * src_item, d.dst + r * d.dst_stride + c * dst_item, n);
    }
  }
}

inline void load_wide(ElementType type, const u8* from, double* lane, std::size_t n) {
  if (type == ElementType::i32) return widen<i32>(from, lane, n);
  Block<float> narrow;
  load(type, from, narrow.lane, n);
  for (std::size_t i = 0; i < n; ++i) lane[i] = narrow.lane[i];
}

template <Direction kDirection>
void cast_to_float(const Cast& d) {
  Block<double> x;
  Block<float> out;
  const bool to_whole = d.from == d.to;
  const FloatFormat format = format_of(d.to);
  for_cast_blocks(d, [&](const u8* src, u8* dst, std::size_t n) {
    load_wide(d.from, src, x.lane, n);
    if (to_whole) {
      for (std::size_t i = 0; i < n; ++i) out.lane[i] = static_cast<float>(whole<kDirection>(x.lane[i]));
    } else {
      for (std::size_t i = 0; i < n; ++i) out.lane[i] = static_cast<float>(rounded<kDirection>(x.lane[i], format));
    }
    store(d.to, out.lane, dst, n);
  });
}

template <Direction kDirection>
void cast_to_integer(const Cast& d) {
  Block<double> x;
  Block<i32> out;
  const Bounds bounds = bounds_of(d.to);
  for_cast_blocks(d, [&](const u8* src, u8* dst, std::size_t n) {
    load_wide(d.from, src, x.lane, n);
    for (std::size_t i = 0; i < n; ++i) {
      const double y = whole<kDirection>(x.lane[i]);
      const double high = y > bounds.high ? bounds.high : y;
      const double bounded = high < bounds.low ? bounds.low : high;
      out.lane[i] = static_cast<i32>(y != y ? 0.0 : bounded);
    }
    store(d.to, out.lane, dst, n);
  });
}

template <Direction kDirection>
void cast_in_direction(const Cast& d) {
  return is_float(d.to) ? cast_to_float<kDirection>(d) : cast_to_integer<kDirection>(d);
}

// Exact ones, and to nearest even: what loading and storing do anyway.
bool cast_directly(const Cast& d, u64 direction) {
  const bool exact = d.to == ElementType::f32 && d.from != ElementType::i32;
  const bool once = direction == kNearestEven && (d.to == ElementType::f32 || d.from == ElementType::f32);
  if (d.from == d.to || !is_float(d.to) || !(exact || once)) return false;
  Block<float> x;
  for_cast_blocks(d, [&](const u8* src, u8* dst, std::size_t n) {
    load(d.from, src, x.lane, n);
    store(d.to, x.lane, dst, n);
  });
  return true;
}

void cast_command(const Command& c, u8* ub) {
  using S = Operands_v_cast;
  const auto& o = c.operands;
  const Cast d{c.types[0],     c.types[1],       o[S::rows],     o[S::cols],
               ub + o[S::dst], o[S::dst_stride], ub + o[S::src], o[S::src_stride]};
  if (cast_directly(d, o[S::rounding])) return;
  switch (o[S::rounding]) {
    case kNearestEven:
      return cast_in_direction<kNearestEven>(d);
    case kFloor:
      return cast_in_direction<kFloor>(d);
    case kCeil:
      return cast_in_direction<kCeil>(d);
    case kTrunc:
      return cast_in_direction<kTrunc>(d);
    default:
      return cast_in_direction<kNearestAway>(d);
  }
}

void iota_command(const Command& c, u8* ub) {
  using S = Operands_v_iota;
  const auto& o = c.operands;
  u8* const dst = ub + o[S::dst];
  const u64 item = bytes_of(c.types[0]);
  const auto start = static_cast<u32>(o[S::start]);
  const auto step = static_cast<u32>(o[S::step]);
  Block<float> x;
  Block<i32> k;
  for (u64 first = 0; first < o[S::cols]; first += kBlock) {
    const std::size_t n = std::min<std::size_t>(kBlock, o[S::cols] - first);
    for (std::size_t i = 0; i < n; ++i) k.lane[i] = static_cast<i32>(first + i);
    if (c.types[0] == ElementType::f32) {
      for (std::size_t i = 0; i < n; ++i) {
        const float scaled = static_cast<float>(k.lane[i]) * float_of(step);
        x.lane[i] = float_of(start) + scaled;
      }
      store(c.types[0], x.lane, dst + first * item, n);
    } else {
      for (std::size_t i = 0; i < n; ++i) k.lane[i] = static_cast<i32>(start + static_cast<u32>(k.lane[i]) * step);
      store(c.types[0], k.lane, dst + first * item, n);
    }
  }
}

void vector_command(const Command& c, u8* ub) {
  switch (c.opcode) {
    case Opcode::v_cast:
      return cast_command(c, ub);
    case Opcode::v_iota:
      return iota_command(c, ub);
    case Opcode::v_sum:
    case Opcode::v_reduce_max:
    case Opcode::v_reduce_min:
    case Opcode::v_argmax:
    case Opcode::v_argmin:
      return reduce_command(c, ub);
    case Opcode::v_cmp: {
      using S = Operands_v_cmp;
      const auto& o = c.operands;
      const Elementwise e{c.types[0],
                          o[S::rows],
                          o[S::cols],
                          ub + o[S::dst],
                          o[S::dst_stride],
                          ub + o[S::a],
                          o[S::a_stride],
                          ub + o[S::b],
                          o[S::b_stride],
                          false,
                          0};
      return compare_any(e, o[S::predicate]);
    }
    case Opcode::v_cmps: {
      using S = Operands_v_cmps;
      const auto& o = c.operands;
      const auto value = static_cast<u32>(o[S::value]);
      const Elementwise e{
          c.types[0], o[S::rows], o[S::cols], ub + o[S::dst], o[S::dst_stride], ub + o[S::src], o[S::src_stride],
          nullptr,    0,          false,      value};
      return compare_any(e, o[S::predicate]);
    }
    case Opcode::v_shl:
    case Opcode::v_shr:
      return elementwise_command(c, unary_of(c, ub, static_cast<u32>(c.operands[Operands_v_shl::shift])));
    default:
      break;
  }
  const auto code = static_cast<unsigned>(c.opcode);
  if (code < static_cast<unsigned>(Opcode::v_adds)) return elementwise_command(c, binary_of(c, ub));
  const bool has_value = code < static_cast<unsigned>(Opcode::v_shl);
  const auto value = has_value ? static_cast<u32>(c.operands[Operands_v_adds::value]) : 0;
  return elementwise_command(c, unary_of(c, ub, value));
}

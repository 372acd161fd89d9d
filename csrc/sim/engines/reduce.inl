// Vector commands that make one element of many: sums in their fixed order, extremes, and where these stand.

enum Scope : u64 { kRow, kColumn, kWhole };
constexpr std::size_t kPartials = 64;
static_assert(kBlock % kPartials == 0);

struct Reduction {
  ElementType type;
  u64 rows, cols;
  u8* dst;
  const u8* src;
  u64 stride;
  u64 scope;
};

inline float plus(float a, float b) { return a + b; }
inline i32 plus(i32 a, i32 b) { return wrapped_add(a, b); }

// Adds elements to partial sums from number `next` on; returns the number behind.
template <class Lane>
std::size_t accumulate(Lane* partial, std::size_t next, const Lane* lane, std::size_t n) {
  std::size_t i = 0;
  while (i < n) {
    const std::size_t some = std::min(n - i, kPartials - next);
    if (some == kPartials) {
      for (std::size_t p = 0; p < kPartials; ++p) partial[p] = plus(partial[p], lane[i + p]);
    } else {
      for (std::size_t p = 0; p < some; ++p) partial[next + p] = plus(partial[next + p], lane[i + p]);
    }
    i += some;
    next = (next + some) % kPartials;
  }
  return next;
}

template <class Lane>
Lane total(Lane* partial) {
  for (std::size_t half = kPartials / 2; half > 0; half /= 2) {
    for (std::size_t p = 0; p < half; ++p) partial[p] = plus(partial[p], partial[p + half]);
  }
  return partial[0];
}

// Row by row, or everything: the numbering goes on from row to row.
template <class Lane>
void sum_rows(const Reduction& d) {
  const u64 item = bytes_of(d.type);
  Block<Lane> x;
  alignas(64) Lane partial[kPartials] = {};
  std::size_t next = 0;
  for (u64 r = 0; r < d.rows; ++r) {
    for (u64 c = 0; c < d.cols; c += kBlock) {
      const std::size_t n = std::min<std::size_t>(kBlock, d.cols - c);
      load(d.type, d.src + r * d.stride + c * item, x.lane, n);
      next = accumulate(partial, next, x.lane, n);
    }
    const bool last = r + 1 == d.rows;
    if (d.scope == kWhole && !last) continue;
    Lane sum = total(partial);
    store(d.type, &sum, d.dst + (d.scope == kWhole ? 0 : r) * item, 1);
    repeat(partial, Lane{0}, kPartials);
    next = 0;
  }
}

template <class Lane>
void sum_columns(const Reduction& d) {
  constexpr std::size_t kWide = 128;
  const u64 item = bytes_of(d.type);
  alignas(64) Lane partial[kPartials][kWide];
  alignas(64) Lane x[kWide];
  for (u64 c = 0; c < d.cols; c += kWide) {
    const std::size_t n = std::min<std::size_t>(kWide, d.cols - c);
    for (auto& sums : partial) repeat(sums, Lane{0}, kWide);
    for (u64 r = 0; r < d.rows; ++r) {
      load(d.type, d.src + r * d.stride + c * item, x, n);
      Lane* const sums = partial[r % kPartials];
      for (std::size_t i = 0; i < n; ++i) sums[i] = plus(sums[i], x[i]);
    }
    for (std::size_t half = kPartials / 2; half > 0; half /= 2) {
      for (std::size_t p = 0; p < half; ++p) {
        for (std::size_t i = 0; i < n; ++i) partial[p][i] = plus(partial[p][i], partial[p + half][i]);
      }
    }
    store(d.type, partial[0], d.dst + c * item, n);
  }
}

// ---- extremes -----------------------------------------------------------------------------------------------------
// On keys whose order as integers is the order asked for, the wanted one largest: NaN above all numbers. Inverting all
// bits of an integer turns the order round, which makes a minimum a maximum.

constexpr i32 kNanKey = std::numeric_limits<i32>::max();

template <bool kLeast>
i32 key_of(float x) {
  const i32 order = order_of(x);
  return x != x ? kNanKey : (kLeast ? ~order : order);
}
template <bool kLeast>
i32 key_of(i32 x) {
  return kLeast ? ~x : x;
}
template <bool kLeast>
float of_key(i32 key, float) {
  return key == kNanKey ? float_of(kNan) : of_order(kLeast ? ~key : key);
}
template <bool kLeast>
i32 of_key(i32 key, i32) {
  return kLeast ? ~key : key;
}

template <class Lane, bool kLeast>
i32 largest_key(const Lane* lane, std::size_t n) {
  i32 best = std::numeric_limits<i32>::min();
  for (std::size_t i = 0; i < n; ++i) best = larger_of(best, key_of<kLeast>(lane[i]));
  return best;
}

template <class Lane, bool kLeast>
void extreme_rows(const Reduction& d) {
  const u64 item = bytes_of(d.type);
  Block<Lane> x;
  i32 best = std::numeric_limits<i32>::min();
  for (u64 r = 0; r < d.rows; ++r) {
    for (u64 c = 0; c < d.cols; c += kBlock) {
      const std::size_t n = std::min<std::size_t>(kBlock, d.cols - c);
      load(d.type, d.src + r * d.stride + c * item, x.lane, n);
      best = larger_of(best, largest_key<Lane, kLeast>(x.lane, n));
    }
    const bool last = r + 1 == d.rows;
    if (d.scope == kWhole && !last) continue;
    Lane result = of_key<kLeast>(best, Lane{});
    store(d.type, &result, d.dst + (d.scope == kWhole ? 0 : r) * item, 1);
    best = std::numeric_limits<i32>::min();
  }
}

template <class Lane, bool kLeast>
void extreme_columns(const Reduction& d) {
  const u64 item = bytes_of(d.type);
  Block<Lane> x;
  Block<i32> best;
  for (u64 c = 0; c < d.cols; c += kBlock) {
    const std::size_t n = std::min<std::size_t>(kBlock, d.cols - c);
    repeat(best.lane, std::numeric_limits<i32>::min(), n);
    for (u64 r = 0; r < d.rows; ++r) {
      load(d.type, d.src + r * d.stride + c * item, x.lane, n);
      for (std::size_t i = 0; i < n; ++i) best.lane[i] = larger_of(best.lane[i], key_of<kLeast>(x.lane[i]));
    }
    for (std::size_t i = 0; i < n; ++i) x.lane[i] = of_key<kLeast>(best.lane[i], Lane{});
    store(d.type, x.lane, d.dst + c * item, n);
  }
}

// Both zeros have one place in the order here.
inline float place_of(float x) { return x + 0.0f; }
inline i32 place_of(i32 x) { return x; }

template <class Lane, bool kLeast>
void find_extremes(const Reduction& d) {
  const u64 item = bytes_of(d.type);
  Block<Lane> x;
  Block<i32> keys;
  for (u64 r = 0; r < d.rows; ++r) {
    i32 best = std::numeric_limits<i32>::min();
    u64 where = 0;
    for (u64 c = 0; c < d.cols; c += kBlock) {
      const std::size_t n = std::min<std::size_t>(kBlock, d.cols - c);
      load(d.type, d.src + r * d.stride + c * item, x.lane, n);
      for (std::size_t i = 0; i < n; ++i) keys.lane[i] = key_of<kLeast>(place_of(x.lane[i]));
      i32 found = best;
      for (std::size_t i = 0; i < n; ++i) found = larger_of(found, keys.lane[i]);
      if (found == best) continue;
      best = found;
      where = c + static_cast<u64>(std::find(keys.lane, keys.lane + n, found) - keys.lane);
    }
    const auto column = static_cast<i32>(where);
    std::memcpy(d.dst + 4 * r, &column, sizeof column);
  }
}

template <class Lane>
void reduce_lanes(Opcode opcode, const Reduction& d) {
  const bool columns = d.scope == kColumn;
  switch (opcode) {
    case Opcode::v_sum:
      return columns ? sum_columns<Lane>(d) : sum_rows<Lane>(d);
    case Opcode::v_reduce_max:
      return columns ? extreme_columns<Lane, false>(d) : extreme_rows<Lane, false>(d);
    case Opcode::v_reduce_min:
      return columns ? extreme_columns<Lane, true>(d) : extreme_rows<Lane, true>(d);
    case Opcode::v_argmax:
      return find_extremes<Lane, false>(d);
    default:
      return find_extremes<Lane, true>(d);
  }
}

void reduce_command(const Command& c, u8* ub) {
  using S = Operands_v_sum;
  static_assert(std::size_t{S::src_stride} == std::size_t{Operands_v_argmax::src_stride});
  const auto& o = c.operands;
  const bool places = c.opcode == Opcode::v_argmax || c.opcode == Opcode::v_argmin;
  const Reduction d{c.types[0],
                    o[S::rows],
                    o[S::cols],
                    ub + o[S::dst],
                    ub + o[S::src],
                    o[S::src_stride],
                    places ? u64{kRow} : o[S::scope]};
  const bool is_float = d.type == ElementType::f32 || d.type == ElementType::f16;
  return is_float ? reduce_lanes<float>(c.opcode, d) : reduce_lanes<i32>(c.opcode, d);
}

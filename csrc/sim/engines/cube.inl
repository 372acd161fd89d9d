// The matrix engine and the way out of its accumulators.
//
// Model: operands are converted once per command: A to lanes in the fractals it has, B to strips of `kStrip` columns in
// which the columns of one k lie side by side, C to row-major strips as well. A tile of kTile rows x kStrip columns of
// accumulators stays in registers while k runs upwards, so that each accumulator takes its steps in the order of k,
// whatever the tiling.

typedef float Floats __attribute__((vector_size(4 * SK_LANES)));
typedef u32 Words __attribute__((vector_size(4 * SK_LANES)));

constexpr std::size_t kVectors = 2;  // of a strip
constexpr std::size_t kStrip = kVectors * SK_LANES;

inline Floats vector_fused(Floats a, Floats b, Floats c) {
#if SK_LANES == 16
  return _mm512_fmadd_ps(a, b, c);
#elif SK_LANES == 8
  return _mm256_fmadd_ps(a, b, c);
#else
  for (int i = 0; i < SK_LANES; ++i) c[i] = fused(a[i], b[i], c[i]);
  return c;
#endif
}
inline Words vector_fused(Words a, Words b, Words c) { return a * b + c; }

template <class Lane>
struct VectorOf;
template <>
struct VectorOf<float> {
  using Type = Floats;
};
template <>
struct VectorOf<u32> {
  using Type = Words;
};

struct Fractals {
  u64 high, deep;  // rows and elements per row of a fractal
  u64 across;      // fractals per row of fractals
  u64 size() const { return high * deep; }
  // Where row i starts; the same row in the next fractal is size() further.
  u64 row(u64 i) const { return (i / high * across * high + i % high) * deep; }
};

template <class Vector>
Vector vector_at(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// kRows x kStrip accumulators at c (rows kStrip apart) take `depth` steps. Loops over rows are unrolled, else the
// accumulators would live in memory.
template <class Lane, std::size_t kRows>
void multiply_tile(const Lane* a, const Fractals& fa, u64 i, const Lane* b, u64 depth, Lane* c) {
  static_assert(kVectors == 2 && kRows <= 8);
  using Vector = typename VectorOf<Lane>::Type;
  Vector low[kRows], high[kRows];
  const Lane* rows[kRows];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
    rows[r] = a + fa.row(i + r);
    low[r] = vector_at<Vector>(c + r * kStrip);
    high[r] = vector_at<Vector>(c + r * kStrip + SK_LANES);
  }
  for (u64 first = 0; first < depth; first += fa.deep) {
    const u64 some = std::min(fa.deep, depth - first);
    for (u64 k = 0; k < some; ++k, b += kStrip) {
      const Vector right_low = vector_at<Vector>(b);
      const Vector right_high = vector_at<Vector>(b + SK_LANES);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kRows; ++r) {
        const Vector left = rows[r][k] - Vector{};
        low[r] = vector_fused(left, right_low, low[r]);
        high[r] = vector_fused(left, right_high, high[r]);
      }
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) rows[r] += fa.size();
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
    std::memcpy(c + r * kStrip, &low[r], sizeof(Vector));
    std::memcpy(c + r * kStrip + SK_LANES, &high[r], sizeof(Vector));
  }
}

template <class Lane, std::size_t kRows = SK_TILE_ROWS>
void multiply_rows(const Lane* a, const Fractals& fa, u64 i, u64 m, const Lane* b, u64 depth, Lane* c) {
  for (; i + kRows <= m; i += kRows) multiply_tile<Lane, kRows>(a, fa, i, b, depth, c + i * kStrip);
  if constexpr (kRows > 1) multiply_rows<Lane, kRows / 2>(a, fa, i, m, b, depth, c);
}

struct Product {
  ElementType type;
  u64 m, n, k;
  const u8 *a, *b;
  u8* c;
  bool accumulate;
  Fractals fa, fb;
  u64 block_m, block_n;  // of accumulators
  u64 block_row(u64 i, u64 column_block) const {
    return ((i / block_m * ceil_div(n, block_n) + column_block) * block_m + i % block_m) * block_n;
  }
};

thread_local Scratch left_scratch, flat_scratch, strip_scratch, sum_scratch;

inline void load_block(ElementType type, const u8* from, float* lane, std::size_t n) { load(type, from, lane, n); }
inline void load_block(ElementType, const u8* from, u32* lane, std::size_t n) { widen<std::int8_t>(from, lane, n); }

template <class Lane>
void load_lanes(ElementType type, const u8* from, Lane* lane, u64 count) {
  const u64 item = bytes_of(type);
  for (u64 i = 0; i < count; i += kBlock) {
    load_block(type, from + i * item, lane + i, std::min<u64>(kBlock, count - i));
  }
}

// Columns [first, first + kStrip) of B as depth x kStrip lanes, zeros behind its last column.
template <class Lane>
void strip_of(const Product& p, const Lane* flat, u64 first, Lane* strip) {
  const u64 some = std::min<u64>(kStrip, p.n - first);
  if (some < kStrip) std::fill_n(strip, p.k * kStrip, Lane{0});
  for (u64 j = 0; j < some; ++j) {
    const Lane* row = flat + p.fb.row(first + j);
    for (u64 k0 = 0; k0 < p.k; k0 += p.fb.deep, row += p.fb.size()) {
      const u64 deep = std::min(p.fb.deep, p.k - k0);
      Lane* to = strip + k0 * kStrip + j;
      for (u64 k = 0; k < deep; ++k) to[k * kStrip] = row[k];
    }
  }
}

// Between the layout of L0C and m x kStrip lanes for columns from `first` on. Calls copy(lanes, bytes, count).
template <class Lane, class Copy>
void for_accumulators(const Product& p, u64 first, Lane* strip, Copy copy) {
  const u64 end = std::min<u64>(first + kStrip, p.n);
  for (u64 i = 0; i < p.m; ++i) {
    for (u64 j = first; j < end;) {
      const u64 inside = j % p.block_n;
      const u64 some = std::min(p.block_n - inside, end - j);
      copy(strip + i * kStrip + (j - first), p.c + 4 * (p.block_row(i, j / p.block_n) + inside), some);
      j += some;
    }
  }
}

inline float finished(float x) { return canonical(x); }
inline u32 finished(u32 x) { return x; }

template <class Lane>
void multiply(const Product& p) {
  const u64 a_count = ceil_div(p.m, p.fa.high) * p.fa.across * p.fa.size();
  const u64 b_count = ceil_div(p.n, p.fb.high) * p.fb.across * p.fb.size();
  Lane* const a = left_scratch.room<Lane>(a_count);
  Lane* const flat = flat_scratch.room<Lane>(b_count);
  Lane* const strip = strip_scratch.room<Lane>(p.k * kStrip);
  Lane* const sums = sum_scratch.room<Lane>(p.m * kStrip);
  load_lanes(p.type, p.a, a, a_count);
  load_lanes(p.type, p.b, flat, b_count);
  if (!p.accumulate) {
    std::memset(p.c, 0, 4 * p.block_m * p.block_n * ceil_div(p.m, p.block_m) * ceil_div(p.n, p.block_n));
  }
  std::fill_n(sums, p.m * kStrip, Lane{0});
  for (u64 first = 0; first < p.n; first += kStrip) {
    strip_of(p, flat, first, strip);
    for_accumulators(p, first, sums, [](Lane* to, const u8* from, u64 count) { std::memcpy(to, from, 4 * count); });
    multiply_rows<Lane>(a, p.fa, 0, p.m, strip, p.k, sums);
    for (u64 i = 0; i < p.m * kStrip; ++i) sums[i] = finished(sums[i]);
    for_accumulators(p, first, sums, [](const Lane* from, u8* to, u64 count) { std::memcpy(to, from, 4 * count); });
  }
}

void mmad_command(const Command& c, const Target& t, CoreMemory& local) {
  using S = Operands_mmad;
  const auto& o = c.operands;
  const u64 deep = t.memory.block_bytes / bytes_of(c.types[0]);
  const Fractals fractals{t.cube.m, deep, ceil_div(o[S::k], deep)};
  const Product p{c.types[0],
                  o[S::m],
                  o[S::n],
                  o[S::k],
                  local.l0a.data() + o[S::a],
                  local.l0b.data() + o[S::b],
                  local.l0c.data() + o[S::c],
                  o[S::mode] == 1,
                  fractals,
                  fractals,
                  t.cube.m,
                  t.cube.n};
  return c.types[0] == ElementType::i8 ? multiply<u32>(p) : multiply<float>(p);
}

// ---- FIX ----------------------------------------------------------------------------------------------------------

enum Activation : u64 { kNone, kRelu, kLeaky, kClip };
enum Scale : u64 { kUnscaled, kTensor, kChannel };

struct Outcome {
  u64 scale, bias, activation;
  float factor, low, high;
  const u8 *factors, *summands;
};

// What a row's elements from column j on go through.
inline void finish(const Outcome& f, float* x, u64 j, std::size_t n) {
  Block<float> y;
  if (f.scale == kTensor) {
    for (std::size_t i = 0; i < n; ++i) x[i] = x[i] * f.factor;
  } else if (f.scale == kChannel) {
    std::memcpy(y.lane, f.factors + 4 * j, 4 * n);
    for (std::size_t i = 0; i < n; ++i) x[i] = x[i] * y.lane[i];
  }
  if (f.bias != 0) {
    std::memcpy(y.lane, f.summands + 4 * j, 4 * n);
    for (std::size_t i = 0; i < n; ++i) x[i] = x[i] + y.lane[i];
  }
  if (f.activation == kRelu) {
    for (std::size_t i = 0; i < n; ++i) x[i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0.0f;
  } else if (f.activation == kLeaky) {
    for (std::size_t i = 0; i < n; ++i) x[i] = x[i] > 0 ? x[i] : x[i] * f.low;
  } else if (f.activation == kClip) {
    for (std::size_t i = 0; i < n; ++i) {
      const float raised = x[i] < f.low ? f.low : x[i];
      x[i] = x[i] > f.high ? f.high : raised;
    }
  }
}

// To i8 or u8: nearest even, bounded, NaN to 0.
inline void store_bytes(ElementType type, const float* x, u8* to, std::size_t n) {
  Block<i32> out;
  const float low = type == ElementType::i8 ? -128.0f : 0.0f;
  const float high = type == ElementType::i8 ? 127.0f : 255.0f;
  for (std::size_t i = 0; i < n; ++i) {
    const float raised = x[i] < low ? low : x[i];
    const float bounded = raised > high ? high : raised;
    // Adding this rounds to a whole number; bounds are whole, so that bounding first changes nothing.
    const float whole_number = ((x[i] != x[i] ? 0.0f : bounded) + 0x1.8p23f) - 0x1.8p23f;
    out.lane[i] = static_cast<i32>(whole_number);
  }
  store(type, out.lane, to, n);
}

void fix_command(const Command& c, const Target& t, CoreMemory& local, u8* dst) {
  using S = Operands_l0c_to_gm;
  const auto& o = c.operands;
  const auto real = [&](std::size_t place) { return float_of(static_cast<u32>(o[place])); };
  const Outcome f{o[S::scale],
                  o[S::bias],
                  o[S::activation],
                  real(S::scale_value),
                  real(S::low),
                  real(S::high),
                  local.l1.data() + o[S::scale_src],
                  local.l1.data() + o[S::bias_src]};
  const u64 item = bytes_of(c.types[1]);
  const u8* const src = local.l0c.data() + o[S::src];
  Block<u32> raw;
  Block<float> x;
  for (u64 i = 0; i < o[S::m]; ++i) {
    const u64 row = i / t.cube.m * ceil_div(o[S::n], t.cube.n);
    for (u64 j = 0; j < o[S::n]; j += kBlock) {
      const std::size_t n = std::min<std::size_t>(kBlock, o[S::n] - j);
      for (u64 k = 0; k < n; k += t.cube.n) {  // cube.n divides kBlock
        const u64 block = row + (j + k) / t.cube.n;
        const u64 place = (block * t.cube.m + i % t.cube.m) * t.cube.n;
        std::memcpy(raw.lane + k, src + 4 * place, 4 * std::min<u64>(t.cube.n, n - k));
      }
      u8* const to = dst + i * o[S::dst_stride] + j * item;
      const auto* const bytes = static_cast<const u8*>(static_cast<const void*>(raw.lane));
      if (c.types[1] == ElementType::i32) {
        std::memcpy(to, bytes, 4 * n);
        continue;
      }
      load(c.types[0], bytes, x.lane, n);
      finish(f, x.lane, j, n);
      if (is_float(c.types[1])) {
        store(c.types[1], x.lane, to, n);
      } else {
        store_bytes(c.types[1], x.lane, to, n);
      }
    }
  }
}

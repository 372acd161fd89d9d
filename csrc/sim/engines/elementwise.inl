// Vector commands that compute element by element.

// The operands of a command over rows x cols elements.
struct Elementwise {
  ElementType type;
  u64 rows, cols;
  u8* dst;
  u64 dst_stride;
  const u8* x;
  u64 x_stride;
  const u8* y;  // nullptr: `y_bits` is the element
  u64 y_stride;
  bool y_column;  // one element per row
  u32 y_bits;
};

Elementwise binary_of(const Command& c, u8* ub) {
  using S = Operands_v_add;
  const auto& o = c.operands;
  return {c.types[0],
          o[S::rows],
          o[S::cols],
          ub + o[S::dst],
          o[S::dst_stride],
          ub + o[S::a],
          o[S::a_stride],
          ub + o[S::b],
          o[S::b_stride],
          o[S::b_form] == 1,
          0};
}

Elementwise unary_of(const Command& c, u8* ub, u32 value) {
  using S = Operands_v_adds;
  const auto& o = c.operands;
  return {c.types[0], o[S::rows], o[S::cols], ub + o[S::dst], o[S::dst_stride], ub + o[S::src], o[S::src_stride],
          nullptr,    0,          false,      value};
}

// One long row instead of rows that lie behind one another.
void join_rows(Elementwise& e, u64 dst_item, bool reads_y) {
  const u64 row = e.cols * bytes_of(e.type);
  const bool y_joins = !reads_y || e.y == nullptr || (!e.y_column && e.y_stride == row);
  if (e.rows > 1 && e.dst_stride == e.cols * dst_item && e.x_stride == row && y_joins) {
    e.cols *= e.rows;
    e.rows = 1;
  }
}

template <class Lane>
void repeat(Lane* lane, Lane value, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) lane[i] = value;
}

template <class Lane>
Lane element_at(ElementType type, const u8* from) {
  Lane lane;
  load(type, from, &lane, 1);
  return lane;
}

// Calls use(row, first column, count, x, y) for blocks of the operands.
template <class Lane, class Use>
void for_blocks(const Elementwise& e, Use use) {
  const u64 item = bytes_of(e.type);
  Block<Lane> x, y;
  if (e.y == nullptr) {
    u8 bytes[sizeof e.y_bits];
    std::memcpy(bytes, &e.y_bits, sizeof bytes);
    repeat(y.lane, element_at<Lane>(e.type, bytes), kBlock);
  }
  for (u64 r = 0; r < e.rows; ++r) {
    const u8* const x_row = e.x + r * e.x_stride;
    const u8* const y_row = e.y == nullptr ? nullptr : e.y + r * e.y_stride;
    if (e.y_column) repeat(y.lane, element_at<Lane>(e.type, y_row), std::min<std::size_t>(e.cols, kBlock));
    for (u64 c = 0; c < e.cols; c += kBlock) {
      const std::size_t n = std::min<std::size_t>(kBlock, e.cols - c);
      load(e.type, x_row + c * item, x.lane, n);
      if (e.y != nullptr && !e.y_column) load(e.type, y_row + c * item, y.lane, n);
      use(r, c, n, x.lane, y.lane);
    }
  }
}

// dst = f(x, y); `kReadsY` only says whether rows of y matter.
template <class Lane, class F>
void map(Elementwise e, F f) {
  const u64 item = bytes_of(e.type);
  join_rows(e, item, true);
  Block<Lane> out;
  for_blocks<Lane>(e, [&](u64 r, u64 c, std::size_t n, const Lane* x, const Lane* y) {
    for (std::size_t i = 0; i < n; ++i) out.lane[i] = f(x[i], y[i]);
    store(e.type, out.lane, e.dst + r * e.dst_stride + c * item, n);
  });
}

// dst = x * y + dst.
void map_fused(Elementwise e) {
  const u64 item = bytes_of(e.type);
  join_rows(e, item, true);
  Block<float> z;
  for_blocks<float>(e, [&](u64 r, u64 c, std::size_t n, const float* x, const float* y) {
    u8* const dst = e.dst + r * e.dst_stride + c * item;
    load(e.type, dst, z.lane, n);
    for (std::size_t i = 0; i < n; ++i) z.lane[i] = fused(x[i], y[i], z.lane[i]);
    store(e.type, z.lane, dst, n);
  });
}

// A byte per element: whether the relation holds.
template <class Lane, class F>
void map_relation(Elementwise e, F holds) {
  join_rows(e, 1, true);
  for_blocks<Lane>(e, [&](u64 r, u64 c, std::size_t n, const Lane* x, const Lane* y) {
    u8* const dst = e.dst + r * e.dst_stride + c;
    for (std::size_t i = 0; i < n; ++i) dst[i] = holds(x[i], y[i]) ? 1 : 0;
  });
}

template <class Lane>
void compare(const Elementwise& e, u64 predicate) {
  switch (predicate) {
    case 0:
      return map_relation<Lane>(e, [](Lane x, Lane y) { return x == y; });
    case 1:
      return map_relation<Lane>(e, [](Lane x, Lane y) { return x != y; });
    case 2:
      return map_relation<Lane>(e, [](Lane x, Lane y) { return x < y; });
    case 3:
      return map_relation<Lane>(e, [](Lane x, Lane y) { return x <= y; });
    case 4:
      return map_relation<Lane>(e, [](Lane x, Lane y) { return x > y; });
    default:
      return map_relation<Lane>(e, [](Lane x, Lane y) { return x >= y; });
  }
}

void compare_any(const Elementwise& e, u64 predicate) {
  const bool is_float = e.type == ElementType::f32 || e.type == ElementType::f16;
  return is_float ? compare<float>(e, predicate) : compare<i32>(e, predicate);
}

// Commands on floats; false where the opcode is none of them.
bool float_command(Opcode opcode, const Elementwise& e) {
  switch (opcode) {
    case Opcode::v_add:
    case Opcode::v_adds:
      map<float>(e, [](float x, float y) { return x + y; });
      return true;
    case Opcode::v_sub:
      map<float>(e, [](float x, float y) { return x - y; });
      return true;
    case Opcode::v_rsubs:
      map<float>(e, [](float x, float y) { return y - x; });
      return true;
    case Opcode::v_mul:
    case Opcode::v_muls:
      map<float>(e, [](float x, float y) { return x * y; });
      return true;
    case Opcode::v_div:
      map<float>(e, [](float x, float y) { return x / y; });
      return true;
    case Opcode::v_max:
    case Opcode::v_maxs:
      map<float>(e, [](float x, float y) { return larger_of(x, y); });
      return true;
    case Opcode::v_min:
    case Opcode::v_mins:
      map<float>(e, [](float x, float y) { return smaller_of(x, y); });
      return true;
    case Opcode::v_fma:
    case Opcode::v_axpy:
      map_fused(e);
      return true;
    case Opcode::v_leaky:
      map<float>(e, [](float x, float y) { return x > 0 ? x : x * y; });
      return true;
    case Opcode::v_relu:
      map<float>(e, [](float x, float) { return x > 0 || x != x ? x : 0.0f; });
      return true;
    case Opcode::v_exp:
      map<float>(e, [](float x, float) { return exp_of(x); });
      return true;
    case Opcode::v_ln:
      map<float>(e, [](float x, float) { return ln_of(x); });
      return true;
    case Opcode::v_sqrt:
      map<float>(e, [](float x, float) { return __builtin_sqrtf(x); });
      return true;
    case Opcode::v_rsqrt:
      map<float>(e, [](float x, float) { return 1.0f / __builtin_sqrtf(x); });
      return true;
    case Opcode::v_reciprocal:
      map<float>(e, [](float x, float) { return 1.0f / x; });
      return true;
    default:
      return false;
  }
}

void integer_command(Opcode opcode, const Elementwise& e) {
  switch (opcode) {
    case Opcode::v_add:
    case Opcode::v_adds:
      return map<i32>(e, [](i32 x, i32 y) { return wrapped_add(x, y); });
    case Opcode::v_sub:
      return map<i32>(e, [](i32 x, i32 y) { return wrapped_sub(x, y); });
    case Opcode::v_rsubs:
      return map<i32>(e, [](i32 x, i32 y) { return wrapped_sub(y, x); });
    case Opcode::v_mul:
    case Opcode::v_muls:
      return map<i32>(e, [](i32 x, i32 y) { return wrapped_mul(x, y); });
    case Opcode::v_max:
    case Opcode::v_maxs:
      return map<i32>(e, [](i32 x, i32 y) { return larger_of(x, y); });
    case Opcode::v_min:
    case Opcode::v_mins:
      return map<i32>(e, [](i32 x, i32 y) { return smaller_of(x, y); });
    case Opcode::v_and:
      return map<i32>(e, [](i32 x, i32 y) { return x & y; });
    case Opcode::v_or:
      return map<i32>(e, [](i32 x, i32 y) { return x | y; });
    case Opcode::v_xor:
      return map<i32>(e, [](i32 x, i32 y) { return x ^ y; });
    case Opcode::v_shl:
      return map<i32>(e, [](i32 x, i32 y) { return static_cast<i32>(static_cast<u32>(x) << (y & 31)); });
    case Opcode::v_shr:
      return map<i32>(e, [](i32 x, i32 y) { return x >> (y & 31); });
    case Opcode::v_abs:
      return map<i32>(e, [](i32 x, i32) { return x < 0 ? wrapped_sub(0, x) : x; });
    case Opcode::v_neg:
      return map<i32>(e, [](i32 x, i32) { return wrapped_sub(0, x); });
    case Opcode::v_relu:
      return map<i32>(e, [](i32 x, i32) { return larger_of(x, 0); });
    case Opcode::v_not:
      return map<i32>(e, [](i32 x, i32) { return ~x; });
    default:
      return;
  }
}

// What has a sign bit and no arithmetic: |x| and -x of floats keep the bits of NaN.
void sign_command(Opcode opcode, Elementwise e) {
  const u32 sign = e.type == ElementType::f16 ? 0x8000u : 0x80000000u;
  if (opcode == Opcode::v_abs) {
    e.y_bits = sign - 1;
    return integer_command(Opcode::v_and, e);
  }
  e.y_bits = sign;
  return integer_command(Opcode::v_xor, e);
}

void elementwise_command(const Command& c, Elementwise e) {
  const bool is_float = c.types[0] == ElementType::f32 || c.types[0] == ElementType::f16;
  if (!is_float) return integer_command(c.opcode, e);
  if (!float_command(c.opcode, e)) sign_command(c.opcode, e);
}

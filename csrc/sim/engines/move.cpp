// The engines that move bytes: MTE2, MTE3, MTE1 and SDMA.
//
// Model: a matrix for L0A or L0B is written row by row of the destination; `FractalRows` knows where the pieces of a
// row lie. Elements are only sized here, never interpreted.
#include <algorithm>
#include <cstring>

#include "sim/engines/kernels.h"

namespace sk::sim {
namespace {

using u64 = std::uint64_t;
using u8 = std::uint8_t;

// `count` times the low `item` bytes of `value`.
void fill(u8* dst, u64 value, u64 item, u64 count) {
  if (count == 0) return;
  const u64 total = item * count;
  std::memcpy(dst, &value, item);
  for (u64 done = item; done < total; done *= 2) std::memcpy(dst + done, dst, std::min(done, total - done));
}

// The layout of L0A and L0B for `rows` rows of `row_bytes`: fractals of `high` rows of `block` bytes.
class FractalRows {
 public:
  FractalRows(const Target& t, u8* dst, u64 rows, u64 row_bytes)
      : high_(t.cube.m), block_(t.memory.block_bytes), across_(ceil_div(row_bytes, block_)), dst_(dst), rows_(rows) {}

  u64 padded_row_bytes() const { return across_ * block_; }
  // `row` has padded_row_bytes() bytes, zeros behind its end.
  void put(u64 i, const u8* row) {
    u8* to = dst_ + (i / high_ * across_ * high_ + i % high_) * block_;
    for (u64 b = 0; b < across_; ++b) std::memcpy(to + b * high_ * block_, row + b * block_, block_);
  }
  // The rows of the last fractals that lie outside the matrix.
  void put_zeros(Scratch& scratch) {
    u8* row = scratch.room<u8>(padded_row_bytes());
    std::memset(row, 0, padded_row_bytes());
    for (u64 i = rows_; i % high_ != 0; ++i) put(i, row);
  }

 private:
  u64 high_, block_, across_;
  u8* dst_;
  u64 rows_;
};

thread_local Scratch row_scratch;

void copy_rows(u8* dst, u64 dst_stride, const u8* src, u64 src_stride, u64 rows, u64 row_bytes) {
  if (dst_stride == row_bytes && src_stride == row_bytes) {
    std::memcpy(dst, src, rows * row_bytes);
    return;
  }
  for (u64 r = 0; r < rows; ++r) std::memcpy(dst + r * dst_stride, src + r * src_stride, row_bytes);
}

void load_padded(const Command& c, u8* dst, const u8* src) {
  using S = Operands_gm_to_ub_2d;
  const auto& o = c.operands;
  const u64 item = bytes_of(c.types[0]);
  const u64 row_bytes = o[S::cols] * item;
  const u64 left = o[S::left];
  const u64 right = o[S::right];
  if (left == 0 && right == 0) return copy_rows(dst, o[S::dst_stride], src, o[S::src_stride], o[S::rows], row_bytes);
  for (u64 r = 0; r < o[S::rows]; ++r) {
    u8* row = dst + r * o[S::dst_stride];
    fill(row, o[S::pad], item, left);
    std::memcpy(row + left * item, src + r * o[S::src_stride], row_bytes);
    fill(row + left * item + row_bytes, o[S::pad], item, right);
  }
}

// Rows of the destination are columns of the source. Works in tiles, so that both sides stay in the cache.
template <class U>
void load_across(const Target& t, u8* dst, const u8* src, u64 stride, u64 rows, u64 depth) {
  const u64 high = t.cube.m;
  const u64 deep = t.memory.block_bytes / sizeof(U);
  const u64 across = ceil_div(depth, deep);
  for (u64 i0 = 0; i0 < rows; i0 += high) {
    const u64 some_rows = std::min(high, rows - i0);
    for (u64 b = 0; b < across; ++b) {
      U* const tile = reinterpret_cast<U*>(dst + (i0 / high * across + b) * high * t.memory.block_bytes);
      const u64 some_depth = std::min(deep, depth - b * deep);
      if (some_rows < high || some_depth < deep) std::memset(tile, 0, high * t.memory.block_bytes);
      for (u64 k = 0; k < some_depth; ++k) {
        const u8* from = src + (b * deep + k) * stride + i0 * sizeof(U);
        for (u64 i = 0; i < some_rows; ++i) std::memcpy(tile + i * deep + k, from + i * sizeof(U), sizeof(U));
      }
    }
  }
}

// `straight`: rows of the source are rows of the destination.
void load_matrix(const Command& c, const Target& t, u8* dst, const u8* src, bool straight) {
  using S = Operands_l1_to_l0a;
  static_assert(std::size_t{S::m} == std::size_t{Operands_l1_to_l0b::n} &&
                std::size_t{S::k} == std::size_t{Operands_l1_to_l0b::k});
  const u64 item = bytes_of(c.types[0]);
  const u64 rows = c.operands[S::m];
  const u64 depth = c.operands[S::k];
  const u64 stride = c.operands[S::src_stride];
  if (!straight) {
    const auto load = item == 1 ? load_across<u8> : item == 2 ? load_across<std::uint16_t> : load_across<std::uint32_t>;
    return load(t, dst, src, stride, rows, depth);
  }
  FractalRows out(t, dst, rows, depth * item);
  u8* row = row_scratch.room<u8>(out.padded_row_bytes());
  std::memset(row, 0, out.padded_row_bytes());
  for (u64 i = 0; i < rows; ++i) {
    std::memcpy(row, src + i * stride, depth * item);
    out.put(i, row);
  }
  out.put_zeros(row_scratch);
}

// Calls use(column, count, offset) for the runs of output row i: `count` elements from `column` on are the image's from
// byte `offset` on, or padding where the offset is kPadding.
constexpr u64 kPadding = ~u64{0};
template <class Use>
void im2col_row(const Command& c, u64 i, Use use) {
  using S = Operands_l1_im2col;
  const auto& o = c.operands;
  const u64 channels = o[S::channels];
  const u64 position = o[S::m_first] + i;
  // A coordinate above or left of the image wraps to a huge number, which is outside too.
  const u64 top = position / o[S::out_width] * o[S::stride_h] - o[S::pad_top];
  const u64 left = position % o[S::out_width] * o[S::stride_w] - o[S::pad_left];
  for (u64 j = 0; j < o[S::k];) {
    const u64 q = o[S::k_first] + j;
    const u64 channel = q % channels;
    const u64 filter_row = q / (o[S::kernel_w] * channels);
    const u64 y = top + filter_row * o[S::dilation_h];
    const u64 x = left + q / channels % o[S::kernel_w] * o[S::dilation_w];
    const u64 count = std::min(o[S::k] - j, channels - channel);
    const bool inside = filter_row < o[S::kernel_h] && y < o[S::height] && x < o[S::width];
    const u64 element = inside ? (y * o[S::width] + x) * channels + channel : 0;
    use(j, count, inside ? element * bytes_of(c.types[0]) : kPadding);
    j += count;
  }
}

void im2col(const Command& c, const Target& t, u8* dst, const u8* src) {
  using S = Operands_l1_im2col;
  const u64 item = bytes_of(c.types[0]);
  const u64 rows = c.operands[S::m];
  FractalRows out(t, dst, rows, c.operands[S::k] * item);
  u8* row = row_scratch.room<u8>(out.padded_row_bytes());
  std::memset(row, 0, out.padded_row_bytes());
  for (u64 i = 0; i < rows; ++i) {
    im2col_row(c, i, [&](u64 column, u64 count, u64 offset) {
      if (offset == kPadding) {
        fill(row + column * item, c.operands[S::pad], item, count);
      } else {
        std::memcpy(row + column * item, src + offset, count * item);
      }
    });
    out.put(i, row);
  }
  out.put_zeros(row_scratch);
}

}  // namespace

std::uint64_t im2col_unwritten(const Command& c, const LocalMemory& l1) {
  using S = Operands_l1_im2col;
  const u64 item = bytes_of(c.types[0]);
  u64 found = ~u64{0};
  for (u64 i = 0; i < c.operands[S::m] && found == ~u64{0}; ++i) {
    im2col_row(c, i, [&](u64, u64 count, u64 offset) {
      if (offset == kPadding || found != ~u64{0}) return;
      const u64 begin = c.operands[S::src] + offset;
      const u64 first = l1.first_unwritten(begin, count * item);
      if (first != begin + count * item) found = first;
    });
  }
  return found;
}

void move_data(const Command& c, const Target& t, CoreMemory& local, GlobalMemory& global) {
  const auto& o = c.operands;
  u8* const l1 = local.l1.data();
  u8* const ub = local.ub.data();
  const auto gm = [&](u64 address) { return global.data + (address - global.base); };
  switch (c.opcode) {
    case Opcode::gm_to_l1: {
      using S = Operands_gm_to_l1;
      std::memcpy(l1 + o[S::dst], gm(o[S::src]), o[S::bytes]);
      return;
    }
    case Opcode::gm_to_ub: {
      using S = Operands_gm_to_ub;
      std::memcpy(ub + o[S::dst], gm(o[S::src]), o[S::bytes]);
      return;
    }
    case Opcode::gm_to_l1_2d:
      return load_padded(c, l1 + o[Operands_gm_to_l1_2d::dst], gm(o[Operands_gm_to_l1_2d::src]));
    case Opcode::gm_to_ub_2d:
      return load_padded(c, ub + o[Operands_gm_to_ub_2d::dst], gm(o[Operands_gm_to_ub_2d::src]));
    case Opcode::l1_fill:
    case Opcode::ub_fill: {
      using S = Operands_ub_fill;
      u8* const memory = c.opcode == Opcode::l1_fill ? l1 : ub;
      return fill(memory + o[S::dst], o[S::value], bytes_of(c.types[0]), o[S::count]);
    }
    case Opcode::l1_to_l0a: {
      using S = Operands_l1_to_l0a;
      return load_matrix(c, t, local.l0a.data() + o[S::dst], l1 + o[S::src], o[S::transpose] == 0);
    }
    case Opcode::l1_to_l0b: {
      using S = Operands_l1_to_l0b;
      return load_matrix(c, t, local.l0b.data() + o[S::dst], l1 + o[S::src], o[S::transpose] == 1);
    }
    case Opcode::l1_im2col: {
      using S = Operands_l1_im2col;
      return im2col(c, t, local.l0a.data() + o[S::dst], l1 + o[S::src]);
    }
    case Opcode::l1_to_l0a_raw: {
      using S = Operands_l1_to_l0a_raw;
      std::memcpy(local.l0a.data() + o[S::dst], l1 + o[S::src], o[S::bytes]);
      return;
    }
    case Opcode::l1_to_l0b_raw: {
      using S = Operands_l1_to_l0b_raw;
      std::memcpy(local.l0b.data() + o[S::dst], l1 + o[S::src], o[S::bytes]);
      return;
    }
    case Opcode::ub_to_gm: {
      using S = Operands_ub_to_gm;
      std::memcpy(gm(o[S::dst]), ub + o[S::src], o[S::bytes]);
      return;
    }
    case Opcode::ub_to_gm_2d: {
      using S = Operands_ub_to_gm_2d;
      return copy_rows(gm(o[S::dst]), o[S::dst_stride], ub + o[S::src], o[S::src_stride], o[S::rows], o[S::row_bytes]);
    }
    case Opcode::sdma_copy: {
      using S = Operands_sdma_copy;
      std::memcpy(gm(o[S::dst]), gm(o[S::src]), o[S::bytes]);
      return;
    }
    default:
      return;
  }
}

}  // namespace sk::sim

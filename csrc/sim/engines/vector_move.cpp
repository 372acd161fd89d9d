// Vector commands that move elements and compute nothing: bits of 1, 2 or 4 bytes.
#include <algorithm>
#include <cstring>

#include "sim/engines/kernels.h"

namespace sk::sim {
namespace {

using u64 = std::uint64_t;
using u32 = std::uint32_t;
using u16 = std::uint16_t;
using u8 = std::uint8_t;

template <class U>
U element_at(const u8* from) {
  U element;
  std::memcpy(&element, from, sizeof element);
  return element;
}

template <class U>
void repeat(u8* to, U element, u64 count) {
  for (u64 i = 0; i < count; ++i) std::memcpy(to + i * sizeof(U), &element, sizeof(U));
}

void copy(const Command& c, u8* ub) {
  using S = Operands_v_copy;
  const auto& o = c.operands;
  const u64 row_bytes = o[S::cols] * bytes_of(c.types[0]);
  // A copy onto itself is legal.
  if (o[S::dst] == o[S::src]) return;
  for (u64 r = 0; r < o[S::rows]; ++r) {
    std::memcpy(ub + o[S::dst] + r * o[S::dst_stride], ub + o[S::src] + r * o[S::src_stride], row_bytes);
  }
}

// dst = a where the mask is set, else b (or the element `value` where b is nullptr). Rows may be in place of a or b.
template <class U>
void select_row(u8* dst, const u8* a, const u8* b, U value, const u8* mask, u64 cols) {
  for (u64 i = 0; i < cols; ++i) {
    const U other = b == nullptr ? value : element_at<U>(b + i * sizeof(U));
    const U chosen = mask[i] != 0 ? element_at<U>(a + i * sizeof(U)) : other;
    std::memcpy(dst + i * sizeof(U), &chosen, sizeof(U));
  }
}

template <class U>
void select(const Command& c, u8* ub) {
  using S = Operands_v_select;
  const auto& o = c.operands;
  for (u64 r = 0; r < o[S::rows]; ++r) {
    select_row<U>(ub + o[S::dst] + r * o[S::dst_stride], ub + o[S::a] + r * o[S::a_stride],
                  ub + o[S::b] + r * o[S::b_stride], U{0}, ub + o[S::mask] + r * o[S::mask_stride], o[S::cols]);
  }
}

template <class U>
void select_value(const Command& c, u8* ub) {
  using S = Operands_v_selects;
  const auto& o = c.operands;
  for (u64 r = 0; r < o[S::rows]; ++r) {
    select_row<U>(ub + o[S::dst] + r * o[S::dst_stride], ub + o[S::src] + r * o[S::src_stride], nullptr,
                  static_cast<U>(o[S::value]), ub + o[S::mask] + r * o[S::mask_stride], o[S::cols]);
  }
}

template <class U>
void broadcast(const Command& c, u8* ub) {
  using S = Operands_v_broadcast;
  const auto& o = c.operands;
  const u8* const src = ub + o[S::src];
  for (u64 r = 0; r < o[S::rows]; ++r) {
    u8* const dst = ub + o[S::dst] + r * o[S::dst_stride];
    if (o[S::form] == 0) {
      std::memcpy(dst, src, o[S::cols] * sizeof(U));
    } else {
      repeat(dst, element_at<U>(src + r * sizeof(U)), o[S::cols]);
    }
  }
}

template <class U>
void duplicate(const Command& c, u8* ub) {
  using S = Operands_v_duplicate;
  const auto& o = c.operands;
  for (u64 r = 0; r < o[S::rows]; ++r) {
    repeat(ub + o[S::dst] + r * o[S::dst_stride], static_cast<U>(o[S::value]), o[S::cols]);
  }
}

// In tiles, so that both sides stay in the cache.
template <class U>
void transpose(const Command& c, u8* ub) {
  using S = Operands_v_transpose;
  constexpr u64 kTile = 16;
  const auto& o = c.operands;
  for (u64 r0 = 0; r0 < o[S::rows]; r0 += kTile) {
    const u64 r_end = std::min(r0 + kTile, o[S::rows]);
    for (u64 c0 = 0; c0 < o[S::cols]; c0 += kTile) {
      const u64 c_end = std::min(c0 + kTile, o[S::cols]);
      for (u64 r = r0; r < r_end; ++r) {
        const u8* const src = ub + o[S::src] + r * o[S::src_stride];
        u8* const dst = ub + o[S::dst] + r * sizeof(U);
        for (u64 k = c0; k < c_end; ++k) std::memcpy(dst + k * o[S::dst_stride], src + k * sizeof(U), sizeof(U));
      }
    }
  }
}

template <class U>
void gather(const Command& c, u8* ub) {
  using S = Operands_v_gather;
  const auto& o = c.operands;
  for (u64 i = 0; i < o[S::cols]; ++i) {
    const u64 offset = element_at<u32>(ub + o[S::offsets] + 4 * i);
    std::memcpy(ub + o[S::dst] + i * sizeof(U), ub + o[S::src] + offset, sizeof(U));
  }
}

template <class U>
void scatter(const Command& c, u8* ub) {
  using S = Operands_v_scatter;
  const auto& o = c.operands;
  for (u64 i = 0; i < o[S::cols]; ++i) {
    const u64 offset = element_at<u32>(ub + o[S::offsets] + 4 * i);
    std::memcpy(ub + o[S::dst] + offset, ub + o[S::src] + i * sizeof(U), sizeof(U));
  }
}

template <class U>
void move_elements(const Command& c, u8* ub) {
  switch (c.opcode) {
    case Opcode::v_select:
      return select<U>(c, ub);
    case Opcode::v_selects:
      return select_value<U>(c, ub);
    case Opcode::v_broadcast:
      return broadcast<U>(c, ub);
    case Opcode::v_duplicate:
      return duplicate<U>(c, ub);
    case Opcode::v_transpose:
      return transpose<U>(c, ub);
    case Opcode::v_gather:
      return gather<U>(c, ub);
    default:
      return scatter<U>(c, ub);
  }
}

}  // namespace

bool moves_vector(Opcode opcode) {
  switch (opcode) {
    case Opcode::v_copy:
    case Opcode::v_select:
    case Opcode::v_selects:
    case Opcode::v_broadcast:
    case Opcode::v_duplicate:
    case Opcode::v_transpose:
    case Opcode::v_gather:
    case Opcode::v_scatter:
      return true;
    default:
      return false;
  }
}

void move_vector(const Command& c, std::uint8_t* ub) {
  if (c.opcode == Opcode::v_copy) return copy(c, ub);
  switch (bytes_of(c.types[0])) {
    case 1:
      return move_elements<u8>(c, ub);
    case 2:
      return move_elements<u16>(c, ub);
    default:
      return move_elements<u32>(c, ub);
  }
}

}  // namespace sk::sim

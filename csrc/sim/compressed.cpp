// See compressed.h. The tables of the specification by quadrant (low two bits) and funct3 (high three).
#include "sim/compressed.h"

namespace sk::sim {
namespace {

using u32 = std::uint32_t;

constexpr u32 kLui = 0x37, kAddi = 0x13, kAddiw = 0x1b, kOp = 0x33, kOpw = 0x3b, kLoad = 0x03, kStore = 0x23;
constexpr u32 kLoadFp = 0x07, kStoreFp = 0x27, kJal = 0x6f, kJalr = 0x67, kBranch = 0x63, kEbreak = 0x00100073;

// `count` bits of the halfword from `from` on, moved to bit position `to`.
constexpr u32 field(u32 half, int from, int count, int to) { return ((half >> from) & ((1U << count) - 1)) << to; }

constexpr u32 sign_extend(u32 value, int bits) {
  const u32 sign = 1U << (bits - 1);
  return (value ^ sign) - sign;
}

constexpr u32 itype(u32 opcode, u32 funct3, u32 rd, u32 rs1, u32 imm) {
  return opcode | rd << 7 | funct3 << 12 | rs1 << 15 | imm << 20;
}

constexpr u32 stype(u32 opcode, u32 funct3, u32 rs1, u32 rs2, u32 imm) {
  return opcode | (imm & 31) << 7 | funct3 << 12 | rs1 << 15 | rs2 << 20 | (imm >> 5) << 25;
}

constexpr u32 rtype(u32 opcode, u32 funct3, u32 funct7, u32 rd, u32 rs1, u32 rs2) {
  return opcode | rd << 7 | funct3 << 12 | rs1 << 15 | rs2 << 20 | funct7 << 25;
}

constexpr u32 jal(u32 rd, u32 imm) {
  return kJal | rd << 7 | (imm & 0xff000) | field(imm, 11, 1, 20) | field(imm, 1, 10, 21) | field(imm, 20, 1, 31);
}

constexpr u32 branch(u32 funct3, u32 rs1, u32 imm) {
  return kBranch | field(imm, 11, 1, 7) | field(imm, 1, 4, 8) | funct3 << 12 | rs1 << 15 | field(imm, 5, 6, 25) |
         field(imm, 12, 1, 31);
}

u32 quadrant0(u32 h) {
  const u32 rd = 8 + field(h, 2, 3, 0);
  const u32 rs1 = 8 + field(h, 7, 3, 0);
  const u32 word_offset = field(h, 6, 1, 2) | field(h, 10, 3, 3) | field(h, 5, 1, 6);
  const u32 double_offset = field(h, 10, 3, 3) | field(h, 5, 2, 6);
  switch (h >> 13) {
    case 0: {  // c.addi4spn; zero is reserved, and with it the all-zero halfword
      const u32 imm = field(h, 6, 1, 2) | field(h, 5, 1, 3) | field(h, 11, 2, 4) | field(h, 7, 4, 6);
      return imm == 0 ? 0 : itype(kAddi, 0, rd, 2, imm);
    }
    case 1:
      return itype(kLoadFp, 3, rd, rs1, double_offset);
    case 2:
      return itype(kLoad, 2, rd, rs1, word_offset);
    case 3:
      return itype(kLoad, 3, rd, rs1, double_offset);
    case 5:
      return stype(kStoreFp, 3, rs1, rd, double_offset);
    case 6:
      return stype(kStore, 2, rs1, rd, word_offset);
    case 7:
      return stype(kStore, 3, rs1, rd, double_offset);
    default:
      return 0;
  }
}

u32 arithmetic(u32 h, u32 imm6) {
  const u32 rd = 8 + field(h, 7, 3, 0);
  const u32 rs2 = 8 + field(h, 2, 3, 0);
  const u32 shift = imm6 & 63;
  switch (field(h, 10, 2, 0)) {
    case 0:
      return itype(kAddi, 5, rd, rd, shift);
    case 1:
      return itype(kAddi, 5, rd, rd, 0x400 | shift);
    case 2:
      return itype(kAddi, 7, rd, rd, imm6);
    default:
      break;
  }
  switch (field(h, 12, 1, 2) | field(h, 5, 2, 0)) {
    case 0:
      return rtype(kOp, 0, 0x20, rd, rd, rs2);
    case 1:
      return rtype(kOp, 4, 0, rd, rd, rs2);
    case 2:
      return rtype(kOp, 6, 0, rd, rd, rs2);
    case 3:
      return rtype(kOp, 7, 0, rd, rd, rs2);
    case 4:
      return rtype(kOpw, 0, 0x20, rd, rd, rs2);
    case 5:
      return rtype(kOpw, 0, 0, rd, rd, rs2);
    default:
      return 0;
  }
}

u32 quadrant1(u32 h) {
  const u32 rd = field(h, 7, 5, 0);
  const u32 rs1 = 8 + field(h, 7, 3, 0);
  const u32 imm6 = sign_extend(field(h, 12, 1, 5) | field(h, 2, 5, 0), 6);
  const u32 near = sign_extend(
      field(h, 12, 1, 8) | field(h, 5, 2, 6) | field(h, 2, 1, 5) | field(h, 10, 2, 3) | field(h, 3, 2, 1), 9);
  switch (h >> 13) {
    case 0:
      return itype(kAddi, 0, rd, rd, imm6);
    case 1:
      return rd == 0 ? 0 : itype(kAddiw, 0, rd, rd, imm6);
    case 2:
      return itype(kAddi, 0, rd, 0, imm6);
    case 3: {
      if (rd == 2) {  // c.addi16sp
        const u32 imm =
            field(h, 12, 1, 9) | field(h, 3, 2, 7) | field(h, 5, 1, 6) | field(h, 2, 1, 5) | field(h, 6, 1, 4);
        return imm == 0 ? 0 : itype(kAddi, 0, 2, 2, sign_extend(imm, 10));
      }
      return imm6 == 0 ? 0 : kLui | rd << 7 | imm6 << 12;
    }
    case 4:
      return arithmetic(h, imm6);
    case 5: {
      const u32 far = field(h, 12, 1, 11) | field(h, 8, 1, 10) | field(h, 9, 2, 8) | field(h, 6, 1, 7) |
                      field(h, 7, 1, 6) | field(h, 2, 1, 5) | field(h, 11, 1, 4) | field(h, 3, 3, 1);
      return jal(0, sign_extend(far, 12));
    }
    case 6:
      return branch(0, rs1, near);
    default:
      return branch(1, rs1, near);
  }
}

u32 quadrant2(u32 h) {
  const u32 rd = field(h, 7, 5, 0);
  const u32 rs2 = field(h, 2, 5, 0);
  const u32 double_load = field(h, 5, 2, 3) | field(h, 12, 1, 5) | field(h, 2, 3, 6);
  const u32 double_store = field(h, 10, 3, 3) | field(h, 7, 3, 6);
  switch (h >> 13) {
    case 0:
      return itype(kAddi, 1, rd, rd, field(h, 12, 1, 5) | rs2);
    case 1:
      return itype(kLoadFp, 3, rd, 2, double_load);
    case 2:
      return rd == 0 ? 0 : itype(kLoad, 2, rd, 2, field(h, 4, 3, 2) | field(h, 12, 1, 5) | field(h, 2, 2, 6));
    case 3:
      return rd == 0 ? 0 : itype(kLoad, 3, rd, 2, double_load);
    case 4: {
      const bool links = (h & 0x1000) != 0;
      if (rs2 != 0) return rtype(kOp, 0, 0, rd, links ? rd : 0, rs2);  // c.add, c.mv
      if (rd == 0) return links ? kEbreak : 0;
      return itype(kJalr, 0, links ? 1 : 0, rd, 0);
    }
    case 5:
      return stype(kStoreFp, 3, 2, rs2, double_store);
    case 6:
      return stype(kStore, 2, 2, rs2, field(h, 9, 4, 2) | field(h, 7, 2, 6));
    default:
      return stype(kStore, 3, 2, rs2, double_store);
  }
}

}  // namespace

std::uint32_t expand_compressed(std::uint16_t half) {
  switch (half & 3) {
    case 0:
      return quadrant0(half);
    case 1:
      return quadrant1(half);
    case 2:
      return quadrant2(half);
    default:
      return 0;
  }
}

}  // namespace sk::sim

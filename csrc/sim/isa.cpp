// See isa.h: the table's index and the decoder. The disassembler is in disassemble.cpp.
#include "sim/isa.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <vector>

#include "sim/compressed.h"

namespace sk::sim {
namespace {

constexpr Instruction kInstructions[] = {
#define X(id, name, mask, match, operands) {name, mask, match, operands, Op::id, Op::id##_c},
    SK_ISA_BASE(X)
#undef X
#define X(id, name, mask, match, operands) {name, mask, match, operands, Op::id, Op::undecoded},
        SK_ISA_WIDE(X)
#undef X
};

// What a row's operands say, ready for the decoder.
struct Shape {
  char immediate = '\0';  // the operand's letter
  bool rd = false;
  bool integer_rd = false;
  bool rs1 = false, rs2 = false, rs3 = false;

  constexpr explicit Shape(const char* operands) {
    for (; *operands != '\0'; ++operands) read(*operands);
  }

 private:
  constexpr void read(char operand) {
    switch (operand) {
      case 'd':
        integer_rd = rd = true;
        break;
      case 'D':
        rd = true;
        break;
      case 's':
      case 'S':
      case 'Z':
        rs1 = true;
        break;
      case 't':
      case 'T':
        rs2 = true;
        break;
      case 'R':
        rs3 = true;
        break;
      case 'j':
      case 'o':
      case 'q':
      case 'p':
      case 'a':
      case 'u':
      case '>':
      case '<':
      case 'E':
      case 'f':
      case 'm':
        immediate = operand;
        break;
      default:  // punctuation, and the fence's sets, of which only the disassembler knows
        break;
    }
  }
};

constexpr Shape kShapes[] = {// of kInstructions
#define X(id, name, mask, match, operands) Shape(operands),
                             SK_ISA_BASE(X) SK_ISA_WIDE(X)
#undef X
};
static_assert(std::size(kShapes) == std::size(kInstructions));

const Shape& shape_of(const Instruction& row) { return kShapes[&row - kInstructions]; }

constexpr std::uint32_t kFunct3 = 7U << 12;

// Rows by bits 6..2 and 14..12 of the word, the ones with more mask bits first.
struct Index {
  std::array<std::vector<const Instruction*>, 256> rows;

  static std::size_t bucket_of(std::uint32_t word) { return (word >> 2 & 31) << 3 | (word & kFunct3) >> 12; }
  Index() {
    for (const Instruction& row : kInstructions) {
      const std::size_t first = bucket_of(row.match);
      for (std::size_t funct3 = 0; funct3 < 8; ++funct3) {
        const bool fits = (((first & 7) ^ funct3) & (row.mask & kFunct3) >> 12) == 0;
        if (fits) rows[(first & ~std::size_t{7}) | funct3].push_back(&row);
      }
    }
    for (auto& bucket : rows) {
      std::stable_sort(bucket.begin(), bucket.end(), [](const Instruction* a, const Instruction* b) {
        return std::popcount(a->mask) > std::popcount(b->mask);
      });
    }
  }
};

std::int32_t arithmetic_shift(std::uint32_t word, int count) { return static_cast<std::int32_t>(word) >> count; }

std::uint8_t bits_at(std::uint32_t word, int from, int count) {
  return static_cast<std::uint8_t>((word >> from) & ((1U << count) - 1));
}

std::int32_t immediate_of(char kind, std::uint32_t word) {
  switch (kind) {
    case 'j':
    case 'o':
      return immediate_i(word);
    case 'q':
      return immediate_s(word);
    case 'p':
      return immediate_b(word);
    case 'a':
      return immediate_j(word);
    case 'u':
      return static_cast<std::int32_t>(word & 0xfffff000);
    case '>':
      return bits_at(word, 20, 6);
    case '<':
      return bits_at(word, 20, 5);
    case 'E':
      return static_cast<std::int32_t>(word >> 20);
    case 'f':
      return immediate_i(word) & ~31;
    case 'm':
      return bits_at(word, 12, 3);
    default:
      return 0;
  }
}

void read_operands(const Shape& shape, std::uint32_t word, Record& record) {
  const std::uint8_t rd = bits_at(word, 7, 5);
  if (shape.rd) record.rd = rd == 0 && shape.integer_rd ? kSink : rd;
  record.rs1 = shape.rs1 ? bits_at(word, 15, 5) : std::uint8_t{0};
  record.rs2 = shape.rs2 ? bits_at(word, 20, 5) : std::uint8_t{0};
  record.rs3 = shape.rs3 ? bits_at(word, 27, 5) : std::uint8_t{0};
  record.imm = immediate_of(shape.immediate, word);
}

}  // namespace

std::span<const Instruction> instructions() { return kInstructions; }

const Instruction* find_instruction(std::uint32_t word) {
  static const Index index;
  if ((word & 3) != 3) return nullptr;
  for (const Instruction* row : index.rows[Index::bucket_of(word)]) {
    if ((word & row->mask) != row->match) continue;
    const std::uint32_t rounding = (word >> 12) & 7;
    const bool rounds = shape_of(*row).immediate == 'm';
    return rounds && (rounding == 5 || rounding == 6) ? nullptr : row;
  }
  return nullptr;
}

std::int32_t immediate_i(std::uint32_t word) { return arithmetic_shift(word, 20); }

std::int32_t immediate_s(std::uint32_t word) {
  return (arithmetic_shift(word, 20) & ~31) | static_cast<std::int32_t>((word >> 7) & 31);
}

std::int32_t immediate_b(std::uint32_t word) {
  return (arithmetic_shift(word, 19) & ~0xfff) |
         static_cast<std::int32_t>((word << 4 & 0x800) | (word >> 20 & 0x7e0) | (word >> 7 & 0x1e));
}

std::int32_t immediate_j(std::uint32_t word) {
  return (arithmetic_shift(word, 11) & ~0xfffff) |
         static_cast<std::int32_t>((word & 0xff000) | (word >> 9 & 0x800) | (word >> 20 & 0x7fe));
}

Record decode(std::span<const std::uint8_t> memory, std::size_t offset, std::uint32_t line_bytes) {
  Record record{Op::illegal, Op::undecoded, 0, kSink, 0, 0, 0, 0};
  std::uint16_t low = 0;
  std::memcpy(&low, memory.data() + offset, 2);
  const bool compressed = (low & 3) != 3;
  std::uint32_t word = 0;
  if (compressed) {
    record.bits = low;
    word = expand_compressed(low);
  } else if (memory.size() - offset < 4) {
    record.op = Op::fetch_fault;
    return record;
  } else {
    std::memcpy(&word, memory.data() + offset, 4);
    record.bits = word;
  }
  if (const Instruction* row = find_instruction(word)) {
    record.op = compressed ? row->op_compressed : row->op;
    const Shape& shape = shape_of(*row);
    read_operands(shape, word, record);
    if (shape.immediate == 'p' || shape.immediate == 'a') {
      const std::uint64_t target = offset + static_cast<std::uint64_t>(std::int64_t{record.imm});
      if (target >= memory.size()) {
        record.then = record.op;
        record.op = Op::wild;
      }
    }
  }
  // Without a jump, a line is entered at its first parcel or by an instruction across the end of the line before.
  if (line_bytes != 0) {
    const std::uint64_t place = offset & (line_bytes - 1);
    if (place == 0 || (place == line_bytes - 2 && !compressed)) {
      // A wild jump needs `then` for itself; its handler asks the cache.
      if (record.op != Op::wild) {
        record.then = record.op;
        record.op = Op::line_check;
      }
    }
  }
  return record;
}

}  // namespace sk::sim

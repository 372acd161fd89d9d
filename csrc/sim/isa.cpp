// See isa.h: the table's index and the decoder. The disassembler is in disassemble.cpp.
#include "sim/isa.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
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

// Rows by bits 6..2 of the word, the ones with more mask bits first.
struct Index {
  std::array<std::vector<const Instruction*>, 32> rows;

  Index() {
    for (const Instruction& row : kInstructions) rows[(row.match >> 2) & 31].push_back(&row);
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

// Fills in what one operand letter stands for.
void read_operand(char operand, std::uint32_t word, Record& record) {
  switch (operand) {
    case 'd':
      record.rd = bits_at(word, 7, 5) == 0 ? kSink : bits_at(word, 7, 5);
      break;
    case 'D':
      record.rd = bits_at(word, 7, 5);
      break;
    case 's':
    case 'S':
    case 'Z':
      record.rs1 = bits_at(word, 15, 5);
      break;
    case 't':
    case 'T':
      record.rs2 = bits_at(word, 20, 5);
      break;
    case 'R':
      record.rs3 = bits_at(word, 27, 5);
      break;
    case 'j':
    case 'o':
      record.imm = immediate_i(word);
      break;
    case 'q':
      record.imm = immediate_s(word);
      break;
    case 'p':
      record.imm = immediate_b(word);
      break;
    case 'a':
      record.imm = immediate_j(word);
      break;
    case 'u':
      record.imm = static_cast<std::int32_t>(word & 0xfffff000);
      break;
    case '>':
      record.imm = bits_at(word, 20, 6);
      break;
    case '<':
      record.imm = bits_at(word, 20, 5);
      break;
    case 'E':
      record.imm = static_cast<std::int32_t>(word >> 20);
      break;
    case 'f':
      record.imm = immediate_i(word) & ~31;
      break;
    case 'm':
      record.imm = bits_at(word, 12, 3);
      break;
    default:  // punctuation, and the fence's sets, of which only the disassembler knows
      break;
  }
}

bool has_operand(const Instruction& row, char operand) { return std::strchr(row.operands, operand) != nullptr; }

}  // namespace

std::span<const Instruction> instructions() { return kInstructions; }

const Instruction* find_instruction(std::uint32_t word) {
  static const Index index;
  if ((word & 3) != 3) return nullptr;
  for (const Instruction* row : index.rows[(word >> 2) & 31]) {
    if ((word & row->mask) != row->match) continue;
    const std::uint32_t rounding = (word >> 12) & 7;
    return has_operand(*row, 'm') && (rounding == 5 || rounding == 6) ? nullptr : row;
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
    for (const char* letter = row->operands; *letter != '\0'; ++letter) read_operand(*letter, word, record);
    if (has_operand(*row, 'p') || has_operand(*row, 'a')) {
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

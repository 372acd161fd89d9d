// The disassembler of isa.h.
#include <array>
#include <cstdio>

#include "sim/compressed.h"
#include "sim/isa.h"

namespace sk::sim {
namespace {

std::string text_of(const char* format, auto value) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

std::string register_name(char kind, std::uint32_t number) { return kind + std::to_string(number & 31); }

std::string fence_set(std::uint32_t bits) {
  std::string set;
  for (int i = 0; i < 4; ++i) {
    if ((bits & (8U >> i)) != 0) set += "iorw"[i];
  }
  return set.empty() ? "unknown" : set;
}

std::string operand_text(char operand, std::uint32_t word, std::uint64_t pc) {
  const auto target = [pc](std::int32_t distance) {
    return text_of("0x%llx", static_cast<unsigned long long>(pc + static_cast<std::uint64_t>(std::int64_t{distance})));
  };
  switch (operand) {
    case 'd':
      return register_name('x', word >> 7);
    case 's':
      return register_name('x', word >> 15);
    case 't':
      return register_name('x', word >> 20);
    case 'D':
      return register_name('f', word >> 7);
    case 'S':
      return register_name('f', word >> 15);
    case 'T':
      return register_name('f', word >> 20);
    case 'R':
      return register_name('f', word >> 27);
    case 'j':
    case 'o':
      return std::to_string(immediate_i(word));
    case 'q':
      return std::to_string(immediate_s(word));
    case 'f':
      return std::to_string(immediate_i(word) & ~31);
    case 'p':
      return target(immediate_b(word));
    case 'a':
      return target(immediate_j(word));
    case 'u':
      return text_of("0x%x", word >> 12);
    case '>':
      return text_of("0x%x", (word >> 20) & 63);
    case '<':
      return text_of("0x%x", (word >> 20) & 31);
    case 'E':
      return text_of("0x%x", word >> 20);
    case 'Z':
      return std::to_string((word >> 15) & 31);
    case 'P':
      return fence_set(word >> 24 & 15);
    case 'Q':
      return fence_set(word >> 20 & 15);
    case 'm':
      return std::array{"rne", "rtz", "rdn", "rup", "rmm", "", "", "dyn"}[(word >> 12) & 7];
    default:
      return std::string(1, operand);
  }
}

}  // namespace

std::string disassemble(std::uint32_t word, std::uint64_t pc) {
  const bool compressed = (word & 3) != 3;
  const std::uint32_t full = compressed ? expand_compressed(static_cast<std::uint16_t>(word)) : word;
  const Instruction* row = find_instruction(full);
  if (row == nullptr) return "illegal";
  std::string text = row->name;
  if ((full & 0x7f) == 0x2f) {  // the acquire and release bits of atomics are part of the name
    if ((full >> 25 & 3) != 0) text += std::array{"", ".rl", ".aq", ".aqrl"}[full >> 25 & 3];
  }
  if (*row->operands != '\0') text += ' ';
  for (const char* letter = row->operands; *letter != '\0'; ++letter) text += operand_text(*letter, full, pc);
  return text;
}

}  // namespace sk::sim

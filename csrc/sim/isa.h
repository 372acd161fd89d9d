// Operations, decoded records, the decoder and the disassembler, all from the rows of isa_table.h.
//
// Model: `decode` turns the bytes at one address into a Record, which the interpreter executes without ever looking at
// the instruction word again. Compressed instructions are expanded first (compressed.h) and then decoded like others;
// what they expand to has an operation of its own with the suffix _c, whose handler steps by 2 bytes instead of 4.
//
// Invariant: every byte string decodes to some record; what is no instruction decodes to Op::illegal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sim/isa_table.h"

namespace sk::sim {

enum class Op : std::uint16_t {
  undecoded,    // zeroed records: decode, then go on
  end_of_ram,   // behind the last record: a fetch beyond memory
  fetch_fault,  // the second half of the instruction lies beyond memory
  illegal,
  wild,        // a direct jump to beyond memory
  line_check,  // timed runs: ask the instruction cache, then do `then`
#define X(id, name, mask, match, operands) id, id##_c,
  SK_ISA_BASE(X)
#undef X
#define X(id, name, mask, match, operands) id,
      SK_ISA_WIDE(X)
#undef X
          count
};

inline constexpr std::uint8_t kSink = 32;  // where results for x0 go

// One decoded instruction. `imm` is the immediate, the target's distance, the shift amount, the CSR number or the
// rounding mode, as the operation has it; csrr?i keeps its immediate in rs1.
struct Record {
  Op op;
  Op then;
  std::int32_t imm;
  std::uint8_t rd, rs1, rs2, rs3;
  std::uint32_t bits;  // as fetched: 16 bits of a compressed instruction
};
static_assert(sizeof(Record) == 16);

struct Instruction {
  const char* name;
  std::uint32_t mask;
  std::uint32_t match;
  const char* operands;
  Op op;
  Op op_compressed;  // Op::undecoded where no compressed instruction expands to it
};

std::span<const Instruction> instructions();

// The row of a 32-bit instruction word; nullptr where it is illegal.
const Instruction* find_instruction(std::uint32_t word);

// Sign-extended immediates of the base formats.
std::int32_t immediate_i(std::uint32_t word);
std::int32_t immediate_s(std::uint32_t word);
std::int32_t immediate_b(std::uint32_t word);
std::int32_t immediate_j(std::uint32_t word);

// Decodes the instruction at byte `offset` of the memory; line_bytes is 0 or the instruction cache's line size.
Record decode(std::span<const std::uint8_t> memory, std::size_t offset, std::uint32_t line_bytes);

// Text of an instruction word (32 bits, or 16 where the low two bits are not 11) at address pc, in the syntax of the
// GNU tools with numeric register names and without aliases; compressed ones as what they expand to. "illegal" for
// others.
std::string disassemble(std::uint32_t word, std::uint64_t pc);

}  // namespace sk::sim

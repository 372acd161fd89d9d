// The generated command table as data that decoder, checker and printer walk.
//
// Model: one CommandSpec per defined opcode; its operands and accesses stand in the order of the table. Formulas are
// functions of a command and the target.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/engines/command.h"

namespace sk::sim {

enum class Kind : std::uint8_t { global, local, count, bytes, stride, number, real, element, choice };
enum class Overlap : std::uint8_t { free, disjoint, in_place };

struct OperandSpec {
  const char* name;
  Kind kind;
  std::uint8_t word;  // in the window; SK_DOORBELL_WORD is the doorbell
  std::uint8_t shift;
  std::uint8_t bits;
  std::uint64_t low;
  std::uint64_t high;
  bool aligned;  // whether an alignment is asked for at all
  std::uint64_t (*align)(const Command&, const Target&);

  std::uint64_t mask() const { return bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1; }
};

struct AccessSpec {
  Opcode opcode;
  std::uint8_t operand;
  std::int8_t stride_operand;  // which operand is the stride, -1 where none is
  // Fills the access in; false where the command does not make it.
  bool (*touch)(const Command&, const Target&, Touch&);
};

struct CommandSpec {
  const char* name = nullptr;  // nullptr: no such opcode
  std::uint8_t words = 0;
  std::uint8_t engines = 0;  // bit e: the engine of window e
  std::uint8_t cores = 0;    // bit t: CoreType t
  std::uint8_t types = 0;    // how many element types it has
  Overlap overlap = Overlap::free;
  std::span<const OperandSpec> operands;
  std::span<const AccessSpec> accesses;
};

const CommandSpec& spec_of(std::uint8_t opcode);
inline const CommandSpec& spec_of(Opcode opcode) { return spec_of(static_cast<std::uint8_t>(opcode)); }

// Whether a doorbell may hold these codes of element types.
bool has_types(Opcode opcode, std::uint64_t first, std::uint64_t second);
// Bit e: the core type has the engine of window e.
std::uint8_t engines_of(CoreType core);
// The word of a choice's number, empty where it has none.
std::string_view choice_name(Opcode opcode, std::size_t operand, std::uint64_t number);

}  // namespace sk::sim

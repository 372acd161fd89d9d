// Engine commands: from the words of a window to a checked command, what it touches, what it costs.
//
// Model: everything is derived from engine_commands.inc, the generated table. A `Command` holds an operand's bits at
// the operand's place in the table; `Operands_<name>` names the places (c.operands[Operands_mmad::k]).
//
// Invariants:
//  - A command that `decode` lets pass is legal on the target in every respect that does not depend on the contents of
//    memory: numbers, alignment, bounds of every access, overlap, the core's engines. What is left to `execute` is
//    whether what is read was written, and the offsets of v_gather and v_scatter.
//  - `footprint` and `cost` are defined for such commands only; for them no formula overflows 64 bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/engine_commands.inc"
#include "sim/engines/target.h"

namespace sk::sim {

enum class CoreType : std::uint8_t { aic, aiv, aicpu };
enum class Engine : std::uint8_t { control, mte2, mte1, m, fix, v, mte3, sdma };  // the numbers of the windows
enum class ElementType : std::uint8_t { none, f32, f16, bf16, i32, i16, i8, u32, u16, u8 };
enum class Space : std::uint8_t { gm, l1, l0a, l0b, l0c, ub };

enum class Opcode : std::uint8_t {
#define SK_OPCODE(name, code, ...) name = code,
  SK_COMMANDS(SK_OPCODE)
#undef SK_OPCODE
};

#define SK_PLACE(command, operand, ...) operand,
#define SK_PLACES(name, ...)                  \
  struct Operands_##name {                    \
    enum Place : std::size_t {                \
      SK_OPERANDS_##name(SK_PLACE) kOperands, \
    };                                        \
  };
SK_COMMANDS(SK_PLACES)
#undef SK_PLACES
#undef SK_PLACE

struct Command {
  Opcode opcode{};
  Engine engine{};
  std::array<ElementType, 2> types{};
  std::array<std::uint64_t, 20> operands{};
};

enum class FaultKind : std::uint8_t {
  undefined_command,  // no such opcode, engine, element types or bits
  bad_operand,        // a number out of its range, or one that contradicts another
  misaligned,
  out_of_range,     // outside a local memory
  unmapped,         // outside global memory
  illegal_overlap,  // written bytes meet bytes read
  self_overlap,     // written rows share bytes
  not_on_core,      // the core has no such engine or memory, or the command is not for it
  unwritten_read,   // local memory that was never written
  bad_offset,       // v_gather, v_scatter: beyond the table or not a multiple of the element's size
};

struct Fault {
  FaultKind kind;
  std::string message;
};

// The command of a window's words (operand words 0 to 14, the doorbell last); words that a command does not have are
// not looked at. Returns the first thing that is wrong, with `out` then unspecified.
std::optional<Fault> decode(std::span<const std::uint64_t, 16> window_words, Engine engine, CoreType core,
                            const Target& target, Command& out);

// Bytes a command touches: `rows` runs of `row_bytes` from `begin` on, `stride` apart (0 with one row).
struct Touch {
  Space space;
  bool write;
  std::uint8_t operand;  // which operand holds `begin`
  std::uint64_t begin;
  std::uint64_t rows;
  std::uint64_t row_bytes;
  std::int64_t stride;

  // The byte behind the last one.
  std::uint64_t end() const { return begin + (rows - 1) * static_cast<std::uint64_t>(stride) + row_bytes; }
  bool operator==(const Touch&) const = default;
};

// Replaces `out` by every access of a command, in the order of the table. For l1_im2col, v_gather and v_scatter it
// bounds what is touched; they touch only what the contents of their operands name.
void footprint(const Command& command, const Target& target, std::vector<Touch>& out);
bool meets(const Touch& a, const Touch& b);

// An engine is busy start_up + beats cycles; others see the effect `visible` cycles later.
struct Cost {
  std::uint64_t start_up = 0;
  std::uint64_t beats = 0;
  std::uint64_t visible = 0;
};
Cost cost(const Command& command, const Target& target);

const char* name_of(Opcode opcode);
const char* name_of(Engine engine);
const char* name_of(CoreType core);
const char* name_of(ElementType type);
const char* name_of(Space space);
const char* name_of(FaultKind kind);
std::uint64_t bytes_of(ElementType type);

// As the Python side prints it: "v: v_add.f32 dst=0x0, a=0x20, b_form=matrix, ...".
std::string to_text(const Command& command);

}  // namespace sk::sim

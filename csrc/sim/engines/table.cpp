#include "sim/engines/table.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace sk::sim {
namespace {

using u64 = std::uint64_t;

constexpr u64 larger(u64 a, u64 b) { return a > b ? a : b; }
constexpr u64 choose(u64 condition, u64 a, u64 b) { return condition != 0 ? a : b; }

u64 depth_of(const Command& c, const Target& t) {
  if (c.types[0] == ElementType::f32) return t.cube.k_f32;
  return c.types[0] == ElementType::i8 ? t.cube.k_i8 : t.cube.k_f16;
}

// The words of the formulas. Each formula stands in a function with the parameters c and t, and S names the operands of
// its command.
#define O(operand) c.operands[S::operand]
#define T(section, field) t.section.field
#define R(section, field) t.mb_per_s(t.section.field, std::string_view(#section) == "rates")
#define item0() bytes_of(c.types[0])
#define item1() bytes_of(c.types[1])
#define lanes(item) t.lanes(item)
#define depth() depth_of(c, t)
#define cycles_of_ns(time) t.cycles_of_ns(time)
#define transfer(rate, size) t.transfer(rate, size)
#define gm_transfer(rate, size, address) t.gm_transfer(rate, size, address)

#define SK_PARAMETERS [[maybe_unused]] const Command &c, [[maybe_unused]] const Target &t

// Names of the table's kinds; `float` is no identifier.
constexpr Kind kind_global = Kind::global, kind_local = Kind::local, kind_count = Kind::count, kind_bytes = Kind::bytes,
               kind_stride = Kind::stride, kind_number = Kind::number, kind_float = Kind::real,
               kind_element = Kind::element, kind_choice = Kind::choice;

#define SK_OPERAND(command, operand, kind, memory, word, shift, bits, low, high, alignment) \
  OperandSpec{#operand,                                                                     \
              kind_##kind,                                                                  \
              word,                                                                         \
              shift,                                                                        \
              bits,                                                                         \
              low,                                                                          \
              high,                                                                         \
              std::string_view(#alignment) != "1",                                          \
              [](SK_PARAMETERS) -> u64 {                                                    \
                using S [[maybe_unused]] = Operands_##command;                              \
                return alignment;                                                           \
              }},
#define SK_OPERAND_TABLE(name, ...) \
  constexpr std::array<OperandSpec, Operands_##name::kOperands> kOperandsOf_##name = {SK_OPERANDS_##name(SK_OPERAND)};
SK_COMMANDS(SK_OPERAND_TABLE)

// Where the operand of an access lies: its memory in the operand table.
struct Place {
  Opcode opcode;
  std::size_t operand;
  Space space;
};
constexpr Space space_none = Space::gm, space_l1 = Space::l1, space_l0a = Space::l0a, space_l0b = Space::l0b,
                space_l0c = Space::l0c, space_ub = Space::ub;
#define SK_PLACE(command, operand, kind, memory, ...) \
  Place{Opcode::command, Operands_##command::operand, space_##memory},
constexpr Place kPlaces[] = {SK_OPERANDS(SK_PLACE)};

consteval Space space_of(Opcode opcode, std::size_t operand) {
  for (const Place& place : kPlaces) {
    if (place.opcode == opcode && place.operand == operand) return place.space;
  }
  throw "an access of an operand that is not in the table";
}

// The operand that a stride's formula names: "O(src_stride)"; -1 for a constant.
consteval std::int8_t stride_operand(std::span<const OperandSpec> operands, std::string_view formula) {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const std::string_view name = operands[i].name;
    if (formula.size() == name.size() + 3 && formula.substr(2, name.size()) == name) return static_cast<std::int8_t>(i);
  }
  return -1;
}

#define SK_ACCESS(command, operand, writes, when, rows_, row_bytes_, stride_)                               \
  AccessSpec{Opcode::command, Operands_##command::operand, stride_operand(kOperandsOf_##command, #stride_), \
             [](SK_PARAMETERS, Touch& touch) -> bool {                                                      \
               using S = Operands_##command;                                                                \
               if (!(when)) return false;                                                                   \
               constexpr Space space = space_of(Opcode::command, S::operand);                               \
               const u64 rows = rows_;                                                                      \
               const auto stride = static_cast<std::int64_t>(rows > 1 ? u64{stride_} : u64{0});             \
               touch = {space, writes != 0, S::operand, O(operand), rows, row_bytes_, stride};              \
               return true;                                                                                 \
             }},
constexpr AccessSpec kAccesses[] = {SK_ACCESSES(SK_ACCESS)};

consteval std::span<const AccessSpec> accesses_of(Opcode opcode) {
  std::size_t first = 0;
  while (first < std::size(kAccesses) && kAccesses[first].opcode != opcode) ++first;
  std::size_t last = first;
  while (last < std::size(kAccesses) && kAccesses[last].opcode == opcode) ++last;
  return {kAccesses + (first == last ? 0 : first), last - first};
}

consteval std::array<CommandSpec, 256> make_table() {
  std::array<CommandSpec, 256> table{};
#define SK_SPEC(name, opcode, words, engines, cores, places, overlap, ulp) \
  table[opcode] = {                                                        \
      #name, words, engines, cores, places, Overlap::overlap, kOperandsOf_##name, accesses_of(Opcode::name)};
  SK_COMMANDS(SK_SPEC)
  return table;
}
constexpr std::array<CommandSpec, 256> kTable = make_table();

// [opcode][first code]: bit s where (first, s) is legal.
using TypeTable = std::array<std::array<std::uint16_t, 16>, 256>;
consteval TypeTable make_types() {
  TypeTable table{};
#define SK_TYPES(command, first, second) \
  table[static_cast<std::size_t>(Opcode::command)][first] |= static_cast<std::uint16_t>(1U << second);
  SK_COMMAND_TYPES(SK_TYPES)
  return table;
}
constexpr TypeTable kTypes = make_types();

struct Choice {
  Opcode opcode;
  std::size_t operand;
  std::string_view word;
  u64 number;
};
#define SK_CHOICE(command, operand, word, number) Choice{Opcode::command, Operands_##command::operand, #word, number},
constexpr Choice kChoices[] = {SK_CHOICES(SK_CHOICE)};

}  // namespace

const CommandSpec& spec_of(std::uint8_t opcode) { return kTable[opcode]; }

bool has_types(Opcode opcode, u64 first, u64 second) {
  return (kTypes[static_cast<std::size_t>(opcode)][first & 15] >> (second & 15) & 1) != 0;
}

std::uint8_t engines_of(CoreType core) {
#define SK_CORE(name, bit, engines) \
  if (core == CoreType::name) return engines;
  SK_CORE_TYPES(SK_CORE)
  return 0;
}

std::string_view choice_name(Opcode opcode, std::size_t operand, u64 number) {
  for (const Choice& choice : kChoices) {
    if (choice.opcode == opcode && choice.operand == operand && choice.number == number) return choice.word;
  }
  return {};
}

void footprint(const Command& command, const Target& target, std::vector<Touch>& out) {
  out.clear();
  Touch touch{};
  for (const AccessSpec& access : spec_of(command.opcode).accesses) {
    if (access.touch(command, target, touch)) out.push_back(touch);
  }
}

Cost cost(const Command& c, const Target& t) {
  switch (c.opcode) {
#define SK_TIME(command, start_up, beats, visible) \
  case Opcode::command: {                          \
    using S [[maybe_unused]] = Operands_##command; \
    return {start_up, beats, visible};             \
  }
    SK_TIMES(SK_TIME)
  }
  return {};
}

}  // namespace sk::sim

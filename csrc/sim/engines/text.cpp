// Names and commands as text, the same as superkernel.target.engines prints.
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <string>

#include "sim/engines/table.h"

namespace sk::sim {
namespace {

// As Python prints a float: the shortest digits that read back, fixed from 1e-4 to below 1e16.
std::string real_text(std::uint64_t bits) {
  const double value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer.data(), end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string hex_text(std::uint64_t value) {
  std::array<char, 32> buffer;
  return "0x" + std::string(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, 16).ptr);
}

std::string operand_text(const Command& command, std::size_t place, Kind kind) {
  const std::uint64_t value = command.operands[place];
  switch (kind) {
    case Kind::choice:
      if (const auto word = choice_name(command.opcode, place, value); !word.empty()) return std::string(word);
      return std::to_string(value);
    case Kind::real:
      return std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(value))) ? "nan" : real_text(value);
    case Kind::global:
    case Kind::local:
    case Kind::element:
      return hex_text(value);
    default:
      return std::to_string(value);
  }
}

}  // namespace

const char* name_of(Opcode opcode) {
  const char* name = spec_of(opcode).name;
  return name != nullptr ? name : "undefined";
}

const char* name_of(Engine engine) {
#define SK_NAME(name, ...) \
  if (engine == Engine::name) return #name;
  SK_ENGINES(SK_NAME)
#undef SK_NAME
  return "undefined";
}

const char* name_of(CoreType core) {
#define SK_NAME(name, ...) \
  if (core == CoreType::name) return #name;
  SK_CORE_TYPES(SK_NAME)
#undef SK_NAME
  return "undefined";
}

const char* name_of(ElementType type) {
#define SK_NAME(name, code, bytes) \
  if (type == ElementType::name) return #name;
  SK_ELEMENT_TYPES(SK_NAME)
#undef SK_NAME
  return "none";
}

const char* name_of(Space space) {
#define SK_NAME(name, ...) \
  if (space == Space::name) return #name;
  SK_LOCAL_MEMORIES(SK_NAME)
#undef SK_NAME
  return "global memory";
}

const char* name_of(FaultKind kind) {
  constexpr std::array kNames = {"undefined_command", "bad_operand",  "misaligned",  "out_of_range",   "unmapped",
                                 "illegal_overlap",   "self_overlap", "not_on_core", "unwritten_read", "bad_offset"};
  static_assert(kNames.size() == static_cast<std::size_t>(FaultKind::bad_offset) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

std::uint64_t bytes_of(ElementType type) {
  constexpr std::array<std::uint8_t, 10> kBytes = [] {
    std::array<std::uint8_t, 10> table{};
#define SK_BYTES(name, code, bytes)                                  \
  static_assert(static_cast<int>(ElementType::name) == code, #name); \
  table[code] = bytes;
    SK_ELEMENT_TYPES(SK_BYTES)
#undef SK_BYTES
    return table;
  }();
  return kBytes[static_cast<std::size_t>(type)];
}

std::string to_text(const Command& command) {
  std::string text = std::string(name_of(command.engine)) + ": " + name_of(command.opcode);
  for (const ElementType type : command.types) {
    if (type != ElementType::none) text.append(".").append(name_of(type));
  }
  const char* separator = " ";
  const auto& operands = spec_of(command.opcode).operands;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    text.append(separator).append(operands[i].name).append("=").append(operand_text(command, i, operands[i].kind));
    separator = ", ";
  }
  return text;
}

}  // namespace sk::sim

// Words to commands, and whether a target and a core allow them.
//
// Model: the checks go from the words outwards: opcode, engine, core, element types, bits and ranges, numbers that
// depend on the target or on one another, alignment, bounds, overlap. Each looks only at what the ones ahead of it let
// pass.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "sim/engines/table.h"

namespace sk::sim {
namespace {

using u64 = std::uint64_t;
using Result = std::optional<Fault>;

std::string hex(u64 value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

Fault fault(FaultKind kind, const Command& c, std::size_t operand, const std::string& what) {
  return {kind, to_text(c) + ": operand '" + spec_of(c.opcode).operands[operand].name + "': " + what};
}

Result check_header(u64 doorbell, Engine engine, CoreType core, Command& out) {
  const auto opcode = static_cast<std::uint8_t>(doorbell);
  const CommandSpec& spec = spec_of(opcode);
  const std::string where = std::string("doorbell of ") + name_of(engine) + " on " + name_of(core);
  if (spec.name == nullptr) return Fault{FaultKind::undefined_command, where + ": undefined opcode " + hex(opcode)};
  const auto window = static_cast<unsigned>(engine);
  if ((engines_of(core) >> window & 1) == 0) return Fault{FaultKind::not_on_core, where + ": no such engine"};
  if ((spec.engines >> window & 1) == 0) {
    return Fault{FaultKind::undefined_command, where + ": " + spec.name + " is not a command of this engine"};
  }
  if ((spec.cores >> static_cast<unsigned>(core) & 1) == 0) {
    return Fault{FaultKind::not_on_core, where + ": " + spec.name + " is not a command of this core"};
  }
  const u64 first = doorbell >> SK_OPCODE_BITS & 15;
  const u64 second = doorbell >> (SK_OPCODE_BITS + SK_TYPE_BITS) & 15;
  if (!has_types(Opcode{opcode}, first, second)) {
    return Fault{FaultKind::undefined_command, where + ": " + spec.name + " has no element types with the codes " +
                                                   std::to_string(first) + ", " + std::to_string(second)};
  }
  out = {Opcode{opcode}, engine, {static_cast<ElementType>(first), static_cast<ElementType>(second)}, {}};
  return {};
}

bool is_nan(u64 bits) { return (bits & 0x7fffffff) > 0x7f800000; }

Result check_range(const Command& c, std::size_t place, const OperandSpec& operand) {
  const u64 value = c.operands[place];
  u64 high = operand.high;
  if (operand.kind == Kind::element) high = ~u64{0} >> (64 - 8 * bytes_of(c.types[0]));
  if (value < operand.low || value > high) {
    return fault(
        FaultKind::bad_operand, c, place,
        "expected " + std::to_string(operand.low) + " to " + std::to_string(high) + ", found " + std::to_string(value));
  }
  if (operand.kind == Kind::real && is_nan(value)) return fault(FaultKind::bad_operand, c, place, "NaN");
  return {};
}

// Operands out of their words; bits that no operand has must be 0.
Result unpack(std::span<const u64, 16> words, Command& c) {
  const CommandSpec& spec = spec_of(c.opcode);
  std::array<u64, 16> left{};
  std::copy_n(words.begin(), spec.words, left.begin());
  left[SK_DOORBELL_WORD] = words[SK_DOORBELL_WORD] >> SK_HEADER_BITS << SK_HEADER_BITS;
  for (std::size_t i = 0; i < spec.operands.size(); ++i) {
    const OperandSpec& operand = spec.operands[i];
    c.operands[i] = words[operand.word] >> operand.shift & operand.mask();
    left[operand.word] &= ~(operand.mask() << operand.shift);
  }
  for (std::size_t i = 0; i < spec.operands.size(); ++i) {
    if (Result found = check_range(c, i, spec.operands[i])) return found;
  }
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i] != 0) {
      const std::string word = i == SK_DOORBELL_WORD ? "the doorbell" : "word " + std::to_string(i);
      return Fault{FaultKind::undefined_command,
                   to_text(c) + ": bits " + hex(left[i]) + " of " + word + " are no operand's"};
    }
  }
  return {};
}

Result check_flag(const Command& c, CoreType core, const Target& t) {
  using S = Operands_set_flag;
  if (c.operands[S::flag] >= t.queue.flag_ids) {
    return fault(FaultKind::bad_operand, c, S::flag,
                 "no such flag, expected below " + std::to_string(t.queue.flag_ids));
  }
  const auto peer = static_cast<Engine>(c.operands[S::peer]);
  const bool here = (engines_of(core) >> c.operands[S::peer] & 1) != 0;
  if (peer == c.engine || peer == Engine::sdma || !here) {
    return fault(FaultKind::bad_operand, c, S::peer, "expected another engine of the core, not sdma");
  }
  return {};
}

Result check_cross(const Command& c, const Target& t) {
  using S = Operands_cross_set;
  static_assert(std::size_t{S::flag} == std::size_t{Operands_cross_wait::flag});
  if (c.operands[S::flag] >= t.sync.flags_per_core) {
    return fault(FaultKind::bad_operand, c, S::flag,
                 "no such flag, expected below " + std::to_string(t.sync.flags_per_core));
  }
  constexpr u64 kMask = 5;
  if (c.opcode == Opcode::cross_wait || c.operands[S::mode] != kMask) return {};
  if (!t.sync.point_to_point) {
    return fault(FaultKind::bad_operand, c, S::mode, "the target's network has no single targets");
  }
  const u64 mask = c.operands[S::mask];
  const u64 behind = c.operands[S::first_core] + static_cast<u64>(std::bit_width(mask));
  if (mask == 0 || behind > t.cores()) {
    return fault(FaultKind::bad_operand, c, S::mask,
                 "expected at least one bit, cores below " + std::to_string(t.cores()));
  }
  return {};
}

Result check_fix(const Command& c) {
  using S = Operands_l0c_to_gm;
  if (c.types[1] == ElementType::i32) {
    for (const std::size_t step : {std::size_t{S::scale}, std::size_t{S::bias}, std::size_t{S::activation}}) {
      if (c.operands[step] != 0) return fault(FaultKind::bad_operand, c, step, "i32 to i32 is a copy, expected none");
    }
  }
  constexpr u64 kClip = 3;
  const auto number = [&](std::size_t i) { return std::bit_cast<float>(static_cast<std::uint32_t>(c.operands[i])); };
  if (c.operands[S::activation] == kClip && !(number(S::low) <= number(S::high))) {
    return fault(FaultKind::bad_operand, c, S::high, "an empty range, expected low <= high");
  }
  return {};
}

// Numbers that depend on the target or on one another.
Result check_numbers(const Command& c, CoreType core, const Target& t) {
  switch (c.opcode) {
    case Opcode::set_flag:
    case Opcode::wait_flag:
      return check_flag(c, core, t);
    case Opcode::cross_set:
    case Opcode::cross_wait:
      return check_cross(c, t);
    case Opcode::l0c_to_gm:
      return check_fix(c);
    case Opcode::v_shl:
    case Opcode::v_shr: {
      using S = Operands_v_shl;
      const u64 width = 8 * bytes_of(c.types[0]);
      if (c.operands[S::shift] < width) return {};
      return fault(FaultKind::bad_operand, c, S::shift, "expected below " + std::to_string(width));
    }
    default:
      return {};
  }
}

// The accesses that a command makes. A command has few, so that no memory is allocated.
struct Touches {
  std::array<Touch, 6> list;
  std::array<const AccessSpec*, 6> specs;
  std::size_t count = 0;

  Touches(const Command& c, const Target& t) {
    for (const AccessSpec& access : spec_of(c.opcode).accesses) {
      if (access.touch(c, t, list[count])) specs[count++] = &access;
    }
  }
  std::span<const Touch> all() const { return {list.data(), count}; }
};

// Addresses that no access uses and strides that no second row uses are not looked at.
Result check_alignment(const Command& c, const Target& t, const Touches& touches) {
  const CommandSpec& spec = spec_of(c.opcode);
  for (std::size_t i = 0; i < spec.operands.size(); ++i) {
    const OperandSpec& operand = spec.operands[i];
    if (!operand.aligned) continue;
    bool used = operand.kind != Kind::local && operand.kind != Kind::global && operand.kind != Kind::stride;
    for (std::size_t k = 0; k < touches.count; ++k) {
      const bool stepped = touches.list[k].rows > 1 && touches.specs[k]->stride_operand == static_cast<int>(i);
      used = used || stepped || touches.specs[k]->operand == i;
    }
    if (!used) continue;
    const u64 step = operand.align(c, t);
    if (c.operands[i] % step != 0) {
      return fault(FaultKind::misaligned, c, i,
                   "expected a multiple of " + std::to_string(step) + ", found " + std::to_string(c.operands[i]));
    }
  }
  return {};
}

Result check_bounds(const Command& c, const Target& t, const Touch& touch) {
  u64 low = 0;
  u64 high = 0;
  switch (touch.space) {
    case Space::gm:
      low = t.map.ram_address;
      high = low + t.map.ram_bytes;
      break;
#define SK_SIZE(name, size, align) \
  case Space::name:                \
    high = t.memory.size;          \
    break;
      SK_LOCAL_MEMORIES(SK_SIZE)
#undef SK_SIZE
  }
  if (touch.begin < low || touch.end() > high) {
    const FaultKind kind = touch.space == Space::gm ? FaultKind::unmapped : FaultKind::out_of_range;
    return fault(kind, c, touch.operand,
                 hex(touch.begin) + " to " + hex(touch.end()) + " is outside " + name_of(touch.space) + ", " +
                     hex(low) + " to " + hex(high));
  }
  if (touch.write && touch.rows > 1 && static_cast<u64>(touch.stride) < touch.row_bytes) {
    return fault(FaultKind::self_overlap, c, touch.operand,
                 "rows of " + std::to_string(touch.row_bytes) + " bytes, " + std::to_string(touch.stride) + " apart");
  }
  return {};
}

Result check_overlap(const Command& c, const Touches& touches) {
  const Overlap rule = spec_of(c.opcode).overlap;
  if (rule == Overlap::free) return {};
  const auto same = [](const Touch& a, const Touch& b) {
    return a.begin == b.begin && a.rows == b.rows && a.row_bytes == b.row_bytes && a.stride == b.stride;
  };
  for (const Touch& written : touches.all()) {
    if (!written.write) continue;
    for (const Touch& read : touches.all()) {
      if (read.write || read.operand == written.operand) continue;
      if (rule == Overlap::in_place && same(written, read)) continue;
      if (!meets(written, read)) continue;
      const char* other = spec_of(c.opcode).operands[read.operand].name;
      return fault(FaultKind::illegal_overlap, c, written.operand, std::string("meets '") + other + "'");
    }
  }
  return {};
}

// Whether the run of `size` bytes at `start` shares a byte with a row of `other`.
bool row_meets(u64 start, u64 size, const Touch& other) {
  if (other.stride == 0 || other.rows == 1) return start < other.begin + other.row_bytes && other.begin < start + size;
  // Row r shares a byte where begin + r x stride + row_bytes > start and begin + r x stride < start + size.
  const auto stride = static_cast<u64>(other.stride);
  if (other.begin >= start + size) return false;
  const u64 behind = other.begin + other.row_bytes;
  const u64 first = behind > start ? 0 : (start - behind) / stride + 1;
  const u64 last = std::min(other.rows - 1, (start + size - other.begin - 1) / stride);
  return first <= last;
}

}  // namespace

bool meets(const Touch& a, const Touch& b) {
  if (a.space != b.space || a.end() <= b.begin || b.end() <= a.begin) return false;
  const Touch& few = a.rows <= b.rows ? a : b;
  const Touch& many = a.rows <= b.rows ? b : a;
  const u64 rows = few.stride == 0 ? 1 : few.rows;
  for (u64 r = 0; r < rows; ++r) {
    if (row_meets(few.begin + r * static_cast<u64>(few.stride), few.row_bytes, many)) return true;
  }
  return false;
}

std::optional<Fault> decode(std::span<const std::uint64_t, 16> window_words, Engine engine, CoreType core,
                            const Target& target, Command& out) {
  if (Result found = check_header(window_words[SK_DOORBELL_WORD], engine, core, out)) return found;
  if (Result found = unpack(window_words, out)) return found;
  if (Result found = check_numbers(out, core, target)) return found;
  const Touches touches(out, target);
  if (Result found = check_alignment(out, target, touches)) return found;
  for (const Touch& touch : touches.all()) {
    if (Result found = check_bounds(out, target, touch)) return found;
  }
  return check_overlap(out, touches);
}

}  // namespace sk::sim

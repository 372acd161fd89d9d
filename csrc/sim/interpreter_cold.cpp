// The cold halves of handlers: jumps out of memory, CSR instructions, atomics.
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "sim/interpreter.h"

namespace sk::sim {
namespace {

// A line_check record does what its `then` says.
Op operation(const Record& record) {
  return record.op == Op::line_check || record.op == Op::wild ? record.then : record.op;
}

std::uint64_t sign_extend(std::uint64_t value, unsigned bytes) {
  return bytes == 8 ? value : static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(value)));
}

// A register that is an operand and where the result goes: what is written to x0 is kept elsewhere.
std::uint64_t register_or_zero(const Hart& hart, std::uint8_t number) { return number == kSink ? 0 : hart.x[number]; }

// What an AMO stores, from values extended to 64 bits with their sign.
std::uint64_t combine(Op op, std::uint64_t memory, std::uint64_t operand) {
  const auto a = static_cast<std::int64_t>(memory);
  const auto b = static_cast<std::int64_t>(operand);
  switch (op) {
    case Op::amoadd_w:
    case Op::amoadd_d:
      return memory + operand;
    case Op::amoxor_w:
    case Op::amoxor_d:
      return memory ^ operand;
    case Op::amoand_w:
    case Op::amoand_d:
      return memory & operand;
    case Op::amoor_w:
    case Op::amoor_d:
      return memory | operand;
    case Op::amomin_w:
    case Op::amomin_d:
      return a < b ? memory : operand;
    case Op::amomax_w:
    case Op::amomax_d:
      return a > b ? memory : operand;
    case Op::amominu_w:
    case Op::amominu_d:  // extending the sign keeps the unsigned order of words
      return memory < operand ? memory : operand;
    case Op::amomaxu_w:
    case Op::amomaxu_d:
      return memory > operand ? memory : operand;
    default:  // amoswap
      return operand;
  }
}

// amocas.q: 16 bytes against the registers rd and rd + 1. A pair that starts at x0 is zero, and takes no result.
Interpreter::Atomic compare_and_swap_pair(std::span<std::uint8_t> memory, std::uint64_t offset, Hart& hart,
                                          const Record& record) {
  using Pair = std::array<std::uint64_t, 2>;
  const std::uint64_t address = hart.x[record.rs1];
  const auto fails = [&](Cause cause) {
    return Interpreter::Atomic{static_cast<std::uint64_t>(cause), address, offset, false};
  };
  if (address % sizeof(Pair) != 0) return fails(Cause::store_misaligned);
  if (memory.size() < sizeof(Pair) || offset > memory.size() - sizeof(Pair)) return fails(Cause::store_access);
  const auto pair = [&](std::uint8_t first) {
    return first == 0 || first == kSink ? Pair{} : Pair{hart.x[first], hart.x[first + 1U]};
  };
  const Pair stored = pair(record.rs2);
  Pair old{};
  std::memcpy(old.data(), memory.data() + offset, sizeof(old));
  const bool equal = old == pair(record.rd);
  if (equal) std::memcpy(memory.data() + offset, stored.data(), sizeof(stored));
  if (record.rd != kSink) {
    hart.x[record.rd] = old[0];
    hart.x[record.rd + 1U] = old[1];
  }
  return {0, 0, offset, equal};
}

}  // namespace

std::uint64_t Interpreter::wild_target(Hart& hart, const Record& record, std::uint64_t pc) {
  const std::uint64_t next = pc + ((record.bits & 3) == 3 ? 4 : 2);
  const std::uint64_t target = pc + static_cast<std::uint64_t>(std::int64_t{record.imm});
  const std::uint64_t a = hart.x[record.rs1];
  const std::uint64_t b = hart.x[record.rs2];
  const auto signed_less = static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b);
  switch (operation(record)) {
    case Op::beq:
    case Op::beq_c:
      return a == b ? target : next;
    case Op::bne:
    case Op::bne_c:
      return a != b ? target : next;
    case Op::blt:
      return signed_less ? target : next;
    case Op::bge:
      return signed_less ? next : target;
    case Op::bltu:
      return a < b ? target : next;
    case Op::bgeu:
      return a < b ? next : target;
    default:  // jal
      hart.x[record.rd] = next;
      return target;
  }
}

bool Interpreter::csr_instruction(Hart& hart, const Record& record, std::uint64_t time) {
  const Op op = operation(record);
  const auto number = static_cast<std::uint32_t>(record.imm);
  const bool immediate = op == Op::csrrwi || op == Op::csrrsi || op == Op::csrrci;
  const bool replaces = op == Op::csrrw || op == Op::csrrwi;
  const bool sets = op == Op::csrrs || op == Op::csrrsi;
  const bool writes = replaces || record.rs1 != 0;
  const std::uint64_t operand = immediate ? record.rs1 : hart.x[record.rs1];
  if (!hart.csr_access(number, writes)) return false;
  const std::optional<std::uint64_t> old = hart.read_csr(number, time);
  if (!old) return false;
  if (writes) hart.write_csr(number, replaces ? operand : sets ? *old | operand : *old & ~operand);
  hart.x[record.rd] = *old;
  return true;
}

void Interpreter::await_registers(ControlUnit& unit, std::uint64_t named) {
  std::uint64_t until = 0;
  bool global = false;
  for (std::uint64_t rest = named; rest != 0; rest &= rest - 1) {
    const auto number = static_cast<std::size_t>(std::countr_zero(rest));
    if (unit.ready[number] <= until) continue;
    until = unit.ready[number];
    global = (unit.pending_global >> number & 1) != 0;
  }
  if (until > unit.cycles()) unit.stall(global ? Stall::load : Stall::result, until - unit.cycles());
  unit.pending &= ~named;
}

Interpreter::Atomic Interpreter::atomic(std::span<std::uint8_t> memory, std::uint64_t base, Hart& hart,
                                        const Record& record) {
  const Op op = operation(record);
  const bool is_load = op == Op::lr_w || op == Op::lr_d;
  const bool is_conditional = op == Op::sc_w || op == Op::sc_d;
  const unsigned bytes = (record.bits >> 12 & 7) == 2 ? 4 : 8;
  const std::uint64_t address = hart.x[record.rs1];
  const std::uint64_t offset = address - base;
  const auto fails = [&](Cause load, Cause store) {
    return Atomic{static_cast<std::uint64_t>(is_load ? load : store), address, offset, false};
  };
  if (op == Op::amocas_q) return compare_and_swap_pair(memory, offset, hart, record);
  if (address % bytes != 0) return fails(Cause::load_misaligned, Cause::store_misaligned);
  if (offset > memory.size() - bytes) return fails(Cause::load_access, Cause::store_access);
  std::uint8_t* const place = memory.data() + offset;
  const std::uint64_t operand = sign_extend(hart.x[record.rs2], bytes);
  std::uint64_t old = 0;
  std::memcpy(&old, place, bytes);
  old = sign_extend(old, bytes);
  std::uint64_t stored = operand;
  std::uint64_t result = old;
  if (is_load) {
    hart.reservation = address & ~std::uint64_t{7};
    hart.x[record.rd] = old;
    return {0, 0, offset, false};
  }
  if (is_conditional) {
    const bool held = hart.reservation == (address & ~std::uint64_t{7});
    hart.reservation = kNoReservation;
    result = held ? 0 : 1;
    if (!held) {
      hart.x[record.rd] = result;
      return {0, 0, offset, false};
    }
  } else if (op == Op::amocas_w || op == Op::amocas_d) {
    if (old != sign_extend(register_or_zero(hart, record.rd), bytes)) {
      hart.x[record.rd] = old;
      return {0, 0, offset, false};
    }
  } else {
    stored = combine(op, old, operand);
  }
  std::memcpy(place, &stored, bytes);
  hart.x[record.rd] = result;
  return {0, 0, offset, true};
}

}  // namespace sk::sim

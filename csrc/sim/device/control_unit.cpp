// See control_unit.h.
#include "sim/device/control_unit.h"

#include <cstring>

namespace sk::sim {
namespace {

constexpr std::uint8_t kRs1 = 1, kRs2 = 2, kRs3 = 4;

// Floating-point operations by name: what goes through the adder or multiplier, what through the divider.
std::uint8_t float_latency(const char* name) {
  for (const char* slow : {"fdiv", "fsqrt"}) {
    if (std::strncmp(name, slow, std::strlen(slow)) == 0) return 2;
  }
  for (const char* usual : {"fadd", "fsub", "fmul", "fmadd", "fmsub", "fnmadd", "fnmsub", "fcvt"}) {
    if (std::strncmp(name, usual, std::strlen(usual)) == 0) return 1;
  }
  return 0;
}

Operands operands_of(const Instruction& row) {
  Operands result;
  for (const char* letter = row.operands; *letter != '\0'; ++letter) {
    switch (*letter) {
      case 'd':
        result.writes = 1;
        break;
      case 'D':
        result.writes = 2;
        break;
      case 's':
        result.reads_integer |= kRs1;
        break;
      case 't':
        result.reads_integer |= kRs2;
        break;
      case 'S':
        result.reads_float |= kRs1;
        break;
      case 'T':
        result.reads_float |= kRs2;
        break;
      case 'R':
        result.reads_float |= kRs3;
        break;
      default:
        break;
    }
  }
  result.latency = float_latency(row.name);
  return result;
}

}  // namespace

const Operands* operands_of_operations() {
  static const auto table = [] {
    std::array<Operands, static_cast<std::size_t>(Op::count)> rows{};
    for (const Instruction& row : instructions()) {
      rows[static_cast<std::size_t>(row.op)] = operands_of(row);
      if (row.op_compressed != Op::undecoded) rows[static_cast<std::size_t>(row.op_compressed)] = operands_of(row);
    }
    return rows;
  }();
  return table.data();
}

std::uint64_t registers_of(const Record& record, const Operands& operands) {
  const auto bit = [](unsigned number) { return std::uint64_t{1} << number; };
  std::uint64_t mask = 0;
  if ((operands.reads_integer & kRs1) != 0) mask |= bit(record.rs1);
  if ((operands.reads_integer & kRs2) != 0) mask |= bit(record.rs2);
  if ((operands.reads_float & kRs1) != 0) mask |= bit(32U + record.rs1);
  if ((operands.reads_float & kRs2) != 0) mask |= bit(32U + record.rs2);
  if ((operands.reads_float & kRs3) != 0) mask |= bit(32U + record.rs3);
  if (operands.writes == 1 && record.rd != kSink) mask |= bit(record.rd);
  if (operands.writes == 2) mask |= bit(32U + record.rd);
  return mask;
}

void ControlSpace::decode_at(std::size_t index) { records[index] = decode(code, index * 2, line_bytes); }

void ControlSpace::flush_decoded() {
  std::fill(records.begin(), records.end(), Record{});
  const std::size_t parcels = code_bytes / 2;
  records[parcels].op = Op::end_of_ram;
  records[parcels + 1].op = Op::end_of_ram;
}

void ControlSpace::fence(ControlUnit& unit, std::uint32_t word) const {
  constexpr unsigned kPredecessors = 24, kSuccessors = 20, kWrites = 1, kReads = 2, kOutputs = 4, kInputs = 8;
  const std::uint32_t before = word >> kPredecessors & 15, after = word >> kSuccessors & 15;
  if ((before & kWrites) != 0) {
    if (unit.stores_visible > unit.cycles()) unit.stall(Stall::fence, unit.stores_visible - unit.cycles());
    if ((after & kOutputs) != 0) unit.released = unit.epoch++;
  }
  if ((before & kInputs) != 0 && (after & kReads) != 0) unit.seen = unit.acquired;
}

}  // namespace sk::sim

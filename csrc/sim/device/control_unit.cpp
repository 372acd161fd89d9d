// See control_unit.h.
#include "sim/device/control_unit.h"

#include <cstring>

namespace sk::sim {
namespace {

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
  constexpr Operands::One kInteger{1, 0}, kFloat{1, 32};
  Operands result;
  for (const char* letter = row.operands; *letter != '\0'; ++letter) {
    switch (*letter) {
      case 'd':
        result.rd = kInteger;
        break;
      case 'D':
        result.rd = kFloat;
        break;
      case 's':
        result.rs1 = kInteger;
        break;
      case 't':
        result.rs2 = kInteger;
        break;
      case 'S':
        result.rs1 = kFloat;
        break;
      case 'T':
        result.rs2 = kFloat;
        break;
      case 'R':
        result.rs3 = kFloat;
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

void ControlSpace::decode_at(std::size_t index) { records[index] = decode(code, index * 2, line_bytes); }

// A straight sweep: most of it will run, on many cores. Where a jump leads between its instructions, as behind padding
// it may, they are decoded on arrival.
void ControlSpace::decode_ahead() {
  if (decoded_ahead_) return;
  decoded_ahead_ = true;
  const std::size_t parcels = code_bytes / 2;
  for (std::size_t index = 0; index < parcels; index += (records[index].bits & 3) == 3 ? 2 : 1) decode_at(index);
}

void ControlSpace::flush_decoded() {
  decoded_ahead_ = false;
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

bool ControlSpace::post(ControlUnit& unit, std::size_t window, std::uint64_t doorbell, std::uint64_t pc,
                        std::uint64_t cycle, std::uint64_t retired) {
  if (unit.room[window] == 0 || posted_count == kPostedMax) return false;
  --unit.room[window];
  unit.windows[window][kWindowWords - 1] = doorbell;
  posted[posted_count++] = {
      unit.windows[window], pc, cycle, retired, unit.marker, unit.released, static_cast<std::uint32_t>(window)};
  return true;
}

}  // namespace sk::sim

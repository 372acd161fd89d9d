// The interpreter's entry: runs one hart for a while.
#pragma once

#include <cstdint>

#include "sim/machine.h"

namespace sk::sim {

struct Interpreter {
  // Executes from hart.pc until `budget` instructions and traps were executed and a jump is taken, or until an
  // instruction needs the machine's loop (wfi, pause, anything that may enable or raise an interrupt, the end of the
  // run). kTimed: the instruction cache listens.
  template <bool kTimed>
  static void run(Machine& machine, Hart& hart, std::int64_t budget);

  // The cold halves of handlers.
  static std::uint64_t wild_target(Hart& hart, const Record& record, std::uint64_t pc);
  static bool csr_instruction(const Machine& machine, Hart& hart, const Record& record);
  // Cause of the exception, or 0 for none.
  static std::uint64_t atomic(Machine& machine, Hart& hart, const Record& record, bool& wrote_tohost);
};

}  // namespace sk::sim

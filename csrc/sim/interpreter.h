// The interpreter's entry: runs one hart for a while, for one of two owners.
//
// Model: a `Host` says whom the interpreter works for. `MachineHost` is the bare-metal machine: memory is flat, every
// load and store is done in place. `ControlHost` is a core of the accelerator (device/control_unit.h): only the core's
// private memory is reached in place; whatever other cores could see ends the run with a request, which the device
// carries out in its own order of time.
#pragma once

#include <cstdint>
#include <span>

#include "sim/device/control_unit.h"
#include "sim/machine.h"

namespace sk::sim {

// kTimed: the instruction cache listens.
template <bool timed>
struct MachineHost {
  using Owner = Machine;
  using Core = Hart;
  static constexpr bool kTimed = timed;
  static constexpr bool kControl = false;
};

// kTimed: the instruction cache and the registers' ready times count.
template <bool timed>
struct ControlHost {
  using Owner = ControlSpace;
  using Core = ControlUnit;
  static constexpr bool kTimed = timed;
  static constexpr bool kControl = true;
};

struct Interpreter {
  // Executes from hart.pc until `budget` instructions and traps were executed and a jump is taken, or until an
  // instruction needs the owner: for a machine wfi, pause, anything that may enable or raise an interrupt, the end of
  // the run; for a control unit whatever its `request` then says.
  template <class Host>
  static void run(typename Host::Owner& owner, typename Host::Core& hart, std::int64_t budget);

  // The cold halves of handlers. `memory` begins at the address `base`.
  static std::uint64_t wild_target(Hart& hart, const Record& record, std::uint64_t pc);
  static bool csr_instruction(Hart& hart, const Record& record, std::uint64_t time);
  struct Atomic {
    std::uint64_t cause = 0;  // of the exception, or 0; then mtval:
    std::uint64_t cause_value = 0;
    std::uint64_t offset = 0;
    bool wrote = false;
  };
  // Waits for pending registers, a mask of ControlUnit::pending.
  static void await_registers(ControlUnit& unit, std::uint64_t named);
  static Atomic atomic(std::span<std::uint8_t> memory, std::uint64_t base, Hart& hart, const Record& record);

 private:
  // What the loop needs of its owner as plain pointers and numbers: records of the code, and the part of memory that
  // loads and stores reach in place, `window_max` being the largest offset of 8 bytes in it.
  struct View {
    Record* records;
    std::uint64_t code_base;
    std::uint64_t code_bytes;
    std::uint8_t* window;
    std::uint64_t window_base;
    std::uint64_t window_max;
    std::uint64_t watched;  // offset in the window of stores that the owner wants to hear of
  };
  static View view_of(Machine& machine, Hart& hart);
  static View view_of(ControlSpace& space, ControlUnit& unit);
};

}  // namespace sk::sim

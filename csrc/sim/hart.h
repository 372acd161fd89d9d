// One hart: its registers, its machine-mode state, its counters.
//
// Model: plain data plus the trap and CSR rules of the privileged architecture with modes M and U. Registers that the
// architecture lets a simple machine leave out (address translation, delegation, physical memory protection entries,
// debug triggers) are absent or read as zero, as the specification allows: see csr.cpp.
//
// Invariants: x[0] is 0 always (results for it go to x[kSink]); a single-precision value in f is NaN-boxed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "sim/icache.h"

namespace sk::sim {

enum class Mode : std::uint8_t { user = 0, machine = 3 };

enum class Cause : std::uint64_t {
  fetch_access = 1,
  illegal_instruction = 2,
  breakpoint = 3,
  load_misaligned = 4,
  load_access = 5,
  store_misaligned = 6,
  store_access = 7,
  ecall_user = 8,
  ecall_machine = 11,
};

inline constexpr std::uint64_t kInterrupt = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kMsi = 1U << 3;
inline constexpr std::uint64_t kMti = 1U << 7;
inline constexpr std::uint64_t kMei = 1U << 11;

inline constexpr std::uint64_t kStatusMie = 1U << 3;
inline constexpr std::uint64_t kStatusMpie = 1U << 7;
inline constexpr std::uint64_t kStatusMpp = 3U << 11;
inline constexpr std::uint64_t kStatusFs = 3U << 13;
inline constexpr std::uint64_t kStatusMprv = 1U << 17;
inline constexpr std::uint64_t kStatusTw = 1U << 21;

inline constexpr std::int32_t kCsrMstatus = 0x300;
inline constexpr std::int32_t kCsrMie = 0x304;

inline constexpr std::uint64_t kNoReservation = ~std::uint64_t{0};

// A counter that software can write and stop: an offset to an event count that only grows.
struct Counter {
  std::uint64_t offset = 0;
  std::uint64_t stopped_at = 0;
  bool stopped = false;

  std::uint64_t read(std::uint64_t events) const { return stopped ? stopped_at : events + offset; }
  void write(std::uint64_t value, std::uint64_t events) {
    stopped_at = value;
    offset = value - events;
  }
  void stop(bool stop_it, std::uint64_t events) {
    if (stop_it == stopped) return;
    write(read(events), events);
    stopped = stop_it;
  }
};

// What every few instructions of a control unit touch stands last, next to what ControlUnit adds.
struct Hart {
  std::array<std::uint64_t, 32> f{};
  std::uint32_t id = 0;
  Mode mode = Mode::machine;
  std::uint8_t frm = 0;
  std::uint8_t fflags = 0;
  bool asleep = false;  // in wfi
  bool yields = false;  // a pause asks to end the turn

  std::uint64_t mstatus = 0;
  std::uint64_t mtvec = 0;
  std::uint64_t mepc = 0;
  std::uint64_t mcause = 0;
  std::uint64_t mtval = 0;
  std::uint64_t mscratch = 0;
  std::uint64_t mie = 0;
  std::uint64_t mip = 0;  // set by the machine only
  std::uint64_t mcounteren = 0;
  std::uint64_t mcountinhibit = 0;
  std::uint64_t menvcfg = 0;
  Counter cycle_counter;
  Counter instret_counter;

  std::uint64_t reservation = kNoReservation;  // the 8-byte granule of the last lr
  std::uint64_t time_offset = 0;               // see now()
  InstructionCache icache;

  alignas(64) std::array<std::uint64_t, 33> x{};  // x[32] takes what is written to x0
  std::uint64_t pc = 0;
  std::uint64_t retired = 0;  // instructions
  std::uint64_t traps = 0;    // exceptions and interrupts
  std::uint64_t stall_cycles = 0;

  // The machine's time as this hart sees it within its turn.
  std::uint64_t now() const { return retired + traps + time_offset; }
  // One cycle per instruction and trap, plus what the timing model adds.
  std::uint64_t cycles() const { return retired + traps + stall_cycles; }
  bool float_enabled() const { return (mstatus & kStatusFs) != 0; }
  void mark_float_dirty() { mstatus |= kStatusFs; }
  // Whether an enabled interrupt is pending; wakes from wfi whatever mstatus says.
  bool interrupt_pending() const { return (mip & mie) != 0; }

  // Enters the trap handler: pc is the trapping instruction's before and the handler's after.
  void take_trap(std::uint64_t cause, std::uint64_t value);
  void take_trap(Cause cause, std::uint64_t value) { take_trap(static_cast<std::uint64_t>(cause), value); }
  // Takes the most urgent interrupt if there is one and it is enabled; returns whether it did.
  bool take_interrupt();
  // Returns from a trap; false where the mode does not allow it.
  bool return_from_trap();

  // The CSR at `number`, with `time` for the time CSR. Nothing: the access is an illegal instruction.
  std::optional<std::uint64_t> read_csr(std::uint32_t number, std::uint64_t time) const;
  // Writes what the CSR lets be written. The access was checked by csr_access.
  void write_csr(std::uint32_t number, std::uint64_t value);
  // Privilege and read-only rules.
  bool csr_access(std::uint32_t number, bool writes) const;
};

// Executes a floating-point instruction of the float group. False: illegal (unit off, bad dynamic rounding mode).
struct Record;
bool execute_float(Hart& hart, const Record& record);

}  // namespace sk::sim

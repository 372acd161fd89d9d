// A core's control unit: the hart of a core, its instruction cache, the ready times of its registers.
//
// Model: in order, one instruction per cycle. An instruction that reads a register whose value is still on its way
// (load, multiplication, division, floating point) waits for it, and so does one that overwrites it: a scoreboard.
// Private work (registers, private memory, operand words of the register page, hits of the instruction cache) is done
// by the interpreter without asking anybody. So are doorbells of the core's own engines, while their queues surely have
// room: the commands are left as `Posted`, dated. Everything else that others could see or feel ends in a `Request`,
// which the device carries out when its turn in time has come.
//
// Invariants:
//  - hart.cycles() is the device's clock as this core sees it; every cycle beyond one per instruction is counted in the
//  statistics of the core's present marker, so that their sum is the core's time.
//  - Nothing that a request has not gone through depends on another core.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/device/clock.h"
#include "sim/device/core_cache.h"
#include "sim/device/counters.h"
#include "sim/hart.h"
#include "sim/huge_pages.h"
#include "sim/isa.h"

namespace sk::sim {

struct Request {
  enum class Kind : std::uint8_t {
    step,      // the run-ahead is used up
    fetch,     // an instruction miss at `address`
    prefetch,  // of the line at `address`
    load,      // of `bytes` at `address` into register rd
    store,     // of `value`
    atomic,    // `record`
    sleep,     // wfi
    trap,      // `value`: cause, `address`: mtval
  };
  Kind kind = Kind::step;
  std::uint8_t bytes = 0;
  bool extend_sign = false;
  bool to_float = false;
  std::uint64_t address = 0;
  std::uint64_t value = 0;
  Record record{};
};

// What decides about the time of control units, in cycles.
struct ControlCosts {
  std::uint32_t multiply = 1;
  std::uint32_t divide = 1;
  std::uint32_t arithmetic_float = 1;
  std::uint32_t divide_float = 1;
  std::uint32_t taken_branch = 0;
  std::uint32_t private_load = 1;
  std::uint32_t doorbell_store = 1;
};

inline constexpr std::size_t kWindowWords = 16;
inline constexpr std::size_t kWindows = 8;
inline constexpr std::size_t kPostedMax = 32;  // of one run-ahead
inline constexpr std::size_t kHostLineBytes = 64;
inline constexpr std::size_t kRegisters = 64;  // 0 to 31: integer, from 32 on: floating point

// Dozens of units take turns every few instructions, and find the host's caches cold: what a turn needs stands
// together, from Hart::x on, and `will_run` asks for it ahead.
struct ControlUnit : Hart {
  std::uint64_t pending = 0;  // the scoreboard's registers: their values are on their way
  std::uint64_t last_ready = 0;
  ControlStats* stats = nullptr;

  // Places of the engines' queues that are free whatever the engines do; 0 where others ring too.
  std::array<std::uint32_t, kWindows> room{};

  // Private memory; `private_bytes` 0: none.
  std::uint8_t* private_data = nullptr;
  std::uint64_t private_base = 0;
  std::uint64_t private_bytes = 0;
  CoreCache cache;

  Request request;
  bool second_line = false;  // the fetch that is served belongs to the instruction's second line
  bool fetched = false;      // both lines of the instruction at pc are there

  // Scoreboard.
  std::uint64_t pending_global = 0;  // of `pending`, from global memory
  std::array<std::uint64_t, kRegisters> ready{};

  std::array<std::array<std::uint64_t, kWindowWords>, kWindows> windows{};

  // Stores to global memory: when the last one is visible to all.
  std::uint64_t stores_visible = 0;

  // Order of this unit's accesses with everybody else's: clock.h. `released` is the own time as of the last `fence w,
  // o`: what commands know of this unit; `seen` is what loads know of others, as of the last `fence i, r`.
  ClockRef acquired;
  ClockRef seen;
  std::uint32_t epoch = 1;
  std::uint32_t released = 0;
  std::uint32_t load_epoch = 1;  // of loads, which every doorbell orders

  std::uint32_t marker = 0;
  std::uint64_t marker_cycle = 0;    // since when the present marker counts
  std::uint64_t marker_retired = 0;  // instructions then

  void await(std::size_t number, std::uint64_t when, bool global) {
    const std::uint64_t bit = std::uint64_t{1} << number;
    ready[number] = when;
    pending |= bit;
    pending_global = global ? pending_global | bit : pending_global & ~bit;
    last_ready = std::max(last_ready, when);
  }
  void stall(Stall cause, std::uint64_t cycles) {
    stall_cycles += cycles;
    stats->stalls[static_cast<std::size_t>(cause)] += cycles;
  }
  // Soon the unit has a turn: the host fetches what it needs.
  void will_run() const {
    const auto* const begin = reinterpret_cast<const char*>(x.data());
    const auto* const end = reinterpret_cast<const char*>(&pending_global);
    for (const char* line = begin; line < end; line += kHostLineBytes) __builtin_prefetch(line);
  }
  // The present marker's share up to now.
  void settle() {
    stats->cycles += cycles() - marker_cycle;
    stats->instructions += retired - marker_retired;
    marker_cycle = cycles();
    marker_retired = retired;
  }
};

// A command whose doorbell was rung while its unit ran ahead, and the unit's state then.
struct Posted {
  std::array<std::uint64_t, kWindowWords> words;
  std::uint64_t pc;
  std::uint64_t cycle;
  std::uint64_t retired;  // instructions before this one
  std::uint32_t marker;
  std::uint32_t released;
  std::uint32_t window;
};

// Which registers an operation reads and writes, and when its result is there.
struct Operands {
  struct One {
    std::uint8_t used = 0;       // 0 or 1
    std::uint8_t first_bit = 0;  // of `pending`: 0 integer, 32 floating point
  };
  One rs1, rs2, rs3, rd;
  std::uint8_t latency = 0;  // 0: one cycle, 1: arithmetic_float, 2: divide_float
};
const Operands* operands_of_operations();  // by Op

// The registers of a record as bits of `pending`. What goes to kSink shows as x0, which never is pending.
inline std::uint64_t registers_of(const Record& record, const Operands& operands) {
  const auto bit = [](Operands::One one, unsigned number) {
    return std::uint64_t{one.used} << ((number & 31) | one.first_bit);
  };
  return bit(operands.rs1, record.rs1) | bit(operands.rs2, record.rs2) | bit(operands.rs3, record.rs3) |
         bit(operands.rd, record.rd);
}

// What all control units share: the code, decoded, what the one that runs ahead has posted, and the marker's observer.
class ControlSpace {
 public:
  ControlSpace() = default;
  ControlSpace(const ControlSpace&) = delete;
  ControlSpace& operator=(const ControlSpace&) = delete;
  virtual ~ControlSpace() = default;

  void decode_at(std::size_t index);
  void decode_ahead();  // all of the code, unless that was done since it changed
  void flush_decoded();
  // A store to word 0 of the private memory was executed; pc and counts are up to date. Changes the unit's request
  // where the run cannot go on.
  virtual void marker_stored(ControlUnit& unit) = 0;
  void fence(ControlUnit& unit, std::uint32_t word) const;
  // The doorbell of a window is rung. False: the device must be asked.
  bool post(ControlUnit& unit, std::size_t window, std::uint64_t doorbell, std::uint64_t pc, std::uint64_t cycle,
            std::uint64_t retired);

  std::vector<Record, HugePages<Record>> records;
  std::uint64_t code_base = 0;
  std::uint64_t code_bytes = 0;
  std::span<const std::uint8_t> code;
  std::uint32_t line_bytes = 0;
  std::uint64_t page_address = 0;
  std::array<Posted, kPostedMax> posted;
  std::size_t posted_count = 0;
  ControlCosts costs;
  const Operands* operands = operands_of_operations();

 private:
  bool decoded_ahead_ = false;
};

}  // namespace sk::sim

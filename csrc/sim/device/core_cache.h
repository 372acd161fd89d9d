// A control unit's instruction cache on the device: which lines are in and when they arrive.
//
// Model: set-associative, least recently used out first. Execution asks when it enters a line. A miss is reported, not
// served: its time depends on the other cores, so the device fills the line in when the request's turn has come. A
// prefetched line takes a way at once and is ready later; a fetch that comes earlier waits for the rest.
//
// Invariant: lines are numbers below `lines_`, counted from the start of the code.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/device/counters.h"

namespace sk::sim {

class CoreCache {
 public:
  static constexpr std::int64_t kMiss = -1;

  void configure(std::uint64_t bytes, std::uint32_t line_bytes, std::uint32_t ways, std::uint64_t code_base,
                 std::uint64_t code_bytes);
  bool enabled() const { return !ways_.empty(); }
  // Forgets all lines and which were ever fetched.
  void clear();
  // Lines are kept; times restart at `now`.
  void settle(std::uint64_t now);

  std::uint64_t line_of(std::uint64_t address) const { return (address - base_) >> shift_; }
  std::uint64_t current() const { return current_; }
  // Execution enters a line other than the current one: the cycles it waits for it, or kMiss.
  std::int64_t enter(std::uint64_t line, std::uint64_t now, ControlStats& stats);
  // The missed line arrives at `ready`; it becomes the current one.
  void fill(std::uint64_t line, std::uint64_t ready, ControlStats& stats);
  bool holds(std::uint64_t line) { return find(line) != nullptr; }
  void prefetch(std::uint64_t line, std::uint64_t ready, ControlStats& stats);
  // Counts prefetched lines that nobody used.
  void finish();

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  struct Way {
    std::uint64_t line = kNone;
    std::uint64_t used = 0;
    std::uint64_t ready = 0;
    ControlStats* prefetched_by = nullptr;  // until its first use
  };

  Way* find(std::uint64_t line);
  Way& evict(std::uint64_t line);

  int shift_ = 7;
  std::uint64_t base_ = 0;
  std::uint64_t set_mask_ = 0;
  std::uint32_t associativity_ = 1;
  std::uint64_t current_ = kNone;
  std::uint64_t uses_ = 0;
  std::vector<Way> ways_;
  std::vector<bool> seen_;
};

}  // namespace sk::sim

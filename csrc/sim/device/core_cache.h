// A control unit's instruction cache on the device: which lines are in and when they arrive.
//
// Model: set-associative, least recently used out first. Execution asks when it enters a line. A miss is reported, not
// served: its time depends on the other cores, so the device fills the line in when the request's turn has come. A
// prefetched line takes a way at once and is ready later; a fetch that comes earlier waits for the rest.
//
// A set is the numbers of its lines, most recently used first, and no more: dozens of cores take turns every few
// instructions, and each finds its cache cold in the host's. What else there is of a line, when it arrives and who
// asked for it, matters for prefetched ones until their first use, and is kept apart.
//
// Invariants:
//  - Lines are numbers below 2^31, counted from the start of the code.
//  - A line without kUnused has arrived: whoever missed it, or used it first, has waited for it.
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
  bool enabled() const { return !lines_.empty(); }
  // Forgets all lines and which were ever fetched.
  void clear();
  // Lines are kept, as arrived.
  void settle();

  std::uint64_t line_of(std::uint64_t address) const { return (address - base_) >> shift_; }
  std::uint64_t current() const { return current_; }
  // Execution enters a line other than the current one: the cycles it waits for it, or kMiss.
  std::int64_t enter(std::uint64_t line, std::uint64_t now, ControlStats& stats) {
    std::uint32_t* const set = set_of(line);
    const std::uint32_t place = place_of(set, line);
    if (place == associativity_) return kMiss;
    const std::uint32_t found = set[place];
    move_to_front(set, place, static_cast<std::uint32_t>(line));
    current_ = line;
    ++stats.accesses;
    if ((found & kUnused) == 0) return 0;
    if (now < latest_) return first_use(found, now, stats);
    ++stats.prefetched_timely;
    return 0;
  }
  // The missed line, for which its core has waited, becomes the current one.
  void fill(std::uint64_t line, ControlStats& stats);
  // Soon the line may be entered: the host fetches what decides about it.
  void will_enter(std::uint64_t line) const {
    const std::size_t first = (line & set_mask_) * associativity_;
    __builtin_prefetch(&lines_[first]);
    __builtin_prefetch(&prefetched_[first]);
    __builtin_prefetch(&prefetched_[first + associativity_ - 1]);
  }
  bool holds(std::uint64_t line) { return place_of(set_of(line), line) != associativity_; }
  void prefetch(std::uint64_t line, std::uint64_t ready, ControlStats& stats);
  // Counts prefetched lines that nobody used.
  void finish();

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  static constexpr std::uint32_t kUnused = std::uint32_t{1} << 31;  // prefetched, and not used since
  static constexpr std::uint32_t kNoLine = kUnused - 1;
  struct Prefetched {
    std::uint32_t line = kNoLine;
    std::uint64_t ready = 0;
    ControlStats* by = nullptr;
  };

  std::uint32_t* set_of(std::uint64_t line) { return &lines_[(line & set_mask_) * associativity_]; }
  // The line's place in its set, or the associativity.
  std::uint32_t place_of(const std::uint32_t* set, std::uint64_t line) const {
    std::uint32_t place = 0;
    while (place < associativity_ && (set[place] & ~kUnused) != line) ++place;
    return place;
  }
  // The entry becomes the first, those before `place` move up by one.
  static void move_to_front(std::uint32_t* set, std::uint32_t place, std::uint32_t entry) {
    for (; place != 0; --place) set[place] = set[place - 1];
    set[0] = entry;
  }
  std::int64_t first_use(std::uint32_t entry, std::uint64_t now, ControlStats& stats);
  // What is kept of an entry with kUnused.
  Prefetched& slot_of(std::uint32_t entry);
  Prefetched& free_slot(std::uint64_t line);
  void replace_oldest(std::uint64_t line, std::uint32_t entry);

  // First what every entry needs.
  std::uint64_t base_ = 0;
  std::uint64_t current_ = kNone;
  std::uint32_t set_mask_ = 0;
  std::uint16_t associativity_ = 1;
  std::uint16_t shift_ = 7;
  std::vector<std::uint32_t> lines_;  // set by set
  std::uint64_t latest_ = 0;          // when the last prefetched line arrives
  // As many to a set, no two with the same line. One counts while its line is in the set with kUnused; others are free:
  // there always is one, since a line that is prefetched takes the place of another or its own slot again.
  std::vector<Prefetched> prefetched_;
  std::vector<bool> seen_;
};

}  // namespace sk::sim

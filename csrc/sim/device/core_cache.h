// A control unit's instruction cache on the device: which lines are in and when they arrive.
//
// Model: set-associative, least recently used out first. Execution asks when it enters a line. A miss is reported, not
// served: its time depends on the other cores, so the device fills the line in when the request's turn has come. A
// prefetched line takes a way at once and is ready later; a fetch that comes earlier waits for the rest.
//
// Dozens of cores take turns every few instructions, and each finds its cache cold in the host's. So all that an access
// needs of a set stands together, with four ways in one line of the host: the numbers of its lines, most recently used
// first, and when prefetched ones arrive, which matters until their first use. Who asked for those is kept apart.
//
// Invariants:
//  - Lines are numbers below 2^31, counted from the start of the code.
//  - A line without kUnused has arrived: whoever missed it, or used it first, has waited for it.
//  - A line in `fronts_` is the first of its set and without kUnused, so that entering it changes nothing: calls and
//  returns go to and fro between lines whose sets need not be looked at. Lines of one set share a place there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/device/counters.h"

namespace sk::sim {

class CoreCache {
 public:
  static constexpr std::int64_t kMiss = -1;

  // One place of a set's order, most recently used first, and one slot for a prefetched line of the set; which place
  // and which slot stand together says nothing. A slot counts while its line is in the set with kUnused; others are
  // free: there always is one, since a line that is prefetched takes the place of another or its own slot again.
  struct Way {
    std::uint32_t entry;  // a line, with kUnused or without
    std::uint32_t prefetched;
    std::uint64_t ready;  // when that line arrives
  };

  // `ways` has room for ways_of(bytes, line_bytes).
  static std::size_t ways_of(std::uint64_t bytes, std::uint32_t line_bytes) { return bytes / line_bytes; }
  void configure(std::uint64_t bytes, std::uint32_t line_bytes, std::uint32_t associativity, std::uint64_t code_base,
                 std::uint64_t code_bytes, Way* ways);
  bool enabled() const { return ways_ != nullptr; }
  // Forgets all lines and which were ever fetched.
  void clear();
  // Lines are kept, as arrived.
  void settle();

  std::uint64_t line_of(std::uint64_t address) const { return (address - base_) >> shift_; }
  std::uint64_t current() const { return current_; }
  // Execution enters a line other than the current one: the cycles it waits for it, or kMiss.
  std::int64_t enter(std::uint64_t line, std::uint64_t now, ControlStats& stats) {
    std::uint32_t& front = front_of(line);
    if (front == line) {
      current_ = line;
      ++stats.accesses;
      return 0;
    }
    Way* const set = set_of(line);
    const std::uint32_t place = place_of(set, line);
    if (place == associativity_) return kMiss;
    will_enter(line + 1);
    const std::uint32_t found = set[place].entry;
    move_to_front(set, place, static_cast<std::uint32_t>(line));
    front = static_cast<std::uint32_t>(line);
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
  void will_enter(std::uint64_t line) const { __builtin_prefetch(set_of(line)); }
  bool holds(std::uint64_t line) { return place_of(set_of(line), line) != associativity_; }
  void prefetch(std::uint64_t line, std::uint64_t ready, ControlStats& stats);
  // Counts prefetched lines that nobody used.
  void finish();

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  static constexpr std::uint32_t kUnused = std::uint32_t{1} << 31;  // prefetched, and not used since
  static constexpr std::uint32_t kNoLine = kUnused - 1;
  static constexpr std::size_t kFronts = 16;

  // Sets are as many as a power of two: with fewer than kFronts of them lines of one set would not share a place.
  std::uint32_t& front_of(std::uint64_t line) { return fronts_[line & fronts_mask_]; }
  Way* set_of(std::uint64_t line) const { return &ways_[(line & set_mask_) * associativity_]; }
  // The line's place in its set, or the associativity.
  std::uint32_t place_of(const Way* set, std::uint64_t line) const {
    std::uint32_t place = 0;
    while (place < associativity_ && (set[place].entry & ~kUnused) != line) ++place;
    return place;
  }
  // The entry becomes the first, those before `place` move up by one.
  static void move_to_front(Way* set, std::uint32_t place, std::uint32_t entry) {
    for (; place != 0; --place) set[place].entry = set[place - 1].entry;
    set[0].entry = entry;
  }
  std::int64_t first_use(std::uint32_t entry, std::uint64_t now, ControlStats& stats);
  // The slot of an entry with kUnused, and whose prefetch it was.
  Way& slot_of(std::uint32_t entry);
  ControlStats*& owner_of(const Way& slot) { return by_[static_cast<std::size_t>(&slot - ways_)]; }
  Way& free_slot(std::uint64_t line);
  void replace_oldest(std::uint64_t line, std::uint32_t entry);

  // First what every entry needs.
  std::uint64_t base_ = 0;
  std::uint64_t current_ = kNone;
  std::array<std::uint32_t, kFronts> fronts_{};
  std::uint32_t fronts_mask_ = 0;
  std::uint32_t set_mask_ = 0;
  std::uint16_t associativity_ = 1;
  std::uint16_t shift_ = 7;
  Way* ways_ = nullptr;       // set by set
  std::uint64_t latest_ = 0;  // when the last prefetched line arrives
  std::vector<ControlStats*> by_;
  std::vector<bool> seen_;
};

}  // namespace sk::sim

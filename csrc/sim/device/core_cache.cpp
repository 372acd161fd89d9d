// See core_cache.h.
#include "sim/device/core_cache.h"

#include <algorithm>
#include <bit>

namespace sk::sim {

void CoreCache::configure(std::uint64_t bytes, std::uint32_t line_bytes, std::uint32_t associativity,
                          std::uint64_t code_base, std::uint64_t code_bytes, Way* ways) {
  shift_ = static_cast<std::uint16_t>(std::countr_zero(line_bytes));
  base_ = code_base;
  associativity_ = static_cast<std::uint16_t>(associativity);
  set_mask_ = static_cast<std::uint32_t>(bytes / (std::uint64_t{line_bytes} * associativity) - 1);
  fronts_mask_ = std::min(set_mask_, static_cast<std::uint32_t>(kFronts - 1));
  ways_ = ways;
  by_.resize(ways_of(bytes, line_bytes));
  seen_.resize((code_bytes >> shift_) + 2);
  clear();
}

void CoreCache::clear() {
  for (std::size_t i = 0; i < by_.size(); ++i) ways_[i] = {kNoLine, kNoLine, 0};
  latest_ = 0;
  std::fill(seen_.begin(), seen_.end(), false);
  fronts_.fill(kNoLine);
  current_ = kNone;
}

void CoreCache::settle() {
  for (std::size_t i = 0; i < by_.size(); ++i) ways_[i].entry &= ~kUnused;
  latest_ = 0;
  current_ = kNone;
}

CoreCache::Way& CoreCache::slot_of(std::uint32_t entry) {
  const std::uint32_t line = entry & ~kUnused;
  Way* slot = set_of(line);
  while (slot->prefetched != line) ++slot;
  return *slot;
}

CoreCache::Way& CoreCache::free_slot(std::uint64_t line) {
  Way* const set = set_of(line);
  Way* const end = set + associativity_;
  Way* const own = std::find_if(set, end, [&](const Way& slot) { return slot.prefetched == line; });
  if (own != end) return *own;
  const auto counts = [&](const Way& slot) {
    return std::any_of(set, end, [&](const Way& way) { return way.entry == (slot.prefetched | kUnused); });
  };
  return *std::find_if_not(set, end, counts);
}

std::int64_t CoreCache::first_use(std::uint32_t entry, std::uint64_t now, ControlStats& stats) {
  const std::uint64_t ready = slot_of(entry).ready;
  const bool late = ready > now;
  ++(late ? stats.prefetched_late : stats.prefetched_timely);
  return late ? static_cast<std::int64_t>(ready - now) : 0;
}

// Places that were never taken stand behind all others.
void CoreCache::replace_oldest(std::uint64_t line, std::uint32_t entry) {
  Way* const set = set_of(line);
  const std::uint32_t oldest = set[associativity_ - 1].entry;
  if ((oldest & kUnused) != 0) ++owner_of(slot_of(oldest))->prefetched_useless;
  move_to_front(set, associativity_ - 1, entry);
}

void CoreCache::fill(std::uint64_t line, ControlStats& stats) {
  replace_oldest(line, static_cast<std::uint32_t>(line));
  front_of(line) = static_cast<std::uint32_t>(line);
  current_ = line;
  ++stats.accesses;
  ++(seen_[line] ? stats.capacity : stats.cold);
  seen_[line] = true;
}

void CoreCache::prefetch(std::uint64_t line, std::uint64_t ready, ControlStats& stats) {
  const auto number = static_cast<std::uint32_t>(line);
  replace_oldest(line, number);
  front_of(line) = kNoLine;
  Way& slot = free_slot(line);
  slot.prefetched = number;
  slot.ready = ready;
  owner_of(slot) = &stats;
  set_of(line)[0].entry |= kUnused;
  latest_ = std::max(latest_, ready);
  ++stats.prefetches;
  seen_[line] = true;
}

void CoreCache::finish() {
  for (std::size_t i = 0; i < by_.size(); ++i) {
    std::uint32_t& entry = ways_[i].entry;
    if ((entry & kUnused) == 0) continue;
    ++owner_of(slot_of(entry))->prefetched_useless;
    entry &= ~kUnused;
  }
}

}  // namespace sk::sim

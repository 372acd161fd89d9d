// See core_cache.h.
#include "sim/device/core_cache.h"

#include <algorithm>
#include <bit>

namespace sk::sim {

void CoreCache::configure(std::uint64_t bytes, std::uint32_t line_bytes, std::uint32_t ways, std::uint64_t code_base,
                          std::uint64_t code_bytes) {
  shift_ = static_cast<std::uint16_t>(std::countr_zero(line_bytes));
  base_ = code_base;
  associativity_ = static_cast<std::uint16_t>(ways);
  set_mask_ = static_cast<std::uint32_t>(bytes / (std::uint64_t{line_bytes} * ways) - 1);
  lines_.resize((std::size_t{set_mask_} + 1) * ways);
  prefetched_.resize(lines_.size());
  seen_.resize((code_bytes >> shift_) + 2);
  clear();
}

void CoreCache::clear() {
  std::fill(lines_.begin(), lines_.end(), kNoLine);
  latest_ = 0;
  std::fill(seen_.begin(), seen_.end(), false);
  current_ = kNone;
}

void CoreCache::settle() {
  for (std::uint32_t& entry : lines_) entry &= ~kUnused;
  latest_ = 0;
  current_ = kNone;
}

CoreCache::Prefetched& CoreCache::slot_of(std::uint32_t entry) {
  const std::uint32_t line = entry & ~kUnused;
  Prefetched* slot = &prefetched_[(line & set_mask_) * associativity_];
  while (slot->line != line) ++slot;
  return *slot;
}

CoreCache::Prefetched& CoreCache::free_slot(std::uint64_t line) {
  const std::uint32_t* const set = set_of(line);
  Prefetched* const slots = &prefetched_[(line & set_mask_) * associativity_];
  Prefetched* const end = slots + associativity_;
  Prefetched* const own = std::find_if(slots, end, [&](const Prefetched& slot) { return slot.line == line; });
  if (own != end) return *own;
  Prefetched* slot = slots;
  while (std::find(set, set + associativity_, slot->line | kUnused) != set + associativity_) ++slot;
  return *slot;
}

std::int64_t CoreCache::first_use(std::uint32_t entry, std::uint64_t now, ControlStats& stats) {
  const std::uint64_t ready = slot_of(entry).ready;
  const bool late = ready > now;
  ++(late ? stats.prefetched_late : stats.prefetched_timely);
  return late ? static_cast<std::int64_t>(ready - now) : 0;
}

// Places that were never taken stand behind all others.
void CoreCache::replace_oldest(std::uint64_t line, std::uint32_t entry) {
  std::uint32_t* const set = set_of(line);
  const std::uint32_t oldest = set[associativity_ - 1];
  if ((oldest & kUnused) != 0) ++slot_of(oldest).by->prefetched_useless;
  move_to_front(set, associativity_ - 1, entry);
}

void CoreCache::fill(std::uint64_t line, ControlStats& stats) {
  replace_oldest(line, static_cast<std::uint32_t>(line));
  current_ = line;
  ++stats.accesses;
  ++(seen_[line] ? stats.capacity : stats.cold);
  seen_[line] = true;
}

void CoreCache::prefetch(std::uint64_t line, std::uint64_t ready, ControlStats& stats) {
  const auto number = static_cast<std::uint32_t>(line);
  replace_oldest(line, number);
  free_slot(line) = {number, ready, &stats};
  set_of(line)[0] |= kUnused;
  latest_ = std::max(latest_, ready);
  ++stats.prefetches;
  seen_[line] = true;
}

void CoreCache::finish() {
  for (std::uint32_t& entry : lines_) {
    if ((entry & kUnused) == 0) continue;
    ++slot_of(entry).by->prefetched_useless;
    entry &= ~kUnused;
  }
}

}  // namespace sk::sim

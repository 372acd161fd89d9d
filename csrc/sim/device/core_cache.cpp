// See core_cache.h.
#include "sim/device/core_cache.h"

#include <bit>

namespace sk::sim {

void CoreCache::configure(std::uint64_t bytes, std::uint32_t line_bytes, std::uint32_t ways, std::uint64_t code_base,
                          std::uint64_t code_bytes) {
  shift_ = std::countr_zero(line_bytes);
  base_ = code_base;
  associativity_ = ways;
  set_mask_ = bytes / (std::uint64_t{line_bytes} * ways) - 1;
  ways_.assign((set_mask_ + 1) * ways, Way{});
  seen_.assign((code_bytes >> shift_) + 2, false);
}

void CoreCache::clear() {
  ways_.assign(ways_.size(), Way{});
  seen_.assign(seen_.size(), false);
  current_ = kNone;
}

void CoreCache::settle(std::uint64_t now) {
  for (Way& way : ways_) {
    way.ready = std::min(way.ready, now);
    way.prefetched_by = nullptr;
  }
  current_ = kNone;
}

CoreCache::Way* CoreCache::find(std::uint64_t line) {
  Way* const set = &ways_[(line & set_mask_) * associativity_];
  for (std::uint32_t i = 0; i < associativity_; ++i) {
    if (set[i].line == line) return set + i;
  }
  return nullptr;
}

CoreCache::Way& CoreCache::evict(std::uint64_t line) {
  Way* const set = &ways_[(line & set_mask_) * associativity_];
  Way* oldest = set;
  for (std::uint32_t i = 1; i < associativity_; ++i) {
    if (set[i].used < oldest->used) oldest = set + i;
  }
  if (oldest->prefetched_by != nullptr) ++oldest->prefetched_by->prefetched_useless;
  return *oldest;
}

std::int64_t CoreCache::enter(std::uint64_t line, std::uint64_t now, ControlStats& stats) {
  Way* const way = find(line);
  if (way == nullptr) return kMiss;
  current_ = line;
  ++stats.accesses;
  way->used = ++uses_;
  const bool late = way->ready > now;
  if (way->prefetched_by != nullptr) {
    ++(late ? stats.prefetched_late : stats.prefetched_timely);
    way->prefetched_by = nullptr;
  }
  return late ? static_cast<std::int64_t>(way->ready - now) : 0;
}

void CoreCache::fill(std::uint64_t line, std::uint64_t ready, ControlStats& stats) {
  evict(line) = {line, ++uses_, ready, nullptr};
  current_ = line;
  ++stats.accesses;
  ++(seen_[line] ? stats.capacity : stats.cold);
  seen_[line] = true;
}

void CoreCache::prefetch(std::uint64_t line, std::uint64_t ready, ControlStats& stats) {
  evict(line) = {line, ++uses_, ready, &stats};
  ++stats.prefetches;
  seen_[line] = true;
}

void CoreCache::finish() {
  for (Way& way : ways_) {
    if (way.prefetched_by != nullptr) ++way.prefetched_by->prefetched_useless;
    way.prefetched_by = nullptr;
  }
}

}  // namespace sk::sim

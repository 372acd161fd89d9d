// See icache.h.
#include "sim/icache.h"

#include <bit>

namespace sk::sim {

const char* CacheGeometry::problem() const {
  if (bytes == 0) return nullptr;
  if (!std::has_single_bit(line_bytes) || line_bytes < 8 || line_bytes > 4096) {
    return "line_bytes must be a power of two from 8 to 4096";
  }
  if (ways == 0 || ways > 64) return "ways must be 1 to 64";
  if (bytes > (1U << 28)) return "bytes must be at most 256 MiB";
  const std::uint32_t set_bytes = line_bytes * ways;
  if (bytes % set_bytes != 0 || !std::has_single_bit(bytes / set_bytes)) {
    return "bytes / (line_bytes * ways), the number of sets, must be a power of two";
  }
  return nullptr;
}

void InstructionCache::configure(const CacheGeometry& geometry) {
  *this = InstructionCache();
  geometry_ = geometry;
  if (geometry.bytes == 0) return;
  line_shift_ = std::countr_zero(geometry.line_bytes);
  const std::uint32_t sets = geometry.bytes / (geometry.line_bytes * geometry.ways);
  set_mask_ = sets - 1;
  ways_.resize(std::size_t{sets} * geometry.ways);
}

InstructionCache::Way* InstructionCache::find(std::uint64_t line) {
  Way* const set = &ways_[(line & set_mask_) * geometry_.ways];
  for (std::uint32_t i = 0; i < geometry_.ways; ++i) {
    if (set[i].line == line) return set + i;
  }
  return nullptr;
}

InstructionCache::Way& InstructionCache::victim(std::uint64_t line) {
  Way* const set = &ways_[(line & set_mask_) * geometry_.ways];
  Way* oldest = set;
  for (std::uint32_t i = 1; i < geometry_.ways; ++i) {
    if (set[i].used < oldest->used) oldest = set + i;
  }
  return *oldest;
}

// Lines are remembered relative to a base, because code lies densely and far from address 0.
bool InstructionCache::first_time(std::uint64_t line) {
  constexpr std::uint64_t kBlock = 1024;
  if (seen_.empty()) seen_base_ = line / kBlock * kBlock;
  if (line < seen_base_) {
    const std::uint64_t base = line / kBlock * kBlock;
    seen_.insert(seen_.begin(), seen_base_ - base, false);
    seen_base_ = base;
  }
  const std::uint64_t place = line - seen_base_;
  if (place >= seen_.size()) seen_.resize(place + kBlock, false);
  const bool first = !seen_[place];
  seen_[place] = true;
  return first;
}

std::uint64_t InstructionCache::enter(std::uint64_t line, std::uint64_t now) {
  current_ = line;
  ++stats_.accesses;
  if (Way* way = find(line)) {
    way->used = ++uses_;
    const bool late = way->prefetched && way->ready > now;
    way->prefetched = false;
    if (!late) return 0;
    ++stats_.prefetches_late;
    return way->ready - now;
  }
  ++stats_.misses;
  if (first_time(line)) ++stats_.cold_misses;
  victim(line) = {line, ++uses_, now + geometry_.miss_cycles, false};
  return geometry_.miss_cycles;
}

void InstructionCache::prefetch(std::uint64_t address, std::uint64_t now) {
  const std::uint64_t line = address >> line_shift_;
  if (ways_.empty() || find(line) != nullptr) return;
  ++stats_.prefetches;
  first_time(line);
  victim(line) = {line, ++uses_, now + geometry_.miss_cycles, true};
}

}  // namespace sk::sim

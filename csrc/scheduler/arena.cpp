#include "scheduler/arena.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace sk::scheduler {

namespace {

constexpr std::size_t kCandidatesMost = 64;
constexpr std::size_t kPairsMost = 2048;  // of a buffer's runs with placed ones; beyond that the search takes too long

}  // namespace

Arena::Arena(std::vector<std::int64_t> sizes, std::vector<std::vector<Run>> runs, std::int64_t align,
             std::int64_t limit)
    : sizes_(std::move(sizes)), runs_(std::move(runs)), align_(align), limit_(limit), is_placed_(sizes_.size()) {}

std::int64_t Arena::place(std::size_t buffer, std::span<const bool> meets) {
  const std::int64_t size = sizes_[buffer];
  taken_.clear();
  std::int64_t reach = 0;
  std::int64_t lowest = -1;
  for (const Placed& each : placed_) {
    if (!meets[each.buffer]) continue;
    if (lowest < 0 && each.start - reach >= size) lowest = reach;
    reach = std::max(reach, each.stop);
    taken_.push_back({each.start, reach, each.buffer});
  }
  if (lowest < 0) lowest = reach;
  const std::int64_t start = limit_ == 0 ? lowest : chosen(buffer, lowest, meets);
  const auto behind = std::upper_bound(placed_.begin(), placed_.end(), start,
                                       [](std::int64_t at, const Placed& each) { return at < each.start; });
  placed_.insert(behind, {start, start + size, buffer});
  is_placed_[buffer] = true;
  return start;
}

// Whether nothing that interferes lies in so many bytes from an offset on.
bool Arena::is_free(std::int64_t offset, std::int64_t size) const {
  const auto behind = std::lower_bound(taken_.begin(), taken_.end(), offset + size,
                                       [](const Placed& each, std::int64_t stop) { return each.start < stop; });
  return behind == taken_.begin() || std::prev(behind)->stop <= offset;
}

std::int64_t Arena::chosen(std::size_t buffer, std::int64_t lowest, std::span<const bool> meets) {
  const std::vector<Run>& own = runs_[buffer];
  const std::int64_t size = sizes_[buffer];
  others_.clear();
  for (const Placed& each : placed_) {
    if (meets[each.buffer]) continue;
    for (const Run& run : runs_[each.buffer])
      others_.push_back({each.start + run.low, each.start + run.high, run.core});
    if (own.size() * others_.size() > kPairsMost) return lowest;
  }
  if (own.empty() || others_.empty()) return lowest;
  offsets_.assign(1, lowest);
  for (const Placed& each : placed_) {
    if (meets[each.buffer]) offsets_.insert(offsets_.end(), {each.stop, each.start - size});
  }
  for (const Run& other : others_) {
    for (const Run& run : own) {
      offsets_.insert(offsets_.end(),
                      {other.low - run.low, other.low - run.high, other.high - run.low, other.high - run.high});
    }
  }
  std::erase_if(offsets_, [&](std::int64_t offset) {
    return offset < 0 || offset + size > limit_ || offset % align_ != 0 || !is_free(offset, size);
  });
  std::sort(offsets_.begin(), offsets_.end());
  offsets_.erase(std::unique(offsets_.begin(), offsets_.end()), offsets_.end());
  if (offsets_.empty()) return lowest;
  if (offsets_.size() > kCandidatesMost) {  // and the last: where nothing is yet, if anywhere
    offsets_[kCandidatesMost - 1] = offsets_.back();
    offsets_.resize(kCandidatesMost);
  }
  std::int64_t best = lowest;
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t offset : offsets_) {
    std::int64_t foreign = 0;
    for (const Run& other : others_) {
      for (const Run& run : own) {
        if (run.core == other.core) continue;
        const std::int64_t low = std::max(run.low + offset, other.low);
        foreign += std::max<std::int64_t>(std::min(run.high + offset, other.high) - low, 0);
      }
    }
    if (foreign < fewest) std::tie(fewest, best) = std::pair(foreign, offset);
  }
  return best;
}

}  // namespace sk::scheduler

#include "scheduler/arena.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace sk::scheduler {

namespace {

constexpr std::size_t kCandidatesMost = 64;
constexpr std::size_t kAlikeMost = 16;    // buffers over which another one is tried to be laid
constexpr std::size_t kPairsMost = 2048;  // of a buffer's runs with placed ones; beyond that the search takes too long

// Whether two lists of runs, each from an offset on, give no byte to two cores.
bool agree(std::span<const Run> left, std::int64_t left_at, std::span<const Run> right, std::int64_t right_at) {
  for (std::size_t i = 0, k = 0; i < left.size() && k < right.size();) {
    const std::int64_t stop = left[i].high + left_at;
    const std::int64_t end = right[k].high + right_at;
    const bool share = left[i].low + left_at < end && right[k].low + right_at < stop;
    if (share && left[i].core != right[k].core) return false;
    (stop <= end ? i : k) += 1;
  }
  return true;
}

}  // namespace

Arena::Arena(std::vector<std::int64_t> sizes, std::vector<std::vector<Run>> runs, std::int64_t align,
             std::int64_t limit)
    : sizes_(std::move(sizes)), runs_(std::move(runs)), align_(align), limit_(limit), is_placed_(sizes_.size()) {}

std::int64_t Arena::place(std::size_t buffer, std::span<const Interference> meets) {
  const std::int64_t size = sizes_[buffer];
  taken_.clear();
  std::int64_t reach = 0;
  std::int64_t lowest = -1;
  for (const Placed& each : placed_) {
    if (meets[each.buffer] == Interference::kNone) continue;
    if (lowest < 0 && each.start - reach >= size) lowest = reach;
    reach = std::max(reach, each.stop);
    taken_.push_back({each.start, reach, each.buffer});
  }
  lowest = laid_over(buffer, lowest < 0 ? reach : lowest, meets);
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

// The lowest offset, up to the given one, where the buffer lies over bytes that the same cores use.
std::int64_t Arena::laid_over(std::size_t buffer, std::int64_t lowest, std::span<const Interference> meets) const {
  std::size_t tried = 0;
  for (const Placed& each : placed_) {
    if (each.start >= lowest || tried == kAlikeMost) break;
    if (meets[each.buffer] != Interference::kOtherCores) continue;
    ++tried;
    const Run& own = runs_[buffer].front();
    for (const Run& run : runs_[each.buffer]) {
      if (run.core != own.core) continue;
      for (const std::int64_t offset : {each.start + run.low - own.low, each.start + run.high - own.high}) {
        if (offset < 0 || offset >= lowest || offset % align_ != 0) continue;
        if (lies_alike(buffer, offset, meets)) lowest = offset;
      }
    }
  }
  return lowest;
}

// Whether a buffer there shares no bytes with what interferes with it.
bool Arena::lies_alike(std::size_t buffer, std::int64_t offset, std::span<const Interference> meets) const {
  const std::int64_t stop = offset + sizes_[buffer];
  for (const Placed& each : placed_) {
    if (each.start >= stop) break;
    const Interference how = meets[each.buffer];
    if (each.stop <= offset || how == Interference::kNone) continue;
    if (how == Interference::kAlways || !agree(runs_[buffer], offset, runs_[each.buffer], each.start)) return false;
  }
  return true;
}

std::int64_t Arena::chosen(std::size_t buffer, std::int64_t lowest, std::span<const Interference> meets) {
  const std::vector<Run>& own = runs_[buffer];
  const std::int64_t size = sizes_[buffer];
  others_.clear();
  for (const Placed& each : placed_) {
    if (meets[each.buffer] != Interference::kNone) continue;
    for (const Run& run : runs_[each.buffer])
      others_.push_back({each.start + run.low, each.start + run.high, run.core});
    if (own.size() * others_.size() > kPairsMost) return lowest;
  }
  if (own.empty() || others_.empty()) return lowest;
  offsets_.assign(1, lowest);
  for (const Placed& each : placed_) {
    if (meets[each.buffer] == Interference::kNone) continue;
    offsets_.insert(offsets_.end(), {each.stop, each.start - size});
  }
  for (const Run& other : others_) {
    for (const Run& run : own) {
      offsets_.insert(offsets_.end(),
                      {other.low - run.low, other.low - run.high, other.high - run.low, other.high - run.high});
    }
  }
  std::erase_if(offsets_, [&](std::int64_t offset) {
    if (offset < 0 || offset + size > limit_ || offset % align_ != 0) return true;
    return offset != lowest && !is_free(offset, size);
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

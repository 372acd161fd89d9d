#include "regions/region.h"

#include <cstddef>
#include <vector>

namespace sk {

namespace {

constexpr std::size_t kPairsTried = 4096;

Region shifted(Region region, std::int64_t offset) {
  region.start += offset;
  return region;
}

// By rising addresses, each against those that reach so far.
bool any_overlap_swept(std::span<const Region> left, std::span<const Region> right, std::int64_t right_offset) {
  struct Side {
    Region region;
    bool right;
  };
  std::vector<Side> all;
  all.reserve(left.size() + right.size());
  for (const Region& each : left) all.push_back({each, false});
  for (const Region& each : right) all.push_back({shifted(each, right_offset), true});
  std::sort(all.begin(), all.end(), [](const Side& a, const Side& b) { return a.region.start < b.region.start; });
  std::vector<Region> reached[2];
  for (const Side& each : all) {
    std::vector<Region>& others = reached[each.right ? 0 : 1];
    std::erase_if(others, [&](const Region& other) { return other.stop() <= each.region.start; });
    for (const Region& other : others) {
      if (overlap(other, each.region)) return true;
    }
    reached[each.right ? 1 : 0].push_back(each.region);
  }
  return false;
}

}  // namespace

bool any_overlap(std::span<const Region> left, std::span<const Region> right, std::int64_t right_offset) {
  if (left.size() * right.size() > kPairsTried) return any_overlap_swept(left, right, right_offset);
  for (const Region& one : left) {
    for (const Region& other : right) {
      if (overlap(one, shifted(other, right_offset))) return true;
    }
  }
  return false;
}

}  // namespace sk

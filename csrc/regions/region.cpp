#include "regions/region.h"

#include <cstddef>
#include <utility>

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

// A region whose runs touch or overlap one another is one run.
Region joined(const Region& region) {
  return region.count > 1 && region.length >= region.stride ? Region{region.start, region.stop() - region.start, 0, 1}
                                                            : region;
}

// Whether `next`, which starts where the runs of `region` end, continues each of them, or the one that there is.
bool continues(const Region& region, const Region& next) {
  return next.start == region.start + region.length && next.count == region.count &&
         (next.count == 1 || (next.stride == region.stride && region.length + next.length <= region.stride));
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

bool tile(std::vector<Region> regions, std::int64_t low, std::int64_t high) {
  std::int64_t bytes = 0;
  for (Region& each : regions) {
    each = joined(each);
    bytes += each.bytes();
  }
  if (bytes != high - low) return false;
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.start < b.start; });
  // Neighbours become one, so that mostly one is left; as many bytes as places, and none twice, is all of them.
  std::vector<Region> apart;
  for (Region next : regions) {
    while (!apart.empty() && continues(apart.back(), next)) {
      apart.back().length += next.length;
      next = joined(apart.back());
      apart.pop_back();
    }
    apart.push_back(next);
  }
  std::vector<Region> reached;
  for (const Region& each : apart) {
    std::erase_if(reached, [&](const Region& other) { return other.stop() <= each.start; });
    if (std::any_of(reached.begin(), reached.end(), [&](const Region& other) { return overlap(other, each); })) {
      return false;
    }
    reached.push_back(each);
  }
  return true;
}

}  // namespace sk

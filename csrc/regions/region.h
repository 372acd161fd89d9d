// Sets of bytes, as superkernel.core.tensor.Region, and whether two of them meet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace sk {

// `count` runs of `length` bytes, `stride` bytes apart, the first at `start`.
struct Region {
  std::int64_t start;
  std::int64_t length;
  std::int64_t stride;
  std::int64_t count;

  std::int64_t stop() const { return start + (count - 1) * stride + length; }
  std::int64_t bytes() const { return length * count; }
};

inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

// Run i of `a` and run i + k of `b` meet where -length of b < distance + k * stride < length of a, with the one stride
// that there is. With two, as if there was no end to the runs: it may say so of regions that share no byte, never the
// other way round.
inline bool overlap(const Region& a, const Region& b) {
  if (a.start >= b.stop() || b.start >= a.stop()) return false;
  if (a.count == 1 && b.count == 1) return true;
  const std::int64_t distance = b.start - a.start;
  if (a.count > 1 && b.count > 1 && a.stride != b.stride) {
    const std::int64_t step = std::max<std::int64_t>(std::gcd(a.stride, b.stride), 1);
    const std::int64_t delta = distance - floor_div(distance, step) * step;
    return delta < a.length || step - delta < b.length;
  }
  const std::int64_t stride = std::max<std::int64_t>(a.count == 1 ? b.stride : a.stride, 1);
  const std::int64_t least = std::max(-floor_div(distance + b.length - 1, stride), 1 - a.count);
  const std::int64_t most = std::min(floor_div(a.length - 1 - distance, stride), b.count - 1);
  return least <= most;
}

// Whether any of the one side meets any of the other, so many bytes further on.
bool any_overlap(std::span<const Region> left, std::span<const Region> right, std::int64_t right_offset);

// Whether regions that lie in [low, high) hold each of its bytes exactly once. It may deny it of some whose strides
// differ, never the other way round.
bool tile(std::vector<Region> regions, std::int64_t low, std::int64_t high);

}  // namespace sk

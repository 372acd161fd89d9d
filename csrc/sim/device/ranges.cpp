// See ranges.h.
#include "sim/device/ranges.h"

#include <algorithm>
#include <bit>

namespace sk::sim {
namespace {

constexpr std::uint64_t kWordBits = 64;

// Bits first to first + count - 1 of a word; count is 1 to 64.
constexpr std::uint64_t mask_of(std::uint64_t first, std::uint64_t count) {
  return ~std::uint64_t{0} >> (kWordBits - count) << first;
}

}  // namespace

void RangeSet::add(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  const auto first = std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                                      [](const auto& range, std::uint64_t value) { return range.second < value; });
  auto last = first;
  for (; last != ranges_.end() && last->first <= end; ++last) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
  }
  ranges_.insert(ranges_.erase(first, last), {begin, end});
}

bool RangeSet::contains(std::uint64_t begin, std::uint64_t end) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                                      [](std::uint64_t value, const auto& range) { return value < range.first; });
  return after != ranges_.begin() && std::prev(after)->second >= end;
}

bool RangeSet::meets(std::uint64_t begin, std::uint64_t end) const {
  const auto first = std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                                      [](std::uint64_t value, const auto& range) { return value < range.second; });
  return first != ranges_.end() && first->first < end;
}

bool ByteMap::allocate(std::uint64_t bytes) { return pages_.allocate((bytes + kWordBits - 1) / kWordBits * 8); }

void ByteMap::set(std::uint64_t begin, std::uint64_t end) {
  while (begin < end) {
    const std::uint64_t first = begin % kWordBits;
    const std::uint64_t count = std::min(end - begin, kWordBits - first);
    words()[begin / kWordBits] |= mask_of(first, count);
    begin += count;
  }
}

void ByteMap::clear(std::uint64_t begin, std::uint64_t end) {
  while (begin < end) {
    const std::uint64_t first = begin % kWordBits;
    const std::uint64_t count = std::min(end - begin, kWordBits - first);
    std::uint64_t& word = words()[begin / kWordBits];
    if (word != 0) word &= ~mask_of(first, count);  // pages of zeros stay without memory
    begin += count;
  }
}

bool ByteMap::meets(std::uint64_t begin, std::uint64_t end) const {
  while (begin < end) {
    const std::uint64_t first = begin % kWordBits;
    const std::uint64_t count = std::min(end - begin, kWordBits - first);
    if ((words()[begin / kWordBits] & mask_of(first, count)) != 0) return true;
    begin += count;
  }
  return false;
}

std::uint64_t ByteMap::first_clear(std::uint64_t begin, std::uint64_t end) const {
  while (begin < end) {
    const std::uint64_t first = begin % kWordBits;
    const std::uint64_t count = std::min(end - begin, kWordBits - first);
    const std::uint64_t clear = ~words()[begin / kWordBits] & mask_of(first, count);
    if (clear != 0) return begin - first + static_cast<std::uint64_t>(std::countr_zero(clear));
    begin += count;
  }
  return end;
}

}  // namespace sk::sim

#include <algorithm>
#include <bit>

#include "sim/engines/execute.h"

namespace sk::sim {
namespace {

constexpr std::uint64_t kWordBits = 64;

// The bits of a word from `first` on, `count` of them (1 to 64).
constexpr std::uint64_t bits_of(std::uint64_t first, std::uint64_t count) {
  return ~std::uint64_t{0} >> (kWordBits - count) << first;
}

}  // namespace

void LocalMemory::mark_written(std::uint64_t begin, std::uint64_t count) {
  if (count == 0) return;
  const std::uint64_t head = std::min(count, (kWordBits - begin % kWordBits) % kWordBits);
  if (head > 0) written_[begin / kWordBits] |= bits_of(begin % kWordBits, head);
  const std::uint64_t words = (count - head) / kWordBits;
  const std::uint64_t first = (begin + head) / kWordBits;
  std::fill_n(written_.data() + first, words, ~std::uint64_t{0});
  const std::uint64_t tail = (count - head) % kWordBits;
  if (tail > 0) written_[first + words] |= bits_of(0, tail);
}

std::uint64_t LocalMemory::first_unwritten(std::uint64_t begin, std::uint64_t count) const {
  const std::uint64_t end = begin + count;
  while (begin < end) {
    const std::uint64_t first = begin % kWordBits;
    if (first == 0) {  // words that are written as a whole need no masks
      std::uint64_t word = begin / kWordBits;
      while (word < end / kWordBits && written_[word] == ~std::uint64_t{0}) ++word;
      begin = word * kWordBits;
      if (begin >= end) break;
    }
    const std::uint64_t some = std::min(end - begin, kWordBits - first);
    const std::uint64_t missing = ~written_[begin / kWordBits] & bits_of(first, some);
    if (missing != 0) return begin - first + static_cast<std::uint64_t>(std::countr_zero(missing));
    begin += some;
  }
  return end;
}

void LocalMemory::forget() {
  std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{0});
  std::fill(written_.begin(), written_.end(), std::uint64_t{0});
}

CoreMemory::CoreMemory(const Target& target, CoreType core) {
  const auto& sizes = target.memory;
  if (core == CoreType::aic) {
    l1 = LocalMemory(sizes.l1_bytes);
    l0a = LocalMemory(sizes.l0a_bytes);
    l0b = LocalMemory(sizes.l0b_bytes);
    l0c = LocalMemory(sizes.l0c_bytes);
  } else if (core == CoreType::aiv) {
    ub = LocalMemory(sizes.ub_bytes);
  }
}

LocalMemory& CoreMemory::of(Space space) {
  switch (space) {
    case Space::l1:
      return l1;
    case Space::l0a:
      return l0a;
    case Space::l0b:
      return l0b;
    case Space::l0c:
      return l0c;
    default:
      return ub;
  }
}

}  // namespace sk::sim

// Sets of addresses: declared regions, and which bytes of global memory were ever written, or hold no data.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/machine.h"

namespace sk::sim {

// A union of half-open ranges.
class RangeSet {
 public:
  void add(std::uint64_t begin, std::uint64_t end);
  bool contains(std::uint64_t begin, std::uint64_t end) const;
  bool meets(std::uint64_t begin, std::uint64_t end) const;
  bool empty() const { return ranges_.empty(); }

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;  // in order, not touching
};

// A bit per byte of a memory.
class ByteMap {
 public:
  bool allocate(std::uint64_t bytes);
  void set(std::uint64_t begin, std::uint64_t end);
  void clear(std::uint64_t begin, std::uint64_t end);
  // The first byte of the range without its bit; `end` where there is none.
  std::uint64_t first_clear(std::uint64_t begin, std::uint64_t end) const;
  // Whether a byte of the range has its bit.
  bool meets(std::uint64_t begin, std::uint64_t end) const;

 private:
  std::uint64_t* words() const { return reinterpret_cast<std::uint64_t*>(pages_.data()); }

  Pages pages_;
};

}  // namespace sk::sim

// Race detection: for every byte of a memory, its last write and the reads since, as stamps.
//
// Model: memory is cut into cells of kCellBytes; a cell holds segments, each a range of bytes with one history. An
// access splits the segments that it meets in part. Two accesses conflict where one of them writes; they must be
// ordered by the vector clocks of their actors. Of ordered reads only the last is kept: whoever writes later and is
// ordered behind it is ordered behind the earlier ones.
//
// Invariant: the first access that is not ordered behind an earlier conflicting one is reported; exact to the byte.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/device/clock.h"

namespace sk::sim {

struct Stamp {
  std::uint32_t time = 0;  // of the actor; 0: no access
  std::uint32_t marker = 0;
  std::uint32_t pc = 0;  // bytes from the start of the code
  std::uint16_t actor = 0;
  std::uint8_t opcode = 0;  // 0: the control unit itself

  bool operator==(const Stamp&) const = default;
};

struct Conflict {
  Stamp earlier;
  bool earlier_wrote;
  std::uint64_t begin;
  std::uint64_t end;
};

class Shadow {
 public:
  static constexpr std::uint64_t kCellBytes = 512;

  void configure(std::uint64_t bytes);
  // Forgets all accesses.
  void clear() { ++generation_; }
  // [begin, end), counted from the start of the memory, by stamp.actor, who knows `clock` (nullptr: nothing).
  std::optional<Conflict> access(std::uint64_t begin, std::uint64_t end, bool writes, const Stamp& stamp,
                                 const Clock* clock);

 private:
  struct Segment {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    Stamp written;
    Stamp read;               // the first of the reads since
    std::vector<Stamp> more;  // the others
  };
  struct Cell {
    std::uint32_t generation = 0;
    std::vector<Segment> segments;  // in order, disjoint
  };
  static constexpr std::uint64_t kPageCells = 1024;

  Cell& cell_of(std::uint64_t address);
  std::optional<Conflict> meet(Segment& segment, bool writes, const Stamp& stamp, const Clock* clock) const;
  void split(Cell& cell, std::uint32_t begin, std::uint32_t end) const;
  std::optional<Conflict> access_cell(Cell& cell, std::uint32_t begin, std::uint32_t end, bool writes,
                                      const Stamp& stamp, const Clock* clock) const;

  std::uint32_t generation_ = 1;
  std::vector<std::unique_ptr<Cell[]>> pages_;
};

}  // namespace sk::sim

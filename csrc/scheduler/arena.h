// Where buffers lie in an arena: each at an offset where it shares no bytes with what interferes with it.
//
// Model: buffers are placed one by one, in an order that the caller chooses. A buffer takes the lowest offset that is
// free. With a limit it may lie elsewhere: a cache line that another core wrote before must come over from that core
// before it is written again, though nobody wants what it holds, so that a buffer whose halves two cores write is best
// laid over others such that the cores meet at the same address. Among the offsets at which a buffer is free to lie,
// the one that takes the fewest bytes from other cores is chosen, then the lowest.
//
// Candidates: both ends of the gaps between buffers that interfere, and where the borders between two cores come
// together with those of buffers placed before. Bytes that several cores write in strided pieces best lie over others
// of that kind. Where there are too many runs to look at, with many cores and buffers, a buffer takes the lowest
// offset.
//
// Where two buffers interfere only because one core does not know what another has done, they may share bytes that the
// same core uses of both: what is done by one core is done in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sk::scheduler {

// Bytes [low, high) of a buffer, and the core that writes them, or one number for all that several write in pieces.
struct Run {
  std::int64_t low;
  std::int64_t high;
  std::int64_t core;
};

// How a buffer interferes with another: not at all; always; unless the same core uses what they share.
enum class Interference : std::uint8_t { kNone = 0, kAlways = 1, kOtherCores = 2 };

class Arena {
 public:
  // `sizes` in bytes and `runs` of each buffer; offsets are multiples of `align`. With `limit` 0 runs do not matter,
  // else nothing that runs move ends behind it.
  Arena(std::vector<std::int64_t> sizes, std::vector<std::vector<Run>> runs, std::int64_t align, std::int64_t limit);

  // Places a buffer that was not placed yet. `meets`: how each buffer interferes with it; `kOtherCores` is between
  // buffers whose runs are in order, of one core each, and share no bytes.
  std::int64_t place(std::size_t buffer, std::span<const Interference> meets);

  std::size_t buffers() const { return sizes_.size(); }
  bool has_runs(std::size_t buffer, std::size_t other) const { return !runs_[buffer].empty() && !runs_[other].empty(); }
  bool is_placed(std::size_t buffer) const { return is_placed_[buffer]; }

 private:
  struct Placed {
    std::int64_t start;
    std::int64_t stop;
    std::size_t buffer;
  };

  std::int64_t chosen(std::size_t buffer, std::int64_t lowest, std::span<const Interference> meets);
  std::int64_t laid_over(std::size_t buffer, std::int64_t lowest, std::span<const Interference> meets) const;
  bool lies_alike(std::size_t buffer, std::int64_t offset, std::span<const Interference> meets) const;
  bool is_free(std::int64_t offset, std::int64_t size) const;

  std::vector<std::int64_t> sizes_;
  std::vector<std::vector<Run>> runs_;
  std::int64_t align_;
  std::int64_t limit_;
  std::vector<Placed> placed_;  // by start
  std::vector<bool> is_placed_;
  std::vector<Placed> taken_;  // of `placed_`, what interferes; `stop` is the farthest so far
  std::vector<Run> others_;    // of what does not, where they lie
  std::vector<std::int64_t> offsets_;
};

}  // namespace sk::scheduler

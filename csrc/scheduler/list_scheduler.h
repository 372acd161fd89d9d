// Sub-operators onto cores, in a global order: list scheduling. The model is told in superkernel/scheduler/place.py.
//
// Sub-operators, partitions, buffers and cores are known by numbers. What a range of a partition reads and writes is
// asked for when a choice depends on it, once.
//
// Invariants: deterministic, and the same on every machine (nothing is contracted); each sub-operator has at most one
// task per core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "regions/region.h"
#include "scheduler/vector_clock.h"

namespace sk::scheduler {

// A buffer, and at which of its bytes a value begins.
struct Place {
  std::int32_t buffer;
  std::int64_t offset;
};

// One sub-operator. `work`: which list of partitions it has, with those that do the same; `operands`: the buffer of
// each, the one that this is a part of, and so on; `inputs`: which of them it reads that others may have written;
// `before`: whom it must come after; `first_core`: it runs there only.
struct SubOp {
  std::int32_t work;
  std::vector<std::vector<Place>> operands;
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> before;
  bool first_core;
};

// Ranges by number, each with its time in ns without waiting.
struct Partition {
  std::vector<double> work_ns;
  double longest_ns;

  std::size_t ranges() const { return work_ns.size(); }
};

// What a range does to an operand; `stored`: how many bytes it writes, where that is less than it may touch.
struct RangeAccess {
  std::int32_t operand;
  bool write;
  std::vector<Region> regions;
  std::optional<std::int64_t> stored;
};

// Of the list of partitions, the partition, the range: all by number.
using AccessesOf = std::function<std::vector<RangeAccess>(std::int32_t, std::int32_t, std::int32_t)>;

// How long things take, in ns; `handovers` from core to core, `handover` where nobody knows between which.
struct Costs {
  std::vector<std::vector<double>> handovers;
  double handover;
  double line;
};

// Where a sub-operator runs: `cores[i]` executes range i of the partition.
struct Placement {
  std::int32_t partition;
  std::vector<std::int32_t> cores;
  double finish_ns;
  std::string reason;
};

// Who uses a buffer: see superkernel.scheduler.memory.BufferUse. `runs`: low, high, core or `kMixed`; in order where
// the buffer is `apart`.
struct BufferUse {
  std::int32_t buffer;
  std::vector<std::pair<std::int32_t, std::int32_t>> last;
  std::vector<std::int32_t> ready;
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int32_t>> runs;
  bool apart;
};

constexpr std::int32_t kMixed = -1;

class ListScheduler {
 public:
  // `apart`: the first worker of each core.
  ListScheduler(std::vector<SubOp> subops, std::vector<std::vector<Partition>> partitions, AccessesOf accesses_of,
                Costs costs, std::vector<std::int32_t> apart);

  // Whether partitions have as many ranges as `apart` has workers, at most, or as many as there are: as `run` needs.
  bool has_cores() const;

  // Places all, and tells their order.
  std::vector<std::int32_t> run();

  // The same in the given order, each by its first partition on as many cores as that has ranges, with one reason.
  std::vector<std::int32_t> run_in_order(const std::string& reason);

  const std::vector<Placement>& placements() const { return placed_; }

  // When everything is done and joined.
  double makespan_ns() const;

  // For every buffer that is no part of another, in the order of their first uses, who touches it last, and what its
  // first writers know by then.
  std::vector<BufferUse> touched(std::span<const std::int32_t> order) const;

 private:
  // What is read or written at once, with its bounds.
  struct Extent {
    std::int64_t low;
    std::int64_t high;
    std::int64_t bytes;
    std::vector<Region> regions;
    std::size_t number;

    bool is_run() const { return bytes == high - low; }
  };

  struct Access {
    std::int32_t operand;
    const Extent* extent;
    std::int64_t stored;  // of a write
  };

  struct Range {
    std::vector<Access> reads;
    std::vector<Access> writes;
  };

  // A part of a buffer that a core has written, and when; the extent lies `offset` bytes further on.
  struct Written {
    std::int32_t core;
    std::int32_t position;  // of the sub-operator in the global order
    double finish_ns;
    const Extent* extent;
    std::int64_t offset;
    std::int64_t stored;

    std::int64_t low() const { return extent->low + offset; }
    std::int64_t high() const { return extent->high + offset; }
  };

  // What is read of a part of a buffer that a core has written.
  struct Source {
    std::int32_t buffer;
    std::int32_t core;
    std::int32_t position;
    double finish_ns;
    std::int64_t bytes;   // roughly
    std::int64_t stored;  // of the part, at most
  };

  const Partition& partition(std::int32_t subop, std::int32_t number) const;
  std::vector<double> ranks(const std::vector<std::vector<std::int32_t>>& after) const;
  Placement choose(std::int32_t subop, std::span<const std::int32_t> rivals);
  Placement single(std::int32_t subop);
  std::vector<std::int32_t> owners(std::int32_t subop) const;
  std::vector<std::vector<std::int32_t>> cores_for(std::int32_t subop, std::int32_t number);
  bool side_by_side(std::int32_t subop, std::span<const std::int32_t> rivals) const;
  double finish(std::int32_t subop, std::int32_t number, std::span<const std::int32_t> cores);
  std::vector<double> finish_times(std::int32_t subop, std::int32_t number, std::span<const std::int32_t> cores);
  void commit(std::int32_t subop, Placement placement);
  const std::vector<Source>& sources(std::int32_t subop, std::int32_t number, std::size_t range);
  const Range& range_of(std::int32_t work, std::int32_t number, std::size_t range);
  const Extent* extent_of(std::vector<Region> regions);
  std::int64_t shared_bytes(const Extent& read, const Written& written);
  std::vector<std::int32_t> soonest_cores() const;
  double latest_free() const;

  std::vector<SubOp> subops_;
  std::vector<std::vector<Partition>> partitions_;
  AccessesOf accesses_of_;
  Costs costs_;
  std::vector<std::int32_t> apart_;
  std::vector<double> free_;  // by core
  VectorClock known_;
  std::vector<std::vector<Written>> written_;  // by buffer
  std::vector<bool> crossed_;                  // by buffer: whether a core reads what another one has written
  std::vector<Placement> placed_;              // by sub-operator
  std::int32_t position_ = 0;
  std::deque<Extent> extents_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::size_t>, Range> ranges_;
  std::map<std::pair<std::int32_t, std::size_t>, std::vector<Source>> sources_;        // of what is to be placed next
  std::map<std::tuple<std::size_t, std::size_t, std::int64_t>, std::int64_t> shared_;  // read, written, offset
};

}  // namespace sk::scheduler

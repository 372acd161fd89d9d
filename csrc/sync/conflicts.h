// Which earlier accesses a task must come after, and on the host which waits are enough for that: what the planner of
// synchronisation does per pair of accesses. The verifier knows nothing of it.
//
// Model: per address space a list of *extents*, stretches of bytes with the accesses of them that later tasks may still
// conflict with. The writes of one sub-operator that together fill a stretch without a gap make a new extent, and
// retire every older access inside it: whoever conflicts with an old access conflicts with one of the new writes too,
// which itself comes after the old one, so order is kept through it. That keeps the lists as short as the live data,
// whatever the length of the program.
//
// Invariant: for every pair of conflicting tasks (a before b) the result holds a chain a -> ... -> b of conflicts.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "regions/region.h"

namespace sk::sync {

// One access of a task. `run`: of consecutive tasks of one sub-operator; `operand`: any number; its regions are
// [first, last) of all. Accesses stand in the order of their tasks, which are numbered in the global order.
struct Access {
  std::int32_t run;
  std::int32_t task;
  std::int32_t place;
  std::int32_t operand;
  bool write;
  std::int32_t first;
  std::int32_t last;
};

// The access `later` comes after the access `earlier`, both by number.
struct Pair {
  std::int32_t earlier;
  std::int32_t later;
};

class Conflicts {
 public:
  Conflicts(std::vector<Access> accesses, std::vector<Region> regions);

  // Puts the conflicts of the next run's tasks behind `found`, task by task: at most one per earlier task and operand
  // of the later one. False where there is no further run.
  bool next(std::vector<Pair>& found);

  // The first two regions of a pair that meet, by number.
  std::pair<std::int32_t, std::int32_t> regions_of(const Pair& pair) const;

  const std::vector<Access>& accesses() const { return accesses_; }

 private:
  // An access that later tasks may still conflict with; `low` and `high` bound what of it is in the extent.
  struct Live {
    std::int64_t low;
    std::int64_t high;
    Region region;  // the first one
    std::int32_t access;
    std::int32_t task;
    bool single;  // it has one region
  };

  // Bytes [low, high) and who touched them since they were last written as a whole.
  struct Extent {
    std::int64_t low;
    std::int64_t high;
    std::vector<Live> writes;
    std::vector<Live> reads;
  };

  // What a run does to one address space.
  struct Fresh {
    std::vector<Live> writes;
    std::vector<Live> reads;
    std::vector<std::pair<const std::vector<Live>*, bool>> near;  // whom it may meet: all writes, or all reads
  };

  Live live(std::int32_t access) const;
  bool meet(const Live& a, const Live& b) const;
  void record(std::vector<Extent>& extents, Fresh& fresh);
  static void retire(std::vector<Extent>& extents, std::int64_t low, std::int64_t high);

  std::vector<Access> accesses_;
  std::vector<Region> regions_;
  std::size_t at_ = 0;
  std::vector<std::vector<Extent>> extents_;     // by place
  std::vector<Fresh> fresh_;                     // by place; empty between runs
  std::vector<std::vector<std::int32_t>> seen_;  // by operand of the later task: who conflicted last with each task
};

// The task of the access `later` must wait until the core of the access `earlier` has completed its task: the region
// `right` of the one meets `left` of the other; `conflicts`: how many ask for it.
struct Need {
  std::int32_t earlier;
  std::int32_t later;
  std::int32_t conflicts;
  std::int32_t left;
  std::int32_t right;
};

// `kept`: by core, in the order of its tasks, of each by the awaited core; there may be millions, which never move.
// `implied`: by task, conflicts that need no wait of their own.
struct Needs {
  std::vector<std::deque<Need>> kept;
  std::vector<std::int32_t> implied;
};

// The least that orders all conflicts. Each task has a vector clock: for every core, how many of that core's tasks are
// known to be complete when the task may start. What program order and earlier waits tell needs nothing; of the rest,
// per producer core, the latest task, unless another one implies it. `core_of`: of each task.
Needs needs(Conflicts& conflicts, const std::vector<std::int32_t>& core_of, std::int32_t cores);

}  // namespace sk::sync

// What each core knows of the others' progress through true dependences alone: vector clocks over positions in the
// global order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sk::scheduler {

class VectorClock {
 public:
  explicit VectorClock(std::int32_t cores);

  // A task at `position` on `core` starts after its sources (position, core), which have run, and completes.
  void run(std::int32_t position, std::int32_t core, std::span<const std::pair<std::int32_t, std::int32_t>> sources);

  // Up to which position every core is known to be complete by all the tasks at `position`, on these cores.
  std::vector<std::int32_t> at(std::int32_t position, std::span<const std::int32_t> cores) const;

  bool has_run(std::int32_t position, std::int32_t core) const { return tasks_.contains(key(position, core)); }
  std::int32_t cores() const { return cores_; }

 private:
  using Row = std::vector<std::int32_t>;  // by core

  struct Task {
    std::size_t start;  // rows
    std::size_t finish;
  };

  std::int64_t key(std::int32_t position, std::int32_t core) const { return std::int64_t{position} * cores_ + core; }

  std::int32_t cores_;
  std::vector<Row> rows_;
  std::vector<std::size_t> now_;  // rows, by core
  std::unordered_map<std::int64_t, Task> tasks_;
};

}  // namespace sk::scheduler

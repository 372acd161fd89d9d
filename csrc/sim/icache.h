// The instruction cache's timing model: which lines are in, what a fetch costs.
//
// Model: set-associative, least recently used, blocking. The interpreter asks when execution enters a line: at line
// starts, at jumps, and twice where an instruction lies across two lines. Asking again for the line that execution is
// in is no access. A prefetch fetches in the background; a fetch that comes too early waits for the rest.
//
// Invariants: purely a listener, it never changes what is executed, only `stall_cycles`. Addresses lie in memory: the
// bookkeeping of lines that were ever fetched grows with their span.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sk::sim {

struct CacheGeometry {
  std::uint32_t bytes = 0;  // 0: no cache, no timing
  std::uint32_t line_bytes = 128;
  std::uint32_t ways = 4;
  std::uint32_t miss_cycles = 150;

  // nullptr, or what is wrong with it.
  const char* problem() const;
};

struct CacheStats {
  std::uint64_t accesses = 0;         // lines entered
  std::uint64_t misses = 0;           // of these, not present
  std::uint64_t cold_misses = 0;      // of these, never fetched before
  std::uint64_t prefetches = 0;       // that fetched something
  std::uint64_t prefetches_late = 0;  // used before they had arrived
};

class InstructionCache {
 public:
  void configure(const CacheGeometry& geometry);

  // Execution is at byte `address`: returns the stall in cycles.
  std::uint64_t fetch(std::uint64_t address, std::uint64_t now) {
    const std::uint64_t line = address >> line_shift_;
    return line == current_ ? 0 : enter(line, now);
  }
  void prefetch(std::uint64_t address, std::uint64_t now);
  const CacheStats& stats() const { return stats_; }

 private:
  struct Way {
    std::uint64_t line = ~std::uint64_t{0};
    std::uint64_t used = 0;
    std::uint64_t ready = 0;  // cycle of arrival
    bool prefetched = false;
  };

  std::uint64_t enter(std::uint64_t line, std::uint64_t now);
  Way* find(std::uint64_t line);
  Way& victim(std::uint64_t line);
  bool first_time(std::uint64_t line);

  CacheGeometry geometry_;
  int line_shift_ = 7;
  std::uint64_t set_mask_ = 0;
  std::uint64_t current_ = ~std::uint64_t{0};
  std::uint64_t uses_ = 0;
  std::vector<Way> ways_;
  std::vector<bool> seen_;  // by line from the first one asked for
  std::uint64_t seen_base_ = 0;
  CacheStats stats_;
};

}  // namespace sk::sim

// What the machine at hand can do, measured: reads by number of cores, arithmetic, hand-over, waking, cold code.
//
// Model: a `Probe` owns one thread per CPU that it is given, pinned there; it measures with the first so many of them,
// the others sleep. A figure is the best of a few short trials: a limit is what the machine can do, not what it did
// while something else ran. A trial in which a thread was not on its CPU all the time counts as disturbed; where all
// were, the time on the CPUs is taken.
//
// Invariant: nothing stays behind, neither threads nor memory; the runtime's pool is not touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace sk {

class Probe {
 public:
  // `cpus`: at least one. Throws std::system_error where the system gives no threads.
  explicit Probe(const std::vector<int>& cpus);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  // Sequential reads in bytes per ns of the first `cores` together, each of `bytes` (rounded down to whole blocks): its
  // own, or all of the same. Negative where there is no memory.
  double read(std::size_t bytes, int cores, bool same);

  // Operations per ns of the first core, see `burst_of`; 0 where the CPU cannot.
  double rate(std::string_view kind);

  // One-way hand-over of a flag between two of the cores, in ns.
  double handover_ns(int from, int to);

  // A line of data that core `from` has written and core `to` reads, one of many, in ns.
  double line_ns(int from, int to);

  // From the first core's call until `count` sleeping ones are all awake, in ns: the lower quartile.
  double wake_ns(int count);

  // Executing straight-line code of so many bytes, over and over, in ns per line of 64 bytes; negative where the system
  // gives no executable memory, 0 where it is not known how.
  double code_line_ns(std::size_t bytes);

  int cores() const noexcept;
  int trials() const noexcept;
  int disturbed() const noexcept;

 private:
  class Team;
  std::unique_ptr<Team> team_;
};

}  // namespace sk

// Limits of the machine at hand, for reports that say how near a kernel comes to them: arithmetic, memory reads,
// hand-over.
//
// Each figure is the best of several short trials: a limit is what the machine can do, not what it did while something
// else ran. The widest vector unit the CPU has is chosen at run time.
#pragma once

#include <cstddef>

namespace sk {

// f32 multiply-adds of one core in GFLOP/s (an FMA counts two), measured for about `ms` milliseconds.
double measure_fma_peak_f32(double ms);

// Sequential reads in GB/s of all `threads` together, each over its own share of `bytes`; pick `bytes` to fit the cache
// level in question. Negative where memory or threads are refused.
double measure_read_bandwidth(std::size_t bytes, int threads);

// One-way hand-over of a cache line between the caller's core and a worker's, in ns. NaN where only one CPU is allowed,
// negative where threads are refused.
double measure_core_to_core_ns();

}  // namespace sk

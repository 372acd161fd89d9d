// What a launch counts: per core and marker (sub-operator and phase), per engine, for the memory system.
//
// Invariant: of a control unit, instructions + the sum of its stalls = its cycles, in each marker and in all.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace sk::sim {

// What a control unit stands still for, beyond one cycle per instruction.
#define SK_STALLS(X)                                                 \
  X(branch)        /* taken branches and jumps */                    \
  X(result)        /* a value from the pipeline or private memory */ \
  X(load)          /* a value from global memory */                  \
  X(store)         /* stores to global memory, issue */              \
  X(fence)         /* until earlier stores are visible */            \
  X(doorbell)      /* stores to the register page, issue */          \
  X(queue_full)    /* a place in an engine's queue */                \
  X(drain)         /* engines to finish, and the drain itself */     \
  X(wait_flag)     /* an engine's flag */                            \
  X(cross_wait)    /* a cross-core flag */                           \
  X(wait_memory)   /* a word in global memory */                     \
  X(notify)        /* the control unit's own notify */               \
  X(fetch)         /* instruction misses */                          \
  X(prefetch_late) /* instructions whose prefetch had not arrived */

enum class Stall : std::uint8_t {
#define X(name) name,
  SK_STALLS(X)
#undef X
      count
};
inline constexpr std::size_t kStalls = static_cast<std::size_t>(Stall::count);

struct ControlStats {
  std::uint64_t cycles = 0;
  std::uint64_t instructions = 0;
  std::array<std::uint64_t, kStalls> stalls{};
  std::uint64_t first = ~std::uint64_t{0};  // cycle of the marker's first store
  std::uint64_t last = 0;                   // cycle of the control unit's leaving it
  // Instruction cache.
  std::uint64_t accesses = 0;
  std::uint64_t cold = 0;               // misses on lines never fetched since the caches were cold
  std::uint64_t capacity = 0;           // other misses
  std::uint64_t prefetches = 0;         // that fetched something
  std::uint64_t prefetched_timely = 0;  // uses of prefetched lines that had arrived
  std::uint64_t prefetched_late = 0;
  std::uint64_t prefetched_useless = 0;  // never used before they went out or the launch ended
};

struct EngineStats {
  std::uint64_t busy = 0;      // from a command's start to its end
  std::uint64_t commands = 0;  // that are not flags
  std::uint64_t flags = 0;
  std::uint64_t bytes_read = 0;  // of global memory
  std::uint64_t bytes_written = 0;
  std::uint64_t waits_empty = 0;   // between commands, for a doorbell
  std::uint64_t waits_flag = 0;    // at the head of the queue
  std::uint64_t waits_memory = 0;  // busy beyond the closed form: misses and other cores
  std::uint64_t first = ~std::uint64_t{0};
  std::uint64_t last = 0;

  void add(const EngineStats& other) {
    busy += other.busy;
    commands += other.commands;
    flags += other.flags;
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    waits_empty += other.waits_empty;
    waits_flag += other.waits_flag;
    waits_memory += other.waits_memory;
    first = std::min(first, other.first);
    last = std::max(last, other.last);
  }
};

struct MemoryStats {
  std::uint64_t line_reads = 0;  // pieces of L2 lines
  std::uint64_t line_writes = 0;
  std::uint64_t hits = 0;  // of reads
  std::uint64_t misses = 0;
  std::uint64_t merged = 0;       // of hits: lines still on their way from HBM
  std::uint64_t read_bytes = 0;   // from L2
  std::uint64_t write_bytes = 0;  // to L2
  std::uint64_t hbm_read_bytes = 0;
  std::uint64_t hbm_write_bytes = 0;
  std::uint64_t shared = 0;            // of pieces: another core asked for the line at about the same time
  std::uint64_t limit_cycles = 0;      // waited for the limit of all cores of the type
  std::uint64_t bank_cycles = 0;       // because of other lines of the bank
  std::uint64_t channel_cycles = 0;    // for HBM's channels
  std::uint64_t core_rate_cycles = 0;  // for the core's own rate of misses
  std::uint64_t fetches = 0;           // instruction lines asked of L2
  std::uint64_t fetch_same_line_cycles = 0;
  // Lines that SDMA asked for.
  std::uint64_t prefetched_present = 0;  // that L2 had already
  std::uint64_t prefetched_timely = 0;   // brought in, and there when first used
  std::uint64_t prefetched_late = 0;     // brought in, still on their way then
  std::uint64_t prefetched_useless = 0;  // brought in, not used before they went out or the launch ended
};

}  // namespace sk::sim

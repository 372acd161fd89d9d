// One loaded kernel: its entries, its memory, its progress counters, and the ways to run it.
//
// Model: a Kernel owns one SkContext. Every run takes the kernel's lock, fills in the base pointers, lets the pool call
// the entry on all cores, and counts the epoch. Runs of one kernel exclude one another; kernels of one core do not even
// need the pool and run side by side.
//
// Invariants:
//  - Between runs every counter p holds epoch * sets[p]. After an abort all workers have left, and counters and epoch
//  go back
//    to 0, which is the same state as a new kernel's.
//  - The first cause of an abort is kept, later ones are dropped.
//  - Nothing here knows Python: host calls, interrupts and time-outs come and go through `RunHooks` and `AbortInfo`.
#pragma once

#include <superkernel_abi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/hardware_counters.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "runtime/ways.h"

namespace sk {

struct KernelConfig {
  SkEntry entry = nullptr;
  SkSingleEntry single = nullptr;
  SkEntry profiled = nullptr;
  int cores = 1;
  std::size_t arena_bytes = 0;
  std::size_t scratch_bytes = 0;  // per core
  const std::uint8_t* constants = nullptr;
  std::size_t constants_bytes = 0;
  std::vector<std::span<const std::uint8_t>> shared;  // constants behind the io table, aligned to cache lines
  std::shared_ptr<Workspace> workspace;  // that arena and scratch are borrowed from for each run; null: its own
  std::size_t io_count = 0;
  std::vector<std::uint64_t> sets;  // per core: counter steps of one launch; empty: not checked
  int subops = 0;
  std::size_t events_words = 0;  // per core
  bool stepwise = false;         // any thread may do any core's part of `single`, and nothing calls the host
};

enum class AbortReason {
  kNone,
  kDeadlock,   // all cores that have not left wait for counts that none of them can bring
  kWatchdog,   // a wait outlasted the deadline: core, wait, producer, threshold, actual tell which
  kHostCall,   // the host callable raised
  kInterrupt,  // the poll hook asked to stop (Ctrl-C)
  kEntryCode,  // an entry returned non-zero without any of the above
  kCounters,   // after the run a counter was not epoch * sets: `core`, threshold (expected), actual
  kNested,     // a run from inside a host call of the same thread
  kNoThread,
  kForked,
  kMissingEntry,
  kBusy,      // another thread runs, and the options said not to wait: nothing was run
  kClosed,    // the options' `closed` was set: nothing was run
  kNoMemory,  // for another run at the same time in the shared workspace: nothing was run
};

struct AbortInfo {
  AbortReason reason = AbortReason::kNone;
  std::int32_t core = -1;
  std::int32_t wait = -1;
  std::int32_t producer = -1;
  std::int32_t deferred = -1;  // kHostCall that a worker asked for: the sub-operator, called behind the join
  std::uint64_t threshold = 0;
  std::uint64_t actual = 0;
  std::uint64_t epoch = 0;
  std::int64_t elapsed_ns = 0;
};

// Where a core was when a launch was given up: in a wait for a count that had not come.
struct BlockedWait {
  std::int32_t core = -1;
  std::int32_t wait = -1;
  std::int32_t producer = -1;
  std::uint64_t threshold = 0;
  std::uint64_t actual = 0;
  bool late = false;  // it came there behind that: it was at work before
};

// How a run reaches back to its caller. `host_call` returns non-zero to abort; `poll`, called every now and then on the
// caller's thread while a run takes long, likewise.
struct RunHooks {
  void* user = nullptr;
  std::int32_t (*host_call)(void* user, std::int32_t subop) = nullptr;
  std::int32_t (*poll)(void* user) = nullptr;
};

struct RunOptions {
  std::int64_t watchdog_ns = 0;  // per launch; 0: none
  RunHooks hooks;
  bool patient = true;                   // wait while another thread runs; else kBusy
  const Atomic<bool>* closed = nullptr;  // looked at once the kernel is this run's: who sets it and then calls
                                         // `last_abort()` knows that no run which was not refused still goes on
};

// Of launches that a profile compares: plain, with time stamps, one by one, one by one with time stamps.
inline constexpr std::size_t kLaunchKinds = 4;

// What a profile measures, by round; whoever asks owns the memory.
struct ProfileRows {
  std::size_t rounds = 0;
  std::span<std::int64_t> plain;           // ns of a launch, seen by the caller
  std::span<std::int64_t> profiled;        // the same of one that leaves time stamps
  std::span<std::int64_t> single;          // of the sub-operators one by one; empty: they are not wanted
  std::span<std::uint64_t> edges;          // [rounds, 2]: time stamps at begin and end of the profiled launch
  std::span<std::uint64_t> events;         // [rounds, cores, events_words], 0 where the entry wrote none
  std::span<std::uint64_t> single_edges;   // the same two around the sub-operators one by one with time stamps
  std::span<std::uint64_t> single_events;  // [rounds, cores, subops, 2]: begin and end of each core's share of each
  std::span<std::int64_t> preemptions;     // [rounds, kLaunchKinds]: of all threads, beside launches of each kind
  std::span<std::int64_t> chain_ticks;     // [rounds, cores]: of each core's CPU, right behind the profiled launch
};

class Kernel {
 public:
  // Null where there is not enough memory.
  static std::unique_ptr<Kernel> create(KernelConfig config);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const KernelConfig& config() const noexcept { return config_; }
  std::uint8_t* arena() noexcept { return frame_->ctx.arena; }  // for host calls, during a run
  std::size_t memory_bytes() const noexcept;                    // of arena and scratch, where a run works
  bool constants_in_place() const noexcept { return constants_copy_.data() == nullptr; }

  // Each returns kNone or why it stopped; details are then in `last_abort()`. `io` holds io_count pointers.
  AbortReason run(std::span<std::uint8_t* const> io, const RunOptions& options);
  // Launches of all kinds in turn. `settle`: ahead of each that is measured, one of its kind that is
  // not, so that all of them find caches as their own kind leaves them, time stamps' lines included; nothing but the
  // copying of stamps comes between them.
  AbortReason profile(std::span<std::uint8_t* const> io, const RunOptions& options, int warmup, bool settle,
                      const ProfileRows& rows);
  // What the hardware counts on each core over `launches` plain launches back to back: [cores, kHardwareCounts], -1
  // where the machine does not let us count.
  AbortReason count(std::span<std::uint8_t* const> io, const RunOptions& options, int launches,
                    std::span<std::int64_t> counts);
  // One launch and one full join per sub-operator; `ns` takes the time of each.
  AbortReason run_single(std::span<std::uint8_t* const> io, const RunOptions& options, std::span<std::int64_t> ns);
  // Times `fused.size()` launches after `warmup` untimed ones.
  AbortReason time(std::span<std::uint8_t* const> io, const RunOptions& options, int warmup,
                   std::span<std::int64_t> fused);
  AbortInfo last_abort();
  // Who waited when the last run stopped early, by core.
  std::vector<BlockedWait> last_waits();
  // True inside a run of this very thread: in its hooks.
  bool running_here() const noexcept;

 private:
  friend void before_fork() noexcept;
  friend void after_fork_in_parent() noexcept;
  friend void after_fork_in_child() noexcept;

  // What the callbacks find behind the SkContext pointer they are given.
  struct Frame {
    SkContext ctx;  // first: generated code's view
    Kernel* kernel;
  };
  class Running;
  // A core's latest wait that took long.
  struct SlowWait {
    BlockedWait at;
    std::uint64_t launch = 0;  // 0: none
    std::int64_t since_ns = 0;
    bool given_up = false;
  };
  struct alignas(kApartBytes) CoreWait {
    Plain<SlowWait> last;
    Atomic<std::uint64_t> awaits{0};  // the same for others: threshold << 8 | producer; 0: none
  };

  struct alignas(kApartBytes) CoreConditions {
    Plain<std::int64_t> preemptions = 0;  // of its thread so far
    Plain<std::int64_t> chain_ticks = 0;  // now
  };

  explicit Kernel(KernelConfig config);
  bool allocate();
  void work_in(const AlignedBuffer& memory) noexcept;
  void enlist();
  AbortReason launch(const Job& job);
  AbortReason launch_fused(SkEntry entry, bool check_counters);
  AbortReason launch_either(bool check_counters);
  AbortReason single_round(SkSingleEntry entry, std::int64_t* each_ns);  // null: not wanted
  void copy_stamps(std::size_t kind, std::size_t row, const ProfileRows& rows) const;
  AbortReason check_counters();
  AbortReason stop(AbortReason reason) noexcept;
  AbortReason poll_between_rounds();
  void request_abort(const AbortInfo& info) noexcept;
  void reset_counters() noexcept;
  bool is_stuck() const noexcept;
  std::int64_t note_wait(const BlockedWait& here, bool given_up) noexcept;
  std::int32_t wait_slow(std::int32_t core, std::int32_t producer, std::uint64_t threshold, std::int32_t wait) noexcept;
  static std::int32_t on_wait_slow(SkContext* ctx, std::int32_t core, std::int32_t producer, std::uint64_t threshold,
                                   std::int32_t wait) noexcept;
  static std::int32_t on_host_call(SkContext* ctx, std::int32_t subop) noexcept;
  static void on_join_wait(void* kernel) noexcept;
  bool poll(std::int64_t now) noexcept;
  AbortReason profile_launch(std::size_t kind, std::size_t row, const ProfileRows& rows);
  AbortReason note_conditions(std::int64_t& preemptions);
  static std::int32_t on_note_conditions(SkContext* ctx, std::int32_t core) noexcept;
  static std::int32_t on_open_counters(SkContext* ctx, std::int32_t core) noexcept;
  static std::int32_t on_close_counters(SkContext* ctx, std::int32_t core) noexcept;
  static std::int32_t on_stamped_single(SkContext* ctx, std::int32_t core, std::int32_t subop) noexcept;

  KernelConfig config_;
  AlignedBuffer frame_memory_;
  Frame* frame_ = nullptr;
  AlignedBuffer own_memory_;  // arena and scratch of all cores, where they are not borrowed
  AlignedBuffer constants_copy_;
  AlignedBuffer flags_;
  AlignedBuffer events_;
  std::vector<std::uint8_t*> io_;

  Mutex mutex_;
  Atomic<std::uintptr_t> owner_{0};  // the thread that runs this kernel now, 0 for none
  RunOptions options_;
  Plain<std::uint64_t> launch_ = 0;  // number of the latest
  Plain<std::int64_t> started_ns_ = 0;
  std::int64_t part_ns_ = 0;  // see Job
  Ways ways_;                 // beside others who want the CPUs: fused, by steps
  std::int64_t next_poll_ns_ = 0;
  Plain<AbortInfo> abort_;
  Atomic<bool> abort_taken_{false};
  std::vector<CoreWait> waits_;             // by core, each its own
  std::vector<BlockedWait> blocked_;        // of the last run that stopped early
  std::vector<CoreConditions> conditions_;  // by core
  std::vector<HardwareCounters> counters_;  // by core
  bool apart_;                              // nobody sets a counter, so that nobody waits for one

  Kernel* next_ = nullptr;  // list of all kernels, for fork
  Kernel* previous_ = nullptr;
};

// Checks every kernel's counters after every launch (a debugging aid; profiled runs always do).
Atomic<bool>& check_counters_option() noexcept;

}  // namespace sk

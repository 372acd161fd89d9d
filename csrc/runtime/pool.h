// The process-wide pool of persistent workers that every launch of every kernel runs on.
//
// Model: the calling thread is worker 0; workers 1.. are threads made on demand, never ended, each pinned to a CPU of
// its own. A launch publishes one 64-bit ticket (sequence number, number of cores) with a release store; workers whose
// index is below the number of cores run the job and store the sequence number into a line of their own, for which the
// caller waits. Between launches workers spin, for a time that they learn (`Patience`), then park on a futex.
// Where the cores of a job do not wait for one another, who comes first to a core's part does it: its worker or, when
// done with its own, the caller. So nobody waits for a worker that sleeps or has lost its CPU, and workers that sleep
// are not woken for what the caller has done before they would be there.
// A job of steps is one that others disturb: all parts of a step before any of the next, each by whoever comes first,
// so that a thread that has lost its CPU is missed for what it was doing at most, and by nobody where it was doing
// nothing: threads give their CPU to those who want it between two parts, before the system takes it within one.
//
// Invariants:
//  - One launch at a time (`launch_mutex_`); a job is not replaced before all its workers have left it.
//  - A part that may be taken over is claimed before its job is read, by one thread only: claims only grow, and a
//  launch ends
//    with all its parts claimed, so that a worker which comes late to its ticket finds it gone.
//  - No lost wake-up: a worker announces that it parks, then looks at the ticket again; the caller stores the ticket,
//  then looks
//    for announcements; a full barrier stands between the two steps on either side (the caller's share is paid by the
//    worker through membarrier(2) where the kernel has it).
//  - A worker that takes no part in a launch never reads its job.
//  - Workers never touch Python, block all asynchronous signals, and use only memory that is never freed: exit of the
//  process
//    may come at any time.
//  - After fork the child starts with an empty pool; whatever the parent's threads held stays behind.
#pragma once

#include <superkernel_abi.h>

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/memory.h"
#include "runtime/platform.h"

namespace sk {

inline constexpr int kMaxCores = 256;
inline constexpr std::int64_t kNapAfterNs = 200'000;  // of a wait that spinning did not end; a time slice is longer
inline constexpr std::int64_t kLateNs =
    1'000'000;  // of a wait: part of a time slice, more than the system itself takes

enum class LaunchStatus {
  kDone,       // every worker returned 0
  kEntryCode,  // a worker returned something else
  kNested,     // called from inside a launch of the same thread: would wait for itself
  kNoThread,   // the system gave no thread
  kForked,     // the process was forked inside the launch and this is the child: its workers are gone
  kBusy,       // another thread launches, and the caller did not want to wait: nothing was run
};

// What one launch runs: `single(ctx, core, subop)` where set, else `entry(ctx, core)`.
struct Job {
  SkEntry entry = nullptr;
  SkSingleEntry single = nullptr;
  SkContext* ctx = nullptr;
  std::int32_t subop = 0;
  // Set where no core waits for another and any thread may do any part: what one of the kernel's parts took last, 0 for
  // not known. The pool keeps it.
  std::int64_t* part_ns = nullptr;
  // Not 0: `single` of so many sub-operators from `subop` on, one behind the other; any thread may do any part of one.
  std::int32_t steps = 0;

  std::int32_t run(std::int32_t core) const noexcept {
    return single != nullptr ? single(ctx, core, subop) : entry(ctx, core);
  }
};

// Called by the caller's thread from time to time while it waits for the others; null for none.
struct WaitHook {
  void (*call)(void* user) = nullptr;
  void* user = nullptr;
};

struct PoolInfo {
  int threads = 0;  // workers alive, without callers
  int parked = 0;
  std::vector<int> cpus;         // allowed CPUs in the order workers take them
  std::vector<int> worker_cpus;  // of workers 1..: the CPU each is pinned to, -1 for none
  std::uint64_t launches = 0;    // with more than one core
  std::uint64_t wakes = 0;       // launches that had to wake somebody
  std::uint64_t moves = 0;       // workers moved because the caller stood on their CPU
  std::uint64_t taken = 0;       // parts of workers that the caller did
  std::uint64_t stepwise = 0;    // launches of steps
  bool disturbed = false;        // whether others take the workers' CPUs
  std::int64_t spin_ns = 0;
  std::int64_t spin_ns_max = 0;
  std::int64_t spin_ns_now = 0;  // what workers have learned
  bool pin = false;
  bool pin_caller = false;
  bool asymmetric_barrier = false;
};

enum class Stepwise { kNever, kBesideOthers, kAlways };

struct PoolOptions {
  // Workers spin at least so long, and at most so long where they have learned that it pays.
  Atomic<std::int64_t> spin_ns{50'000};
  Atomic<std::int64_t> spin_ns_max{5'000'000};
  Atomic<bool> pin{true};
  Atomic<bool> pin_caller{false};
  Atomic<Stepwise> stepwise{Stepwise::kBesideOthers};
};

// Options of the process; they outlive the pool of any one process generation.
PoolOptions& pool_options() noexcept;

// Raised by one in the child at each fork.
std::uint32_t fork_generation() noexcept;

class Pool {
 public:
  // The pool of this process; a new one after fork. Never freed.
  static Pool& instance();

  // Runs the job on `cores` workers, the caller first, and returns when all have left it. 1 <= cores <= kMaxCores.
  // `patient`: waits while another thread launches.
  LaunchStatus launch(const Job& job, int cores, const WaitHook& hook = {}, bool patient = true);

  // Ahead of a launch: whether others take the workers' CPUs. Behind one for which they do, `rest_disturbed`.
  bool disturbed() noexcept { return neighbours_.disturb(); }
  void rest_disturbed() noexcept { neighbours_.rest(); }

  // By any thread inside a launch that has waited for another for `kLateNs`.
  void note_late() noexcept { neighbours_.note_late(mailbox_.ticket.load(std::memory_order_relaxed)); }

  // Whether a core has left the present launch, with all that it stored there. Of who is inside that launch.
  bool has_left(int core) const noexcept;

  PoolInfo info();

  // Puts changed pinning options into force.
  void apply_pinning();

 private:
  struct alignas(kApartBytes) Mailbox {
    Atomic<std::uint64_t> ticket{0};  // sequence << 16 | whether parts are claimed << 15 | has steps << 14 | cores
    Plain<Job> job;
    Plain<std::uint64_t> first = 0;  // ticket of the first step
    Plain<std::uint64_t> fp_control = 0;
  };

  struct alignas(kApartBytes) Line {
    Atomic<std::uint64_t> done{0};     // ticket of the last job left
    Atomic<std::uint64_t> claimed{0};  // of the last job whose part somebody claimed
    Atomic<std::uint32_t> parked{0};
    Plain<std::int32_t> result = 0;
  };

  struct Start {
    Pool* pool;
    int index;
    std::uint64_t seen;
  };

  Pool();
  static void worker_main(void* start) noexcept;
  void work(int index, std::uint64_t seen) noexcept;
  std::uint64_t await_ticket(int index, std::uint64_t seen) noexcept;
  std::uint64_t park(int index, std::uint64_t seen, std::int64_t spun_ns) noexcept;
  bool grow(int cores);
  bool start_worker(int index);
  int publish(const Job& job, int cores) noexcept;
  bool claim(int index, std::uint64_t ticket) noexcept;
  void take_over(const Job& job, int cores) noexcept;
  void step(int index, const WaitHook& hook, std::uint32_t generation) noexcept;
  void do_parts(int index, std::uint64_t at, std::uint64_t& fp) noexcept;
  void join(int cores, const WaitHook& hook, std::uint32_t generation) noexcept;
  void assign_cpus();
  void pin_worker(int index) noexcept;
  void avoid_caller(int cores) noexcept;
  void pin_calling_thread(bool pinned);

  Mailbox mailbox_;
  alignas(kApartBytes) Atomic<std::uint32_t> wake_count_{0};  // the futex word: counts wake-ups, not launches
  Atomic<std::size_t> cpu_count_{1};                          // cpus_.size() for the workers
  // Of launches of steps. A step has a ticket of its own; behind the last one comes one that says so.
  alignas(kApartBytes) Atomic<std::uint64_t> step_{0};
  alignas(kApartBytes) Atomic<std::uint32_t> left_{0};  // parts of the step that are not done
  Atomic<std::int32_t> failed_{0};
  alignas(kApartBytes) Neighbours neighbours_;
  std::array<Line, kMaxCores> lines_;
  Patience patience_;
  Mutex launch_mutex_;
  // Below: only with launch_mutex_ held.
  std::uint64_t ticket_ = 0;  // the last one published
  int threads_ = 0;
  std::array<ThreadHandle, kMaxCores> handles_{};
  std::vector<int> cpus_;
  std::array<int, kMaxCores> cpu_of_{};  // -1: not pinned; [0]: the CPU left to the caller
  std::vector<int> worker_on_;           // by CPU: the worker pinned there, -1 for none
  std::uint64_t wakes_ = 0;
  std::uint64_t moves_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t stepwise_ = 0;
  Plain<bool> asymmetric_ = false;
};

}  // namespace sk

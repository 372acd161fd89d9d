// What threads of the runtime have between them, and what they ask of the system for it: shared words and data, fences,
// sleeping, waking, starting, forking. `pool.cpp` and `kernel.cpp` use nothing else of the kind, so that the model
// checker can compile them as they stand, with these in its own way (SK_PLATFORM: csrc/tests/model/platform.h).
#pragma once

#ifdef SK_PLATFORM
#include SK_PLATFORM
#else

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/clock.h"
#include "runtime/cpu.h"
#include "runtime/hardware_counters.h"

namespace sk {

template <class T>
using Atomic = std::atomic<T>;
// A word that generated code shares with the runtime.
template <class T>
using AtomicRef = std::atomic_ref<T>;
// Data that one thread writes and others read, which something atomic orders: the model checker holds it to that.
template <class T>
using Plain = T;
using Mutex = std::mutex;

inline void fence_seq_cst() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }

// A full barrier in all running threads of the process, made by this one: membarrier(2). False where the system has
// none; `prepare_barrier_in_all_threads` is to come first, once.
bool prepare_barrier_in_all_threads() noexcept;
bool barrier_in_all_threads() noexcept;
// Its other side: code is not moved past it by the compiler; the processor is held back by the barrier itself.
inline void barrier_by_others() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Sleeps while `word` is `expected`, until woken by one of `bits`, or for no reason.
void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected, std::uint32_t bits) noexcept;
void futex_wake(Atomic<std::uint32_t>& word, std::uint32_t bits) noexcept;

// In a loop that waits: for what another thread stores soon, or later.
inline void relax() noexcept { cpu_relax(); }
void yield() noexcept;
// The same where it has waited long, `waited_ns` so far: whoever is waited for has lost its CPU to somebody, most
// likely, and gets further if others leave theirs for a while. Sleeps for a sixteenth of that time, some 100 us at
// most: unlike one that yields, a thread that slept is soon run again, and the somebody may go where it was.
void nap(std::int64_t waited_ns) noexcept;
// Sleeps for about so long.
void doze(std::int64_t ns) noexcept;

// A worker's wait for its next launch, as far as it spins: `go_on` lets some time pass and is false once `limit_ns`
// have passed.
class Spinning {
 public:
  Spinning(std::int64_t limit_ns, bool yields) noexcept : limit_ns_(limit_ns), yields_(yields) {}

  bool go_on() noexcept {
    if (yields_) {
      yield();
    } else {
      cpu_relax();
    }
    if (++spins_ % kSpinsPerClock != 0 && !yields_) return true;
    const std::int64_t now = now_ns();
    if (start_ns_ == 0) start_ns_ = now;
    return now - start_ns_ < limit_ns_;
  }

 private:
  static constexpr int kSpinsPerClock = 64;  // pauses between two looks at the clock
  std::int64_t limit_ns_;
  std::int64_t start_ns_ = 0;
  int spins_ = 0;
  bool yields_;
};

// How long workers spin, learned where it went wrong: when one had to be woken. It is twice what waking took (of the
// last wakes the most, so that one late worker does not let the others fall asleep before the launch is over), and
// twice the gap since the last launch where that was short enough to spin through; where it was not, half of the
// present time. Of the pool's workers together; they write over one another, which costs no more than a guess.
// And what waking costs the caller: about the least of the last calls, for one may meet a disturbance.
class Patience {
 public:
  std::int64_t limit_ns(std::int64_t least, std::int64_t most) const noexcept {
    const std::int64_t learned = std::max(2 * wake_ns_.load(kAny), gap_ns_.load(kAny));
    return std::max(least, std::min(most, learned));
  }

  // By the caller, of a launch whose parts it can do itself, each in `part_ns` (0: not known), while the workers of
  // `asleep` of them sleep: whether to wake these. Not before launches less than `most` apart have lost by their sleep
  // what the call that wakes them takes, so that at no rate of calls more than twice the least is lost.
  bool worth_waking(std::int64_t part_ns, int asleep, std::int64_t most) noexcept {
    const std::int64_t now = now_ns(), last = std::exchange(alone_ns_, now);
    lost_ns_ = (now - last < most ? lost_ns_ : 0) + part_ns * asleep;
    if (part_ns != 0 && lost_ns_ < call_ns_) return false;
    lost_ns_ = 0;
    return true;
  }

  // By the caller, before and behind the call that wakes somebody.
  void calling() noexcept { called_ns_.store(now_ns(), kAny); }
  void called() noexcept {
    const std::int64_t took = now_ns() - called_ns_.load(kAny);
    call_ns_ = std::min(took, call_ns_ == 0 ? took : call_ns_ + call_ns_ / 8);
  }

  // By a worker that has spun for `spun_ns` and goes to sleep: since when it has been idle.
  static std::int64_t idle_since(std::int64_t spun_ns) noexcept { return now_ns() - spun_ns; }

  // By that worker, awake again.
  void woken(std::int64_t idle_since_ns, std::int64_t most) noexcept {
    const std::int64_t called = called_ns_.load(kAny), wake = wake_ns_.load(kAny), gap = gap_ns_.load(kAny);
    const std::int64_t idle = called - idle_since_ns;
    if (idle < 0) return;  // of a call before that
    wake_ns_.store(std::max(now_ns() - called, wake - wake / 8), kAny);
    gap_ns_.store(idle < most ? std::max(gap, 2 * idle) : gap / 2, kAny);
  }

 private:
  static constexpr std::memory_order kAny = std::memory_order_relaxed;
  std::atomic<std::int64_t> called_ns_{0};
  std::atomic<std::int64_t> wake_ns_{0};
  std::atomic<std::int64_t> gap_ns_{0};
  std::int64_t alone_ns_ = 0;  // the last launch that was asked for in `worth_waking`, and what was lost until then
  std::int64_t lost_ns_ = 0;
  std::int64_t call_ns_ = 0;  // what waking takes the caller
};

// How a thread shares its CPU with others who want it: it gives it to them where nobody waits for what it does, before
// the system takes it in the middle of something.
class Courtesy {
 public:
  // In a loop that waits: lets some time pass; true where it is time to think of others.
  bool rest() noexcept {
    cpu_relax();
    return ++rests_ % kRestsPerClock == 0;
  }

  // Once in a while lets others have the CPU. True where somebody had a turn of some length: what the system itself has
  // to do takes less.
  bool give_way() noexcept {
    const std::int64_t now = now_ns();
    if (now - since_ns_ < kShareNs) return false;
    doze(kDozeNs);
    since_ns_ = now_ns();
    return since_ns_ - now > kTurnNs;
  }

  // Whether somebody has had the CPU since the last time this was asked.
  bool was_preempted() noexcept {
    const std::int64_t before = std::exchange(preemptions_, thread_preemptions());
    return preemptions_ != before;
  }

 private:
  static constexpr int kRestsPerClock = 64;
  // Well under a time slice, some 3 ms on common systems; yielding would not do, since the system only lets others have
  // what is due to them already.
  static constexpr std::int64_t kShareNs = 500'000, kDozeNs = 40'000, kTurnNs = 1'000'000;
  std::int64_t since_ns_ = 0;
  std::int64_t preemptions_ = 0;
  int rests_ = 0;
};

// Whether others take CPUs of the pool's threads in the middle of launches: learned where somebody is waited for
// unusually long and a thread finds that it was preempted meanwhile. Once may be anything; twice within a short time is
// somebody who stays, until nobody has been seen for a while. Time in which nobody launches shows nobody: it does not
// count, up to where all is forgotten. A guess, as Patience's.
class Neighbours {
 public:
  // Ahead of a launch.
  bool disturb() noexcept {
    std::int64_t until = until_ns_.load(kAny);
    if (until == 0) [[likely]]
      return false;
    const std::int64_t now = now_ns(), since = idle_since_ns_.exchange(0, kAny);
    if (since != 0 && now - since < kForgetNs) until_ns_.store(until += now - since, kAny);
    if (now < until) return true;
    until_ns_.store(0, kAny);
    return false;
  }

  // Behind a launch beside them.
  void rest() noexcept { idle_since_ns_.store(now_ns(), kAny); }

  // Whether the next launch will expect them.
  bool stay() const noexcept {
    const std::int64_t until = until_ns_.load(kAny), since = idle_since_ns_.load(kAny), now = now_ns();
    return until != 0 && (since == 0 || now - since >= kForgetNs ? now : since) < until;
  }

  // By who waits long in a launch.
  void note_late(std::uint64_t ticket) noexcept {
    if (late_.load(kAny) != ticket) late_.store(ticket, kAny);
  }

  // By each thread behind its part of a launch. Only where somebody waited: asking the system takes some 200 ns.
  void look_round(std::uint64_t ticket, Courtesy& own) noexcept {
    if (late_.load(kAny) == ticket && own.was_preempted()) [[unlikely]]
      took_cpu();
  }

  void took_cpu() noexcept {
    const std::int64_t now = now_ns();
    if (now - last_ns_.exchange(now, kAny) < kStaysNs / 2) until_ns_.store(now + kStaysNs, kAny);
  }

 private:
  static constexpr std::memory_order kAny = std::memory_order_relaxed;
  static constexpr std::int64_t kStaysNs = 100'000'000, kForgetNs = 10'000'000'000;
  std::atomic<std::uint64_t> late_{0};          // ticket of the last launch in which somebody waited long
  std::atomic<std::int64_t> last_ns_{0};        // when a thread was last seen to have lost its CPU
  std::atomic<std::int64_t> until_ns_{0};       // 0: nobody disturbs
  std::atomic<std::int64_t> idle_since_ns_{0};  // the end of the last launch beside them, 0 within one
};

using ThreadHandle = pthread_t;

// Starts a thread that nobody joins and that blocks all asynchronous signals. False where the system gives none.
bool start_thread(ThreadHandle& handle, const char* name, void (*body)(void*) noexcept, void* argument) noexcept;
void set_affinity(ThreadHandle thread, const std::vector<int>& cpus) noexcept;
void set_own_affinity(const std::vector<int>& cpus) noexcept;
// The CPU that the calling thread is on, negative where it cannot be told.
int current_cpu() noexcept;

// Handlers round every fork of the process, null for none. Once per set of handlers.
void on_fork(void (*before)() noexcept, void (*in_parent)() noexcept, void (*in_child)() noexcept);

// Gives the calling thread a stack for handlers of signals, if it has none: a handler needs one that tells of a thread
// whose own is used up.
void have_signal_stack() noexcept;

// What the runtime keeps by calling thread. Without constructor and destructor: a look at it is a look at memory.
struct ThreadState {
  bool inside_launch = false;
  bool has_signal_stack = false;
  Courtesy courtesy;
  std::vector<int>* own_affinity = nullptr;  // had before option pin_caller narrowed it; null where it did not
};

inline constinit thread_local ThreadState own_thread_state;
inline ThreadState& thread_state() noexcept { return own_thread_state; }

}  // namespace sk
#endif

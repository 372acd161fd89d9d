#include "runtime/pool.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/clock.h"
#include "runtime/cpu.h"

namespace sk {

namespace {

constexpr int kSpinsBeforeYield = 1 << 14;  // of the joining caller: some hundred us, then others may have the CPU
constexpr std::int64_t kHookPeriodNs = 20'000'000;

Atomic<Pool*> current_pool{nullptr};
Atomic<std::uint32_t> generation_count{0};

constexpr int kSequenceShift = 16;
constexpr std::uint64_t kClaims = 1u << 15, kSteps = 1u << 14, kOver = 1u << 13;
constexpr std::uint64_t kNext = std::uint64_t{1} << kSequenceShift;
static_assert(kMaxCores < kOver);

int cores_of(std::uint64_t ticket) noexcept { return static_cast<int>(ticket & (kOver - 1)); }

// Workers are woken by bit, so that a launch on few cores leaves the others asleep; from the 32nd on they share a bit.
std::uint32_t wake_bit(int index) noexcept { return 1u << (index < 32 ? index - 1 : 31); }

void forget_pool_in_child() noexcept {
  current_pool.store(nullptr, std::memory_order_relaxed);
  generation_count.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

PoolOptions& pool_options() noexcept {
  static PoolOptions options;
  return options;
}

std::uint32_t fork_generation() noexcept { return generation_count.load(std::memory_order_relaxed); }

Pool& Pool::instance() {
  Pool* pool = current_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  static const bool registered = (on_fork(nullptr, nullptr, forget_pool_in_child), true);
  static_cast<void>(registered);
  std::unique_ptr<Pool> fresh(new Pool());
  if (current_pool.compare_exchange_strong(pool, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *pool;  // another thread was first
}

Pool::Pool() {
  cpu_of_.fill(-1);
  assign_cpus();
  asymmetric_ = prepare_barrier_in_all_threads();
}

// ---- caller's side
// ---------------------------------------------------------------------------------------------------

LaunchStatus Pool::launch(const Job& job, int cores, const WaitHook& hook, bool patient) {
  if (cores == 1) return job.run(0) == 0 ? LaunchStatus::kDone : LaunchStatus::kEntryCode;
  if (thread_state().inside_launch) return LaunchStatus::kNested;
  std::unique_lock guard(launch_mutex_, std::defer_lock);
  if (patient) {
    guard.lock();
  } else if (!guard.try_lock()) {
    return LaunchStatus::kBusy;
  }
  if (!grow(cores)) return LaunchStatus::kNoThread;
  pin_calling_thread(pool_options().pin_caller.load(std::memory_order_relaxed));
  if (pool_options().pin.load(std::memory_order_relaxed)) avoid_caller(cores);
  const std::uint32_t generation = fork_generation();
  thread_state().inside_launch = true;
  const int asleep = publish(job, cores);
  if (job.steps != 0) {
    step(0, hook, generation);
    thread_state().inside_launch = false;
    if (fork_generation() != generation) return LaunchStatus::kForked;
    ticket_ += static_cast<std::uint64_t>(job.steps - 1) << kSequenceShift;
    ++stepwise_;
    return failed_.load(std::memory_order_relaxed) == 0 ? LaunchStatus::kDone : LaunchStatus::kEntryCode;
  }
  const bool timed = asleep != 0 && job.part_ns != nullptr;
  const std::int64_t start_ns = timed ? now_ns() : 0;
  std::int32_t result = job.run(0);
  if (timed) *job.part_ns = now_ns() - start_ns;
  lines_[0].done.store(ticket_, std::memory_order_release);
  if (job.part_ns != nullptr) take_over(job, cores);
  join(cores, hook, generation);
  neighbours_.look_round(ticket_, thread_state().courtesy);
  thread_state().inside_launch = false;
  if (fork_generation() != generation) return LaunchStatus::kForked;
  for (int i = 1; i < cores; ++i) result |= lines_[static_cast<std::size_t>(i)].result;
  return result == 0 ? LaunchStatus::kDone : LaunchStatus::kEntryCode;
}

// Returns how many of the workers sleep or did so a moment ago.
int Pool::publish(const Job& job, int cores) noexcept {
  mailbox_.job = job;
  mailbox_.fp_control = fp_control();
  const std::uint64_t kind = job.steps != 0 ? kSteps : job.part_ns != nullptr ? kClaims : 0;
  ticket_ = ((ticket_ >> kSequenceShift) + 1) << kSequenceShift | kind | static_cast<std::uint64_t>(cores);
  if (job.steps != 0) {
    mailbox_.first = ticket_;
    failed_.store(0, std::memory_order_relaxed);
    left_.store(static_cast<std::uint32_t>(cores), std::memory_order_relaxed);
    step_.store(ticket_, std::memory_order_release);  // also for who is still on its way out of the last one
  }
  mailbox_.ticket.store(ticket_, std::memory_order_release);
  if (asymmetric_) {
    barrier_by_others();  // by the parking worker
  } else {
    fence_seq_cst();
  }
  std::uint32_t parked = 0;
  int asleep = 0;
  for (int i = 1; i < cores; ++i) {
    if (lines_[static_cast<std::size_t>(i)].parked.load(std::memory_order_relaxed) == 0) continue;
    parked |= wake_bit(i);
    ++asleep;
  }
  if (asleep == 0) return 0;
  const std::int64_t most_ns = pool_options().spin_ns_max.load(std::memory_order_relaxed);
  if (job.part_ns != nullptr && !patience_.worth_waking(*job.part_ns, asleep, most_ns)) return asleep;
  ++wakes_;
  patience_.calling();
  wake_count_.fetch_add(1, std::memory_order_release);
  futex_wake(wake_count_, parked);
  patience_.called();
  return asleep;
}

// True for one thread per part.
bool Pool::claim(int index, std::uint64_t ticket) noexcept {
  Atomic<std::uint64_t>& claimed = lines_[static_cast<std::size_t>(index)].claimed;
  std::uint64_t last = claimed.load(std::memory_order_relaxed);
  while (last < ticket) {
    if (claimed.compare_exchange_strong(last, ticket, std::memory_order_relaxed)) return true;
  }
  return false;
}

// The caller, done with its own part, does those that nobody has begun. The last first: workers were told in order.
void Pool::take_over(const Job& job, int cores) noexcept {
  for (int i = cores - 1; i > 0; --i) {
    if (!claim(i, ticket_)) continue;
    Line& line = lines_[static_cast<std::size_t>(i)];
    line.result = job.run(i);
    line.done.store(ticket_, std::memory_order_relaxed);
    ++taken_;
  }
}

// ---- steps
// ---------------------------------------------------------------------------------------------------------------

// What every thread of the launch does. Returns when the last step is done, or for a fork in the hook.
void Pool::step(int index, const WaitHook& hook, std::uint32_t generation) noexcept {
  std::uint64_t fp = fp_control();
  Courtesy& courtesy = thread_state().courtesy;
  std::int64_t next_hook_ns = 0;
  for (std::uint64_t at = step_.load(std::memory_order_acquire); (at & kOver) == 0;) {
    do_parts(index, at, fp);
    std::uint64_t next = step_.load(std::memory_order_acquire);
    for (; next == at; next = step_.load(std::memory_order_acquire)) {
      if (!courtesy.rest()) continue;
      if (courtesy.give_way()) neighbours_.took_cpu();
      if (index != 0) continue;
      if (fork_generation() != generation) return;
      if (hook.call == nullptr) continue;
      const std::int64_t now = now_ns();
      if (next_hook_ns == 0) next_hook_ns = now + kHookPeriodNs;
      if (now < next_hook_ns) continue;
      hook.call(hook.user);
      next_hook_ns = now_ns() + kHookPeriodNs;
    }
    at = next;
  }
}

// Those of a step that nobody has begun, its own first: who comes too late for the step finds them all claimed.
void Pool::do_parts(int index, std::uint64_t at, std::uint64_t& fp) noexcept {
  const int cores = cores_of(at);
  for (int i = 0; i < cores; ++i) {
    const int part = (index + i) % cores;
    if (thread_state().courtesy.give_way()) neighbours_.took_cpu();
    if (!claim(part, at)) continue;
    if (const std::uint64_t callers = mailbox_.fp_control; callers != fp) {
      fp = callers;
      set_fp_control(fp);
    }
    const Job job = mailbox_.job;
    const std::uint64_t first = mailbox_.first;
    const auto nth = static_cast<std::int32_t>((at - first) >> kSequenceShift);
    if (job.single(job.ctx, part, job.subop + nth) != 0) failed_.store(1, std::memory_order_relaxed);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    left_.store(static_cast<std::uint32_t>(cores), std::memory_order_relaxed);
    const bool over = nth + 1 == job.steps || failed_.load(std::memory_order_relaxed) != 0;
    step_.store((at + kNext) | (over ? kOver : 0), std::memory_order_release);
    return;
  }
}

void Pool::join(int cores, const WaitHook& hook, std::uint32_t generation) noexcept {
  int spins = static_cast<std::size_t>(cores) > cpus_.size() ? kSpinsBeforeYield : 0;
  std::int64_t next_hook_ns = 0, slow_since_ns = 0;
  for (int i = 1; i < cores; ++i) {
    while (lines_[static_cast<std::size_t>(i)].done.load(std::memory_order_acquire) != ticket_) {
      if (fork_generation() != generation) return;
      if (++spins < kSpinsBeforeYield) {
        relax();
        continue;
      }
      spins = kSpinsBeforeYield;
      const std::int64_t now = now_ns();
      if (slow_since_ns == 0) slow_since_ns = now;
      if (now - slow_since_ns >= kLateNs) neighbours_.note_late(ticket_);
      if (now - slow_since_ns < kNapAfterNs) {
        yield();
      } else {
        nap(now - slow_since_ns);
      }
      if (hook.call == nullptr) continue;
      if (next_hook_ns == 0) next_hook_ns = now + kHookPeriodNs;
      if (now < next_hook_ns) continue;
      hook.call(hook.user);
      next_hook_ns = now_ns() + kHookPeriodNs;
    }
  }
}

bool Pool::has_left(int core) const noexcept {
  const std::uint64_t ticket = mailbox_.ticket.load(std::memory_order_relaxed);
  return lines_[static_cast<std::size_t>(core)].done.load(std::memory_order_acquire) == ticket;
}

bool Pool::grow(int cores) {
  while (threads_ < cores - 1) {
    if (!start_worker(threads_ + 1)) return false;
    ++threads_;
  }
  return true;
}

bool Pool::start_worker(int index) {
  auto start = std::make_unique<Start>(Start{this, index, ticket_});
  char name[16];
  std::snprintf(name, sizeof name, "sk-worker-%d", index);
  if (!start_thread(handles_[static_cast<std::size_t>(index)], name, worker_main, start.get())) return false;
  static_cast<void>(start.release());  // the thread's now
  pin_worker(index);
  return true;
}

// ---- worker's side
// ---------------------------------------------------------------------------------------------------

void Pool::worker_main(void* argument) noexcept {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  start->pool->work(start->index, start->seen);
}

void Pool::work(int index, std::uint64_t seen) noexcept {
  Line& line = lines_[static_cast<std::size_t>(index)];
  std::uint64_t fp = fp_control();
  for (;;) {
    seen = await_ticket(index, seen);
    if ((seen & kSteps) != 0) {
      step(index, {}, 0);
      continue;
    }
    if ((seen & kClaims) != 0 && !claim(index, seen)) continue;
    if (const std::uint64_t callers = mailbox_.fp_control; callers != fp) {
      fp = callers;
      set_fp_control(fp);
    }
    const Job job = mailbox_.job;
    line.result = job.run(index);
    line.done.store(seen, std::memory_order_release);
    neighbours_.look_round(seen, thread_state().courtesy);
  }
}

// Returns the next ticket after `seen` that calls this worker. Launches on fewer cores pass by and do not prolong the
// spinning.
std::uint64_t Pool::await_ticket(int index, std::uint64_t seen) noexcept {
  const bool yields = static_cast<std::size_t>(cores_of(seen)) > cpu_count_.load(std::memory_order_relaxed);
  const PoolOptions& options = pool_options();
  const std::int64_t limit_ns = patience_.limit_ns(options.spin_ns.load(std::memory_order_relaxed),
                                                   options.spin_ns_max.load(std::memory_order_relaxed));
  Spinning spinning(limit_ns, yields);
  for (;;) {
    const std::uint64_t ticket = mailbox_.ticket.load(std::memory_order_acquire);
    if (ticket != seen && index < cores_of(ticket)) return ticket;
    if (!spinning.go_on()) return park(index, seen, limit_ns);
  }
}

std::uint64_t Pool::park(int index, std::uint64_t seen, std::int64_t spun_ns) noexcept {
  Line& line = lines_[static_cast<std::size_t>(index)];
  const std::int64_t idle_since_ns = Patience::idle_since(spun_ns);
  line.parked.store(1, std::memory_order_relaxed);
  std::uint32_t wakes = wake_count_.load(std::memory_order_relaxed);
  if (!asymmetric_ || !barrier_in_all_threads()) fence_seq_cst();
  std::uint64_t ticket = mailbox_.ticket.load(std::memory_order_acquire);
  while (ticket == seen || index >= cores_of(ticket)) {
    futex_wait(wake_count_, wakes, wake_bit(index));
    wakes = wake_count_.load(std::memory_order_acquire);
    ticket = mailbox_.ticket.load(std::memory_order_acquire);
  }
  line.parked.store(0, std::memory_order_relaxed);
  patience_.woken(idle_since_ns, pool_options().spin_ns_max.load(std::memory_order_relaxed));
  return ticket;
}

// ---- placing
// ---------------------------------------------------------------------------------------------------------

// Worker i takes the i-th allowed CPU; those beyond the last float.
void Pool::assign_cpus() {
  const std::vector<int>* own = thread_state().own_affinity;
  cpus_ = own == nullptr ? allowed_cpus() : *own;
  cpu_count_.store(cpus_.size(), std::memory_order_relaxed);
  worker_on_.assign(static_cast<std::size_t>(*std::max_element(cpus_.begin(), cpus_.end())) + 1, -1);
  const bool pin = pool_options().pin.load(std::memory_order_relaxed);
  for (int i = 0; i < kMaxCores; ++i) {
    const auto slot = static_cast<std::size_t>(i);
    cpu_of_[slot] = pin && slot < cpus_.size() ? cpus_[slot] : -1;
    if (cpu_of_[slot] >= 0) worker_on_[static_cast<std::size_t>(cpu_of_[slot])] = i;
  }
}

void Pool::pin_worker(int index) noexcept {
  const int cpu = cpu_of_[static_cast<std::size_t>(index)];
  set_affinity(handles_[static_cast<std::size_t>(index)], cpu < 0 ? cpus_ : std::vector<int>{cpu});
}

// The caller floats. Where it stands on the CPU of a worker that it is about to call, the two would take turns instead
// of running side by side: that worker moves to the CPU last left to the caller. Rare, since the scheduler keeps the
// caller off busy CPUs.
void Pool::avoid_caller(int cores) noexcept {
  const int here = current_cpu();
  if (here < 0 || static_cast<std::size_t>(here) >= worker_on_.size()) return;
  const int worker = worker_on_[static_cast<std::size_t>(here)];
  if (worker <= 0 || worker >= cores) return;
  const int free_cpu = cpu_of_[0];
  cpu_of_[0] = here;
  cpu_of_[static_cast<std::size_t>(worker)] = free_cpu;
  worker_on_[static_cast<std::size_t>(here)] = 0;
  worker_on_[static_cast<std::size_t>(free_cpu)] = worker;
  ++moves_;
  pin_worker(worker);
}

void Pool::pin_calling_thread(bool pinned) {
  std::vector<int>*& own = thread_state().own_affinity;
  if (pinned == (own != nullptr)) return;
  if (pinned) {
    own = new std::vector<int>(cpus_);
    set_own_affinity({cpus_[0]});
  } else {
    set_own_affinity(*own);
    delete std::exchange(own, nullptr);
  }
}

void Pool::apply_pinning() {
  const std::lock_guard guard(launch_mutex_);
  assign_cpus();
  for (int i = 1; i <= threads_; ++i) pin_worker(i);
}

PoolInfo Pool::info() {
  const std::lock_guard guard(launch_mutex_);
  PoolInfo info;
  info.threads = threads_;
  info.cpus = cpus_;
  for (int i = 1; i <= threads_; ++i) {
    info.parked += lines_[static_cast<std::size_t>(i)].parked.load(std::memory_order_relaxed) != 0 ? 1 : 0;
    info.worker_cpus.push_back(cpu_of_[static_cast<std::size_t>(i)]);
  }
  info.launches = ticket_ >> kSequenceShift;
  info.wakes = wakes_;
  info.moves = moves_;
  info.taken = taken_;
  info.stepwise = stepwise_;
  info.disturbed = neighbours_.stay();
  info.spin_ns = pool_options().spin_ns.load(std::memory_order_relaxed);
  info.spin_ns_max = pool_options().spin_ns_max.load(std::memory_order_relaxed);
  info.spin_ns_now = patience_.limit_ns(info.spin_ns, info.spin_ns_max);
  info.pin = pool_options().pin.load(std::memory_order_relaxed);
  info.pin_caller = pool_options().pin_caller.load(std::memory_order_relaxed);
  info.asymmetric_barrier = asymmetric_;
  return info;
}

}  // namespace sk

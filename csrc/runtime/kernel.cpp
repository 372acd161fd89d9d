#include "runtime/kernel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "runtime/clock.h"
#include "runtime/cpu.h"

namespace sk {

namespace {

constexpr std::uint32_t kSpinLimit = 4000;              // of pause: a few cache-line hand-overs under a time slice
constexpr std::uint32_t kSpinLimitOversubscribed = 32;  // who waits holds the CPU that the awaited one needs
constexpr std::int64_t kPollPeriodNs = 50'000'000;
constexpr int kProducerBits = 8;
constexpr std::size_t kPlain = 0, kProfiled = 1, kSingle = 2, kStampedSingle = 3;
static_assert(kStampedSingle + 1 == kLaunchKinds);
static_assert(kMaxCores <= 1 << kProducerBits);

Mutex list_mutex;  // held for moments only, never during a run: fork may take it
Kernel* first_kernel = nullptr;

// A name for the calling thread that costs no system call and stays the same in the child of a fork.
std::uintptr_t this_thread() noexcept { return reinterpret_cast<std::uintptr_t>(&thread_state()); }

AtomicRef<std::uint64_t> counter_of(const SkContext& ctx, std::size_t core) noexcept {
  return AtomicRef<std::uint64_t>(ctx.flags[core * SK_FLAG_STRIDE]);
}

AtomicRef<std::uint32_t> abort_of(SkContext& ctx) noexcept { return AtomicRef<std::uint32_t>(ctx.abort); }

std::size_t round_up(std::size_t value, std::size_t unit) noexcept { return (value + unit - 1) / unit * unit; }

}  // namespace

void before_fork() noexcept { list_mutex.lock(); }

void after_fork_in_parent() noexcept { list_mutex.unlock(); }

// Only the forking thread lives on. A kernel that another thread was running is taken over as new; one that this thread
// itself is running (a host call forked) has lost its other cores and is made to leave.
void after_fork_in_child() noexcept {
  for (Kernel* kernel = first_kernel; kernel != nullptr; kernel = kernel->next_) {
    const std::uintptr_t owner = kernel->owner_.load(std::memory_order_relaxed);
    if (owner == this_thread()) {
      if (kernel->config_.cores > 1) kernel->request_abort(AbortInfo{.reason = AbortReason::kForked});
      continue;
    }
    new (&kernel->mutex_) Mutex();
    if (owner != 0) {
      kernel->owner_.store(0, std::memory_order_relaxed);
      kernel->reset_counters();
    }
  }
  list_mutex.unlock();
}

Atomic<bool>& check_counters_option() noexcept {
  static Atomic<bool> option{false};
  return option;
}

// Holds the kernel for one run; where it cannot be had, `entered()` is false and `refusal()` says why.
class Kernel::Running {
 public:
  Running(Kernel& kernel, std::span<std::uint8_t* const> io, const RunOptions& options) : kernel_(kernel) {
    if (kernel.running_here()) return;
    if (!thread_state().has_signal_stack) [[unlikely]]
      have_signal_stack();
    if (options.patient) {
      kernel.mutex_.lock();
    } else if (!kernel.mutex_.try_lock()) {
      refusal_ = AbortReason::kBusy;
      return;
    }
    if (options.closed != nullptr && options.closed->load(std::memory_order_relaxed)) {
      kernel.mutex_.unlock();
      refusal_ = AbortReason::kClosed;
      return;
    }
    if (Workspace* shared = kernel.config_.workspace.get(); shared != nullptr) {
      borrowed_ = shared->borrow(kernel.memory_bytes());
      if (borrowed_ == nullptr) {
        kernel.mutex_.unlock();
        refusal_ = AbortReason::kNoMemory;
        return;
      }
      kernel.work_in(*borrowed_);
    }
    kernel.owner_.store(this_thread(), std::memory_order_relaxed);
    entered_ = true;
    std::copy_n(io.begin(), std::min(io.size(), kernel.config_.io_count), kernel.io_.begin());
    kernel.options_ = options;
    kernel.next_poll_ns_ = 0;
    kernel.abort_ = AbortInfo{};
    kernel.abort_taken_.store(false, std::memory_order_relaxed);
  }
  ~Running() {
    if (!entered_) return;
    if (borrowed_ != nullptr) kernel_.config_.workspace->give_back(borrowed_);
    kernel_.owner_.store(0, std::memory_order_relaxed);
    kernel_.mutex_.unlock();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  bool entered() const noexcept { return entered_; }
  AbortReason refusal() const noexcept { return refusal_; }

 private:
  Kernel& kernel_;
  AlignedBuffer* borrowed_ = nullptr;
  bool entered_ = false;
  AbortReason refusal_ = AbortReason::kNested;
};

// ---- life
// ------------------------------------------------------------------------------------------------------------

Kernel::Kernel(KernelConfig config)
    : config_(std::move(config)),
      io_(config_.io_count + config_.shared.size(), nullptr),
      waits_(static_cast<std::size_t>(config_.cores)),
      conditions_(waits_.size()),
      counters_(waits_.size()),
      apart_(!config_.sets.empty() && std::ranges::all_of(config_.sets, [](std::uint64_t sets) { return sets == 0; })) {
  blocked_.reserve(waits_.size());  // no memory is asked for where a launch is given up
}

std::unique_ptr<Kernel> Kernel::create(KernelConfig config) {
  std::unique_ptr<Kernel> kernel(new Kernel(std::move(config)));
  if (!kernel->allocate()) return nullptr;
  kernel->enlist();
  return kernel;
}

bool Kernel::allocate() {
  const auto cores = static_cast<std::size_t>(config_.cores);
  const std::size_t stamps = std::max(config_.events_words, 2 * static_cast<std::size_t>(config_.subops));
  const std::size_t events_stride = round_up(stamps, kApartBytes / sizeof(std::uint64_t));
  constexpr std::size_t kMost = SIZE_MAX / 2 / kMaxCores;
  if (config_.scratch_bytes > kMost || stamps > kMost / sizeof(std::uint64_t)) return false;
  if (!frame_memory_.allocate(sizeof(Frame), kApartBytes) ||
      !flags_.allocate(cores * SK_FLAG_STRIDE * sizeof(std::uint64_t), kApartBytes) ||
      !events_.allocate(cores * events_stride * sizeof(std::uint64_t), kApartBytes)) {
    return false;
  }
  const bool aligned = reinterpret_cast<std::uintptr_t>(config_.constants) % kLineBytes == 0;
  if (aligned && config_.constants != nullptr) {
    advise_huge_pages(config_.constants, config_.constants_bytes);
  } else {
    if (!constants_copy_.allocate(config_.constants_bytes)) return false;
    if (config_.constants_bytes != 0) {
      std::memcpy(constants_copy_.data(), config_.constants, config_.constants_bytes);
    }
    config_.constants = constants_copy_.data();
  }
  for (std::size_t i = 0; i < config_.shared.size(); ++i) {
    const auto& block = config_.shared[i];
    advise_huge_pages(block.data(), block.size());
    io_[config_.io_count + i] = const_cast<std::uint8_t*>(block.data());  // generated code only reads it
  }
  const bool oversubscribed = cores > allowed_cpus().size();
  frame_ = new (frame_memory_.data()) Frame{};
  frame_->kernel = this;
  frame_->ctx = SkContext{
      .epoch = 0,
      .arena = nullptr,
      .constants = const_cast<std::uint8_t*>(config_.constants),  // generated code only reads it
      .io = io_.data(),
      .flags = reinterpret_cast<std::uint64_t*>(flags_.data()),
      .scratch = nullptr,
      .scratch_stride = round_up(config_.scratch_bytes, kApartBytes),
      .events = reinterpret_cast<std::uint64_t*>(events_.data()),
      .events_stride = events_stride,
      .abort = 0,
      .spin_limit = oversubscribed ? kSpinLimitOversubscribed : kSpinLimit,
      .wait_slow = on_wait_slow,
      .host_call = on_host_call,
      .clock = ticks,
  };
  if (config_.workspace == nullptr) {
    if (!own_memory_.allocate(memory_bytes(), kApartBytes)) return false;
    work_in(own_memory_);
    return true;
  }
  AlignedBuffer* block = config_.workspace->borrow(memory_bytes());  // now, so that there is one when it is run
  if (block != nullptr) config_.workspace->give_back(block);
  return block != nullptr;
}

std::size_t Kernel::memory_bytes() const noexcept {
  return round_up(config_.arena_bytes, kApartBytes) + waits_.size() * frame_->ctx.scratch_stride;
}

// The arena, and the scratch of all cores behind it.
void Kernel::work_in(const AlignedBuffer& memory) noexcept {
  frame_->ctx.arena = memory.data();
  frame_->ctx.scratch = memory.data() + round_up(config_.arena_bytes, kApartBytes);
}

void Kernel::enlist() {
  static const bool registered = (on_fork(before_fork, after_fork_in_parent, after_fork_in_child), true);
  static_cast<void>(registered);
  const std::lock_guard guard(list_mutex);
  next_ = first_kernel;
  if (first_kernel != nullptr) first_kernel->previous_ = this;
  first_kernel = this;
}

Kernel::~Kernel() {
  const std::lock_guard guard(list_mutex);
  if (next_ != nullptr) next_->previous_ = previous_;
  if (previous_ != nullptr) previous_->next_ = next_;
  if (first_kernel == this) first_kernel = next_;
}

// ---- runs
// ------------------------------------------------------------------------------------------------------------

AbortReason Kernel::run(std::span<std::uint8_t* const> io, const RunOptions& options) {
  const Running running(*this, io, options);
  if (!running.entered()) return running.refusal();
  return launch_either(check_counters_option().load(std::memory_order_relaxed));
}

AbortReason Kernel::profile(std::span<std::uint8_t* const> io, const RunOptions& options, int warmup, bool settle,
                            const ProfileRows& rows) {
  const Running running(*this, io, options);
  if (!running.entered()) return running.refusal();
  const std::size_t kinds = rows.single.empty() ? 2 : kLaunchKinds;
  for (std::ptrdiff_t i = -warmup; i < static_cast<std::ptrdiff_t>(rows.rounds); ++i) {
    const std::size_t row = i < 0 ? 0 : static_cast<std::size_t>(i);
    for (std::size_t turn = 0; turn < kinds; ++turn) {
      const std::size_t kind = i % 2 == 0 ? turn : kinds - 1 - turn;
      std::int64_t before = 0;
      std::int64_t after = 0;
      if (const AbortReason reason = note_conditions(before); reason != AbortReason::kNone) return reason;
      if (settle) {
        if (const AbortReason reason = profile_launch(kind, row, rows); reason != AbortReason::kNone) return reason;
      }
      if (const AbortReason reason = profile_launch(kind, row, rows); reason != AbortReason::kNone) return reason;
      if (const AbortReason reason = note_conditions(after); reason != AbortReason::kNone) return reason;
      rows.preemptions[row * kLaunchKinds + kind] = after - before;
      if (kind == kProfiled) {
        if (const AbortReason reason = check_counters(); reason != AbortReason::kNone) return reason;
      }
      copy_stamps(kind, row, rows);
    }
    if (const AbortReason reason = poll_between_rounds(); reason != AbortReason::kNone) return reason;
  }
  return AbortReason::kNone;
}

// One launch of a kind, and its time into the row: by the counter that its stamps are read from, so that what reading a
// clock takes is in no time.
AbortReason Kernel::profile_launch(std::size_t kind, std::size_t row, const ProfileRows& rows) {
  const std::uint64_t begin = ticks();
  AbortReason reason = AbortReason::kNone;
  if (kind == kSingle || kind == kStampedSingle) {
    const SkSingleEntry stamped = config_.single == nullptr ? nullptr : on_stamped_single;
    reason = single_round(kind == kSingle ? config_.single : stamped, nullptr);
  } else {
    reason = launch_fused(kind == kProfiled ? config_.profiled : config_.entry, false);
  }
  const std::uint64_t end = ticks();
  if (kind == kProfiled || kind == kStampedSingle) {
    const std::span<std::uint64_t> edges = kind == kProfiled ? rows.edges : rows.single_edges;
    edges[2 * row] = begin;
    edges[2 * row + 1] = end;
  }
  if (kind != kStampedSingle) {
    (kind == kPlain ? rows.plain : kind == kProfiled ? rows.profiled : rows.single)[row] = ticks_to_ns(end - begin);
  }
  return reason;
}

// What the last launch of a kind left behind, into the row.
void Kernel::copy_stamps(std::size_t kind, std::size_t row, const ProfileRows& rows) const {
  if (kind != kProfiled && kind != kStampedSingle) return;
  const bool fused = kind == kProfiled;
  const std::size_t words = fused ? config_.events_words : 2 * static_cast<std::size_t>(config_.subops);
  const std::span<std::uint64_t> events = fused ? rows.events : rows.single_events;
  for (std::size_t core = 0; core < static_cast<std::size_t>(config_.cores); ++core) {
    const std::uint64_t* stamps = frame_->ctx.events + core * frame_->ctx.events_stride;
    const std::size_t at = row * static_cast<std::size_t>(config_.cores) + core;
    std::copy_n(stamps, words, events.begin() + static_cast<std::ptrdiff_t>(at * words));
    if (fused) rows.chain_ticks[at] = conditions_[core].chain_ticks;
  }
}

// A core's share of a sub-operator with a time stamp at either end.
std::int32_t Kernel::on_stamped_single(SkContext* ctx, std::int32_t core, std::int32_t subop) noexcept {
  const auto own = static_cast<std::size_t>(core) * ctx->events_stride + 2 * static_cast<std::size_t>(subop);
  ctx->events[own] = ticks();
  const std::int32_t code = reinterpret_cast<Frame*>(ctx)->kernel->config_.single(ctx, core, subop);
  ctx->events[own + 1] = ticks();
  return code;
}

// How often the threads of all cores have lost their CPU to others so far, and how fast each core's CPU runs.
AbortReason Kernel::note_conditions(std::int64_t& preemptions) {
  const Job job{.entry = on_note_conditions, .single = nullptr, .ctx = &frame_->ctx, .subop = 0};
  if (const AbortReason reason = launch(job); reason != AbortReason::kNone) return reason;
  preemptions = 0;
  for (const CoreConditions& core : conditions_) preemptions += core.preemptions;
  return AbortReason::kNone;
}

std::int32_t Kernel::on_note_conditions(SkContext* ctx, std::int32_t core) noexcept {
  Kernel& kernel = *reinterpret_cast<Frame*>(ctx)->kernel;
  CoreConditions& own = kernel.conditions_[static_cast<std::size_t>(core)];
  own.preemptions = thread_preemptions();
  own.chain_ticks = chain_ticks();
  return 0;
}

AbortReason Kernel::count(std::span<std::uint8_t* const> io, const RunOptions& options, int launches,
                          std::span<std::int64_t> counts) {
  const Running running(*this, io, options);
  if (!running.entered()) return running.refusal();
  const Job open{.entry = on_open_counters, .single = nullptr, .ctx = &frame_->ctx, .subop = 0};
  const Job close{.entry = on_close_counters, .single = nullptr, .ctx = &frame_->ctx, .subop = 0};
  AbortReason reason = launch(open);
  for (int i = 0; i < launches && reason == AbortReason::kNone; ++i) {
    reason = launch_fused(config_.entry, false);
    if (reason == AbortReason::kNone) reason = poll_between_rounds();
  }
  if (reason != AbortReason::kNone) {
    for (HardwareCounters& core : counters_) core.close();
    return reason;
  }
  reason = launch(close);
  for (std::size_t core = 0; core < counters_.size(); ++core) {
    const auto& counted = counters_[core].counts();
    std::copy(counted.begin(), counted.end(), counts.begin() + static_cast<std::ptrdiff_t>(core * kHardwareCounts));
  }
  return reason;
}

std::int32_t Kernel::on_open_counters(SkContext* ctx, std::int32_t core) noexcept {
  reinterpret_cast<Frame*>(ctx)->kernel->counters_[static_cast<std::size_t>(core)].open();
  return 0;
}

std::int32_t Kernel::on_close_counters(SkContext* ctx, std::int32_t core) noexcept {
  reinterpret_cast<Frame*>(ctx)->kernel->counters_[static_cast<std::size_t>(core)].close();
  return 0;
}

AbortReason Kernel::run_single(std::span<std::uint8_t* const> io, const RunOptions& options,
                               std::span<std::int64_t> ns) {
  const Running running(*this, io, options);
  if (!running.entered()) return running.refusal();
  return single_round(config_.single, ns.data());
}

AbortReason Kernel::time(std::span<std::uint8_t* const> io, const RunOptions& options, int warmup,
                         std::span<std::int64_t> fused) {
  const Running running(*this, io, options);
  if (!running.entered()) return running.refusal();
  const auto rounds = static_cast<std::ptrdiff_t>(fused.size());
  for (std::ptrdiff_t i = -warmup; i < rounds; ++i) {
    const std::uint64_t begin = ticks();
    if (const AbortReason reason = launch_either(false); reason != AbortReason::kNone) return reason;
    const std::uint64_t end = ticks();
    if (i >= 0) fused[static_cast<std::size_t>(i)] = ticks_to_ns(end - begin);
    if (const AbortReason reason = poll_between_rounds(); reason != AbortReason::kNone) return reason;
  }
  return AbortReason::kNone;
}

AbortInfo Kernel::last_abort() {
  if (running_here()) return abort_;
  const std::lock_guard guard(mutex_);
  return abort_;
}

std::vector<BlockedWait> Kernel::last_waits() {
  if (running_here()) return blocked_;
  const std::lock_guard guard(mutex_);
  return blocked_;
}

bool Kernel::running_here() const noexcept { return owner_.load(std::memory_order_relaxed) == this_thread(); }

// Fused, or where others take CPUs in the middle of launches, by steps if these take less time then.
AbortReason Kernel::launch_either(bool check) {
  const Stepwise option = pool_options().stepwise.load(std::memory_order_relaxed);
  const bool may = config_.stepwise && config_.cores > 1 && !apart_ && config_.subops != 0 && config_.single != nullptr;
  if (!may || option == Stepwise::kNever || (option != Stepwise::kAlways && !Pool::instance().disturbed())) [[likely]]
    return launch_fused(config_.entry, check);
  const std::size_t way = option == Stepwise::kAlways ? 1 : ways_.next();
  const std::int64_t start_ns = now_ns();
  const Job job{.single = config_.single, .ctx = &frame_->ctx, .steps = config_.subops};
  const AbortReason reason = way == 1 ? launch(job) : launch_fused(config_.entry, check);
  ways_.took(way, now_ns() - start_ns);
  Pool::instance().rest_disturbed();
  return reason;
}

AbortReason Kernel::launch_fused(SkEntry entry, bool check) {
  if (entry == nullptr) return stop(AbortReason::kMissingEntry);
  Job job{.entry = entry, .single = nullptr, .ctx = &frame_->ctx, .subop = 0};
  if (apart_) job.part_ns = &part_ns_;
  const AbortReason reason = launch(job);
  if (reason != AbortReason::kNone) return reason;
  ++frame_->ctx.epoch;
  return check ? check_counters() : AbortReason::kNone;
}

AbortReason Kernel::single_round(SkSingleEntry entry, std::int64_t* each_ns) {
  if (entry == nullptr) return stop(AbortReason::kMissingEntry);
  std::int64_t before = each_ns != nullptr ? now_ns() : 0;
  for (std::int32_t subop = 0; subop < config_.subops; ++subop) {
    const Job job{.entry = nullptr, .single = entry, .ctx = &frame_->ctx, .subop = subop};
    if (const AbortReason reason = launch(job); reason != AbortReason::kNone) return reason;
    if (each_ns == nullptr) continue;
    const std::int64_t now = now_ns();
    each_ns[subop] = now - before;
    before = now;
  }
  return AbortReason::kNone;
}

AbortReason Kernel::launch(const Job& job) {
  launch_ = launch_ + 1;
  started_ns_ = options_.watchdog_ns > 0 ? now_ns() : 0;
  const WaitHook hook{.call = options_.hooks.poll != nullptr ? on_join_wait : nullptr, .user = this};
  const LaunchStatus status = config_.cores == 1 ? (job.run(0) == 0 ? LaunchStatus::kDone : LaunchStatus::kEntryCode)
                                                 : Pool::instance().launch(job, config_.cores, hook, options_.patient);
  if (status == LaunchStatus::kDone && abort_of(frame_->ctx).load(std::memory_order_relaxed) == 0) [[likely]]
    return AbortReason::kNone;
  switch (status) {
    case LaunchStatus::kBusy:
      return AbortReason::kBusy;
    case LaunchStatus::kNested:
      return stop(AbortReason::kNested);
    case LaunchStatus::kNoThread:
      return stop(AbortReason::kNoThread);
    case LaunchStatus::kForked:
      return stop(AbortReason::kForked);
    default:
      return stop(AbortReason::kEntryCode);
  }
}

AbortReason Kernel::check_counters() {
  if (config_.sets.empty()) return AbortReason::kNone;
  const SkContext& ctx = frame_->ctx;
  for (std::size_t core = 0; core < config_.sets.size(); ++core) {
    const std::uint64_t expected = ctx.epoch * config_.sets[core];
    const std::uint64_t actual = counter_of(ctx, core).load(std::memory_order_relaxed);
    if (actual == expected) continue;
    request_abort(AbortInfo{.reason = AbortReason::kCounters,
                            .core = static_cast<std::int32_t>(core),
                            .threshold = expected,
                            .actual = actual});
    return stop(AbortReason::kCounters);
  }
  return AbortReason::kNone;
}

// Ends a failed launch: all cores have left it. Keeps the first cause, falling back to `reason`. A host call that a
// worker asked for comes now: what it reads is still there, since whoever would overwrite it waits for the sub-operator
// that failed.
AbortReason Kernel::stop(AbortReason reason) noexcept {
  if (!abort_taken_.load(std::memory_order_relaxed)) request_abort(AbortInfo{.reason = reason});
  const AbortInfo info = abort_;
  blocked_.clear();
  for (const CoreWait& core : waits_) {
    const SlowWait last = core.last;
    if (last.launch == launch_ && last.given_up) blocked_.push_back(last.at);
  }
  const RunHooks& hooks = options_.hooks;
  if (info.deferred >= 0 && hooks.host_call != nullptr) static_cast<void>(hooks.host_call(hooks.user, info.deferred));
  reset_counters();
  return info.reason;
}

void Kernel::reset_counters() noexcept {
  for (std::size_t core = 0; core < static_cast<std::size_t>(config_.cores); ++core) {
    counter_of(frame_->ctx, core).store(0, std::memory_order_relaxed);
    waits_[core].awaits.store(0, std::memory_order_relaxed);
  }
  abort_of(frame_->ctx).store(0, std::memory_order_relaxed);
  frame_->ctx.epoch = 0;
}

AbortReason Kernel::poll_between_rounds() {
  if (options_.hooks.poll == nullptr || !poll(now_ns())) return AbortReason::kNone;
  return stop(AbortReason::kInterrupt);
}

// ---- callbacks of generated code
// ---------------------------------------------------------------------------------------

// Nothing here orders: who leaves for the abort reads nothing else, and what it says is read behind the join.
void Kernel::request_abort(const AbortInfo& info) noexcept {
  if (!abort_taken_.exchange(true, std::memory_order_relaxed)) {
    AbortInfo whole = info;
    whole.epoch = frame_->ctx.epoch;
    if (const std::int64_t started = started_ns_; started != 0) whole.elapsed_ns = now_ns() - started;
    abort_ = whole;
  }
  abort_of(frame_->ctx).store(1, std::memory_order_relaxed);
}

// Asks the hook at most every kPollPeriodNs, on the caller's thread; true where the run shall end.
bool Kernel::poll(std::int64_t now) noexcept {
  if (next_poll_ns_ == 0) next_poll_ns_ = now + kPollPeriodNs;
  if (now < next_poll_ns_ || abort_of(frame_->ctx).load(std::memory_order_relaxed) != 0) return false;
  const bool stopping = options_.hooks.poll(options_.hooks.user) != 0;
  next_poll_ns_ = now_ns() + kPollPeriodNs;
  if (stopping) request_abort(AbortInfo{.reason = AbortReason::kInterrupt});
  return stopping;
}

void Kernel::on_join_wait(void* kernel) noexcept { static_cast<void>(static_cast<Kernel*>(kernel)->poll(now_ns())); }

std::int32_t Kernel::on_wait_slow(SkContext* ctx, std::int32_t core, std::int32_t producer, std::uint64_t threshold,
                                  std::int32_t wait) noexcept {
  return reinterpret_cast<Frame*>(ctx)->kernel->wait_slow(core, producer, threshold, wait);
}

// Whether nobody can go on: every core has left, or stands in a wait that is not reached. First all cores are looked
// at, then all counters. Were one of the cores past the wait it was seen in, take the first that got past: what it
// awaited was stored by a core before that one stood in its own wait or left, so that it is seen here. A wait of long
// ago is reached: counters only grow.
bool Kernel::is_stuck() const noexcept {
  std::array<std::uint64_t, kMaxCores> awaits;
  const auto cores = static_cast<std::size_t>(config_.cores);
  for (std::size_t core = 0; core < cores; ++core) {
    const bool left = cores > 1 && Pool::instance().has_left(static_cast<int>(core));
    awaits[core] = left ? 0 : waits_[core].awaits.load(std::memory_order_acquire);
    if (!left && awaits[core] == 0) return false;
  }
  return std::all_of(awaits.begin(), awaits.begin() + config_.cores, [this](std::uint64_t each) {
    constexpr std::uint64_t kProducer = (1 << kProducerBits) - 1;
    return each == 0 ||
           counter_of(frame_->ctx, each & kProducer).load(std::memory_order_relaxed) < each >> kProducerBits;
  });
}

// Keeps where a core waits, for the report. Since when, as far as this has been called.
std::int64_t Kernel::note_wait(const BlockedWait& here, bool given_up) noexcept {
  if (here.core < 0 || here.core >= config_.cores) return now_ns();
  Plain<SlowWait>& mine = waits_[static_cast<std::size_t>(here.core)].last;
  const SlowWait before = mine;
  const bool again = before.launch == launch_ && before.at.wait == here.wait;
  if (again && !given_up) return before.since_ns;
  SlowWait now{.at = here, .launch = launch_, .since_ns = again ? before.since_ns : now_ns(), .given_up = given_up};
  now.at.late = given_up && !again;
  mine = now;
  const auto producer = static_cast<std::uint64_t>(here.producer);
  const std::uint64_t awaits = producer < waits_.size() ? here.threshold << kProducerBits | producer : 0;
  waits_[static_cast<std::size_t>(here.core)].awaits.store(awaits, std::memory_order_release);
  return now.since_ns;
}

std::int32_t Kernel::wait_slow(std::int32_t core, std::int32_t producer, std::uint64_t threshold,
                               std::int32_t wait) noexcept {
  SkContext& ctx = frame_->ctx;
  const bool known = producer >= 0 && producer < config_.cores;
  const std::uint64_t actual =
      known ? counter_of(ctx, static_cast<std::size_t>(producer)).load(std::memory_order_relaxed) : 0;
  const bool reached = known && actual >= threshold;
  const BlockedWait here{.core = core, .wait = wait, .producer = producer, .threshold = threshold, .actual = actual};
  if (abort_of(ctx).load(std::memory_order_relaxed) != 0) {
    if (!reached) note_wait(here, true);
    return 1;
  }
  if (reached) return 0;
  const std::int64_t since_ns = note_wait(here, false);
  if (is_stuck()) {
    request_abort(AbortInfo{.reason = AbortReason::kDeadlock,
                            .core = core,
                            .wait = wait,
                            .producer = producer,
                            .threshold = threshold,
                            .actual = actual});
    note_wait(here, true);
    return 1;
  }
  const std::int64_t now = now_ns();
  const std::int64_t waited_ns = now - since_ns;
  if (waited_ns >= kLateNs && config_.cores > 1) Pool::instance().note_late();
  if (waited_ns < kNapAfterNs) {
    yield();
  } else {
    nap(waited_ns);
  }
  const bool polls = core == 0 && options_.hooks.poll != nullptr;
  const std::int64_t started = started_ns_;
  if (started == 0 && !polls) return 0;
  if (started != 0 && now - started >= options_.watchdog_ns) {
    request_abort(AbortInfo{.reason = AbortReason::kWatchdog,
                            .core = core,
                            .wait = wait,
                            .producer = producer,
                            .threshold = threshold,
                            .actual = actual});
  } else if (!polls || !poll(now)) {
    return 0;
  }
  note_wait(here, true);
  return 1;
}

std::int32_t Kernel::on_host_call(SkContext* ctx, std::int32_t subop) noexcept {
  Kernel& kernel = *reinterpret_cast<Frame*>(ctx)->kernel;
  const RunHooks& hooks = kernel.options_.hooks;
  if (!kernel.running_here()) {  // a worker: its thread is nobody's whom the hook knows
    kernel.request_abort(AbortInfo{.reason = AbortReason::kHostCall, .deferred = subop});
    return 1;
  }
  if (hooks.host_call != nullptr && hooks.host_call(hooks.user, subop) == 0) return 0;
  kernel.request_abort(AbortInfo{.reason = AbortReason::kHostCall});
  return 1;
}

}  // namespace sk

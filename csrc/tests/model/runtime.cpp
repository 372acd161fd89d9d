// The runtime's launches, kernels, aborts and forks, explored: the sources of csrc/runtime as they stand, on the
// explorer's threads.
//
//     runtime list                          the programs, and whether all their executions can be had
//     runtime run NAME [WALKS [SEED]]       explores one; ends with 0 where nothing is wrong in any execution
//     runtime weaken NAME [WALKS [SEED [SITE...]]]
//                                           each fence, acquire and release that the program meets made weaker, one at
//                                           a time, but for these sites: prints which of them nothing misses
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/kernel.cpp"  // NOLINT: with their insides
#include "runtime/pool.cpp"    // NOLINT

namespace {

sk::Atomic<std::int64_t> time_now{1};

}  // namespace

// The rest of the system, as far as it matters.
namespace sk {

std::int64_t now_ns() noexcept { return time_now.load(std::memory_order_relaxed); }
std::uint64_t ticks() noexcept { return 0; }
std::int64_t ticks_to_ns(std::uint64_t ticks) noexcept { return static_cast<std::int64_t>(ticks); }
std::vector<int> allowed_cpus() { return {0, 1, 2, 3, 4, 5}; }

}  // namespace sk

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr int kCores = 3;

// What the threads of one execution share.
struct World {
  std::array<sk::Plain<int>, kCores> input;
  std::array<sk::Plain<int>, kCores> output;
  std::array<sk::Plain<int>, kCores> after;  // times that the second step's part was done
  bool hang = false;                         // core 1 does not set its counter
  bool forks = false;                        // core 0 forks in the middle of a launch
  bool child = false;
  std::vector<std::unique_ptr<sk::Kernel>> kernels;
  std::unique_ptr<sk::Workspace> workspace;
  std::map<const sk::AlignedBuffer*, sk::Plain<int>> lent;  // how often each block was
};

std::unique_ptr<World> world;

void start_world() {
  sk::pool_options().pin.store(false, kRelaxed);
  world = std::make_unique<World>();
}

void end_world() {
  world.reset();
  delete sk::current_pool.newest();
}

// ---- launches of the pool

std::int32_t copy_entry(SkContext*, std::int32_t core) {
  const auto slot = static_cast<std::size_t>(core);
  world->output[slot] = world->input[slot] + 1;
  return 0;
}

void launch(int cores, int value) {
  for (std::size_t core = 0; core < static_cast<std::size_t>(cores); ++core) world->input[core] = value;
  const sk::LaunchStatus status = sk::Pool::instance().launch(sk::Job{.entry = copy_entry}, cores);
  model::expect(status == sk::LaunchStatus::kDone, "the launch is done");
  for (std::size_t core = 0; core < static_cast<std::size_t>(cores); ++core) {
    model::expect(world->output[core] == value + 1, "every core has run");
  }
}

void one_launch() { launch(2, 1); }

void two_launches() {
  launch(2, 1);
  launch(2, 5);
}

void fewer_cores() {
  launch(3, 1);
  launch(2, 5);
  launch(3, 7);
}

std::int32_t fail_on_1(SkContext*, std::int32_t core) { return core == 1 ? 7 : 0; }

void entry_code() {
  const sk::LaunchStatus status = sk::Pool::instance().launch(sk::Job{.entry = fail_on_1}, 2);
  model::expect(status == sk::LaunchStatus::kEntryCode, "the code of a worker arrives");
  launch(2, 3);
}

// Parts that wait for no other, by whoever comes first.
std::int64_t part_ns = 0;

std::int32_t count_entry(SkContext*, std::int32_t core) {
  const auto slot = static_cast<std::size_t>(core);
  world->output[slot] = world->output[slot] + world->input[slot];
  return 0;
}

void launch_apart(int cores, int value, int sum) {
  for (std::size_t core = 0; core < static_cast<std::size_t>(cores); ++core) world->input[core] = value;
  const sk::Job job{.entry = count_entry, .part_ns = &part_ns};
  model::expect(sk::Pool::instance().launch(job, cores) == sk::LaunchStatus::kDone, "the launch is done");
  for (std::size_t core = 0; core < static_cast<std::size_t>(cores); ++core) {
    model::expect(world->output[core] == sum, "every part has been done once");
  }
}

// The last launch is one that waits for the worker: an execution ends with the caller, whether others have moved or
// not.
void parts_apart() {
  launch_apart(2, 1, 1);
  launch(2, 5);
}

// Worker 2 takes part in some only, and a launch that nobody takes over comes between.
void parts_apart_mixed() {
  launch_apart(3, 1, 1);
  launch(2, 5);
  launch_apart(2, 1, 7);
  launch(3, 2);
}

// Steps: every part of one is done once, by somebody who sees all parts of the step before.
std::int32_t step_entry(SkContext*, std::int32_t core, std::int32_t subop) {
  const auto slot = static_cast<std::size_t>(core);
  if (subop == 0) {
    world->output[slot] = world->output[slot] + world->input[slot];
  } else {
    model::expect(world->output[1 - slot] == world->input[1 - slot], "the step before is done");
    world->after[slot] = world->after[slot] + 1;
  }
  return 0;
}

void launch_steps(int value) {
  for (std::size_t core = 0; core < 2; ++core) {
    world->input[core] = value;
    world->output[core] = world->after[core] = 0;
  }
  const sk::LaunchStatus status = sk::Pool::instance().launch(sk::Job{.single = step_entry, .steps = 2}, 2);
  model::expect(status == sk::LaunchStatus::kDone, "the launch is done");
  for (std::size_t core = 0; core < 2; ++core) {
    model::expect(world->output[core] == value && world->after[core] == 1, "every part has been done once");
  }
}

// The last launch is one that waits for the worker, as in `parts_apart`.
void steps() {
  launch_steps(3);
  launch(2, 5);
}

// Whoever comes late to the first launch finds the second one.
void steps_twice() {
  launch_steps(1);
  launch_steps(2);
  launch(2, 5);
}

std::int32_t fail_step(SkContext*, std::int32_t core, std::int32_t subop) {
  model::expect(subop == 0, "nothing comes behind a step that failed");
  return core;
}

void steps_fail() {
  const sk::LaunchStatus status = sk::Pool::instance().launch(sk::Job{.single = fail_step, .steps = 2}, 2);
  model::expect(status == sk::LaunchStatus::kEntryCode, "the code of a part arrives");
  launch(2, 3);
}

std::int32_t nothing(SkContext*, std::int32_t) { return 0; }

void two_callers() {
  const auto call = [] {
    const sk::LaunchStatus status = sk::Pool::instance().launch(sk::Job{.entry = nothing}, 2);
    model::expect(status == sk::LaunchStatus::kDone, "the launch is done");
  };
  const int other = model::start(call, false);
  call();
  model::join(other, std::source_location::current());
}

void impatient_caller() {
  const auto call = [](bool patient) {
    const sk::LaunchStatus status = sk::Pool::instance().launch(sk::Job{.entry = nothing}, 2, {}, patient);
    model::expect(status == sk::LaunchStatus::kDone || (!patient && status == sk::LaunchStatus::kBusy), "done or busy");
  };
  const int other = model::start([&] { call(true); }, false);
  call(false);
  model::join(other, std::source_location::current());
}

// ---- kernels: what generated code does, in C++

bool wait_for(SkContext* ctx, std::int32_t core, std::int32_t producer, std::uint64_t threshold) {
  const sk::AtomicRef<std::uint64_t> counter(ctx->flags[producer * SK_FLAG_STRIDE]);
  while (counter.load(kAcquire) < threshold) {
    if (ctx->wait_slow(ctx, core, producer, threshold, 0) != 0) return false;
    sk::relax();
  }
  return true;
}

// Core 1 makes a value, sets; core 0 waits for it, uses it, sets; core 1 waits before it ends.
std::int32_t exchange(SkContext* ctx, std::int32_t core) {
  const std::uint64_t threshold = ctx->epoch + 1;
  const auto set = [&] { sk::AtomicRef<std::uint64_t>(ctx->flags[core * SK_FLAG_STRIDE]).store(threshold, kRelease); };
  if (core == 1) {
    world->input[1] = static_cast<int>(threshold);
    if (world->hang) {
      model::start([] { time_now.store(1'000'000, kRelaxed); }, true);  // time passes
    } else {
      set();
    }
    return wait_for(ctx, core, 0, threshold) ? 0 : 1;
  }
  if (!wait_for(ctx, core, 1, threshold)) return 1;
  world->output[0] = world->input[1];
  if (ctx->host_call(ctx, 0) != 0) return 1;
  set();
  return 0;
}

std::int32_t host_call(void*, std::int32_t) {
  if (world->forks) world->child = sk::fork();
  world->forks = false;
  return 0;
}

sk::Kernel& make_kernel() {
  sk::KernelConfig config;
  config.entry = exchange;
  config.cores = 2;
  config.arena_bytes = 64;
  config.sets = {1, 1};
  world->kernels.push_back(sk::Kernel::create(std::move(config)));
  return *world->kernels.back();
}

sk::RunOptions run_options(bool watchdog) {
  sk::RunOptions options;
  options.hooks.host_call = host_call;
  options.watchdog_ns = watchdog ? 1000 : 0;
  return options;
}

void run(sk::Kernel& kernel, int launch) {
  model::expect(kernel.run({}, run_options(false)) == sk::AbortReason::kNone, "the run is done");
  model::expect(world->output[0] == launch, "the value of this launch has arrived");
}

void kernel_run() { run(make_kernel(), 1); }

void kernel_runs() {
  sk::check_counters_option().store(true, kRelaxed);
  sk::Kernel& kernel = make_kernel();
  run(kernel, 1);
  run(kernel, 2);
}

// One run hangs until its deadline; the next is as if nothing had been.
void kernel_hangs() {
  sk::Kernel& kernel = make_kernel();
  world->hang = true;
  const sk::AbortReason reason = kernel.run({}, run_options(true));
  model::expect(reason == sk::AbortReason::kWatchdog || reason == sk::AbortReason::kDeadlock, "it ends");
  const sk::AbortInfo info = kernel.last_abort();
  model::expect(info.threshold == 1 && info.actual == 0, "the report tells the counter");
  world->hang = false;
  run(kernel, 1);
}

void kernel_closed() {
  sk::Kernel& kernel = make_kernel();
  static sk::Atomic<bool> closed{false};
  const auto call = [&kernel] {
    sk::RunOptions options = run_options(false);
    options.closed = &closed;
    const sk::AbortReason reason = kernel.run({}, options);
    model::expect(reason == sk::AbortReason::kNone || reason == sk::AbortReason::kClosed, "done or refused");
  };
  const int other = model::start(call, false);
  closed.store(true, kRelaxed);
  static_cast<void>(kernel.last_abort());
  world->output[0] = 0;  // nobody runs it any more
  model::join(other, std::source_location::current());
}

// Core 1 finds data that its kernel refuses: what says why runs on the caller's thread, when core 1 has left.
std::int32_t refuse(SkContext* ctx, std::int32_t core) {
  if (core == 0) return 0;
  world->input[1] = 7;
  return ctx->host_call(ctx, 3);
}

std::int32_t tell(void*, std::int32_t subop) {
  model::expect(model::this_thread() == 0 && subop == 3, "the caller's thread is told of the sub-operator");
  world->output[0] = world->input[1];
  return 1;
}

void kernel_refuses() {
  sk::KernelConfig config;
  config.entry = refuse;
  config.cores = 2;
  world->kernels.push_back(sk::Kernel::create(std::move(config)));
  sk::RunOptions options;
  options.hooks.host_call = tell;
  const sk::AbortReason reason = world->kernels.back()->run({}, options);
  model::expect(reason == sk::AbortReason::kHostCall && world->output[0] == 7, "it was told once");
}

// ---- memory

// Whoever has a block has it alone, and finds what the one before left in it.
void borrow(std::size_t bytes) {
  sk::AlignedBuffer* block = world->workspace->borrow(bytes);
  model::expect(block->size() >= bytes, "it is large enough");
  sk::Plain<int>& lent = world->lent[block];
  lent = lent + 1;
  world->workspace->give_back(block);
}

void borrow_beside(std::size_t bytes) {
  world->workspace = std::make_unique<sk::Workspace>();
  borrow(8);
  const int other = model::start([=] { borrow(bytes); }, false);
  borrow(8);
  model::join(other, std::source_location::current());
  const std::size_t blocks = world->lent.size();
  int times = 0;
  for (auto& [block, lent] : world->lent) times += lent;
  model::expect(blocks <= 2 && times == 3, "as many as there are borrowers");
  const std::size_t kept = world->workspace->bytes();
  model::expect(bytes <= kept && kept <= 2 * bytes, "none is lost");
}

void two_borrowers() { borrow_beside(8); }

void borrower_of_more() { borrow_beside(32); }

// ---- fork

// While one thread launches, another forks: parent and child both launch.
void fork_beside_launch() {
  const auto call = [] {
    const sk::LaunchStatus status = sk::Pool::instance().launch(sk::Job{.entry = nothing}, 2);
    model::expect(status == sk::LaunchStatus::kDone, "the launch is done");
  };
  call();
  const int other = model::start(call, false);
  const bool child = sk::fork();
  call();
  if (!child) model::join(other, std::source_location::current());
}

// A host call forks inside a launch: in the child that run ends as forked, and the next is whole.
void fork_inside_run() {
  sk::Kernel& kernel = make_kernel();
  run(kernel, 1);
  world->forks = true;
  const sk::AbortReason reason = kernel.run({}, run_options(false));
  model::expect(reason == (world->child ? sk::AbortReason::kForked : sk::AbortReason::kNone), "ended, or done");
  run(kernel, world->child ? 1 : 3);
}

struct Program {
  const char* name;
  void (*body)();
  bool small = true;       // small enough for all its executions; else some are walked
  bool membarrier = true;  // the system has it
  bool dozes = false;      // sleeping threads wake for no reason
};

constexpr Program kPrograms[] = {
    {.name = "one_launch", .body = one_launch, .dozes = true},
    {.name = "one_launch_fence", .body = one_launch, .membarrier = false, .dozes = true},
    {.name = "two_launches", .body = two_launches, .small = false},
    {.name = "two_launches_fence", .body = two_launches, .membarrier = false},
    {.name = "entry_code", .body = entry_code, .small = false},
    {.name = "kernel_run", .body = kernel_run},
    {.name = "kernel_refuses", .body = kernel_refuses},
    {.name = "kernel_closed", .body = kernel_closed, .small = false},
    {.name = "two_borrowers", .body = two_borrowers},
    {.name = "borrower_of_more", .body = borrower_of_more},
    {.name = "parts_apart", .body = parts_apart, .small = false},
    {.name = "parts_apart_mixed", .body = parts_apart_mixed, .small = false},
    {.name = "steps", .body = steps, .small = false},
    {.name = "steps_twice", .body = steps_twice, .small = false},
    {.name = "steps_fail", .body = steps_fail, .small = false},
    {.name = "impatient_caller", .body = impatient_caller, .small = false},
    {.name = "fewer_cores", .body = fewer_cores, .small = false},
    {.name = "two_callers", .body = two_callers, .small = false},
    {.name = "kernel_runs", .body = kernel_runs, .small = false},
    {.name = "kernel_hangs", .body = kernel_hangs, .small = false},
    {.name = "fork_beside_launch", .body = fork_beside_launch, .small = false},
    {.name = "fork_inside_run", .body = fork_inside_run, .small = false},
};

// All executions, or that many walks.
model::Result explore(const Program& program, long walks, unsigned seed) {
  sk::has_barrier_in_all_threads = program.membarrier;
  model::Limits limits;
  limits.dozes = program.dozes;
  if (walks > 0) {
    limits.walks = true;
    limits.executions = walks;
    limits.seed = seed;
  }
  return model::explore(
      [&] {
        start_world();
        program.body();
      },
      limits, end_world);
}

void print(const model::Result& result) {
  std::printf("%ld executions, %ld cut as equivalent, %s\n", result.executions, result.pruned,
              result.exhausted ? "all there are" : "not all");
  if (result.fault == model::Fault::kNone) return;
  std::printf("%s\n", result.what.c_str());
  for (const std::string& line : result.trace) std::printf("  %s\n", line.c_str());
}

}  // namespace

int main(int count, char** arguments) {
  const std::string command = count > 1 ? arguments[1] : "";
  if (command == "list") {
    for (const Program& program : kPrograms) std::printf("%s %s\n", program.name, program.small ? "all" : "walks");
    return 0;
  }
  const long walks = count > 3 ? std::atol(arguments[3]) : 0;
  const unsigned seed = count > 4 ? static_cast<unsigned>(std::atol(arguments[4])) : 1;
  for (const Program& program : kPrograms) {
    if (count < 3 || std::strcmp(program.name, arguments[2]) != 0) continue;
    const model::Result result = explore(program, walks, seed);
    if (command == "run") {
      print(result);
      return result.fault == model::Fault::kNone && (walks > 0 || result.exhausted) ? 0 : 1;
    }
    const std::set<std::string> left_out(arguments + std::min(count, 5), arguments + count);
    const auto sites = static_cast<int>(model::sites().size());
    for (int site = 0; site < sites; ++site) {
      const std::string& where = model::sites()[static_cast<std::size_t>(site)];
      if (left_out.contains(where)) continue;
      model::weaken(site);
      const model::Result weaker = explore(program, walks, seed);
      std::printf("%s: %s\n", where.c_str(), weaker.fault == model::Fault::kNone ? "not missed" : weaker.what.c_str());
    }
    return 0;
  }
  std::fprintf(stderr, "runtime list | run NAME [WALKS [SEED]] | weaken NAME [WALKS [SEED [SITE...]]]\n");
  return 2;
}

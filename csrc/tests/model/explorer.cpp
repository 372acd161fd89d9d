#include "tests/model/explorer.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>

#include "tests/model/fiber.h"

namespace model {

namespace {

struct Message {
  std::uint64_t value = 0;
  View view;
  std::array<std::uint32_t, kMostThreads> order{};  // clock of dependence of the step that stored it
};

struct Location {
  std::vector<Message> history;  // of atomics
  int writer = -1;               // last plain or atomic writer and its clock
  std::uint32_t writer_clock = 0;
  std::array<std::uint32_t, kMostThreads> readers{};  // plain reads: the reader's clock
  int holder = -1;                                    // of mutexes
  View released;                                      // by the last unlock
};

enum class Kind : std::uint8_t {
  kBegin,
  kLoad,
  kStore,
  kUpdate,
  kFence,
  kFenceAll,
  kLock,
  kTryLock,
  kUnlock,
  kFutexWait,
  kFutexSleep,
  kFutexWake,
  kPause,
  kPlain,
  kJoin,
  kFork,
};

constexpr int kFenceLocation = kMostLocations;  // seq_cst fences meet there

// A set of threads or of locations. Sets of small numbers are what the search spends its time on.
using Set = std::uint64_t;
static_assert(kFenceLocation < 64 && kMostThreads < 64);

constexpr Set only(int i) { return Set{1} << i; }
constexpr bool contains(Set set, int i) { return (set & only(i)) != 0; }
constexpr int least(Set set) { return std::countr_zero(set); }
constexpr Set without_least(Set set) { return set & (set - 1); }

struct Op {
  Kind kind = Kind::kBegin;
  Set locations = 0;
  bool writes = false;
  bool all = false;  // depends on every step of every thread
  int other = -1;    // thread joined
  std::source_location where;
};

bool dependent(const Op& a, const Op& b) {
  if (a.all || b.all) return true;
  if (!a.writes && !b.writes) return false;
  return (a.locations & b.locations) != 0;
}

bool is_load(const Op& op) { return op.kind == Kind::kLoad || op.kind == Kind::kPause; }

// Messages, at most one of each location.
struct Stamps {
  Set locations = 0;
  std::array<std::uint16_t, kMostLocations> of{};  // of these locations; others hold anything

  void set(int location, std::uint16_t stamp) {
    locations |= only(location);
    of[static_cast<std::size_t>(location)] = stamp;
  }
};

struct Thread {
  std::function<void()> body;
  bool daemon = false;
  bool finished = false;
  bool gone = false;    // in the child of a fork
  bool asleep = false;  // on a futex
  bool dozed = false;   // has woken for no reason
  std::uint32_t bits = 0;
  int word = -1;
  Op next;
  View view;             // may see, happened before
  View acquired;         // joined by an acquire fence
  View released;         // attached by relaxed stores: as of the last release fence
  Stamps taken;          // the last messages taken
  Stamps read;           // the same, of loads since the last pause
  Stamps awaited;        // news of one of these end the pause
  bool advanced = true;  // since the last pause a load took news
  int only_news = -1;    // the one location that ended the last pause
  Context context;
  std::array<std::uint32_t, kMostThreads> order{};  // steps that come before the next one in every equivalent order
};

struct Step {  // what was done, and what else may be tried there
  bool scheduling = false;
  // scheduling
  int thread = -1;
  Op op;
  std::array<std::uint32_t, kMostThreads> order{};  // clock of dependence at this step
  std::array<std::uint32_t, kMostThreads> noted{};  // the same, but for the message that it takes
  std::uint32_t index = 0;                          // of the thread's steps
  Set enabled = 0, backtrack = 0, done = 0, sleep = 0;
  // data
  int taken = 0;
  int count = 0;
};

class Explorer {
 public:
  Result run(const std::function<void()>& setup, const Limits& limits, const std::function<void()>& cleanup);
  bool running() const { return running_; }

  // -- steps of fibers
  void step(const Op& op);
  int choose(int count);
  int start(std::function<void()> body, bool daemon);
  [[noreturn]] void fail(Fault fault, const std::string& what, const std::source_location& where);
  [[noreturn]] void prune();

  // Those of these locations that have newer messages.
  Set news(const Stamps& taken) const {
    Set found = 0;
    for (Set left = taken.locations; left != 0; left = without_least(left)) {
      const auto location = static_cast<std::size_t>(least(left));
      if (locations_[location].history.size() > taken.of[location] + 1u) found |= left & -left;
    }
    return found;
  }

  Thread& self() { return threads_[static_cast<std::size_t>(current_)]; }
  Location& at(int location) { return locations_[static_cast<std::size_t>(location)]; }

  std::vector<Thread> threads_;
  std::vector<Location> locations_;
  int current_ = 0;
  int random(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  std::minstd_rand random_;
  View fences_;  // of all seq_cst fences so far
  Limits limits_;

 private:
  enum class End { kComplete, kPruned, kFault };

  End execute(const std::function<void()>& setup);
  bool enabled(const Thread& thread) const;
  void find_races(int thread);
  void note(int thread);
  bool backtrack();
  void resume(int thread);
  static void fiber_main();
  std::string describe(int thread, const Op& op) const;

  std::vector<Step> trail_;
  std::size_t depth_ = 0;
  std::vector<std::size_t> scheduling_;  // of the trail, so far in this execution
  std::array<std::uint32_t, kMostThreads> taken_{};
  Result result_;
  bool faulty_ = false;
  bool running_ = false;
  bool pruning_ = false;
  Context main_;
  std::vector<std::unique_ptr<char[]>> stacks_;
  std::vector<std::pair<int, Op>> log_;
};

Explorer* explorer = nullptr;
std::uint32_t executions = 0;

std::vector<std::string> all_sites;
std::map<std::tuple<std::string, unsigned, unsigned, int>, int> site_numbers;
std::map<std::tuple<const char*, unsigned, unsigned, int>, int> site_numbers_by_address;  // the same, found faster
int weak_site = -1;

const char* name(Kind kind) {
  constexpr const char* kNames[] = {"begin", "load",     "store",  "update",     "fence", "membarrier",
                                    "lock",  "try_lock", "unlock", "futex wait", "sleep", "futex wake",
                                    "pause", "plain",    "join",   "fork"};
  return kNames[static_cast<int>(kind)];
}

std::string place(const std::source_location& where) {
  std::string file = where.file_name();
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line());
}

// Whether this use of an ordering site acts as the weaker one.
bool weak(const std::source_location& where, int part, const char* what) {
  const auto fast = std::make_tuple(where.file_name(), where.line(), where.column(), part);
  if (const auto known = site_numbers_by_address.find(fast); known != site_numbers_by_address.end()) {
    return known->second == weak_site;
  }
  const auto key = std::make_tuple(std::string(where.file_name()), where.line(), where.column(), part);
  const auto [entry, fresh] = site_numbers.try_emplace(key, static_cast<int>(all_sites.size()));
  if (fresh) all_sites.push_back(place(where) + " " + what);
  site_numbers_by_address.emplace(fast, entry->second);
  return entry->second == weak_site;
}

void join_order(std::array<std::uint32_t, kMostThreads>& a, const std::array<std::uint32_t, kMostThreads>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::max(a[i], b[i]);
}

std::string Explorer::describe(int thread, const Op& op) const {
  std::string text = "thread " + std::to_string(thread) + ": " + name(op.kind);
  for (Set left = op.locations & ~only(kFenceLocation); left != 0; left = without_least(left)) {
    text += " #" + std::to_string(least(left));
  }
  return op.kind == Kind::kBegin ? text : text + " at " + place(op.where);
}

bool Explorer::enabled(const Thread& thread) const {
  if (thread.finished || thread.gone) return false;
  const Op& op = thread.next;
  switch (op.kind) {
    case Kind::kLock:
      return locations_[static_cast<std::size_t>(least(op.locations))].holder < 0;
    case Kind::kFutexSleep:
      return !thread.asleep;
    case Kind::kJoin:
      return threads_[static_cast<std::size_t>(op.other)].finished;
    case Kind::kPause:
      return news(thread.awaited) != 0;
    default:
      return true;
  }
}

// Where the thread's next step might as well have come earlier, both orders are to be tried.
void Explorer::find_races(int thread) {
  const Thread& t = threads_[static_cast<std::size_t>(thread)];
  if (t.finished || t.gone) return;
  for (auto i = scheduling_.rbegin(); i != scheduling_.rend(); ++i) {
    Step& before = trail_[*i];
    if (before.thread == thread || !dependent(before.op, t.next)) continue;
    if (t.next.kind == Kind::kLock && before.op.kind == Kind::kUnlock) continue;  // never possible at once
    // What a load would have found before that store it may take now, as an older message.
    if (is_load(t.next) && !before.op.all) continue;
    if (before.index <= t.order[static_cast<std::size_t>(before.thread)]) continue;
    before.backtrack = contains(before.enabled, thread) ? before.backtrack | only(thread) : before.enabled;
    return;
  }
}

// The step of the thread joins the order of all before it that it depends on. Where the trail goes on, that is known
// from the execution before.
void Explorer::note(int thread) {
  Thread& t = threads_[static_cast<std::size_t>(thread)];
  Step& step = trail_[scheduling_.back()];
  if (depth_ < trail_.size()) {
    t.order = step.noted;
    return;
  }
  for (std::size_t i = 0; i + 1 < scheduling_.size(); ++i) {
    const Step& before = trail_[scheduling_[i]];
    if (is_load(step.op) && !before.op.all) continue;  // it comes behind the store that it takes alone: see `take`
    if (before.thread != thread && dependent(before.op, step.op)) join_order(t.order, before.order);
  }
  t.order[static_cast<std::size_t>(thread)] = step.index;
  step.noted = t.order;
}

void Explorer::fiber_main() {
  Explorer& e = *explorer;
  const int thread = e.current_;
  e.threads_[static_cast<std::size_t>(thread)].body();
  e.threads_[static_cast<std::size_t>(thread)].finished = true;
  switch_to(e.threads_[static_cast<std::size_t>(thread)].context, e.main_);
}

void Explorer::resume(int thread) {
  current_ = thread;
  switch_to(main_, threads_[static_cast<std::size_t>(thread)].context);
}

void Explorer::step(const Op& op) {
  Thread& t = self();
  t.next = op;
  switch_to(t.context, main_);
  Thread& again = self();  // threads may have been added meanwhile
  ++again.view.clock[static_cast<std::size_t>(current_)];
}

int Explorer::choose(int count) {
  if (count == 1) return 0;
  if (limits_.walks) return random(count);
  if (depth_ == trail_.size()) {
    Step fresh;
    fresh.count = count;
    trail_.push_back(fresh);
  }
  Step& here = trail_[depth_++];
  if (here.scheduling || here.count != count) {
    std::fprintf(stderr, "model: the program is not repeatable\n");
    std::abort();
  }
  return here.taken;
}

int Explorer::start(std::function<void()> body, bool daemon) {
  const int index = static_cast<int>(threads_.size());
  if (index == kMostThreads) {
    std::fprintf(stderr, "model: too many threads\n");
    std::abort();
  }
  Thread fresh;
  fresh.body = std::move(body);
  fresh.daemon = daemon;
  if (index > 0) {
    fresh.view = fresh.released = self().view;
    fresh.order = self().order;
  }
  fresh.view.clock[static_cast<std::size_t>(index)] = 1;
  threads_.push_back(std::move(fresh));
  if (stacks_.size() <= static_cast<std::size_t>(index)) stacks_.push_back(std::make_unique<char[]>(kStackBytes));
  Thread& t = threads_.back();
  t.next.kind = Kind::kBegin;
  prepare(t.context, stacks_[static_cast<std::size_t>(index)].get(), kStackBytes, fiber_main);
  return index;
}

void Explorer::fail(Fault fault, const std::string& what, const std::source_location& where) {
  result_.fault = fault;
  result_.what = what + " (" + place(where) + ")";
  faulty_ = true;
  switch_to(self().context, main_);
  std::abort();  // never resumed
}

// This execution is like one that is tried anyway.
void Explorer::prune() {
  pruning_ = true;
  switch_to(self().context, main_);
  std::abort();  // never resumed
}

Explorer::End Explorer::execute(const std::function<void()>& setup) {
  ++executions;
  threads_.clear();
  threads_.reserve(kMostThreads);
  locations_.clear();
  fences_ = View{};
  depth_ = 0;
  scheduling_.clear();
  taken_.fill(0);
  log_.clear();
  current_ = 0;
  start(setup, false);
  Set sleep = 0;
  for (;;) {
    const int count = static_cast<int>(threads_.size());
    // Where the trail goes on, this was done in the execution before, up to here the same.
    for (int i = 0; i < count && !limits_.walks && depth_ == trail_.size(); ++i) find_races(i);
    if (std::all_of(threads_.begin(), threads_.end(),
                    [](const Thread& t) { return t.daemon || t.finished || t.gone; })) {
      return End::kComplete;
    }
    Set able = 0;
    for (int i = 0; i < count; ++i) {
      if (enabled(threads_[static_cast<std::size_t>(i)])) able |= only(i);
    }
    if (able == 0) {
      for (int i = 0; i < count; ++i) {
        const Thread& t = threads_[static_cast<std::size_t>(i)];
        if (t.finished || t.gone || t.daemon) continue;
        result_.fault = Fault::kDeadlock;
        result_.what = "nobody can go on; " + describe(i, t.next);
        return End::kFault;
      }
      return End::kComplete;
    }
    if (log_.size() > static_cast<std::size_t>(limits_.steps)) {
      result_.fault = Fault::kEndless;
      result_.what = "an execution does not end";
      return End::kFault;
    }
    if (limits_.walks) {
      Set left = able;
      for (int skipped = random(std::popcount(able)); skipped > 0; --skipped) left = without_least(left);
      int chosen = least(left);
      // Mostly on with the same thread, so that some walk leaves another far behind.
      if (contains(able, current_) && random(4) != 0) chosen = current_;
      log_.emplace_back(chosen, threads_[static_cast<std::size_t>(chosen)].next);
      resume(chosen);
      if (faulty_) return End::kFault;
      if (std::exchange(pruning_, false)) return End::kPruned;
      continue;
    }
    if (depth_ == trail_.size()) {
      Step fresh;
      fresh.scheduling = true;
      fresh.enabled = able;
      fresh.sleep = sleep;
      if ((able & ~sleep) == 0) return End::kPruned;
      fresh.thread = least(able & ~sleep);
      fresh.backtrack = only(fresh.thread);
      trail_.push_back(fresh);
    }
    Step& here = trail_[depth_];
    if (!here.scheduling || here.enabled != able) {
      std::fprintf(stderr, "model: the program is not repeatable\n");
      std::abort();
    }
    scheduling_.push_back(depth_++);
    const int chosen = here.thread;
    here.op = threads_[static_cast<std::size_t>(chosen)].next;
    here.index = ++taken_[static_cast<std::size_t>(chosen)];
    // Who was tried here before, or slept already, sleeps on until a step that it depends on.
    sleep = 0;
    for (Set left = (here.sleep | here.done) & ~only(chosen); left != 0; left = without_least(left)) {
      if (!dependent(threads_[static_cast<std::size_t>(least(left))].next, here.op)) sleep |= only(least(left));
    }
    note(chosen);
    log_.emplace_back(chosen, here.op);
    const std::size_t scheduled = scheduling_.back();
    resume(chosen);
    trail_[scheduled].order = threads_[static_cast<std::size_t>(chosen)].order;  // with what it took
    if (faulty_) return End::kFault;
    if (std::exchange(pruning_, false)) return End::kPruned;
  }
}

// Moves to the next execution; false where all were had.
bool Explorer::backtrack() {
  while (!trail_.empty()) {
    Step& last = trail_.back();
    if (!last.scheduling) {
      if (++last.taken < last.count) return true;
    } else {
      last.done |= only(last.thread);
      if (const Set left = last.backtrack & ~last.done & ~last.sleep; left != 0) {
        last.thread = least(left);
        return true;
      }
    }
    trail_.pop_back();
  }
  return false;
}

Result Explorer::run(const std::function<void()>& setup, const Limits& limits, const std::function<void()>& cleanup) {
  limits_ = limits;
  random_.seed(limits.seed);
  explorer = this;
  for (;;) {
    running_ = true;
    const End end = execute(setup);
    running_ = false;
    if (cleanup != nullptr) cleanup();
    if (end == End::kFault) {
      for (const auto& [thread, op] : log_) result_.trace.push_back(describe(thread, op));
      break;
    }
    ++(end == End::kComplete ? result_.executions : result_.pruned);
    if (!limits_.walks && !backtrack()) {
      result_.exhausted = true;
      break;
    }
    if (result_.executions + result_.pruned >= limits_.executions) break;
  }
  explorer = nullptr;
  return result_;
}

// ---- memory

// The thread's steps up to here are told apart from those behind it.
void tick() { ++explorer->self().view.clock[static_cast<std::size_t>(explorer->current_)]; }

std::uint32_t clock_of(int thread) { return explorer->self().view.clock[static_cast<std::size_t>(thread)]; }

// Appends to the history of a location what this thread stores; `above`: the message that an update took.
void append(int location, std::uint64_t value, bool release, const Message* above) {
  Thread& t = explorer->self();
  Location& l = explorer->at(location);
  const auto stamp = static_cast<std::uint16_t>(l.history.size());
  t.view.seen[static_cast<std::size_t>(location)] = stamp;
  Message fresh{value, release ? t.view : t.released, t.order};
  fresh.view.seen[static_cast<std::size_t>(location)] = stamp;
  if (above != nullptr) fresh.view.join(above->view);
  l.history.push_back(fresh);
  l.writer = explorer->current_;
  l.writer_clock = clock_of(l.writer);
  tick();
}

void take(int location, std::size_t stamp, bool acquire) {
  Thread& t = explorer->self();
  Location& l = explorer->at(location);
  const auto index = static_cast<std::size_t>(location);
  if (!contains(t.taken.locations, location) || t.taken.of[index] < stamp) t.advanced = true;
  t.view.seen[index] = static_cast<std::uint16_t>(stamp);
  t.taken.set(location, static_cast<std::uint16_t>(stamp));
  t.read.set(location, static_cast<std::uint16_t>(stamp));
  (acquire ? t.view : t.acquired).join(l.history[stamp].view);
  join_order(t.order, l.history[stamp].order);
}

void fence_of(Thread& t) {
  t.view.join(t.acquired);
  t.view.join(explorer->fences_);
  explorer->fences_ = t.view;
  t.released = t.view;
}

bool acquires(Order order) { return order == Order::kAcquire || order == Order::kAcqRel; }
bool releases(Order order) { return order == Order::kRelease || order == Order::kAcqRel; }

}  // namespace

void View::join(const View& other) {
  for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = std::max(seen[i], other.seen[i]);
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other.clock[i]);
}

Result explore(const std::function<void()>& setup, const Limits& limits, const std::function<void()>& cleanup) {
  return Explorer().run(setup, limits, cleanup);
}

std::uint32_t execution() noexcept { return executions; }

bool running() noexcept { return explorer->running(); }

std::uint64_t newest(int location) { return explorer->at(location).history.back().value; }

int new_location(std::uint64_t initial) {
  const auto index = explorer->locations_.size();
  if (index == kMostLocations) {
    std::fprintf(stderr, "model: too many locations\n");
    std::abort();
  }
  Location fresh;
  fresh.history.push_back(Message{initial, View{}, {}});
  explorer->locations_.push_back(std::move(fresh));
  return static_cast<int>(index);
}

std::uint64_t load(int location, Order order, std::source_location where) {
  const bool acquire = acquires(order) && !weak(where, 0, "acquire");
  explorer->step(Op{.kind = Kind::kLoad, .locations = only(location), .where = where});
  Thread& t = explorer->self();
  const Location& l = explorer->at(location);
  const std::size_t newest = l.history.size() - 1;
  std::size_t oldest = t.view.seen[static_cast<std::size_t>(location)];
  if (t.only_news == location) {  // the pause ended for this
    oldest = std::max<std::size_t>(oldest, t.taken.of[static_cast<std::size_t>(location)] + 1u);
    t.only_news = -1;
  }
  const auto back = explorer->choose(static_cast<int>(newest - oldest) + 1);
  const std::size_t stamp = newest - static_cast<std::size_t>(back);
  take(location, stamp, acquire);
  return explorer->at(location).history[stamp].value;
}

void store(int location, std::uint64_t value, Order order, std::source_location where) {
  const bool release = releases(order) && !weak(where, 1, "release");
  explorer->step(Op{.kind = Kind::kStore, .locations = only(location), .writes = true, .where = where});
  const Location& l = explorer->at(location);
  if (l.writer >= 0 && l.writer_clock > clock_of(l.writer) && l.history.back().value != value) {
    explorer->fail(Fault::kUnordered, "two stores to one location, neither before the other", where);
  }
  append(location, value, release, nullptr);
}

std::uint64_t update(int location, const std::function<std::uint64_t(std::uint64_t)>& change, Order order,
                     std::source_location where) {
  const bool acquire = acquires(order) && !weak(where, 0, "acquire");
  const bool release = releases(order) && !weak(where, 1, "release");
  explorer->step(Op{.kind = Kind::kUpdate, .locations = only(location), .writes = true, .where = where});
  const std::size_t newest = explorer->at(location).history.size() - 1;
  take(location, newest, acquire);
  const Message old = explorer->at(location).history[newest];
  append(location, change(old.value), release, &old);
  return old.value;
}

bool exchange_if(int location, std::uint64_t& expected, std::uint64_t desired, Order order,
                 std::source_location where) {
  const bool acquire = acquires(order) && !weak(where, 0, "acquire");
  const bool release = releases(order) && !weak(where, 1, "release");
  explorer->step(Op{.kind = Kind::kUpdate, .locations = only(location), .writes = true, .where = where});
  const std::size_t newest = explorer->at(location).history.size() - 1;
  const Message old = explorer->at(location).history[newest];
  take(location, newest, acquire);
  if (old.value != expected) {
    expected = old.value;
    return false;
  }
  append(location, desired, release, &old);
  return true;
}

void fence_seq_cst(std::source_location where) {
  if (weak(where, 2, "fence")) return;
  explorer->step(Op{.kind = Kind::kFence, .locations = only(kFenceLocation), .writes = true, .where = where});
  fence_of(explorer->self());
  tick();
}

void fence_all_threads(std::source_location where) {
  if (weak(where, 3, "barrier of all threads")) return;
  explorer->step(Op{.kind = Kind::kFenceAll, .writes = true, .all = true, .where = where});
  fence_of(explorer->self());
  for (Thread& t : explorer->threads_) fence_of(t);
  fence_of(explorer->self());
  tick();
}

void read_plain(int location, std::source_location where) {
  Location& l = explorer->at(location);
  const auto me = static_cast<std::size_t>(explorer->current_);
  if (l.writer >= 0 && l.writer_clock > clock_of(l.writer)) {
    explorer->fail(Fault::kRace, "plain data is read while it is written", where);
  }
  l.readers[me] = std::max(l.readers[me], explorer->self().view.clock[me]);
}

void write_plain(int location, std::source_location where) {
  read_plain(location, where);
  Location& l = explorer->at(location);
  for (int i = 0; i < kMostThreads; ++i) {
    if (l.readers[static_cast<std::size_t>(i)] > clock_of(i)) {
      explorer->fail(Fault::kRace, "plain data is written while it is read", where);
    }
  }
  l.writer = explorer->current_;
  l.writer_clock = clock_of(l.writer);
}

void lock(int mutex, std::source_location where) {
  explorer->step(Op{.kind = Kind::kLock, .locations = only(mutex), .writes = true, .where = where});
  Location& l = explorer->at(mutex);
  l.holder = explorer->current_;
  explorer->self().view.join(l.released);
}

bool try_lock(int mutex, std::source_location where) {
  explorer->step(Op{.kind = Kind::kTryLock, .locations = only(mutex), .writes = true, .where = where});
  Location& l = explorer->at(mutex);
  if (l.holder >= 0) return false;
  l.holder = explorer->current_;
  explorer->self().view.join(l.released);
  return true;
}

void unlock(int mutex, std::source_location where) {
  explorer->step(Op{.kind = Kind::kUnlock, .locations = only(mutex), .writes = true, .where = where});
  Location& l = explorer->at(mutex);
  if (l.holder != explorer->current_)
    explorer->fail(Fault::kWrong, "a mutex is unlocked by who does not hold it", where);
  l.holder = -1;
  l.released = explorer->self().view;
  tick();
}

void futex_wait(int location, std::uint32_t expected, std::uint32_t bits, std::source_location where) {
  explorer->step(Op{.kind = Kind::kFutexWait, .locations = only(location), .writes = true, .where = where});
  Thread& t = explorer->self();
  const auto& history = explorer->at(location).history;
  if (static_cast<std::uint32_t>(history.back().value) != expected) {
    t.view.seen[static_cast<std::size_t>(location)] = static_cast<std::uint16_t>(history.size() - 1);  // coherence
    return;
  }
  if (explorer->limits_.dozes && !t.dozed && explorer->choose(2) == 1) {
    t.dozed = true;
    return;
  }
  t.asleep = true;
  t.word = location;
  t.bits = bits;
  explorer->step(Op{.kind = Kind::kFutexSleep, .where = where});
}

void futex_wake(int location, std::uint32_t bits, std::source_location where) {
  explorer->step(Op{.kind = Kind::kFutexWake, .locations = only(location), .writes = true, .where = where});
  for (Thread& t : explorer->threads_) {
    if (!t.asleep || t.word != location || (t.bits & bits) == 0) continue;
    t.asleep = false;
    join_order(t.order, explorer->self().order);
  }
}

void pause(std::source_location where) {
  Thread& t = explorer->self();
  if (std::exchange(t.advanced, false)) {  // another round may tell what this one made of it
    t.read.locations = 0;
    t.only_news = -1;
    return;
  }
  if (explorer->news(t.read) != 0) explorer->prune();  // the round before, once more
  t.awaited = t.read;
  t.read.locations = 0;
  explorer->step(Op{.kind = Kind::kPause, .locations = t.awaited.locations, .where = where});
  Thread& again = explorer->self();
  const Set news = explorer->news(again.awaited);
  again.only_news = std::popcount(news) == 1 ? least(news) : -1;
  if (again.only_news < 0) return;
  const auto location = static_cast<std::size_t>(again.only_news);
  join_order(again.order, explorer->at(again.only_news).history[again.awaited.of[location] + 1u].order);
}

int choose(int count) { return explorer->choose(count); }

int start(std::function<void()> body, bool daemon) {
  const int thread = explorer->start(std::move(body), daemon);
  tick();
  return thread;
}

void join(int thread, std::source_location where) {
  explorer->step(Op{.kind = Kind::kJoin, .other = thread, .where = where});
  const Thread& other = explorer->threads_[static_cast<std::size_t>(thread)];
  explorer->self().view.join(other.view);
  join_order(explorer->self().order, other.order);
}

void become_forked_child(std::source_location where) {
  explorer->step(Op{.kind = Kind::kFork, .writes = true, .all = true, .where = where});
  Thread& me = explorer->self();
  for (Thread& t : explorer->threads_) {
    if (&t == &me) continue;
    me.view.join(t.view);
    t.gone = !t.finished;
  }
  for (std::size_t i = 0; i < explorer->locations_.size(); ++i) {
    me.view.seen[i] = static_cast<std::uint16_t>(explorer->locations_[i].history.size() - 1);
  }
  tick();
}

int this_thread() noexcept { return explorer->current_; }

void expect(bool right, const char* what, std::source_location where) {
  if (!right) explorer->fail(Fault::kWrong, what, where);
}

const std::vector<std::string>& sites() noexcept { return all_sites; }
void weaken(int site) noexcept { weak_site = site; }

}  // namespace model

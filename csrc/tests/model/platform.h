// What `runtime/platform.h` offers, on the threads and the memory of the explorer: the runtime's own sources, compiled
// with this in its place, are what is explored.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <source_location>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/model/explorer.h"

namespace sk {

using Where = std::source_location;

inline model::Order model_order(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return model::Order::kRelaxed;
    case std::memory_order_acquire:
      return model::Order::kAcquire;
    case std::memory_order_release:
      return model::Order::kRelease;
    case std::memory_order_acq_rel:
      return model::Order::kAcqRel;
    default:
      model::expect(false, "an access of this order is not modelled");
      return model::Order::kAcqRel;
  }
}

// The location of an object in this execution; made when it is first used there.
class Located {
 protected:
  template <class T>
  int location(const T& initial, bool atomic) const {
    if (execution_ != model::execution()) {
      std::uint64_t word = 0;
      if (atomic) std::memcpy(&word, &initial, sizeof initial < sizeof word ? sizeof initial : sizeof word);
      location_ = model::new_location(word);
      execution_ = model::execution();
    }
    return location_;
  }

 private:
  mutable std::uint32_t execution_ = 0;
  mutable int location_ = -1;
};

template <class T>
class Atomic : Located {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));

 public:
  Atomic(T initial = T{}) noexcept : initial_(initial) {}  // NOLINT: as std::atomic

  T load(std::memory_order order, Where where = Where::current()) const {
    if (!model::running()) return newest();
    return value(model::load(at(), model_order(order), where));
  }
  void store(T desired, std::memory_order order, Where where = Where::current()) {
    model::store(at(), word(desired), model_order(order), where);
  }
  T exchange(T desired, std::memory_order order, Where where = Where::current()) {
    return value(model::update(at(), [&](std::uint64_t) { return word(desired); }, model_order(order), where));
  }
  T fetch_add(T step, std::memory_order order, Where where = Where::current()) {
    const auto add = [&](std::uint64_t old) { return word(static_cast<T>(value(old) + step)); };
    return value(model::update(at(), add, model_order(order), where));
  }
  T fetch_sub(T step, std::memory_order order, Where where = Where::current()) {
    const auto subtract = [&](std::uint64_t old) { return word(static_cast<T>(value(old) - step)); };
    return value(model::update(at(), subtract, model_order(order), where));
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order order, Where where = Where::current()) {
    std::uint64_t old = word(expected);
    const bool done = model::exchange_if(at(), old, word(desired), model_order(order), where);
    expected = value(old);
    return done;
  }

  int at() const { return location(initial_, true); }
  // The newest value, outside the exploration.
  T newest() const { return value(model::newest(at())); }

 private:
  static std::uint64_t word(T value) {
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    return word;
  }
  static T value(std::uint64_t word) {
    T value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }

  T initial_;
};

// Words that are no objects of their own, by address.
template <class T>
class AtomicRef {
 public:
  explicit AtomicRef(T& word) : atomic_(found(word)) {}
  T load(std::memory_order order, Where where = Where::current()) const { return atomic_.load(order, where); }
  void store(T desired, std::memory_order order, Where where = Where::current()) const {
    atomic_.store(desired, order, where);
  }

 private:
  static Atomic<T>& found(T& word) {
    static std::map<T*, Atomic<T>> words;
    static std::uint32_t execution = 0;
    if (execution != model::execution()) words.clear();
    execution = model::execution();
    return words.try_emplace(&word, word).first->second;
  }
  Atomic<T>& atomic_;
};

template <class T>
class Plain : Located {
 public:
  Plain(T value = T{}) : value_(std::move(value)) {}  // NOLINT: in place of a T

  Plain& operator=(const T& value) {
    model::write_plain(location(value_, false), Where::current());
    value_ = value;
    return *this;
  }
  Plain& operator=(const Plain& other) { return *this = static_cast<T>(other); }
  operator T() const {  // NOLINT: in place of a T
    model::read_plain(location(value_, false), Where::current());
    return value_;
  }

 private:
  T value_;
};

class Mutex : Located {
 public:
  void lock(Where where = Where::current()) {
    if (model::running()) model::lock(location(0, false), where);
  }
  bool try_lock(Where where = Where::current()) { return model::try_lock(location(0, false), where); }
  void unlock(Where where = Where::current()) {
    if (model::running()) model::unlock(location(0, false), where);
  }
};

inline void fence_seq_cst(Where where = Where::current()) { model::fence_seq_cst(where); }
inline void relax(Where where = Where::current()) { model::pause(where); }
inline void yield() noexcept {}
inline void nap(std::int64_t) noexcept {}

// Spins as long as anything new comes, and may at any time have spun long enough.
class Spinning {
 public:
  Spinning(std::int64_t, bool) noexcept {}
  bool go_on(Where where = Where::current()) {
    if (model::choose(2) == 1) return false;
    model::pause(where);
    return true;
  }
};

// What it says is of no account: `Spinning` ends at any time, and who sleeps may or may not be woken.
class Patience {
 public:
  std::int64_t limit_ns(std::int64_t, std::int64_t) const noexcept { return 0; }
  bool worth_waking(std::int64_t, int, std::int64_t) const { return model::choose(2) == 1; }
  void calling() noexcept {}
  void called() noexcept {}
  static std::int64_t idle_since(std::int64_t) noexcept { return 0; }
  void woken(std::int64_t, std::int64_t) noexcept {}
};

inline bool has_barrier_in_all_threads = true;  // of the modelled system
inline bool prepare_barrier_in_all_threads() noexcept { return has_barrier_in_all_threads; }
inline void barrier_by_others() noexcept {}
inline bool barrier_in_all_threads(Where where = Where::current()) {
  model::fence_all_threads(where);
  return true;
}
inline void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected, std::uint32_t bits,
                       Where where = Where::current()) {
  model::futex_wait(word.at(), expected, bits, where);
}
inline void futex_wake(Atomic<std::uint32_t>& word, std::uint32_t bits, Where where = Where::current()) {
  model::futex_wake(word.at(), bits, where);
}

// No execution depends on who gives way, but for the time it takes.
class Courtesy {
 public:
  bool rest(Where where = Where::current()) {
    model::pause(where);
    return true;
  }
  bool give_way() noexcept { return false; }
  bool was_preempted() noexcept { return false; }
};

class Neighbours {
 public:
  bool disturb() const noexcept { return false; }
  bool stay() const noexcept { return false; }
  void rest() noexcept {}
  void note_late(std::uint64_t) noexcept {}
  void look_round(std::uint64_t, Courtesy&) noexcept {}
  void took_cpu() noexcept {}
};

using ThreadHandle = int;

inline bool start_thread(ThreadHandle& handle, const char*, void (*body)(void*) noexcept, void* argument) {
  handle = model::start([=] { body(argument); }, true);
  return true;
}
inline void set_affinity(ThreadHandle, const std::vector<int>&) noexcept {}
inline void set_own_affinity(const std::vector<int>&) noexcept {}
inline int current_cpu() noexcept { return -1; }

struct ForkHandlers {
  void (*before)() noexcept;
  void (*in_parent)() noexcept;
  void (*in_child)() noexcept;
};

inline std::vector<ForkHandlers>& fork_handlers() {
  static std::vector<ForkHandlers> handlers;
  return handlers;
}

inline void on_fork(void (*before)() noexcept, void (*in_parent)() noexcept, void (*in_child)() noexcept) {
  fork_handlers().push_back({before, in_parent, in_child});
}

// The thread goes on as the parent or as the child; true in the child.
inline bool fork(Where where = Where::current()) {
  const std::vector<ForkHandlers>& handlers = fork_handlers();
  for (auto i = handlers.rbegin(); i != handlers.rend(); ++i) {
    if (i->before != nullptr) i->before();
  }
  const bool child = model::choose(2) == 1;
  if (child) model::become_forked_child(where);
  for (const ForkHandlers& each : handlers) {
    if (auto* handler = child ? each.in_child : each.in_parent; handler != nullptr) handler();
  }
  return child;
}

inline void have_signal_stack() noexcept {}

struct ThreadState {
  bool inside_launch = false;
  bool has_signal_stack = true;
  Courtesy courtesy;
  std::vector<int>* own_affinity = nullptr;
};

inline ThreadState& thread_state() noexcept {
  static std::array<ThreadState, model::kMostThreads> states;
  static std::uint32_t execution = 0;
  if (execution != model::execution()) {
    for (ThreadState& state : states) state = ThreadState{};
  }
  execution = model::execution();
  return states[static_cast<std::size_t>(model::this_thread())];
}

}  // namespace sk

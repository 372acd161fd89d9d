// The explorer against what is known: for small programs all results that the memory model allows come up, and no
// other; races, hangs and unordered stores are found.
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "tests/model/platform.h"

namespace {

using sk::Atomic;
using Results = std::set<std::vector<std::uint64_t>>;

int wrong = 0;

void report(const std::string& name, bool right, const model::Result& result) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("%-34s %s  (%ld executions, %ld pruned)\n", name.c_str(), right ? "ok" : "WRONG", result.executions,
              result.pruned);
  if (right) return;
  ++wrong;
  std::printf("  %s\n", result.what.c_str());
  for (const std::string& line : result.trace) std::printf("    %s\n", line.c_str());
}

// Runs the threads' bodies; `seen` are what they write down. All of `expected` come up, nothing else does.
void allows(const std::string& name, const Results& expected,
            const std::function<void(std::vector<std::uint64_t>& seen)>& program) {
  Results found;
  const model::Result result = model::explore([&] {
    std::vector<std::uint64_t> seen;
    program(seen);
    found.insert(seen);
  });
  bool right = result.exhausted && result.fault == model::Fault::kNone && found == expected;
  report(name, right, result);
  if (right) return;
  for (const auto& values : found) {
    std::printf("    found");
    for (auto value : values) std::printf(" %lu", static_cast<unsigned long>(value));
    std::printf("%s\n", expected.contains(values) ? "" : " (not allowed)");
  }
}

void finds(const std::string& name, model::Fault fault, const std::function<void()>& program) {
  const model::Result result = model::explore(program);
  report(name, result.fault == fault && (fault != model::Fault::kNone || result.exhausted), result);
}

template <class... Bodies>
void run(Bodies... bodies) {
  std::vector<int> threads;
  (threads.push_back(model::start(bodies, false)), ...);
  for (int thread : threads) model::join(thread, std::source_location::current());
}

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

void store_buffering(bool fences, const Results& expected, const std::string& name) {
  allows(name, expected, [fences](auto& seen) {
    Atomic<std::uint32_t> x{0}, y{0};
    std::uint64_t a = 9, b = 9;
    run(
        [&] {
          x.store(1, kRelaxed);
          if (fences) sk::fence_seq_cst();
          a = y.load(kRelaxed);
        },
        [&] {
          y.store(1, kRelaxed);
          if (fences) sk::fence_seq_cst();
          b = x.load(kRelaxed);
        });
    seen = {a, b};
  });
}

void message_passing(std::memory_order store, std::memory_order load, const Results& expected,
                     const std::string& name) {
  allows(name, expected, [=](auto& seen) {
    Atomic<std::uint32_t> data{0}, flag{0};
    std::uint64_t a = 9, b = 9;
    run(
        [&] {
          data.store(1, kRelaxed);
          flag.store(1, store);
        },
        [&] {
          a = flag.load(load);
          b = data.load(kRelaxed);
        });
    seen = {a, b};
  });
}

}  // namespace

int main() {
  const Results all = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  const Results ordered = {{0, 0}, {0, 1}, {1, 1}};
  store_buffering(false, all, "store buffering");
  store_buffering(true, {{0, 1}, {1, 0}, {1, 1}}, "store buffering, fences");
  allows("store buffering, one membarrier", {{0, 1}, {1, 0}, {1, 1}}, [](auto& seen) {
    Atomic<std::uint32_t> x{0}, y{0};
    std::uint64_t a = 9, b = 9;
    run(
        [&] {
          x.store(1, kRelaxed);
          a = y.load(kRelaxed);
        },
        [&] {
          y.store(1, kRelaxed);
          sk::barrier_in_all_threads();
          b = x.load(kRelaxed);
        });
    seen = {a, b};
  });
  message_passing(kRelaxed, kRelaxed, all, "message passing, relaxed");
  message_passing(kRelease, kRelaxed, all, "message passing, no acquire");
  message_passing(kRelaxed, kAcquire, all, "message passing, no release");
  message_passing(kRelease, kAcquire, ordered, "message passing");
  allows("coherence of reads", {{0, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 2}}, [](auto& seen) {
    Atomic<std::uint32_t> x{0};
    std::uint64_t a = 9, b = 9;
    run(
        [&] {
          x.store(1, kRelaxed);
          x.store(2, kRelaxed);
        },
        [&] {
          a = x.load(kRelaxed);
          b = x.load(kRelaxed);
        });
    seen = {a, b};
  });
  for (bool fences : {false, true}) {
    Results expected;
    for (std::uint64_t bits = 0; bits < 16; ++bits) {
      const std::vector<std::uint64_t> values = {bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1};
      if (!fences || values != std::vector<std::uint64_t>{1, 0, 1, 0}) expected.insert(values);
    }
    allows(fences ? "independent reads, fences" : "independent reads", expected, [fences](auto& seen) {
      Atomic<std::uint32_t> x{0}, y{0};
      std::uint64_t a = 9, b = 9, c = 9, d = 9;
      run([&] { x.store(1, kRelease); }, [&] { y.store(1, kRelease); },
          [&] {
            a = x.load(kAcquire);
            if (fences) sk::fence_seq_cst();
            b = y.load(kAcquire);
          },
          [&] {
            c = y.load(kAcquire);
            if (fences) sk::fence_seq_cst();
            d = x.load(kAcquire);
          });
      seen = {a, b, c, d};
    });
  }
  allows("an update goes on with a release", {{0, 9}, {1, 9}, {2, 1}}, [](auto& seen) {
    Atomic<std::uint32_t> data{0}, flag{0};
    std::uint64_t a = 9, b = 9;
    run(
        [&] {
          data.store(1, kRelaxed);
          flag.store(1, kRelease);
        },
        [&] {
          std::uint32_t one = 1;
          flag.compare_exchange_strong(one, 2, kRelaxed);
        },
        [&] {
          a = flag.load(kAcquire);
          if (a == 2) b = data.load(kRelaxed);
        });
    seen = {a, b};
  });
  allows("two increments", {{2}}, [](auto& seen) {
    Atomic<std::uint32_t> x{0};
    run([&] { x.fetch_add(1, kRelaxed); }, [&] { x.fetch_add(1, kRelaxed); });
    seen = {x.load(kRelaxed)};
  });
  finds("plain data behind a flag", model::Fault::kNone, [] {
    sk::Plain<int> data{0};
    Atomic<std::uint32_t> flag{0};
    run(
        [&] {
          data = 1;
          flag.store(1, kRelease);
        },
        [&] {
          while (flag.load(kAcquire) == 0) sk::relax();
          model::expect(data == 1, "the data is there");
        });
  });
  finds("plain data behind a relaxed flag", model::Fault::kRace, [] {
    sk::Plain<int> data{0};
    Atomic<std::uint32_t> flag{0};
    run(
        [&] {
          data = 1;
          flag.store(1, kRelaxed);
        },
        [&] {
          while (flag.load(kAcquire) == 0) sk::relax();
          model::expect(data == 1, "the data is there");
        });
  });
  finds("plain data changed behind the flag", model::Fault::kRace, [] {
    sk::Plain<int> data{0};
    Atomic<std::uint32_t> flag{0};
    run(
        [&] {
          flag.store(1, kRelease);
          data = 1;
        },
        [&] {
          if (flag.load(kAcquire) == 1) model::expect(data <= 1, "some value");
        });
  });
  finds("a wait for nothing", model::Fault::kDeadlock, [] {
    Atomic<std::uint32_t> flag{0};
    run([&] {
      while (flag.load(kAcquire) == 0) sk::relax();
    });
  });
  finds("a mutex", model::Fault::kNone, [] {
    sk::Mutex mutex;
    sk::Plain<int> data{0};
    const auto add = [&] {
      mutex.lock();
      data = data + 1;
      mutex.unlock();
    };
    run(add, add, add);
    model::expect(data == 3, "nothing is lost");
  });
  finds("two mutexes in two orders", model::Fault::kDeadlock, [] {
    sk::Mutex a, b;
    const auto both = [](sk::Mutex& first, sk::Mutex& second) {
      first.lock();
      second.lock();
      second.unlock();
      first.unlock();
    };
    run([&] { both(a, b); }, [&] { both(b, a); });
  });
  for (bool look : {true, false}) {
    finds(look ? "a futex" : "a futex without a second look", look ? model::Fault::kNone : model::Fault::kDeadlock,
          [look] {
            Atomic<std::uint32_t> word{0};
            run(
                [&] {
                  while (word.load(kAcquire) == 0) sk::futex_wait(word, look ? 0u : word.load(kRelaxed), 1);
                },
                [&] {
                  word.store(1, kRelease);
                  sk::futex_wake(word, 1);
                });
          });
  }
  finds("stores in no order", model::Fault::kUnordered, [] {
    Atomic<std::uint32_t> x{0};
    run([&] { x.store(1, kRelaxed); }, [&] { x.store(2, kRelaxed); });
  });
  return wrong == 0 ? 0 : 1;
}

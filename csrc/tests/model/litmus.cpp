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

// What the threads of most programs share, and what two of them write down.
struct Shared {
  Atomic<std::uint32_t> x{0}, y{0};
  std::uint64_t a = 9, b = 9;
};
using Body = std::function<void(Shared&)>;

// As `allows`, of threads with these bodies: what comes up as {a, b}.
void pairs(const std::string& name, const Results& expected, const std::vector<Body>& bodies) {
  allows(name, expected, [&](auto& seen) {
    Shared shared;
    std::vector<int> threads;
    for (const Body& body : bodies) threads.push_back(model::start([&] { body(shared); }, false));
    for (int thread : threads) model::join(thread, std::source_location::current());
    seen = {shared.a, shared.b};
  });
}

void message_passing(std::memory_order store, std::memory_order load, const Results& expected,
                     const std::string& name) {
  const Body send = [store](Shared& s) {
    s.x.store(1, kRelaxed);
    s.y.store(1, store);
  };
  const Body take = [load](Shared& s) {
    s.a = s.y.load(load);
    s.b = s.x.load(kRelaxed);
  };
  pairs(name, expected, {send, take});
}

}  // namespace

int main() {
  const Results all = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  const Results ordered = {{0, 0}, {0, 1}, {1, 1}};
  const Body left = [](Shared& s) {
    s.x.store(1, kRelaxed);
    s.a = s.y.load(kRelaxed);
  };
  const Body right = [](Shared& s) {
    s.y.store(1, kRelaxed);
    s.b = s.x.load(kRelaxed);
  };
  const Body fenced_left = [](Shared& s) {
    s.x.store(1, kRelaxed);
    sk::fence_seq_cst();
    s.a = s.y.load(kRelaxed);
  };
  const Body fenced_right = [](Shared& s) {
    s.y.store(1, kRelaxed);
    sk::fence_seq_cst();
    s.b = s.x.load(kRelaxed);
  };
  const Body barrier_right = [](Shared& s) {
    s.y.store(1, kRelaxed);
    sk::barrier_in_all_threads();
    s.b = s.x.load(kRelaxed);
  };
  const Results fenced = {{0, 1}, {1, 0}, {1, 1}};
  pairs("store buffering", all, {left, right});
  pairs("store buffering, one fence", all, {fenced_left, right});
  pairs("store buffering, fences", fenced, {fenced_left, fenced_right});
  pairs("store buffering, one membarrier", fenced, {left, barrier_right});
  message_passing(kRelaxed, kRelaxed, all, "message passing, relaxed");
  message_passing(kRelease, kRelaxed, all, "message passing, no acquire");
  message_passing(kRelaxed, kAcquire, all, "message passing, no release");
  message_passing(kRelease, kAcquire, ordered, "message passing");
  const Body twice = [](Shared& s) {
    s.x.store(1, kRelaxed);
    s.x.store(2, kRelaxed);
  };
  const Body look = [](Shared& s) {
    s.a = s.x.load(kRelaxed);
    s.b = s.x.load(kRelaxed);
  };
  pairs("coherence of reads", {{0, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 2}}, {twice, look});
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
  const Body publish = [](Shared& s) {
    s.x.store(1, kRelaxed);
    s.y.store(1, kRelease);
  };
  const Body update = [](Shared& s) {
    std::uint32_t one = 1;
    s.y.compare_exchange_strong(one, 2, kRelaxed);
  };
  const Body take = [](Shared& s) {
    s.a = s.y.load(kAcquire);
    if (s.a == 2) s.b = s.x.load(kRelaxed);
  };
  pairs("an update goes on with a release", {{0, 9}, {1, 9}, {2, 1}}, {publish, update, take});
  allows("two increments", {{2}}, [](auto& seen) {
    Atomic<std::uint32_t> x{0};
    run([&] { x.fetch_add(1, kRelaxed); }, [&] { x.fetch_add(1, kRelaxed); });
    seen = {x.load(kRelaxed)};
  });
  for (const auto order : {kRelease, kRelaxed}) {
    const bool right = order == kRelease;
    finds(right ? "plain data behind a flag" : "plain data behind a relaxed flag",
          right ? model::Fault::kNone : model::Fault::kRace, [order] {
            sk::Plain<int> data{0};
            Atomic<std::uint32_t> flag{0};
            run(
                [&] {
                  data = 1;
                  flag.store(1, order);
                },
                [&] {
                  while (flag.load(kAcquire) == 0) sk::relax();
                  model::expect(data == 1, "the data is there");
                });
          });
  }
  pairs("an update behind a load", {{0, 0}, {0, 1}, {1, 1}},
        {[](Shared& s) { s.x.exchange(1, kRelaxed); },
         [](Shared& s) {
           s.a = s.x.load(kRelaxed);
           s.b = s.x.exchange(2, kRelaxed);
         }});
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

#include "probe/probe.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <thread>

#include "probe/loops.h"
#include "runtime/clock.h"
#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/platform.h"
#include "runtime/pool.h"

namespace sk {

namespace {

constexpr int kTrials = 3;
constexpr double kUndisturbed = 0.95;          // share of a trial that a thread must have been on its CPU
constexpr std::int64_t kShortNs = 20'000;      // trials below that are too short to tell
constexpr std::size_t kReadBytes = 4u << 20;   // of a trial, at least
constexpr std::int64_t kBurstNs = 1'000'000;   // of arithmetic
constexpr int kRounds = 100;                   // of a hand-over, there and back
constexpr std::size_t kDataBytes = 64u << 10;  // that one core writes and another reads
constexpr std::int64_t kAsleepNs = 300'000;    // until who goes to sleep surely sleeps
constexpr int kSpinsBeforeYield = 1 << 14;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::int64_t cpu_time_ns() noexcept {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

template <class Done>
void spin_until(Done done) {
  for (int spins = 0; !done(); ++spins) {
    if (spins < kSpinsBeforeYield) {
      cpu_relax();
    } else {
      sched_yield();  // the other side lost its CPU
    }
  }
}

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) noexcept {
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

// Memory with code of that many bytes and a return at its end; null where the system refuses, or nobody knows how.
class CodeBlock {
 public:
  explicit CodeBlock(std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    memory_ = static_cast<std::uint8_t*>(memory);
#if defined(__x86_64__)
    constexpr std::uint8_t kNop[8] = {0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0};
    for (std::size_t at = 0; at + 8 <= bytes; at += 8) std::memcpy(memory_ + at, kNop, 8);
    memory_[bytes - 8] = 0xc3;
#elif defined(__aarch64__)
    constexpr std::uint32_t kNop = 0xd503201f, kReturn = 0xd65f03c0;
    for (std::size_t at = 0; at + 4 <= bytes; at += 4) std::memcpy(memory_ + at, &kNop, 4);
    std::memcpy(memory_ + bytes - 4, &kReturn, 4);
    __builtin___clear_cache(reinterpret_cast<char*>(memory_), reinterpret_cast<char*>(memory_ + bytes));
#endif
    if (mprotect(memory_, bytes, PROT_READ | PROT_EXEC) != 0) reset();
  }
  ~CodeBlock() { reset(); }
  CodeBlock(const CodeBlock&) = delete;
  CodeBlock& operator=(const CodeBlock&) = delete;

  explicit operator bool() const noexcept { return memory_ != nullptr; }
  void run() const { reinterpret_cast<void (*)()>(memory_)(); }

 private:
  void reset() noexcept {
    if (memory_ != nullptr) munmap(memory_, bytes_);
    memory_ = nullptr;
  }

  std::uint8_t* memory_ = nullptr;
  std::size_t bytes_;
};

std::vector<int> first(int count) {
  std::vector<int> members(static_cast<std::size_t>(count));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

}  // namespace

// The threads. Each sleeps on a word of its own, so that calling two of many wakes two.
class Probe::Team {
 public:
  using Work = std::function<void(int)>;

  explicit Team(const std::vector<int>& cpus) : members_(cpus.size()) {
    for (std::size_t i = 0; i < cpus.size(); ++i) {
      try {
        members_[i].thread = std::thread([this, i] { serve(static_cast<int>(i)); });
      } catch (...) {
        dismiss();
        throw;
      }
      set_affinity(members_[i].thread.native_handle(), {cpus[i]});
    }
  }
  ~Team() { dismiss(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  struct Time {
    std::int64_t wall_ns = 0;  // of the member that took longest
    std::int64_t cpu_ns = 0;   // on its CPU
    bool whole = true;         // every member was on its CPU all the time
  };

  // `work(member)` on these members at once. `sleeps`: who works may sleep.
  Time run(const std::vector<int>& called, const Work& work, bool sleeps = false) {
    work_ = &work;
    called_ = static_cast<int>(called.size());
    arrived_.store(0, std::memory_order_relaxed);
    left_.store(called_, std::memory_order_relaxed);
    for (const int index : called) {
      Member& member = members_[static_cast<std::size_t>(index)];
      member.calls.fetch_add(1, std::memory_order_release);
      member.calls.notify_one();
    }
    for (int left = called_; left != 0; left = left_.load(std::memory_order_acquire)) {
      left_.wait(left, std::memory_order_acquire);
    }
    Time time{1, 1, true};
    for (const int index : called) {
      const Member& member = members_[static_cast<std::size_t>(index)];
      time.wall_ns = std::max(time.wall_ns, member.wall_ns);
      time.cpu_ns = std::max(time.cpu_ns, member.cpu_ns);
      time.whole &= member.wall_ns < kShortNs ||
                    static_cast<double>(member.cpu_ns) >= kUndisturbed * static_cast<double>(member.wall_ns);
    }
    if (!sleeps) {
      ++trials;
      disturbed += time.whole ? 0 : 1;
    }
    return time;
  }

  // The least time of a few trials that nothing disturbed; where there is none, time on the CPUs.
  std::int64_t least(const std::vector<int>& called, const Work& work) {
    std::int64_t whole = kNever, on_cpu = kNever;
    for (int trial = 0, good = 0; good < kTrials && trial < 2 * kTrials; ++trial) {
      const Time time = run(called, work);
      on_cpu = std::min(on_cpu, time.cpu_ns);
      if (!time.whole) continue;
      ++good;
      whole = std::min(whole, time.wall_ns);
    }
    return whole == kNever ? on_cpu : whole;
  }

  int size() const noexcept { return static_cast<int>(members_.size()); }
  AlignedBuffer& buffer(int member) { return members_[static_cast<std::size_t>(member)].buffer; }

  int trials = 0;
  int disturbed = 0;

 private:
  struct alignas(kApartBytes) Member {
    std::atomic<std::uint32_t> calls{0};
    std::thread thread;
    AlignedBuffer buffer;
    std::int64_t wall_ns = 0;
    std::int64_t cpu_ns = 0;
  };

  void serve(int index) {
    Member& self = members_[static_cast<std::size_t>(index)];
    for (std::uint32_t seen = 0;; ++seen) {
      self.calls.wait(seen, std::memory_order_acquire);
      if (work_ == nullptr) return;
      arrived_.fetch_add(1, std::memory_order_acq_rel);
      spin_until([&] { return arrived_.load(std::memory_order_acquire) == called_; });
      const std::int64_t start = now_ns(), cpu_start = cpu_time_ns();
      (*work_)(index);
      self.cpu_ns = cpu_time_ns() - cpu_start;
      self.wall_ns = now_ns() - start;
      if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_one();
    }
  }

  void dismiss() {
    work_ = nullptr;
    for (Member& member : members_) {
      if (!member.thread.joinable()) continue;
      member.calls.fetch_add(1, std::memory_order_release);
      member.calls.notify_one();
      member.thread.join();
    }
  }

  std::vector<Member> members_;
  const Work* work_ = nullptr;
  int called_ = 0;
  alignas(kApartBytes) std::atomic<int> arrived_{0};
  alignas(kApartBytes) std::atomic<int> left_{0};
};

Probe::Probe(const std::vector<int>& cpus) : team_(std::make_unique<Team>(cpus)) {}
Probe::~Probe() = default;

int Probe::cores() const noexcept { return team_->size(); }
int Probe::trials() const noexcept { return team_->trials; }
int Probe::disturbed() const noexcept { return team_->disturbed; }

double Probe::read(std::size_t bytes, int cores, bool same) {
  bytes = std::max(bytes / kReadBlock, std::size_t{1}) * kReadBlock;
  std::atomic<bool> refused{false};
  const auto fill = [&](int member) {  // by its reader: so the memory is near
    AlignedBuffer& own = team_->buffer(member);
    if (own.size() >= bytes) return;
    if (!own.allocate(bytes)) {
      refused = true;
      return;
    }
    std::memset(own.data(), 1, bytes);  // pages of their own, not the one of zeros
  };
  team_->run(first(same ? 1 : cores), fill);
  if (refused) return -1.0;
  const ReadLoop loop = read_loop();
  const std::size_t passes = std::max<std::size_t>(kReadBytes / bytes, 1);
  const auto pass = [&](int member) {
    const std::uint8_t* data = team_->buffer(same ? 0 : member).data();
    for (std::size_t i = 0; i < passes; ++i) loop(data, bytes);
  };
  team_->run(first(cores), pass);
  const double total = static_cast<double>(bytes) * static_cast<double>(passes) * cores;
  return total / static_cast<double>(team_->least(first(cores), pass));
}

double Probe::rate(std::string_view kind) {
  const Burst burst = burst_of(kind);
  if (burst.run == nullptr) return 0.0;
  std::int64_t steps = 1000;
  const auto work = [&](int) { burst.run(steps); };
  while (team_->run({0}, work).cpu_ns < kBurstNs / 4 && steps < (std::int64_t{1} << 40)) steps *= 2;
  return burst.operations * static_cast<double>(steps) / static_cast<double>(team_->least({0}, work));
}

double Probe::handover_ns(int from, int to) {
  alignas(kApartBytes) std::atomic<int> ball{0};
  std::int64_t best = kNever;
  team_->run({from, to}, [&](int member) {
    const int side = member == from ? 0 : 1;
    for (int trial = 0; trial < 2 * kTrials; ++trial) {
      const std::int64_t start = now_ns();
      for (int turn = trial * kRounds; turn < (trial + 1) * kRounds; ++turn) {
        spin_until([&] { return ball.load(std::memory_order_acquire) == 2 * turn + side; });
        ball.store(2 * turn + side + 1, std::memory_order_release);
      }
      if (side == 1) best = std::min(best, now_ns() - start);
    }
  });
  return static_cast<double>(best) / (2.0 * kRounds);
}

double Probe::line_ns(int from, int to) {
  std::vector<std::uint64_t> data(kDataBytes / 8);
  alignas(kApartBytes) std::atomic<bool> written{false};
  std::int64_t best = kNever, took = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    written = false;
    const auto work = [&](int member) {
      if (member == from) {
        for (std::size_t i = 0; i < data.size(); ++i) data[i] = i + static_cast<std::size_t>(trial);
        written.store(true, std::memory_order_release);
        return;
      }
      spin_until([&] { return written.load(std::memory_order_acquire); });
      const std::int64_t start = now_ns();
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < data.size(); i += kLineBytes / 8) sum += data[i];
      asm volatile("" : : "r"(sum) : "memory");
      took = now_ns() - start;
    };
    team_->run({from, to}, work);
    best = std::min(best, took);
  }
  return static_cast<double>(best) * kLineBytes / static_cast<double>(kDataBytes);
}

double Probe::wake_ns(int count) {
  constexpr int kWakes = 7;
  std::vector<std::int64_t> took;
  for (int i = 0; i < kWakes; ++i) {
    std::atomic<std::uint32_t> bell{0};
    std::atomic<int> asleep{0}, awake{0};
    const auto work = [&](int member) {
      if (member != 0) {
        asleep.fetch_add(1);
        while (bell.load(std::memory_order_acquire) == 0) futex(bell, FUTEX_WAIT_PRIVATE, 0);
        awake.fetch_add(1, std::memory_order_release);
        return;
      }
      spin_until([&] { return asleep.load(std::memory_order_acquire) == count; });
      const std::int64_t lying = now_ns() + kAsleepNs;
      spin_until([&] { return now_ns() >= lying; });
      const std::int64_t start = now_ns();
      bell.store(1, std::memory_order_release);
      futex(bell, FUTEX_WAKE_PRIVATE, INT_MAX);
      spin_until([&] { return awake.load(std::memory_order_acquire) == count; });
      took.push_back(now_ns() - start);
    };
    team_->run(first(count + 1), work, true);
  }
  std::nth_element(took.begin(), took.begin() + kWakes / 4, took.end());
  return static_cast<double>(took[kWakes / 4]);
}

double Probe::code_line_ns(std::size_t bytes) {
#if defined(__x86_64__) || defined(__aarch64__)
  bytes = std::max<std::size_t>(bytes / kLineBytes, 1) * kLineBytes;
  const CodeBlock code(bytes);
  if (!code) return -1.0;
  const std::size_t passes = std::max<std::size_t>((1u << 20) / bytes, 1);
  const auto work = [&](int) {
    for (std::size_t i = 0; i < passes; ++i) code.run();
  };
  team_->run({0}, work);
  return static_cast<double>(team_->least({0}, work)) * kLineBytes /
         (static_cast<double>(bytes) * static_cast<double>(passes));
#else
  static_cast<void>(bytes);
  return 0.0;
#endif
}

}  // namespace sk

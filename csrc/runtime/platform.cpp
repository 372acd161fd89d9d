#include "runtime/platform.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <memory>

namespace sk {

namespace {

long membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0u, 0); }

struct Start {
  char name[16];
  void (*body)(void*) noexcept;
  void* argument;
};

// A thread's stack for handlers of signals, for as long as the thread lives.
class SignalStack {
 public:
  SignalStack() noexcept {
    stack_t present{};
    if (sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;  // somebody else's
    void* const found = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return;
    stack_t own{};
    own.ss_sp = memory_ = found;
    own.ss_size = kBytes;
    sigaltstack(&own, nullptr);
  }
  ~SignalStack() {
    if (memory_ == nullptr) return;
    stack_t present{};
    if (sigaltstack(nullptr, &present) == 0 && present.ss_sp == memory_) {
      stack_t none{};
      none.ss_flags = SS_DISABLE;
      sigaltstack(&none, nullptr);
    }
    munmap(memory_, kBytes);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr std::size_t kBytes = 64 << 10;  // registers take up to 12 KiB of it, handlers of others some more
  void* memory_ = nullptr;
};

void* thread_main(void* argument) noexcept {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  have_signal_stack();
  pthread_setname_np(pthread_self(), start->name);
  start->body(start->argument);
  return nullptr;
}

}  // namespace

bool prepare_barrier_in_all_threads() noexcept {
  const long commands = membarrier(MEMBARRIER_CMD_QUERY);
  return commands > 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0 &&
         membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

bool barrier_in_all_threads() noexcept { return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0; }

void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected, std::uint32_t bits) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, nullptr, nullptr, bits);
}

void futex_wake(Atomic<std::uint32_t>& word, std::uint32_t bits) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, nullptr, nullptr, bits);
}

void yield() noexcept { sched_yield(); }

void nap(std::int64_t waited_ns) noexcept {
  constexpr std::int64_t kLongestNs = 100'000;
  doze(std::clamp(waited_ns / 16, std::int64_t{1}, kLongestNs));
}

void doze(std::int64_t ns) noexcept {
  const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(ns)};
  const int slack_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);  // by which the system may prolong it
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  nanosleep(&time, nullptr);
  if (slack_ns > 0) prctl(PR_SET_TIMERSLACK, slack_ns, 0, 0, 0);
}

void have_signal_stack() noexcept {
  static thread_local const SignalStack stack;
  static_cast<void>(stack);
  thread_state().has_signal_stack = true;
}

bool start_thread(ThreadHandle& handle, const char* name, void (*body)(void*) noexcept, void* argument) noexcept {
  auto start = std::make_unique<Start>(Start{{}, body, argument});
  std::snprintf(start->name, sizeof start->name, "%s", name);
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  const int error = pthread_create(&handle, nullptr, thread_main, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return false;
  static_cast<void>(start.release());  // the thread's now
  pthread_detach(handle);
  return true;
}

void set_affinity(ThreadHandle thread, const std::vector<int>& cpus) noexcept {
  const int last = cpus.empty() ? 0 : *std::max_element(cpus.begin(), cpus.end());
  cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(last) + 1);
  if (set == nullptr) return;
  const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(last) + 1);
  CPU_ZERO_S(bytes, set);
  for (int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set);
  // A refusal (a CPU taken away meanwhile) leaves the thread where it may run.
  pthread_setaffinity_np(thread, bytes, set);
  CPU_FREE(set);
}

void set_own_affinity(const std::vector<int>& cpus) noexcept { set_affinity(pthread_self(), cpus); }

int current_cpu() noexcept { return sched_getcpu(); }

void on_fork(void (*before)() noexcept, void (*in_parent)() noexcept, void (*in_child)() noexcept) {
  pthread_atfork(before, in_parent, in_child);
}

}  // namespace sk

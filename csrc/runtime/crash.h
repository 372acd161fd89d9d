// The last words of a process that a kernel ends: which sub-operator's code got the signal.
//
// Model: generated code is made known with the names of its functions. At SIGSEGV, SIGBUS, SIGILL or SIGFPE whose
// program counter lies in such code, one line goes to stderr; then whoever had the signal before has it, and at last
// the process ends as it would have. Kernels are shared by equal sub-operators, so that the one at work is told by its
// task, the nearest caller on the stack.
//
// Invariants:
//  - The handler calls nothing but what is safe in one: no heap, no locks, no stdio. The stack is read by a system call
//    that fails where there is none.
//  - It runs on a stack of its own: all threads that run kernels have one (`have_signal_stack`).
//  - Signals from elsewhere (other code, `kill`) are handed on unseen. Nothing is installed before there is code.
//  - Code is made known and forgotten by one thread at a time: who holds Python's lock.
//  - A signal that comes while code is made known or forgotten is handed on, or told without names.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace sk {

struct CodeName {
  std::uint64_t begin = 0;  // addresses
  std::uint64_t end = 0;
  std::string text;
  bool is_task = false;  // a function that calls a kernel for one sub-operator
};

// Code that is known for as long as this lives.
class KnownCode {
 public:
  // `names` do not overlap. Installs the handler at the first one.
  explicit KnownCode(std::vector<CodeName> names);
  ~KnownCode();
  KnownCode(const KnownCode&) = delete;
  KnownCode& operator=(const KnownCode&) = delete;

  const CodeName* find(std::uint64_t address) const noexcept;
  const KnownCode* next() const noexcept { return next_.load(std::memory_order_acquire); }

 private:
  std::vector<CodeName> names_;  // by address
  std::atomic<KnownCode*> next_{nullptr};
};

}  // namespace sk

// Fibers: threads that take turns where they say so. Included once: it holds assembly.
#pragma once

#include <cstddef>
#include <cstdint>

namespace model {

inline constexpr std::size_t kStackBytes = 256 << 10;

// A fiber's registers lie on its stack; this is where. (swapcontext would ask the kernel for the signal mask, each
// time.)
struct Context {
  void* stack = nullptr;
};

extern "C" void model_switch(void** from, void* to) noexcept;
#if defined(__x86_64__)
asm(R"(
  .text
  .globl model_switch
  .type model_switch, @function
model_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size model_switch, .-model_switch
)");
inline constexpr std::size_t kSavedWords = 6;
#else
#error "the explorer's threads are written for x86-64"
#endif

inline void switch_to(Context& from, const Context& to) { model_switch(&from.stack, to.stack); }

// A context that begins with `entry`, which never returns.
inline void prepare(Context& context, char* stack, std::size_t bytes, void (*entry)()) {
  auto* top = reinterpret_cast<std::uint64_t*>(stack + bytes);  // 16-byte aligned, as new[] is
  *--top = 0;                                                   // a call would have left it 8 off
  *--top = reinterpret_cast<std::uint64_t>(entry);
  for (std::size_t i = 0; i < kSavedWords; ++i) *--top = 0;
  context.stack = top;
}

}  // namespace model

// The direct-threaded interpreter.
//
// Model: one function whose handlers end in a computed goto through the next record's operation. The program counter is
// the pointer to the present record; jumps within memory add a distance to it. Registers that the compiler can keep:
// record, x, ram, the largest fast offset, `left` (instructions until the turn may end, checked at taken jumps only).
//
// Invariants:
//  - At every dispatch hart.pc, hart.retired are stale; SK_SYNC brings them up to date before anything else looks.
//  - A direct jump's target is in memory (the decoder made the others `wild`), so it needs no check.
//  - Loads and stores wholly below the last 8 bytes of memory are done here, all others in
//  Machine::load_slow/store_slow.
//  - Stores to tohost leave the loop at once.
//
// It is one long function because computed gotos cannot leave one; the handlers are a line or two each.
#include "sim/interpreter.h"

#include <cstring>

// Labels as values are a GNU extension that both GCC and Clang have.
#pragma GCC diagnostic ignored "-Wpedantic"

namespace sk::sim {
namespace {

constexpr std::uint64_t kBoxed = std::uint64_t{0xffffffff} << 32;
constexpr std::int64_t kRecordBytesPerByte = sizeof(Record) / 2;

__extension__ using s128 = __int128;
__extension__ using u128 = unsigned __int128;

std::int64_t as_signed(std::uint64_t value) { return static_cast<std::int64_t>(value); }
std::int32_t as_word(std::uint64_t value) { return static_cast<std::int32_t>(value); }
std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint64_t bits(std::int64_t value) { return static_cast<std::uint64_t>(value); }
// The low 32 bits, sign-extended.
std::uint64_t word(std::uint64_t value) { return bits(std::int64_t{as_word(value)}); }

std::uint64_t divide(std::int64_t a, std::int64_t b) {
  if (b == 0) return ~std::uint64_t{0};
  return b == -1 ? 0 - bits(a) : bits(a / b);
}
std::uint64_t remainder(std::int64_t a, std::int64_t b) {
  if (b == 0) return bits(a);
  return b == -1 ? 0 : bits(a % b);
}

#define SK_LIKELY(condition) __builtin_expect(static_cast<bool>(condition), 1)
#define SK_UNLIKELY(condition) __builtin_expect(static_cast<bool>(condition), 0)

// ---- what handlers are made of. `record` is the instruction at hand.
#define RD x[record->rd]
#define RS1 x[record->rs1]
#define RS2 x[record->rs2]
#define IMM bits(std::int64_t{record->imm})

#define SK_PC (ram_base + static_cast<std::uint64_t>(record - records) * 2)
#define SK_SYNC() (hart.pc = SK_PC, hart.retired = retired_at_zero - bits(left))
#define SK_DISPATCH() goto* labels[static_cast<std::size_t>(record->op)]
#define SK_STEP_OVER(step) (record += (step) / 2, --left)
#define SK_NEXT(step)   \
  do {                  \
    SK_STEP_OVER(step); \
    SK_DISPATCH();      \
  } while (false)

// After a taken jump: `record` is the target.
#define SK_ARRIVE()                                                   \
  do {                                                                \
    if (SK_UNLIKELY(--left <= 0)) goto leave;                         \
    if constexpr (kTimed) {                                           \
      SK_SYNC();                                                      \
      hart.stall_cycles += hart.icache.fetch(hart.pc, hart.cycles()); \
    }                                                                 \
    SK_DISPATCH();                                                    \
  } while (false)
// The line of the instruction at hand, and the next one where it reaches into that.
#define SK_FETCH_BOTH()                                                                              \
  do {                                                                                               \
    SK_SYNC();                                                                                       \
    hart.stall_cycles += hart.icache.fetch(hart.pc, hart.cycles());                                  \
    if ((record->bits & 3) == 3) hart.stall_cycles += hart.icache.fetch(hart.pc + 2, hart.cycles()); \
  } while (false)
#define SK_JUMP_NEAR()                                                                                       \
  do {                                                                                                       \
    record = reinterpret_cast<Record*>(reinterpret_cast<char*>(record) + record->imm * kRecordBytesPerByte); \
    SK_ARRIVE();                                                                                             \
  } while (false)
#define SK_JUMP_TO(target)                             \
  do {                                                 \
    const std::uint64_t offset_ = (target) - ram_base; \
    if (SK_UNLIKELY(offset_ >= ram_bytes)) {           \
      next_pc = (target);                              \
      goto jump_out;                                   \
    }                                                  \
    record = records + offset_ / 2;                    \
    SK_ARRIVE();                                       \
  } while (false)
#define SK_BRANCH(condition, step) \
  do {                             \
    if (condition) SK_JUMP_NEAR(); \
    SK_NEXT(step);                 \
  } while (false)

#define SK_TRAP(cause, value)                       \
  do {                                              \
    trap_cause = static_cast<std::uint64_t>(cause); \
    trap_value = (value);                           \
    goto trap;                                      \
  } while (false)

// Reads T at RS1 + IMM into `loaded`, as T extends.
#define SK_READ(T)                                                                                           \
  T loaded;                                                                                                  \
  do {                                                                                                       \
    const std::uint64_t address_ = RS1 + IMM;                                                                \
    const std::uint64_t offset_ = address_ - ram_base;                                                       \
    if (SK_LIKELY(offset_ <= fast_offset_max)) {                                                             \
      std::memcpy(&loaded, ram + offset_, sizeof(T));                                                        \
    } else {                                                                                                 \
      SK_SYNC();                                                                                             \
      std::uint64_t slow_ = 0;                                                                               \
      if (!machine.load_slow(address_, sizeof(T), hart.now(), slow_)) SK_TRAP(Cause::load_access, address_); \
      loaded = static_cast<T>(slow_);                                                                        \
    }                                                                                                        \
  } while (false)
#define SK_LOAD(T, step)                     \
  do {                                       \
    SK_READ(T);                              \
    RD = static_cast<std::uint64_t>(loaded); \
    SK_NEXT(step);                           \
  } while (false)
#define SK_LOAD_FLOAT(T, box, step)                       \
  do {                                                    \
    if (SK_UNLIKELY(!hart.float_enabled())) goto illegal; \
    SK_READ(T);                                           \
    hart.f[record->rd] = (box) | loaded;                  \
    hart.mark_float_dirty();                              \
    SK_NEXT(step);                                        \
  } while (false)
#define SK_STORE(T, source, step)                                                                                \
  do {                                                                                                           \
    const std::uint64_t address_ = RS1 + IMM;                                                                    \
    const std::uint64_t offset_ = address_ - ram_base;                                                           \
    const T stored_ = static_cast<T>(source);                                                                    \
    if (SK_UNLIKELY(offset_ > fast_offset_max)) {                                                                \
      SK_SYNC();                                                                                                 \
      if (!machine.store_slow(address_, sizeof(T), stored_, hart.now())) SK_TRAP(Cause::store_access, address_); \
      SK_STEP_OVER(step);                                                                                        \
      if (offset_ == tohost_offset) goto tohost;                                                                 \
      goto leave; /* a device may have raised an interrupt */                                                    \
    }                                                                                                            \
    std::memcpy(ram + offset_, &stored_, sizeof(T));                                                             \
    if (SK_UNLIKELY(offset_ == tohost_offset)) {                                                                 \
      SK_STEP_OVER(step);                                                                                        \
      goto tohost;                                                                                               \
    }                                                                                                            \
    SK_NEXT(step);                                                                                               \
  } while (false)
#define SK_STORE_FLOAT(T, step)                           \
  do {                                                    \
    if (SK_UNLIKELY(!hart.float_enabled())) goto illegal; \
    SK_STORE(T, hart.f[record->rs2], step);               \
  } while (false)

}  // namespace

template <bool kTimed>
void Interpreter::run(Machine& machine, Hart& hart, std::int64_t budget) {
  // In the order of Op.
  static const void* const labels[] = {&&L_undecoded,
                                       &&L_end_of_ram,
                                       &&L_fetch_fault,
                                       &&illegal,
                                       &&L_wild,
                                       &&L_line_check,
#define X(id, name, mask, match, operands) &&L_##id, &&L_##id##_c,
                                       SK_ISA_BASE(X)
#undef X
#define X(id, name, mask, match, operands) &&L_##id,
                                           SK_ISA_INTEGER(X) SK_ISA_SYSTEM(X)
#undef X
#define X(id, name, mask, match, operands) &&L_atomic,
                                               SK_ISA_ATOMIC(X)
#undef X
#define X(id, name, mask, match, operands) &&L_float,
                                                   SK_ISA_FLOAT(X)
#undef X
  };
  static_assert(sizeof(labels) / sizeof(labels[0]) == static_cast<std::size_t>(Op::count));

  std::uint64_t* const x = hart.x.data();
  std::uint8_t* const ram = machine.ram_.data();
  Record* const records = reinterpret_cast<Record*>(machine.records_.data());
  const std::uint64_t ram_base = machine.config_.memory_base;
  const std::uint64_t ram_bytes = machine.ram_.bytes();
  const std::uint64_t fast_offset_max = ram_bytes - 8;
  const std::uint64_t tohost_offset = machine.tohost_offset_;
  std::int64_t left = budget;
  std::uint64_t retired_at_zero = hart.retired + bits(budget);
  std::uint64_t trap_cause = 0;
  std::uint64_t trap_value = 0;
  std::uint64_t next_pc = hart.pc;
  Record* record = records;

  if (next_pc - ram_base >= ram_bytes) goto fetch_out;
  record = records + (next_pc - ram_base) / 2;
  if constexpr (kTimed) hart.stall_cycles += hart.icache.fetch(next_pc, hart.cycles());
  SK_DISPATCH();

#define SK_STEP 4
#define SK_HANDLER(id) L_##id:
#include "sim/handlers_base.h"
#undef SK_STEP
#undef SK_HANDLER
#define SK_STEP 2
#define SK_HANDLER(id) L_##id##_c:
#include "sim/handlers_base.h"
#undef SK_STEP
#undef SK_HANDLER

#include "sim/handlers_wide.h"

  // ---- what several handlers end in

illegal:
  SK_TRAP(Cause::illegal_instruction, record->bits);

trap:
  SK_SYNC();
  // The handler's own first instruction is illegal: it would trap for ever, and hide what trapped first.
  if (trap_cause == static_cast<std::uint64_t>(Cause::illegal_instruction) &&
      hart.pc == (hart.mtvec & ~std::uint64_t{3})) {
    machine.finish(End::trap_loop, hart, 0);
    return;
  }
  hart.take_trap(trap_cause, trap_value);
trapped:
  --retired_at_zero;  // a trap counts for the budget, not as an instruction
  if (hart.pc - ram_base >= ram_bytes) {
    machine.finish(End::trap_loop, hart, 0);
    return;
  }
  record = records + (hart.pc - ram_base) / 2;
  SK_ARRIVE();

jump_out:  // a jump to next_pc, outside memory, was executed: the fetch there fails
  --left;
fetch_out:
  hart.pc = next_pc;
  hart.retired = retired_at_zero - bits(left);
  hart.take_trap(Cause::fetch_access, next_pc);
  goto trapped;

tohost:
  SK_SYNC();
  machine.tohost_written(hart);
  if (machine.end_ != End::none || left <= 0) return;
  SK_DISPATCH();

leave:
  SK_SYNC();
}

template void Interpreter::run<false>(Machine&, Hart&, std::int64_t);
template void Interpreter::run<true>(Machine&, Hart&, std::int64_t);

}  // namespace sk::sim

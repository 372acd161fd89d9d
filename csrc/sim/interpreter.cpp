// The direct-threaded interpreter.
//
// Model: one function whose handlers end in a computed goto through the next record's operation. The program counter is
// the pointer to the present record; jumps within memory add a distance to it. Registers that the compiler can keep:
// record, x, ram, the largest fast offset, `left` (instructions until the turn may end, checked at taken jumps only).
//
// Invariants:
//  - At every dispatch hart.pc, hart.retired and, for a control unit, its cycles are stale; SK_SYNC brings them up to
//  date before anything else looks.
//  - A direct jump's target is in memory (the decoder made the others `wild`), so it needs no check.
//  - Loads and stores wholly below the last 8 bytes of the window (of a machine: its memory; of a control unit: its
//  private memory) are done here. All others are done in Machine::load_slow/store_slow, or become a control unit's
//  request.
//  - Stores to tohost leave the loop at once.
//  - Where nothing of a control unit is pending, its scoreboard costs nothing: dispatch goes through another table of
//  labels while something is.
//
// It is one long function because computed gotos cannot leave one; the handlers are a line or two each.
#include "sim/interpreter.h"

#include <cstring>
#include <type_traits>

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

#define SK_PC (code_base + static_cast<std::uint64_t>(record - records) * 2)
#define SK_NOW (clock_at_zero - bits(left))
#define SK_RETIRED (retired_at_zero - bits(left))
// Of a control unit, timed or not.
#define SK_CYCLE (Host::kTimed ? SK_NOW : SK_RETIRED + hart.traps + hart.stall_cycles)
#define SK_SYNC()                                                                                         \
  do {                                                                                                    \
    hart.pc = SK_PC;                                                                                      \
    hart.retired = SK_RETIRED;                                                                            \
    if constexpr (Host::kControl && Host::kTimed) hart.stall_cycles = SK_NOW - hart.retired - hart.traps; \
  } while (false)
// The loop's clock after hart.stall_cycles was changed behind a SK_SYNC.
#define SK_RESUME_CLOCK() (clock_at_zero = hart.cycles() + bits(left))
// Tables differ while a control unit's register is pending.
#define SK_DISPATCH()                                     \
  do {                                                    \
    if constexpr (Host::kControl && Host::kTimed) {       \
      goto* table[static_cast<std::size_t>(record->op)];  \
    } else {                                              \
      goto* labels[static_cast<std::size_t>(record->op)]; \
    }                                                     \
  } while (false)
// The result of the instruction at hand, in x[rd] or with 32 added f[rd], comes `latency` cycles after its issue.
#define SK_LATER(number, latency)                       \
  do {                                                  \
    if constexpr (Host::kControl && Host::kTimed) {     \
      const std::size_t number_ = (number);             \
      if (number_ != kSink) {                           \
        hart.await(number_, SK_NOW + (latency), false); \
        table = checks;                                 \
      }                                                 \
    }                                                   \
  } while (false)
#define SK_STEP_OVER(step) (record += (step) / 2, --left)
#define SK_NEXT(step)   \
  do {                  \
    SK_STEP_OVER(step); \
    SK_DISPATCH();      \
  } while (false)

// After a taken jump: `record` is the target. What a timed control unit does there is long, and kept in one place: the
// host's instruction cache is small, and cold at every turn.
#define SK_ARRIVE()                                                   \
  do {                                                                \
    if constexpr (Host::kControl && Host::kTimed) goto arrived;       \
    if (SK_UNLIKELY(--left <= 0)) goto leave;                         \
    if constexpr (Host::kTimed) {                                     \
      SK_SYNC();                                                      \
      hart.stall_cycles += hart.icache.fetch(hart.pc, hart.cycles()); \
    }                                                                 \
    SK_DISPATCH();                                                    \
  } while (false)
// A control unit's execution reaches an address: a line that is not there ends in a request.
#define SK_ENTER(place, is_second)                                              \
  do {                                                                          \
    const std::uint64_t line_ = hart.cache.line_of(place);                      \
    if (SK_UNLIKELY(line_ != hart.cache.current())) {                           \
      const std::int64_t stall_ = hart.cache.enter(line_, SK_NOW, *hart.stats); \
      if (SK_UNLIKELY(stall_ != 0)) {                                           \
        SK_SYNC();                                                              \
        if (stall_ == CoreCache::kMiss) {                                       \
          hart.second_line = (is_second);                                       \
          hart.request.kind = Request::Kind::fetch;                             \
          hart.request.address = (place);                                       \
          return;                                                               \
        }                                                                       \
        hart.stall(Stall::prefetch_late, bits(stall_));                         \
        SK_RESUME_CLOCK();                                                      \
      }                                                                         \
    }                                                                           \
  } while (false)
// The line of the instruction at hand, and the next one where it reaches into that.
#define SK_FETCH_BOTH()                                                                                \
  do {                                                                                                 \
    if constexpr (Host::kControl) {                                                                    \
      SK_ENTER(SK_PC, false);                                                                          \
      if ((record->bits & 3) == 3) SK_ENTER(SK_PC + 2, true);                                          \
    } else {                                                                                           \
      SK_SYNC();                                                                                       \
      hart.stall_cycles += hart.icache.fetch(hart.pc, hart.cycles());                                  \
      if ((record->bits & 3) == 3) hart.stall_cycles += hart.icache.fetch(hart.pc + 2, hart.cycles()); \
    }                                                                                                  \
  } while (false)
#define SK_JUMP_NEAR()                                                                                       \
  do {                                                                                                       \
    record = reinterpret_cast<Record*>(reinterpret_cast<char*>(record) + record->imm * kRecordBytesPerByte); \
    SK_ARRIVE();                                                                                             \
  } while (false)
#define SK_JUMP_TO(target)                              \
  do {                                                  \
    const std::uint64_t offset_ = (target) - code_base; \
    if (SK_UNLIKELY(offset_ >= code_bytes)) {           \
      next_pc = (target);                               \
      goto jump_out;                                    \
    }                                                   \
    record = records + offset_ / 2;                     \
    SK_ARRIVE();                                        \
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

// Reads T at RS1 + IMM into `loaded`, as T extends; a control unit asks for what is not in its window.
#define SK_READ(T, into_float)                                                                                  \
  T loaded;                                                                                                     \
  do {                                                                                                          \
    const std::uint64_t address_ = RS1 + IMM;                                                                   \
    const std::uint64_t offset_ = address_ - window_base;                                                       \
    if (SK_LIKELY(offset_ <= window_max)) {                                                                     \
      std::memcpy(&loaded, window + offset_, sizeof(T));                                                        \
    } else {                                                                                                    \
      SK_SYNC();                                                                                                \
      if constexpr (Host::kControl) {                                                                           \
        hart.request = {Request::Kind::load, sizeof(T), std::is_signed_v<T>, into_float, address_, 0, *record}; \
        return;                                                                                                 \
      } else {                                                                                                  \
        std::uint64_t slow_ = 0;                                                                                \
        if (!owner.load_slow(address_, sizeof(T), hart.now(), slow_)) SK_TRAP(Cause::load_access, address_);    \
        loaded = static_cast<T>(slow_);                                                                         \
      }                                                                                                         \
    }                                                                                                           \
  } while (false)
#define SK_LOAD(T, step)                       \
  do {                                         \
    SK_READ(T, false);                         \
    RD = static_cast<std::uint64_t>(loaded);   \
    SK_LATER(record->rd, private_load_cycles); \
    SK_NEXT(step);                             \
  } while (false)
#define SK_LOAD_FLOAT(T, box, step)                       \
  do {                                                    \
    if (SK_UNLIKELY(!hart.float_enabled())) goto illegal; \
    SK_READ(T, true);                                     \
    hart.f[record->rd] = (box) | loaded;                  \
    hart.mark_float_dirty();                              \
    SK_LATER(32U + record->rd, private_load_cycles);      \
    SK_NEXT(step);                                        \
  } while (false)
// A store off the window. Operand words of the register page are a control unit's own, and so are doorbells of queues
// that have room; all else is for the device.
#define SK_STORE_OUTSIDE(T, address_, offset_, stored_, step)                                                  \
  do {                                                                                                         \
    if constexpr (Host::kControl) {                                                                            \
      const std::uint64_t place_ = (address_) - owner.page_address;                                            \
      if (sizeof(T) == 8 && place_ < kWindows * kWindowWords * 8 && place_ % 8 == 0 &&                         \
          (place_ / 8 % kWindowWords != kWindowWords - 1 ||                                                    \
           owner.post(hart, place_ / 8 / kWindowWords, stored_, SK_PC, SK_CYCLE, SK_RETIRED))) {               \
        hart.windows[place_ / 8 / kWindowWords][place_ / 8 % kWindowWords] = stored_;                          \
        if (Host::kTimed && owner.costs.doorbell_store > 1) {                                                  \
          hart.stats->stalls[static_cast<std::size_t>(Stall::doorbell)] += owner.costs.doorbell_store - 1;     \
          clock_at_zero += owner.costs.doorbell_store - 1;                                                     \
        }                                                                                                      \
        SK_NEXT(step);                                                                                         \
      }                                                                                                        \
      SK_SYNC();                                                                                               \
      hart.request = {Request::Kind::store, sizeof(T), false, false, address_, stored_, *record};              \
      return;                                                                                                  \
    } else {                                                                                                   \
      SK_SYNC();                                                                                               \
      if (!owner.store_slow(address_, sizeof(T), stored_, hart.now())) SK_TRAP(Cause::store_access, address_); \
      SK_STEP_OVER(step);                                                                                      \
      if ((offset_) == watched) goto watched_store;                                                            \
      goto leave; /* a device may have raised an interrupt */                                                  \
    }                                                                                                          \
  } while (false)
#define SK_STORE(T, source, step)                                                                 \
  do {                                                                                            \
    const std::uint64_t address_ = RS1 + IMM;                                                     \
    const std::uint64_t offset_ = address_ - window_base;                                         \
    const T stored_ = static_cast<T>(source);                                                     \
    if (SK_UNLIKELY(offset_ > window_max)) SK_STORE_OUTSIDE(T, address_, offset_, stored_, step); \
    std::memcpy(window + offset_, &stored_, sizeof(T));                                           \
    if (SK_UNLIKELY(offset_ == watched)) {                                                        \
      SK_STEP_OVER(step);                                                                         \
      goto watched_store;                                                                         \
    }                                                                                             \
    SK_NEXT(step);                                                                                \
  } while (false)
#define SK_STORE_FLOAT(T, step)                           \
  do {                                                    \
    if (SK_UNLIKELY(!hart.float_enabled())) goto illegal; \
    SK_STORE(T, hart.f[record->rs2], step);               \
  } while (false)

}  // namespace

Interpreter::View Interpreter::view_of(Machine& machine, Hart& /*hart*/) {
  const std::uint64_t bytes = machine.ram_.bytes();
  return {reinterpret_cast<Record*>(machine.records_.data()),
          machine.config_.memory_base,
          bytes,
          machine.ram_.data(),
          machine.config_.memory_base,
          bytes - 8,
          machine.tohost_offset_};
}

Interpreter::View Interpreter::view_of(ControlSpace& space, ControlUnit& unit) {
  return {space.records.data(),
          space.code_base,
          space.code_bytes,
          unit.private_data,
          unit.private_base,
          unit.private_bytes - 8,
          0};
}

template <class Host>
void Interpreter::run(typename Host::Owner& owner, typename Host::Core& hart, std::int64_t budget) {
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

#define X(id, name, mask, match, operands) &&L_check, &&L_check,
  static const void* const checks[] = {&&L_check,
                                       &&L_check,
                                       &&L_check,
                                       &&L_check,
                                       &&L_check,
                                       &&L_check,
                                       SK_ISA_BASE(X)
#undef X
#define X(id, name, mask, match, operands) &&L_check,
                                           SK_ISA_WIDE(X)
#undef X
  };
  static_assert(sizeof(checks) == sizeof(labels));

  std::uint64_t* const x = hart.x.data();
  const View view = view_of(owner, hart);
  Record* const records = view.records;
  const std::uint64_t code_base = view.code_base;
  const std::uint64_t code_bytes = view.code_bytes;
  std::uint8_t* const window = view.window;
  const std::uint64_t window_base = view.window_base;
  const std::uint64_t window_max = view.window_max;
  const std::uint64_t watched = view.watched;
  std::int64_t left = budget;
  std::uint64_t retired_at_zero = hart.retired + bits(budget);
  std::uint64_t trap_cause = 0;
  std::uint64_t trap_value = 0;
  std::uint64_t next_pc = hart.pc;
  Record* record = records;
  [[maybe_unused]] std::uint64_t clock_at_zero = 0;
  [[maybe_unused]] const void* const* table = labels;
  [[maybe_unused]] std::uint64_t taken_branch_cycles = 0;
  [[maybe_unused]] std::uint64_t private_load_cycles = 0;

  if (next_pc - code_base >= code_bytes) goto fetch_out;
  record = records + (next_pc - code_base) / 2;
  if constexpr (Host::kControl) {
    hart.request.kind = Request::Kind::step;
    if constexpr (Host::kTimed) {
      SK_RESUME_CLOCK();
      taken_branch_cycles = owner.costs.taken_branch;
      private_load_cycles = owner.costs.private_load;
      if (hart.pending != 0) table = checks;
      if (hart.fetched) {
        hart.fetched = false;
        if (record->op == Op::line_check) goto* labels[static_cast<std::size_t>(record->then)];
      } else {
        SK_ENTER(next_pc, false);
      }
    }
  } else if constexpr (Host::kTimed) {
    hart.stall_cycles += hart.icache.fetch(next_pc, hart.cycles());
  }
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

arrived:
  __attribute__((unused));
  if constexpr (Host::kControl && Host::kTimed) {
    clock_at_zero += taken_branch_cycles;
    hart.stats->stalls[0] += taken_branch_cycles;
    if (SK_UNLIKELY(--left <= 0)) goto leave;
    SK_ENTER(SK_PC, false);
    SK_DISPATCH();
  }

illegal:
  SK_TRAP(Cause::illegal_instruction, record->bits);

trap:
  SK_SYNC();
  if constexpr (Host::kControl) {
    hart.request.kind = Request::Kind::trap;
    hart.request.value = trap_cause;
    hart.request.address = trap_value;
    return;
  } else {
    // The handler's own first instruction is illegal: it would trap for ever, and hide what trapped first.
    if (trap_cause == static_cast<std::uint64_t>(Cause::illegal_instruction) &&
        hart.pc == (hart.mtvec & ~std::uint64_t{3})) {
      owner.finish(End::trap_loop, hart, 0);
      return;
    }
    hart.take_trap(trap_cause, trap_value);
  }
trapped:
  __attribute__((unused));
  if constexpr (!Host::kControl) {
    --retired_at_zero;  // a trap counts for the budget, not as an instruction
    if (hart.pc - code_base >= code_bytes) {
      owner.finish(End::trap_loop, hart, 0);
      return;
    }
    record = records + (hart.pc - code_base) / 2;
    SK_ARRIVE();
  }

jump_out:  // a jump to next_pc, outside the code, was executed: the fetch there fails
  --left;
fetch_out:
  hart.pc = next_pc;
  hart.retired = SK_RETIRED;
  if constexpr (Host::kControl) {
    hart.request.kind = Request::Kind::trap;
    hart.request.value = static_cast<std::uint64_t>(Cause::fetch_access);
    hart.request.address = next_pc;
    return;
  } else {
    hart.take_trap(Cause::fetch_access, next_pc);
    goto trapped;
  }

watched_store:
  SK_SYNC();
  if constexpr (Host::kControl) {
    owner.marker_stored(hart);
    if (hart.request.kind != Request::Kind::step) return;
  } else {
    owner.tohost_written(hart);
    if (owner.end_ != End::none || left <= 0) return;
  }
  SK_DISPATCH();

leave:
  SK_SYNC();
}

template void Interpreter::run<MachineHost<false>>(Machine&, Hart&, std::int64_t);
template void Interpreter::run<MachineHost<true>>(Machine&, Hart&, std::int64_t);
template void Interpreter::run<ControlHost<false>>(ControlSpace&, ControlUnit&, std::int64_t);
template void Interpreter::run<ControlHost<true>>(ControlSpace&, ControlUnit&, std::int64_t);

}  // namespace sk::sim

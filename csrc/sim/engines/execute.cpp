#include "sim/engines/execute.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "sim/engines/kernels.h"
#include "sim/engines/table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

namespace sk::sim {
namespace {

using u64 = std::uint64_t;
using Result = std::optional<Fault>;

// Other libraries of the process may have set another rounding mode, or subnormals to zero.
class DefaultRounding {
 public:
#if defined(__x86_64__)
  DefaultRounding() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultRounding() {
    if (saved_ != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80;
  unsigned saved_;

 public:
#else
  DefaultRounding() = default;
#endif
  DefaultRounding(const DefaultRounding&) = delete;
  DefaultRounding& operator=(const DefaultRounding&) = delete;
};

std::string at(const Command& c, const Touch& touch) {
  return to_text(c) + ": operand '" + spec_of(c.opcode).operands[touch.operand].name + "': ";
}

Fault unwritten(const Command& c, const Touch& touch, u64 byte) {
  return {FaultKind::unwritten_read,
          at(c, touch) + "byte " + std::to_string(byte) + " of " + name_of(touch.space) + " was never written"};
}

// Rows that lie one behind the other, and a row that repeats, are one run.
Touch joined(Touch touch) {
  if (touch.rows > 1 && touch.stride == 0) touch.rows = 1;
  if (touch.rows > 1 && static_cast<u64>(touch.stride) == touch.row_bytes) {
    touch.row_bytes *= touch.rows;
    touch.rows = 1;
  }
  return touch;
}

// What only the contents of operands tell is checked by the commands themselves.
bool bounds_only(const Command& c, const Touch& touch) {
  return (c.opcode == Opcode::v_gather && touch.operand == Operands_v_gather::src) ||
         (c.opcode == Opcode::v_scatter && touch.operand == Operands_v_scatter::dst) ||
         (c.opcode == Opcode::l1_im2col && touch.operand == Operands_l1_im2col::src);
}

Result check_read(const Command& c, const Touch& given, const LocalMemory& memory) {
  const Touch touch = joined(given);
  for (u64 r = 0; r < touch.rows; ++r) {
    const u64 begin = touch.begin + r * static_cast<u64>(touch.stride);
    const u64 found = memory.first_unwritten(begin, touch.row_bytes);
    if (found != begin + touch.row_bytes) return unwritten(c, given, found);
  }
  return {};
}

void mark(const Touch& given, LocalMemory& memory) {
  const Touch touch = joined(given);
  for (u64 r = 0; r < touch.rows; ++r) {
    memory.mark_written(touch.begin + r * static_cast<u64>(touch.stride), touch.row_bytes);
  }
}

std::uint32_t offset_at(const LocalMemory& ub, u64 address) {
  std::uint32_t offset;
  std::memcpy(&offset, ub.data() + address, sizeof offset);
  return offset;
}

// Offsets of v_gather and v_scatter, and whether what v_gather reads was written.
Result check_offsets(const Command& c, const LocalMemory& ub) {
  using S = Operands_v_gather;
  static_assert(std::size_t{S::offsets} == std::size_t{Operands_v_scatter::offsets} &&
                std::size_t{S::cols} == std::size_t{Operands_v_scatter::cols} &&
                std::size_t{S::table_bytes} == std::size_t{Operands_v_scatter::table_bytes});
  const u64 item = bytes_of(c.types[0]);
  for (u64 i = 0; i < c.operands[S::cols]; ++i) {
    const u64 offset = offset_at(ub, c.operands[S::offsets] + 4 * i);
    if (offset % item != 0 || offset + item > c.operands[S::table_bytes]) {
      return Fault{FaultKind::bad_offset, to_text(c) + ": offset " + std::to_string(i) + " is " +
                                              std::to_string(offset) + ", expected a multiple of " +
                                              std::to_string(item) + " inside the table"};
    }
    if (c.opcode == Opcode::v_scatter) continue;
    const u64 begin = c.operands[S::src] + offset;
    const u64 found = ub.first_unwritten(begin, item);
    if (found != begin + item) {
      return Fault{FaultKind::unwritten_read,
                   to_text(c) + ": byte " + std::to_string(found) + " of ub was never written"};
    }
  }
  return {};
}

Result check_contents(const Command& c, CoreMemory& local, ExecuteOptions options) {
  if (c.opcode == Opcode::l1_im2col) {
    const u64 found = im2col_unwritten(c, local.l1);
    if (found == ~u64{0}) return {};
    return Fault{FaultKind::unwritten_read,
                 to_text(c) + ": byte " + std::to_string(found) + " of l1 was never written"};
  }
  const bool indexed = c.opcode == Opcode::v_gather || c.opcode == Opcode::v_scatter;
  return indexed && options.data ? check_offsets(c, local.ub) : Result{};
}

void mark_scattered(const Command& c, LocalMemory& ub) {
  using S = Operands_v_scatter;
  const u64 item = bytes_of(c.types[0]);
  for (u64 i = 0; i < c.operands[S::cols]; ++i) {
    ub.mark_written(c.operands[S::dst] + offset_at(ub, c.operands[S::offsets] + 4 * i), item);
  }
}

// Synchronisation, and prefetching, which changes no memory.
bool touches_nothing(const Command& c) { return c.opcode <= Opcode::wait_memory || c.opcode == Opcode::sdma_prefetch; }

const Kernels& kernels_of(Isa isa) {
  static const bool wide = has_isa(Isa::avx512);
  static const bool medium = has_isa(Isa::avx2);
  if (isa == Isa::avx512 || (isa == Isa::best && wide)) return kAvx512Kernels;
  return isa == Isa::avx2 || (isa == Isa::best && medium) ? kAvx2Kernels : kPortableKernels;
}

void run(const Command& c, const Target& target, CoreMemory& local, GlobalMemory& global, Isa isa) {
  const DefaultRounding rounding;
  switch (c.engine) {
    case Engine::m:
      return kernels_of(isa).mmad(c, target, local);
    case Engine::fix:
      return kernels_of(isa).fix(c, target, local, global.data + (c.operands[Operands_l0c_to_gm::dst] - global.base));
    case Engine::v:
      if (moves_vector(c.opcode)) return move_vector(c, local.ub.data());
      return kernels_of(isa).vector(c, local.ub.data());
    default:
      return move_data(c, target, local, global);
  }
}

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows f16c. Whether the system keeps its registers, avx2 tells.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

bool has_isa(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  }
  if (isa == Isa::avx512) {
    return has_isa(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
  return true;
#else
  return isa == Isa::best || isa == Isa::portable;
#endif
}

std::optional<Fault> execute(const Command& command, const Target& target, CoreMemory& local, GlobalMemory& global,
                             ExecuteOptions options) {
  if (touches_nothing(command)) return {};
  std::array<Touch, 6> touches;
  std::size_t count = 0;
  for (const AccessSpec& access : spec_of(command.opcode).accesses) {
    if (access.touch(command, target, touches[count])) ++count;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Touch& touch = touches[i];
    const bool global_access = touch.space == Space::gm;
    const u64 low = global_access ? global.base : 0;
    const u64 high = global_access ? global.base + global.bytes : local.of(touch.space).size();
    if ((options.data || !global_access) && (touch.begin < low || touch.end() > high)) {
      return Fault{global_access ? FaultKind::unmapped : FaultKind::out_of_range,
                   at(command, touch) + "beyond " + name_of(touch.space)};
    }
    if (global_access || touch.write || bounds_only(command, touch)) continue;
    if (Result found = check_read(command, touch, local.of(touch.space))) return found;
  }
  if (Result found = check_contents(command, local, options)) return found;
  if (options.data) run(command, target, local, global, options.isa);
  for (std::size_t i = 0; i < count; ++i) {
    if (!touches[i].write || touches[i].space == Space::gm) continue;
    if (options.data && bounds_only(command, touches[i])) {
      mark_scattered(command, local.ub);
    } else {
      mark(touches[i], local.of(touches[i].space));
    }
  }
  return {};
}

}  // namespace sk::sim

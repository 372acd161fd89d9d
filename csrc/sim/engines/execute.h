// Carries engine commands out: data movement and arithmetic, to the bit.
//
// Model: a core's local memories are bytes with a bit each that says whether the byte was ever written; global memory
// is flat. `execute` does one command at once and completely. It knows no time, no queues and no synchronisation:
// commands that order others (flags, drain, cross_*, notify, wait_memory, barrier, sdma_prefetch) change nothing here.
//
// Invariants:
//  - All checks of a command come before its first write: a command that ends in a fault changed nothing.
//  - The same command on the same bytes gives the same bytes with every instruction set and every compiler: one
//  rounding
//    where the table says one, no libm, no contraction, the default rounding mode whatever the caller's thread has set.
//  - Nothing outside the footprint is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/engines/command.h"

namespace sk::sim {

class LocalMemory {
 public:
  explicit LocalMemory(std::uint64_t bytes = 0) : bytes_(bytes), written_((bytes + 63) / 64) {}

  std::uint64_t size() const { return bytes_.size(); }
  std::uint8_t* data() { return bytes_.data(); }
  const std::uint8_t* data() const { return bytes_.data(); }

  // [begin, begin + count) must lie in the memory.
  void mark_written(std::uint64_t begin, std::uint64_t count);
  // The first byte of the range that was never written; begin + count where there is none.
  std::uint64_t first_unwritten(std::uint64_t begin, std::uint64_t count) const;
  // Back to the state before anything was written.
  void forget();

 private:
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint64_t> written_;
};

struct CoreMemory {
  LocalMemory l1, l0a, l0b, l0c, ub;

  CoreMemory() = default;
  // The memories that a core of this type has, in the target's sizes; the others are empty.
  CoreMemory(const Target& target, CoreType core);
  LocalMemory& of(Space space);  // not gm
};

// Flat RAM of `bytes` bytes that stands for the addresses from `base` on.
struct GlobalMemory {
  std::uint8_t* data = nullptr;
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
};

// Instruction sets of the host; `best` is the widest that the CPU has. All give the same bits.
enum class Isa : std::uint8_t { best, portable, avx2, avx512 };
bool has_isa(Isa isa);

struct ExecuteOptions {
  bool data = true;     // false: legality and what was written only; contents stay as they are (global memory too), and
                        // v_scatter counts its whole table as written
  Isa isa = Isa::best;  // must be one that `has_isa` confirms
};

// `command` must come from `decode` for this target and a core with these memories.
std::optional<Fault> execute(const Command& command, const Target& target, CoreMemory& local, GlobalMemory& global,
                             ExecuteOptions options);

}  // namespace sk::sim

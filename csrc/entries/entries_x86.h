// The fused kernel's entries as machine code of x86-64: what superkernel/codegen/host/entry.py says in LLVM's words,
// said directly.
//
// The entries are long, straight and new with each plan; their patterns are three. LLVM takes longer for them than all
// of planning does, so for this CPU they are written as bytes. What they do is recorded and verified like any other
// program's (superkernel/backends/host/attest.py), whichever of the two wrote it.
//
// Order in memory: a set is a store and a wait's look a load, which x86 carries out as release and acquire; there is no
// compiler here that could move others across them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace sk::entries {

// The fields of superkernel/codegen/host/entry_spec.py, which says what they are.
enum class Base : std::uint8_t { kArena, kConstants, kIo };

struct Location {
  Base space;
  std::int64_t offset, slot;
};

struct Task {
  std::int64_t subop, core;
  std::optional<std::string> symbol;
  std::vector<Location> operands;
  std::int64_t begin, end;
  std::optional<std::size_t> checked;

  bool may_fail() const { return !symbol || checked; }
};

struct RunTask {
  std::size_t task;
};

struct WaitFor {
  std::int64_t producer, count, wait;
  Location weights;
  std::int64_t prefetched;  // cache lines of them
  std::vector<Location> data;
};

struct SetCount {
  std::int64_t count;
};

using Step = std::variant<RunTask, WaitFor, SetCount>;

struct Spec {
  std::vector<Task> tasks;
  std::vector<std::vector<Step>> programs;  // one per core
  std::vector<std::int64_t> sets;           // per core and launch
  std::int64_t subops;
  std::size_t table_waits;  // that follow one another are a table
};

// The object with the three entries: `sk_entry`, `sk_profiled`, `sk_single`. Throws std::overflow_error where a number
// has no room.
std::vector<std::uint8_t> entries_object(const Spec& spec);

}  // namespace sk::entries

// What an exported library adds to the runtime: its models as tables, which `superkernel export` writes, and the C
// functions of its header in terms of them.
//
// Model: a library is constant data (`Description`): models, per model one plan for each number of threads it was
// compiled for, and their constants, which lie in the library's file and are mapped with it. An instance (`SkModel`)
// adds a runtime kernel and states.
//
// Invariants: no function throws; each that fails has left a message for its thread. Nothing here knows Python.
#pragma once

#include <superkernel_abi.h>
#include <superkernel_library.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace sk::library {

struct Block {
  const std::uint8_t* data;
  std::size_t bytes;
};

// A sub-operator that may find its data out of range.
struct Checked {
  std::int32_t subop;
  const char* name;
};

struct Plan {
  std::int32_t threads;
  SkEntry entry;
  SkSingleEntry single;
  std::size_t arena_bytes;
  std::size_t scratch_bytes;  // per thread
  Block constants;
  std::span<const Block> shared;
  std::span<const std::uint64_t> sets;
  std::int32_t subops;
  bool stepwise;
  std::int64_t watchdog_ns;
  std::span<const Checked> checked;
};

struct Model {
  std::uint64_t interface;        // digest of names, types and shapes
  std::span<const Plan> plans;    // by threads, ascending
  std::span<const Block> states;  // what they begin as
};

struct Description {
  const char* name;
  std::span<const char* const> features;  // of the CPU, in LLVM's words
  std::span<const SkModelInfo> infos;
  std::span<const Model> models;  // as `infos`
};

// The last failure of the calling thread in this library.
const char* message() noexcept;

// `threads`: the most that it may use, 0 for the CPUs at hand; of the plans the largest that fits is taken.
// `interface`: what the program's header says, 0 for a program that has none.
SkStatus open(const Description& library, const char* model, std::int32_t threads, std::uint64_t interface,
              SkModel** opened) noexcept;
SkStatus run(SkModel* model, const void* const* inputs, void* const* outputs) noexcept;
void close(SkModel* model) noexcept;

std::int32_t threads(const SkModel* model) noexcept;
void* state(SkModel* model, std::size_t index) noexcept;  // null where there is none
void reset(SkModel* model) noexcept;

// Of all threads of the library: how long they spin at most ahead of sleep, and whether each keeps to one CPU.
void workers(std::int64_t spin_ns, bool pinned) noexcept;

// The first of the features, in LLVM's words, that this CPU or its system lacks, or that nobody here knows; null: none.
const char* missing_feature(std::span<const char* const> features) noexcept;

}  // namespace sk::library

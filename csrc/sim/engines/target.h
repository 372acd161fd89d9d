// The accelerator's description as plain data, and the integer arithmetic that turns its figures into cycles.
//
// Model: one member per section of a target file, with its fields, as the generated table has them. Figures keep the
// unit of their source, and the functions below are the only place that makes cycles of them. They give the integers of
// superkernel/target/aicore.py, each rounded up.
//
// Invariant: values come from a checked target (Python checks every field and relation); nothing is checked again here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/engine_commands.inc"

namespace sk::sim {

struct Target {
#define SK_FIELD(section, field, type) type field{};
#define SK_SECTION(section)       \
  struct {                        \
    SK_TARGET_##section(SK_FIELD) \
  } section;
  SK_TARGET_SECTIONS(SK_SECTION)
#undef SK_SECTION
#undef SK_FIELD

  // Cube and vector cores together; global numbers count cube cores first.
  std::uint64_t cores() const { return device.cube_cores + device.vector_cores; }

  // A rate in GB/s as whole MB/s, at least 1; `scaled` says whether rates.scale applies (section `rates` only).
  std::uint64_t mb_per_s(double gb_per_s, bool scaled) const;

  std::uint64_t cycles_of_ns(std::uint64_t time_ns) const;
  std::uint64_t transfer(std::uint64_t mb_per_s, std::uint64_t bytes) const;
  // As `transfer`, longer by dma.unaligned_loss_percent where the address is off dma.aligned_bytes.
  std::uint64_t gm_transfer(std::uint64_t mb_per_s, std::uint64_t bytes, std::uint64_t address) const;
  // Elements per cycle of the vector engine for elements of `item` bytes.
  std::uint64_t lanes(std::uint64_t item) const { return item == 4 ? vector.lanes_32bit : vector.lanes_16bit; }
};

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

}  // namespace sk::sim

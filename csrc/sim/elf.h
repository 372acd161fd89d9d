// Reader of static RV64 ELF executables.
//
// Model: `read_elf` checks every field that it uses against the file's size and against each other before it touches
// what the field points at, and collects what a bare-metal machine needs: loadable segments, the entry, the symbols
// tohost and fromhost. Nothing is relocated.
//
// Invariant: no input, however damaged, makes it read outside the file, allocate beyond its size, or throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sk::sim {

struct Segment {
  std::uint64_t address = 0;  // physical
  std::size_t file_offset = 0;
  std::size_t file_bytes = 0;
  std::uint64_t memory_bytes = 0;  // the rest behind file_bytes is zero
};

struct ElfImage {
  std::uint64_t entry = 0;
  std::vector<Segment> segments;
  std::optional<std::uint64_t> tohost;
  std::optional<std::uint64_t> fromhost;
};

// What is wrong with a file or a configuration: where, what was expected, what was found. Empty message: nothing.
struct Problem {
  std::string message;
  std::string location;
  std::string expected;
  std::string found;
};

Problem read_elf(std::span<const std::uint8_t> file, ElfImage& image);

}  // namespace sk::sim

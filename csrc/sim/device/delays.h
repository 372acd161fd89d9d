// Delays that no description of a device has, drawn from a seed: every legal timing has to give the same result.
//
// Model: each engine of each core, and each core's way to the others, is punctual, late now and then, or always late,
// by up to 32,768 cycles, small and large ones alike. Seed 0: nobody is ever late. Draws are made in the order of
// events, so that a seed says all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sk::sim {

class Delays {
 public:
  void begin(std::uint64_t seed, std::size_t parts) {
    state_ = seed * 0x9e3779b97f4a7c15ULL;
    chances_.clear();
    if (seed == 0) return;
    constexpr std::array<std::uint64_t, 5> kChances = {0, 0, 16, 128, kAlways};
    for (std::size_t i = 0; i < parts; ++i) chances_.push_back(kChances[draw() % kChances.size()]);
  }

  // Of the next thing that a part does, in cycles.
  std::uint64_t of(std::size_t part) {
    if (chances_.empty() || draw() % kAlways >= chances_[part]) return 0;
    const std::uint64_t bits = draw() % (kDelayMaxBits + 1);
    return draw() % (std::uint64_t{1} << bits);
  }

 private:
  static constexpr std::uint64_t kAlways = 256, kDelayMaxBits = 15;

  // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
  std::uint64_t draw() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  std::uint64_t state_ = 0;
  std::vector<std::uint64_t> chances_;  // in kAlways, by part; empty: none is late
};

}  // namespace sk::sim

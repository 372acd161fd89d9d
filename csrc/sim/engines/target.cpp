#include "sim/engines/target.h"

#include <cmath>

namespace sk::sim {

std::uint64_t Target::mb_per_s(double gb_per_s, bool scaled) const {
  // llrint rounds ties to even as Python's round() does.
  const double exact = scaled ? gb_per_s * rates.scale * 1000 : gb_per_s * 1000;
  const auto rounded = std::llrint(exact);
  return rounded < 1 ? 1 : static_cast<std::uint64_t>(rounded);
}

std::uint64_t Target::cycles_of_ns(std::uint64_t time_ns) const { return ceil_div(time_ns * device.clock_mhz, 1000); }

std::uint64_t Target::transfer(std::uint64_t mb_per_s, std::uint64_t bytes) const {
  return ceil_div(bytes * device.clock_mhz, mb_per_s);
}

std::uint64_t Target::gm_transfer(std::uint64_t mb_per_s, std::uint64_t bytes, std::uint64_t address) const {
  const std::uint64_t cycles = transfer(mb_per_s, bytes);
  if (address % dma.aligned_bytes == 0) return cycles;
  // The percentage counts in whole tenths: exact integer arithmetic.
  const auto loss = static_cast<std::uint64_t>(std::llrint(dma.unaligned_loss_percent * 10));
  return ceil_div(cycles * 1000, 1000 - loss);
}

}  // namespace sk::sim

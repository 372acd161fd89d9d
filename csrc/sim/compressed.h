// The C extension of RV64 with D: every 16-bit instruction as the 32-bit one it stands for.
#pragma once

#include <cstdint>

namespace sk::sim {

// The 32-bit word with the same meaning; 0, which is no instruction, where `half` is illegal or reserved. Hints expand
// to instructions that write x0.
std::uint32_t expand_compressed(std::uint16_t half);

}  // namespace sk::sim

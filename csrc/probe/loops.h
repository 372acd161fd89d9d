// The inner loops of the machine's probe: bursts of arithmetic that hide all latencies, and sequential reads. The
// widest that the CPU has is chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sk {

// A burst of `steps` turns; `operations` of a turn, a multiply-add counted as two. `run` is null where the CPU has no
// such instructions, or the system does not let this process use them.
struct Burst {
  void (*run)(std::int64_t steps) = nullptr;
  double operations = 0.0;
};

// "avx512", "avx2", "plain": f32 multiply-adds of a tier; "bf16", "int8": the dot products of AVX-512; "amx_bf16",
// "amx_int8": tiles. Without `run` for other names, too.
Burst burst_of(std::string_view kind);

// Reads `bytes` from `data`, which is 64-byte aligned; whole blocks of kReadBlock.
inline constexpr std::size_t kReadBlock = 256;
using ReadLoop = void (*)(const std::uint8_t* data, std::size_t bytes);
ReadLoop read_loop();

}  // namespace sk

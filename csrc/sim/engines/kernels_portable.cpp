// The arithmetic of the engines for any host: no instruction beyond the build's own.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "sim/engines/kernels.h"

#define SK_LANES 4
#define SK_TILE_ROWS 2
#define SK_FMA 0
#define SK_F16C 0

namespace sk::sim {
namespace portable {
namespace {
// clang-format off: each builds on the ones above it
#include "sim/engines/lanes.inl"
#include "sim/engines/elementwise.inl"
#include "sim/engines/reduce.inl"
#include "sim/engines/cast.inl"
#include "sim/engines/cube.inl"
// clang-format on
}  // namespace
}  // namespace portable

const Kernels kPortableKernels = {portable::vector_command, portable::mmad_command, portable::fix_command};

}  // namespace sk::sim

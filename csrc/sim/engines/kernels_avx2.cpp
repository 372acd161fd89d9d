// The arithmetic of the engines with AVX2, FMA and F16C.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "sim/engines/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define SK_LANES 8
#define SK_TILE_ROWS 4
#define SK_FMA 1
#define SK_F16C 1

// Only what is defined between here and the end of the namespace: inline functions of the headers above may be merged
// by the linker with those of other files, and must run on every host.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
namespace sk::sim::avx2 {
namespace {
// clang-format off: each builds on the ones above it
#include "sim/engines/lanes.inl"
#include "sim/engines/elementwise.inl"
#include "sim/engines/reduce.inl"
#include "sim/engines/cast.inl"
#include "sim/engines/cube.inl"
// clang-format on
}  // namespace
}  // namespace sk::sim::avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const sk::sim::Kernels sk::sim::kAvx2Kernels = {sk::sim::avx2::vector_command, sk::sim::avx2::mmad_command,
                                                sk::sim::avx2::fix_command};
#else
const sk::sim::Kernels sk::sim::kAvx2Kernels = sk::sim::kPortableKernels;  // never chosen: has_isa denies it
#endif

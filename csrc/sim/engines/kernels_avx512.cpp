// The arithmetic of the engines with AVX-512.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "sim/engines/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define SK_LANES 16
#define SK_TILE_ROWS 8
#define SK_FMA 1
#define SK_F16C 1

// Only what is defined between here and the end of the namespace: inline functions of the headers above may be merged
// by the linker with those of other files, and must run on every host.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif
namespace sk::sim::avx512 {
namespace {
// clang-format off: each builds on the ones above it
#include "sim/engines/lanes.inl"
#include "sim/engines/elementwise.inl"
#include "sim/engines/reduce.inl"
#include "sim/engines/cast.inl"
#include "sim/engines/cube.inl"
// clang-format on
}  // namespace
}  // namespace sk::sim::avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const sk::sim::Kernels sk::sim::kAvx512Kernels = {sk::sim::avx512::vector_command, sk::sim::avx512::mmad_command,
                                                  sk::sim::avx512::fix_command};
#else
const sk::sim::Kernels sk::sim::kAvx512Kernels = sk::sim::kPortableKernels;  // never chosen: has_isa denies it
#endif

// The contract between generated code and the host runtime: one struct, four callbacks, three entry signatures.
//
// Generated code reads these fields by byte offset; `superkernel/codegen/host/abi.py` holds the same offsets and a test
// compares them with `_core.abi_layout()`. Change both together and raise SK_ABI_VERSION.
//
// Progress counters: core p owns the 64-bit word flags[p * SK_FLAG_STRIDE]. It only ever grows. In launch e (counted
// from 0 per context) the k-th set of core p (k counted from 1) stores e * sets[p] + k with release order; a wait for
// it spins until an acquire load is >= that value. Nothing is ever reset, so there is no reset to forget.
#ifndef SUPERKERNEL_ABI_H
#define SUPERKERNEL_ABI_H

#include <stdint.h>

// Version 2 added `spin_limit` (in place of a reserved word) and `clock` (at the end): code made for version 1 runs
// unchanged.
#define SK_ABI_VERSION 2
// 64-bit words between two cores' counters: two cache lines, for the adjacent-line prefetcher.
#define SK_FLAG_STRIDE 16

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SkContext SkContext;

// Called when a wait has spun for a while. Returns 0 to go on spinning, 1 to give up (abort or watchdog): generated
// code then returns from the entry at once. `wait` is the index of the wait in the plan, for the report.
typedef int32_t (*SkWaitSlow)(SkContext* ctx, int32_t core, int32_t producer, uint64_t threshold, int32_t wait);

// A sub-operator that runs on the NumPy reference: on worker 0. Returns 0, or 1 if Python raised (abort). On another
// worker it asks for the reference's error: returns 1 at once, and the caller's thread makes the call when all workers
// have left.
typedef int32_t (*SkHostCall)(SkContext* ctx, int32_t subop);

// The present time in ticks of `_core.tsc_hz()`. Code for x86-64 reads the same ticks with llvm.readcyclecounter
// (rdtsc) as long as `_core.tsc_is_native()`; elsewhere it calls this.
typedef uint64_t (*SkClock)(void);

struct SkContext {
  uint64_t epoch;      // launches done before this one
  uint8_t* arena;      // intermediate values
  uint8_t* constants;  // packed constants of this kernel alone, 64-byte aligned offsets
  uint8_t** io;        // base pointers: inputs, outputs, states, then packed constants that kernels share
  uint64_t* flags;     // progress counters, see above
  uint8_t* scratch;    // per core scratch: core c owns [c * scratch_stride, (c + 1) * scratch_stride)
  uint64_t scratch_stride;
  uint64_t* events;        // profiled entry only: core c writes time stamps at events[c * events_stride + i]
  uint64_t events_stride;  // in 64-bit words
  uint32_t abort;          // set to 1 to make every core leave at its next slow wait
  uint32_t spin_limit;     // advice: spins before a wait calls wait_slow; small where threads outnumber CPUs
  SkWaitSlow wait_slow;
  SkHostCall host_call;
  SkClock clock;  // time stamps where the CPU has no invariant counter of its own that LLVM can read
};

// The fused kernel: every worker calls it once per launch with its own core number. Returns 0, or 1 after an abort.
typedef int32_t (*SkEntry)(SkContext* ctx, int32_t core);

// One sub-operator of the same program, for the one-by-one baseline: no waits, no sets; the runtime joins in between.
typedef int32_t (*SkSingleEntry)(SkContext* ctx, int32_t core, int32_t subop);

#ifdef __cplusplus
}
#endif
#endif  // SUPERKERNEL_ABI_H

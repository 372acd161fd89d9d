// What an emitted program does, found out by running it: the loaded entries, worker by worker, with recorders in the
// place of its kernels and with progress counters that nobody but this file raises.
//
// Model: while a recording is made, every kernel begins with a jump to a recorder, which notes the arguments and
// returns. Memory is a reservation of addresses that can be read and not written, so that every pointer that a kernel
// is called with tells what it hangs on. The context is an ordinary one: a wait that is not met calls `wait_slow`. Each
// worker's entry runs four times:
//
//     discovering   all other counters at 0: every wait shows itself. It must not pass while the counter that it names
//                   is one short and all others are far ahead, and must pass once that one has its value and all others
//                   are 0: so the wait is what it says, whatever the code is.
//     confirming    in a later launch, the counter of the coming wait one short and all others far ahead: whoever looks
//                   at another counter, or for a lesser value, passes unseen and is found out.
//     open          all counters far ahead: no wait may ask for the runtime.
//     profiled      the profiled entry, discovering: it must do the same.
//
// Then the single entry: its tasks, sub-operator by sub-operator, must be the worker's calls. A counter that changes
// between two events was set by the worker itself, and must be its own.
//
// An entry that uses half a second of CPU time without an event is left in the midst, by a signal (SIGURG, which is
// handed on where it came from elsewhere).
//
// It knows the ABI and nothing of how entries are emitted or what was planned. It does not see: prefetches; whether a
// wait's load acquires and a set's store releases; what happens behind a launch that fails.
#pragma once

#include <superkernel_abi.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sk {

// An event: its kind, then
//   call       kernel (its number), begin, end, then region and offset of each operand and of the scratch memory
//   host_call  sub-operator
//   wait       producer, count within the launch, index of the wait
//   set        count within the launch
using RecordedStep = std::vector<std::int64_t>;
enum class RecordedKind : std::int64_t { call, host_call, wait, set };

struct RecorderConfig {
  struct KernelCode {
    std::uintptr_t address;
    std::size_t operands;
  };
  SkEntry entry = nullptr;
  SkEntry profiled = nullptr;
  SkSingleEntry single = nullptr;
  int cores = 1;
  int subops = 0;
  std::vector<KernelCode> kernels;
  std::vector<std::size_t> regions;  // bytes: arena, constants, scratch of all cores, io table, shared constants
  std::size_t scratch_stride = 0;
  std::size_t events_words = 0;  // per core
};

// `message` empty: `cores` has each worker's events. Region -1 stands for an address in none.
struct Recording {
  enum class Outcome { recorded, wrong, refused, no_memory };
  Outcome outcome = Outcome::recorded;
  std::string message, location, expected, found;
  std::vector<std::vector<RecordedStep>> cores;
};

// Nobody else may run the program meanwhile. `refused`: the system does not let code be changed; nothing was.
Recording record_program(const RecorderConfig& config);

}  // namespace sk

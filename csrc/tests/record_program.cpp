// What an emitted program does, by the recorder, as a program of its own: for processors that are emulated here
// (tests/st/test_aarch64.py links it with the objects of a graph).
//
// Arguments: cores, sub-operators, bytes of scratch memory per core, time stamps per core, then the bytes of all
// regions. Events go to stdout, a line each: the worker, then the words of runtime/recorder.h; where the recording
// fails, its message and status 1.
#include <superkernel_abi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/recorder.h"

extern "C" {
std::int32_t sk_entry(SkContext* ctx, std::int32_t core);
std::int32_t sk_profiled(SkContext* ctx, std::int32_t core);
std::int32_t sk_single(SkContext* ctx, std::int32_t core, std::int32_t subop);
// Made with the objects: the kernels' addresses and numbers of operands, up to an address of null.
extern const struct {
  void (*code)();
  std::size_t operands;
} kernel_table[];
}

int main(int argc, char** argv) {
  std::vector<std::size_t> words;
  for (int i = 1; i < argc; ++i) words.push_back(std::strtoull(argv[i], nullptr, 10));
  if (words.size() < 7) return 2;
  sk::RecorderConfig config;
  config.entry = sk_entry;
  config.profiled = sk_profiled;
  config.single = sk_single;
  config.cores = static_cast<int>(words[0]);
  config.subops = static_cast<int>(words[1]);
  config.scratch_stride = words[2];
  config.events_words = words[3];
  config.regions.assign(words.begin() + 4, words.end());
  for (const auto* kernel = kernel_table; kernel->code != nullptr; ++kernel) {
    config.kernels.push_back({reinterpret_cast<std::uintptr_t>(kernel->code), kernel->operands});
  }
  const sk::Recording made = sk::record_program(config);
  if (made.outcome != sk::Recording::Outcome::recorded) {
    std::printf("outcome %d: %s, %s, %s, not %s\n", static_cast<int>(made.outcome), made.message.c_str(),
                made.location.c_str(), made.found.c_str(), made.expected.c_str());
    return 1;
  }
  for (std::size_t core = 0; core < made.cores.size(); ++core) {
    for (const sk::RecordedStep& step : made.cores[core]) {
      std::printf("%zu", core);
      for (const std::int64_t word : step) std::printf(" %lld", static_cast<long long>(word));
      std::printf("\n");
    }
  }
  return 0;
}

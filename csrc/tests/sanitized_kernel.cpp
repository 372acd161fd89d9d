// An emitted program on the real runtime under the thread sanitizer: `sk_entry` and its kernels come as objects whose
// loads, stores, waits and sets call the sanitizer (tests/st/test_thread_sanitizer.py makes them).
//
// Arguments: cores, launches, then bytes of arena, constants and scratch memory, then `inputs outputs states` as counts
// and the bytes of each. Inputs, states and constants come from stdin; outputs and states of the last launch go to
// stdout. Ahead of each launch the caller writes its inputs again and fills its outputs, as a user's next call would.
#include <superkernel_abi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/kernel.h"

extern "C" std::int32_t sk_entry(SkContext* ctx, std::int32_t core);

// Ahead of each wait and set: threads get apart and meet in ever new ways, also where they share one CPU.
extern "C" void sk_delay() {
  thread_local std::minstd_rand random{std::random_device{}()};
  if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 50));
}

namespace {

using Bytes = std::vector<std::uint8_t>;

void read(std::uint8_t* to, std::size_t size) {
  if (std::fread(to, 1, size, stdin) != size) std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::size_t> words;
  for (int i = 1; i < argc; ++i) words.push_back(std::strtoull(argv[i], nullptr, 10));
  if (words.size() < 8) return 2;
  const std::size_t launches = words[1], inputs = words[5], outputs = words[6], states = words[7];
  if (words.size() != 8 + inputs + outputs + states) return 2;
  std::vector<Bytes> buffers;
  std::vector<std::uint8_t*> io;
  for (std::size_t i = 8; i < words.size(); ++i) {
    buffers.emplace_back(words[i]);
    io.push_back(buffers.back().data());
  }
  for (std::size_t i = 0; i < io.size(); ++i) {
    if (i < inputs || i >= inputs + outputs) read(io[i], buffers[i].size());
  }
  Bytes constants(words[3]);
  read(constants.data(), constants.size());
  const std::vector<Bytes> given(buffers.begin(), buffers.begin() + static_cast<std::ptrdiff_t>(inputs));

  sk::KernelConfig config;
  config.entry = sk_entry;
  config.cores = static_cast<int>(words[0]);
  config.arena_bytes = words[2];
  config.constants = constants.data();
  config.constants_bytes = constants.size();
  config.scratch_bytes = words[4];
  config.io_count = io.size();
  const auto kernel = sk::Kernel::create(std::move(config));
  if (kernel == nullptr) return 2;
  for (std::size_t launch = 0; launch < launches; ++launch) {
    for (std::size_t i = 0; i < inputs; ++i) std::copy(given[i].begin(), given[i].end(), io[i]);
    for (std::size_t i = inputs; i < inputs + outputs; ++i) std::fill(buffers[i].begin(), buffers[i].end(), 0xA5);
    if (kernel->run(io, {}) != sk::AbortReason::kNone) return 3;
  }
  for (std::size_t i = inputs; i < io.size(); ++i) std::fwrite(io[i], 1, buffers[i].size(), stdout);
  return 0;
}

// Which of two ways to launch a kernel takes less time, where that changes with what others do.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace sk {

// By mean times, of late ones more than of early ones: one launch that was lucky says little. What is slower is tried
// again now and then, as often as costs a small share of the time.
class Ways {
 public:
  // The way of the next launch, 0 or 1.
  std::size_t next() const noexcept {
    if (ways_[1].launches < kTries) return 1;
    if (ways_[0].launches < kTries) return 0;
    const std::size_t better = ways_[1].mean_ns <= ways_[0].mean_ns ? 1 : 0;
    return ways_[1 - better].mean_ns * kRounds < since_ns_ ? 1 - better : better;
  }

  void took(std::size_t way, std::int64_t ns) noexcept {
    Way& now = ways_[way];
    now.launches = std::min(now.launches + 1, kMemory);
    now.mean_ns += (ns - now.mean_ns) / now.launches;
    since_ns_ = way == last_ ? since_ns_ + ns : 0;
    last_ = way;
  }

 private:
  struct Way {
    int launches = 0;
    std::int64_t mean_ns = 0;
  };

  static constexpr int kTries = 2, kMemory = 4, kRounds = 32;
  std::array<Way, 2> ways_;
  std::size_t last_ = 0;
  std::int64_t since_ns_ = 0;  // of the launches of that way, one behind the other
};

}  // namespace sk

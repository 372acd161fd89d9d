// Vector clocks: who knows what of whom.
//
// Model: an actor is something whose accesses are in order by themselves: a control unit's stores, its loads, each
// engine's queue, the SDMA queue. Each has a time of its own that grows when it releases something. An access is
// stamped with its actor's time; it is ordered before another actor's access where that actor's clock has reached the
// stamp. Clocks are shared and never changed once shared; no clock means that nothing is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace sk::sim {

using Clock = std::vector<std::uint32_t>;  // by actor
using ClockRef = std::shared_ptr<const Clock>;

inline std::uint32_t time_of(const ClockRef& clock, std::size_t actor) { return clock ? (*clock)[actor] : 0; }

inline void join(Clock& into, const Clock& other) {
  std::uint32_t* const a = into.data();
  const std::uint32_t* const b = other.data();
  for (std::size_t i = 0; i < into.size(); ++i) a[i] = std::max(a[i], b[i]);
}

// What both know.
inline ClockRef joined(const ClockRef& a, const ClockRef& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto both = std::make_shared<Clock>(*a);
  join(*both, *b);
  return both;
}

}  // namespace sk::sim

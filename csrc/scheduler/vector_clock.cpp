#include "scheduler/vector_clock.h"

#include <algorithm>

namespace sk::scheduler {

VectorClock::VectorClock(std::int32_t cores)
    : cores_(cores), rows_(1, Row(static_cast<std::size_t>(cores), -1)), now_(static_cast<std::size_t>(cores), 0) {}

void VectorClock::run(std::int32_t position, std::int32_t core,
                      std::span<const std::pair<std::int32_t, std::int32_t>> sources) {
  const std::size_t before = now_[static_cast<std::size_t>(core)];
  Row now = rows_[before];
  bool learns = false;
  for (const auto& [at, other] : sources) {
    if (now[static_cast<std::size_t>(other)] >= at) continue;
    const Row& theirs = rows_[tasks_.at(key(at, other)).finish];
    for (std::size_t n = 0; n < now.size(); ++n) now[n] = std::max(now[n], theirs[n]);
    learns = true;
  }
  const std::size_t start = learns ? rows_.size() : before;
  if (learns) rows_.push_back(now);
  now[static_cast<std::size_t>(core)] = position;
  now_[static_cast<std::size_t>(core)] = rows_.size();
  tasks_[key(position, core)] = {start, rows_.size()};
  rows_.push_back(std::move(now));
}

std::vector<std::int32_t> VectorClock::at(std::int32_t position, std::span<const std::int32_t> cores) const {
  if (cores.empty()) return Row(static_cast<std::size_t>(cores_), position);
  Row known = rows_[tasks_.at(key(position, cores[0])).start];
  for (const std::int32_t core : cores.subspan(1)) {
    const Row& theirs = rows_[tasks_.at(key(position, core)).start];
    for (std::size_t n = 0; n < known.size(); ++n) known[n] = std::min(known[n], theirs[n]);
  }
  return known;
}

}  // namespace sk::scheduler

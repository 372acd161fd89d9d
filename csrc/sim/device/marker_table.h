// What a core counts by progress marker.
//
// Model: rows in the order in which markers are first used, found through a table of places (open addressing). Few
// markers have commands of their own, so that their engines' rows exist from the first command on.
//
// Invariant: a row stays where it is until `clear`; others keep its address.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "sim/device/control_unit.h"
#include "sim/device/counters.h"

namespace sk::sim {

struct MarkerStats {
  std::uint32_t marker = 0;
  ControlStats control;
  std::unique_ptr<std::array<EngineStats, kWindows>> engines;

  EngineStats& engine(std::size_t number) {
    if (!engines) engines = std::make_unique<std::array<EngineStats, kWindows>>();
    return (*engines)[number];
  }
};

class MarkerTable {
 public:
  MarkerStats& operator[](std::uint32_t marker) {
    if (2 * (rows_.size() + 1) > places_.size()) grow();
    std::uint32_t& place = place_of(marker);
    if (place != 0) return rows_[place - 1];
    rows_.emplace_back().marker = marker;
    place = static_cast<std::uint32_t>(rows_.size());
    return rows_.back();
  }
  void clear() {
    rows_.clear();
    std::fill(places_.begin(), places_.end(), 0);
  }
  // All rows by ascending marker.
  std::vector<const MarkerStats*> sorted() const {
    std::vector<const MarkerStats*> found;
    for (const MarkerStats& row : rows_) found.push_back(&row);
    std::sort(found.begin(), found.end(), [](auto* a, auto* b) { return a->marker < b->marker; });
    return found;
  }

 private:
  static constexpr std::size_t kPlacesMin = 64;

  // The marker's place, or the free one where it belongs.
  std::uint32_t& place_of(std::uint32_t marker) {
    std::size_t at = marker;
    while (true) {
      std::uint32_t& place = places_[at & (places_.size() - 1)];
      if (place == 0 || rows_[place - 1].marker == marker) return place;
      ++at;
    }
  }
  void grow() {
    places_.assign(std::max(kPlacesMin, 2 * places_.size()), 0);
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      place_of(rows_[row].marker) = static_cast<std::uint32_t>(row + 1);
    }
  }

  std::deque<MarkerStats> rows_;
  std::vector<std::uint32_t> places_;  // a row's number + 1, or 0; their count is a power of two
};

}  // namespace sk::sim

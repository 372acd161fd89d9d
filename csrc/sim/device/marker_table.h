// What a core counts by progress marker.
//
// Model: rows in the order in which markers are first used. Markers are small numbers, and most of them new to their
// core: a row is found by its marker's place in a list, those of unusual size in a map. Rows come out of a pool of all
// cores, whose memory is asked of the system in large pieces and kept from launch to launch. Few markers have commands
// of their own, so that their engines' rows exist from the first command on.
//
// Invariant: a row stays where it is until the pool is cleared; others keep its address.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/device/control_unit.h"
#include "sim/device/counters.h"
#include "sim/huge_pages.h"

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

class MarkerPool {
 public:
  MarkerStats& take(std::uint32_t marker) {
    if (used_ == 0 || pieces_[used_ - 1].size() == pieces_[used_ - 1].capacity()) next_piece();
    MarkerStats& row = pieces_[used_ - 1].emplace_back();
    row.marker = marker;
    return row;
  }
  // Keeps the memory.
  void clear() {
    for (Piece& piece : pieces_) piece.clear();
    used_ = 0;
  }

 private:
  using Piece = std::vector<MarkerStats, HugePages<MarkerStats>>;

  void next_piece();

  // Small programs stay within the first; the others fill large pages.
  static constexpr std::size_t kFirstRows = 1024;
  static constexpr std::size_t kOtherRows = kHugePageBytes / sizeof(MarkerStats);

  std::vector<Piece> pieces_;  // rows are never moved in memory
  std::size_t used_ = 0;       // pieces: the last one is being filled
};

class MarkerTable {
 public:
  MarkerStats& find(std::uint32_t marker, MarkerPool& pool) {
    MarkerStats*& row = place_of(marker);
    if (row == nullptr) {
      row = &pool.take(marker);
      rows_.push_back(row);
    }
    return *row;
  }
  // Soon the marker may be looked for: the host fetches its place.
  void will_find(std::uint32_t marker) const {
    if (marker < near_.size()) __builtin_prefetch(&near_[marker]);
  }
  // Before the pool's.
  void clear() {
    rows_.clear();
    near_.clear();
    far_.clear();
  }
  // All rows by ascending marker.
  std::vector<const MarkerStats*> sorted() const {
    std::vector<const MarkerStats*> found(rows_.begin(), rows_.end());
    std::sort(found.begin(), found.end(), [](auto* a, auto* b) { return a->marker < b->marker; });
    return found;
  }

 private:
  static constexpr std::uint32_t kNearMax = 1U << 16;

  MarkerStats*& place_of(std::uint32_t marker) {
    if (marker >= kNearMax) return far_[marker];
    if (marker >= near_.size()) near_.resize(std::max<std::size_t>(marker + 1, 2 * near_.size()));
    return near_[marker];
  }

  std::vector<MarkerStats*> rows_;
  std::vector<MarkerStats*> near_;  // by marker
  std::map<std::uint32_t, MarkerStats*> far_;
};

}  // namespace sk::sim

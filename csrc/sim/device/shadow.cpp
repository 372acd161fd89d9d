// See shadow.h.
#include "sim/device/shadow.h"

#include <algorithm>

namespace sk::sim {
namespace {

bool ordered(const Stamp& earlier, const Stamp& later, const Clock* clock) {
  if (earlier.time == 0 || earlier.actor == later.actor) return true;
  // Stores and loads of one control unit are neighbours, and in program order.
  if (earlier.opcode == 0 && later.opcode == 0 && (earlier.actor ^ later.actor) == 1) return true;
  return clock != nullptr && earlier.time <= (*clock)[earlier.actor];
}

}  // namespace

void Shadow::configure(std::uint64_t bytes) {
  const std::uint64_t cells = (bytes + kCellBytes - 1) / kCellBytes;
  pages_.clear();
  pages_.resize((cells + kPageCells - 1) / kPageCells);
}

Shadow::Cell& Shadow::cell_of(std::uint64_t address) {
  const std::uint64_t number = address / kCellBytes;
  auto& page = pages_[number / kPageCells];
  if (!page) page = std::make_unique<Cell[]>(kPageCells);
  Cell& cell = page[number % kPageCells];
  if (cell.generation != generation_) {
    cell.generation = generation_;
    cell.segments.clear();
  }
  return cell;
}

std::optional<Conflict> Shadow::meet(Segment& segment, bool writes, const Stamp& stamp, const Clock* clock) const {
  const auto conflict = [&](const Stamp& earlier, bool wrote) {
    return Conflict{earlier, wrote, segment.begin, segment.end};
  };
  if (!ordered(segment.written, stamp, clock)) return conflict(segment.written, true);
  if (writes) {
    if (!ordered(segment.read, stamp, clock)) return conflict(segment.read, false);
    for (const Stamp& read : segment.more) {
      if (!ordered(read, stamp, clock)) return conflict(read, false);
    }
    segment.written = stamp;
    segment.read = {};
    segment.more.clear();
    return std::nullopt;
  }
  if (ordered(segment.read, stamp, clock)) {
    segment.read = stamp;
    std::erase_if(segment.more, [&](const Stamp& read) { return ordered(read, stamp, clock); });
    return std::nullopt;
  }
  for (Stamp& read : segment.more) {
    if (!ordered(read, stamp, clock)) continue;
    read = stamp;
    return std::nullopt;
  }
  segment.more.push_back(stamp);
  return std::nullopt;
}

// Makes segment boundaries at begin and end, and a segment of every gap between them.
void Shadow::split(Cell& cell, std::uint32_t begin, std::uint32_t end) const {
  std::vector<Segment> parts;
  parts.reserve(cell.segments.size() + 3);
  std::uint32_t at = begin;  // [begin, at) is covered
  const auto cover_to = [&](std::uint32_t to) {
    if (at < to) parts.push_back({at, to, {}, {}, {}});
    at = std::max(at, to);
  };
  for (Segment& segment : cell.segments) {
    if (segment.begin >= end) cover_to(end);
    const std::uint32_t last = segment.end;
    if (last <= begin || segment.begin >= end) {
      parts.push_back(std::move(segment));
      continue;
    }
    if (segment.begin < begin) {
      parts.push_back(segment);
      parts.back().end = begin;
      segment.begin = begin;
    }
    cover_to(segment.begin);
    at = std::min(last, end);
    if (last <= end) {
      parts.push_back(std::move(segment));
      continue;
    }
    parts.push_back(segment);
    parts.back().end = end;
    segment.begin = end;
    parts.push_back(std::move(segment));
  }
  cover_to(end);
  cell.segments = std::move(parts);
}

std::optional<Conflict> Shadow::access_cell(Cell& cell, std::uint32_t begin, std::uint32_t end, bool writes,
                                            const Stamp& stamp, const Clock* clock) const {
  auto& segments = cell.segments;
  if (segments.empty()) {
    segments.push_back({begin, end, writes ? stamp : Stamp{}, writes ? Stamp{} : stamp, {}});
    return std::nullopt;
  }
  const auto exact = std::lower_bound(segments.begin(), segments.end(), begin,
                                      [](const Segment& s, std::uint32_t value) { return s.begin < value; });
  if (exact != segments.end() && exact->begin == begin && exact->end == end) return meet(*exact, writes, stamp, clock);
  split(cell, begin, end);
  for (Segment& segment : segments) {
    if (segment.end <= begin || segment.begin >= end) continue;
    if (auto conflict = meet(segment, writes, stamp, clock)) return conflict;
  }
  if (!writes) return std::nullopt;
  // One history now.
  const auto inside = [&](const Segment& s) { return s.begin > begin && s.end <= end; };
  std::erase_if(segments, inside);
  for (Segment& segment : segments) {
    if (segment.begin == begin) segment.end = end;
  }
  return std::nullopt;
}

std::optional<Conflict> Shadow::access(std::uint64_t begin, std::uint64_t end, bool writes, const Stamp& stamp,
                                       const Clock* clock) {
  while (begin < end) {
    const std::uint64_t base = begin / kCellBytes * kCellBytes;
    const std::uint64_t stop = std::min(end, base + kCellBytes);
    auto conflict = access_cell(cell_of(begin), static_cast<std::uint32_t>(begin - base),
                                static_cast<std::uint32_t>(stop - base), writes, stamp, clock);
    if (conflict) {
      conflict->begin += base;
      conflict->end += base;
      return conflict;
    }
    begin = stop;
  }
  return std::nullopt;
}

}  // namespace sk::sim

#include "sync/conflicts.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace sk::sync {

Conflicts::Conflicts(std::vector<Access> accesses, std::vector<Region> regions)
    : accesses_(std::move(accesses)), regions_(std::move(regions)) {
  std::int32_t places = 0;
  for (const Access& access : accesses_) places = std::max(places, access.place + 1);
  extents_.resize(static_cast<std::size_t>(places));
  fresh_.resize(static_cast<std::size_t>(places));
}

Conflicts::Live Conflicts::live(std::int32_t number) const {
  const Access& access = accesses_[static_cast<std::size_t>(number)];
  const auto first = static_cast<std::size_t>(access.first);
  Live made{regions_[first].start, regions_[first].stop(),         regions_[first], number,
            access.task,           access.last == access.first + 1};
  for (auto n = first + 1; n < static_cast<std::size_t>(access.last); ++n) {
    made.low = std::min(made.low, regions_[n].start);
    made.high = std::max(made.high, regions_[n].stop());
  }
  return made;
}

bool Conflicts::meet(const Live& a, const Live& b) const {
  if (a.low >= b.high || b.low >= a.high) return false;
  if (a.single && b.single) return overlap(a.region, b.region);
  return regions_of({a.access, b.access}).first >= 0;
}

std::pair<std::int32_t, std::int32_t> Conflicts::regions_of(const Pair& pair) const {
  const Access& one = accesses_[static_cast<std::size_t>(pair.earlier)];
  const Access& other = accesses_[static_cast<std::size_t>(pair.later)];
  for (std::int32_t left = one.first; left < one.last; ++left) {
    for (std::int32_t right = other.first; right < other.last; ++right) {
      if (overlap(regions_[static_cast<std::size_t>(left)], regions_[static_cast<std::size_t>(right)])) {
        return {left, right};
      }
    }
  }
  return {-1, -1};
}

bool Conflicts::next(std::vector<Pair>& found) {
  if (at_ == accesses_.size()) return false;
  const std::size_t begin = at_;
  while (at_ < accesses_.size() && accesses_[at_].run == accesses_[begin].run) ++at_;
  std::vector<std::size_t> places;  // that are used
  for (std::size_t n = begin; n < at_; ++n) {
    Fresh& mine = fresh_[static_cast<std::size_t>(accesses_[n].place)];
    if (mine.writes.empty() && mine.reads.empty()) places.push_back(static_cast<std::size_t>(accesses_[n].place));
    (accesses_[n].write ? mine.writes : mine.reads).push_back(live(static_cast<std::int32_t>(n)));
  }
  // Whom the run may meet: older accesses by extent, then those of earlier tasks of its own; writes first.
  for (const std::size_t place : places) {
    Fresh& mine = fresh_[place];
    std::int64_t low = std::numeric_limits<std::int64_t>::max();
    std::int64_t high = std::numeric_limits<std::int64_t>::min();
    for (const auto* lives : {&mine.writes, &mine.reads}) {
      for (const Live& each : *lives) {
        low = std::min(low, each.low);
        high = std::max(high, each.high);
      }
    }
    const bool writes = !mine.writes.empty();
    for (const Extent& extent : extents_[place]) {
      if (extent.low >= high || low >= extent.high) continue;
      if (!extent.writes.empty()) mine.near.emplace_back(&extent.writes, true);
      if (writes && !extent.reads.empty()) mine.near.emplace_back(&extent.reads, false);
    }
    if (writes) mine.near.emplace_back(&mine.writes, true);
    if (writes && !mine.reads.empty()) mine.near.emplace_back(&mine.reads, false);
  }
  std::vector<std::int32_t> operands;  // of the task
  for (std::size_t n = begin; n < at_; ++n) {
    const Access& access = accesses_[n];
    if (n == begin || accesses_[n - 1].task != access.task) operands.clear();
    const auto nth =
        static_cast<std::size_t>(std::find(operands.begin(), operands.end(), access.operand) - operands.begin());
    if (nth == operands.size()) operands.push_back(access.operand);
    if (nth == seen_.size()) seen_.emplace_back(static_cast<std::size_t>(accesses_.back().task) + 1, -1);
    std::vector<std::int32_t>& seen = seen_[nth];
    const Live mine = live(static_cast<std::int32_t>(n));
    for (const auto& [others, written] : fresh_[static_cast<std::size_t>(access.place)].near) {
      if (!written && !access.write) continue;
      for (const Live& other : *others) {
        if (other.task >= access.task || seen[static_cast<std::size_t>(other.task)] == access.task) continue;
        if (!meet(other, mine)) continue;
        seen[static_cast<std::size_t>(other.task)] = access.task;
        found.push_back({other.access, mine.access});
      }
    }
  }
  for (const std::size_t place : places) {
    record(extents_[place], fresh_[place]);
    fresh_[place] = {};
  }
  return true;
}

// Enters a finished run's accesses: its writes first, so that they do not retire its own reads. Writes whose stretches
// meet make one extent, which is written anew where they tile it.
void Conflicts::record(std::vector<Extent>& extents, Fresh& fresh) {
  std::stable_sort(fresh.writes.begin(), fresh.writes.end(),
                   [](const Live& a, const Live& b) { return a.low < b.low; });
  for (auto member = fresh.writes.begin(); member != fresh.writes.end();) {
    const auto first = member;
    const std::int64_t low = first->low;
    std::int64_t high = low;
    std::vector<Region> written;
    for (; member != fresh.writes.end() && member->low <= high; ++member) {
      high = std::max(high, member->high);
      const Access& access = accesses_[static_cast<std::size_t>(member->access)];
      written.insert(written.end(), regions_.begin() + access.first, regions_.begin() + access.last);
    }
    if (tile(std::move(written), low, high)) retire(extents, low, high);
    extents.push_back({low, high, {first, member}, {}});
  }
  for (const Live& read : fresh.reads) {
    const auto around = std::find_if(extents.begin(), extents.end(), [&read](const Extent& extent) {
      return extent.low <= read.low && read.high <= extent.high;
    });
    if (around == extents.end()) {
      extents.push_back({read.low, read.high, {}, {read}});
    } else {
      around->reads.push_back(read);
    }
  }
}

// [low, high) has been written anew: of extents there, what lies on either side remains, with the accesses that touch
// it, whose bounds are cut to it (regions stay whole: a witness may lie outside).
void Conflicts::retire(std::vector<Extent>& extents, std::int64_t low, std::int64_t high) {
  const auto gone = [low, high](const Extent& extent) { return extent.low < high && low < extent.high; };
  if (std::none_of(extents.begin(), extents.end(), gone)) return;
  std::vector<Extent> left;
  left.reserve(extents.size() + 1);
  for (Extent& extent : extents) {
    if (!gone(extent)) {
      left.push_back(std::move(extent));
      continue;
    }
    for (const auto& [start, stop] : {std::pair(extent.low, low), std::pair(high, extent.high)}) {
      if (start >= stop) continue;
      Extent part{start, stop, {}, {}};
      for (const auto& [from, to] : {std::pair(&extent.writes, &part.writes), std::pair(&extent.reads, &part.reads)}) {
        for (Live live : *from) {
          if (live.low >= stop || start >= live.high) continue;
          live.low = std::max(live.low, start);
          live.high = std::min(live.high, stop);
          to->push_back(live);
        }
      }
      if (!part.writes.empty() || !part.reads.empty()) left.push_back(std::move(part));
    }
  }
  extents = std::move(left);
}

Needs needs(Conflicts& conflicts, const std::vector<std::int32_t>& core_of, std::int32_t cores) {
  constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
  const auto width = static_cast<std::size_t>(cores);
  const std::size_t tasks = core_of.size();
  Needs result{std::vector<std::deque<Need>>(width), std::vector<std::int32_t>(tasks, 0)};
  std::vector<std::int32_t> position(tasks, 0);        // of a task within its core
  std::vector<std::int32_t> done(width, 0);            // tasks placed on each core so far
  std::vector<std::int32_t> clocks(width * width, 0);  // what each core knows so far
  std::vector<std::int32_t> finish(tasks * width, 0);  // clock at the end of each task
  std::vector<std::int32_t> wanted(width, kNone);      // by core: the latest position that the task needs
  std::vector<std::int32_t> tellers(width);
  std::vector<Need> latest(width);
  std::vector<Pair> found;
  std::size_t at = 0;
  const auto task_of = [&conflicts](std::int32_t access) {
    return static_cast<std::size_t>(conflicts.accesses()[static_cast<std::size_t>(access)].task);
  };
  const auto finish_of = [&](const Need& need) { return finish.data() + task_of(need.earlier) * width; };
  for (std::size_t task = 0; task < tasks; ++task) {
    while (at == found.size()) {  // conflicts of runs that have some come before the tasks behind these runs
      found.clear();
      at = 0;
      if (!conflicts.next(found)) break;
    }
    const auto core = static_cast<std::size_t>(core_of[task]);
    std::int32_t* const clock = clocks.data() + core * width;
    std::int32_t& implied = result.implied[task];
    bool any = false;
    for (; at < found.size() && task_of(found[at].later) == task; ++at) {
      const std::size_t earlier = task_of(found[at].earlier);
      const auto producer = static_cast<std::size_t>(core_of[earlier]);
      if (producer == core) continue;
      if (clock[producer] > position[earlier]) {
        ++implied;
        continue;
      }
      Need& need = latest[producer];
      if (wanted[producer] == kNone) {
        any = true;
        need.conflicts = 0;
        wanted[producer] = -1;
      }
      if (position[earlier] > wanted[producer]) {
        wanted[producer] = position[earlier];
        need.earlier = found[at].earlier;
        need.later = found[at].later;
      }
      ++need.conflicts;
    }
    if (any) {
      std::fill(tellers.begin(), tellers.end(), 0);
      for (std::size_t producer = 0; producer < width; ++producer) {
        if (wanted[producer] == kNone) continue;
        const std::int32_t* const known = finish_of(latest[producer]);
        for (std::size_t other = 0; other < width; ++other) tellers[other] += known[other] > wanted[other];
      }
      for (std::size_t producer = 0; producer < width; ++producer) {
        if (wanted[producer] == kNone) continue;
        wanted[producer] = kNone;
        Need& need = latest[producer];
        if (tellers[producer] > 1) {  // another one besides the need itself
          implied += need.conflicts;
          continue;
        }
        implied += need.conflicts - 1;
        const std::int32_t* const known = finish_of(need);
        for (std::size_t other = 0; other < width; ++other) clock[other] = std::max(clock[other], known[other]);
        std::tie(need.left, need.right) = conflicts.regions_of({need.earlier, need.later});
        result.kept[core].push_back(need);
      }
    }
    position[task] = done[core];
    clock[core] = ++done[core];
    std::copy_n(clock, width, finish.data() + task * width);
  }
  return result;
}

}  // namespace sk::sync

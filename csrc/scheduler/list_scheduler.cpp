#include "scheduler/list_scheduler.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <set>

namespace sk::scheduler {

namespace {

constexpr double kSideGain = 0.9;  // side by side must be so much better: split work often needs no exchange at all
constexpr double kLineBytes = 64;
constexpr std::size_t kOwnersMost = 3;

std::size_t at(std::int32_t number) { return static_cast<std::size_t>(number); }

// Cores by how many bytes they have, the most first.
std::vector<std::int32_t> by_share(const std::vector<std::int64_t>& bytes) {
  std::vector<std::int32_t> cores;
  for (std::size_t core = 0; core < bytes.size(); ++core) {
    if (bytes[core] > 0) cores.push_back(static_cast<std::int32_t>(core));
  }
  std::stable_sort(cores.begin(), cores.end(), [&](auto a, auto b) { return bytes[at(a)] > bytes[at(b)]; });
  return cores;
}

bool holds(const std::vector<std::int32_t>& numbers, std::int32_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

using Runs = std::set<std::tuple<std::int64_t, std::int64_t, std::int32_t>>;

// True of runs of one core each that share no bytes.
bool lie_apart(const Runs& runs) {
  std::int64_t reach = 0;
  for (const auto& [low, high, core] : runs) {
    if (core == kMixed || low < reach) return false;
    reach = high;
  }
  return !runs.empty();
}

std::string in_ns(double ns) {
  char text[352];  // a double has up to 309 digits ahead of its point
  std::snprintf(text, sizeof text, "%.0f", ns);
  return text;
}

}  // namespace

ListScheduler::ListScheduler(std::vector<SubOp> subops, std::vector<std::vector<Partition>> partitions,
                             AccessesOf accesses_of, Costs costs, std::vector<std::int32_t> apart)
    : subops_(std::move(subops)),
      partitions_(std::move(partitions)),
      accesses_of_(std::move(accesses_of)),
      costs_(std::move(costs)),
      apart_(std::move(apart)),
      known_(static_cast<std::int32_t>(costs_.handovers.size())),
      placed_(subops_.size()) {
  // Another core than the caller's own is started and joined: a flag there and a flag back.
  free_.push_back(0.0);
  for (std::size_t core = 1; core < costs_.handovers.size(); ++core) free_.push_back(2 * costs_.handovers[0][core]);
  std::int32_t buffers = 0;
  for (const SubOp& subop : subops_) {
    for (const auto& chain : subop.operands) {
      for (const Place& place : chain) buffers = std::max(buffers, place.buffer + 1);
    }
  }
  written_.resize(at(buffers));
  crossed_.resize(at(buffers));
}

bool ListScheduler::has_cores() const {
  const auto has = [&](const Partition& each) {
    return each.ranges() <= apart_.size() || each.ranges() == free_.size();
  };
  return std::all_of(partitions_.begin(), partitions_.end(),
                     [&](const auto& work) { return std::all_of(work.begin(), work.end(), has); });
}

std::vector<std::int32_t> ListScheduler::run() {
  std::vector<std::vector<std::int32_t>> after(subops_.size());
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < subops_.size(); ++i) {
    for (const std::int32_t earlier : subops_[i].before) after[at(earlier)].push_back(static_cast<std::int32_t>(i));
    missing.push_back(subops_[i].before.size());
  }
  const std::vector<double> rank = ranks(after);
  std::set<std::pair<double, std::int32_t>> ready;
  for (std::size_t i = 0; i < subops_.size(); ++i) {
    if (missing[i] == 0) ready.emplace(-rank[i], static_cast<std::int32_t>(i));
  }
  std::vector<std::int32_t> order;
  std::vector<std::int32_t> rivals;
  while (!ready.empty()) {
    const std::int32_t next = ready.begin()->second;
    ready.erase(ready.begin());
    rivals.clear();
    for (const auto& [_, other] : ready) {
      if (rivals.size() + 1 >= free_.size()) break;
      rivals.push_back(other);
    }
    commit(next, choose(next, rivals));
    order.push_back(next);
    for (const std::int32_t later : after[at(next)]) {
      if (--missing[at(later)] == 0) ready.emplace(-rank[at(later)], later);
    }
  }
  return order;
}

std::vector<std::int32_t> ListScheduler::run_in_order(const std::string& reason) {
  std::vector<std::int32_t> order(subops_.size());
  std::iota(order.begin(), order.end(), 0);
  for (const std::int32_t i : order) {
    std::vector<std::int32_t> cores(partition(i, 0).ranges());
    std::iota(cores.begin(), cores.end(), 0);
    const double done = finish(i, 0, cores);
    commit(i, {0, std::move(cores), done, reason});
  }
  return order;
}

const Partition& ListScheduler::partition(std::int32_t subop, std::int32_t number) const {
  return partitions_[at(subops_[at(subop)].work)][at(number)];
}

// Longest path to the end, each sub-operator at its best time.
std::vector<double> ListScheduler::ranks(const std::vector<std::vector<std::int32_t>>& after) const {
  std::vector<double> rank(subops_.size(), 0.0);
  for (std::size_t i = subops_.size(); i-- > 0;) {
    double own = std::numeric_limits<double>::infinity();
    for (const Partition& each : partitions_[at(subops_[i].work)]) own = std::min(own, each.longest_ns);
    double rest = 0.0;
    for (const std::int32_t later : after[i]) rest = std::max(rest, rank[at(later)]);
    rank[i] = own + rest;
  }
  return rank;
}

// The placement with the earliest estimated finish; on one core where ready rivals can use the others better.
Placement ListScheduler::choose(std::int32_t subop, std::span<const std::int32_t> rivals) {
  const std::vector<Partition>& partitions = partitions_[at(subops_[at(subop)].work)];
  std::vector<Placement> tried{single(subop)};
  if (partitions.size() == 1) return tried[0];
  if (!rivals.empty() && side_by_side(subop, rivals)) {
    tried[0].reason = "side by side with independent sub-operators";
    return tried[0];
  }
  const double soonest = *std::min_element(free_.begin(), free_.end());
  std::vector<std::int32_t> numbers(partitions.size() - 1);
  std::iota(numbers.begin(), numbers.end(), 1);
  std::stable_sort(numbers.begin(), numbers.end(),
                   [&](auto a, auto b) { return partitions[at(a)].longest_ns < partitions[at(b)].longest_ns; });
  double least = tried[0].finish_ns;
  for (const std::int32_t number : numbers) {
    if (soonest + partitions[at(number)].longest_ns >= least) continue;  // it cannot win
    for (auto& cores : cores_for(subop, number)) {
      const double done = finish(subop, number, cores);
      tried.push_back({number, std::move(cores), done, {}});
      least = std::min(least, done);
    }
  }
  const auto sooner = [](const Placement& a, const Placement& b) {
    return std::pair(a.finish_ns, a.cores.size()) < std::pair(b.finish_ns, b.cores.size());
  };
  Placement best = *std::min_element(tried.begin(), tried.end(), sooner);
  const std::size_t count = best.cores.size();
  std::optional<double> next;
  for (const Placement& each : tried) {
    if (each.cores.size() != count) next = std::min(next.value_or(each.finish_ns), each.finish_ns);
  }
  best.reason = count == 1 ? "one core: " : std::to_string(count) + " cores: ";
  best.reason += next ? in_ns(*next - best.finish_ns) + " ns sooner than the next choice" : "nothing else is sooner";
  return best;
}

Placement ListScheduler::single(std::int32_t subop) {
  if (subops_[at(subop)].first_core) {
    std::vector<std::int32_t> first{0};
    const double done = finish(subop, 0, first);
    return {0, std::move(first), done, "host call"};
  }
  if (partition(subop, 0).ranges() == 0) return {0, {}, latest_free(), "nothing to do"};
  std::vector<std::int32_t> cores = owners(subop);
  cores.push_back(soonest_cores()[0]);
  double best_ns = std::numeric_limits<double>::infinity();
  std::int32_t best = -1;
  for (const std::int32_t core : cores) {
    const double done = finish(subop, 0, {&core, 1});
    if (best < 0 || std::pair(done, core) < std::pair(best_ns, best)) std::tie(best_ns, best) = std::pair(done, core);
  }
  return {0, {best}, best_ns, "one core: too small to share"};
}

// Cores that wrote what the sub-operator reads, the largest shares first; a few of them.
std::vector<std::int32_t> ListScheduler::owners(std::int32_t subop) const {
  const SubOp& asked = subops_[at(subop)];
  std::vector<std::int64_t> bytes(free_.size());
  for (const std::int32_t input : asked.inputs) {
    for (const Written& part : written_[at(asked.operands[at(input)][0].buffer)]) {
      bytes[at(part.core)] += part.high() - part.low();
    }
  }
  std::vector<std::int32_t> cores = by_share(bytes);
  cores.resize(std::min(cores.size(), kOwnersMost));
  return cores;
}

// All cores in order, or as many as a partition takes: those that are free first, and for each range, where that is
// another core, the one that wrote most of what it reads.
std::vector<std::vector<std::int32_t>> ListScheduler::cores_for(std::int32_t subop, std::int32_t number) {
  const std::size_t count = partition(subop, number).ranges();
  if (count == free_.size()) {
    std::vector<std::int32_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    return {std::move(all)};
  }
  const std::vector<std::int32_t> first = soonest_cores();
  std::vector<std::int32_t> idle(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(count));
  std::sort(idle.begin(), idle.end());
  std::vector<std::int32_t> near;
  for (std::size_t range = 0; range < count; ++range) {
    std::vector<std::int64_t> bytes(free_.size());
    for (const Source& source : sources(subop, number, range)) bytes[at(source.core)] += source.bytes;
    std::int32_t mine = -1;
    for (const std::int32_t core : by_share(bytes)) {
      if (!holds(apart_, core) || holds(near, core)) continue;
      mine = core;
      break;
    }
    near.push_back(mine);
  }
  const std::vector<std::int32_t> owned = near;
  auto rest = first.begin();
  for (std::int32_t& core : near) {
    if (core >= 0) continue;
    while (holds(owned, *rest)) ++rest;
    core = *rest++;
  }
  const bool any = std::any_of(owned.begin(), owned.end(), [](std::int32_t core) { return core >= 0; });
  if (!any || near == idle) return {std::move(idle)};
  return {std::move(near), std::move(idle)};
}

// True where the ready sub-operators, one core each, are done before they are when each is split over all cores.
bool ListScheduler::side_by_side(std::int32_t subop, std::span<const std::int32_t> rivals) const {
  double longest = 0.0;
  double sum = 0.0;
  double split = 0.0;
  const auto add = [&](std::int32_t each) {
    const std::vector<Partition>& partitions = partitions_[at(subops_[at(each)].work)];
    longest = std::max(longest, partitions[0].longest_ns);
    sum += partitions[0].longest_ns;
    const auto shorter = [](const Partition& a, const Partition& b) { return a.longest_ns < b.longest_ns; };
    const Partition& best = *std::min_element(partitions.begin(), partitions.end(), shorter);
    split += best.longest_ns + (best.ranges() > 1 ? costs_.handover : 0.0);
  };
  add(subop);
  for (const std::int32_t rival : rivals) add(rival);
  return std::max(longest, sum / static_cast<double>(free_.size())) < kSideGain * split;
}

// When the last range is done.
double ListScheduler::finish(std::int32_t subop, std::int32_t number, std::span<const std::int32_t> cores) {
  const std::vector<double> times = finish_times(subop, number, cores);
  return times.empty() ? latest_free() : *std::max_element(times.begin(), times.end());
}

std::vector<double> ListScheduler::finish_times(std::int32_t subop, std::int32_t number,
                                                std::span<const std::int32_t> cores) {
  const std::vector<double>& work_ns = partition(subop, number).work_ns;
  std::vector<double> times;
  for (std::size_t range = 0; range < std::min(cores.size(), work_ns.size()); ++range) {
    const std::int32_t core = cores[range];
    double start = free_[at(core)];
    std::int64_t moved = 0;
    for (const Source& source : sources(subop, number, range)) {
      if (source.core == core) continue;
      start = std::max(start, source.finish_ns + costs_.handovers[at(core)][at(source.core)]);
      moved += std::min(source.bytes, source.stored);
    }
    times.push_back(start + work_ns[range] + static_cast<double>(moved) / kLineBytes * costs_.line);
  }
  return times;
}

// Takes the placement: cores are busy, buffers written.
void ListScheduler::commit(std::int32_t subop, Placement placement) {
  const SubOp& taken = subops_[at(subop)];
  const std::vector<double> times = finish_times(subop, placement.partition, placement.cores);
  std::vector<std::pair<std::int32_t, Written>> records;
  std::vector<std::pair<std::int32_t, std::int32_t>> awaited;
  for (std::size_t range = 0; range < times.size(); ++range) {
    const std::int32_t core = placement.cores[range];
    free_[at(core)] = times[range];
    awaited.clear();
    for (const Source& source : sources(subop, placement.partition, range)) {
      if (source.core == core) continue;
      awaited.emplace_back(source.position, source.core);
      crossed_[at(source.buffer)] = true;
    }
    known_.run(position_, core, awaited);
    for (const Access& write : range_of(taken.work, placement.partition, range).writes) {
      for (const Place& place : taken.operands.at(at(write.operand))) {
        records.emplace_back(place.buffer,
                             Written{core, position_, times[range], write.extent, place.offset, write.stored});
      }
    }
  }
  for (const auto& [buffer, record] : records) written_[at(buffer)].push_back(record);
  placed_[at(subop)] = std::move(placement);
  ++position_;
  sources_.clear();
}

// What a range reads of what has been written, read by read. Asked for each core that may take the range.
const std::vector<ListScheduler::Source>& ListScheduler::sources(std::int32_t subop, std::int32_t number,
                                                                 std::size_t range) {
  const auto [found, is_new] = sources_.try_emplace({number, range});
  if (!is_new) return found->second;
  const SubOp& asked = subops_[at(subop)];
  for (const Access& read : range_of(asked.work, number, range).reads) {
    const std::vector<Place>& chain = asked.operands.at(at(read.operand));
    for (const Written& part : written_[at(chain.front().buffer)]) {
      if (part.low() >= read.extent->high || read.extent->low >= part.high()) continue;
      const std::int64_t bytes = shared_bytes(*read.extent, part);
      if (bytes == 0) continue;
      found->second.push_back({chain.back().buffer, part.core, part.position, part.finish_ns, bytes, part.stored});
    }
  }
  return found->second;
}

const ListScheduler::Range& ListScheduler::range_of(std::int32_t work, std::int32_t number, std::size_t range) {
  const auto known = ranges_.find({work, number, range});
  if (known != ranges_.end()) return known->second;
  Range made;
  for (RangeAccess& each : accesses_of_(work, number, static_cast<std::int32_t>(range))) {
    const Extent* extent = extent_of(std::move(each.regions));
    (each.write ? made.writes : made.reads).push_back({each.operand, extent, each.stored.value_or(extent->bytes)});
  }
  return ranges_.emplace(std::tuple(work, number, range), std::move(made)).first->second;
}

const ListScheduler::Extent* ListScheduler::extent_of(std::vector<Region> regions) {
  Extent made{regions[0].start, regions[0].stop(), 0, {}, extents_.size()};
  for (const Region& region : regions) {
    made.low = std::min(made.low, region.start);
    made.high = std::max(made.high, region.stop());
    made.bytes += region.bytes();
  }
  made.regions = std::move(regions);
  return &extents_.emplace_back(std::move(made));
}

// Roughly how many of the bytes of a read are written; 0 only where none is. Their bounds meet.
std::int64_t ListScheduler::shared_bytes(const Extent& read, const Written& written) {
  const Extent& other = *written.extent;
  const std::int64_t span = std::min(read.high, written.high()) - std::max(read.low, written.low());
  if (read.is_run() && other.is_run()) return span;
  const auto [found, is_new] = shared_.try_emplace({read.number, other.number, written.offset});
  if (is_new && any_overlap(read.regions, other.regions, written.offset)) {
    const double mine = static_cast<double>(read.bytes) / static_cast<double>(read.high - read.low);
    const double theirs = static_cast<double>(other.bytes) / static_cast<double>(other.high - other.low);
    const double shared = static_cast<double>(span) * std::min(mine, theirs);
    found->second = std::max<std::int64_t>(1, static_cast<std::int64_t>(shared));
  }
  return found->second;
}

// Those of `apart_`, the one that is free first, first.
std::vector<std::int32_t> ListScheduler::soonest_cores() const {
  std::vector<std::int32_t> cores = apart_;
  std::sort(cores.begin(), cores.end(),
            [&](auto a, auto b) { return std::pair(free_[at(a)], a) < std::pair(free_[at(b)], b); });
  return cores;
}

double ListScheduler::latest_free() const { return *std::max_element(free_.begin(), free_.end()); }

double ListScheduler::makespan_ns() const {
  double latest = 0.0;
  for (const Placement& each : placed_) {
    for (const std::int32_t core : each.cores) {
      latest = std::max(latest, free_[at(core)] + (core != 0 ? costs_.handovers[at(core)][0] : 0.0));
    }
  }
  return latest;
}

std::vector<BufferUse> ListScheduler::touched(std::span<const std::int32_t> order) const {
  std::vector<BufferUse> found;
  std::vector<std::int32_t> numbers(written_.size(), -1);  // of buffers in `found`
  std::vector<bool> seen(written_.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    const auto position = static_cast<std::int32_t>(place);
    const std::vector<std::int32_t>& cores = placed_[at(order[place])].cores;
    for (const auto& chain : subops_[at(order[place])].operands) {
      const std::int32_t value = chain.front().buffer;
      const std::int32_t buffer = chain.back().buffer;
      const bool is_first = !seen[at(value)];  // use of this part of the buffer
      seen[at(value)] = true;
      if (numbers[at(buffer)] < 0) {
        numbers[at(buffer)] = static_cast<std::int32_t>(found.size());
        BufferUse& fresh = found.emplace_back(BufferUse{buffer, {}, {}, {}, false});
        if (is_first) fresh.ready = known_.at(position, cores);
        Runs known;
        for (const Written& part : written_[at(buffer)]) {
          const std::tuple run(part.low(), part.high(), part.extent->is_run() ? part.core : kMixed);
          if (known.insert(run).second) fresh.runs.push_back(run);
        }
        if (!crossed_[at(buffer)] && lie_apart(known)) {
          fresh.runs.assign(known.begin(), known.end());
          fresh.apart = true;
        }
      } else if (is_first) {
        std::vector<std::int32_t>& ready = found[at(numbers[at(buffer)])].ready;
        const std::vector<std::int32_t> now = known_.at(position, cores);
        for (std::size_t core = 0; core < ready.size(); ++core) ready[core] = std::min(ready[core], now[core]);
      }
      auto& last = found[at(numbers[at(buffer)])].last;
      for (const std::int32_t core : cores) {
        const auto known = std::find_if(last.begin(), last.end(), [&](const auto& row) { return row.first == core; });
        if (known == last.end()) {
          last.emplace_back(core, position);
        } else {
          known->second = position;
        }
      }
    }
  }
  return found;
}

}  // namespace sk::scheduler

// See memory_system.h.
#include "sim/device/memory_system.h"

#include <algorithm>
#include <bit>

namespace sk::sim {

void MemorySystem::configure(const Target& target, std::uint64_t code_base, std::uint64_t code_bytes,
                             std::size_t requesters) {
  (void)code_base;
  const auto& l2 = target.l2;
  line_bytes_ = l2.line_bytes;
  line_shift_ = std::countr_zero(l2.line_bytes);
  const auto clock = target.device.clock_mhz;
  bank_line_cycles_ = ceil_div(l2.line_bytes * l2.banks * clock, target.mb_per_s(l2.aggregate_gb_per_s, false));
  same_line_interval_ = l2.same_line_interval_cycles;
  hbm_latency_ = target.cycles_of_ns(target.hbm.latency_ns);
  channel_line_cycles_ =
      ceil_div(l2.line_bytes * target.hbm.channels * clock, target.mb_per_s(target.hbm.rate_gb_per_s, false));
  core_line_cycles_ = ceil_div(l2.line_bytes, target.hbm.core_bytes_per_cycle);
  sdma_line_cycles_ = ceil_div(l2.line_bytes * clock, target.mb_per_s(target.sdma.rate_gb_per_s, false));
  fetch_bytes_ = target.icache.line_bytes;
  fetch_cycles_ = target.icache.miss_latency_cycles + ceil_div(fetch_bytes_, target.icache.fill_bytes_per_cycle);
  fetch_interval_ = target.icache.same_line_interval_cycles;
  sets_ = std::max<std::uint64_t>(1, l2.capacity_bytes / (line_bytes_ * kWays));
  lines_.assign(sets_ * kWays, Line{});
  banks_.assign(l2.banks, Bank{});
  channels_.assign(target.hbm.channels, 0);
  sdma_ = static_cast<std::uint32_t>(requesters - 1);
  miss_free_.assign(requesters, 0);
  fetch_free_.assign(code_bytes / fetch_bytes_ + 2, 0);
}

void MemorySystem::forget() { std::fill(lines_.begin(), lines_.end(), Line{}); }

void MemorySystem::restart() {
  stats = {};
  for (Line& line : lines_) {
    line.last = line.ready = 0;
    line.core = kNobody;
    line.prefetched = false;
  }
  unused_ = 0;
  std::fill(banks_.begin(), banks_.end(), Bank{});
  std::fill(channels_.begin(), channels_.end(), 0);
  std::fill(miss_free_.begin(), miss_free_.end(), 0);
  std::fill(fetch_free_.begin(), fetch_free_.end(), 0);
}

void MemorySystem::warm(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t end = address + bytes;
  for (std::uint64_t number = address >> line_shift_; number << line_shift_ < end; ++number) {
    Line* line = find(number);
    if (line == nullptr) line = &allocate(number, 0);
    line->used = ++uses_;
  }
}

MemorySystem::Line* MemorySystem::find(std::uint64_t number) {
  Line* const set = &lines_[number % sets_ * kWays];
  for (std::uint64_t i = 0; i < kWays; ++i) {
    if (set[i].tag == number) return set + i;
  }
  return nullptr;
}

MemorySystem::Line& MemorySystem::allocate(std::uint64_t number, std::uint64_t now) {
  Line* const set = &lines_[number % sets_ * kWays];
  Line* oldest = set;
  for (std::uint64_t i = 1; i < kWays; ++i) {
    if (set[i].used < oldest->used) oldest = set + i;
  }
  if (oldest->dirty) {
    std::uint64_t& channel = channels_[oldest->tag % channels_.size()];
    channel = std::max(channel, now) + channel_line_cycles_;
    stats.hbm_write_bytes += line_bytes_;
  }
  if (oldest->prefetched) {
    ++stats.prefetched_useless;
    --unused_;
  }
  *oldest = Line{};
  oldest->tag = number;
  return *oldest;
}

std::uint64_t MemorySystem::pass_bank(std::uint64_t number, std::uint64_t bytes, std::uint32_t core,
                                      std::uint64_t now) {
  Bank& bank = banks_[number % banks_.size()];
  const std::uint64_t cycles = std::max<std::uint64_t>(1, bank_line_cycles_ * bytes / line_bytes_);
  if (bank.core == core) {
    bank.free = std::max(bank.free, now + cycles);
    return now;
  }
  const std::uint64_t start = std::max(now, bank.free);
  stats.bank_cycles += start - now;
  bank.free = start + cycles;
  bank.core = core;
  return start;
}

std::uint64_t MemorySystem::pass_line(Line& line, std::uint32_t core, std::uint64_t now) {
  std::uint64_t start = now;
  if (line.core != core && line.core != kNobody) start = std::max(now, line.last + same_line_interval_);
  stats.same_line_cycles += start - now;
  line.core = core;
  line.last = start;
  line.used = ++uses_;
  return start;
}

std::uint64_t MemorySystem::bring(Line& line, std::uint64_t number, std::uint32_t core, std::uint64_t now) {
  std::uint64_t& channel = channels_[number % channels_.size()];
  std::uint64_t& own = miss_free_[core];
  const std::uint64_t by_channel = std::max(now, channel);
  const std::uint64_t start = std::max(by_channel, own);
  const std::uint64_t cycles = core == sdma_ ? sdma_line_cycles_ : core_line_cycles_;
  stats.channel_cycles += by_channel - now;
  stats.core_rate_cycles += start - by_channel;
  channel = start + channel_line_cycles_;
  own = start + cycles;
  line.ready = start + hbm_latency_ + cycles;
  ++stats.misses;
  stats.hbm_read_bytes += line_bytes_;
  return start;
}

void MemorySystem::use(Line& line, std::uint64_t at) {
  ++(line.ready > at ? stats.prefetched_late : stats.prefetched_timely);
  line.prefetched = false;
  --unused_;
}

MemorySystem::Access MemorySystem::prefetch(std::uint64_t address, std::uint64_t bytes, std::uint64_t now) {
  const std::uint64_t misses = stats.misses;
  const Access access = read(address, bytes, sdma_, now);
  if (stats.misses == misses) {
    ++stats.prefetched_present;
  } else {
    find(address >> line_shift_)->prefetched = true;
    ++unused_;
  }
  return access;
}

void MemorySystem::finish() {
  stats.prefetched_useless += unused_;
  unused_ = 0;
}

MemorySystem::Access MemorySystem::read(std::uint64_t address, std::uint64_t bytes, std::uint32_t core,
                                        std::uint64_t now) {
  const std::uint64_t number = address >> line_shift_;
  ++stats.line_reads;
  stats.read_bytes += bytes;
  std::uint64_t at = pass_bank(number, bytes, core, now);
  if (Line* line = find(number)) {
    at = pass_line(*line, core, at);
    ++stats.hits;
    if (line->ready > at) ++stats.merged;
    if (line->prefetched && core != sdma_) use(*line, at);
    return {at, std::max(at, line->ready)};
  }
  Line& line = allocate(number, at);
  at = pass_line(line, core, at);
  at = bring(line, number, core, at);
  return {at, line.ready};
}

MemorySystem::Access MemorySystem::write(std::uint64_t address, std::uint64_t bytes, std::uint32_t core,
                                         std::uint64_t now) {
  const std::uint64_t number = address >> line_shift_;
  ++stats.line_writes;
  stats.write_bytes += bytes;
  std::uint64_t at = pass_bank(number, bytes, core, now);
  Line* line = find(number);
  if (line == nullptr) line = &allocate(number, at);
  at = pass_line(*line, core, at);
  if (line->prefetched) {  // overwritten before anybody read it
    ++stats.prefetched_useless;
    line->prefetched = false;
    --unused_;
  }
  line->dirty = true;
  return {at, at};
}

std::uint64_t MemorySystem::fetch(std::uint64_t address, std::uint64_t line_number, std::uint32_t core,
                                  std::uint64_t now) {
  ++stats.fetches;
  std::uint64_t& free = fetch_free_[line_number];
  std::uint64_t at = std::max(now, free);
  stats.fetch_same_line_cycles += at - now;
  free = at + fetch_interval_;
  const std::uint64_t number = address >> line_shift_;
  at = pass_bank(number, fetch_bytes_, core, at);
  Line* line = find(number);
  if (line == nullptr) {
    line = &allocate(number, at);
    at = bring(*line, number, core, at);
  }
  if (line->prefetched) use(*line, at);
  line->used = ++uses_;
  return std::max(at, line->ready) + fetch_cycles_;
}

}  // namespace sk::sim

// See memory_system.h.
#include "sim/device/memory_system.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sk::sim {

void MemorySystem::configure(const Target& target, std::uint64_t code_base, std::uint64_t code_bytes,
                             std::size_t requesters) {
  (void)code_base;
  const auto& l2 = target.l2;
  line_bytes_ = l2.line_bytes;
  line_shift_ = std::countr_zero(l2.line_bytes);
  const auto clock = target.device.clock_mhz;
  const auto ticks = [&](double gb_per_s, std::uint64_t servers) {
    return ceil_div((l2.line_bytes * servers * clock) << kTickShift, target.mb_per_s(gb_per_s, false));
  };
  bank_line_ticks_ = ticks(l2.aggregate_gb_per_s, l2.banks);
  const double rates[] = {l2.cube_gb_per_s, l2.vector_gb_per_s};
  for (int type = 0; type < 2; ++type) {
    for (Limit& limit : limits_[type]) limit = {ticks(rates[type], 1), 0};
  }
  cube_cores_ = static_cast<std::uint32_t>(target.device.cube_cores);
  cores_ = static_cast<std::uint32_t>(target.cores());
  in_flight_ = target.dma.startup_cycles;
  shared_permille_ = static_cast<std::uint64_t>(std::llrint(100'000 / (100 - l2.same_line_loss_percent)));
  hbm_latency_ = target.cycles_of_ns(target.hbm.latency_ns);
  channel_line_ticks_ = ticks(target.hbm.rate_gb_per_s * (100 - target.hbm.loss_percent) / 100, target.hbm.channels);
  core_line_cycles_ = ceil_div(l2.line_bytes, target.hbm.core_bytes_per_cycle);
  sdma_line_cycles_ = ceil_div(l2.line_bytes * clock, target.mb_per_s(target.sdma.rate_gb_per_s, false));
  fetch_bytes_ = target.icache.line_bytes;
  fetch_cycles_ = target.icache.miss_latency_cycles + ceil_div(fetch_bytes_, target.icache.fill_bytes_per_cycle);
  fetch_interval_ = target.icache.same_line_interval_cycles;
  sets_ = std::max<std::uint64_t>(1, l2.capacity_bytes * l2.usable_percent / 100 / (line_bytes_ * kWays));
  lines_.assign(sets_ * kWays, Line{});
  const auto spread = [](std::uint64_t count) {
    return Spread{count, std::max<int>(1, static_cast<int>(std::bit_width(count - 1)))};
  };
  bank_of_ = spread(l2.banks);
  channel_of_ = spread(target.hbm.channels);
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
  for (auto& type : limits_) {
    for (Limit& limit : type) limit.free = 0;
  }
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
    std::uint64_t& channel = channels_[channel_of_(oldest->tag)];
    channel = std::max(channel, now << kTickShift) + channel_line_ticks_;
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

// The first cycle that does not begin before a time in ticks.
std::uint64_t MemorySystem::cycle_of(std::uint64_t ticks) {
  return (ticks + (std::uint64_t{1} << kTickShift) - 1) >> kTickShift;
}

std::uint64_t MemorySystem::pass_bank(std::uint64_t number, std::uint64_t bytes, std::uint32_t core,
                                      std::uint64_t now) {
  Bank& bank = banks_[bank_of_(number)];
  const std::uint64_t begin = std::max(now << kTickShift, bank.free);
  const bool own = bank.core == core;
  bank.free = begin + (bank_line_ticks_ * bytes >> line_shift_);
  bank.core = core;
  if (own) return now;
  const std::uint64_t start = cycle_of(begin);
  stats.bank_cycles += start - now;
  return start;
}

std::uint64_t MemorySystem::pass_limit(Line& line, std::uint64_t bytes, std::uint32_t core, bool write,
                                       std::uint64_t now) {
  const bool shared = line.core != core && line.core != kNobody && now < line.last + in_flight_;
  line.core = core;
  line.last = now;
  line.used = ++uses_;
  if (core >= cores_) return now;
  Limit& limit = limits_[core >= cube_cores_][write];
  const std::uint64_t start = std::max(now, cycle_of(limit.free));
  const std::uint64_t alone = limit.line_ticks * bytes >> line_shift_;
  const std::uint64_t taken = shared ? alone * shared_permille_ / 1000 : alone;
  const std::uint64_t earliest = now > in_flight_ ? (now - in_flight_) << kTickShift : 0;
  limit.free = std::max(limit.free, earliest) + taken;
  stats.limit_cycles += start - now;
  if (shared) ++stats.shared;
  return start;
}

std::uint64_t MemorySystem::bring(Line& line, std::uint64_t number, std::uint32_t core, std::uint64_t now) {
  std::uint64_t& channel = channels_[channel_of_(number)];
  std::uint64_t& own = miss_free_[core];
  const std::uint64_t begin = std::max(now << kTickShift, channel);
  const std::uint64_t by_channel = cycle_of(begin);
  const std::uint64_t by_core = std::max(now, own);
  const std::uint64_t cycles = core == sdma_ ? sdma_line_cycles_ : core_line_cycles_;
  stats.channel_cycles += by_channel - now;
  stats.core_rate_cycles += by_core - now;
  channel = begin + channel_line_ticks_;
  own = by_core + cycles;
  const std::uint64_t start = std::max(by_channel, by_core);
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
  const std::uint64_t by_bank = pass_bank(number, bytes, core, now);
  if (Line* line = find(number)) {
    const std::uint64_t at = std::max(by_bank, pass_limit(*line, bytes, core, false, now));
    ++stats.hits;
    if (line->ready > at) ++stats.merged;
    if (line->prefetched && core != sdma_) use(*line, at);
    return {at, std::max(at, line->ready)};
  }
  Line& line = allocate(number, now);
  const std::uint64_t by_limit = pass_limit(line, bytes, core, false, now);
  const std::uint64_t brought = bring(line, number, core, now);
  return {std::max({by_bank, by_limit, brought}), line.ready};
}

MemorySystem::Access MemorySystem::write(std::uint64_t address, std::uint64_t bytes, std::uint32_t core,
                                         std::uint64_t now) {
  const std::uint64_t number = address >> line_shift_;
  ++stats.line_writes;
  stats.write_bytes += bytes;
  const std::uint64_t by_bank = pass_bank(number, bytes, core, now);
  Line* line = find(number);
  if (line == nullptr) line = &allocate(number, now);
  const std::uint64_t at = std::max(by_bank, pass_limit(*line, bytes, core, true, now));
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
  at = std::max(at, pass_bank(number, fetch_bytes_, core, now));
  Line* line = find(number);
  if (line == nullptr) {
    line = &allocate(number, now);
    at = std::max(at, bring(*line, number, core, now));
  }
  if (line->prefetched) use(*line, at);
  line->used = ++uses_;
  return std::max(at, line->ready) + fetch_cycles_;
}

}  // namespace sk::sim

// See device.h: flags within a core, cross-core flags, words in global memory.
#include <algorithm>
#include <cstring>

#include "sim/device/device.h"

namespace sk::sim {
namespace {

enum Mode : std::uint64_t { kType, kGroup, kAll, kAcross, kPair, kMask };

}  // namespace

void Device::set_flag(Core& core, const Command& command, std::uint64_t now, ClockRef clock, const Accessor& by) {
  using Place = Operands_set_flag;
  const auto to = static_cast<Engine>(command.operands[Place::peer]);
  const std::uint64_t number = command.operands[Place::flag];
  auto& tokens = flag_of(core, command.engine, to, number);
  if (tokens.size() >= config_.target.queue.flag_count_max) {
    fail(by, "flag_overflow",
         std::string("flag ") + std::to_string(number) + " from " + name_of(command.engine) + " to " + name_of(to) +
             " is set more often than it can hold",
         "a count of at most " + std::to_string(config_.target.queue.flag_count_max), std::to_string(tokens.size() + 1),
         "a set without its wait, or one that is not ordered behind the last wait");
    return;
  }
  const std::uint64_t visible = now + cost_of(command).visible;
  tokens.push_back({visible, std::move(clock), 0});
  if (tokens.size() != 1) return;
  if (to == Engine::control) {
    const Blocked& blocked = core.blocked;
    if (blocked.is && blocked.cause == Stall::wait_flag && blocked.engine == command.engine && blocked.flag == number) {
      wake(core, visible);
    }
    return;
  }
  const EngineQueue* const waiter = core.queues[static_cast<std::size_t>(to)];
  if (waiter == nullptr || waiter->state != EngineQueue::State::waiting) return;
  const Command& head = waiter->commands.front().command;
  if (head.operands[Operands_wait_flag::peer] == static_cast<std::uint64_t>(command.engine) &&
      head.operands[Operands_wait_flag::flag] == number) {
    push(visible, waiter->core * kParts + 1 + static_cast<std::uint32_t>(to), EventKind::engine);
  }
}

// ---- cross-core flags

Device::Rounds& Device::rounds_of(const Core& core, std::uint64_t flag, std::uint64_t mode) {
  const bool by_type = mode == kType || mode == kAcross;
  const std::uint32_t set = by_type ? static_cast<std::uint32_t>(core.type) : mode == kGroup ? core.group : 0;
  Rounds& rounds = rounds_[{{flag, mode}, set}];
  if (!rounds.members.empty()) return rounds;
  for (const auto& other : cores_) {
    if (other->type == CoreType::aicpu) continue;
    const bool same_type = other->type == core.type;
    if ((mode == kType && !same_type) || (mode == kGroup && other->group != core.group)) continue;
    const bool signals = mode == kAcross ? same_type : mode != kGroup || other->type == CoreType::aiv;
    const bool is_told = mode == kAcross ? !same_type : mode != kGroup || other->type == CoreType::aic;
    if (signals) rounds.members.push_back(other->number);
    if (is_told) rounds.targets.push_back(other->number);
  }
  rounds.signalled.assign(rounds.members.size(), 0);
  return rounds;
}

void Device::cross_set(Core& core, const Command& command, std::uint64_t now, const ClockRef& clock,
                       const Accessor& by) {
  using Place = Operands_cross_set;
  const std::uint64_t mode = command.operands[Place::mode];
  if (mode == kMask) {
    std::vector<std::uint32_t> to;
    for (std::uint32_t bit = 0; bit < 32; ++bit) {
      if ((command.operands[Place::mask] >> bit & 1) == 0) continue;
      to.push_back(static_cast<std::uint32_t>(command.operands[Place::first_core]) + bit);
    }
    return send_cross(std::move(to), command, now, clock, by);
  }
  if (mode == kGroup && core.type == CoreType::aic) {
    std::vector<std::uint32_t> to;
    for (const auto& other : cores_) {
      if (other->type == CoreType::aiv && other->group == core.group) to.push_back(other->number);
    }
    return send_cross(std::move(to), command, now, clock, by);
  }
  if (mode == kPair) {
    const auto first = [&](CoreType type) {
      const auto is_of = [&](const auto& other) { return other->type == type && other->group == core.group; };
      return (*std::find_if(cores_.begin(), cores_.end(), is_of))->number;
    };
    const std::uint32_t cube = first(CoreType::aic);
    const std::uint32_t vector = first(CoreType::aiv);
    if (core.number == cube) return send_cross({vector}, command, now, clock, by);
    if (core.number == vector) return send_cross({cube}, command, now, clock, by);
    return;
  }
  signal(rounds_of(core, command.operands[Place::flag], mode), command, now, clock, by);
}

void Device::signal(Rounds& rounds, const Command& command, std::uint64_t now, const ClockRef& clock,
                    const Accessor& by) {
  const auto place = std::find(rounds.members.begin(), rounds.members.end(), by.core) - rounds.members.begin();
  const auto index = static_cast<std::size_t>(place);
  const std::uint64_t round = rounds.signalled[index]++ - rounds.completed;
  if (round >= rounds.open.size()) rounds.open.resize(round + 1);
  auto& open = rounds.open[round];
  open.clock = joined(open.clock, clock);
  open.fired = std::max(open.fired, now);
  if (*std::min_element(rounds.signalled.begin(), rounds.signalled.end()) == rounds.completed) return;
  const auto done = rounds.open.front();
  rounds.open.erase(rounds.open.begin());
  ++rounds.completed;
  send_cross(rounds.targets, command, done.fired, done.clock, by);
}

void Device::send_cross(std::vector<std::uint32_t> to, const Command& command, std::uint64_t fired, ClockRef clock,
                        const Accessor& by) {
  Arrival arrival;
  arrival.kind = Arrival::Kind::cross;
  arrival.core = by.core;
  arrival.marker = by.marker;
  arrival.pc = by.pc;
  arrival.flag = command.operands[Operands_cross_set::flag];
  arrival.to = std::move(to);
  std::uint64_t visible = fired + cost_of(command).visible;
  if (config_.delays != 0) {  // a late signal stays ahead of what the same core sends behind it
    std::uint64_t& last = sent_[{by.core, arrival.flag}];
    visible = last = std::max(last, visible + delays_.of(by.core * kParts));
  }
  arrival.token = {visible, std::move(clock), ++flows_};
  record(by.core, static_cast<std::uint8_t>(command.engine), TraceKind::flow_out, fired, fired, by.marker,
         static_cast<std::uint32_t>(arrival.flag), flows_);
  push(visible, by.core * kParts, EventKind::arrival, keep(std::move(arrival)));
}

void Device::arrive_cross(const Arrival& arrival, std::uint64_t now) {
  const std::uint64_t most = config_.target.sync.flag_count_max;
  for (const std::uint32_t number : arrival.to) {
    Core& core = *cores_[number];
    auto& tokens = core.cross[arrival.flag];
    if (tokens.size() >= most) {
      const Accessor by{arrival.core, arrival.marker, arrival.pc, 0, 0, nullptr, nullptr};
      fail(by, "cross_overflow",
           "cross-core flag " + std::to_string(arrival.flag) + " of " + name_of_core(number) + " counts too far",
           "at most " + std::to_string(most), std::to_string(tokens.size() + 1), "a set without its wait");
      return;
    }
    tokens.push_back(arrival.token);
    const Blocked& blocked = core.blocked;
    if (blocked.is && blocked.cause == Stall::cross_wait && blocked.flag == arrival.flag) wake(core, now);
  }
}

// ---- words

void Device::send_notify(const Command& command, std::uint64_t now, ClockRef clock, const Accessor& by) {
  using Place = Operands_notify;
  Arrival arrival;
  arrival.kind = Arrival::Kind::notify;
  arrival.core = by.core;
  arrival.marker = by.marker;
  arrival.pc = by.pc;
  arrival.address = command.operands[Place::address];
  arrival.value = command.operands[Place::value];
  arrival.adds = command.operands[Place::mode] == 1;
  const std::uint64_t visible = now + cost_of(command).visible;
  arrival.token = {visible, std::move(clock), 0};
  push(visible, by.core * kParts, EventKind::arrival, keep(std::move(arrival)));
}

void Device::arrive_notify(const Arrival& arrival) {
  std::uint8_t* const place = ram_.data() + (arrival.address - global_.base);
  std::uint64_t value = arrival.value;
  if (arrival.adds) {
    std::uint64_t old = 0;
    std::memcpy(&old, place, sizeof(old));
    value += old;
  }
  std::memcpy(place, &value, sizeof(value));
  const std::uint64_t offset = arrival.address - global_.base;
  written_.set(offset, offset + sizeof(value));
  if (config_.races) {
    ClockRef& word = word_clocks_[arrival.address];
    word = arrival.adds ? joined(word, arrival.token.clock) : arrival.token.clock;
  }
  break_reservations(*cores_[arrival.core], arrival.address);
}

void Device::recheck_waiters(std::uint64_t address, std::uint64_t now) {
  std::uint64_t value = 0;
  std::memcpy(&value, ram_.data() + (address - global_.base), sizeof(value));
  for (auto& core : cores_) {
    const Blocked& blocked = core->blocked;
    if (!blocked.is || blocked.cause != Stall::wait_memory || blocked.address != address) continue;
    if (value >= blocked.value) wake(*core, now);
  }
}

// ---- what is on its way

std::uint32_t Device::keep(Arrival arrival) {
  if (free_arrivals_.empty()) {
    arrivals_.push_back(std::move(arrival));
    return static_cast<std::uint32_t>(arrivals_.size() - 1);
  }
  const std::uint32_t place = free_arrivals_.back();
  free_arrivals_.pop_back();
  arrivals_[place] = std::move(arrival);
  return place;
}

void Device::arrive(std::uint32_t payload, std::uint64_t now) {
  const Arrival arrival = std::move(arrivals_[payload]);
  free_arrivals_.push_back(payload);
  switch (arrival.kind) {
    case Arrival::Kind::cross:
      return arrive_cross(arrival, now);
    case Arrival::Kind::notify:
      arrive_notify(arrival);
      return recheck_waiters(arrival.address, now);
    case Arrival::Kind::stored:
      return recheck_waiters(arrival.address, now);
  }
}

}  // namespace sk::sim

// See device.h: who waits for whom when nothing can happen any more, and what is left when the program ends.
#include <algorithm>

#include "sim/device/device.h"

namespace sk::sim {
namespace {

constexpr std::size_t kLinesMax = 64;

std::string number(std::uint64_t value) { return std::to_string(value); }

}  // namespace

std::string hex(std::uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do text.insert(text.begin(), kDigits[value & 15]);
  while ((value >>= 4) != 0);
  return "0x" + text;
}

// What a core's control unit is doing.
std::string Device::waits_of(const Core& core) const {
  const Blocked& blocked = core.blocked;
  if (core.asleep) return "its control unit has ended (wfi)";
  if (!blocked.is) return "its control unit runs";
  switch (blocked.cause) {
    case Stall::queue_full:
      return std::string("its control unit waits for a place in the queue of ") + name_of(blocked.engine);
    case Stall::drain:
      return "its control unit waits in a drain";
    case Stall::wait_flag:
      return std::string("its control unit waits for flag ") + number(blocked.flag) + " from " +
             name_of(blocked.engine);
    case Stall::cross_wait:
      return "its control unit waits for cross-core flag " + number(blocked.flag);
    case Stall::wait_memory:
      return "its control unit waits for the word at " + hex(blocked.address);
    default:
      return "its control unit waits";
  }
}

// What an engine is doing.
std::string Device::waits_of(const EngineQueue& queue) const {
  if (queue.commands.empty()) return std::string(name_of(queue.engine)) + " has an empty queue";
  const QueuedCommand& head = queue.commands.front();
  return std::string(name_of(queue.engine)) + " has " + number(queue.commands.size()) + " commands, first `" +
         to_text(head.command) + "` of sub-operator " + number(head.marker / 4);
}

// Which cores could raise a cross-core flag's count at this core, and why they have not.
std::string Device::setters_of(const Core& core, std::uint64_t flag) const {
  static constexpr const char* kModes[] = {"type", "group", "all", "across", "pair", "mask"};
  std::string text;
  for (const auto& [key, rounds] : rounds_) {
    if (key.first.first != flag) continue;
    if (std::find(rounds.targets.begin(), rounds.targets.end(), core.number) == rounds.targets.end()) continue;
    std::string missing;
    bool any = false;
    for (std::size_t i = 0; i < rounds.members.size(); ++i) {
      if (rounds.signalled[i] > rounds.completed) {
        any = true;
        continue;
      }
      const Core& member = *cores_[rounds.members[i]];
      missing += (missing.empty() ? "" : "; ") + name_of_core(member.number) + " in sub-operator " +
                 number(member.unit.marker / 4) + ", " + waits_of(member);
    }
    if (!any) continue;
    text += (text.empty() ? "" : "; ") + std::string("in mode ") + kModes[key.first.second] + " round " +
            number(rounds.completed + 1) + " lacks " + missing;
  }
  return text.empty() ? "no core has begun another signal of it" : text;
}

// Who waits for whom, a line each; `first`: the core of the first of them, or null.
std::vector<std::string> Device::waiters(const Core*& first) const {
  std::vector<std::string> lines;
  first = nullptr;
  for (const auto& core : cores_) {
    const Blocked& blocked = core->blocked;
    if (!blocked.is) continue;
    if (first == nullptr) first = core.get();
    const std::string head = name_of_core(core->number) + ", sub-operator " + number(core->unit.marker / 4) + ": ";
    const auto engine_line = [&](Engine engine) {
      const EngineQueue* const queue = core->queues[static_cast<std::size_t>(engine)];
      return engine == Engine::control || queue == nullptr ? std::string("there is no such engine") : waits_of(*queue);
    };
    switch (blocked.cause) {
      case Stall::cross_wait:
        lines.push_back(head + "cross_wait flag " + number(blocked.flag) + ": count 0, expected at least 1; " +
                        setters_of(*core, blocked.flag));
        break;
      case Stall::wait_memory: {
        std::uint64_t value = 0;
        const auto bytes = read(blocked.address, sizeof(value));
        std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::uint8_t*>(&value));
        lines.push_back(head + "wait_memory " + hex(blocked.address) + ": value " + number(value) +
                        ", expected at least " + number(blocked.value) + "; nobody who could change it still runs");
        break;
      }
      case Stall::wait_flag:
        lines.push_back(head + "wait_flag " + number(blocked.flag) + " from " + name_of(blocked.engine) +
                        " to control: count 0, expected at least 1; " + engine_line(blocked.engine));
        break;
      case Stall::queue_full:
        lines.push_back(head + "the queue of " + name_of(blocked.engine) + " is full; " + engine_line(blocked.engine));
        break;
      default:
        lines.push_back(head + "drain: engines with work left");
        break;
    }
  }
  for (const auto& queue : engines_) {
    if (queue->state != EngineQueue::State::waiting) continue;
    const QueuedCommand& command = queue->commands.front();
    const auto peer = static_cast<Engine>(command.command.operands[Operands_wait_flag::peer]);
    const Core& core = *cores_[queue->core];
    if (first == nullptr) first = &core;
    const EngineQueue* const other = core.queues[static_cast<std::size_t>(peer)];
    lines.push_back(name_of_core(queue->core) + " " + name_of(queue->engine) + ", sub-operator " +
                    number(command.marker / 4) + ": wait_flag " +
                    number(command.command.operands[Operands_wait_flag::flag]) + " from " + name_of(peer) +
                    ": count 0, expected at least 1; " + (other != nullptr ? waits_of(*other) + ", " : std::string()) +
                    waits_of(core));
  }
  return lines;
}

void Device::fail_deadlock() {
  const Core* first = nullptr;
  std::vector<std::string> lines = waiters(first);
  const Core& where = first != nullptr ? *first : *cores_.front();
  now_ = where.unit.cycles();
  if (lines.empty()) {
    fail(accessor(where, false), "no_exit", "all control units sleep, and the program has not ended",
         "a store to the exit address by the last of them");
    return;
  }
  const std::string waiting = number(lines.size()) + (lines.size() == 1 ? " waiter" : " waiters");
  fail(accessor(where, false), "deadlock", "nothing can happen any more: every core waits or has ended", "", waiting);
  if (lines.size() > kLinesMax) lines.resize(kLinesMax);
  failure_.details = std::move(lines);
}

// A launch that may never end is stopped: `core` is where it was stopped; who runs is told ahead of who waits.
void Device::fail_limit(const Core& core, std::string kind, std::string message, std::string expected,
                        std::string found) {
  std::vector<std::string> lines;
  for (const auto& other : cores_) {
    if (other->asleep || other->blocked.is) continue;
    lines.push_back(name_of_core(other->number) + ", sub-operator " + number(other->unit.marker / 4) +
                    ": its control unit runs at pc " + hex(other->unit.pc));
  }
  const Core* first = nullptr;
  for (std::string& line : waiters(first)) lines.push_back(std::move(line));
  if (lines.size() > kLinesMax) lines.resize(kLinesMax);
  fail(accessor(core, false), std::move(kind), std::move(message), std::move(expected), std::move(found),
       "a loop that never ends, or a larger limit");
  failure_.details = std::move(lines);
}

void Device::stop_late(const std::string& limit, const std::string& taken) {
  const auto found = std::find_if(cores_.begin(), cores_.end(), [](const auto& core) { return !core->asleep; });
  fail_limit(found != cores_.end() ? **found : *cores_.front(), "time_limit",
             "the simulation of the launch takes longer than it may", "at most " + limit, taken);
}

void Device::report_left(std::vector<std::string>& commands, std::vector<std::string>& flags) const {
  const auto look = [&](const EngineQueue& queue) {
    if (queue.commands.empty()) return;
    commands.push_back(name_of_core(queue.core) + ": " + waits_of(queue));
  };
  for (const auto& core : cores_) {
    if (rings(*core)) commands.push_back(name_of_core(core->number) + " rings a doorbell after the end");
  }
  for (const auto& queue : engines_) look(*queue);
  look(*sdma_);
  const std::uint64_t ids = config_.target.queue.flag_ids;
  for (const auto& core : cores_) {
    for (std::size_t i = 0; i < core->flags.size(); ++i) {
      if (core->flags[i].empty()) continue;
      flags.push_back(name_of_core(core->number) + ": flag " + number(i % ids) + " from " +
                      name_of(static_cast<Engine>(i / ids / kWindows)) + " to " +
                      name_of(static_cast<Engine>(i / ids % kWindows)) + " is still set");
    }
    for (std::size_t flag = 0; flag < core->cross.size(); ++flag) {
      if (core->cross[flag].empty()) continue;
      flags.push_back(name_of_core(core->number) + ": cross-core flag " + number(flag) + " still counts " +
                      number(core->cross[flag].size()));
    }
  }
  for (const auto& [key, rounds] : rounds_) {
    for (std::size_t i = 0; i < rounds.members.size(); ++i) {
      if (rounds.signalled[i] == rounds.completed) continue;
      flags.push_back(name_of_core(rounds.members[i]) + ": " + number(rounds.signalled[i] - rounds.completed) +
                      " signals of cross-core flag " + number(key.first.first) + " that never completed");
    }
  }
}

// Whether the unit's request is a doorbell of an engine.
bool Device::rings(const Core& core) const {
  const Request& request = core.unit.request;
  const std::uint64_t word = (request.address - page_address) / 8;
  return core.requesting && request.kind == Request::Kind::store && word >= kWindowWords &&
         word < kWindows * kWindowWords && word % kWindowWords == kWindowWords - 1;
}

// What must hold when the program says that it has ended.
bool Device::check_end(const Core& core) {
  std::vector<std::string> commands, flags;
  // Commands of the others that count from a later cycle on are there already or not as they ran ahead: now they are.
  for (const auto& other : cores_) {
    if (!other->asleep && !other->requesting && !other->blocked.is) run_out(*other);
  }
  // What is on its way arrives first: it may overflow, and it counts.
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    if (event.kind == EventKind::arrival) arrive(event.payload, event.cycle);
    if (state_ == State::failed) return false;
  }
  report_left(commands, flags);
  const Accessor by = accessor(core, true);
  if (!commands.empty()) {
    fail(by, "undrained", "the program ends while engines still have commands", "empty queues",
         number(commands.size()) + " queues with commands", "a drain before the core says that it is done");
    failure_.details = std::move(commands);
  } else if (!flags.empty() && config_.check_flags) {
    fail(by, "leftover_flag", "flags are still set when the program ends", "every set taken by its wait",
         number(flags.size()) + " flags", "a set without its wait");
    failure_.details = std::move(flags);
  }
  if (failure_.details.size() > kLinesMax) failure_.details.resize(kLinesMax);
  return state_ == State::running;
}

}  // namespace sk::sim

// See device.h: what engines do with the commands of their queues.
#include <algorithm>

#include "sim/device/device.h"

namespace sk::sim {
namespace {

std::uint32_t part_of(const EngineQueue& queue, std::uint32_t parts) {
  return queue.core * parts + 1 + static_cast<std::uint32_t>(queue.engine);
}

bool is_flag(Opcode opcode) { return static_cast<std::uint8_t>(opcode) < 0x10; }

}  // namespace

Cost Device::cost_of(const Command& command) const {
  if (!config_.timed) return {0, 0, 0};
  return cost(command, config_.target);
}

std::vector<Token>& Device::flag_of(Core& core, Engine from, Engine to, std::uint64_t number) const {
  const std::size_t pair = static_cast<std::size_t>(from) * kWindows + static_cast<std::size_t>(to);
  return core.flags[pair * config_.target.queue.flag_ids + number];
}

// ---- order

void Device::acquire(EngineQueue& queue, const QueuedCommand& command) const {
  if (!config_.races) return;
  if (command.acquired && command.acquired != queue.joined) {
    join(queue.clock, *command.acquired);
    queue.joined = command.acquired;
  }
  auto& stores = queue.clock[2U * command.core];
  auto& loads = queue.clock[2U * command.core + 1];
  stores = std::max(stores, command.released);
  loads = std::max(loads, command.loads);
}

ClockRef Device::release(EngineQueue& queue) const {
  if (!config_.races) return nullptr;
  auto clock = std::make_shared<Clock>(queue.clock);
  (*clock)[queue.actor] = queue.time++;
  return clock;
}

ClockRef Device::release(Core& core) const {
  if (!config_.races) return nullptr;
  ControlUnit& unit = core.unit;
  auto clock = unit.acquired ? std::make_shared<Clock>(*unit.acquired) : std::make_shared<Clock>(actors_, 0);
  (*clock)[2U * core.number] = unit.epoch;
  (*clock)[2U * core.number + 1] = unit.load_epoch++;
  unit.released = unit.epoch++;
  return clock;
}

// ---- the queue

void Device::engine_event(EngineQueue& queue, std::uint64_t now) {
  switch (queue.state) {
    case EngineQueue::State::transferring:
      return step_transfer(queue, now);
    case EngineQueue::State::busy:
      end_command(queue, now);
      break;
    default:
      break;
  }
  advance(queue, now);
}

// Starts commands until one takes time or has to wait.
void Device::advance(EngineQueue& queue, std::uint64_t now) {
  while (state_ == State::running) {
    if (queue.commands.empty()) return;
    const QueuedCommand& next = queue.commands.front();
    if (next.doorbell > now) return push(next.doorbell, part_of(queue, kParts), EventKind::engine);
    if (queue.state == EngineQueue::State::idle) queue.stats.waits_empty += now - queue.idle_since;
    acquire(queue, next);
    if (!start(queue, now)) return;
  }
}

std::uint64_t Device::delay_of(const EngineQueue& queue) { return delays_.of(part_of(queue, kParts)); }

// True: the command is complete already.
bool Device::start(EngineQueue& queue, std::uint64_t now) {
  const QueuedCommand& queued = queue.commands.front();
  const Command& command = queued.command;
  const Accessor by = accessor(queue, queued);
  if (queue.state != EngineQueue::State::waiting) queue.started = now;
  switch (command.opcode) {
    case Opcode::wait_flag:
      return start_wait_flag(queue, now);
    case Opcode::set_flag:
      set_flag(*cores_[queued.core], command, now, release(queue), by);
      break;
    case Opcode::cross_set:
      cross_set(*cores_[queued.core], command, now, release(queue), by);
      break;
    case Opcode::notify:
      if (!check_word(by, command.operands[Operands_notify::address])) return false;
      [[fallthrough]];
    case Opcode::barrier: {
      queue.state = EngineQueue::State::busy;
      queue.closed_end = now + cost_of(command).start_up + delay_of(queue);
      push(queue.closed_end, part_of(queue, kParts), EventKind::engine);
      return false;
    }
    default:
      return start_data(queue, now);
  }
  if (state_ != State::running) return false;
  complete(queue, now);
  return true;
}

bool Device::start_wait_flag(EngineQueue& queue, std::uint64_t now) {
  using Place = Operands_wait_flag;
  const QueuedCommand& queued = queue.commands.front();
  const auto from = static_cast<Engine>(queued.command.operands[Place::peer]);
  const std::uint64_t number = queued.command.operands[Place::flag];
  auto& tokens = flag_of(*cores_[queue.core], from, queue.engine, number);
  if (tokens.empty() || tokens.front().visible > now) {
    queue.state = EngineQueue::State::waiting;
    if (!tokens.empty()) push(tokens.front().visible, part_of(queue, kParts), EventKind::engine);
    return false;
  }
  if (config_.races) join(queue.clock, *tokens.front().clock);
  tokens.erase(tokens.begin());
  if (now > queue.started) {
    record(queue.core, static_cast<std::uint8_t>(queue.engine), TraceKind::wait, queue.started, now, queued.marker,
           static_cast<std::uint32_t>(from) << 8 | static_cast<std::uint32_t>(number));
  }
  complete(queue, now);
  return true;
}

bool Device::start_data(EngineQueue& queue, std::uint64_t now) {
  const QueuedCommand& queued = queue.commands.front();
  const Command& command = queued.command;
  Core& core = *cores_[queued.core];
  const Accessor by = accessor(queue, queued);
  touches_.clear();
  footprint(command, config_.target, touches_);
  if (!check_touches(core, by, command)) return false;
  if (const auto fault = execute(command, config_.target, core.local, global_, {config_.data})) {
    const bool local = fault->kind == FaultKind::unwritten_read;
    return fail(by, local ? "unwritten_local_read" : name_of(fault->kind), fault->message);
  }
  Cost price = cost_of(command);
  price.start_up += delay_of(queue);
  queue.closed_end = now + std::max<std::uint64_t>(config_.timed ? 0 : 1, price.start_up + price.beats);
  const bool global =
      std::any_of(touches_.begin(), touches_.end(), [](const Touch& t) { return t.space == Space::gm; });
  if (global && config_.timed) {
    begin_transfer(queue, now, price);
  } else {
    queue.state = EngineQueue::State::busy;
    push(queue.closed_end, part_of(queue, kParts), EventKind::engine);
  }
  return false;
}

// ---- transfers. One piece per event, in the order in which they are asked for. Requests run ahead of the data by the
// start-up: that is how long an answer may take without a gap. Where one comes later, so does all that follows.

void Device::begin_transfer(EngineQueue& queue, std::uint64_t now, const Cost& price) {
  Transfer& transfer = queue.transfer;
  std::vector<Touch> kept = std::move(transfer.touches);
  transfer = Transfer{};
  kept.clear();
  for (const Touch& touch : touches_) {
    if (touch.space != Space::gm) continue;
    kept.push_back(touch);
    Touch& last = kept.back();
    if (last.rows > 1 && last.stride == static_cast<std::int64_t>(last.row_bytes)) {
      last.row_bytes *= last.rows;
      last.rows = 1;
    }
    transfer.bytes += last.rows * last.row_bytes;
  }
  transfer.touches = std::move(kept);
  transfer.begin = now + price.start_up;
  transfer.beats = price.beats;
  transfer.ahead = config_.target.dma.startup_cycles;
  queue.state = EngineQueue::State::transferring;
  push(transfer.begin, part_of(queue, kParts), EventKind::engine);
}

void Device::step_transfer(EngineQueue& queue, std::uint64_t now) {
  Transfer& transfer = queue.transfer;
  const std::uint64_t line = memory_.line_bytes();
  const bool is_hint = queue.commands.front().command.opcode == Opcode::sdma_prefetch;
  for (std::uint64_t at = now; is_next(at, part_of(queue, kParts)); at = transfer.next()) {
    if (transfer.touch == transfer.touches.size()) {
      queue.state = EngineQueue::State::busy;
      const std::uint64_t end = std::max(transfer.begin + transfer.beats + transfer.late, transfer.ready);
      return push(end, part_of(queue, kParts), EventKind::engine);
    }
    const Touch& touch = transfer.touches[transfer.touch];
    const std::uint64_t address =
        touch.begin + transfer.row * static_cast<std::uint64_t>(touch.stride) + transfer.offset;
    const std::uint64_t bytes = std::min(touch.row_bytes - transfer.offset, line - address % line);
    const auto access = touch.write ? memory_.write(address, bytes, queue.core, at)
                        : is_hint   ? memory_.prefetch(address, bytes, at)
                                    : memory_.read(address, bytes, queue.core, at);
    transfer.late = std::max(transfer.late, access.served - transfer.nominal());
    transfer.ready = std::max(transfer.ready, access.ready);
    transfer.done += bytes;
    transfer.offset += bytes;
    if (transfer.offset < touch.row_bytes) continue;
    transfer.offset = 0;
    if (++transfer.row < touch.rows) continue;
    transfer.row = 0;
    ++transfer.touch;
  }
  push(transfer.next(), part_of(queue, kParts), EventKind::engine);
}

// ---- ends

void Device::end_command(EngineQueue& queue, std::uint64_t now) {
  const QueuedCommand& queued = queue.commands.front();
  if (queued.command.opcode == Opcode::notify) {
    send_notify(queued.command, now, release(queue), accessor(queue, queued));
  }
  complete(queue, now);
}

void Device::account(EngineQueue& queue, const QueuedCommand& command, const EngineStats& share) {
  queue.stats.add(share);
  stats_of(*cores_[command.core], command.marker).engine(static_cast<std::size_t>(queue.engine)).add(share);
}

void Device::complete(EngineQueue& queue, std::uint64_t now) {
  const QueuedCommand& queued = queue.commands.front();
  const Opcode opcode = queued.command.opcode;
  EngineStats share;
  share.first = queue.started;
  share.last = now;
  if (opcode == Opcode::wait_flag) {
    share.waits_flag = now - queue.started;
  } else {
    share.busy = now - queue.started;
  }
  ++(is_flag(opcode) ? share.flags : share.commands);
  if (!is_flag(opcode)) {
    share.waits_memory = now - std::min(now, queue.closed_end);
    for (const Touch& touch : queue.transfer.touches) {
      (touch.write ? share.bytes_written : share.bytes_read) += touch.rows * touch.row_bytes;
    }
    record(queue.core, static_cast<std::uint8_t>(queue.engine), TraceKind::command, queue.started, now, queued.marker,
           static_cast<std::uint32_t>(opcode), static_cast<std::uint32_t>(share.bytes_read + share.bytes_written));
  }
  queue.transfer.touches.clear();
  account(queue, queued, share);
  queue.commands.pop_front();
  queue.state = EngineQueue::State::idle;
  queue.idle_since = now;
  const auto tell = [&](Core& core) {
    const Blocked& blocked = core.blocked;
    if (!blocked.is) return;
    if (blocked.cause == Stall::queue_full && blocked.engine == queue.engine) wake(core, now);
    if (blocked.cause == Stall::drain && queue.commands.empty()) {
      for (std::size_t e = 0; e + 1 < kWindows; ++e) {
        if ((blocked.flag >> e & 1) != 0 && core.queues[e] != nullptr && !core.queues[e]->commands.empty()) return;
      }
      wake(core, std::max(now, core.unit.stores_visible));
    }
  };
  if (queue.engine == Engine::sdma) {
    for (auto& core : cores_) tell(*core);
  } else {
    ++cores_[queue.core]->unit.room[static_cast<std::size_t>(queue.engine)];
    tell(*cores_[queue.core]);
  }
}

}  // namespace sk::sim

// See device.h: stores to the register page, and the commands that the control unit itself carries out.
#include <cstring>

#include "sim/device/device.h"

namespace sk::sim {
namespace {

constexpr std::uint64_t kWindowBytes = kWindowWords * 8;

}  // namespace

bool Device::perform_page_store(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const Request& request = unit.request;
  const std::uint64_t place = request.address - page_address;
  if (request.bytes != 8 || place % 8 != 0 || place >= kWindows * kWindowBytes) {
    return fail(accessor(core, true), "undefined_command", "a store to the register page that reaches no window",
                "aligned stores of 8 bytes into its windows",
                std::to_string(request.bytes) + " bytes at offset " + std::to_string(place));
  }
  auto& window = unit.windows[place / kWindowBytes];
  window[kWindowWords - 1] = request.value;
  Command command;
  const auto engine = static_cast<Engine>(place / kWindowBytes);
  if (const auto fault = decode(window, engine, core.type, config_.target, command)) {
    fail(accessor(core, true), name_of(fault->kind), fault->message);
    failure_.command = std::string("doorbell ") + hex(request.value) + " of " + name_of(engine);
    return false;
  }
  if (engine == Engine::control) return control_command(core, command, now);
  return ring(core, command, now);
}

// Puts a command into its queue, or waits for a place.
bool Device::ring(Core& core, const Command& command, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  EngineQueue* const queue = core.queues[static_cast<std::size_t>(command.engine)];
  if (queue == nullptr) {
    return fail(accessor(core, true), name_of(FaultKind::not_on_core), "the device has no such engine", "",
                to_text(command));
  }
  if (queue->commands.size() >= config_.target.queue.depth_commands) {
    Blocked why;
    why.cause = Stall::queue_full;
    why.engine = command.engine;
    block(core, why);
    return false;
  }
  QueuedCommand queued;
  queued.command = command;
  queued.pc = unit.pc;
  queued.marker = unit.marker;
  queued.released = unit.released;
  finish_doorbell(core, Stall::doorbell, 0);
  queued.doorbell = std::max(now, unit.cycles());
  if (command.engine != Engine::sdma) --unit.room[static_cast<std::size_t>(command.engine)];
  enqueue(core, std::move(queued));
  return true;
}

void Device::enqueue(Core& core, QueuedCommand queued) {
  EngineQueue& queue = *core.queues[static_cast<std::size_t>(queued.command.engine)];
  queued.core = static_cast<std::uint16_t>(core.number);
  if (config_.races) {
    queued.acquired = core.unit.acquired;
    queued.loads = core.unit.load_epoch++;
  }
  if (queue.commands.empty()) {
    push(queued.doorbell, queue.core * kParts + 1 + static_cast<std::uint32_t>(queue.engine), EventKind::engine);
  }
  queue.commands.push_back(std::move(queued));
}

// The instruction is over after `start_up` cycles, and not before an ordinary doorbell would be.
void Device::finish_doorbell(Core& core, Stall cause, std::uint64_t start_up) {
  if (config_.timed) {
    core.unit.stall(Stall::doorbell, costs.doorbell_store - 1);
    if (start_up > costs.doorbell_store) core.unit.stall(cause, start_up - costs.doorbell_store);
  }
  step_over(core.unit);
}

bool Device::control_command(Core& core, const Command& command, std::uint64_t now) {
  const Accessor by = accessor(core, true);
  const std::uint64_t fired = std::max(now, core.unit.stores_visible);
  switch (command.opcode) {
    case Opcode::set_flag:
      set_flag(core, command, now, release(core), by);
      break;
    case Opcode::wait_flag:
      return control_wait_flag(core, command, now);
    case Opcode::drain:
      return control_drain(core, command, now);
    case Opcode::cross_set:
      cross_set(core, command, fired, release(core), by);
      break;
    case Opcode::cross_wait:
      return control_cross_wait(core, command, now);
    case Opcode::notify: {
      if (!check_word(by, command.operands[Operands_notify::address])) return false;
      const std::uint64_t start_up = cost_of(command).start_up;
      send_notify(command, fired + start_up, release(core), by);
      finish_doorbell(core, Stall::notify, start_up);
      return state_ == State::running;
    }
    case Opcode::wait_memory:
      return control_wait_memory(core, command, now);
    default:
      return fail(by, name_of(FaultKind::undefined_command), "no command of the control unit", "", to_text(command));
  }
  finish_doorbell(core, Stall::doorbell, 0);
  return state_ == State::running;
}

bool Device::control_wait_flag(Core& core, const Command& command, std::uint64_t now) {
  using Place = Operands_wait_flag;
  const auto from = static_cast<Engine>(command.operands[Place::peer]);
  const std::uint64_t number = command.operands[Place::flag];
  auto& tokens = flag_of(core, from, Engine::control, number);
  if (tokens.empty() || tokens.front().visible > now) {
    Blocked why;
    why.cause = Stall::wait_flag;
    why.engine = from;
    why.flag = number;
    block(core, why);
    if (!tokens.empty()) wake(core, tokens.front().visible);
    return false;
  }
  if (config_.races) core.unit.acquired = joined(core.unit.acquired, tokens.front().clock);
  tokens.erase(tokens.begin());
  finish_doorbell(core, Stall::doorbell, 0);
  return true;
}

bool Device::control_drain(Core& core, const Command& command, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const std::uint64_t mask = command.operands[Operands_drain::engines];
  const auto of_core = [&](std::size_t e) {
    return (mask >> e & 1) != 0 && e != static_cast<std::size_t>(Engine::sdma) && core.queues[e] != nullptr;
  };
  bool busy = false;
  for (std::size_t e = 0; e < kWindows; ++e) busy |= of_core(e) && !core.queues[e]->commands.empty();
  if (busy || unit.stores_visible > now) {
    Blocked why;
    why.cause = Stall::drain;
    why.flag = mask;
    block(core, why);
    if (!busy) wake(core, unit.stores_visible);
    return false;
  }
  for (std::size_t e = 0; config_.races && e < kWindows; ++e) {
    if (of_core(e)) unit.acquired = joined(unit.acquired, release(*core.queues[e]));
  }
  finish_doorbell(core, Stall::drain, drain_cycles_);
  return true;
}

bool Device::control_cross_wait(Core& core, const Command& command, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const std::uint64_t flag = command.operands[Operands_cross_wait::flag];
  auto& tokens = core.cross[flag];
  if (tokens.empty()) {
    Blocked why;
    why.cause = Stall::cross_wait;
    why.flag = flag;
    block(core, why);
    return false;
  }
  if (config_.races) unit.acquired = joined(unit.acquired, tokens.front().clock);
  record(core.number, 0, TraceKind::flow_in, now, now, unit.marker, static_cast<std::uint32_t>(flag),
         tokens.front().flow);
  tokens.erase(tokens.begin());
  finish_doorbell(core, Stall::doorbell, 0);
  return true;
}

bool Device::control_wait_memory(Core& core, const Command& command, std::uint64_t now) {
  using Place = Operands_wait_memory;
  const std::uint64_t address = command.operands[Place::address];
  const std::uint64_t least = command.operands[Place::value];
  if (!check_word(accessor(core, false), address)) return false;
  std::uint64_t value = 0;
  std::memcpy(&value, ram_.data() + (address - global_.base), sizeof(value));
  if (value < least) {
    Blocked why;
    why.cause = Stall::wait_memory;
    why.address = address;
    why.value = least;
    block(core, why);
    return false;
  }
  if (config_.races) {
    core.unit.acquired = joined(core.unit.acquired, word_clocks_[address]);
  }
  (void)now;
  finish_doorbell(core, Stall::doorbell, 0);
  return true;
}

}  // namespace sk::sim

// See device.h: what control units ask for, in the order of events.
//
// An instruction that waits ends in the cycle in which what it waits for is there: one of its cycles is its own, so the
// stall is one less than the wait.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "sim/device/device.h"
#include "sim/interpreter.h"

namespace sk::sim {
namespace {

constexpr std::uint64_t kExitOk = 0x5555, kExitFailed = 0x3333;
constexpr std::uint64_t kMarkerTrap = ~std::uint64_t{0};
constexpr int kRequestsPerEvent = 100;
constexpr std::size_t kConsoleMax = std::size_t{1} << 20;

const char* text_of_cause(std::uint64_t cause) {
  switch (cause) {
    case 1:
      return "instruction fetch outside the program's code";
    case 2:
      return "illegal instruction";
    case 3:
      return "breakpoint";
    case 4:
      return "misaligned lr";
    case 5:
      return "load from where there is nothing";
    case 6:
      return "misaligned atomic";
    case 7:
      return "store to where there is nothing";
    case 8:
    case 11:
      return "environment call";
    default:
      return "trap";
  }
}

using HostClock = std::chrono::steady_clock;

std::uint64_t nanoseconds(HostClock::duration time) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

}  // namespace

// Two readings of the clock are about as long as a slice of a few instructions: what they take, the least of many
// rounds, is taken off.
std::uint64_t Device::control_ns() const {
  constexpr int kRounds = 64, kReadings = 256;
  std::uint64_t least = ~std::uint64_t{0};
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = HostClock::now();
    for (int reading = 1; reading < kReadings; ++reading) HostClock::now();
    least = std::min(least, nanoseconds(HostClock::now() - begin));
  }
  return control_gross_ns_ - std::min(control_gross_ns_, control_slices_ * least / kReadings);
}

void Device::interpret(ControlUnit& unit) {
  const auto budget = static_cast<std::int64_t>(config_.step);
  if (config_.timed) {
    Interpreter::run<ControlHost<true>>(*this, unit, budget);
  } else {
    Interpreter::run<ControlHost<false>>(*this, unit, budget);
  }
}

void Device::run_ahead(Core& core) {
  ControlUnit& unit = core.unit;
  const std::uint64_t before = unit.retired;
  if (config_.time_control) {
    const auto begin = HostClock::now();
    interpret(unit);
    control_gross_ns_ += nanoseconds(HostClock::now() - begin);
    ++control_slices_;
  } else {
    interpret(unit);
  }
  take_posted(core);
  executed_ += unit.retired - before;
  core.requesting = unit.request.kind != Request::Kind::step;
}

void Device::take_posted(Core& core) {
  for (std::size_t i = 0; i < posted_count; ++i) {
    const Posted& from = posted[i];
    QueuedCommand queued;
    if (decode(from.words, static_cast<Engine>(from.window), core.type, config_.target, queued.command)) {
      for (std::size_t j = i; j < posted_count; ++j) ++core.unit.room[posted[j].window];
      rewind(core, from);
      break;
    }
    queued.doorbell = from.cycle + (config_.timed ? costs.doorbell_store : 1);
    queued.pc = from.pc;
    queued.marker = from.marker;
    queued.released = from.released;
    enqueue(core, std::move(queued));
  }
  posted_count = 0;
}

// The command is a fault, which is to be found in its turn: the unit stands at its doorbell again. What it did behind
// that to its registers and its private memory stays, which nobody will see.
void Device::rewind(Core& core, const Posted& posted_there) {
  constexpr std::uint32_t kStoreBits = 3;  // of four bytes
  ControlUnit& unit = core.unit;
  unit.pc = posted_there.pc;
  unit.retired = posted_there.retired;
  unit.stall_cycles = posted_there.cycle - unit.retired - unit.traps;
  unit.marker = posted_there.marker;
  unit.stats = &stats_of(core, unit.marker).control;
  unit.windows[posted_there.window] = posted_there.words;
  unit.request = {Request::Kind::store, 8, false, false, 0, posted_there.words[kWindowWords - 1], {}};
  unit.request.address = page_address + (posted_there.window * kWindowWords + kWindowWords - 1) * 8;
  unit.request.record.bits = kStoreBits;
}

// The host fetches what the unit's next turn needs beyond itself, while it is busy with the unit's request: records,
// the windows that it fills, the top of the stack, the cache's next set, the marker's counts; of the function's caller,
// the place that it returns to.
void Device::will_run_ahead(const Core& core) const {
  constexpr std::size_t kStackPointer = 2, kReturnAddress = 1;
  constexpr std::size_t kCodeLines = 16, kCallerLines = 2, kStackLines = 8, kStatsLines = 2;
  const ControlUnit& unit = core.unit;
  const auto lines = [](const void* at, std::size_t count) {
    const auto* const byte = static_cast<const char*>(at);
    for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(byte + i * kHostLineBytes);
  };
  const auto code_at = [&](std::uint64_t address, std::size_t count, std::uint64_t next_line) {
    if (address - code_base >= code_bytes) return;
    lines(&records[(address - code_base) / 2], count);
    if (unit.cache.enabled()) unit.cache.will_enter(unit.cache.line_of(address) + next_line);
  };
  code_at(unit.pc, kCodeLines, 1);
  code_at(unit.x[kReturnAddress], kCallerLines, 0);
  const std::uint64_t depth = unit.x[kStackPointer] - unit.private_base;
  if (depth < unit.private_bytes) lines(unit.private_data + depth, kStackLines);
  lines(unit.ready.data(), sizeof(unit.ready) / 2 / kHostLineBytes);
  lines(unit.windows.data(), sizeof(unit.windows) / kHostLineBytes);
  lines(unit.stats, kStatsLines);
  core.markers.will_find(unit.marker + 1);
}

void Device::control_event(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  if (core.blocked.is) unblock(core, now);
  // Bounded, so that `run` comes back to its caller even where nobody else ever has an event.
  for (int requests = 0; requests < kRequestsPerEvent; ++requests) {
    if (!core.requesting) {
      run_ahead(core);
      if (executed_ > config_.instructions_max) {
        return fail_limit(core, "instruction_limit", "the launch executed more instructions than it may",
                          "at most " + std::to_string(config_.instructions_max), std::to_string(executed_));
      }
      now = unit.cycles();
      if (!core.requesting || !is_next(now, core.number * kParts)) {
        return push(now, core.number * kParts, EventKind::control);
      }
    }
    now_ = now;
    if (!perform(core, now) || state_ != State::running) return;
    core.requesting = false;
  }
  push(unit.cycles(), core.number * kParts, EventKind::control);
}

void Device::block(Core& core, Blocked why) {
  why.is = true;
  core.blocked = why;
}

void Device::wake(Core& core, std::uint64_t at) {
  if (!core.blocked.is || core.blocked.scheduled) return;
  core.blocked.scheduled = true;
  push(at, core.number * kParts, EventKind::control);
}

void Device::unblock(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const std::uint64_t waited = now > unit.cycles() ? now - unit.cycles() - 1 : 0;
  if (waited != 0) {
    record(core.number, 0, TraceKind::stall, unit.cycles(), now, unit.marker,
           static_cast<std::uint32_t>(core.blocked.cause), static_cast<std::uint32_t>(core.blocked.flag));
    unit.stall(core.blocked.cause, waited);
    if (core.blocked.cause == Stall::cross_wait) core.cross_stalls[core.blocked.flag] += waited;
  }
  core.blocked = {};
}

void Device::step_over(ControlUnit& unit) const {
  unit.pc += (unit.request.record.bits & 3) == 3 ? 4 : 2;
  ++unit.retired;
}

bool Device::perform(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const Request& request = unit.request;
  switch (request.kind) {
    case Request::Kind::step:
      return true;
    case Request::Kind::fetch:
      perform_fetch(core, now);
      return true;
    case Request::Kind::prefetch:
      perform_prefetch(core, now);
      return true;
    case Request::Kind::load:
      return perform_load(core, now);
    case Request::Kind::store:
      return perform_store(core, now);
    case Request::Kind::atomic:
      return perform_atomic(core, now);
    case Request::Kind::sleep:
      core.asleep = true;
      core.requesting = false;
      core.slept = unit.cycles();
      return false;
    case Request::Kind::trap:
      if (request.value == kMarkerTrap) {
        return fail(accessor(core, true), "bad_marker", "a progress marker that is none",
                    "sub-operator * 4 + phase, below 2^30", hex(request.address));
      }
      return fail(accessor(core, false), "trap", text_of_cause(request.value), "", "mtval " + hex(request.address));
  }
  return false;
}

void Device::perform_fetch(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const std::uint64_t line = unit.cache.line_of(unit.request.address);
  const std::uint64_t address = code_base + line * line_bytes;
  const std::uint64_t ready = memory_.fetch(address, line, core.number, now);
  record(core.number, 0, TraceKind::stall, now, ready, unit.marker, static_cast<std::uint32_t>(Stall::fetch),
         static_cast<std::uint32_t>(line));
  unit.stall(Stall::fetch, ready - now);
  unit.cache.fill(line, *unit.stats);
  unit.fetched = unit.second_line;
}

void Device::perform_prefetch(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const std::uint64_t line = unit.cache.line_of(unit.request.address);
  if (unit.cache.holds(line)) return;
  unit.cache.prefetch(line, memory_.fetch(code_base + line * line_bytes, line, core.number, now), *unit.stats);
}

void Device::load_register(ControlUnit& unit, std::uint64_t value) const {
  const Request& request = unit.request;
  const unsigned unused = 64 - 8U * request.bytes;
  if (request.to_float) {
    unit.f[request.record.rd] = request.bytes == 4 ? value | std::uint64_t{0xffffffff} << 32 : value;
    unit.mark_float_dirty();
    return;
  }
  if (request.extend_sign) {
    value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
  }
  unit.x[request.record.rd] = value;
}

bool Device::perform_load(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const Request& request = unit.request;
  const bool is_private =
      request.address - unit.private_base <= unit.private_bytes - request.bytes && config_.private_address.has_value();
  if (!is_private && !check_global(accessor(core, false), request.address, request.address + request.bytes, false)) {
    return false;
  }
  if (!is_private && request.address % request.bytes != 0) {
    return fail(accessor(core, false), "misaligned", "a load from global memory that is not aligned",
                "a multiple of " + std::to_string(request.bytes), hex(request.address));
  }
  std::uint64_t value = 0;
  std::memcpy(&value, ram_.data() + (request.address - global_.base), request.bytes);
  load_register(unit, value);
  if (config_.timed) {
    std::uint64_t ready = unit.cycles() + costs.private_load;
    if (!is_private) {
      ready = memory_.read(request.address, request.bytes, core.number, now).ready +
              config_.target.control.global_load_cycles;
    }
    const std::size_t number = request.to_float ? 32U + request.record.rd : request.record.rd;
    if (number != kSink || request.to_float) unit.await(number, ready, !is_private);
  }
  step_over(unit);
  return true;
}

bool Device::perform_store(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const Request& request = unit.request;
  const auto& map = config_.target.map;
  if (request.address - map.page_address < map.page_bytes) return perform_page_store(core, now);
  if (request.address == map.exit_address && request.bytes == 4) return perform_exit(core);
  if (request.address == map.console_address && request.bytes == 1) {
    if (console_.size() < kConsoleMax) console_.push_back(static_cast<char>(request.value));
    step_over(unit);
    return true;
  }
  const bool is_private =
      request.address - unit.private_base <= unit.private_bytes - request.bytes && config_.private_address.has_value();
  const Accessor by = accessor(core, true);
  if (!is_private) {
    if (!check_global(by, request.address, request.address + request.bytes, true)) return false;
    if (request.address % request.bytes != 0) {
      return fail(by, "misaligned", "a store to global memory that is not aligned",
                  "a multiple of " + std::to_string(request.bytes), hex(request.address));
    }
  }
  std::memcpy(ram_.data() + (request.address - global_.base), &request.value, request.bytes);
  step_over(unit);
  if (is_private) return true;
  if (config_.timed) {
    memory_.write(request.address, request.bytes, core.number, now);
    unit.stall(Stall::store, config_.target.control.global_store_cycles - 1);
  }
  stored(core, request.address, request.bytes, now);
  return true;
}

// Behind a store or atomic: when all see it, and who waits for it.
void Device::stored(Core& core, std::uint64_t address, std::uint64_t bytes, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  unit.stores_visible = std::max(unit.stores_visible, now + write_flush_cycles_);
  break_reservations(core, address);
  bool waited_for = false;
  for (const auto& other : cores_) {
    const Blocked& blocked = other->blocked;
    waited_for |=
        blocked.is && blocked.cause == Stall::wait_memory && blocked.address - (address & ~std::uint64_t{7}) < 8;
  }
  if (!waited_for) return;
  (void)bytes;
  Arrival arrival;
  arrival.kind = Arrival::Kind::stored;
  arrival.core = core.number;
  arrival.address = address & ~std::uint64_t{7};
  push(now + memory_flag_cycles_, core.number * kParts, EventKind::arrival, keep(std::move(arrival)));
}

void Device::break_reservations(const Core& writer, std::uint64_t address) {
  for (auto& core : cores_) {
    if (core->number != writer.number && core->unit.reservation == (address & ~std::uint64_t{7})) {
      core->unit.reservation = kNoReservation;
    }
  }
}

bool Device::perform_atomic(Core& core, std::uint64_t now) {
  ControlUnit& unit = core.unit;
  const std::uint64_t address = unit.request.address;
  const Accessor by = accessor(core, true);
  if (!check_word(by, address)) return false;
  const auto done = Interpreter::atomic({ram_.data(), global_.bytes}, global_.base, unit, unit.request.record);
  if (done.cause != 0) {
    return fail(by, "trap", text_of_cause(done.cause), "", "mtval " + hex(done.cause_value));
  }
  if (config_.races) {
    ClockRef& word = word_clocks_[address & ~std::uint64_t{7}];
    unit.acquired = joined(unit.acquired, word);
    unit.seen = unit.acquired;
    if (done.wrote) word = joined(word, release(core));
  }
  if (config_.timed) {
    if (unit.request.record.rd != kSink) {
      unit.await(unit.request.record.rd, now + atomic_cycles_, true);
    } else {
      unit.stall(Stall::store, config_.target.control.global_store_cycles - 1);
    }
  }
  step_over(unit);
  if (done.wrote) {
    written_.set(done.offset, done.offset + 4);
    stored(core, address, 8, now);
  }
  return true;
}

bool Device::perform_exit(Core& core) {
  const std::uint64_t value = core.unit.request.value;
  const Accessor by = accessor(core, true);
  if (value != kExitOk && (value & 0xffff) != kExitFailed) {
    return fail(by, "bad_exit", "a store to the exit address that means nothing", "0x5555, or code << 16 | 0x3333",
                hex(value));
  }
  exit_code_ = value == kExitOk ? 0 : value >> 16;
  if (value != kExitOk) {
    return fail(by, "program_failed", "the program says that it failed", "", "code " + std::to_string(exit_code_));
  }
  if (!check_end(core)) return false;
  step_over(core.unit);
  core.requesting = false;
  core.asleep = true;
  core.slept = core.unit.cycles();
  exit_cycle_ = core.unit.cycles();
  state_ = State::ended;
  finish_launch();
  return false;
}

}  // namespace sk::sim

// See device.h: what accesses to memory must satisfy, beyond what `decode` and `execute` look at.
#include <algorithm>

#include "sim/device/device.h"

namespace sk::sim {
namespace {

std::string range(std::uint64_t begin, std::uint64_t end) { return hex(begin) + " to " + hex(end); }

}  // namespace

bool Device::fail(const Accessor& by, std::string kind, std::string message, std::string expected, std::string found,
                  std::string hint) {
  failure_ = {std::move(kind),
              std::move(message),
              std::move(expected),
              std::move(found),
              std::move(hint),
              by.command != nullptr ? to_text(*by.command) : std::string(),
              by.core,
              by.marker,
              by.pc,
              now_,
              {}};
  state_ = State::failed;
  return false;
}

Device::Accessor Device::accessor(const Core& core, bool writes) const {
  const ControlUnit& unit = core.unit;
  const auto actor = static_cast<std::uint16_t>(2 * core.number + (writes ? 0 : 1));
  const ClockRef& clock = writes ? unit.acquired : unit.seen;
  return {core.number, unit.marker, unit.pc, actor, writes ? unit.epoch : unit.load_epoch, clock.get(), nullptr};
}

Device::Accessor Device::accessor(const EngineQueue& queue, const QueuedCommand& command) const {
  return {command.core, command.marker, command.pc,      static_cast<std::uint16_t>(queue.actor),
          queue.time,   &queue.clock,   &command.command};
}

bool Device::in_private(std::uint64_t begin, std::uint64_t end) const {
  return begin < private_end_ && end > private_begin_;
}

bool Device::check_declared(const Accessor& by, std::uint64_t begin, std::uint64_t end, bool writes) {
  if (declared_.empty() || scratch_.contains(begin, end) || (!writes && free_reads_.contains(begin, end))) return true;
  const auto found = declared_.find({by.marker / 4, by.core});
  if (found != declared_.end()) {
    const Declared& declared = found->second;
    if ((writes ? declared.writes : declared.reads).contains(begin, end)) return true;
  }
  return fail(by, "undeclared_access", writes ? "a write that is not declared" : "a read that is not declared",
              "a declared region of this sub-operator on this core", range(begin, end));
}

bool Device::check_global(const Accessor& by, std::uint64_t begin, std::uint64_t end, bool writes) {
  if (!holds(begin, end - begin)) {
    return fail(by, "unmapped", writes ? "a store to where there is nothing" : "a load from where there is nothing",
                range(global_.base, global_.base + global_.bytes), range(begin, end));
  }
  if (in_private(begin, end)) {
    return fail(by, "foreign_private", "an access to private memory that is not this control unit's own", "",
                range(begin, end));
  }
  if (writes && executable_.meets(begin, end)) {
    return fail(by, "code_write", "a write to the program's code", "", range(begin, end));
  }
  if (!check_declared(by, begin, end, writes)) return false;
  const std::uint64_t offset = begin - global_.base, stop = end - global_.base;
  if (writes) {
    written_.set(offset, stop);
  } else if (config_.check_unwritten) {
    const std::uint64_t first = written_.first_clear(offset, stop);
    if (first != stop) {
      return fail(by, "unwritten_global_read", "a read of global memory that was never written", "",
                  "first at " + hex(global_.base + first) + ", of " + range(begin, end));
    }
  }
  if (!config_.data) follow_absent(by, offset, stop, writes);
  return check_race(shadow_, Space::gm, global_.base, by, begin, end, writes);
}

// Engines leave bytes without data; a control unit that reads such goes by what is not there, and so does what it
// stores from then on.
void Device::follow_absent(const Accessor& by, std::uint64_t begin, std::uint64_t end, bool writes) {
  if (!writes) {
    if (by.command == nullptr && absent_.meets(begin, end)) data_dependent_.insert(by.marker / 4);
  } else if (by.command != nullptr || data_dependent_.contains(by.marker / 4)) {
    absent_.set(begin, end);
  } else {
    absent_.clear(begin, end);
  }
}

// A word that control units and engines synchronise over.
bool Device::check_word(const Accessor& by, std::uint64_t address) {
  if (!holds(address, 4)) {
    return fail(by, "unmapped", "a word where there is nothing", range(global_.base, global_.base + global_.bytes),
                hex(address));
  }
  if (in_private(address, address + 4)) {
    return fail(by, "foreign_private", "a word that others cannot see: it lies in private memory", "", hex(address));
  }
  if (executable_.meets(address, address + 4)) {
    return fail(by, "code_write", "a word in the program's code", "", hex(address));
  }
  const std::uint64_t offset = address - global_.base;
  if (config_.check_unwritten && written_.first_clear(offset, offset + 4) != offset + 4) {
    return fail(by, "unwritten_global_read", "a word that was never written", "", hex(address));
  }
  return true;
}

bool Device::check_race(Shadow& shadow, Space space, std::uint64_t base, const Accessor& by, std::uint64_t begin,
                        std::uint64_t end, bool writes) {
  if (!config_.races) return true;
  const Stamp stamp{by.time, by.marker, static_cast<std::uint32_t>(by.pc - code_base), by.actor,
                    by.command != nullptr ? static_cast<std::uint8_t>(by.command->opcode) : std::uint8_t{0}};
  const auto conflict = shadow.access(begin - base, end - base, writes, stamp, by.clock);
  if (!conflict) return true;
  const Stamp& earlier = conflict->earlier;
  const std::string what = earlier.opcode != 0       ? name_of(static_cast<Opcode>(earlier.opcode))
                           : conflict->earlier_wrote ? "a store"
                                                     : "a load";
  fail(by, "race",
       std::string(writes ? "a write" : "a read") + " is not ordered behind another core's or engine's " +
           (conflict->earlier_wrote ? "write" : "read") + " of the same bytes",
       "a flag, drain, cross-core flag or notify between the two",
       std::string(name_of(space)) + " " + range(base + conflict->begin, base + conflict->end) + ": " +
           name_of_actor(by.actor) + " in sub-operator " + std::to_string(by.marker / 4) + " against " +
           name_of_actor(earlier.actor) + " in sub-operator " + std::to_string(earlier.marker / 4) + " (" + what +
           " at pc " + hex(code_base + earlier.pc) + ")",
       by.command == nullptr || earlier.opcode == 0
           ? "a control unit's stores need `fence w, o` before a doorbell, its loads `fence i, r` behind a wait"
           : "");
  return false;
}

bool Device::check_touches(Core& core, const Accessor& by, const Command& command) {
  if (command.opcode == Opcode::sdma_prefetch) {
    const Touch& touch = touches_.front();
    if (holds(touch.begin, touch.row_bytes)) return true;
    return fail(by, "unmapped", "a prefetch of what is not there", "", range(touch.begin, touch.end()));
  }
  for (const Touch& touch : touches_) {
    const bool is_global = touch.space == Space::gm;
    if (!is_global && !config_.races) continue;
    const auto check = [&](std::uint64_t begin, std::uint64_t end) {
      if (is_global) return check_global(by, begin, end, touch.write);
      return check_race(core.shadows[static_cast<std::size_t>(touch.space)], touch.space, 0, by, begin, end,
                        touch.write);
    };
    const auto stride = static_cast<std::uint64_t>(touch.stride);
    if (touch.rows == 1 || stride == touch.row_bytes || stride == 0) {
      if (!check(touch.begin, stride == 0 ? touch.begin + touch.row_bytes : touch.end())) return false;
      continue;
    }
    for (std::uint64_t row = 0; row < touch.rows; ++row) {
      const std::uint64_t begin = touch.begin + row * stride;
      if (!check(begin, begin + touch.row_bytes)) return false;
    }
  }
  return true;
}

std::string Device::name_of_core(std::uint32_t number) const {
  if (number >= cores_.size()) return "the device";
  const Core& core = *cores_[number];
  std::string text = "core " + std::to_string(number) + " (" + name_of(core.type);
  if (core.type != CoreType::aicpu) text += " of group " + std::to_string(core.group);
  return text + ")";
}

std::string Device::name_of_actor(std::uint32_t actor) const {
  if (actor < 2 * cores_.size()) return name_of_core(actor / 2) + " control";
  if (actor == sdma_->actor) return "sdma";
  const EngineQueue& queue = *engines_[actor - 2 * cores_.size()];
  return name_of_core(queue.core) + " " + name_of(queue.engine);
}

}  // namespace sk::sim

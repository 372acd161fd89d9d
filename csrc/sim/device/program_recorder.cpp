// See program_recorder.h.
#include "sim/device/program_recorder.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "sim/interpreter.h"

namespace sk::sim {
namespace {

constexpr std::uint64_t kLaunchByte = 16, kMarkerByte = 0;
constexpr std::uint64_t kCodeAlign = 4096;
constexpr std::uint64_t kExitOk = 0x5555;
constexpr std::int64_t kBudget = 1 << 16;
constexpr std::size_t kControl = 0, kWrongMax = 20, kRowsMax = 4096;
constexpr std::size_t kStackPointer = 2, kReturnAddress = 1, kFirstArgument = 10, kRegisterArguments = 8;
constexpr std::size_t kOperandsMax = 64;  // of a call: a bit each

bool is_signal(Opcode opcode) { return opcode == Opcode::cross_set || opcode == Opcode::notify; }

std::string hexadecimal(std::uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

}  // namespace

bool ProgramRecorder::create(ProgramConfig config) {
  config_ = std::move(config);
  const Target& target = config_.target;
  ram_base_ = target.map.ram_address;
  if (!ram_.allocate(target.map.ram_bytes)) return false;
  page_address = target.map.page_address;
  std::uint64_t begin = ~std::uint64_t{0}, end = 0;
  for (const ProgramSegment& segment : config_.segments) {
    std::memcpy(ram_.data() + (segment.address - ram_base_), segment.data.data(), segment.data.size());
    program_.add(segment.address, segment.address + segment.memory_bytes);
    if (!segment.writable) constant_.add(segment.address, segment.address + segment.memory_bytes);
    if (!segment.executable) continue;
    begin = std::min(begin, segment.address);
    end = std::max(end, segment.address + segment.memory_bytes);
  }
  code_base = begin / kCodeAlign * kCodeAlign;
  code_bytes = std::min((end - code_base + kCodeAlign - 1) / kCodeAlign * kCodeAlign,
                        ram_base_ + target.map.ram_bytes - code_base);
  code = {ram_.data() + (code_base - ram_base_), code_bytes};
  records.resize(code_bytes / 2 + 2);
  flush_decoded();
  decode_ahead();
  for (std::size_t i = 0; i < config_.functions.size(); ++i) {
    const std::uint64_t address = config_.functions[i].address;
    functions_.emplace(address, i);
    Record& record = records[(address - code_base) / 2];
    entries_.push_back(record);
    record.op = Op::illegal;
  }
  return true;
}

bool ProgramRecorder::holds(std::uint64_t address, std::uint64_t count) const {
  const std::uint64_t offset = address - ram_base_;
  return offset <= ram_.bytes() && count <= ram_.bytes() - offset;
}

void ProgramRecorder::write(std::uint64_t address, std::span<const std::uint8_t> bytes) {
  std::memcpy(ram_.data() + (address - ram_base_), bytes.data(), bytes.size());
}

std::vector<RecordedHart> ProgramRecorder::launch(std::uint64_t number, const OnCall& on_call) {
  const auto harts = static_cast<std::uint32_t>(config_.target.cores() + config_.target.device.aicpu_harts);
  exited_ = false;
  std::vector<RecordedHart> found;
  for (std::uint32_t hart = 0; hart < harts && wrong_.size() < kWrongMax; ++hart) {
    run_hart(hart, number, on_call);
    found.push_back(std::move(hart_));
  }
  if (!exited_ && wrong_.empty()) say("all harts sleep, and the program has not ended", "a store of 0x5555", "none", 0);
  return found;
}

// ---- a hart

void ProgramRecorder::start(std::uint32_t number, std::uint64_t launch) {
  const Target& target = config_.target;
  type_ = number < target.device.cube_cores ? CoreType::aic : number < target.cores() ? CoreType::aiv : CoreType::aicpu;
  unit_ = ControlUnit{};
  unit_.id = number;
  unit_.x[kFirstArgument] = number;
  unit_.pc = config_.entry;
  unit_.stats = &stats_;
  unit_.private_bytes = target.control.private_bytes;
  unit_.private_base = config_.private_address + number * unit_.private_bytes;
  unit_.private_data = ram_.data() + (unit_.private_base - ram_base_);
  std::memset(unit_.private_data + kMarkerByte, 0, sizeof(std::uint64_t));
  std::memcpy(unit_.private_data + kLaunchByte, &launch, sizeof(launch));
  hart_ = {};
  engines_ = {};
  flags_.clear();
  known_ = {};
  waits_ = calls_ = 0;
  operands_.clear();
  first_use_.clear();
  inside_.reset();
  failed_ = false;
  learn({});
  unit_.seen = unit_.acquired;
}

void ProgramRecorder::run_hart(std::uint32_t number, std::uint64_t launch, const OnCall& on_call) {
  start(number, launch);
  bool awake = true;
  while (awake && !failed_) {
    unit_.room.fill(kPostedMax);
    unit_.room[kControl] = unit_.room[static_cast<std::size_t>(Engine::sdma)] = 0;
    Interpreter::run<ControlHost<false>>(*this, unit_, kBudget);
    take_posted();
    if (!failed_) awake = serve(on_call);
    if (unit_.retired > config_.instructions_max) {
      say("the program does not end", std::to_string(config_.instructions_max) + " instructions", "", unit_.pc);
    }
  }
  executed_ += unit_.retired;
  if (inside_) returned();  // the records as they were
  if (!failed_) finish();
}

void ProgramRecorder::take_posted() {
  for (std::size_t i = 0; i < posted_count && !failed_; ++i) {
    const Posted& from = posted[i];
    command(from.words, from.window, from.released, from.pc);
  }
  posted_count = 0;
}

// What the interpreter stopped for. False: the hart sleeps.
bool ProgramRecorder::serve(const OnCall& on_call) {
  const Request& request = unit_.request;
  bool good = true;
  switch (request.kind) {
    case Request::Kind::step:
      return true;
    case Request::Kind::sleep:
      return false;
    case Request::Kind::load:
      good = load();
      break;
    case Request::Kind::store:
      good = store();
      break;
    case Request::Kind::atomic:
      good = atomic();
      break;
    case Request::Kind::trap:
      good = trapped(on_call);
      break;
    case Request::Kind::fetch:
    case Request::Kind::prefetch:
      return true;  // of timed units only
  }
  if (!good && !failed_)
    say("an access to what is not there, or not aligned", "", hexadecimal(request.address), unit_.pc);
  return true;
}

bool ProgramRecorder::trapped(const OnCall& on_call) {
  const auto entry = functions_.find(unit_.pc);
  if (!inside_ && entry != functions_.end()) {
    called(entry->second, on_call);
  } else if (inside_ && unit_.pc == return_address_ && unit_.x[kStackPointer] == return_stack_) {
    returned();
    hart_.steps.push_back({static_cast<std::uint64_t>(StepKind::returned)});
  } else {
    say("a trap", "", "cause " + std::to_string(unit_.request.value), unit_.pc);
  }
  return true;
}

void ProgramRecorder::called(std::size_t function, const OnCall& on_call) {
  const std::size_t count = config_.functions[function].arguments;
  std::vector<std::uint64_t> arguments;
  const std::uint64_t stack = unit_.x[kStackPointer];
  for (std::size_t i = 0; i < count; ++i) {
    if (i < kRegisterArguments) {
      arguments.push_back(unit_.x[kFirstArgument + i]);
      continue;
    }
    const std::uint64_t offset = stack + 8 * (i - kRegisterArguments) - unit_.private_base;
    if (offset > unit_.private_bytes - 8)
      return say("a stack outside its private memory", "", hexadecimal(stack), unit_.pc);
    std::uint64_t value = 0;
    std::memcpy(&value, unit_.private_data + offset, sizeof(value));
    arguments.push_back(value);
  }
  return_address_ = unit_.x[kReturnAddress];
  return_stack_ = stack;
  const std::uint64_t place = return_address_ - code_base;
  if (place >= code_bytes) return say("a call that cannot return", "", hexadecimal(return_address_), unit_.pc);
  hart_.steps.push_back({static_cast<std::uint64_t>(StepKind::call), function});
  operands_.clear();
  first_use_.push_back(hart_.uses.size());
  for (const Declared& declared : on_call(unit_.id, function, arguments)) {
    const auto same = [&](const Operand& o) { return o.number == declared.operand && o.write == declared.write; };
    auto found = std::find_if(operands_.begin(), operands_.end(), same);
    if (found == operands_.end()) {
      operands_.push_back({declared.operand, declared.write, {}});
      found = std::prev(operands_.end());
      hart_.uses.push_back({calls_, declared.operand, ~std::uint64_t{0}, ~std::uint64_t{0}});
    }
    if (declared.rows > kRowsMax || declared.stride == declared.row_bytes) {
      found->ranges.add(declared.begin, declared.begin + (declared.rows - 1) * declared.stride + declared.row_bytes);
      continue;
    }
    for (std::uint64_t row = 0; row < declared.rows; ++row) {
      const std::uint64_t begin = declared.begin + row * declared.stride;
      found->ranges.add(begin, begin + declared.row_bytes);
    }
  }
  if (operands_.size() > kOperandsMax) return say("more operands than are followed", "", "", unit_.pc);
  hart_.arguments.push_back(std::move(arguments));
  ++calls_;
  inside_ = function;
  records[(config_.functions[function].address - code_base) / 2] = entries_[function];
  return_record_ = records[place / 2];
  records[place / 2].op = Op::illegal;
}

void ProgramRecorder::returned() {
  records[(return_address_ - code_base) / 2] = return_record_;
  records[(config_.functions[*inside_].address - code_base) / 2].op = Op::illegal;
  inside_.reset();
}

void ProgramRecorder::step_over() {
  unit_.pc += (unit_.request.record.bits & 3) == 3 ? 4 : 2;
  ++unit_.retired;
}

// ---- what control units do by themselves

bool ProgramRecorder::load() {
  const Request& request = unit_.request;
  const std::uint64_t begin = request.address, end = begin + request.bytes;
  if (!holds(begin, request.bytes) || begin % request.bytes != 0) return false;
  const bool is_private = begin - unit_.private_base <= unit_.private_bytes - request.bytes;
  if (!is_private && !constant_.contains(begin, end) && (inside_ || !program_.contains(begin, end))) {
    const std::uint64_t uses = attribute(begin, end, 1, 0, false);
    if (failed_) return false;
    // What the unit waited for counts for its loads from the next `fence i, r` on.
    Knowledge seen{};
    std::copy_n(unit_.seen->begin(), kWindows, seen.begin());
    used(calls_ - 1, uses, (*unit_.seen)[kWindows], complete(&EngineState::stores, seen, kControl, calls_ - 1));
  }
  std::uint64_t value = 0;
  const std::uint8_t* from = ram_.data() + (begin - ram_base_);
  for (View& view : views_) {
    if (begin - view.address >= view.size || end - view.address > view.size) continue;
    if (view.bytes.empty()) view.bytes = view.make();
    from = view.bytes.data() + (begin - view.address);
  }
  std::memcpy(&value, from, request.bytes);
  if (request.to_float) {
    unit_.f[request.record.rd] = request.bytes == 4 ? value | std::uint64_t{0xffffffff} << 32 : value;
    unit_.mark_float_dirty();
  } else {
    const unsigned unused = 64 - 8U * request.bytes;
    if (request.extend_sign) {
      value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
    }
    unit_.x[request.record.rd] = value;
  }
  step_over();
  return true;
}

bool ProgramRecorder::store() {
  const Request& request = unit_.request;
  const auto& map = config_.target.map;
  const std::uint64_t begin = request.address, end = begin + request.bytes;
  if (begin - map.page_address < map.page_bytes) {
    const std::uint64_t place = begin - map.page_address;
    if (request.bytes != 8 || place % 8 != 0 || place >= kWindows * kWindowWords * 8) return false;
    auto& window = unit_.windows[place / 8 / kWindowWords];
    window[kWindowWords - 1] = request.value;
    command(window, place / 8 / kWindowWords, unit_.released, unit_.pc);
    step_over();
    return true;
  }
  if (begin == map.exit_address && request.bytes == 4) {
    if (request.value != kExitOk) {
      say("the program says that it failed", hexadecimal(kExitOk), hexadecimal(request.value), unit_.pc);
    }
    exited_ = true;
    step_over();
    return true;
  }
  if (!holds(begin, request.bytes) || begin % request.bytes != 0) return false;
  const bool is_private = begin - unit_.private_base <= unit_.private_bytes - request.bytes;
  if (!is_private && (inside_ || !program_.contains(begin, end) || constant_.meets(begin, end))) {
    const std::uint64_t uses = attribute(begin, end, 1, 0, true);
    if (failed_) return false;
    used(calls_ - 1, uses, waits_, ~std::uint64_t{0});
    for (auto* marks : {&engines_[kControl].accesses, &engines_[kControl].stores}) {
      if (marks->empty() || marks->back().call != calls_ - 1) marks->push_back({calls_ - 1, 0});
      marks->back().number = unit_.epoch;
    }
  }
  std::memcpy(ram_.data() + (begin - ram_base_), &request.value, request.bytes);
  step_over();
  return true;
}

bool ProgramRecorder::atomic() {
  const std::uint64_t address = unit_.request.address;
  if (inside_ || !program_.contains(address, address + 4)) return false;
  if (Interpreter::atomic({ram_.data(), ram_.bytes()}, ram_base_, unit_, unit_.request.record).cause != 0) return false;
  step_over();
  return true;
}

// ---- commands

// What commands know that are told from here on, and loads behind the next fence.
void ProgramRecorder::learn(const Knowledge& known) {
  for (std::size_t e = 1; e < kWindows; ++e) known_[e] = std::max(known_[e], known[e]);
  auto clock = std::make_shared<Clock>(known_.begin(), known_.end());
  clock->push_back(static_cast<std::uint32_t>(waits_));
  unit_.acquired = std::move(clock);
}

ProgramRecorder::Knowledge ProgramRecorder::known_of_control() const {
  Knowledge known = known_;
  known[kControl] = unit_.epoch;
  return known;
}

void ProgramRecorder::command(const std::array<std::uint64_t, kWindowWords>& words, std::size_t window,
                              std::uint32_t released, std::uint64_t pc) {
  Queued queued;
  if (const auto fault = decode(words, static_cast<Engine>(window), type_, config_.target, queued.command)) {
    return say(fault->message, "", name_of(fault->kind), pc);
  }
  ++commands_;
  if (window == kControl) return control(queued.command);
  queued.known = known_;
  queued.known[kControl] = released;
  queued.call = calls_;
  queued.waits = waits_;
  EngineState& engine = engines_[window];
  queued.number = ++engine.posted;
  if (queued.command.opcode == Opcode::sdma_prefetch) {
    const auto& operands = queued.command.operands;
    hart_.steps.push_back({static_cast<std::uint64_t>(StepKind::prefetch), operands[Operands_sdma_prefetch::address],
                           operands[Operands_sdma_prefetch::bytes]});
  } else if (is_signal(queued.command.opcode)) {
    queued.step = hart_.steps.size();
    hart_.steps.emplace_back();
  } else {
    footprint(queued.command, config_.target, touches_);
    for (const Touch& touch : touches_) {
      if (touch.space != Space::gm) continue;
      const auto stride = static_cast<std::uint64_t>(touch.stride);
      queued.uses |= attribute(touch.begin, stride == 0 ? touch.begin + touch.row_bytes : touch.end(),
                               stride == 0 ? 1 : touch.rows, stride, touch.write);
      if (failed_) return;
      (touch.write ? queued.stores : queued.loads) = true;
    }
  }
  const auto mark = [&](std::vector<Mark>& marks) {
    if (marks.empty() || marks.back().call != calls_ - 1) marks.push_back({calls_ - 1, 0});
    marks.back().number = queued.number;
  };
  if (queued.loads || queued.stores) mark(engine.accesses);
  if (queued.stores) mark(engine.stores);
  if (engine.queue.empty() && carry_out(window, queued)) {
    if (queued.command.opcode == Opcode::set_flag) progress();
    return;
  }
  engine.queue.push_back(std::move(queued));
}

// Engines whose first command can be carried out.
void ProgramRecorder::progress() {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t e = 1; e < kWindows; ++e) {
      auto& queue = engines_[e].queue;
      while (!queue.empty() && carry_out(e, queue.front())) {
        queue.pop_front();
        moved = true;
      }
    }
  }
}

// False: it waits for a flag.
bool ProgramRecorder::carry_out(std::size_t engine, Queued& queued) {
  using Place = Operands_set_flag;
  Knowledge& known = engines_[engine].known;
  const Command& command = queued.command;
  const std::uint64_t peer = command.operands[Place::peer], number = command.operands[Place::flag];
  if (command.opcode == Opcode::wait_flag) {
    auto& tokens = flags_[{peer, engine, number}];
    if (tokens.empty()) return false;
    for (std::size_t e = 0; e < kWindows; ++e) known[e] = std::max(known[e], tokens.front()[e]);
    tokens.pop_front();
  }
  for (std::size_t e = 0; e < kWindows; ++e) known[e] = std::max(known[e], queued.known[e]);
  known[engine] = queued.number;
  if (command.opcode == Opcode::set_flag) {
    flags_[{engine, peer, number}].push_back(known);
  } else if (is_signal(command.opcode)) {
    signal(queued, known, false);
  } else if (queued.uses != 0) {
    const std::uint64_t call = queued.call - 1;
    used(call, queued.uses, queued.waits,
         queued.loads ? complete(&EngineState::stores, known, engine, call) : ~std::uint64_t{0});
  }
  return true;
}

void ProgramRecorder::control(const Command& command) {
  const auto& operands = command.operands;
  switch (command.opcode) {
    case Opcode::set_flag:
      flags_[{kControl, operands[Operands_set_flag::peer], operands[Operands_set_flag::flag]}].push_back(
          known_of_control());
      progress();
      break;
    case Opcode::wait_flag: {
      auto& tokens = flags_[{operands[Operands_wait_flag::peer], kControl, operands[Operands_wait_flag::flag]}];
      if (tokens.empty())
        return say("the control unit waits for a flag that nobody sets", "", to_text(command), unit_.pc);
      learn(tokens.front());
      tokens.pop_front();
      break;
    }
    case Opcode::drain:
      drained(operands[Operands_drain::engines]);
      break;
    case Opcode::cross_wait:
      ++waits_;
      learn({});
      hart_.steps.push_back({static_cast<std::uint64_t>(StepKind::cross_wait), operands[Operands_cross_wait::flag]});
      break;
    case Opcode::wait_memory:
      ++waits_;
      learn({});
      hart_.steps.push_back({static_cast<std::uint64_t>(StepKind::wait_memory), operands[Operands_wait_memory::address],
                             operands[Operands_wait_memory::value]});
      break;
    default: {
      Queued queued;
      queued.command = command;
      queued.call = calls_;
      queued.step = hart_.steps.size();
      hart_.steps.emplace_back();
      signal(queued, known_of_control(), true);
    }
  }
}

// All that the engines were told is done.
void ProgramRecorder::drained(std::uint64_t mask) {
  Knowledge known{};
  for (std::size_t e = 1; e < kWindows; ++e) {
    if ((mask >> e & 1) == 0 || static_cast<Engine>(e) == Engine::sdma) continue;
    if (!engines_[e].queue.empty()) {
      const std::string first = to_text(engines_[e].queue.front().command);
      return say("deadlock: an engine waits for a flag that nobody sets", "", first, unit_.pc);
    }
    for (std::size_t other = 1; other < kWindows; ++other) {
      known[other] = std::max(known[other], engines_[e].known[other]);
    }
    known[e] = engines_[e].posted;
  }
  learn(known);
}

void ProgramRecorder::signal(const Queued& queued, const Knowledge& known, bool by_control) {
  const auto& operands = queued.command.operands;
  const auto engine = static_cast<std::size_t>(queued.command.engine);
  const std::uint64_t calls = complete(&EngineState::accesses, known, by_control ? kControl : engine, queued.call);
  Step& step = hart_.steps[queued.step];
  if (queued.command.opcode == Opcode::cross_set) {
    using Place = Operands_cross_set;
    step = {static_cast<std::uint64_t>(StepKind::cross_set), engine, operands[Place::flag], operands[Place::mode],
            calls};
  } else {
    using Place = Operands_notify;
    step = {static_cast<std::uint64_t>(StepKind::notify),
            engine,
            operands[Place::address],
            operands[Place::value],
            operands[Place::mode],
            calls};
  }
}

// How many of the first `calls` calls are complete, as far as `marks` tell of accesses, for who knows `known`: one
// whose own accesses, those of engine `own`, are in order.
std::uint64_t ProgramRecorder::complete(const std::vector<Mark> EngineState::* marks, const Knowledge& known,
                                        std::size_t own, std::uint64_t calls) const {
  for (std::size_t e = 0; e < kWindows; ++e) {
    if (e == own) continue;
    const std::vector<Mark>& rows = engines_[e].*marks;
    for (auto row = rows.rbegin(); row != rows.rend() && row->number > known[e]; ++row) {
      calls = std::min(calls, row->call);
    }
  }
  return calls;
}

// The operands of the present call that an access is of, as bits.
std::uint64_t ProgramRecorder::attribute(std::uint64_t begin, std::uint64_t end, std::uint64_t rows,
                                         std::uint64_t stride, bool write) {
  std::uint64_t uses = 0;
  const std::uint64_t row_bytes = end - begin - (rows - 1) * stride;
  for (std::size_t i = 0; inside_ && i < operands_.size(); ++i) {
    const Operand& operand = operands_[i];
    if (operand.write != write) continue;
    bool whole = operand.ranges.contains(begin, end);
    if (!whole && rows > 1) {
      whole = true;
      for (std::uint64_t row = 0; whole && row < rows; ++row) {
        const std::uint64_t at = begin + row * stride;
        whole = operand.ranges.contains(at, at + row_bytes);
      }
    }
    if (whole) uses |= std::uint64_t{1} << i;
  }
  if (uses == 0) {
    say(inside_ ? (write ? "a write that is not declared" : "a read that is not declared")
                : "an access to global memory outside all kernels",
        inside_ ? "what the tiling declares" : "none", hexadecimal(begin) + " to " + hexadecimal(end), unit_.pc);
  }
  return uses;
}

void ProgramRecorder::used(std::uint64_t call, std::uint64_t uses, std::uint64_t waits, std::uint64_t fenced) {
  for (std::size_t i = first_use_[call]; uses != 0; ++i, uses >>= 1) {
    if ((uses & 1) == 0) continue;
    OperandUse& use = hart_.uses[i];
    use.waits = std::min(use.waits, waits);
    use.fenced = std::min(use.fenced, fenced);
  }
}

// The hart sleeps: nothing may be left over.
void ProgramRecorder::finish() {
  for (std::size_t e = 1; e < kWindows; ++e) {
    const EngineState& engine = engines_[e];
    if (!engine.queue.empty()) {
      say("deadlock: an engine waits for a flag that nobody sets", "", to_text(engine.queue.front().command), 0);
    } else if (known_[e] < engine.posted && static_cast<Engine>(e) != Engine::sdma) {
      say("the hart ends before its engines", "a drain", name_of(static_cast<Engine>(e)), 0);
    }
  }
  for (const auto& [key, tokens] : flags_) {
    if (tokens.empty()) continue;
    const std::string pair =
        std::string(name_of(static_cast<Engine>(key[0]))) + " to " + name_of(static_cast<Engine>(key[1]));
    say("a flag is left set", "", pair + ", flag " + std::to_string(key[2]), 0);
  }
}

void ProgramRecorder::say(std::string message, std::string expected, std::string found, std::uint64_t pc) {
  std::string where = "hart " + std::to_string(unit_.id);
  if (calls_ != 0) where += (inside_ ? ", call " : ", behind call ") + std::to_string(calls_ - 1);
  if (pc != 0) where += ", pc " + hexadecimal(pc);
  if (wrong_.size() < kWrongMax) wrong_.push_back({std::move(message), where, std::move(expected), std::move(found)});
  failed_ = true;
}

}  // namespace sk::sim

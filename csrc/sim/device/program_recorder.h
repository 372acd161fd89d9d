// What a linked program does, hart by hart, found by running its code where nothing is carried out and nothing waits.
//
// Model: each hart of a launch is run by itself from the entry until it sleeps, on the control units' interpreter. The
// commands whose doorbells it rings are decoded and checked like a device's, and then change nothing: what the control
// unit loads from global memory is what lay there, zeros where nobody said anything. Waits pass. So a program whose
// path follows from what is computed while it runs is seen on the path that this memory gives.
//
// What is kept, by hart, in program order (`Step`): calls of the functions that were named (the first instruction of
// each is replaced by one that stops), with their arguments; signals and waits between harts; prefetches of SDMA. For
// that no word of the program is believed: markers and names play no part.
//
// Within a core, each engine carries its commands out in order, and engines are ordered by flags, drains and the
// control unit's doorbells: a clock per engine says up to which command of each other one is complete by then. From
// that follows
//  - of a signal: how many of the hart's calls are complete, with all their accesses to global memory, when it is seen;
//  - of each operand of a call: how many waits the hart has passed, at the least, where the operand is accessed, and
//    behind how many calls' stores its loads come.
// An access has to lie in what was declared for its call (`Declared`), in one or several operands.
//
// Wrong, beyond what `decode` refuses: an access off what is declared, a command to global memory outside all calls, an
// engine that waits for a flag that nobody sets, flags or commands that are left over when the hart ends, a trap, a
// program that does not end.
//
// Invariant: shares the words' and the commands' tables with the simulated device, and nothing with what emits
// programs.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/device/control_unit.h"
#include "sim/device/device.h"
#include "sim/device/ranges.h"
#include "sim/engines/command.h"

namespace sk::sim {

struct RecordedFunction {
  std::uint64_t address = 0;
  std::size_t arguments = 0;
};

// What an operand of a call may read or write: `row_bytes` bytes, `rows` times, `stride` apart.
struct Declared {
  std::int64_t operand = 0;
  bool write = false;
  std::uint64_t begin = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t stride = 0;
  std::uint64_t rows = 1;
};

enum class StepKind : std::uint8_t { call, returned, cross_set, cross_wait, notify, wait_memory, prefetch };

// call: number of the function. cross_set: engine, flag, mode, complete. cross_wait: flag. notify: engine, address,
// value, mode, complete. wait_memory: address, value. prefetch: address, bytes.
using Step = std::array<std::uint64_t, 6>;  // kind, and these

// Of an operand in a call: waits passed at its accesses, calls whose stores its loads come behind, both at the least.
struct OperandUse {
  std::uint64_t call = 0;
  std::int64_t operand = 0;
  std::uint64_t waits = 0;
  std::uint64_t fenced = 0;
};

struct RecordedHart {
  std::vector<Step> steps;
  std::vector<std::vector<std::uint64_t>> arguments;  // by call
  std::vector<OperandUse> uses;
};

struct Wrong {
  std::string message;
  std::string location;
  std::string expected;
  std::string found;
};

struct ProgramConfig {
  Target target;
  std::uint64_t entry = 0;
  std::uint64_t private_address = 0;
  std::vector<ProgramSegment> segments;
  std::vector<RecordedFunction> functions;
  std::uint64_t instructions_max = 0;  // of a hart
};

class ProgramRecorder final : public ControlSpace {
 public:
  // What a call (hart, function, arguments) may touch.
  using OnCall = std::function<std::vector<Declared>(std::uint32_t, std::size_t, std::span<const std::uint64_t>)>;

  // False where the system has not the memory.
  bool create(ProgramConfig config);
  // Bytes that are made when somebody asks.
  using Make = std::function<std::span<const std::uint8_t>()>;
  // Global memory as a launch finds it; `view` without copying, for loads only, made at the first one.
  bool holds(std::uint64_t address, std::uint64_t count) const;
  void write(std::uint64_t address, std::span<const std::uint8_t> bytes);
  void view(std::uint64_t address, std::uint64_t bytes, Make make) {
    views_.push_back({address, bytes, std::move(make), {}});
  }

  // Runs all harts of a launch, one after the other, on what the launches before left.
  std::vector<RecordedHart> launch(std::uint64_t number, const OnCall& on_call);
  const std::vector<Wrong>& wrong() const { return wrong_; }
  std::uint64_t executed() const { return executed_; }
  std::uint64_t commands() const { return commands_; }

  void marker_stored(ControlUnit& /*unit*/) override {}

 private:
  using Knowledge = std::array<std::uint32_t, kWindows>;  // by engine; of the control unit: its stores, by epoch
  struct Queued {
    Command command;
    Knowledge known;
    std::uint32_t number = 0;  // of the engine's commands, from 1
    std::uint64_t call = 0;    // how many calls had begun
    std::uint64_t waits = 0;
    std::size_t step = 0;    // of a signal
    std::uint64_t uses = 0;  // bit i: the i-th use of the call
    bool loads = false;
    bool stores = false;
  };
  // Up to which number of an engine's commands accesses of a call go.
  struct Mark {
    std::uint64_t call;
    std::uint32_t number;
  };
  struct View {
    std::uint64_t address;
    std::uint64_t size;
    Make make;
    std::span<const std::uint8_t> bytes;  // none: not made yet
  };
  struct EngineState {
    std::deque<Queued> queue;
    Knowledge known{};
    std::uint32_t posted = 0;
    std::vector<Mark> accesses, stores;
  };
  struct Operand {
    std::int64_t number = 0;
    bool write = false;
    RangeSet ranges;
  };

  void run_hart(std::uint32_t number, std::uint64_t launch, const OnCall& on_call);
  void start(std::uint32_t number, std::uint64_t launch);
  void take_posted();
  bool serve(const OnCall& on_call);
  bool trapped(const OnCall& on_call);
  void called(std::size_t function, const OnCall& on_call);
  void returned();
  bool load();
  bool store();
  bool atomic();
  void step_over();

  void command(const std::array<std::uint64_t, kWindowWords>& words, std::size_t window, std::uint32_t released,
               std::uint64_t pc);
  void control(const Command& command);
  void progress();
  bool carry_out(std::size_t engine, Queued& queued);
  void signal(const Queued& queued, const Knowledge& known, bool by_control);
  std::uint64_t attribute(std::uint64_t begin, std::uint64_t end, std::uint64_t rows, std::uint64_t stride, bool write);
  std::uint64_t complete(const std::vector<Mark> EngineState::* marks, const Knowledge& known, std::size_t own,
                         std::uint64_t calls) const;
  void used(std::uint64_t call, std::uint64_t uses, std::uint64_t waits, std::uint64_t fenced);
  void drained(std::uint64_t mask);
  void finish();
  void learn(const Knowledge& known);
  Knowledge known_of_control() const;
  void say(std::string message, std::string expected, std::string found, std::uint64_t pc);

  ProgramConfig config_;
  Pages ram_;
  std::uint64_t ram_base_ = 0;
  std::vector<View> views_;
  RangeSet program_, constant_;
  std::map<std::uint64_t, std::size_t> functions_;  // by address
  std::vector<Record> entries_;                     // the records in whose place something stops
  std::vector<Wrong> wrong_;
  std::uint64_t executed_ = 0, commands_ = 0;
  bool exited_ = false;

  // The hart that runs.
  ControlUnit unit_;
  ControlStats stats_;
  CoreType type_{};
  RecordedHart hart_;
  std::array<EngineState, kWindows> engines_;
  std::map<std::array<std::uint64_t, 3>, std::deque<Knowledge>> flags_;  // setter, waiter, number
  Knowledge known_{};
  std::uint64_t waits_ = 0, calls_ = 0;
  std::vector<Operand> operands_;
  std::vector<std::size_t> first_use_;  // by call
  std::vector<Touch> touches_;
  std::optional<std::size_t> inside_;  // the function that was called
  std::uint64_t return_address_ = 0, return_stack_ = 0;
  Record return_record_{};
  bool failed_ = false;
};

}  // namespace sk::sim

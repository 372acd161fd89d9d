// The accelerator, timed: cores with control units and engines, flags, the memory system, and the order of it all.
//
// Model: an event is something that others may see or feel: a control unit's request, an engine's start, next piece or
// end, a flag's or a notify's arrival. Events happen in the order (cycle, core, part of the core, sequence). Between
// its events a control unit runs ahead on private work; `step` bounds how far, and changes nothing else. Commands that
// it leaves on the way stand in their queues early, with the cycle from which they count (QueuedCommand). An engine
// carries out its command's data at the command's start, at once; time is accounted separately.
//
// A launch starts all cores at the entry at cycle 0 and ends with a store to the exit address. Memory, and what is in
// L2, stay from launch to launch; local memories, flags, queues and clocks do not.
//
// Invariants:
//  - Integer cycles; no host time, no addresses of the host, no unordered containers: the same inputs give the same
//  results and the same trace, byte for byte.
//  - After a failure nothing runs any more; `failure()` says what happened.
//  - `run` can stop between any two events and be called again.
//
// Parts: device.cpp (construction, launch, loop), device_control.cpp (requests), device_doorbell.cpp (commands of the
// control unit), device_engine.cpp (queues), device_sync.cpp (cross-core flags, notify), device_check.cpp (legality of
// accesses), device_explain.cpp (deadlocks and what is left at the end).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/device/control_unit.h"
#include "sim/device/delays.h"
#include "sim/device/engine_queue.h"
#include "sim/device/failure.h"
#include "sim/device/marker_table.h"
#include "sim/device/memory_system.h"
#include "sim/device/ranges.h"
#include "sim/device/shadow.h"
#include "sim/device/trace.h"
#include "sim/engines/execute.h"
#include "sim/machine.h"

namespace sk::sim {

struct ProgramSegment {
  std::uint64_t address = 0;
  std::uint64_t memory_bytes = 0;
  std::string data;
  bool writable = false;
  bool executable = false;
};

struct DeviceConfig {
  Target target;
  std::uint64_t entry = 0;
  std::optional<std::uint64_t> private_address;
  std::vector<ProgramSegment> segments;
  bool timed = true;
  bool data = true;
  bool races = true;
  bool check_unwritten = true;
  bool check_flags = true;  // flags that are still set at the end
  bool trace = false;
  bool time_control = false;  // the host's time in control units: Device::control_ns
  std::uint64_t step = 4096;
  std::uint64_t instructions_max = 0;  // of all cores of one launch together
  std::uint64_t delays = 0;            // a seed of delays that are drawn; 0: none
};

// Why a control unit stands still until somebody wakes it.
struct Blocked {
  bool is = false;
  bool scheduled = false;  // an event will wake it
  Stall cause{};
  Engine engine{};         // queue_full: whose; wait_flag: who sets
  std::uint64_t flag = 0;  // cross_wait, wait_flag; drain: the mask
  std::uint64_t address = 0;
  std::uint64_t value = 0;
};

struct Core {
  std::uint32_t number = 0;
  CoreType type{};
  bool requesting = false;
  bool asleep = false;
  std::uint32_t group = 0;
  std::uint64_t slept = 0;
  Blocked blocked;
  ControlUnit unit;
  CoreMemory local;
  std::array<Shadow, 6> shadows;  // by Space; gm's is the device's
  std::array<EngineQueue*, kWindows> queues{};
  std::vector<std::vector<Token>> flags;  // by setter, waiter, number
  std::vector<std::vector<Token>> cross;  // by flag
  std::vector<std::uint64_t> cross_stalls;
  MarkerTable markers;
};

// Cores stand side by side in blocks that the device owns.
struct alignas(Core) CoreBlock {
  std::array<std::byte, sizeof(Core)> bytes;
};
struct DestroyCore {
  void operator()(Core* core) const { std::destroy_at(core); }
};
// So do the ways of their instruction caches.
struct alignas(kHostLineBytes) CacheWays : std::array<CoreCache::Way, kHostLineBytes / sizeof(CoreCache::Way)> {};
using Cores = std::vector<std::unique_ptr<Core, DestroyCore>>;

class Device final : public ControlSpace {
 public:
  enum class State : std::uint8_t { fresh, running, ended, failed };

  // False where the system has not the memory. The configuration is checked by the caller.
  bool create(DeviceConfig config);

  bool holds(std::uint64_t address, std::uint64_t count) const;
  void write(std::uint64_t address, std::span<const std::uint8_t> bytes);
  // What lies there is written, but nobody says what it is: for engines, where they compute no data.
  void reserve(std::uint64_t address, std::uint64_t count);
  std::span<const std::uint8_t> read(std::uint64_t address, std::uint64_t count) const;
  // The first byte of a range that nobody wrote; its end where there is none.
  std::uint64_t first_unwritten(std::uint64_t address, std::uint64_t count) const;
  void declare(std::uint32_t sub_operator, std::uint32_t core, bool writes, std::uint64_t begin, std::uint64_t end);
  void declare_scratch(std::uint64_t begin, std::uint64_t end) { scratch_.add(begin, end); }
  void warm(std::uint64_t address, std::uint64_t count) { memory_.warm(address, count); }
  void forget_l2() { memory_.forget(); }

  void begin_launch(std::uint64_t number, bool cold);
  // Handles up to `events` more events.
  State run(std::uint64_t events);

  // Ends a launch that runs: it has `taken` longer than its `limit` on the host.
  void stop_late(const std::string& limit, const std::string& taken);

  State state() const { return state_; }
  const Failure& failure() const { return failure_; }
  std::uint64_t exit_code() const { return exit_code_; }
  std::uint64_t exit_cycle() const { return exit_cycle_; }
  const Cores& cores() const { return cores_; }
  const EngineQueue* sdma() const { return sdma_.get(); }
  const MemoryStats& memory_stats() const { return memory_.stats; }
  const std::string& console() const { return console_; }
  // Where engines compute no data: sub-operators whose control units read what has none, so that they may have taken
  // another way than with data.
  const std::set<std::uint32_t>& data_dependent() const { return data_dependent_; }
  // All records, track by track.
  std::vector<TraceRecord> trace() const;
  const DeviceConfig& config() const { return config_; }
  std::uint64_t retired() const;
  // Of the last launch, where it was asked for: the host's time in the interpreter, net of the clock's own, and how
  // often control units were let run. The only thing here that is not a function of the program.
  std::uint64_t control_ns() const;
  std::uint64_t control_slices() const { return control_slices_; }

  void marker_stored(ControlUnit& unit) override;

 private:
  // ---- events
  enum class EventKind : std::uint8_t { arrival, control, engine };
  struct Event {
    std::uint64_t cycle;
    std::uint32_t part;  // core * kParts + 0 for its control unit, 1 + number for its engines
    EventKind kind;
    std::uint32_t payload;
    std::uint64_t sequence;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const;
  };
  static constexpr std::uint32_t kParts = 16;

  // Something on its way to cores or to a word of memory.
  struct Arrival {
    enum class Kind : std::uint8_t { cross, notify, stored } kind{};
    std::uint32_t core = 0;  // the sender
    std::uint32_t marker = 0;
    std::uint64_t pc = 0;
    std::uint64_t flag = 0;
    std::vector<std::uint32_t> to;
    Token token;
    std::uint64_t address = 0;
    std::uint64_t value = 0;
    bool adds = false;
  };
  // Signals of cores that complete together, per flag and mode.
  struct Rounds {
    std::vector<std::uint32_t> members;
    std::vector<std::uint32_t> targets;
    std::vector<std::uint64_t> signalled;  // by member
    std::uint64_t completed = 0;
    struct Open {
      ClockRef clock;
      std::uint64_t fired = 0;  // by the last so far
    };
    std::vector<Open> open;  // rounds behind `completed`
  };
  // Who accesses memory, for checks and for the texts of failures.
  struct Accessor {
    std::uint32_t core;
    std::uint32_t marker;
    std::uint64_t pc;
    std::uint16_t actor;
    std::uint32_t time;
    const Clock* clock;
    const Command* command;  // nullptr: the control unit itself
  };

  void push(std::uint64_t cycle, std::uint32_t part, EventKind kind, std::uint32_t payload = 0);
  void handle(const Event& event);
  void prepare(const Event& event) const;

  // ---- construction and launch
  void number_actors();
  void place_code();
  void place_caches();
  void start_core(Core& core, std::uint64_t number, bool cold);
  void finish_launch();
  void run_out(Core& core);

  // ---- control units
  void control_event(Core& core, std::uint64_t now);
  void run_ahead(Core& core);
  void take_posted(Core& core);
  void rewind(Core& core, const Posted& posted);
  void will_run_ahead(const Core& core) const;
  void interpret(ControlUnit& unit);
  bool is_next(std::uint64_t cycle, std::uint32_t part) const;
  // False: the unit cannot go on by itself.
  bool perform(Core& core, std::uint64_t now);
  void perform_fetch(Core& core, std::uint64_t now);
  void perform_prefetch(Core& core, std::uint64_t now);
  bool perform_load(Core& core, std::uint64_t now);
  bool perform_store(Core& core, std::uint64_t now);
  bool perform_atomic(Core& core, std::uint64_t now);
  bool perform_exit(Core& core);
  void load_register(ControlUnit& unit, std::uint64_t value) const;
  void step_over(ControlUnit& unit) const;
  void block(Core& core, Blocked why);
  void wake(Core& core, std::uint64_t at);
  void unblock(Core& core, std::uint64_t now);
  MarkerStats& stats_of(Core& core, std::uint32_t marker);
  void break_reservations(const Core& writer, std::uint64_t address);

  // ---- the register page
  bool perform_page_store(Core& core, std::uint64_t now);
  bool ring(Core& core, const Command& command, std::uint64_t now);
  void enqueue(Core& core, QueuedCommand queued);
  bool control_command(Core& core, const Command& command, std::uint64_t now);
  bool control_wait_flag(Core& core, const Command& command, std::uint64_t now);
  bool control_drain(Core& core, const Command& command, std::uint64_t now);
  bool control_cross_wait(Core& core, const Command& command, std::uint64_t now);
  bool control_wait_memory(Core& core, const Command& command, std::uint64_t now);
  void finish_doorbell(Core& core, Stall cause, std::uint64_t start_up);

  // ---- engines
  void engine_event(EngineQueue& queue, std::uint64_t now);
  void advance(EngineQueue& queue, std::uint64_t now);
  bool start(EngineQueue& queue, std::uint64_t now);
  bool start_wait_flag(EngineQueue& queue, std::uint64_t now);
  bool start_data(EngineQueue& queue, std::uint64_t now);
  void begin_transfer(EngineQueue& queue, std::uint64_t now, const Cost& cost);
  void step_transfer(EngineQueue& queue, std::uint64_t now);
  void end_command(EngineQueue& queue, std::uint64_t now);
  void complete(EngineQueue& queue, std::uint64_t now);
  void account(EngineQueue& queue, const QueuedCommand& command, const EngineStats& share);
  Cost cost_of(const Command& command) const;
  std::uint64_t delay_of(const EngineQueue& queue);
  void acquire(EngineQueue& queue, const QueuedCommand& command) const;
  ClockRef release(EngineQueue& queue) const;
  ClockRef release(Core& core) const;

  // ---- flags, cross-core flags, words
  std::vector<Token>& flag_of(Core& core, Engine from, Engine to, std::uint64_t number) const;
  void set_flag(Core& core, const Command& command, std::uint64_t now, ClockRef clock, const Accessor& by);
  void cross_set(Core& core, const Command& command, std::uint64_t now, const ClockRef& clock, const Accessor& by);
  void signal(Rounds& rounds, const Command& command, std::uint64_t now, const ClockRef& clock, const Accessor& by);
  Rounds& rounds_of(const Core& core, std::uint64_t flag, std::uint64_t mode);
  void send_cross(std::vector<std::uint32_t> to, const Command& command, std::uint64_t fired, ClockRef clock,
                  const Accessor& by);
  void send_notify(const Command& command, std::uint64_t now, ClockRef clock, const Accessor& by);
  void arrive(std::uint32_t payload, std::uint64_t now);
  void arrive_cross(const Arrival& arrival, std::uint64_t now);
  void arrive_notify(const Arrival& arrival);
  void recheck_waiters(std::uint64_t address, std::uint64_t now);
  void stored(Core& core, std::uint64_t address, std::uint64_t bytes, std::uint64_t now);
  std::uint32_t keep(Arrival arrival);

  // ---- checks; false: failed
  bool check_global(const Accessor& by, std::uint64_t begin, std::uint64_t end, bool writes);
  bool check_word(const Accessor& by, std::uint64_t address);
  bool check_declared(const Accessor& by, std::uint64_t begin, std::uint64_t end, bool writes);
  void follow_absent(const Accessor& by, std::uint64_t begin, std::uint64_t end, bool writes);
  bool check_race(Shadow& shadow, Space space, std::uint64_t base, const Accessor& by, std::uint64_t begin,
                  std::uint64_t end, bool writes);
  bool check_touches(Core& core, const Accessor& by, const Command& command);
  Accessor accessor(const Core& core, bool writes) const;
  Accessor accessor(const EngineQueue& queue, const QueuedCommand& command) const;
  bool in_private(std::uint64_t begin, std::uint64_t end) const;

  // ---- failures
  bool fail(const Accessor& by, std::string kind, std::string message, std::string expected = {},
            std::string found = {}, std::string hint = {});
  std::string name_of_core(std::uint32_t core) const;
  std::string name_of_actor(std::uint32_t actor) const;
  void fail_deadlock();
  void fail_limit(const Core& core, std::string kind, std::string message, std::string expected, std::string found);
  std::vector<std::string> waiters(const Core*& first) const;
  std::string waits_of(const Core& core) const;
  std::string waits_of(const EngineQueue& queue) const;
  std::string setters_of(const Core& core, std::uint64_t flag) const;
  bool check_end(const Core& core);
  bool rings(const Core& core) const;
  void report_left(std::vector<std::string>& commands, std::vector<std::string>& flags) const;

  void record(std::uint32_t core, std::uint8_t track, TraceKind kind, std::uint64_t begin, std::uint64_t end,
              std::uint32_t marker, std::uint32_t detail, std::uint32_t extra = 0);

  DeviceConfig config_;
  Pages ram_;
  ByteMap written_;
  ByteMap absent_;  // where engines compute no data: bytes that are not there
  std::set<std::uint32_t> data_dependent_;
  GlobalMemory global_;
  MemorySystem memory_;
  Shadow shadow_;
  MarkerPool marker_rows_;
  std::vector<CoreBlock, HugePages<CoreBlock>> core_blocks_;
  std::vector<CacheWays, HugePages<CacheWays>> cache_ways_;
  Cores cores_;
  std::vector<std::unique_ptr<EngineQueue>> engines_;
  std::unique_ptr<EngineQueue> sdma_;
  std::size_t actors_ = 0;
  std::uint64_t private_begin_ = 0, private_end_ = 0;
  RangeSet free_reads_;
  RangeSet scratch_;
  RangeSet executable_;
  struct Declared {
    RangeSet reads, writes;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Declared> declared_;

  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::uint64_t sequence_ = 0;
  std::vector<Arrival> arrivals_;
  std::vector<std::uint32_t> free_arrivals_;
  std::map<std::pair<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t>, Rounds> rounds_;  // flag, mode, set
  std::map<std::uint64_t, ClockRef> word_clocks_;
  std::vector<std::vector<TraceRecord>> tracks_;
  std::vector<Touch> touches_;
  std::uint32_t flows_ = 0;
  Delays delays_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> sent_;  // setter, flag -> when the last one arrives
  std::uint64_t executed_ = 0;
  std::uint64_t control_gross_ns_ = 0, control_slices_ = 0;
  std::uint64_t now_ = 0;  // of the event at hand
  std::uint64_t drain_cycles_ = 0, memory_flag_cycles_ = 0, write_flush_cycles_ = 0, atomic_cycles_ = 0;
  State state_ = State::fresh;
  Failure failure_;
  std::uint64_t exit_code_ = 0;
  std::uint64_t exit_cycle_ = 0;
  std::string console_;
};

}  // namespace sk::sim

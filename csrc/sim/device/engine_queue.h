// An engine of a core: its queue, the command it carries out, the flags that it waits for.
//
// Model: commands stay in the queue until they are complete, the one that is carried out being the first. A transfer
// from or to global memory passes through its L2 lines a few at a time (`Transfer`), in the order of the device's
// events; other commands take their start-up and beats.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "sim/device/clock.h"
#include "sim/device/counters.h"
#include "sim/engines/command.h"

namespace sk::sim {

struct QueuedCommand {
  Command command;
  std::uint64_t doorbell = 0;  // cycle from which it can start
  std::uint64_t pc = 0;
  std::uint32_t marker = 0;
  std::uint16_t core = 0;  // whose doorbell it was
  ClockRef acquired;       // what its control unit knew, and that unit's own times
  std::uint32_t released = 0;
  std::uint32_t loads = 0;
};

// A set that was not taken yet.
struct Token {
  std::uint64_t visible = 0;
  ClockRef clock;
  std::uint32_t flow = 0;  // of the trace
};

// Walks the rows of a command's accesses to global memory line by line.
struct Transfer {
  std::vector<Touch> touches;
  std::size_t touch = 0;
  std::uint64_t row = 0;
  std::uint64_t offset = 0;  // within the row
  std::uint64_t bytes = 0;   // of all touches
  std::uint64_t done = 0;
  std::uint64_t begin = 0;  // start of the command + start-up
  std::uint64_t beats = 0;
  std::uint64_t ahead = 0;  // how late a piece may be served without delaying what is asked for next
  std::uint64_t late = 0;   // how late pieces were served, at most, against the closed form
  std::uint64_t ready = 0;  // when all data asked for so far are there

  // When the closed form asks for the next piece, and when it is asked for.
  std::uint64_t nominal() const { return begin + beats * done / bytes; }
  std::uint64_t next() const { return nominal() + (late > ahead ? late - ahead : 0); }
};

struct EngineQueue {
  enum class State : std::uint8_t { idle, waiting, transferring, busy };

  Engine engine{};
  std::uint32_t core = 0;   // none for sdma: its number is that of the device's cores
  std::uint32_t actor = 0;  // of the vector clocks
  State state = State::idle;
  std::deque<QueuedCommand> commands;
  Transfer transfer;
  std::uint64_t started = 0;     // the command at work; with `waiting` since when
  std::uint64_t closed_end = 0;  // its end by the closed form
  std::uint64_t idle_since = 0;
  Clock clock;
  std::uint32_t time = 1;  // of the vector clocks
  ClockRef joined;         // what of the control unit's clock is in `clock` already
  EngineStats stats;
};

}  // namespace sk::sim

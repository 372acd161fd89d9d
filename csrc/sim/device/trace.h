// The event trace: spans and points in fixed records, one list per track, so that the order of bytes does not depend on
// the order in which tracks were simulated. superkernel/sim/trace.py reads the records.
#pragma once

#include <cstdint>
#include <vector>

namespace sk::sim {

enum class TraceKind : std::uint8_t {
  marker = 1,    // control: from one marker store to the next; detail: the marker
  stall = 2,     // control: detail: the Stall
  command = 3,   // engine: detail: the opcode; extra: bytes of global memory
  wait = 4,      // engine: at the head of the queue for a flag; detail: peer << 8 | flag
  flow_out = 5,  // a cross-core set or notify; detail: flag or ~0; extra: number of the flow
  flow_in = 6,   // its arrival at a wait that took it
};

struct TraceRecord {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t marker;
  std::uint32_t detail;
  std::uint16_t core;
  std::uint8_t track;  // the window number of the engine, 0: control
  TraceKind kind;
  std::uint32_t extra;
};
static_assert(sizeof(TraceRecord) == 32);

}  // namespace sk::sim

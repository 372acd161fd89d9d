// The time of traffic to global memory: L2 with its banks and lines, HBM behind it, instruction lines from L2.
//
// Model:
//  - L2 is set-associative (16 ways, the number of sets need not be a power of two), least recently used out first.
//  Reads and writes allocate; a write brings nothing from HBM; a dirty line that goes out costs its channel a line.
//  - A bank serves a piece of a line in its share of a line's cycles. A core is never delayed by its own use of a bank,
//  nor of a line: its paths' rates say what it can do alone, which makes uncontended hits equal the closed form.
//  - Two cores' accesses to one line are at least same_line_interval_cycles apart.
//  - A miss waits for its channel and for the core's own rate of misses; the line is there hbm.latency_ns and its
//  transfer later. Others that want it meanwhile wait for it (merged).
//  - SDMA is the last requester: it misses at its own rate. Lines that it brought are marked until somebody else uses
//  them: what became of them is counted.
//  - Instruction lines: a miss takes miss_latency_cycles and the fill; the same line is given out once per
//  icache.same_line_interval_cycles.
//
// Invariant: calls come in the order of the device's events, so that results do not depend on anything else.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/device/counters.h"
#include "sim/engines/target.h"
#include "sim/huge_pages.h"

namespace sk::sim {

class MemorySystem {
 public:
  void configure(const Target& target, std::uint64_t code_base, std::uint64_t code_bytes, std::size_t requesters);

  struct Access {
    std::uint64_t served;  // when L2, or HBM's channel, takes it up: the next piece cannot come before
    std::uint64_t ready;   // when a read's data are there: `served` where it hits
  };
  // A piece of a line; `core` is who asks. Pieces do not cross lines.
  Access read(std::uint64_t address, std::uint64_t bytes, std::uint32_t core, std::uint64_t now);
  Access write(std::uint64_t address, std::uint64_t bytes, std::uint32_t core, std::uint64_t now);
  // An instruction line; `line` counts from the start of the code. Returns its arrival.
  std::uint64_t fetch(std::uint64_t address, std::uint64_t line, std::uint32_t core, std::uint64_t now);

  // Puts the lines of a range into L2, without time.
  void warm(std::uint64_t address, std::uint64_t bytes);
  void forget();
  // SDMA reads a piece to have it in L2.
  Access prefetch(std::uint64_t address, std::uint64_t bytes, std::uint64_t now);
  // The launch is over: marks are taken away, lines that nobody used counted.
  void finish();
  // Counts from 0 again; who came last to a line or bank is forgotten.
  void restart();

  std::uint64_t line_bytes() const { return line_bytes_; }
  MemoryStats stats;

 private:
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};
  static constexpr std::uint64_t kWays = 16;
  struct Line {
    std::uint64_t tag = ~std::uint64_t{0};
    std::uint64_t used = 0;        // order of use
    std::uint64_t last = 0;        // cycle of the last access
    std::uint64_t ready = 0;       // cycle of its arrival from HBM
    std::uint32_t core = kNobody;  // of the last access
    bool dirty = false;
    bool prefetched = false;  // by SDMA, not used since
  };
  struct Bank {
    std::uint64_t free = 0;
    std::uint32_t core = kNobody;
  };

  Line* find(std::uint64_t number);
  Line& allocate(std::uint64_t number, std::uint64_t now);
  std::uint64_t pass_bank(std::uint64_t number, std::uint64_t bytes, std::uint32_t core, std::uint64_t now);
  std::uint64_t pass_line(Line& line, std::uint32_t core, std::uint64_t now);
  // The first use of a line that SDMA brought.
  void use(Line& line, std::uint64_t at);
  // Brings the line in; returns when the channel takes it up.
  std::uint64_t bring(Line& line, std::uint64_t number, std::uint32_t core, std::uint64_t now);

  std::uint64_t line_bytes_ = 512;
  int line_shift_ = 9;
  std::uint64_t bank_line_cycles_ = 1;
  std::uint64_t same_line_interval_ = 0;
  std::uint64_t hbm_latency_ = 0;
  std::uint64_t channel_line_cycles_ = 1;
  std::uint64_t core_line_cycles_ = 1;
  std::uint64_t sdma_line_cycles_ = 1;
  std::uint64_t fetch_cycles_ = 0;
  std::uint64_t fetch_interval_ = 0;
  std::uint64_t fetch_bytes_ = 128;
  std::uint64_t sets_ = 1;
  std::uint64_t uses_ = 0;
  std::uint64_t unused_ = 0;  // lines with a mark
  std::uint32_t sdma_ = 0;    // as a requester
  std::vector<Line, HugePages<Line>> lines_;
  std::vector<Bank> banks_;
  std::vector<std::uint64_t> channels_;    // free from
  std::vector<std::uint64_t> miss_free_;   // by core: its rate of misses
  std::vector<std::uint64_t> fetch_free_;  // by instruction line
};

}  // namespace sk::sim

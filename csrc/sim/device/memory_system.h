// The time of traffic to global memory: L2 with its banks and lines, HBM behind it, instruction lines from L2.
//
// Model:
//  - L2 has room for l2.usable_percent of its size. It is set-associative (16 ways, the number of sets need not be a
//  power of two), least recently used out first. Reads and writes allocate; a write brings nothing from HBM; a dirty
//  line that goes out costs its channel a line.
//  - What serves pieces is a bank, the limit of all cores of a type in one direction, a channel of HBM, and the core's
//  own rate of misses. Each takes pieces up one after the other, in the order in which they are asked for, whatever the
//  others do with them; a piece is served when the last of them takes it up. Their times are in ticks, parts of a
//  cycle.
//  - Banks and channels are told by a hash of the line's number, so that no stride stays with a few of them. A core is
//  not delayed by its own use of a bank: its paths' rates say what it can do alone.
//  - The limit of a type is one over time: what was not used in the last dma.startup_cycles may be caught up with,
//  since cores that begin together would else never move data while others start up.
//  - Lines that several cores ask for while either's requests are in flight (dma.startup_cycles) take
//  l2.same_line_loss_percent of the limit away.
//  - A line that is missed is there hbm.latency_ns and its transfer after its channel took it up. Others that want it
//  meanwhile wait for it (merged).
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
    std::uint64_t served;  // when L2, or HBM's channel, takes it up
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
  static constexpr int kTickShift = 8;  // ticks per cycle
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
    std::uint64_t free = 0;  // ticks
    std::uint32_t core = kNobody;
  };
  // Of one type of cores, reads or writes.
  struct Limit {
    std::uint64_t line_ticks = 0;
    std::uint64_t free = 0;  // ticks
  };

  // Where a line is served. Of as many lines as there are places, from a multiple of it on, each uses another one;
  // which comes first is a multiplicative hash (Knuth, The Art of Computer Programming 3, 6.4) of where they lie.
  struct Spread {
    std::uint64_t count = 1;
    int shift = 1;  // places in bits
    std::uint64_t operator()(std::uint64_t number) const {
      const std::uint64_t hash = (number >> shift) * 0x9E37'79B9'7F4A'7C15U;  // 2^64 / golden ratio
      return (number ^ hash >> (64 - shift)) % count;
    }
  };

  Line* find(std::uint64_t number);
  Line& allocate(std::uint64_t number, std::uint64_t now);
  std::uint64_t pass_bank(std::uint64_t number, std::uint64_t bytes, std::uint32_t core, std::uint64_t now);
  static std::uint64_t cycle_of(std::uint64_t ticks);
  // The line's use by a core, and the limit of the core's type.
  std::uint64_t pass_limit(Line& line, std::uint64_t bytes, std::uint32_t core, bool write, std::uint64_t now);
  // The first use of a line that SDMA brought.
  void use(Line& line, std::uint64_t at);
  // Brings the line in; returns when the channel takes it up.
  std::uint64_t bring(Line& line, std::uint64_t number, std::uint32_t core, std::uint64_t now);

  std::uint64_t line_bytes_ = 512;
  int line_shift_ = 9;
  std::uint64_t bank_line_ticks_ = 1;
  std::uint64_t in_flight_ = 0;           // cycles
  std::uint64_t shared_permille_ = 1000;  // of a piece's time, of lines that cores share
  std::uint64_t hbm_latency_ = 0;
  std::uint64_t channel_line_ticks_ = 1;
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
  Spread bank_of_, channel_of_;
  Limit limits_[2][2];  // cube, vector; reads, writes
  std::uint32_t cube_cores_ = 0;
  std::uint32_t cores_ = 0;                // cube and vector
  std::vector<std::uint64_t> channels_;    // free from, ticks
  std::vector<std::uint64_t> miss_free_;   // by core: its rate of misses
  std::vector<std::uint64_t> fetch_free_;  // by instruction line
};

}  // namespace sk::sim

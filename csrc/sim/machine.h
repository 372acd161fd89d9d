// The machine: memory, harts, the core-local interruptor, the host interface, and the loop that runs it all.
//
// Model: harts take turns in the order of their numbers, each for about `quantum` instructions; a turn ends at the
// first taken jump at or after that number. Time (the CLINT's mtime) advances by one quantum per round of turns, and
// within a turn by one per instruction. A run ends when a program writes tohost, when nothing can ever happen again, or
// at the instruction limit; it can be continued after the latter only.
//
// Invariants:
//  - One host thread, no clocks, no pointers in results: the same inputs give the same run.
//  - A hart's lr reservation is never broken by another hart within a turn, and turns do not end between lr and sc for
//  up to 64 instructions; where one does end there, the sc fails. So sc needs no watch over other harts' stores, and
//  constrained lr/sc loops make progress for every quantum.
//  - Records exist for each 2-byte parcel of memory; zeroed ones decode on first use. fence.i zeroes all.
//  - Nothing here throws after `create`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/elf.h"
#include "sim/hart.h"
#include "sim/isa.h"

namespace sk::sim {

struct MachineConfig {
  std::uint32_t harts = 1;
  std::uint64_t memory_base = 0x80000000;
  std::uint64_t memory_bytes = 0;  // 0: what the program needs and 16 MiB more
  std::uint64_t quantum = 10000;
  CacheGeometry icache;
};

inline constexpr std::uint32_t kHartsMax = 4096;
inline constexpr std::uint64_t kMemoryMax = std::uint64_t{1} << 36;

enum class End : std::uint8_t {
  none,
  exited,       // tohost: `exit_code`
  limit,        // of instructions
  asleep,       // all harts in wfi and no interrupt can come
  trap_loop,    // a trap handler that cannot be fetched: `hart`, its mcause, mepc and mtval tell which
  bad_request,  // tohost holds what no device understands: `exit_code` is the word
};

// Anonymous memory of the system, zeroed and committed on first touch.
class Pages {
 public:
  Pages() = default;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();
  bool allocate(std::size_t bytes);
  // A part that is touched all over: large pages, where the system has them. Reaches beyond it by less than one.
  void prefer_huge(std::size_t offset, std::size_t bytes);
  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// What is wrong with a configuration (memory_bytes being set); an empty message: nothing.
Problem config_problem(const MachineConfig& config);
// The memory that a program needs from `base` on, and 16 MiB for its stack and data.
std::uint64_t default_memory_bytes(const ElfImage& image, std::uint64_t base);

class Machine {
 public:
  // Allocates and resets; false where the system has not the memory. The configuration must be valid.
  bool create(const MachineConfig& config);
  // Copies the segments into the fresh memory and points all harts at the entry, with a0 = the hart's number. False,
  // with a problem, where a segment or tohost lies outside memory.
  Problem load(std::span<const std::uint8_t> file, const ElfImage& image);
  // Runs until the program ends or at least `instructions` more (and at most about a straight line of code above that)
  // were executed or trapped. Returns how the run stands.
  End run(std::uint64_t instructions);

  std::span<std::uint8_t> memory() { return {ram_.data(), ram_.bytes()}; }
  std::uint64_t memory_base() const { return config_.memory_base; }
  std::vector<Hart>& harts() { return harts_; }
  End end() const { return end_; }
  std::uint64_t exit_code() const { return exit_code_; }
  std::uint32_t end_hart() const { return end_hart_; }
  std::uint64_t executed() const { return executed_; }
  std::uint64_t time() const { return time_; }
  // What the program wrote to the console since the last call.
  std::string take_console();
  // Forgets decoded instructions, as fence.i does; needed when memory() was written from outside.
  void flush_decoded();

 private:
  friend struct Interpreter;

  static constexpr std::uint64_t kNoAddress = ~std::uint64_t{0};
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  static constexpr std::uint64_t kClintBase = 0x02000000;

  // A hart's turn: open from its first instruction until its time is `end`, over pauses of run().
  struct Turn {
    bool open = false;
    bool extended = false;  // for a reservation, once
    std::uint64_t end = 0;
  };

  void next_round();
  void open_turn(Hart& hart);
  bool continue_turn(Hart& hart, std::uint64_t instructions);
  bool turn_is_over(Hart& hart);
  void update_interrupts(Hart& hart) const;
  std::uint64_t until_timer(const Hart& hart) const;

  // The interpreter's slow paths. `now` is the hart's time.
  void decode_at(std::size_t index);
  bool load_slow(std::uint64_t address, unsigned bytes, std::uint64_t now, std::uint64_t& value) const;
  bool store_slow(std::uint64_t address, unsigned bytes, std::uint64_t value, std::uint64_t now);
  bool clint_load(std::uint64_t offset, unsigned bytes, std::uint64_t now, std::uint64_t& value) const;
  bool clint_store(std::uint64_t offset, unsigned bytes, std::uint64_t value, std::uint64_t now);

  // The host interface (htif.cpp).
  void tohost_written(const Hart& hart);
  bool system_call(std::uint64_t block, const Hart& hart);
  void print(std::string_view text);
  void finish(End end, const Hart& hart, std::uint64_t code);

  MachineConfig config_;
  Pages ram_;
  Pages records_;
  std::vector<Hart> harts_;
  std::vector<std::uint64_t> time_compare_;
  std::vector<std::uint8_t> software_interrupt_;
  std::vector<bool> page_decoded_;
  std::vector<std::uint32_t> decoded_pages_;
  std::uint64_t tohost_offset_ = kNoAddress;  // in memory
  std::uint64_t fromhost_offset_ = kNoAddress;
  std::string console_;
  bool console_cut_ = false;
  std::uint64_t time_ = 0;          // at the start of the round
  std::uint64_t mtime_offset_ = 0;  // by writes to mtime
  std::uint64_t executed_ = 0;
  std::uint32_t turn_hart_ = 0;
  Turn turn_;
  bool any_ran_ = true;               // in this round
  std::vector<std::uint64_t> ahead_;  // how far a hart overran its last turn
  End end_ = End::none;
  std::uint64_t exit_code_ = 0;
  std::uint32_t end_hart_ = 0;
};

}  // namespace sk::sim

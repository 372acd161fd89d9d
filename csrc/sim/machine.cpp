// See machine.h: construction, loading, turns. The CLINT and other slow accesses are in devices.cpp, tohost in
// htif.cpp.
#include "sim/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>

#include "sim/huge_pages.h"
#include "sim/interpreter.h"

namespace sk::sim {
namespace {

static_assert(std::endian::native == std::endian::little, "memory is copied as it stands");

constexpr std::size_t kPageBytes = 4096;  // of memory, for the book-keeping of decoded records
constexpr std::size_t kPageRecords = kPageBytes / 2;
constexpr std::uint64_t kSpareBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kCacheLinesMax = std::uint64_t{1} << 22;
constexpr std::uint64_t kQuantumMax = std::uint64_t{1} << 32;
constexpr std::uint64_t kLowestBase = 0x10000000;  // above the devices
constexpr std::uint64_t kHighestBase = std::uint64_t{1} << 48;
constexpr std::uint64_t kReservationGrace = 64;  // instructions

std::string hex(std::uint64_t value) {
  std::array<char, 20> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
  return text.data();
}

}  // namespace

Problem config_problem(const MachineConfig& config) {
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  if (config.harts < 1 || config.harts > kHartsMax) {
    return {"impossible number of harts", "harts", "1 to " + number(kHartsMax), number(config.harts)};
  }
  if (config.quantum < 1 || config.quantum > kQuantumMax) {
    return {"impossible quantum", "quantum", "1 to " + number(kQuantumMax), number(config.quantum)};
  }
  if (config.memory_base % kPageBytes != 0 || config.memory_base < kLowestBase || config.memory_base > kHighestBase) {
    return {"impossible start of memory", "memory_base",
            "a multiple of 4096 from " + hex(kLowestBase) + " to " + hex(kHighestBase), hex(config.memory_base)};
  }
  if (config.memory_bytes < kPageBytes || config.memory_bytes > kMemoryMax) {
    return {"impossible size of memory", "memory_bytes", number(kPageBytes) + " to " + number(kMemoryMax),
            number(config.memory_bytes)};
  }
  if (const char* problem = config.icache.problem()) return {problem, "instruction cache", "", ""};
  if (config.icache.bytes != 0) {
    const std::uint64_t lines = std::uint64_t{config.harts} * (config.icache.bytes / config.icache.line_bytes);
    if (lines > kCacheLinesMax) {
      return {"too many cache lines to model", "harts and instruction cache", "at most " + number(kCacheLinesMax),
              number(lines)};
    }
  }
  return {};
}

std::uint64_t default_memory_bytes(const ElfImage& image, std::uint64_t base) {
  std::uint64_t end = base;
  for (const Segment& segment : image.segments) end = std::max(end, segment.address + segment.memory_bytes);
  return std::min(end - base + kSpareBytes, kMemoryMax);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

bool Pages::allocate(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  data_ = static_cast<std::uint8_t*>(memory);
  bytes_ = bytes;
  return true;
}

void Pages::prefer_huge(std::size_t offset, std::size_t bytes) {
  if (bytes < kHugeBlockBytes) return;
  const auto address = reinterpret_cast<std::uintptr_t>(data_);
  const std::uintptr_t first = std::max(address, (address + offset) / kHugePageBytes * kHugePageBytes);
  const std::uintptr_t end = std::min(address + bytes_, whole_huge_pages(address + offset + bytes));
  advise_huge_pages(reinterpret_cast<void*>(first), end - first);
}

bool Machine::create(const MachineConfig& config) {
  config_ = config;
  config_.memory_bytes = (config.memory_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::size_t parcels = config_.memory_bytes / 2;
  if (!ram_.allocate(config_.memory_bytes) || !records_.allocate((parcels + 2) * sizeof(Record))) return false;
  // Two, because a 4-byte instruction in the last parcel but one and a 2-byte one in the last both step here.
  auto* const behind = reinterpret_cast<Record*>(records_.data()) + parcels;
  behind[0].op = Op::end_of_ram;
  behind[1].op = Op::end_of_ram;
  page_decoded_.assign(config_.memory_bytes / kPageBytes, false);
  harts_.assign(config.harts, Hart{});
  time_compare_.assign(config.harts, kNever);
  software_interrupt_.assign(config.harts, 0);
  ahead_.assign(config.harts, 0);
  for (std::uint32_t i = 0; i < config.harts; ++i) {
    harts_[i].id = i;
    harts_[i].x[10] = i;
    harts_[i].icache.configure(config.icache);
  }
  return true;
}

Problem Machine::load(std::span<const std::uint8_t> file, const ElfImage& image) {
  const std::string range = hex(config_.memory_base) + " to " + hex(config_.memory_base + ram_.bytes());
  const auto fits = [&](std::uint64_t address, std::uint64_t bytes) {
    const std::uint64_t offset = address - config_.memory_base;
    return offset <= ram_.bytes() && bytes <= ram_.bytes() - offset;
  };
  for (const Segment& segment : image.segments) {
    if (!fits(segment.address, segment.memory_bytes)) {
      return {"a segment lies outside memory", "PT_LOAD", range,
              hex(segment.address) + " + " + hex(segment.memory_bytes)};
    }
    // What lies behind the file's part is zero already, and must stay untouched: it may be huge.
    std::memcpy(ram_.data() + (segment.address - config_.memory_base), file.data() + segment.file_offset,
                segment.file_bytes);
  }
  if (!fits(image.entry, 2)) return {"the entry lies outside memory", "e_entry", range, hex(image.entry)};
  const auto place_word = [&](const std::optional<std::uint64_t>& address, const char* name, std::uint64_t& offset) {
    if (!address) return Problem{};
    if (!fits(*address, 8)) return Problem{"lies outside memory", name, range, hex(*address)};
    offset = *address - config_.memory_base;
    return Problem{};
  };
  if (Problem problem = place_word(image.tohost, "tohost", tohost_offset_); !problem.message.empty()) return problem;
  if (Problem problem = place_word(image.fromhost, "fromhost", fromhost_offset_); !problem.message.empty()) {
    return problem;
  }
  flush_decoded();
  for (Hart& hart : harts_) hart.pc = image.entry;
  return {};
}

void Machine::flush_decoded() {
  auto* const records = reinterpret_cast<Record*>(records_.data());
  for (const std::uint32_t page : decoded_pages_) {
    std::fill_n(records + page * kPageRecords, kPageRecords, Record{});
    page_decoded_[page] = false;
  }
  decoded_pages_.clear();
}

void Machine::decode_at(std::size_t index) {
  const std::size_t page = index / kPageRecords;
  if (!page_decoded_[page]) {
    page_decoded_[page] = true;
    decoded_pages_.push_back(static_cast<std::uint32_t>(page));
  }
  const std::uint32_t line_bytes = config_.icache.bytes != 0 ? config_.icache.line_bytes : 0;
  reinterpret_cast<Record*>(records_.data())[index] = decode(memory(), index * 2, line_bytes);
}

void Machine::next_round() {
  turn_hart_ = 0;
  if (any_ran_) {
    time_ += config_.quantum;
    any_ran_ = false;
    return;
  }
  // Everybody sleeps: only a timer can wake anybody, so time jumps to the next one that somebody waits for.
  std::uint64_t wait = kNever;
  for (Hart& hart : harts_) wait = std::min(wait, until_timer(hart));
  if (wait == kNever) return finish(End::asleep, harts_[0], 0);
  time_ += wait;
  any_ran_ = true;
}

void Machine::open_turn(Hart& hart) {
  hart.time_offset = time_ + ahead_[hart.id] - hart.retired - hart.traps;
  turn_ = {true, false, time_ + config_.quantum};
}

void Machine::update_interrupts(Hart& hart) const {
  const bool timer = hart.now() + mtime_offset_ >= time_compare_[hart.id];
  hart.mip = (software_interrupt_[hart.id] != 0 ? kMsi : 0) | (timer ? kMti : 0);
}

// Time until the hart's timer fires, if the hart has it enabled.
std::uint64_t Machine::until_timer(const Hart& hart) const {
  const std::uint64_t due = time_compare_[hart.id];
  const std::uint64_t mtime = (turn_.open ? hart.now() : time_) + mtime_offset_;
  if ((hart.mie & kMti) == 0 || due == kNever) return kNever;
  return due > mtime ? due - mtime : 0;
}

bool Machine::turn_is_over(Hart& hart) {
  if (hart.now() < turn_.end) return false;
  if (harts_.size() > 1 && hart.reservation != kNoReservation && !turn_.extended) {
    turn_.extended = true;
    turn_.end = hart.now() + kReservationGrace;
    return false;
  }
  return true;
}

// Runs a piece of the hart's turn; false: the turn is over.
bool Machine::continue_turn(Hart& hart, std::uint64_t instructions) {
  update_interrupts(hart);
  if (hart.asleep && !hart.interrupt_pending()) return false;
  hart.asleep = false;
  any_ran_ = true;
  const std::uint64_t before = hart.retired + hart.traps;
  hart.take_interrupt();
  std::uint64_t budget = std::min(instructions, turn_.end > hart.now() ? turn_.end - hart.now() : 1);
  if ((hart.mip & kMti) == 0) budget = std::min(budget, std::max<std::uint64_t>(until_timer(hart), 1));
  const auto slice = static_cast<std::int64_t>(std::min<std::uint64_t>(budget, std::uint64_t{1} << 62));
  if (config_.icache.bytes != 0) {
    Interpreter::run<MachineHost<true>>(*this, hart, slice);
  } else {
    Interpreter::run<MachineHost<false>>(*this, hart, slice);
  }
  executed_ += hart.retired + hart.traps - before;
  const bool goes_on = end_ == End::none && !hart.asleep && !hart.yields && !turn_is_over(hart);
  hart.yields = false;
  return goes_on;
}

End Machine::run(std::uint64_t instructions) {
  const std::uint64_t stop = instructions > ~executed_ ? ~std::uint64_t{0} : executed_ + instructions;
  while (end_ == End::none) {
    if (turn_hart_ == harts_.size()) {
      next_round();
      continue;
    }
    if (executed_ >= stop) return End::limit;
    Hart& hart = harts_[turn_hart_];
    if (!turn_.open) open_turn(hart);
    if (continue_turn(hart, stop - executed_)) continue;
    const std::uint64_t round_end = time_ + config_.quantum;
    ahead_[hart.id] = hart.now() > round_end ? hart.now() - round_end : 0;
    if (harts_.size() > 1) hart.reservation = kNoReservation;
    turn_.open = false;
    ++turn_hart_;
  }
  return end_;
}

}  // namespace sk::sim

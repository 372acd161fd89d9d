// A plugin of the emulator that counts, per hart, the instructions of a program and the instruction-cache lines it
// misses.
//
// Model: this process and the emulator share a file of 64-bit words (kHeader words, kHart words per hart, kRow words
// per instruction of the program: pc, its word with compressed ones expanded, what is special); the plugin maps it and
// counts into it, so that nothing has to be reported at the end. Counted is what the rows name: the program, not the
// firmware, and not instructions marked kSkip (wfi, which sleeps). The cache is set-associative, least recently used
// out first, and is looked up when execution enters a line; an instruction marked with kEnter and an address enters
// that line as well.
//
// A plugin sees no registers. What prefetch.i asks for is computed along: registers and places on the stack that auipc,
// lui, addi and add make from constants, all else being unknown. Addresses that are not known are counted.
// superkernel/backends/aicore/qemu_counts.py writes the file and reads it.
//
// Invariants: a hart's words are written by its thread only. The header of the emulator is not installed with it: the
// few declarations here are version 1 of its documented interface.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

extern "C" {
using qemu_plugin_id_t = std::uint64_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info_t;
using TranslateCallback = void (*)(qemu_plugin_id_t, qemu_plugin_tb*);
using ExecuteCallback = void (*)(unsigned, void*);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, TranslateCallback callback);
void qemu_plugin_register_vcpu_insn_exec_cb(qemu_plugin_insn* insn, ExecuteCallback callback, int flags, void* data);
std::size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb* tb);
qemu_plugin_insn* qemu_plugin_tb_get_insn(const qemu_plugin_tb* tb, std::size_t index);
std::uint64_t qemu_plugin_insn_vaddr(const qemu_plugin_insn* insn);
std::size_t qemu_plugin_insn_size(const qemu_plugin_insn* insn);
__attribute__((visibility("default"))) int qemu_plugin_version = 1;
__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t* info, int argc,
                                                               char** argv);
}

namespace {

enum Header : std::size_t { kBegin, kEnd, kLineShift, kWays, kHarts, kRows, kHeader = 8 };
enum Hart : std::size_t { kSets, kInstructions, kLines, kMisses, kPrefetches, kUnknown, kHart = 8 };
constexpr std::size_t kRow = 3;
constexpr std::uint64_t kSkip = ~std::uint64_t{0}, kNone = ~std::uint64_t{0}, kEnter = std::uint64_t{1} << 63;

struct Way {
  std::uint64_t line = kNone;
  std::uint64_t used = 0;
};

struct Cache {
  std::vector<Way> ways;
  std::uint64_t uses = 0;
  std::uint64_t current = kNone;
};

struct Row {
  std::uint32_t word = 0;
  std::uint64_t special = 0;
};

struct Instruction {
  std::uint64_t pc;
  std::uint64_t first_line;
  std::uint64_t last_line;
  std::uint32_t word;
};

// What is known of a hart's registers and stack. The stack pointer counts from where it was at the start.
struct Shadow {
  std::array<std::optional<std::uint64_t>, 32> x{};
  std::int64_t stack_pointer = 0;
  std::unordered_map<std::int64_t, std::uint64_t> stack;
};

std::uint64_t* words = nullptr;
std::vector<Cache> caches;
std::vector<Shadow> shadows;
std::unordered_map<std::uint64_t, Row> rows;  // by pc

std::uint64_t line_of(std::uint64_t address) { return (address - words[kBegin]) >> words[kLineShift]; }

std::uint64_t* hart_words(unsigned hart) { return words + kHeader + hart * kHart; }

// The way that holds the line, or the one to give up for it.
Way& way_of(unsigned hart, std::uint64_t line, bool& held) {
  Cache& cache = caches[hart];
  const std::uint64_t ways = words[kWays];
  Way* const set = &cache.ways[(line & (hart_words(hart)[kSets] - 1)) * ways];
  Way* oldest = set;
  for (Way* way = set; way != set + ways; ++way) {
    if (way->line == line) {
      held = true;
      return *way;
    }
    if (way->used < oldest->used) oldest = way;
  }
  held = false;
  return *oldest;
}

void enter(unsigned hart, std::uint64_t line) {
  Cache& cache = caches[hart];
  if (line == cache.current) return;
  bool held = false;
  Way& way = way_of(hart, line, held);
  way = {line, ++cache.uses};
  cache.current = line;
  ++hart_words(hart)[kLines];
  if (!held) ++hart_words(hart)[kMisses];
}

void prefetch(unsigned hart, std::uint64_t line) {
  bool held = false;
  Way& way = way_of(hart, line, held);
  if (held) return;
  way = {line, ++caches[hart].uses};
  ++hart_words(hart)[kPrefetches];
}

constexpr std::uint32_t kLoad = 0x03, kAddImmediate = 0x13, kAuipc = 0x17, kStore = 0x23, kFloatStore = 0x27,
                        kAdd = 0x33, kLui = 0x37, kBranch = 0x63, kStackPointer = 2, kDouble = 3, kOr = 6;

std::int64_t immediate_of(std::uint32_t word) { return static_cast<std::int32_t>(word) >> 20; }

std::int64_t store_offset(std::uint32_t word) {
  return static_cast<std::int64_t>(static_cast<std::int32_t>(word) >> 25) * 32 + (word >> 7 & 31);
}

bool is_prefetch(std::uint32_t word) {
  return (word & 0x7F) == kAddImmediate && (word >> 12 & 7) == kOr && (word >> 7 & 31) == 0 && (word >> 20 & 31) == 0;
}

void store(Shadow& shadow, std::uint32_t word) {
  if ((word >> 15 & 31) != kStackPointer) return;
  const std::int64_t place = shadow.stack_pointer + store_offset(word);
  const auto& value = shadow.x[word >> 20 & 31];
  if ((word >> 12 & 7) == kDouble && value) {
    shadow.stack[place] = *value;
  } else {
    shadow.stack.erase(place);
  }
}

// What an instruction leaves in its destination, if that is known.
std::optional<std::uint64_t> result_of(const Shadow& shadow, std::uint64_t pc, std::uint32_t word) {
  const std::uint32_t opcode = word & 0x7F, function = word >> 12 & 7;
  const auto& a = shadow.x[word >> 15 & 31];
  const auto upper = static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(word & 0xFFFFF000U)});
  if (opcode == kAuipc) return pc + upper;
  if (opcode == kLui) return upper;
  if (opcode == kAddImmediate && function == 0 && a) return *a + static_cast<std::uint64_t>(immediate_of(word));
  if (opcode == kAdd && function == 0 && word >> 25 == 0 && a) {
    const auto& b = shadow.x[word >> 20 & 31];
    return b ? std::optional(*a + *b) : std::nullopt;
  }
  if (opcode == kLoad && function == kDouble && (word >> 15 & 31) == kStackPointer) {
    const auto found = shadow.stack.find(shadow.stack_pointer + immediate_of(word));
    return found == shadow.stack.end() ? std::nullopt : std::optional(found->second);
  }
  return std::nullopt;
}

void follow(Shadow& shadow, std::uint64_t pc, std::uint32_t word) {
  const std::uint32_t opcode = word & 0x7F, destination = word >> 7 & 31;
  if (opcode == kStore) return store(shadow, word);
  if (opcode == kFloatStore || opcode == kBranch || destination == 0) return;
  if (destination == kStackPointer) {
    const bool moves = opcode == kAddImmediate && (word >> 15 & 31) == kStackPointer;
    if (moves) {
      shadow.stack_pointer += immediate_of(word);
    } else {
      shadow.stack.clear();
    }
    return;
  }
  shadow.x[destination] = result_of(shadow, pc, word);
}

void executed(unsigned hart, void* data) {
  if (hart >= words[kHarts]) return;
  const Instruction& instruction = *static_cast<const Instruction*>(data);
  ++hart_words(hart)[kInstructions];
  enter(hart, instruction.first_line);
  enter(hart, instruction.last_line);
  if (!is_prefetch(instruction.word)) return follow(shadows[hart], instruction.pc, instruction.word);
  const auto& base = shadows[hart].x[instruction.word >> 15 & 31];
  if (base) {
    prefetch(hart, line_of(*base + static_cast<std::uint64_t>(immediate_of(instruction.word))));
  } else {
    ++hart_words(hart)[kUnknown];
  }
}

void translated(qemu_plugin_id_t, qemu_plugin_tb* tb) {
  const std::size_t count = qemu_plugin_tb_n_insns(tb);
  for (std::size_t i = 0; i < count; ++i) {
    qemu_plugin_insn* const insn = qemu_plugin_tb_get_insn(tb, i);
    const std::uint64_t pc = qemu_plugin_insn_vaddr(insn);
    const auto row = rows.find(pc);
    if (row == rows.end() || row->second.special == kSkip) continue;
    const std::uint64_t special = row->second.special;
    const std::uint64_t last = (special & kEnter) != 0 ? special & ~kEnter : pc + qemu_plugin_insn_size(insn) - 1;
    // Translations live as long as the emulator.
    auto record = std::make_unique<Instruction>(Instruction{pc, line_of(pc), line_of(last), row->second.word});
    qemu_plugin_register_vcpu_insn_exec_cb(insn, executed, 0, record.release());
  }
}

bool map_words(const char* path) {
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  struct stat about{};
  const bool known = fstat(file, &about) == 0;
  void* const found =
      known ? mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
            : MAP_FAILED;
  close(file);
  if (found == MAP_FAILED) return false;
  words = static_cast<std::uint64_t*>(found);
  return true;
}

}  // namespace

int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t*, int argc, char** argv) {
  constexpr const char* kName = "counts=";
  for (int i = 0; i < argc; ++i) {
    if (std::strncmp(argv[i], kName, std::strlen(kName)) == 0 && !map_words(argv[i] + std::strlen(kName))) return -1;
  }
  if (words == nullptr) return -1;
  caches.resize(words[kHarts]);
  shadows.resize(words[kHarts]);
  for (unsigned hart = 0; hart < words[kHarts]; ++hart) {
    caches[hart].ways.resize(hart_words(hart)[kSets] * words[kWays]);
    shadows[hart].x[0] = 0;
  }
  const std::uint64_t* const first = words + kHeader + words[kHarts] * kHart;
  for (const std::uint64_t* row = first; row != first + words[kRows] * kRow; row += kRow) {
    rows[row[0]] = {static_cast<std::uint32_t>(row[1]), row[2]};
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  return 0;
}

// A plugin of the emulator that counts, per hart, the instructions of a program and the instruction-cache lines it
// misses.
//
// Model: this process and the emulator share a file of 64-bit words (kHeader words, kHart words per hart, two words per
// special instruction); the plugin maps it and counts into it, so that nothing has to be reported at the end. Counted
// is what lies in [begin, end): the program, not the firmware, and not instructions marked kSkip (wfi, which sleeps).
// The cache is set-associative, least recently used out first, and is looked up when execution enters a line; a special
// instruction with a target is a prefetch of the target's line. superkernel/executors/qemu_counts.py writes and reads
// it.
//
// Invariants: a hart's words are written by its thread only. The header of the emulator is not installed with it: the
// few declarations here are version 1 of its documented interface.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
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

enum Header : std::size_t { kBegin, kEnd, kLineShift, kWays, kHarts, kSpecials, kHeader = 8 };
enum Hart : std::size_t { kSets, kInstructions, kLines, kMisses, kPrefetches, kHart = 8 };
constexpr std::uint64_t kSkip = ~std::uint64_t{0}, kNone = ~std::uint64_t{0};

struct Way {
  std::uint64_t line = kNone;
  std::uint64_t used = 0;
};

struct Cache {
  std::vector<Way> ways;
  std::uint64_t uses = 0;
  std::uint64_t current = kNone;
};

struct Instruction {
  std::uint64_t first_line;
  std::uint64_t last_line;
  std::uint64_t target_line;  // of a prefetch, else kNone
};

std::uint64_t* words = nullptr;
std::vector<Cache> caches;
std::unordered_map<std::uint64_t, std::uint64_t> specials;  // by pc

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

void executed(unsigned hart, void* data) {
  if (hart >= words[kHarts]) return;
  const Instruction& instruction = *static_cast<const Instruction*>(data);
  ++hart_words(hart)[kInstructions];
  enter(hart, instruction.first_line);
  enter(hart, instruction.last_line);
  if (instruction.target_line == kNone) return;
  bool held = false;
  Way& way = way_of(hart, instruction.target_line, held);
  if (held) return;
  way = {instruction.target_line, ++caches[hart].uses};
  ++hart_words(hart)[kPrefetches];
}

void translated(qemu_plugin_id_t, qemu_plugin_tb* tb) {
  const std::size_t count = qemu_plugin_tb_n_insns(tb);
  const std::uint64_t begin = words[kBegin];
  for (std::size_t i = 0; i < count; ++i) {
    qemu_plugin_insn* const insn = qemu_plugin_tb_get_insn(tb, i);
    const std::uint64_t pc = qemu_plugin_insn_vaddr(insn);
    if (pc < begin || pc >= words[kEnd]) continue;
    const auto line_of = [begin](std::uint64_t address) { return (address - begin) >> words[kLineShift]; };
    const auto special = specials.find(pc);
    if (special != specials.end() && special->second == kSkip) continue;
    const std::uint64_t target = special == specials.end() ? kNone : line_of(special->second);
    // Translations live as long as the emulator.
    auto record =
        std::make_unique<Instruction>(Instruction{line_of(pc), line_of(pc + qemu_plugin_insn_size(insn) - 1), target});
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
  for (unsigned hart = 0; hart < words[kHarts]; ++hart) {
    caches[hart].ways.resize(hart_words(hart)[kSets] * words[kWays]);
  }
  const std::uint64_t* const rows = words + kHeader + words[kHarts] * kHart;
  for (std::uint64_t i = 0; i < words[kSpecials]; ++i) specials[rows[2 * i]] = rows[2 * i + 1];
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  return 0;
}

// Decodes commands and evaluates their formulas with nothing but engine_commands.inc; test_target_generated.py compares
// what it prints with the Python side. Input: the target as "section.field value" lines, "-", then per command the
// opcode, the number of operand words, those words and the doorbell.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "engine_commands.inc"

using u64 = std::uint64_t;

static std::map<std::string, double> target;
static u64 codes[2];

#define FIELD(section, field, type) std::is_arithmetic_v<type> ? #section "." #field : nullptr,
#define FIELDS(section) SK_TARGET_##section(FIELD)
static const char* const fields[] = {SK_TARGET_SECTIONS(FIELDS)};
#define FIELD_TYPE(section, field, type) static_assert(sizeof(type) > 0, #section "." #field);
#define FIELD_TYPES(section) SK_TARGET_##section(FIELD_TYPE)
SK_TARGET_SECTIONS(FIELD_TYPES)

static u64 whole(const char* path) { return static_cast<u64>(target.at(path)); }
static u64 rate(const std::string& path) {
  double scale = path.rfind("rates.", 0) == 0 ? target.at("rates.scale") : 1.0;
  return static_cast<u64>(std::llrint(target.at(path) * scale * 1000));
}
#define T(section, field) whole(#section "." #field)
#define R(section, field) rate(#section "." #field)

static u64 ceil_div(u64 a, u64 b) { return (a + b - 1) / b; }
static u64 larger(u64 a, u64 b) { return a > b ? a : b; }
static u64 choose(u64 c, u64 a, u64 b) { return c ? a : b; }
static u64 lanes(u64 item) { return item == 4 ? T(vector, lanes_32bit) : T(vector, lanes_16bit); }
static u64 cycles_of_ns(u64 ns) { return ceil_div(ns * T(device, clock_mhz), 1000); }
static u64 transfer(u64 mb_per_s, u64 bytes) { return ceil_div(bytes * T(device, clock_mhz), mb_per_s); }
static u64 gm_transfer(u64 mb_per_s, u64 bytes, u64 address) {
  u64 cycles = transfer(mb_per_s, bytes);
  if (address % T(dma, aligned_bytes) == 0) return cycles;
  u64 loss = static_cast<u64>(std::llrint(target.at("dma.unaligned_loss_percent") * 10));
  return ceil_div(cycles * 1000, 1000 - loss);
}
static u64 item_of(u64 code) {
#define ITEM(name, number, bytes) \
  if (code == number) return bytes;
  SK_ELEMENT_TYPES(ITEM)
  return 0;
}
static u64 item0() { return item_of(codes[0]); }
static u64 item1() { return item_of(codes[1]); }
static u64 depth() { return item0() == 4 ? T(cube, k_f32) : item0() == 1 ? T(cube, k_i8) : T(cube, k_f16); }

#define MEMBER(command, operand, kind, memory, word, shift, bits, low, high, align) u64 operand = 0;
#define OPERANDS(name, ...)    \
  struct name##_operands {     \
    SK_OPERANDS_##name(MEMBER) \
  };
SK_COMMANDS(OPERANDS)

struct All {
#define ONE(name, ...) name##_operands name;
  SK_COMMANDS(ONE)
} all;

#define CODE(name, opcode, ...) constexpr u64 code_##name = opcode;
SK_COMMANDS(CODE)

static void decode(u64 opcode, const u64* words) {
#define UNPACK(command, operand, kind, memory, word, shift, bits, low, high, align)                    \
  if (opcode == code_##command) {                                                                      \
    all.command.operand = words[word] >> shift & (bits == 64 ? ~u64{0} : (u64{1} << (bits % 64)) - 1); \
    std::cout << " " #operand "=" << all.command.operand;                                              \
  }
  SK_OPERANDS(UNPACK)
}

static void figures(u64 opcode) {
#define O(operand) o.operand
#define TIMES(command, start_up, beats, visible)                                \
  if (opcode == code_##command) {                                               \
    [[maybe_unused]] const auto& o = all.command;                               \
    std::cout << " times=" << (start_up) << "," << (beats) << "," << (visible); \
  }
  SK_TIMES(TIMES)
#define TOUCHED(command, operand, writes, when, rows, row_bytes, stride)                    \
  if (opcode == code_##command) {                                                           \
    [[maybe_unused]] const auto& o = all.command;                                           \
    if (when)                                                                               \
      std::cout << " " #operand ":" << writes << "," << (rows) << "," << (row_bytes) << "," \
                << ((rows) > 1 ? (stride) : 0);                                             \
  }
  SK_ACCESSES(TOUCHED)
}

int main() {
  std::string word;
  while (std::cin >> word && word != "-") std::cin >> target[word];
  for (const char* field : fields)
    if (field && !target.count(field)) return std::cerr << field << " unset\n", 1;
  u64 opcode = 0, count = 0;
  while (std::cin >> opcode >> count) {
    u64 words[16] = {};
    for (u64 i = 0; i < count; ++i) std::cin >> words[i];
    std::cin >> words[SK_DOORBELL_WORD];
    u64 header = words[SK_DOORBELL_WORD];
    codes[0] = header >> SK_OPCODE_BITS & 15;
    codes[1] = header >> (SK_OPCODE_BITS + SK_TYPE_BITS) & 15;
    std::cout << (header & 255);
    decode(opcode, words);
    figures(opcode);
    std::cout << "\n";
  }
}

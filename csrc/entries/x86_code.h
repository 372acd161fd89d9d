// Machine code of x86-64, written directly: the few instructions that entries of a fused kernel are made of, and the
// relocatable object around them.
//
// Model: `X86Code` is one section of code that grows at its end. Jumps and calls inside it name labels, which are
// filled in when it is finished; what lies outside (functions of other objects, tables in read-only memory) becomes
// relocations. Encodings: Intel's Software Developer's Manual, volume 2; objects: System V ABI, AMD64 supplement,
// chapter 4.
//
// Every operand in memory is base + 32-bit displacement; displacements and immediates beyond 32 bits take a register
// more. A number that has no room where 32 bits are all there is: std::overflow_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace sk::entries {

enum class Register : std::uint8_t {
  kRax,
  kRcx,
  kRdx,
  kRbx,
  kRsp,
  kRbp,
  kRsi,
  kRdi,
  kR8,
  kR9,
  kR10,
  kR11,
  kR12,
  kR13,
  kR14,
  kR15
};  // as the CPU numbers them

enum class Condition : std::uint8_t { kBelow = 0x82, kAboveOrEqual = 0x83, kEqual = 0x84, kNotEqual = 0x85 };

// A place in the code that jumps and calls name, known or not yet.
using Label = std::size_t;

// Whether a displacement or an immediate has room in an instruction.
constexpr bool fits(std::int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }

class X86Code {
 public:
  // Functions and labels.
  Label label();           // a new one, without a place
  void here(Label label);  // its place is the present one
  std::int64_t place(Label label) const { return labels_[label]; }
  void begin(Label label);                             // a function begins
  void end(Label label, std::string name, bool seen);  // it ends; `seen`: other objects may refer to it

  // Instructions; of 64 bits where the name does not say otherwise.
  void load(Register to, Register base, std::int64_t offset) { memory({0x8b}, to, base, offset); }
  void load_32(Register to, Register base, std::int64_t offset) { memory({0x8b}, to, base, offset, false); }
  void store(Register base, std::int64_t offset, Register value) { memory({0x89}, value, base, offset); }
  void store_number(Register base, std::int64_t offset, std::int64_t number);  // 32 bits with their sign
  void address(Register to, Register base, std::int64_t offset);               // to = base + offset
  void move(Register to, Register source) { registers(0x89, source, to); }
  void number(Register to, std::int64_t value);
  void number_32(Register to, std::int64_t value);                     // 31 bits
  void product(Register to, Register source, std::int64_t factor);     // to = source * factor
  void product_32(Register to, Register source, std::int64_t factor);  // its lower 32 bits, zeros above
  void add_number(Register to, std::int64_t value);                    // of 32 bits
  void add(Register to, Register source) { registers(0x01, source, to); }
  void add_32(Register to, Register source) { registers(0x01, source, to, false); }
  void add_memory(Register to, Register base, std::int64_t offset) { memory({0x03}, to, base, offset); }
  void shift_left(Register to, std::uint8_t bits);
  void compare_memory(Register base, std::int64_t offset, Register value) { memory({0x39}, value, base, offset); }
  void compare_number(Register of, std::int64_t number);      // its 32 bits
  void test(Register of) { registers(0x85, of, of, false); }  // its 32 bits against 0
  void prefetch(Register base, std::int64_t offset);          // a line, past the first-level cache: PREFETCHT2
  void push(Register of) { short_form(0x50, of); }
  void pop(Register of) { short_form(0x58, of); }
  void clock();  // the CPU's counter in RAX; RDX is lost
  void back() { bytes({0xc3}); }

  // Jumps and calls.
  void jump(Label label);
  void jump(Label label, Condition condition);
  void jump_to(Register address) { registers(0xff, digit(4), address, false); }
  void call(Label label);
  void call_outside(const std::string& symbol);          // a function of another object
  void call_memory(Register base, std::int64_t offset);  // a function whose address lies in memory
  void address_of(Register to, Label label);
  void address_of_table(Register to, std::span<const std::int64_t> numbers);  // of 32-bit numbers, read-only

  // A relocatable object of all functions.
  std::vector<std::uint8_t> object();

 private:
  struct Function {
    std::string name;
    bool seen;
    std::int64_t begin, bytes;
  };
  struct Call {
    std::size_t place, symbol;
  };
  struct Place {
    std::size_t place, of;  // a label, or an offset in read-only memory
  };

  static constexpr Register digit(std::uint8_t number) { return static_cast<Register>(number); }
  void bytes(std::initializer_list<std::uint8_t> more) { data_.insert(data_.end(), more); }
  void immediate(std::int64_t number);
  void hole() { data_.insert(data_.end(), 4, 0); }
  void memory(std::initializer_list<std::uint8_t> opcode, Register of, Register base, std::int64_t offset,
              bool wide = true);
  void registers(std::uint8_t opcode, Register of, Register other, bool wide = true);
  void short_form(std::uint8_t opcode, Register of);
  void relative(Register to);  // an address beside the present place, whose distance follows

  std::vector<std::uint8_t> data_, constants_;
  std::vector<Function> functions_;
  std::vector<std::int64_t> labels_;
  std::vector<Place> jumps_, tables_;
  std::vector<Call> calls_;           // of functions outside
  std::vector<std::string> outside_;  // their names, in the order of their first calls
  std::unordered_map<std::string, std::size_t> known_;
};

}  // namespace sk::entries

#include "entries/x86_code.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace sk::entries {

namespace {

constexpr std::size_t kAlign = 16;
constexpr std::uint32_t kPc32 = 2, kPlt32 = 4;  // kinds of relocations
constexpr std::uint8_t kFunction = 2, kSection = 3, kGlobal = 1 << 4;

using Bytes = std::vector<std::uint8_t>;

template <typename Number>
void put(Bytes& to, Number number) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(&number);
  to.insert(to.end(), from, from + sizeof(Number));
}

std::int32_t in_32(std::int64_t number) {
  if (!fits(number)) throw std::overflow_error("a number that has no room in an instruction");
  return static_cast<std::int32_t>(number);
}

std::uint8_t low(Register of) { return static_cast<std::uint8_t>(of) & 7; }
std::uint8_t high(Register of) { return static_cast<std::uint8_t>(of) >> 3; }

void put_symbol(Bytes& to, std::size_t name, std::uint8_t info, std::uint16_t section, std::int64_t value,
                std::int64_t size) {
  put(to, static_cast<std::uint32_t>(name));
  put(to, info);
  put(to, std::uint8_t{0});
  put(to, section);
  put(to, value);
  put(to, size);
}

void put_relocation(Bytes& to, std::size_t place, std::uint32_t kind, std::size_t symbol, std::int64_t addend) {
  put(to, static_cast<std::uint64_t>(place));
  put(to, kind);
  put(to, static_cast<std::uint32_t>(symbol));
  put(to, addend);
}

struct Section {
  std::string_view name;
  std::uint32_t type;
  std::uint64_t flags;
  std::uint64_t align;
  std::uint32_t link, info;
  std::uint64_t entry_bytes;
  const Bytes* data;
};

// An ELF64 object of sections, in their order.
Bytes object_of(std::span<const Section> given) {
  Bytes names{0};
  std::vector<Section> sections(given.begin(), given.end());
  sections.push_back({".shstrtab", 3, 0, 1, 0, 0, 0, &names});
  std::vector<std::uint32_t> at;
  for (const Section& section : sections) {
    at.push_back(static_cast<std::uint32_t>(names.size()));
    names.insert(names.end(), section.name.begin(), section.name.end());
    names.push_back(0);
  }
  Bytes body(64), rows(64);
  for (std::size_t n = 0; n < sections.size(); ++n) {
    const Section& section = sections[n];
    body.resize((body.size() + section.align - 1) / section.align * section.align);
    put(rows, at[n]);
    put(rows, section.type);
    put(rows, section.flags);
    put(rows, std::uint64_t{0});
    put(rows, static_cast<std::uint64_t>(body.size()));
    put(rows, static_cast<std::uint64_t>(section.data->size()));
    put(rows, section.link);
    put(rows, section.info);
    put(rows, section.align);
    put(rows, section.entry_bytes);
    body.insert(body.end(), section.data->begin(), section.data->end());
  }
  body.resize((body.size() + 7) / 8 * 8);
  Bytes head{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  put(head, std::uint16_t{1});   // relocatable
  put(head, std::uint16_t{62});  // x86-64
  put(head, std::uint32_t{1});
  put(head, std::uint64_t{0});
  put(head, std::uint64_t{0});
  put(head, static_cast<std::uint64_t>(body.size()));
  put(head, std::uint32_t{0});
  for (const std::size_t each :
       {std::size_t{64}, std::size_t{0}, std::size_t{0}, std::size_t{64}, rows.size() / 64, rows.size() / 64 - 1}) {
    put(head, static_cast<std::uint16_t>(each));
  }
  std::copy(head.begin(), head.end(), body.begin());
  body.insert(body.end(), rows.begin(), rows.end());
  return body;
}

}  // namespace

// Functions and labels ------------------------------------------------------------------------------------------------

Label X86Code::label() {
  labels_.push_back(-1);
  return labels_.size() - 1;
}

void X86Code::here(Label label) { labels_[label] = static_cast<std::int64_t>(data_.size()); }

void X86Code::begin(Label label) {
  data_.resize((data_.size() + kAlign - 1) / kAlign * kAlign, 0xcc);
  here(label);
}

void X86Code::end(Label label, std::string name, bool seen) {
  const std::int64_t begin = labels_[label];
  functions_.push_back({std::move(name), seen, begin, static_cast<std::int64_t>(data_.size()) - begin});
}

// Instructions --------------------------------------------------------------------------------------------------------

void X86Code::immediate(std::int64_t number) { put(data_, in_32(number)); }

void X86Code::memory(std::initializer_list<std::uint8_t> opcode, Register of, Register base, std::int64_t offset,
                     bool wide) {
  const auto prefix = static_cast<std::uint8_t>((wide ? 8 : 0) | high(of) << 2 | high(base));
  if (prefix != 0) data_.push_back(0x40 | prefix);
  bytes(opcode);
  data_.push_back(static_cast<std::uint8_t>(0x80 | low(of) << 3 | low(base)));
  if (low(base) == low(Register::kRsp)) data_.push_back(0x24);
  immediate(offset);
}

void X86Code::registers(std::uint8_t opcode, Register of, Register other, bool wide) {
  const auto prefix = static_cast<std::uint8_t>((wide ? 8 : 0) | high(of) << 2 | high(other));
  if (prefix != 0) data_.push_back(0x40 | prefix);
  bytes({opcode, static_cast<std::uint8_t>(0xc0 | low(of) << 3 | low(other))});
}

void X86Code::short_form(std::uint8_t opcode, Register of) {
  if (high(of) != 0) data_.push_back(0x41);
  data_.push_back(opcode | low(of));
}

void X86Code::relative(Register to) {
  bytes({static_cast<std::uint8_t>(0x48 | high(to) << 2), 0x8d, static_cast<std::uint8_t>(0x05 | low(to) << 3)});
}

void X86Code::store_number(Register base, std::int64_t offset, std::int64_t number) {
  memory({0xc7}, digit(0), base, offset);
  immediate(number);
}

void X86Code::address(Register to, Register base, std::int64_t offset) {
  if (fits(offset)) {
    memory({0x8d}, to, base, offset);
    return;
  }
  number(to, offset);
  add(to, base);
}

void X86Code::number(Register to, std::int64_t value) {
  if (value == 0) {
    registers(0x31, to, to, false);
  } else if (value > 0 && fits(value)) {
    number_32(to, value);
  } else {
    bytes({static_cast<std::uint8_t>(0x48 | high(to)), static_cast<std::uint8_t>(0xb8 | low(to))});
    put(data_, value);
  }
}

void X86Code::number_32(Register to, std::int64_t value) {
  short_form(0xb8, to);
  immediate(value);
}

void X86Code::product(Register to, Register source, std::int64_t factor) {
  registers(0x69, to, source);
  immediate(factor);
}

void X86Code::product_32(Register to, Register source, std::int64_t factor) {
  registers(0x69, to, source, false);
  immediate(factor);
}

void X86Code::add_number(Register to, std::int64_t value) {
  registers(0x81, digit(0), to);
  immediate(value);
}

void X86Code::shift_left(Register to, std::uint8_t bits) {
  registers(0xc1, digit(4), to);
  data_.push_back(bits);
}

void X86Code::compare_number(Register of, std::int64_t number) {
  registers(0x81, digit(7), of, false);
  immediate(number);
}

void X86Code::prefetch(Register base, std::int64_t offset) { memory({0x0f, 0x18}, digit(3), base, offset, false); }

void X86Code::clock() { bytes({0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0}); }  // RDTSC; SHL RDX, 32; OR

// Jumps and calls -----------------------------------------------------------------------------------------------------

void X86Code::jump(Label label) {
  bytes({0xe9});
  jumps_.push_back({data_.size(), label});
  hole();
}

void X86Code::jump(Label label, Condition condition) {
  bytes({0x0f, static_cast<std::uint8_t>(condition)});
  jumps_.push_back({data_.size(), label});
  hole();
}

void X86Code::call(Label label) {
  bytes({0xe8});
  jumps_.push_back({data_.size(), label});
  hole();
}

void X86Code::call_outside(const std::string& symbol) {
  bytes({0xe8});
  const auto [found, is_new] = known_.try_emplace(symbol, outside_.size());
  if (is_new) outside_.push_back(symbol);
  calls_.push_back({data_.size(), found->second});
  hole();
}

void X86Code::call_memory(Register base, std::int64_t offset) { memory({0xff}, digit(2), base, offset, false); }

void X86Code::address_of(Register to, Label label) {
  relative(to);
  jumps_.push_back({data_.size(), label});
  hole();
}

void X86Code::address_of_table(Register to, std::span<const std::int64_t> numbers) {
  relative(to);
  tables_.push_back({data_.size(), constants_.size()});
  hole();
  for (const std::int64_t each : numbers) put(constants_, in_32(each));
}

// The object ----------------------------------------------------------------------------------------------------------

Bytes X86Code::object() {
  for (const auto& [place, label] : jumps_) {
    const std::int32_t distance = in_32(labels_[label] - static_cast<std::int64_t>(place) - 4);
    std::memcpy(data_.data() + place, &distance, sizeof(distance));
  }
  Bytes strings, symbols, relocations;
  const auto named = [&strings](std::string_view name) {
    const std::size_t at = strings.size();
    strings.insert(strings.end(), name.begin(), name.end());
    strings.push_back(0);
    return at;
  };
  named("");
  std::vector<std::size_t> at;
  for (const Function& function : functions_) at.push_back(named(function.name));
  put_symbol(symbols, 0, 0, 0, 0, 0);
  put_symbol(symbols, 0, kSection, 2, 0, 0);  // the tables
  std::uint32_t local = 2;
  for (const bool seen : {false, true}) {  // those that others see come last
    for (std::size_t n = 0; n < functions_.size(); ++n) {
      const Function& function = functions_[n];
      if (function.seen != seen) continue;
      put_symbol(symbols, at[n], seen ? kGlobal | kFunction : kFunction, 1, function.begin, function.bytes);
      if (!seen) ++local;
    }
  }
  const std::size_t first = 2 + functions_.size();  // of the functions outside
  for (const std::string& symbol : outside_) put_symbol(symbols, named(symbol), kGlobal, 0, 0, 0);
  for (const auto& [place, offset] : tables_) {
    put_relocation(relocations, place, kPc32, 1, static_cast<std::int64_t>(offset) - 4);
  }
  for (const auto& [place, symbol] : calls_) put_relocation(relocations, place, kPlt32, first + symbol, -4);
  const std::array<Section, 5> sections{{{".text", 1, 6, kAlign, 0, 0, 0, &data_},
                                         {".rodata", 1, 2, kAlign, 0, 0, 0, &constants_},
                                         {".symtab", 2, 0, 8, 4, local, 24, &symbols},
                                         {".strtab", 3, 0, 1, 0, 0, 0, &strings},
                                         {".rela.text", 4, 0, 8, 3, 1, 24, &relocations}}};
  return object_of(sections);
}

}  // namespace sk::entries

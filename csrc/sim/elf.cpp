// See elf.h. Field offsets are those of the System V ABI's 64-bit structures, little-endian.
#include "sim/elf.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace sk::sim {
namespace {

constexpr std::size_t kHeaderBytes = 64, kProgramHeaderBytes = 56, kSectionHeaderBytes = 64, kSymbolBytes = 24;
constexpr std::uint64_t kRiscv = 243, kExecutable = 2, kShared = 3;
constexpr std::uint32_t kLoad = 1, kDynamic = 2, kInterpreter = 3, kSymbolTable = 2;
constexpr std::uint64_t kFlagsQuadFloat = 6, kFlagsEmbedded = 8;  // of e_flags

template <class T>
std::uint64_t load(std::span<const std::uint8_t> file, std::size_t offset) {
  T value{};
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

// Whether [offset, offset + bytes) lies in the file, without overflow.
bool inside(std::span<const std::uint8_t> file, std::uint64_t offset, std::uint64_t bytes) {
  return offset <= file.size() && bytes <= file.size() - offset;
}

std::string hex(std::uint64_t value) {
  std::array<char, 17> digits{};
  std::size_t at = digits.size() - 1;
  do {
    digits[--at] = "0123456789abcdef"[value & 15];
    value >>= 4;
  } while (value != 0);
  return std::string("0x") + (digits.data() + at);
}

Problem check_identity(std::span<const std::uint8_t> file) {
  if (file.size() < kHeaderBytes) {
    return {"too short for an ELF header", "file", "at least 64 bytes", std::to_string(file.size())};
  }
  if (std::memcmp(file.data(),
                  "\x7f"
                  "ELF",
                  4) != 0) {
    return {"not an ELF file", "e_ident", "7f 45 4c 46", "another start"};
  }
  if (file[4] != 2) return {"not a 64-bit ELF file", "EI_CLASS", "2", std::to_string(file[4])};
  if (file[5] != 1) return {"not little-endian", "EI_DATA", "1", std::to_string(file[5])};
  if (file[6] != 1) return {"unknown ELF version", "EI_VERSION", "1", std::to_string(file[6])};
  const std::uint64_t machine = load<std::uint16_t>(file, 18);
  if (machine != kRiscv) return {"not for RISC-V", "e_machine", "243", std::to_string(machine)};
  const std::uint64_t type = load<std::uint16_t>(file, 16);
  if (type != kExecutable && type != kShared) {
    return {"not an executable (objects must be linked first)", "e_type", "2 (EXEC)", std::to_string(type)};
  }
  const std::uint64_t flags = load<std::uint32_t>(file, 48);
  if ((flags & kFlagsQuadFloat) == kFlagsQuadFloat || (flags & kFlagsEmbedded) != 0) {
    return {"made for another calling convention", "e_flags", "without quad-float and RVE", hex(flags)};
  }
  return {};
}

Problem check_segment(std::span<const std::uint8_t> file, std::size_t header, const std::string& name,
                      Segment& segment) {
  segment.file_offset = load<std::uint64_t>(file, header + 8);
  segment.address = load<std::uint64_t>(file, header + 24);
  segment.file_bytes = load<std::uint64_t>(file, header + 32);
  segment.memory_bytes = load<std::uint64_t>(file, header + 40);
  if (!inside(file, segment.file_offset, segment.file_bytes)) {
    return {"reaches beyond the end of the file", name, "at most " + hex(file.size()),
            hex(segment.file_offset) + " + " + hex(segment.file_bytes)};
  }
  if (segment.memory_bytes < segment.file_bytes) {
    return {"smaller in memory than in the file", name + ", p_memsz", "at least " + hex(segment.file_bytes),
            hex(segment.memory_bytes)};
  }
  if (segment.address > ~segment.memory_bytes) {
    return {"wraps around the end of the address space", name, "",
            hex(segment.address) + " + " + hex(segment.memory_bytes)};
  }
  return {};
}

Problem read_segments(std::span<const std::uint8_t> file, ElfImage& image) {
  const std::uint64_t table = load<std::uint64_t>(file, 32);
  const std::uint64_t entry_bytes = load<std::uint16_t>(file, 54);
  const std::uint64_t count = load<std::uint16_t>(file, 56);
  if (count == 0) return {"no program headers: nothing to load", "e_phnum", "at least 1", "0"};
  if (entry_bytes != kProgramHeaderBytes) {
    return {"program headers of an unknown size", "e_phentsize", "56", std::to_string(entry_bytes)};
  }
  if (!inside(file, table, count * kProgramHeaderBytes)) {
    return {"the program headers reach beyond the end of the file", "e_phoff", "at most " + hex(file.size()),
            hex(table)};
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t header = table + i * kProgramHeaderBytes;
    const auto type = static_cast<std::uint32_t>(load<std::uint32_t>(file, header));
    const std::string name = "program header " + std::to_string(i);
    if (type == kInterpreter || type == kDynamic) {
      return {"needs a dynamic linker", name, "a static executable", type == kDynamic ? "PT_DYNAMIC" : "PT_INTERP"};
    }
    if (type != kLoad) continue;
    Segment segment;
    if (Problem problem = check_segment(file, header, name, segment); !problem.message.empty()) return problem;
    if (segment.memory_bytes != 0) image.segments.push_back(segment);
  }
  if (image.segments.empty()) return {"no loadable segment", "program headers", "a PT_LOAD segment", "none"};
  std::vector<Segment> sorted = image.segments;
  std::sort(sorted.begin(), sorted.end(), [](const Segment& a, const Segment& b) { return a.address < b.address; });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const std::uint64_t end = sorted[i - 1].address + sorted[i - 1].memory_bytes;
    if (sorted[i].address < end) {
      return {"loadable segments overlap", "program headers", "from " + hex(end) + " on", hex(sorted[i].address)};
    }
  }
  return {};
}

// Looks for tohost and fromhost in the symbol table whose section header stands at `header`.
Problem read_symbols(std::span<const std::uint8_t> file, std::size_t header, std::uint64_t section_table,
                     std::uint64_t section_count, ElfImage& image) {
  const std::uint64_t offset = load<std::uint64_t>(file, header + 24);
  const std::uint64_t bytes = load<std::uint64_t>(file, header + 32);
  const std::uint64_t link = load<std::uint32_t>(file, header + 40);
  const std::uint64_t entry_bytes = load<std::uint64_t>(file, header + 56);
  if (entry_bytes != kSymbolBytes) {
    return {"symbols of an unknown size", "sh_entsize", "24", std::to_string(entry_bytes)};
  }
  if (!inside(file, offset, bytes)) {
    return {"the symbol table reaches beyond the end of the file", "sh_offset", "", hex(offset)};
  }
  if (link >= section_count) {
    return {"the symbol table names no string table", "sh_link", "below " + std::to_string(section_count),
            std::to_string(link)};
  }
  const std::size_t strings_header = section_table + link * kSectionHeaderBytes;
  const std::uint64_t strings = load<std::uint64_t>(file, strings_header + 24);
  const std::uint64_t strings_bytes = load<std::uint64_t>(file, strings_header + 32);
  if (!inside(file, strings, strings_bytes)) {
    return {"the string table reaches beyond the end of the file", "sh_offset", "", hex(strings)};
  }
  const auto* text = reinterpret_cast<const char*>(file.data() + strings);
  for (std::uint64_t at = offset; at + kSymbolBytes <= offset + bytes; at += kSymbolBytes) {
    const std::uint64_t name = load<std::uint32_t>(file, at);
    const std::uint64_t section = load<std::uint16_t>(file, at + 6);
    if (name >= strings_bytes || section == 0) continue;  // a bad name of an unrelated symbol does no harm
    const std::string_view word(text + name, strnlen(text + name, strings_bytes - name));
    if (word == "tohost") image.tohost = load<std::uint64_t>(file, at + 8);
    if (word == "fromhost") image.fromhost = load<std::uint64_t>(file, at + 8);
  }
  return {};
}

// A stripped file may still have a section called .tohost, which starts with the word.
Problem find_tohost_section(std::span<const std::uint8_t> file, std::uint64_t table, std::uint64_t count,
                            ElfImage& image) {
  const std::uint64_t names_index = load<std::uint16_t>(file, 62);
  if (names_index == 0) return {};
  if (names_index >= count) {
    return {"the section names' index is out of range", "e_shstrndx", "below " + std::to_string(count),
            std::to_string(names_index)};
  }
  const std::size_t names_header = table + names_index * kSectionHeaderBytes;
  const std::uint64_t names = load<std::uint64_t>(file, names_header + 24);
  const std::uint64_t names_bytes = load<std::uint64_t>(file, names_header + 32);
  if (!inside(file, names, names_bytes)) {
    return {"the section names reach beyond the end of the file", "sh_offset", "", hex(names)};
  }
  const auto* text = reinterpret_cast<const char*>(file.data() + names);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t header = table + i * kSectionHeaderBytes;
    const std::uint64_t name = load<std::uint32_t>(file, header);
    if (name >= names_bytes) continue;
    if (std::string_view(text + name, strnlen(text + name, names_bytes - name)) == ".tohost") {
      image.tohost = load<std::uint64_t>(file, header + 16);
    }
  }
  return {};
}

Problem read_sections(std::span<const std::uint8_t> file, ElfImage& image) {
  const std::uint64_t table = load<std::uint64_t>(file, 40);
  const std::uint64_t entry_bytes = load<std::uint16_t>(file, 58);
  const std::uint64_t count = load<std::uint16_t>(file, 60);
  if (count == 0) return {};  // stripped of sections: legal
  if (entry_bytes != kSectionHeaderBytes) {
    return {"section headers of an unknown size", "e_shentsize", "64", std::to_string(entry_bytes)};
  }
  if (!inside(file, table, count * kSectionHeaderBytes)) {
    return {"the section headers reach beyond the end of the file", "e_shoff", "at most " + hex(file.size()),
            hex(table)};
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t header = table + i * kSectionHeaderBytes;
    if (load<std::uint32_t>(file, header + 4) != kSymbolTable) continue;
    if (Problem problem = read_symbols(file, header, table, count, image); !problem.message.empty()) {
      problem.location = "section " + std::to_string(i) + ", " + problem.location;
      return problem;
    }
  }
  return image.tohost ? Problem{} : find_tohost_section(file, table, count, image);
}

}  // namespace

Problem read_elf(std::span<const std::uint8_t> file, ElfImage& image) {
  image = {};
  if (Problem problem = check_identity(file); !problem.message.empty()) return problem;
  image.entry = load<std::uint64_t>(file, 24);
  if (image.entry % 2 != 0) return {"the entry is not aligned to an instruction", "e_entry", "even", hex(image.entry)};
  if (Problem problem = read_segments(file, image); !problem.message.empty()) return problem;
  return read_sections(file, image);
}

}  // namespace sk::sim

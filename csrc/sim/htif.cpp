// The host interface: what writes to tohost mean.
//
// Model: the word's top byte is a device, the next a command, the rest a payload. Device 0 is the system: an odd
// payload ends the run with code payload >> 1, an even one is the address of a block {number, arguments...} of a call,
// of which write and exit are served. Device 1, command 1 prints the payload's low byte. Served requests clear tohost;
// calls are answered with 1 in fromhost.
#include <cstring>

#include "sim/machine.h"

namespace sk::sim {
namespace {

constexpr std::size_t kConsoleMax = std::size_t{16} << 20;
constexpr std::uint64_t kPayloadMask = (std::uint64_t{1} << 48) - 1;
constexpr std::uint64_t kCallWrite = 64, kCallExit = 93, kNotServed = ~std::uint64_t{37};  // -38, ENOSYS

}  // namespace

void Machine::finish(End end, const Hart& hart, std::uint64_t code) {
  end_ = end;
  end_hart_ = hart.id;
  exit_code_ = code;
}

std::string Machine::take_console() {
  std::string text;
  text.swap(console_);
  console_cut_ = false;
  return text;
}

void Machine::print(std::string_view text) {
  const std::size_t room = kConsoleMax - console_.size();
  console_.append(text.substr(0, room));
  if (text.size() > room && !console_cut_) {
    console_cut_ = true;
    console_ += "\n[console output beyond 16 MiB left out]\n";
  }
}

bool Machine::system_call(std::uint64_t block, const Hart& hart) {
  const std::uint64_t offset = block - config_.memory_base;
  std::array<std::uint64_t, 4> words{};  // number, three arguments
  if (offset > ram_.bytes() - sizeof(words)) return false;
  std::memcpy(words.data(), ram_.data() + offset, sizeof(words));
  std::uint64_t result = kNotServed;
  if (words[0] == kCallExit) {
    finish(End::exited, hart, words[1]);
    return true;
  }
  if (words[0] == kCallWrite) {
    const std::uint64_t text = words[2] - config_.memory_base;
    if (text > ram_.bytes() || words[3] > ram_.bytes() - text) return false;
    print({reinterpret_cast<const char*>(ram_.data() + text), static_cast<std::size_t>(words[3])});
    result = words[3];
  }
  std::memcpy(ram_.data() + offset, &result, sizeof(result));
  if (fromhost_offset_ != kNoAddress) {
    const std::uint64_t answer = 1;
    std::memcpy(ram_.data() + fromhost_offset_, &answer, sizeof(answer));
  }
  return true;
}

void Machine::tohost_written(const Hart& hart) {
  std::uint64_t request = 0;
  std::memcpy(&request, ram_.data() + tohost_offset_, sizeof(request));
  if (request == 0) return;
  const std::uint64_t device = request >> 56;
  const std::uint64_t command = request >> 48 & 255;
  const std::uint64_t payload = request & kPayloadMask;
  if (device == 0 && command == 0 && (payload & 1) != 0) {
    finish(End::exited, hart, payload >> 1);
    return;
  }
  bool served = false;
  if (device == 0 && command == 0) {
    served = system_call(payload, hart);
  } else if (device == 1 && command == 1) {
    const char letter = static_cast<char>(payload & 255);
    print({&letter, 1});
    served = true;
  }
  if (!served) return finish(End::bad_request, hart, request);
  std::memset(ram_.data() + tohost_offset_, 0, sizeof(request));
}

}  // namespace sk::sim

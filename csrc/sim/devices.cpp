// Loads and stores off the fast path: the last bytes of memory, and the core-local interruptor (CLINT).
//
// The CLINT has, from 0x2000000 on, one 4-byte msip per hart; from 0x4000, one 8-byte mtimecmp per hart; at 0xbff8,
// mtime. Words of 8 bytes may be accessed as aligned halves. Everything else outside memory is an access fault.
#include <cstring>

#include "sim/machine.h"

namespace sk::sim {
namespace {

constexpr std::uint64_t kClintBytes = 0xc000, kTimeCompare = 0x4000, kTime = 0xbff8;

// Part `bytes` at `offset` of an 8-byte word, read and replaced.
std::uint64_t part_of(std::uint64_t word, std::uint64_t offset, unsigned bytes) {
  const std::uint64_t shifted = word >> (8 * (offset & 7));
  return bytes == 8 ? shifted : shifted & 0xffffffff;
}

std::uint64_t with_part(std::uint64_t word, std::uint64_t offset, unsigned bytes, std::uint64_t part) {
  if (bytes == 8) return part;
  const unsigned shift = 8 * (offset & 7);
  return (word & ~(std::uint64_t{0xffffffff} << shift)) | (part & 0xffffffff) << shift;
}

}  // namespace

bool Machine::load_slow(std::uint64_t address, unsigned bytes, std::uint64_t now, std::uint64_t& value) const {
  const std::uint64_t offset = address - config_.memory_base;
  if (offset < ram_.bytes()) {
    if (offset > ram_.bytes() - bytes) return false;
    std::memcpy(&value, ram_.data() + offset, bytes);
    return true;
  }
  if (address - kClintBase >= kClintBytes) return false;
  return clint_load(address - kClintBase, bytes, now, value);
}

bool Machine::store_slow(std::uint64_t address, unsigned bytes, std::uint64_t value, std::uint64_t now) {
  const std::uint64_t offset = address - config_.memory_base;
  if (offset < ram_.bytes()) {
    if (offset > ram_.bytes() - bytes) return false;
    std::memcpy(ram_.data() + offset, &value, bytes);
    return true;
  }
  if (address - kClintBase >= kClintBytes) return false;
  return clint_store(address - kClintBase, bytes, value, now);
}

bool Machine::clint_load(std::uint64_t offset, unsigned bytes, std::uint64_t now, std::uint64_t& value) const {
  if (bytes < 4 || offset % bytes != 0) return false;
  if (offset < kTimeCompare) {
    if (bytes != 4 || offset / 4 >= harts_.size()) return false;
    value = software_interrupt_[offset / 4];
    return true;
  }
  if (offset >= kTime) {
    value = part_of(now + mtime_offset_, offset, bytes);
    return true;
  }
  const std::uint64_t hart = (offset - kTimeCompare) / 8;
  if (hart >= harts_.size()) return false;
  value = part_of(time_compare_[hart], offset, bytes);
  return true;
}

bool Machine::clint_store(std::uint64_t offset, unsigned bytes, std::uint64_t value, std::uint64_t now) {
  if (bytes < 4 || offset % bytes != 0) return false;
  if (offset < kTimeCompare) {
    if (bytes != 4 || offset / 4 >= harts_.size()) return false;
    software_interrupt_[offset / 4] = value & 1;
    return true;
  }
  if (offset >= kTime) {
    mtime_offset_ = with_part(now + mtime_offset_, offset, bytes, value) - now;
    return true;
  }
  const std::uint64_t hart = (offset - kTimeCompare) / 8;
  if (hart >= harts_.size()) return false;
  time_compare_[hart] = with_part(time_compare_[hart], offset, bytes, value);
  return true;
}

}  // namespace sk::sim

#include "runtime/memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

namespace sk {

namespace {

std::uintptr_t round_up(std::uintptr_t value, std::uintptr_t unit) noexcept { return (value + unit - 1) / unit * unit; }

}  // namespace

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapping_ = std::exchange(other.mapping_, nullptr);
    mapping_bytes_ = std::exchange(other.mapping_bytes_, 0);
  }
  return *this;
}

bool AlignedBuffer::allocate(std::size_t bytes, std::size_t alignment) noexcept {
  reset();
  if (bytes > SIZE_MAX / 2) return false;  // keeps the rounding below from wrapping
  if (bytes >= kHugePageBytes) {
    const std::size_t mapping_bytes = round_up(bytes, kHugePageBytes) + kHugePageBytes;
    void* mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return false;
    mapping_ = mapping;
    mapping_bytes_ = mapping_bytes;
    data_ = reinterpret_cast<std::uint8_t*>(round_up(reinterpret_cast<std::uintptr_t>(mapping), kHugePageBytes));
    advise_huge_pages(data_, round_up(bytes, kHugePageBytes));
  } else {
    const std::size_t rounded = round_up(bytes == 0 ? 1 : bytes, alignment);
    void* block = std::aligned_alloc(alignment, rounded);
    if (block == nullptr) return false;
    std::memset(block, 0, rounded);
    data_ = static_cast<std::uint8_t*>(block);
  }
  size_ = bytes;
  return true;
}

void AlignedBuffer::reset() noexcept {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_bytes_);
  } else {
    std::free(data_);
  }
  data_ = nullptr;
  size_ = 0;
  mapping_ = nullptr;
  mapping_bytes_ = 0;
}

Workspace::~Workspace() {
  for (const auto& place : blocks_) delete place.load(std::memory_order_relaxed);
}

AlignedBuffer* Workspace::borrow(std::size_t bytes) noexcept {
  for (auto& place : blocks_) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    AlignedBuffer* block = place.exchange(nullptr, std::memory_order_acquire);
    if (block != nullptr && block->size() >= bytes) return block;
    release(block);  // there are larger kernels by now
  }
  return allocate(bytes);
}

void Workspace::give_back(AlignedBuffer* block) noexcept {
  for (auto& place : blocks_) {
    AlignedBuffer* none = nullptr;
    if (place.compare_exchange_strong(none, block, std::memory_order_release)) return;
  }
  release(block);
}

// Sizes that grow step by step do not cost new pages at each: those that are not written to take no memory.
AlignedBuffer* Workspace::allocate(std::size_t bytes) noexcept {
  std::size_t largest = largest_.load(std::memory_order_relaxed);
  const std::size_t wanted = bytes <= largest ? largest : std::max(bytes, largest + largest / 2);
  std::unique_ptr<AlignedBuffer> block(new (std::nothrow) AlignedBuffer);
  if (block == nullptr || !(block->allocate(wanted, kApartBytes) || block->allocate(bytes, kApartBytes)))
    return nullptr;
  while (largest < block->size()) {
    if (largest_.compare_exchange_strong(largest, block->size(), std::memory_order_relaxed)) break;
  }
  bytes_.fetch_add(block->size(), std::memory_order_relaxed);
  return block.release();
}

void Workspace::release(AlignedBuffer* block) noexcept {
  if (block == nullptr) return;
  bytes_.fetch_sub(block->size(), std::memory_order_relaxed);
  delete block;
}

void advise_huge_pages(const void* data, std::size_t bytes) noexcept {
  const auto first = round_up(reinterpret_cast<std::uintptr_t>(data), kHugePageBytes);
  const auto last = (reinterpret_cast<std::uintptr_t>(data) + bytes) / kHugePageBytes * kHugePageBytes;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

std::size_t move_to_node(const void* data, std::size_t bytes, int node) noexcept {
  constexpr std::size_t kBatch = 512;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t last = round_up(reinterpret_cast<std::uintptr_t>(data) + bytes, page);
  std::array<std::uintptr_t, kBatch> pages;
  std::array<int, kBatch> nodes, found;
  nodes.fill(node);
  std::size_t there = 0;
  for (std::uintptr_t next = reinterpret_cast<std::uintptr_t>(data) / page * page; bytes != 0 && next < last;) {
    std::size_t count = 0;
    for (; count < kBatch && next < last; next += page) pages[count++] = next;
    if (syscall(SYS_move_pages, 0, count, pages.data(), nodes.data(), found.data(), MPOL_MF_MOVE) < 0) break;
    there += static_cast<std::size_t>(std::count(found.begin(), found.begin() + count, node));
  }
  return there;
}

}  // namespace sk

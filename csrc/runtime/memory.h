// Aligned, zero-filled memory for arenas, scratch, constants and progress counters; what launches of several kernels
// borrow.
//
// Model: small blocks come from the C heap, blocks of 2 MB and more are mapped on a huge-page boundary and offered to
// the kernel as huge pages (fewer TLB misses when a kernel streams weights). Invariant: every block is 64-byte aligned
// and zero.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/platform.h"

namespace sk {

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kApartBytes = 128;  // two lines: the adjacent-line prefetcher couples pairs
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

class AlignedBuffer {
 public:
  AlignedBuffer() noexcept = default;
  ~AlignedBuffer() { reset(); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  // Gives up the present block for a zero-filled one; false where there is no memory (the buffer is then empty).
  [[nodiscard]] bool allocate(std::size_t bytes, std::size_t alignment = kLineBytes) noexcept;
  void reset() noexcept;

  std::uint8_t* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  void* mapping_ = nullptr;  // null for heap blocks
  std::size_t mapping_bytes_ = 0;
};

// Memory of launches: what kernels that share a workspace work on in turn. Each borrows a block for the length of a
// run, the last one given back if it can; so there are as many as ran at the same time, each for the largest kernel.
// Nothing is locked: a fork finds it in order, but for blocks that other threads had.
class Workspace {
 public:
  Workspace() noexcept = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // A block of at least so many bytes, whatever is in it; null where there is no memory.
  [[nodiscard]] AlignedBuffer* borrow(std::size_t bytes) noexcept;
  void give_back(AlignedBuffer* block) noexcept;
  // Of all blocks, borrowed ones included.
  std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kBlocks = 16;  // that are kept: more runs at a time get new ones

  AlignedBuffer* allocate(std::size_t bytes) noexcept;
  void release(AlignedBuffer* block) noexcept;

  std::array<Atomic<AlignedBuffer*>, kBlocks> blocks_{};
  Atomic<std::size_t> largest_{0};  // that was ever asked for
  Atomic<std::size_t> bytes_{0};
};

// Offers the whole huge pages inside [data, data + bytes) to the kernel; a hint, failure is no error.
void advise_huge_pages(const void* data, std::size_t bytes) noexcept;

// Moves the pages of [data, data + bytes) that are in memory to a NUMA node, unless another process maps them. Returns
// how many of them lie there then: none where the system refuses.
std::size_t move_to_node(const void* data, std::size_t bytes, int node) noexcept;

}  // namespace sk

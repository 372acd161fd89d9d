// Aligned, zero-filled memory for arenas, scratch, constants and progress counters.
//
// Model: small blocks come from the C heap, blocks of 2 MB and more are mapped on a huge-page boundary and offered to
// the kernel as huge pages (fewer TLB misses when a kernel streams weights). Invariant: every block is 64-byte aligned
// and zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sk {

inline constexpr std::size_t kLineBytes = 64;
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

// Offers the whole huge pages inside [data, data + bytes) to the kernel; a hint, failure is no error.
void advise_huge_pages(const void* data, std::size_t bytes) noexcept;

// Moves the pages of [data, data + bytes) that are in memory to a NUMA node, unless another process maps them. Returns
// how many of them lie there then: none where the system refuses.
std::size_t move_to_node(const void* data, std::size_t bytes, int node) noexcept;

}  // namespace sk

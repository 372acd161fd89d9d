// Memory that a simulation touches all over, in large pages of the system.
//
// Model: dozens of cores take turns every few instructions, and what each touches lies apart from what the others do:
// with pages of 4 KiB the host's address translation misses at every turn. Blocks of some size are aligned to large
// pages and the system is asked to back them so. It is a hint: where it gives none, nothing else changes.
#pragma once

#include <cstddef>
#include <new>

#include "runtime/memory.h"

namespace sk::sim {

inline constexpr std::size_t kHugeBlockBytes = std::size_t{256} << 10;  // smaller ones are not worth a page

constexpr std::size_t whole_huge_pages(std::size_t bytes) {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

// For containers whose blocks rarely change.
template <class T>
struct HugePages {
  using value_type = T;
  static_assert(alignof(T) <= kHugePageBytes);

  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>& /*other*/) {}  // NOLINT(google-explicit-constructor): as allocators convert

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kHugeBlockBytes) return static_cast<T*>(::operator new(bytes, std::align_val_t{alignof(T)}));
    void* const memory = ::operator new(whole_huge_pages(bytes), std::align_val_t{kHugePageBytes});
    advise_huge_pages(memory, whole_huge_pages(bytes));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) {
    const bool huge = count * sizeof(T) >= kHugeBlockBytes;
    ::operator delete(memory, std::align_val_t{huge ? kHugePageBytes : alignof(T)});
  }
  bool operator==(const HugePages& /*other*/) const { return true; }
};

}  // namespace sk::sim

// Arithmetic of the engines, one set of functions per instruction set of the host.
//
// Model: lanes.inl, elementwise.inl, reduce.inl, cast.inl and cube.inl are compiled once per instruction set, each time
// in a namespace of its own (kernels_<isa>.cpp). `data` moves bytes and needs no such variants (move.cpp,
// vector_move.cpp). Callers have checked everything: functions here touch the footprint and nothing else, and cannot
// fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "sim/engines/execute.h"

namespace sk::sim {

struct Kernels {
  void (*vector)(const Command&, std::uint8_t* ub);
  void (*mmad)(const Command&, const Target&, CoreMemory&);
  void (*fix)(const Command&, const Target&, CoreMemory&, std::uint8_t* dst);
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

// Commands that only move bytes.
void move_data(const Command& command, const Target& target, CoreMemory& local, GlobalMemory& global);
void move_vector(const Command& command, std::uint8_t* ub);
bool moves_vector(Opcode opcode);

// The first byte of the image that l1_im2col needs and that was never written, or `image end` where all were.
std::uint64_t im2col_unwritten(const Command& command, const LocalMemory& l1);

// Room that a thread keeps from command to command, aligned for the widest vectors.
class Scratch {
 public:
  template <class T>
  T* room(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes > bytes_) {
      room_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      bytes_ = bytes;
    }
    return static_cast<T*>(static_cast<void*>(room_.get()));
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> room_;
  std::size_t bytes_ = 0;
};

}  // namespace sk::sim

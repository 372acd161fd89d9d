// See marker_table.h.
#include "sim/device/marker_table.h"

#include <sys/mman.h>
#include <unistd.h>

namespace sk::sim {

// Row by row, the system would be interrupted for a page every few rows, in the midst of control code.
void MarkerPool::next_piece() {
  if (used_++ < pieces_.size()) return;
  Piece& piece = pieces_.emplace_back();
  piece.reserve(used_ == 1 ? kFirstRows : kOtherRows);
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(piece.data());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t end = (begin + piece.capacity() * sizeof(MarkerStats)) / page * page;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE);  // a hint: may be refused
#endif
}

}  // namespace sk::sim

// Acknowledgements that took another link than their chunk: they are lost with that link, while the chunk's own lives.
// One instance per link, for those that went over it. It keeps the last few, as many as can be on their way.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include "base/frame.h"

namespace r2ccl {

class Detours {
 public:
  void note(const ChunkId& id, size_t keep) {
    if (ids_.size() < keep) {
      ids_.push_back(id);
    } else {
      ids_[oldest_++ % keep] = id;
    }
  }
  // All that may have been lost, to be told again: twice is harmless.
  std::vector<ChunkId> take() noexcept {
    oldest_ = 0;
    return std::exchange(ids_, {});
  }

 private:
  std::vector<ChunkId> ids_;
  size_t oldest_ = 0;
};

}  // namespace r2ccl

// Memory for a call's partial results. A device takes long to give memory out, so blocks are kept for the next call;
// the host's allocator does that itself.
#pragma once
#include <bit>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace r2ccl {

// Threads: any.
class ScratchPool {
 public:
  explicit ScratchPool(Device& device) : device_(device) { free_.reserve(kKept); }
  ~ScratchPool() {
    for (const Block& block : free_) device_.release(block.memory);
  }
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  bool immediate() const noexcept { return device_.immediate(); }
  // nullptr: there is none left.
  void* take(size_t bytes) {
    if (immediate()) return device_.allocate(bytes);
    const size_t size = std::bit_ceil(bytes < kLeastBytes ? kLeastBytes : bytes);
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].bytes != size) continue;
      void* memory = free_[i].memory;
      free_.erase(free_.begin() + static_cast<ptrdiff_t>(i));
      return memory;
    }
    return device_.allocate(size);
  }
  // bytes: what it was taken for.
  void give(void* memory, size_t bytes) noexcept {
    if (!memory) return;
    if (immediate()) return device_.release(memory);
    std::lock_guard lock(mutex_);
    if (free_.size() == kKept) {
      device_.release(free_.front().memory);  // the one that was not needed for longest
      free_.erase(free_.begin());
    }
    free_.push_back({memory, std::bit_ceil(bytes < kLeastBytes ? kLeastBytes : bytes)});
  }

 private:
  static constexpr size_t kLeastBytes = 64 << 10, kKept = 8;
  struct Block {
    void* memory;
    size_t bytes;
  };

  Device& device_;
  std::mutex mutex_;
  std::vector<Block> free_;
};

}  // namespace r2ccl

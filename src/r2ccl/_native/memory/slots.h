// Staging memory of one peer: slots of one chunk each, for chunks that cannot be applied when they arrive, and copies
// of small messages that the sender retains until they are acknowledged. Grows to its bound on demand, never beyond.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/frame.h"
#include "device/device.h"

namespace r2ccl {

struct Slot {
  FrameHeader header{};
  uint8_t* data = nullptr;
  Slot* next = nullptr;
};

class SlotPool {
 public:
  SlotPool(Device& device, size_t slot_bytes, uint32_t capacity) noexcept
      : device_(device), slot_bytes_(slot_bytes), capacity_(capacity) {}
  ~SlotPool() {
    for (auto& slot : all_) device_.release_staging(slot->data);
  }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // nullptr: the bound is reached, or there is no memory.
  Slot* take() noexcept {
    if (free_) {
      Slot* slot = free_;
      free_ = slot->next;
      slot->next = nullptr;
      return slot;
    }
    if (all_.size() >= capacity_) return nullptr;
    void* data = device_.allocate_staging(slot_bytes_);
    if (!data) return nullptr;
    all_.push_back(std::make_unique<Slot>());
    all_.back()->data = static_cast<uint8_t*>(data);
    return all_.back().get();
  }
  void give(Slot* slot) noexcept {
    slot->next = free_;
    free_ = slot;
  }
  size_t bytes() const noexcept { return all_.size() * slot_bytes_; }

 private:
  Device& device_;
  size_t slot_bytes_;
  uint32_t capacity_;
  std::vector<std::unique_ptr<Slot>> all_;
  Slot* free_ = nullptr;
};

}  // namespace r2ccl

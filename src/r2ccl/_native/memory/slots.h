// Staging memory of one peer: slots of one chunk each, for chunks that cannot be applied when they arrive, and copies
// of small messages that the sender retains until they are acknowledged. Grows to its bound on demand, never beyond.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/frame.h"
#include "device/device.h"
#include "memory/registrations.h"
#include "transport/transport.h"

namespace r2ccl {

struct Slot {
  FrameHeader header{};
  uint8_t* memory = nullptr;
  uint8_t* data = nullptr;  // in there, where whoever took it asked for
  int32_t window = -1;      // its number among the slots of a window (exec/window.h), and none of a pool
  bool filled = false;      // by a device, which takes its time: what is to be sent is there
  Lent lent;                // data lies where it arrived, on a device; and none of a pool
  Slot* next = nullptr;
};

class SlotPool {
 public:
  // nics: which may read slots where they lie; nullptr: none. It outlives the pool.
  SlotPool(Device& device, size_t slot_bytes, uint32_t capacity, Registrations* nics = nullptr) noexcept
      : device_(device),
        nics_(nics),
        slot_bytes_(device.immediate() ? slot_bytes : (slot_bytes + kMostOffset + kLine - 1) / kLine * kLine),
        capacity_(capacity) {}
  ~SlotPool() {
    for (const Slab& slab : slabs_) {
      if (nics_) nics_->remove(slab.memory, slab.bytes);
      device_.release_staging(slab.memory);
    }
  }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // Of a slot's beginning, at most. A device moves bytes fastest between addresses that agree in their last bits.
  static constexpr size_t kMostOffset = 15;
  static size_t offset_like(const void* address) noexcept { return reinterpret_cast<uintptr_t>(address) & kMostOffset; }

  // nullptr: the bound is reached, or there is no memory. offset: only where a device is not immediate.
  Slot* take(size_t offset = 0) noexcept {
    if (free_) {
      Slot* slot = free_;
      free_ = slot->next;
      slot->next = nullptr;
      slot->data = slot->memory + offset;
      return slot;
    }
    if (all_.size() >= capacity_) return nullptr;
    // The memory that a device shares with links takes long to get.
    const uint32_t more =
        device_.immediate() ? 1 : std::min<uint32_t>(kSlab, capacity_ - static_cast<uint32_t>(all_.size()));
    const size_t bytes = more * slot_bytes_;
    void* data = device_.allocate_staging(bytes);
    if (!data) return nullptr;
    slabs_.push_back({data, bytes});
    if (nics_) nics_->add(data, bytes, {});
    for (uint32_t i = 0; i < more; ++i) {
      all_.push_back(std::make_unique<Slot>());
      all_.back()->memory = static_cast<uint8_t*>(data) + i * slot_bytes_;
      if (i + 1 < more) give(all_.back().get());
    }
    all_.back()->data = all_.back()->memory + offset;
    return all_.back().get();
  }
  void give(Slot* slot) noexcept {
    slot->next = free_;
    free_ = slot;
  }
  size_t bytes() const noexcept { return all_.size() * slot_bytes_; }

 private:
  static constexpr uint32_t kSlab = 8;
  static constexpr size_t kLine = 64;

  struct Slab {
    void* memory;
    size_t bytes;
  };

  Device& device_;
  Registrations* nics_;
  size_t slot_bytes_;
  uint32_t capacity_;
  std::vector<std::unique_ptr<Slot>> all_;
  std::vector<Slab> slabs_;
  Slot* free_ = nullptr;
};

// Slots for what links lend: they have no memory of their own.
class LentSlots {
 public:
  Slot* take(const Lent& lent, const uint8_t* data) {
    Slot* slot = free_;
    if (slot) {
      free_ = slot->next;
    } else {
      all_.push_back(std::make_unique<Slot>());
      slot = all_.back().get();
    }
    slot->next = nullptr;
    slot->data = const_cast<uint8_t*>(data);
    slot->lent = lent;
    return slot;
  }
  void give(Slot* slot) noexcept {
    slot->lent.give_back();
    slot->next = free_;
    free_ = slot;
  }

 private:
  std::vector<std::unique_ptr<Slot>> all_;
  Slot* free_ = nullptr;
};

}  // namespace r2ccl

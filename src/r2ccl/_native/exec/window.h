// Slots of one rank in the memory of its GPU that another rank of its host writes by itself: its device copies a chunk
// there, the shared ring carries the frame alone, and the chunk is applied from where it lies.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/frame.h"
#include "memory/slots.h"

namespace r2ccl {

class Window {
 public:
  // own: where the peer's chunks arrive, in this rank's memory; theirs: the peer's, as this rank's device reaches it.
  // Either may be nullptr: that way is not open.
  Window(uint8_t* own, uint8_t* theirs, uint32_t slots, size_t slot_bytes)
      : own_(own), theirs_(theirs), slot_bytes_(slot_bytes), in_(make(own, slots)), out_(make(theirs, slots)) {
    taken_.assign(slots, 0);
  }

  static size_t slot_bytes_for(size_t chunk_bytes) noexcept {
    return (chunk_bytes + SlotPool::kMostOffset + kLine - 1) / kLine * kLine;
  }
  uint8_t* own() const noexcept { return own_; }
  bool open_to_peer() const noexcept { return theirs_ != nullptr; }

  // A slot of the peer's for a chunk; returned(slot, count) tells whether the peer has given the slot back so often.
  // nullptr: all are in use.
  template <class Returned>
  Slot* take(size_t offset, Returned&& returned) noexcept {
    if (!theirs_) return nullptr;
    const auto n = static_cast<uint32_t>(out_.size());
    for (uint32_t k = 0; k < std::min(n, kLooks); ++k) {
      const uint32_t i = (next_ + k) % n;
      if (!returned(i, taken_[i])) continue;
      ++taken_[i];
      next_ = i + 1;
      out_[i]->data = out_[i]->memory + offset;
      return out_[i].get();
    }
    return nullptr;
  }

  // What a frame says of the slot that its chunk lies in.
  uint32_t token_of(const Slot& slot) const noexcept {
    return static_cast<uint32_t>(slot.window) | static_cast<uint32_t>(slot.data - slot.memory) << kOffsetShift;
  }
  // The slot that a frame speaks of; nullptr: there is no such slot, or it does not hold so much (rule 5).
  Slot* arrived(const FrameHeader& h) noexcept {
    const uint32_t i = h.token & ((1u << kOffsetShift) - 1), offset = h.token >> kOffsetShift;
    if (i >= in_.size() || offset > SlotPool::kMostOffset || offset + size_t{h.bytes} > slot_bytes_) return nullptr;
    in_[i]->data = in_[i]->memory + offset;
    return in_[i].get();
  }

 private:
  static constexpr size_t kLine = 64;
  static constexpr uint32_t kOffsetShift = 24;
  static constexpr uint32_t kLooks = 8;  // slots come back about in the order in which they were taken

  std::vector<std::unique_ptr<Slot>> make(uint8_t* memory, uint32_t slots) const {
    std::vector<std::unique_ptr<Slot>> all;
    for (uint32_t i = 0; memory && i < slots; ++i) {
      all.push_back(std::make_unique<Slot>());
      all.back()->memory = all.back()->data = memory + i * slot_bytes_;
      all.back()->window = static_cast<int32_t>(i);
    }
    return all;
  }

  uint8_t *own_, *theirs_;
  size_t slot_bytes_;
  std::vector<std::unique_ptr<Slot>> in_, out_;
  std::vector<uint32_t> taken_;  // how often, modulo 2^32
  uint32_t next_ = 0;
};

}  // namespace r2ccl

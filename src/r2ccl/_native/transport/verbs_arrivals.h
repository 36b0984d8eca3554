// Slots of a verbs link in the memory of a GPU: payloads arrive there, heads in VerbsSlots (verbs_slots.h).
//
// The executor may keep a slot while the GPU works on it (Lent); slots count as empty in the order in which they were
// filled, as the peer expects. What is lent when the link ends stays alive until it is given back.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs_device.h"

namespace r2ccl {

class VerbsArrivals final : public Lender {
 public:
  // nullptr and *error: the GPU has no memory for NICs, or the NIC has no way to it.
  static std::shared_ptr<VerbsArrivals> make(std::shared_ptr<VerbsDevice> device, DeviceMemory& memory, uint32_t slots,
                                             uint32_t slot_bytes, int* error) {
    const size_t bytes = (size_t{slots} * slot_bytes + kPage - 1) / kPage * kPage;
    int descriptor = -1;
    void* at = memory.allocate(bytes, &descriptor);
    *error = EOPNOTSUPP;
    if (!at) return nullptr;
    ibv::Mr* mr = device->pin_device_memory(at, bytes, descriptor, error);
    if (descriptor >= 0) ::close(descriptor);
    if (!mr) {
      memory.release(at);
      return nullptr;
    }
    return std::shared_ptr<VerbsArrivals>(
        new VerbsArrivals(std::move(device), memory, static_cast<uint8_t*>(at), mr, slots, slot_bytes));
  }
  // As VerbsSlots: what the device does not let go of is never used for anything else.
  ~VerbsArrivals() override {
    if (!abandoned_ && device_->unpin(mr_)) memory_.release(at_);
  }
  VerbsArrivals(const VerbsArrivals&) = delete;
  VerbsArrivals& operator=(const VerbsArrivals&) = delete;

  uint8_t* slot(uint32_t number) const noexcept {
    return at_ + size_t{number % static_cast<uint32_t>(lent_.size())} * slot_bytes_;
  }
  uint32_t slot_bytes() const noexcept { return slot_bytes_; }
  uint32_t rkey() const noexcept { return mr_->rkey; }
  void abandon() noexcept { abandoned_ = true; }

  void see_writes() noexcept { memory_.see_writes(); }
  // The slot whose turn it is; its number.
  uint32_t lend() noexcept {
    lent_[filled_ % lent_.size()] = true;
    return filled_;
  }
  // It has been delivered: the next one's turn.
  void delivered() noexcept {
    ++filled_;
    pass();
  }
  void take_back(uint32_t number) noexcept override {
    lent_[number % lent_.size()] = false;
    pass();
  }
  // How many are empty again, cumulative: all before the oldest that is lent.
  uint32_t emptied() const noexcept { return emptied_; }

 private:
  static constexpr size_t kPage = 64 << 10;  // of any machine

  VerbsArrivals(std::shared_ptr<VerbsDevice> device, DeviceMemory& memory, uint8_t* at, ibv::Mr* mr, uint32_t slots,
                uint32_t slot_bytes)
      : device_(std::move(device)), memory_(memory), at_(at), mr_(mr), slot_bytes_(slot_bytes), lent_(slots, false) {}
  void pass() noexcept {
    while (emptied_ != filled_ && !lent_[emptied_ % lent_.size()]) ++emptied_;
  }

  std::shared_ptr<VerbsDevice> device_;
  DeviceMemory& memory_;
  uint8_t* at_;
  ibv::Mr* mr_;
  uint32_t slot_bytes_;
  bool abandoned_ = false;
  std::vector<bool> lent_;
  uint32_t filled_ = 0, emptied_ = 0;
};

}  // namespace r2ccl

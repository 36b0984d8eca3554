// Registered memory of a verbs link: slots for data and for control, in one piece.
#pragma once
#include <errno.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>

#include "transport/verbs_device.h"

namespace r2ccl {

class VerbsSlots {
 public:
  struct Layout {
    uint32_t data_slots, data_slot_bytes, control_slots, control_slot_bytes;
    size_t control_at() const noexcept { return size_t{data_slots} * data_slot_bytes; }
    size_t bytes() const noexcept { return control_at() + size_t{control_slots} * control_slot_bytes; }
  };

  // nullptr and *error: no memory, or the device did not register it.
  static std::unique_ptr<VerbsSlots> make(std::shared_ptr<VerbsDevice> device, const Layout& layout, bool remote_write,
                                          int* error) noexcept {
    void* memory = ::mmap(nullptr, layout.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      *error = ENOMEM;
      return nullptr;
    }
    ibv::Mr* mr = device->pin(memory, layout.bytes(), remote_write, error);
    if (!mr) {
      ::munmap(memory, layout.bytes());
      return nullptr;
    }
    return std::unique_ptr<VerbsSlots>(new VerbsSlots(std::move(device), layout, static_cast<uint8_t*>(memory), mr));
  }
  // Memory that the device does not let go of is kept for ever: a late write must not meet another use of it.
  ~VerbsSlots() {
    if (!abandoned_ && device_->unpin(mr_)) ::munmap(memory_, layout_.bytes());
  }
  VerbsSlots(const VerbsSlots&) = delete;
  VerbsSlots& operator=(const VerbsSlots&) = delete;

  uint8_t* data(uint32_t number) const noexcept {
    return memory_ + size_t{number % layout_.data_slots} * layout_.data_slot_bytes;
  }
  uint8_t* control(uint32_t number) const noexcept {
    return memory_ + layout_.control_at() + size_t{number % layout_.control_slots} * layout_.control_slot_bytes;
  }
  const Layout& layout() const noexcept { return layout_; }
  uint32_t lkey() const noexcept { return mr_->lkey; }
  uint32_t rkey() const noexcept { return mr_->rkey; }
  void abandon() noexcept { abandoned_ = true; }

 private:
  VerbsSlots(std::shared_ptr<VerbsDevice> device, const Layout& layout, uint8_t* memory, ibv::Mr* mr) noexcept
      : device_(std::move(device)), layout_(layout), memory_(memory), mr_(mr) {}

  std::shared_ptr<VerbsDevice> device_;
  Layout layout_;
  uint8_t* memory_;
  ibv::Mr* mr_;
  bool abandoned_ = false;
};

}  // namespace r2ccl

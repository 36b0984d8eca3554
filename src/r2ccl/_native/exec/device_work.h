// What a device with queues of its own has been given, and what is to be done when it is complete.
#pragma once
#include <cstdint>
#include <deque>

#include "base/frame.h"
#include "device/device.h"
#include "memory/slots.h"
#include "transport/transport.h"

namespace r2ccl {

struct Call;
struct Peer;

struct DeviceWork {
  enum Kind : uint8_t {
    kApplied,  // an arrived chunk, from a slot: the slot is free, the peer may send another
    kLocal,    // a chunk of a local op
    kLifted,   // a chunk to be sent lies in a slot
    kKept,     // what a call overwrites has been copied, or put back
    kMoved,    // a payload that had arrived on the device, to a slot; of no call
  };
  Kind kind;
  Call* call;
  uint32_t op = 0, chunk = 0;
  Peer* peer = nullptr;
  Slot* slot = nullptr;
  uint64_t mark = 0;
};

// Of one queue, in the order in which it was given. The last `unmarked` entries share the mark that is taken next.
struct InFlight {
  std::deque<DeviceWork> work;
  size_t unmarked = 0;
};

// The engine's device as links see it.
class DeviceArrivals final : public DeviceMemory {
 public:
  explicit DeviceArrivals(Device& device) noexcept : device_(device) {}
  void* allocate(size_t bytes, int* descriptor) noexcept override {
    return device_.allocate_for_nics(bytes, descriptor);
  }
  void release(void* memory) noexcept override { device_.release(memory); }
  void see_writes() noexcept override { device_.see_nic_writes(); }

 private:
  Device& device_;
};

}  // namespace r2ccl

// Memory of the program that NICs may read where it lies: one entry per buffer, one registration per device.
//
// Only what the program has registered is in here, and the program keeps it until it takes it back: so no address is
// ever looked up whose memory has been freed meanwhile. Everything else is copied on its way
// (transport/verbs_sender.cc). The registrations themselves are a cache: made for the devices that are open, and for
// others when they first need one; given up, least recently used first, when they exceed the budget.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "transport/verbs_link.h"

namespace r2ccl {

class Registrations final : public RegisteredMemory {
 public:
  // warn is told, once for a buffer and a device, that it cannot be registered.
  Registrations(uint64_t budget_bytes, std::function<void(std::string)> warn)
      : budget_(budget_bytes), warn_(std::move(warn)) {}
  ~Registrations() override;
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  // The memory stays until `remove`, called as often for the same range.
  void add(const void* memory, size_t bytes, const std::vector<std::shared_ptr<VerbsDevice>>& devices);
  // False: it was not added.
  bool remove(const void* memory, size_t bytes);
  // Bytes, each counted for every device that has them.
  uint64_t pinned_bytes();

  HeldKey hold(VerbsDevice& device, const void* memory, size_t bytes) noexcept override;
  void release(const HeldKey& key) noexcept override;
  void forget(VerbsDevice& device) noexcept override;

 private:
  struct Key {
    std::shared_ptr<VerbsDevice> device;
    ibv::Mr* mr = nullptr;  // nullptr: the device refused
    uint32_t held = 0;
    uint64_t used = 0;
  };
  struct Entry {
    uint64_t bytes = 0;
    uint32_t count = 0;  // 0: taken back, but some device still reads
    std::vector<Key> keys;
  };
  using Entries = std::multimap<uint64_t, Entry>;  // by address; ranges may overlap

  Key* key_for(uint64_t at, Entry& entry, VerbsDevice& device) noexcept;
  bool make_room(uint64_t bytes) noexcept;
  void drop(Entry& entry, Key& key) noexcept;
  void drop_unused(Entries::iterator entry) noexcept;

  std::mutex mutex_;
  uint64_t budget_;
  std::function<void(std::string)> warn_;
  Entries entries_;
  uint64_t longest_ = 0;  // of all entries so far: bounds the search
  uint64_t pinned_ = 0, clock_ = 0;
};

}  // namespace r2ccl

#include "memory/registrations.h"

#include <algorithm>
#include <cstring>

namespace r2ccl {

Registrations::~Registrations() {
  for (auto& [at, entry] : entries_)
    for (Key& key : entry.keys) drop(entry, key);
}

void Registrations::add(const void* memory, size_t bytes, const std::vector<std::shared_ptr<VerbsDevice>>& devices) {
  if (bytes == 0) return;
  const auto at = reinterpret_cast<uint64_t>(memory);
  std::lock_guard lock(mutex_);
  longest_ = std::max<uint64_t>(longest_, bytes);
  auto [first, last] = entries_.equal_range(at);
  auto found = std::find_if(first, last, [&](const auto& e) { return e.second.bytes == bytes && e.second.count > 0; });
  if (found == last) found = entries_.emplace(at, Entry{bytes, 0, {}});
  ++found->second.count;
  for (const auto& device : devices) key_for(at, found->second, *device);
}

bool Registrations::remove(const void* memory, size_t bytes) {
  if (bytes == 0) return true;
  std::lock_guard lock(mutex_);
  auto [first, last] = entries_.equal_range(reinterpret_cast<uint64_t>(memory));
  auto found = std::find_if(first, last, [&](const auto& e) { return e.second.bytes == bytes && e.second.count > 0; });
  if (found == last) return false;
  if (--found->second.count == 0) drop_unused(found);
  return true;
}

uint64_t Registrations::pinned_bytes() {
  std::lock_guard lock(mutex_);
  return pinned_;
}

HeldKey Registrations::hold(VerbsDevice& device, const void* memory, size_t bytes) noexcept {
  const auto at = reinterpret_cast<uint64_t>(memory);
  std::lock_guard lock(mutex_);
  for (auto it = entries_.upper_bound(at); it != entries_.begin();) {
    --it;
    if (at - it->first >= longest_) break;
    Entry& entry = it->second;
    if (entry.count == 0 || at - it->first > entry.bytes || bytes > entry.bytes - (at - it->first)) continue;
    Key* key = key_for(it->first, entry, device);
    if (!key || !key->mr) return {};
    ++key->held;
    key->used = ++clock_;
    return {key->mr, &entry};
  }
  return {};
}

void Registrations::release(const HeldKey& held) noexcept {
  std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (&it->second != held.entry) continue;
    for (Key& key : it->second.keys)
      if (key.mr == held.mr) --key.held;
    if (it->second.count == 0) drop_unused(it);
    return;
  }
}

void Registrations::forget(VerbsDevice& device) noexcept {
  std::lock_guard lock(mutex_);
  for (auto& [at, entry] : entries_)
    for (Key& key : entry.keys)
      if (key.device.get() == &device && key.held == 0) drop(entry, key);
  for (auto& [at, entry] : entries_) std::erase_if(entry.keys, [](const Key& key) { return !key.device; });
}

// The device's registration, made now if need be; nullptr: there is no room for it at present.
Registrations::Key* Registrations::key_for(uint64_t at, Entry& entry, VerbsDevice& device) noexcept {
  for (Key& key : entry.keys)
    if (key.device.get() == &device) return &key;
  if (device.dead() || !make_room(entry.bytes)) return nullptr;
  int error = 0;
  Key key;
  key.device = device.shared_from_this();
  key.mr = device.pin(reinterpret_cast<void*>(at), entry.bytes, false, &error);
  key.used = ++clock_;
  if (key.mr) {
    pinned_ += entry.bytes;
  } else {
    warn_(std::to_string(entry.bytes) + " bytes cannot be registered with " + device.name() + " (" +
          std::strerror(error) +
          "), and are copied there; a larger limit of locked memory helps (ulimit -l unlimited)");
  }
  entry.keys.push_back(key);
  return &entry.keys.back();
}

bool Registrations::make_room(uint64_t bytes) noexcept {
  while (pinned_ + bytes > budget_) {
    Entry* from = nullptr;
    size_t oldest = 0;
    for (auto& [at, entry] : entries_)
      for (size_t k = 0; k < entry.keys.size(); ++k) {
        const Key& key = entry.keys[k];
        if (!key.mr || key.held > 0 || (from && key.used >= from->keys[oldest].used)) continue;
        from = &entry;
        oldest = k;
      }
    if (!from) return false;
    drop(*from, from->keys[oldest]);
    from->keys.erase(from->keys.begin() + static_cast<ptrdiff_t>(oldest));
  }
  return true;
}

void Registrations::drop(Entry& entry, Key& key) noexcept {
  if (key.mr) {
    key.device->unpin(key.mr);  // one that the device does not let go of stays registered: it was only ever read
    pinned_ -= entry.bytes;
  }
  key.mr = nullptr;
  key.device.reset();
}

// Of an entry that was taken back: what no device reads any more.
void Registrations::drop_unused(Entries::iterator entry) noexcept {
  for (Key& key : entry->second.keys)
    if (key.held == 0) drop(entry->second, key);
  std::erase_if(entry->second.keys, [](const Key& key) { return !key.device; });
  if (entry->second.keys.empty()) entries_.erase(entry);
}

}  // namespace r2ccl

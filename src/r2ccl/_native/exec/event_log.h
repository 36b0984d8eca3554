// A bounded ring of events: the oldest are dropped, and counted.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "r2ccl/r2ccl.h"

namespace r2ccl {

// Numbers known to r2ccl/observe/events.py.
enum EventKind : uint32_t {
  kEventLinkSuspect = 1,  // detail: cause
  kEventLinkDown = 2,     // fenced at both ends
  kEventReplay = 3,       // value: chunks
  kEventRepaired = 4,     // value: nanoseconds since the suspicion
  kEventRailDown = 5,
  kEventRailUp = 6,
  kEventPeerLost = 7,
  kEventPeerClosed = 8,
  kEventOutageBegin = 9,
  kEventOutageEnd = 10,
  kEventMismatch = 11,
  kEventFrameRefused = 12,
  kEventLinkProbation = 13,  // connected again
  kEventLinkUp = 14,         // in use again; value: nanoseconds in probation
  kEventEpoch = 16,          // all ranks have agreed on the health of rails; value: epoch, detail: rails that are down
  kEventVerdict = 15,        // what failed; detail: Verdict, value: Diagnosis::evidence
  kEventReplaySent = 24,     // the first chunk of a replay was handed to a link; value: nanoseconds since the suspicion
};
enum SuspicionCause : uint32_t {
  kCauseSocket = 1,
  kCauseInterface = 2,
  kCauseStall = 3,
  kCausePeer = 4,
  kCauseHeartbeat = 5,
  kCauseRail = 6
};

class EventLog {
 public:
  static constexpr uint32_t kCapacity = 1024;

  void add(const r2ccl_event& event) noexcept {
    std::lock_guard lock(mutex_);
    if (count_ == kCapacity) {
      first_ = (first_ + 1) % kCapacity;
      --count_;
      ++dropped_;
    }
    ring_[(first_ + count_++) % kCapacity] = event;
  }
  uint32_t take(r2ccl_event* out, uint32_t capacity) noexcept {
    std::lock_guard lock(mutex_);
    uint32_t n = 0;
    for (; n < capacity && count_ > 0; ++n, --count_) {
      out[n] = ring_[first_];
      first_ = (first_ + 1) % kCapacity;
    }
    return n;
  }
  uint64_t dropped() noexcept {
    std::lock_guard lock(mutex_);
    return dropped_;
  }

 private:
  std::mutex mutex_;
  std::array<r2ccl_event, kCapacity> ring_{};
  uint32_t first_ = 0, count_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace r2ccl

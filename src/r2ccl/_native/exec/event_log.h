// A bounded ring of events: the oldest are dropped, and counted.
#pragma once
#include <algorithm>
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
  kEventPlan = 17,           // a plan was made anew: reported by the planner, in Python
  kEventVerdict = 15,        // what failed; detail: Verdict, value: Diagnosis::evidence
  kEventRelay = 25,       // frames to and from the peer go by way of other ranks; detail: 1 begins, 0 ends; value: rank
  kEventReplaySent = 24,  // the first chunk of a replay was handed to a link; value: nanoseconds since the suspicion
};
enum SuspicionCause : uint32_t {
  kCauseSocket = 1,
  kCauseInterface = 2,
  kCauseStall = 3,
  kCausePeer = 4,
  kCauseHeartbeat = 5,
  kCauseRail = 6,
  kCauseDevice = 7,  // value of the event: errno
};

class EventLog {
 public:
  static constexpr uint32_t kCapacity = 1024;

  void add(const r2ccl_event& event) noexcept {
    std::lock_guard lock(mutex_);
    ring_[written_++ % kCapacity] = event;
    if (written_ - taken_ > kCapacity) {
      ++taken_;
      ++dropped_;
    }
  }
  // For the program: what was not taken yet.
  uint32_t take(r2ccl_event* out, uint32_t capacity) noexcept {
    std::lock_guard lock(mutex_);
    uint32_t n = 0;
    while (n < capacity && taken_ < written_) out[n++] = ring_[taken_++ % kCapacity];
    return n;
  }
  // For whoever looks on: the last `capacity` events, taken or not, oldest first. Takes none.
  uint32_t recent(r2ccl_event* out, uint32_t capacity) noexcept {
    std::lock_guard lock(mutex_);
    const uint64_t n = std::min<uint64_t>({capacity, kCapacity, written_});
    for (uint64_t i = 0; i < n; ++i) out[i] = ring_[(written_ - n + i) % kCapacity];
    return static_cast<uint32_t>(n);
  }
  uint64_t dropped() noexcept {
    std::lock_guard lock(mutex_);
    return dropped_;
  }

 private:
  std::mutex mutex_;
  std::array<r2ccl_event, kCapacity> ring_{};
  uint64_t written_ = 0, taken_ = 0, dropped_ = 0;  // counted from the start
};

}  // namespace r2ccl

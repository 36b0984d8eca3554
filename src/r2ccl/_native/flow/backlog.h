// How much a slow TCP connection may hold in the kernel. Several senders meet at a receiver's port; what each has under
// way beyond that fills the port's queue, makes every chunk wait there, and is lost when the queue is full.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace r2ccl {

// Bytes sent and not confirmed, or not sent yet. Twice what the path holds at the speed the connection has, so that it
// finds out when it could be faster, and a little against threads that do not get to run at once.
class Backlog {
 public:
  static constexpr uint64_t kUnlimited = 0;
  // Above this the kernel does better: it follows a fast path by itself, and a queue that fast is short in time.
  static constexpr uint64_t kLeast = 128 << 10, kMost = 384 << 10;
  static constexpr Nanoseconds kSlack = 2'000'000;
  // A link is busy for so long between two looks at its rate.
  static constexpr Nanoseconds kSpan = 50'000'000;

  // round_trip_ns: without queues on the way.
  static uint64_t bytes(double bytes_per_ns, uint64_t round_trip_ns) noexcept {
    const double wanted = 2 * bytes_per_ns * (static_cast<double>(round_trip_ns) + kSlack);
    return wanted > kMost ? kUnlimited : std::max(static_cast<uint64_t>(wanted), kLeast);
  }

  // Whether the limit is to change, and to what; small differences are not worth a call of the kernel.
  bool update(double bytes_per_ns, uint64_t round_trip_ns, uint64_t* limit) noexcept {
    const uint64_t now = bytes(bytes_per_ns, round_trip_ns);
    const bool both = now != kUnlimited && limit_ != kUnlimited;
    if (now == limit_ || (both && now < limit_ + limit_ / 4 && limit_ < now + now / 4)) return false;
    *limit = limit_ = now;
    return true;
  }

 private:
  uint64_t limit_ = kUnlimited;
};

}  // namespace r2ccl

// How much a slow TCP connection may hold in the kernel. Several senders meet at a receiver's port; what each has under
// way beyond what its path holds fills the port's queue, makes every chunk wait there, and is lost when it is full.
#pragma once
#include <cstdint>

#include "base/clock.h"

namespace r2ccl {

// Bytes sent and not confirmed, or not sent yet. The same for all connections that are slow enough for it: where they
// meet in a queue their rates follow what each holds there, and a limit that followed the rates in turn would let one
// push the others out. Fast ones and far ones are left to the kernel: their queues are short in time, and it follows
// their paths by itself.
class Backlog {
 public:
  static constexpr uint64_t kUnlimited = 0, kLimit = 128 << 10;
  // A link is busy for so long between two looks at its rate.
  static constexpr Nanoseconds kSpan = 50'000'000;

  // Whether the limit is to change, and to what. round_trip_ns: without queues on the way.
  bool update(double bytes_per_ns, uint64_t round_trip_ns, uint64_t* limit) noexcept {
    // Twice what the path holds, so that a connection finds out when it could be faster, and what threads cost that do
    // not get to run at once.
    const double wanted = 2 * bytes_per_ns * (static_cast<double>(round_trip_ns) + kSlack);
    const double most = limit_ == kUnlimited ? kLimit : kRelease * kLimit;
    const uint64_t now = wanted > most ? kUnlimited : kLimit;
    if (now == limit_) return false;
    *limit = limit_ = now;
    return true;
  }

 private:
  static constexpr Nanoseconds kSlack = 2'000'000;
  static constexpr double kRelease = 1.5;

  uint64_t limit_ = kUnlimited;
};

}  // namespace r2ccl

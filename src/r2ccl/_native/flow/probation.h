// A link that was opened again after a failure carries no chunk until it has answered pings for a while, at both ends.
// Links that fail soon after they came back wait longer each time. One instance per link; time comes in.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace r2ccl {

class Probation {
 public:
  enum class Verdict { kWait, kPing, kReady, kFailed };

  static constexpr Nanoseconds kShortestNs = 100'000'000, kLongestNs = 10'000'000'000;
  static constexpr Nanoseconds kPingEveryNs = 10'000'000;
  // A ping that is not answered by then fails the probation.
  static constexpr Nanoseconds kAnswerNs = 250'000'000;

  // The link is connected again.
  void begin(Nanoseconds now) noexcept {
    // Twice as long as last time if it failed within ten times what it had to prove; as short as ever otherwise.
    const bool soon = admitted_ns_ != 0 && failed_ns_ < admitted_ns_ + 10 * clean_ns_;
    clean_ns_ = soon ? std::min(2 * clean_ns_, kLongestNs) : (admitted_ns_ == 0 && clean_ns_ ? clean_ns_ : kShortestNs);
    begun_ns_ = now;
    pinged_ns_ = 0;
    asked_ = answered_ = 0;
    peer_ready_ = said_ready_ = false;
    admitted_ns_ = 0;
  }
  // It is in use again.
  void admitted(Nanoseconds now) noexcept { admitted_ns_ = now; }
  // It failed, in use or in probation.
  void failed(Nanoseconds now) noexcept {
    failed_ns_ = now;
    if (admitted_ns_ == 0 && clean_ns_) clean_ns_ = std::min(2 * clean_ns_, kLongestNs);
  }

  // Whether another link to the peer is in use. If none is, the shortest probation will do: this link can only help.
  void others(bool in_use) noexcept { others_in_use_ = in_use; }

  uint32_t next_token() noexcept { return ++asked_; }
  void pong(uint32_t token) noexcept { answered_ = std::max(answered_, std::min(token, asked_)); }
  void peer_ready() noexcept { peer_ready_ = true; }
  // What was said once holds: the peer may be using the link already.
  bool both_ready(Nanoseconds now) const noexcept { return peer_ready_ && (said_ready_ || clean(now)); }

  Verdict step(Nanoseconds now) noexcept {
    if (answered_ == asked_) quiet_since_ns_ = now;
    if (asked_ > answered_ && now > quiet_since_ns_ + kAnswerNs) return Verdict::kFailed;
    if (now < pinged_ns_ + kPingEveryNs) return Verdict::kWait;
    pinged_ns_ = now;
    said_ready_ = said_ready_ || clean(now);
    return said_ready_ ? Verdict::kReady : Verdict::kPing;
  }

  Nanoseconds clean_ns() const noexcept { return clean_ns_; }

 private:
  bool clean(Nanoseconds now) const noexcept {
    const Nanoseconds needed = others_in_use_ ? clean_ns_ : std::min(clean_ns_, kShortestNs);
    return now >= begun_ns_ + needed && answered_ >= 3 && asked_ - answered_ <= 2;
  }

  Nanoseconds clean_ns_ = 0;
  Nanoseconds begun_ns_ = 0, pinged_ns_ = 0, quiet_since_ns_ = 0, admitted_ns_ = 0, failed_ns_ = 0;
  uint32_t asked_ = 0, answered_ = 0;
  bool peer_ready_ = false, said_ready_ = false, others_in_use_ = true;
};

}  // namespace r2ccl

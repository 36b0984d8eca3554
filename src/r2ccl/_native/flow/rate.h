// How fast a link carries chunks, learnt from its acknowledgements. One instance per link; time comes in.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace r2ccl {

class LinkRate {
 public:
  // A chunk was acknowledged. The link was busy with it since it was posted, or since the one before was acknowledged.
  void acknowledged(Nanoseconds now, Nanoseconds posted_ns, uint32_t bytes) noexcept {
    const Nanoseconds from = std::max(posted_ns, acknowledged_ns_);
    const double gap = now > from ? static_cast<double>(now - from) : 1.0;
    ++samples_;
    bytes_ = bytes_ * kKeep + bytes;
    busy_ns_ = busy_ns_ * kKeep + gap;
    span_bytes_ += bytes;
    span_ns_ += gap;
    acknowledged_ns_ = now;
  }

  // The link failed with chunks in flight: the time since it last moved brought nothing.
  void failed(Nanoseconds now, Nanoseconds oldest_posted_ns) noexcept {
    if (oldest_posted_ns == 0) return;
    const Nanoseconds since = std::max(oldest_posted_ns, acknowledged_ns_);
    if (now > since) busy_ns_ += static_cast<double>(now - since);
    acknowledged_ns_ = now;
  }

  bool known() const noexcept { return bytes_ > 0; }
  // Learnt from enough chunks to be told to others.
  bool settled() const noexcept { return samples_ >= 24; }
  // Bytes per nanosecond.
  double learnt() const noexcept { return bytes_ / std::max(busy_ns_, 1.0); }
  // The same, of all chunks since the last answer that was not 0; 0: the link was busy for less than least_ns since.
  // Acknowledgements that come together, or late, make no difference to it.
  double take_span(Nanoseconds least_ns) noexcept {
    if (span_ns_ < static_cast<double>(least_ns)) return 0;
    const double rate = span_bytes_ / span_ns_;
    span_bytes_ = span_ns_ = 0;
    return rate;
  }
  // The same now. A link that has been silent for longer than its next chunk should take is as slow as that.
  double at(Nanoseconds now, Nanoseconds oldest_posted_ns, uint32_t chunk_bytes) const noexcept {
    const double rate = learnt();
    if (oldest_posted_ns == 0) return rate;
    const Nanoseconds since = std::max(oldest_posted_ns, acknowledged_ns_);
    const double silent = now > since ? static_cast<double>(now - since) : 0.0;
    return silent * rate > 2.0 * chunk_bytes ? chunk_bytes / silent : rate;
  }

 private:
  static constexpr double kKeep = 0.875;
  double bytes_ = 0, busy_ns_ = 0;
  double span_bytes_ = 0, span_ns_ = 0;
  uint32_t samples_ = 0;
  Nanoseconds acknowledged_ns_ = 0;
};

// Whether a rail is slow, in one byte for the agreement. Not how slow: plans are made for rails that carry or do not,
// and only the size of chunks goes by this; every change costs an agreement, and new plans on all ranks.
class SpeedClass {
 public:
  static constexpr uint8_t kSlow = 1, kWhole = 255;  // kWhole: fast enough, or not yet known
  static constexpr double kSlowMBps = 128, kFastMBps = 384;
  static constexpr Nanoseconds kRestNs = 5'000'000'000;

  uint8_t value() const noexcept { return value_; }
  void update(Nanoseconds now, double megabytes_per_s) noexcept {
    if (changed_ns_ != 0 && now < changed_ns_ + kRestNs) return;
    const uint8_t before = value_;
    if (megabytes_per_s >= kFastMBps) value_ = kWhole;
    if (megabytes_per_s < kSlowMBps) value_ = kSlow;
    if (value_ != before) changed_ns_ = now;
  }

 private:
  Nanoseconds changed_ns_ = 0;
  uint8_t value_ = kWhole;
};

}  // namespace r2ccl

// The stall rule: when is a link that says nothing taken for dead? One instance per link; time and readings come in.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace r2ccl {

// A link is suspected when all of these hold:
//  - something is in flight on it,
//  - for max(floor, factor x usual gap, 2 round trips but no more than 1.5 x floor) nothing was acknowledged and no
//    byte moved on it, and
//  - the peer was heard over another path in the second half of that time.
// Byte progress alone puts suspicion off for at most kPatience times as long: a link that moves bytes and confirms no
// chunk is of no use either.
// The last condition keeps a peer that is merely slow, stopped or starved of processor time from costing its links.
// Time in which either process did not run is not counted.
class StallDetector {
 public:
  enum class Verdict { kFine, kAskPeer, kSuspect };

  StallDetector(Nanoseconds floor_ns, double factor) noexcept : floor_ns_(floor_ns), factor_(factor) {}

  // A chunk was acknowledged on the link. posted_ns: when that chunk was posted.
  void acknowledged(Nanoseconds now, Nanoseconds posted_ns) noexcept {
    confirmed_ns_ = now;
    moved(now, posted_ns);
  }

  Nanoseconds limit_ns() const noexcept {
    return std::max({floor_ns_, static_cast<Nanoseconds>(factor_ * usual_ns_), 2 * round_trip_ns_});
  }

  // The reading of Link::progress is worth its system call.
  bool wants_progress(Nanoseconds now, Nanoseconds oldest_posted_ns) const noexcept {
    return oldest_posted_ns != 0 && now > oldest_posted_ns && silent_ns(now, oldest_posted_ns) > limit_ns() / 4;
  }
  void progress(Nanoseconds now, uint64_t reading, Nanoseconds oldest_posted_ns,
                Nanoseconds round_trip_ns = 0) noexcept {
    round_trip_ns_ = std::min(round_trip_ns, floor_ns_ * 3 / 4);
    // The first reading after a confirmation, or of a new chunk, is only what later ones are compared with.
    const bool first = sampled_ns_ < std::max(oldest_posted_ns, confirmed_ns_);
    sampled_ns_ = now;
    if (reading == reading_) return;
    reading_ = reading;
    if (first) return;
    moved(now, oldest_posted_ns);  // a slow link moves in larger steps: its usual gap grows with them
  }

  // This process did not run for so long: the link may have moved meanwhile.
  void paused(Nanoseconds for_ns) noexcept { excused_ns_ += for_ns; }

  // oldest_posted_ns: of the chunks in flight on the link, 0 when there is none.
  // heard_elsewhere_ns: when anything came from the peer over another path.
  // alive_since_ns: since when the peer has been heard without a long break: its own pauses are not the link's.
  // times: how much longer it gets: kLastLink when a suspicion would help nobody soon, since no other link to the peer
  // is in use; kLastRail when other ranks could pass on what is for the peer. peer_paused_ns: how long the peer did not
  // run, of late.
  Verdict step(Nanoseconds now, Nanoseconds oldest_posted_ns, Nanoseconds heard_elsewhere_ns,
               Nanoseconds alive_since_ns = 0, Nanoseconds times = 1, Nanoseconds peer_paused_ns = 0) noexcept {
    if (oldest_posted_ns == 0 || now <= oldest_posted_ns) {
      excused_ns_ = 0;
      return Verdict::kFine;
    }
    const Nanoseconds limit = limit_ns() + excused_ns_ + peer_paused_ns;
    const bool hopeless = now - std::max(oldest_posted_ns, confirmed_ns_) > kPatience * limit;
    const Nanoseconds silent =
        hopeless ? limit : silent_ns(now, std::max(oldest_posted_ns, std::min(alive_since_ns, now)));
    if (!hopeless && silent_ns(now, oldest_posted_ns) < limit / 2) return Verdict::kFine;
    // So often that the peer's answers are no break in what is heard of it, however long the limit has become: each
    // break would make the count of its silence begin anew, for ever.
    const bool asked = asked_ns_ + std::min(limit, floor_ns_) / 2 > now && asked_ns_ >= oldest_posted_ns;
    // Pauses are excused once, however much longer the link gets: a busy machine adds them up without end.
    if (silent >= limit + (times - 1) * limit_ns() && heard_elsewhere_ns + limit / 2 > now) return Verdict::kSuspect;
    if (asked) return Verdict::kFine;
    asked_ns_ = now;
    return Verdict::kAskPeer;
  }

  // Bytes move, or it would be suspected by now; but for long no chunk has been confirmed: it is slow.
  bool slow(Nanoseconds now, Nanoseconds oldest_posted_ns) const noexcept {
    const Nanoseconds usual = std::max(floor_ns_, static_cast<Nanoseconds>(factor_ * usual_ns_));
    return oldest_posted_ns != 0 && now > std::max(oldest_posted_ns, confirmed_ns_) + usual + usual / 2 &&
           silent_ns(now, oldest_posted_ns) < limit_ns();
  }

  static constexpr Nanoseconds kPatience = 32, kLastLink = 16, kLastRail = 4;

 private:
  void moved(Nanoseconds now, Nanoseconds since_ns) noexcept {
    const Nanoseconds from = std::max(since_ns, moved_ns_);
    // Bounded: a pause of the whole machine says nothing about the link.
    const double gap = now > from ? static_cast<double>(std::min(now - from, 8 * floor_ns_)) : 0.0;
    usual_ns_ += (gap - usual_ns_) / 8.0;
    moved_ns_ = now;
    excused_ns_ = 0;
  }
  Nanoseconds silent_ns(Nanoseconds now, Nanoseconds oldest_posted_ns) const noexcept {
    const Nanoseconds since = std::max(oldest_posted_ns, moved_ns_);
    return now > since ? now - since : 0;
  }

  Nanoseconds floor_ns_;
  double factor_;
  Nanoseconds round_trip_ns_ = 0;
  double usual_ns_ = 0;
  Nanoseconds moved_ns_ = 0, confirmed_ns_ = 0, excused_ns_ = 0;
  Nanoseconds asked_ns_ = 0, sampled_ns_ = 0;
  uint64_t reading_ = 0;
};

// When this process did not run, for peers that wonder about its silence.
class Pauses {
 public:
  void add(Nanoseconds now, Nanoseconds length) noexcept {
    ring_[next_] = {now, length};
    next_ = (next_ + 1) % kKept;
  }
  Nanoseconds within(Nanoseconds now, Nanoseconds last) const noexcept {
    Nanoseconds sum = 0;
    for (const auto& pause : ring_)
      if (pause.end_ns != 0 && pause.end_ns + last > now) sum += pause.length_ns;
    return std::min(sum, last);
  }

 private:
  static constexpr size_t kKept = 32;
  struct Pause {
    Nanoseconds end_ns = 0, length_ns = 0;
  };
  Pause ring_[kKept];
  size_t next_ = 0;
};

}  // namespace r2ccl

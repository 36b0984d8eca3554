// What failed? Repair does not wait for the answer; it comes afterwards, from three points: this end's rail towards
// others, the peer's rail towards others, and the pair itself. One instance per link; time and findings come in.
#pragma once
#include <cstdint>

#include "base/clock.h"

namespace r2ccl {

// Known to r2ccl/observe/events.py.
enum class Verdict : uint8_t { kNone = 0, kLocalRail = 1, kRemoteRail = 2, kPath = 3, kPeerLost = 4, kFalseAlarm = 5 };

// What one end knows of its own rail.
enum class Finding : uint8_t { kUnknown = 0, kAlive = 1, kDead = 2 };

// What a rail's other links say when they are asked.
struct RailAnswers {
  uint32_t answered = 0;          // links that answered, to whomever
  uint32_t silent = 0;            // links that did not, to peers that are heard over another path
  uint32_t silent_elsewhere = 0;  // of these, to other hosts than the one of the failed link

  // An answer proves the rail. Silence condemns it only if it comes from more than one direction: silence of one host
  // alone may be that host's.
  Finding finding() const noexcept {
    if (answered > 0) return Finding::kAlive;
    return silent_elsewhere > 0 ? Finding::kDead : Finding::kUnknown;
  }
};

enum class Direction : uint8_t { kUnknown = 0, kBoth = 1, kFromPeer = 2, kToPeer = 3 };

class Diagnosis {
 public:
  // A link that is in use again so soon, with no interface down at either end, was suspected wrongly, or for a hiccup.
  static constexpr Nanoseconds kFalseAlarmNs = 1'000'000'000;
  // The peer's finding is waited for so long.
  static constexpr Nanoseconds kPatienceNs = 1'000'000'000;

  // The link was suspected. silence: how long nothing had come over it.
  void begin(Nanoseconds now, Nanoseconds silence) noexcept {
    const Diagnosis before = *this;
    *this = Diagnosis{};
    open_ = true;
    since_ns_ = now;
    silence_ns_ = silence;
    // The peer's word may overtake its notice of the failure.
    if (before.early_ns_ != 0 && now < before.early_ns_ + kPatienceNs)
      told(now, before.theirs_, before.interface_there_, before.their_silence_ns_);
  }
  // The link has been connected again: what the peer says from now on, or said, is about another failure.
  void reopened() noexcept { early_ns_ = 0; }
  bool open() const noexcept { return open_; }
  Nanoseconds since_ns() const noexcept { return since_ns_; }
  Nanoseconds silence_ns() const noexcept { return silence_ns_; }

  // This end's final word about its own rail. interface: netlink says that it is down.
  void found(Finding mine, const RailAnswers& answers, bool interface) noexcept {
    mine_ = mine;
    have_mine_ = true;
    answers_ = answers;
    interface_here_ = interface;
  }
  // Connections tried across rails answered for the peer's rail, too.
  void found_theirs(Finding theirs) noexcept {
    if (!have_theirs_) theirs_ = theirs;
    probed_ = true;
  }
  void told(Nanoseconds now, Finding theirs, bool interface, Nanoseconds silence) noexcept {
    if (!open_) early_ns_ = now;
    theirs_ = open_ && theirs == Finding::kUnknown ? theirs_ : theirs;
    have_theirs_ = true;
    interface_there_ = interface;
    their_silence_ns_ = silence;
  }
  bool have_mine() const noexcept { return have_mine_; }
  Finding mine() const noexcept { return mine_; }
  bool interface_here() const noexcept { return interface_here_; }

  // Both ends have spoken, or the peer had its time.
  bool ready(Nanoseconds now) const noexcept {
    return open_ && have_mine_ && (have_theirs_ || mine_ == Finding::kDead || now > since_ns_ + kPatienceNs);
  }
  Verdict verdict() const noexcept {
    if (mine_ == Finding::kDead) return Verdict::kLocalRail;
    if (theirs_ == Finding::kDead) return Verdict::kRemoteRail;
    return Verdict::kPath;  // both are alive, or nothing tells them apart
  }
  // The link is in use again.
  bool false_alarm(Nanoseconds now) const noexcept {
    return since_ns_ != 0 && !interface_here_ && !interface_there_ && now < since_ns_ + kFalseAlarmNs;
  }
  void close() noexcept { open_ = false; }

  // One end heard the other until just before: only the other way is dead.
  Direction direction() const noexcept {
    if (!have_theirs_ || silence_ns_ == 0 || their_silence_ns_ == 0) return Direction::kUnknown;
    if (their_silence_ns_ * 4 < silence_ns_) return Direction::kFromPeer;
    if (silence_ns_ * 4 < their_silence_ns_) return Direction::kToPeer;
    return Direction::kBoth;
  }
  // The evidence in one word, for the event; see r2ccl/observe/events.py.
  uint64_t evidence() const noexcept {
    auto capped = [](uint32_t n) { return uint64_t{n < 255 ? n : 255}; };
    return capped(answers_.answered) | capped(answers_.silent) << 8 | uint64_t{interface_here_} << 16 |
           uint64_t{interface_there_} << 17 | static_cast<uint64_t>(direction()) << 18 | uint64_t{probed_} << 20 |
           static_cast<uint64_t>(mine_) << 21 | static_cast<uint64_t>(theirs_) << 23;
  }

 private:
  bool open_ = false, have_mine_ = false, have_theirs_ = false, probed_ = false;
  bool interface_here_ = false, interface_there_ = false;
  Finding mine_ = Finding::kUnknown, theirs_ = Finding::kUnknown;
  Nanoseconds since_ns_ = 0, silence_ns_ = 0, their_silence_ns_ = 0;
  Nanoseconds early_ns_ = 0;  // told while no diagnosis was open
  RailAnswers answers_;
};

// An idle link is asked for a sign of life now and then. One instance per link.
class Heartbeat {
 public:
  enum class Verdict { kFine, kPing, kSuspect };

  // heard_ns: on the link. elsewhere(): when the peer was heard over another path; asked for only if it matters.
  template <class F>
  Verdict step(Nanoseconds now, Nanoseconds heard_ns, F&& elsewhere, Nanoseconds every_ns,
               Nanoseconds answer_ns) noexcept {
    if (every_ns == 0 || heard_ns + every_ns > now) {
      pings_ = 0;
      return Verdict::kFine;
    }
    if (pings_ > 0 && heard_ns >= asked_ns_) pings_ = 0;
    if (pings_ > 0 && now < pinged_ns_ + answer_ns) return Verdict::kFine;
    // Two unanswered, while the peer answers elsewhere: one answer may have been late.
    if (pings_ >= 2 && elsewhere() >= pinged_ns_) return Verdict::kSuspect;
    if (pings_ == 0) asked_ns_ = now;
    pings_ = pings_ < 2 ? pings_ + 1 : 2;
    pinged_ns_ = now;
    return Verdict::kPing;
  }

 private:
  uint32_t pings_ = 0;
  Nanoseconds asked_ns_ = 0, pinged_ns_ = 0;
};

}  // namespace r2ccl

// The stall rule under a clock of the test's own: each case is named by the rule that it states.
#include "cases.h"
#include "flow/detector.h"

using namespace r2ccl;
using Verdict = StallDetector::Verdict;

namespace {
constexpr Nanoseconds kMs = 1'000'000;
constexpr Nanoseconds kFloor = 100 * kMs;
constexpr Nanoseconds kStart = 1'000'000 * kMs;
}  // namespace

CASE(nothing_in_flight_is_never_suspicious) {
  StallDetector d(kFloor, 4);
  for (Nanoseconds t = kStart; t < kStart + 100 * kFloor; t += kFloor) CHECK(d.step(t, 0, t) == Verdict::kFine);
}

CASE(a_young_chunk_is_fine) {
  StallDetector d(kFloor, 4);
  CHECK(d.step(kStart + kFloor / 2 - 1, kStart, kStart) == Verdict::kFine);
  CHECK(d.step(kStart, kStart, kStart) == Verdict::kFine);
}

CASE(the_peer_is_asked_at_half_the_limit_and_again_after_half_a_limit) {
  StallDetector d(kFloor, 4);
  int asked = 0;
  for (Nanoseconds t = kStart; t <= kStart + 10 * kFloor; t += kMs) asked += d.step(t, kStart, 0) == Verdict::kAskPeer;
  CHECK(asked >= 18 && asked <= 20);
}

CASE(silence_with_the_peer_heard_elsewhere_is_suspicious_at_the_limit) {
  StallDetector d(kFloor, 4);
  Nanoseconds heard = 0, suspected = 0;
  for (Nanoseconds t = kStart; !suspected && t < kStart + 10 * kFloor; t += kMs) {
    switch (d.step(t, kStart, heard)) {
      case Verdict::kFine:
        break;
      case Verdict::kAskPeer:
        heard = t + kMs;  // its answer
        break;
      case Verdict::kSuspect:
        suspected = t;
    }
  }
  CHECK(suspected >= kStart + kFloor && suspected <= kStart + 2 * kFloor);
}

CASE(a_limit_beyond_the_floor_does_not_put_suspicion_off_for_ever) {
  // This process was starved for a while. The peer is heard only when it is asked, and its breaks count from then on.
  StallDetector d(kFloor, 4);
  Nanoseconds heard = kStart, alive_since = kStart, suspected = 0;
  d.step(kStart + kMs, kStart, heard);
  d.paused(4 * kFloor);
  for (Nanoseconds t = kStart + 2 * kMs; !suspected && t < kStart + 100 * kFloor; t += kMs) {
    switch (d.step(t, kStart, heard, alive_since)) {
      case Verdict::kFine:
        break;
      case Verdict::kAskPeer:
        if (t > heard + kFloor) alive_since = t;  // as Engine::heard does
        heard = t;
        break;
      case Verdict::kSuspect:
        suspected = t;
    }
  }
  CHECK(suspected >= kStart + 5 * kFloor && suspected <= kStart + 9 * kFloor);
}

CASE(a_peer_that_is_silent_everywhere_costs_no_link) {
  StallDetector d(kFloor, 4);
  for (Nanoseconds t = kStart; t < kStart + 100 * kFloor; t += kMs) CHECK(d.step(t, kStart, 0) != Verdict::kSuspect);
}

CASE(the_last_link_gets_longer_and_less_so_where_others_can_pass_things_on) {
  for (Nanoseconds times : {Nanoseconds{1}, StallDetector::kLastRail, StallDetector::kLastLink}) {
    StallDetector d(kFloor, 4);
    Nanoseconds t = kStart;
    while (d.step(t, kStart, t, 0, times) != Verdict::kSuspect) t += kMs;
    CHECK(t >= kStart + times * kFloor && t <= kStart + times * kFloor + 2 * kMs);
  }
}

CASE(time_in_which_this_process_or_the_peer_did_not_run_is_not_counted) {
  StallDetector d(kFloor, 4);
  const Nanoseconds t = kStart + kFloor + kMs;
  StallDetector paused = d;
  paused.paused(50 * kMs);
  CHECK(d.step(t, kStart, t) == Verdict::kSuspect);
  CHECK(paused.step(t, kStart, t) != Verdict::kSuspect);
  CHECK(paused.step(t + 50 * kMs, kStart, t + 50 * kMs) == Verdict::kSuspect);
  StallDetector other(kFloor, 4);
  CHECK(other.step(t, kStart, t, 0, 1, 30 * kMs) != Verdict::kSuspect);
  CHECK(other.step(t + 30 * kMs, kStart, t + 30 * kMs, 0, 1, 30 * kMs) == Verdict::kSuspect);
  // What was excused is forgotten with the next movement.
  paused.acknowledged(t, kStart);
  CHECK(paused.step(t + kFloor + kMs, t, t + kFloor + kMs) == Verdict::kSuspect);
  Pauses p;
  p.add(kStart, 10 * kMs);
  p.add(kStart + 20 * kMs, 15 * kMs);
  CHECK(p.within(kStart + 25 * kMs, 100 * kMs) == 25 * kMs);
  CHECK(p.within(kStart + 110 * kMs, 100 * kMs) == 15 * kMs);
  CHECK(p.within(kStart + 200 * kMs, 100 * kMs) == 0);
}

CASE(a_link_with_long_queues_gets_two_round_trips_but_not_for_ever) {
  for (const Nanoseconds rtt : {60 * kMs, 10'000 * kMs}) {
    StallDetector d(kFloor, 4);
    d.progress(kStart + kFloor / 2, 1, kStart, rtt);
    const Nanoseconds limit = rtt == 60 * kMs ? 120 * kMs : kFloor * 3 / 2;
    CHECK(d.step(kStart + limit - 5 * kMs, kStart, kStart + limit) != Verdict::kSuspect);
    CHECK(d.step(kStart + limit + 5 * kMs, kStart, kStart + limit) == Verdict::kSuspect);
  }
}

CASE(a_peer_that_was_stopped_gets_time_to_acknowledge_when_it_speaks_again) {
  StallDetector d(kFloor, 4);
  Nanoseconds t = kStart;
  for (; t < kStart + 10 * kFloor; t += kMs)
    CHECK(d.step(t, kStart, kStart) != Verdict::kSuspect || t < kStart + 2 * kFloor);
  // Its answer over another path comes first, the acknowledgement a little later.
  const Nanoseconds woke = t;
  for (; t < woke + kFloor / 2; t += kMs) CHECK(d.step(t, kStart, t, woke) != Verdict::kSuspect);
  d.acknowledged(t, kStart);
  CHECK(d.step(t + kMs, t, t) == Verdict::kFine);
}

CASE(bytes_that_move_keep_a_slow_link_alive) {
  StallDetector d(kFloor, 4);
  uint64_t reading = 1;
  for (Nanoseconds t = kStart; t < kStart + StallDetector::kPatience * kFloor; t += kMs) {
    if (d.wants_progress(t, kStart)) d.progress(t, ++reading, kStart);
    CHECK(d.step(t, kStart, t) != Verdict::kSuspect);
  }
  CHECK(d.slow(kStart + 2 * kFloor, kStart));
}

CASE(bytes_alone_do_not_keep_a_link_for_ever) {
  StallDetector d(kFloor, 4);
  uint64_t reading = 1;
  bool suspected = false;
  for (Nanoseconds t = kStart; t < kStart + 4 * StallDetector::kPatience * kFloor; t += kMs) {
    if (d.wants_progress(t, kStart)) d.progress(t, ++reading, kStart);
    suspected |= d.step(t, kStart, t) == Verdict::kSuspect;
  }
  CHECK(suspected);
}

CASE(a_reading_that_stands_still_is_no_progress) {
  StallDetector d(kFloor, 4);
  d.progress(kStart, 5, kStart);
  bool suspected = false;
  for (Nanoseconds t = kStart; t < kStart + 3 * kFloor; t += kMs) {
    d.progress(t, 5, kStart);
    suspected |= d.step(t, kStart, t) == Verdict::kSuspect;
  }
  CHECK(suspected);
}

CASE(the_reading_is_not_taken_while_all_is_well) {
  StallDetector d(kFloor, 4);
  CHECK(!d.wants_progress(kStart + kFloor / 4, kStart));
  CHECK(d.wants_progress(kStart + kFloor / 4 + 1, kStart));
  CHECK(!d.wants_progress(kStart + kFloor, 0));
  CHECK(!d.wants_progress(kStart, kStart + 5));
}

CASE(a_link_that_is_usually_slow_gets_longer) {
  StallDetector d(kFloor, 4);
  Nanoseconds t = kStart;
  for (int i = 0; i < 100; ++i) {
    d.acknowledged(t + 80 * kMs, t);
    t += 80 * kMs;
  }
  CHECK(d.limit_ns() > 310 * kMs && d.limit_ns() <= 320 * kMs);
  Nanoseconds suspected = 0;
  for (Nanoseconds now = t; !suspected && now < t + 1000 * kMs; now += kMs)
    if (d.step(now, t, now) == Verdict::kSuspect) suspected = now;
  CHECK(suspected >= t + 310 * kMs && suspected <= t + 640 * kMs);
}

CASE(the_limit_never_falls_below_the_floor) {
  StallDetector d(kFloor, 4);
  for (int i = 0; i < 100; ++i) d.acknowledged(kStart + static_cast<Nanoseconds>(i) * 1000, kStart);
  CHECK(d.limit_ns() == kFloor);
}

CASE(an_acknowledgement_of_another_chunk_counts_as_a_sign_of_life) {
  StallDetector d(kFloor, 4);
  const Nanoseconds oldest = kStart;
  for (Nanoseconds t = kStart; t < kStart + 20 * kFloor; t += kFloor / 4) {
    d.acknowledged(t, t);  // a chunk posted just now
    CHECK(d.step(t + kFloor / 4, oldest, t) == Verdict::kFine);
  }
}

CASE(one_long_pause_is_forgotten_after_some_chunks) {
  StallDetector d(kFloor, 4);
  d.acknowledged(kStart + 10'000 * kMs, kStart);
  Nanoseconds t = kStart + 10'000 * kMs;
  for (int i = 0; i < 64; ++i, t += kMs) d.acknowledged(t + kMs, t);
  CHECK(d.limit_ns() == kFloor);
}

int main(int argc, char** argv) { return r2ccl::test::run_cases(argc, argv); }

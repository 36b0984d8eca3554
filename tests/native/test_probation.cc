// The way back of one link under a fake clock: how long it must prove itself, and when it fails.
#include "cases.h"
#include "flow/probation.h"

using namespace r2ccl;
using Verdict = Probation::Verdict;

namespace {

constexpr Nanoseconds kMs = 1'000'000, kS = 1000 * kMs;

// Answers every ping at once, and the peer is ready at once, until both are content: how long that took.
Nanoseconds prove(Probation& p, Nanoseconds now) {
  p.begin(now);
  p.peer_ready();
  for (Nanoseconds t = now; t < now + 60 * kS; t += kMs) {
    const Verdict v = p.step(t);
    CHECK(v != Verdict::kFailed);
    if (v == Verdict::kWait) continue;
    if (v == Verdict::kReady && p.both_ready(t)) {
      p.admitted(t);
      return t - now;
    }
    p.pong(p.next_token());
  }
  CHECK(!"never admitted");
  return 0;
}

bool about(Nanoseconds got, Nanoseconds want) { return got >= want && got <= want + 20 * kMs; }

}  // namespace

CASE(a_clean_link_is_admitted_after_the_shortest_time) {
  Probation p;
  CHECK(about(prove(p, kS), Probation::kShortestNs));
}

CASE(pings_without_an_answer_fail_it) {
  Probation p;
  p.begin(kS);
  p.peer_ready();
  Nanoseconds failed = 0;
  for (Nanoseconds t = kS; t < 3 * kS && !failed; t += kMs) {
    const Verdict v = p.step(t);
    CHECK(!p.both_ready(t));
    if (v == Verdict::kFailed) failed = t;
    if (v == Verdict::kPing) p.next_token();
  }
  CHECK(failed > kS + Probation::kAnswerNs && failed < kS + 2 * Probation::kAnswerNs);
}

CASE(it_waits_for_the_peer_however_clean_it_is) {
  Probation p;
  p.begin(kS);
  for (Nanoseconds t = kS; t < 3 * kS; t += 10 * kMs) {
    if (p.step(t) != Verdict::kWait) p.pong(p.next_token());
    CHECK(!p.both_ready(t));
  }
  p.peer_ready();
  CHECK(p.both_ready(3 * kS));
}

// The same rail fails again during probation: twice as long next time, up to the longest.
CASE(failing_in_probation_doubles_what_must_be_proved) {
  Probation p;
  Nanoseconds now = kS, want = Probation::kShortestNs;
  for (int i = 0; i < 9; ++i) {
    p.begin(now);
    CHECK(p.clean_ns() == want);
    now += 10 * kMs;
    p.failed(now);
    want = std::min(2 * want, Probation::kLongestNs);
    now += 10 * kMs;
  }
  CHECK(want == Probation::kLongestNs && about(prove(p, now), Probation::kLongestNs));
}

CASE(failing_soon_after_it_doubles_and_failing_late_does_not) {
  Probation p;
  Nanoseconds now = kS;
  now += prove(p, now);
  p.failed(now + 5 * Probation::kShortestNs);
  now += kS;
  CHECK(about(prove(p, now), 2 * Probation::kShortestNs));
  now += 2 * Probation::kShortestNs;
  p.failed(now + 60 * kS);
  CHECK(about(prove(p, now + 61 * kS), Probation::kShortestNs));
}

// A rail that flapped has much to prove, but not when every other link to the peer is gone as well.
CASE(the_only_path_to_a_peer_has_nothing_more_to_prove) {
  Probation p;
  Nanoseconds now = kS;
  for (int i = 0; i < 9; ++i) {
    p.begin(now);
    p.failed(now += 10 * kMs);
  }
  p.begin(now);
  p.peer_ready();
  p.others(true);
  for (Nanoseconds t = now; t < now + 2 * kS; t += 10 * kMs) {
    CHECK(p.step(t) == Verdict::kPing);
    p.pong(p.next_token());
    CHECK(!p.both_ready(t));
  }
  p.others(false);
  CHECK(p.both_ready(now + 2 * kS));
  CHECK(p.step(now + 2 * kS) == Verdict::kReady);
  p.others(true);
  CHECK(p.both_ready(now + 2 * kS));             // the peer was told, and may have begun to use it
  CHECK(p.clean_ns() == Probation::kLongestNs);  // what it has to prove next time is not forgotten
}

int main(int argc, char** argv) { return r2ccl::test::run_cases(argc, argv); }

// What failed, and when an idle link is taken for dead, under a clock of the test's own.
#include "cases.h"
#include "flow/diagnosis.h"
#include "flow/rate.h"

using namespace r2ccl;

namespace {
constexpr Nanoseconds kMs = 1'000'000;
constexpr Nanoseconds kStart = 1'000'000 * kMs;
constexpr Nanoseconds kEvery = 500 * kMs, kAnswer = 100 * kMs;

// How long after kStart the link is suspected; 0: never within 10 s. answers(t): the link answers a ping sent at t.
template <class Answers>
Nanoseconds suspected_after(Answers&& answers, bool elsewhere) {
  Heartbeat h;
  Nanoseconds heard = kStart;
  for (Nanoseconds t = kStart; t < kStart + 10'000 * kMs; t += kMs) {
    switch (h.step(t, heard, [&] { return elsewhere ? t : kStart; }, kEvery, kAnswer)) {
      case Heartbeat::Verdict::kFine:
        break;
      case Heartbeat::Verdict::kPing:
        if (answers(t)) heard = t + kMs;
        break;
      case Heartbeat::Verdict::kSuspect:
        return t - kStart;
    }
  }
  return 0;
}
}  // namespace

CASE(an_answer_proves_a_rail_and_silence_of_one_host_does_not_condemn_it) {
  CHECK((RailAnswers{1, 5, 5}.finding() == Finding::kAlive));
  CHECK((RailAnswers{0, 3, 0}.finding() == Finding::kUnknown));
  CHECK((RailAnswers{0, 3, 1}.finding() == Finding::kDead));
  CHECK((RailAnswers{0, 0, 0}.finding() == Finding::kUnknown));
}

CASE(verdicts) {
  struct {
    Finding mine, theirs;
    Verdict verdict;
  } const table[] = {
      {Finding::kDead, Finding::kAlive, Verdict::kLocalRail},
      {Finding::kDead, Finding::kDead, Verdict::kLocalRail},
      {Finding::kAlive, Finding::kDead, Verdict::kRemoteRail},
      {Finding::kUnknown, Finding::kDead, Verdict::kRemoteRail},
      {Finding::kAlive, Finding::kAlive, Verdict::kPath},
      {Finding::kAlive, Finding::kUnknown, Verdict::kPath},
      {Finding::kUnknown, Finding::kUnknown, Verdict::kPath},
  };
  for (const auto& row : table) {
    Diagnosis d;
    d.begin(kStart, 50 * kMs);
    CHECK(!d.ready(kStart));
    d.found(row.mine, {}, false);
    d.told(kStart, row.theirs, false, 50 * kMs);
    CHECK(d.ready(kStart + kMs));
    CHECK(d.verdict() == row.verdict);
  }
}

CASE(a_peer_that_says_nothing_is_not_waited_for_forever) {
  Diagnosis d;
  d.begin(kStart, 50 * kMs);
  d.found(Finding::kAlive, {2, 0, 0}, false);
  CHECK(!d.ready(kStart + Diagnosis::kPatienceNs));
  CHECK(d.ready(kStart + Diagnosis::kPatienceNs + kMs) && d.verdict() == Verdict::kPath);
  // Who knows that the own rail is dead need not wait.
  d.begin(kStart, 50 * kMs);
  d.found(Finding::kDead, {}, true);
  CHECK(d.ready(kStart) && d.verdict() == Verdict::kLocalRail);
}

CASE(the_direction_is_told_by_who_heard_whom_last) {
  const struct {
    Nanoseconds mine, theirs;
    Direction direction;
  } table[] = {{60 * kMs, 58 * kMs, Direction::kBoth},
               {60 * kMs, 2 * kMs, Direction::kFromPeer},
               {2 * kMs, 60 * kMs, Direction::kToPeer}};
  for (const auto& row : table) {
    Diagnosis d;
    d.begin(kStart, row.mine);
    CHECK(d.direction() == Direction::kUnknown);
    d.told(kStart, Finding::kAlive, false, row.theirs);
    CHECK(d.direction() == row.direction);
  }
}

CASE(a_quick_return_is_a_false_alarm_unless_an_interface_was_down) {
  Diagnosis d;
  CHECK(!d.false_alarm(kStart));
  d.begin(kStart, 50 * kMs);
  CHECK(d.false_alarm(kStart + 300 * kMs));
  CHECK(!d.false_alarm(kStart + Diagnosis::kFalseAlarmNs));
  d.told(kStart, Finding::kDead, true, 0);
  CHECK(!d.false_alarm(kStart + 300 * kMs));
}

CASE(a_word_of_the_peer_that_overtakes_its_notice_counts) {
  auto verdict = [](Nanoseconds told, bool reopened) {
    Diagnosis d;
    d.told(told, Finding::kDead, true, 0);
    if (reopened) d.reopened();
    d.begin(kStart, kMs);
    d.found(Finding::kAlive, {.answered = 1}, false);
    CHECK(d.ready(kStart + Diagnosis::kPatienceNs + kMs));
    return d.ready(kStart) ? d.verdict() : Verdict::kNone;
  };
  CHECK(verdict(kStart - kMs, false) == Verdict::kRemoteRail);
  CHECK(verdict(kStart - kMs, true) == Verdict::kNone);  // it was about an earlier failure: the peer is waited for
  CHECK(verdict(kStart - Diagnosis::kPatienceNs, false) == Verdict::kNone);
}

CASE(an_idle_link_that_answers_is_never_suspected) {
  CHECK(suspected_after([](Nanoseconds) { return true; }, true) == 0);
}

CASE(an_idle_link_is_suspected_after_two_unanswered_pings) {
  const Nanoseconds t = suspected_after([](Nanoseconds) { return false; }, true);
  CHECK(t >= kEvery + 2 * kAnswer && t <= kEvery + 2 * kAnswer + 5 * kMs);
}

CASE(one_lost_ping_costs_nothing) {
  int asked = 0;
  CHECK(suspected_after([&](Nanoseconds) { return ++asked % 2 == 0; }, true) == 0);
}

CASE(a_peer_that_is_silent_everywhere_is_only_asked) {
  CHECK(suspected_after([](Nanoseconds) { return false; }, false) == 0);
}

CASE(no_heartbeat_when_switched_off) {
  Heartbeat h;
  CHECK(h.step(kStart, kMs, [] { return kStart; }, 0, kAnswer) == Heartbeat::Verdict::kFine);
}

CASE(a_rate_over_a_span_does_not_depend_on_how_acknowledgements_come) {
  LinkRate one_by_one, in_batches;
  for (uint64_t i = 1; i <= 60; ++i) {
    one_by_one.acknowledged(kStart + i * kMs, kStart, 1000);
    in_batches.acknowledged(kStart + (i + 9) / 10 * 10 * kMs, kStart, 1000);
    if (i == 49) CHECK(one_by_one.take_span(50 * kMs) == 0);
  }
  const double rate = 1000.0 / kMs;
  CHECK(std::abs(one_by_one.take_span(50 * kMs) / rate - 1) < 1e-3);
  CHECK(std::abs(in_batches.take_span(50 * kMs) / rate - 1) < 1e-3);
  CHECK(in_batches.learnt() > 1.5 * rate);  // which is why there is take_span
  CHECK(one_by_one.take_span(50 * kMs) == 0);
}

CASE(only_whether_a_rail_is_slow_is_told_and_not_often) {
  SpeedClass s;
  Nanoseconds t = kStart;
  auto later = [&](double mbps) {
    s.update(t += SpeedClass::kRestNs, mbps);
    return s.value();
  };
  for (double fast : {5000.0, 300.0, 150.0}) CHECK(later(fast) == SpeedClass::kWhole);
  for (double slow : {100.0, 300.0, 25.0, 140.0, 0.0}) CHECK(later(slow) == SpeedClass::kSlow);
  CHECK(later(400) == SpeedClass::kWhole);
  s.update(t + kMs, 1);
  CHECK(s.value() == SpeedClass::kWhole);
  CHECK(later(1) == SpeedClass::kSlow);
  CHECK(later(400) == SpeedClass::kWhole);
}

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

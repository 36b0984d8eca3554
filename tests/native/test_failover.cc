// The repair protocol, by visiting every interleaving of small worlds (failover_model.h). The same checker has to find
// the mistake in every mutant: a check that cannot fail proves nothing.
#include <cstdlib>

#include "cases.h"
#include "failover_model.h"

using namespace r2ccl::model;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSmall = true;
#else
constexpr bool kSmall = false;
#endif

void holds(const char* name, const Limits& limits, bool large = false) {
  if (large && kSmall) return;
  const Outcome o = explore<Mutant::kNone>(limits);
  o.print(name);
  if (!CHECK(o.violation.empty()) || !CHECK(o.complete) || !CHECK(o.finals > 0)) {
    for (const auto& move : o.trace) std::fprintf(stderr, "    %s\n", move.c_str());
  }
}

template <Mutant M>
void is_caught(const char* name, const Limits& limits) {
  const Outcome o = explore<M>(limits);
  o.print(name);
  CHECK(!o.violation.empty());
  CHECK(!o.trace.empty());
}

// Under a sanitizer a state costs twenty times as much.
const Limits kPlain{
    .links = 2, .chunks = {2, 0}, .faulty_links = 1, .drops = 1, .doubles = kSmall ? uint8_t{0} : uint8_t{1}};
const Limits kDoubled{.links = 2, .chunks = {1, 0}, .faulty_links = 1, .drops = 0, .doubles = 1};

}  // namespace

CASE(one_link_is_lost) { holds("one link of two is lost", kPlain); }
CASE(messages_are_stale) {
  holds("stale messages", {.links = 2,
                           .chunks = {2, 0},
                           .faulty_links = 1,
                           .drops = 0,
                           .doubles = 0,
                           .stale = kSmall ? uint8_t{1} : uint8_t{2}});
}
CASE(both_ends_send) {
  holds("both ends send", {.links = 2, .chunks = {1, 1}, .faulty_links = 1, .drops = 1, .doubles = 0});
}
CASE(three_chunks_through_a_window_of_two) {
  holds("three chunks", {.links = 2, .chunks = {3, 0}, .faulty_links = 1, .drops = 1, .doubles = 1}, true);
}
CASE(four_chunks) {
  holds("four chunks", {.links = 2, .chunks = {4, 0}, .faulty_links = 1, .drops = 0, .doubles = 1}, true);
}
CASE(a_second_link_is_lost_during_the_repair) {
  holds("two links of three are lost, one chunk",
        {.links = 3, .chunks = {1, 0}, .faulty_links = 2, .drops = 0, .doubles = 0}, true);
  Limits two{
      .links = 3, .chunks = {2, 0}, .faulty_links = 2, .drops = 0, .doubles = 0, .cuts = false, .half_reads = false};
  holds("two links of three are lost, two chunks", two, true);
  // Over a million states: for a change of the protocol, not for every run.
  two.cuts = two.half_reads = std::getenv("R2CCL_LONG_TESTS") != nullptr;
  if (two.cuts) holds("... and cut, and half read", two, true);
}
CASE(every_link_is_lost_and_nothing_with_them) {
  holds("every link is lost, one chunk", {.links = 2, .chunks = {1, 0}, .faulty_links = 2, .drops = 0, .doubles = 0});
  holds("every link is lost, two chunks", {.links = 2, .chunks = {2, 0}, .faulty_links = 2, .drops = 0, .doubles = 0},
        true);
}

CASE(a_link_is_connected_again_and_fails_in_probation_or_soon_after) {
  Limits back{.links = 2,
              .chunks = {2, 0},
              .faulty_links = 1,
              .drops = 0,
              .doubles = 1,
              .reopens = 1,
              .cuts = false,
              .half_reads = false};
  holds("a link returns, messages of its earlier life are late", back, true);
  back.doubles = 0;
  holds("a link returns", back);
  back.drops = 1;
  holds("a link returns, messages are lost", back, true);
  back.drops = 0;
  back.reopens = 2;
  back.chunks = {1, 0};
  holds("a link returns twice", back);
  back.reopens = 1;
  back.chunks = {1, 1};
  holds("a link returns, both ends send", back, true);
}

CASE(mutants_are_caught) {
  is_caught<Mutant::kAnswerBeforeFence>("mutant: answer before fence", kPlain);
  is_caught<Mutant::kForgetFence>("mutant: no fence", kPlain);
  is_caught<Mutant::kForgetRollBack>("mutant: no roll-back", kPlain);
  is_caught<Mutant::kReplayWithoutAnswer>("mutant: replay without the answer", kPlain);
  is_caught<Mutant::kNoRepeat>("mutant: notices are not repeated", kPlain);
  is_caught<Mutant::kIgnoreGeneration>(
      "mutant: the generation is ignored",
      {.links = 2, .chunks = {2, 0}, .faulty_links = 1, .drops = 0, .doubles = 0, .stale = 1});
  is_caught<Mutant::kBelieveEveryAnswer>("mutant: every answer is believed", kDoubled);
  is_caught<Mutant::kReportTooEarly>("mutant: reported too early", kPlain);
  is_caught<Mutant::kAnswerNothingArrived>("mutant: nothing ever arrived", kPlain);
  is_caught<Mutant::kForgetOwnNotice>("mutant: the other end asks for nothing", kPlain);
  is_caught<Mutant::kSameGeneration>("mutant: a returned link keeps its number", {.links = 2,
                                                                                  .chunks = {2, 0},
                                                                                  .faulty_links = 1,
                                                                                  .drops = 0,
                                                                                  .doubles = 1,
                                                                                  .reopens = 1,
                                                                                  .cuts = false,
                                                                                  .half_reads = false});
}

int main(int argc, char** argv) { return r2ccl::test::run_cases(argc, argv); }

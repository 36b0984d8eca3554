// Agreement on the health of rails: many ranks over a network that loses, repeats and delays, under a clock of the
// test's own. What must hold: a call has the same epoch and the same health on all ranks; changes come through.
#include <map>
#include <memory>
#include <random>

#include "cases.h"
#include "flow/agreement.h"

using namespace r2ccl;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr uint32_t kRails = 2;

struct World {
  struct Letter {
    Nanoseconds due;
    int32_t from, to;
    AgreementMessage message;
  };

  World(int32_t n, uint64_t seed, int loss_percent) : random(seed), loss(loss_percent) {
    for (int32_t r = 0; r < n; ++r) ranks.push_back(std::make_unique<Agreement>(r, std::vector<uint32_t>(n, kRails)));
    calls.assign(static_cast<size_t>(n), 0);
    health.assign(static_cast<size_t>(n) * kRails, 255);
    gone.assign(static_cast<size_t>(n), false);
  }

  Agreement::Send sender(int32_t from) {
    return [this, from](int32_t to, const AgreementMessage& m, bool) {
      const int copies = static_cast<int>(random() % 100) < loss ? 0 : random() % 10 == 0 ? 2 : 1;
      for (int i = 0; i < copies; ++i) letters.push_back({now + random() % (5 * kMs), from, to, m});
    };
  }
  void change(int32_t rank, uint32_t rail, uint8_t level) {
    ranks[static_cast<size_t>(rank)]->set_own(rail, level);
    health[static_cast<size_t>(rank) * kRails + rail] = level;
  }
  // A rank begins its next collective, unless it may not. Every other rank must have begun the one before.
  void call(size_t r) {
    Agreement& a = *ranks[r];
    if (a.frozen()) return;
    for (uint64_t c : calls)
      if (c + 3 < calls[r]) return;  // at most three ahead, as with asynchronous calls
    const uint64_t number = calls[r]++;
    const HealthEpoch& e = a.at(number);
    const auto [it, first] = begun.emplace(number, e);
    if (!first) CHECK(it->second.epoch == e.epoch && it->second.health == e.health);
  }
  void step() {
    now += kMs;
    std::vector<Letter> due;
    std::erase_if(letters, [&](const Letter& l) {
      if (l.due > now) return false;
      due.push_back(l);
      return true;
    });
    std::shuffle(due.begin(), due.end(), random);
    for (const Letter& l : due)
      if (!gone[static_cast<size_t>(l.to)])
        ranks[static_cast<size_t>(l.to)]->receive(l.from, l.message, now, calls[static_cast<size_t>(l.to)],
                                                  sender(l.to));
    for (size_t r = 0; r < ranks.size(); ++r)
      if (!gone[r]) ranks[r]->tick(now, calls[r], sender(static_cast<int32_t>(r)));
  }
  bool agreed() const {
    for (size_t r = 0; r < ranks.size(); ++r)
      if (!gone[r] && (ranks[r]->frozen() || ranks[r]->at(UINT64_MAX).health != health)) return false;
    return true;
  }

  std::mt19937_64 random;
  int loss;
  Nanoseconds now = 1'000'000 * kMs;
  std::vector<std::unique_ptr<Agreement>> ranks;
  std::vector<uint64_t> calls;
  std::vector<bool> gone;
  std::vector<uint8_t> health;
  std::vector<Letter> letters;
  std::map<uint64_t, HealthEpoch> begun;
};

// Random changes and calls; then quiet, until all agree. How many epochs there were.
uint32_t run(int32_t n, uint64_t seed, int loss, int steps, int changes) {
  World w(n, seed, loss);
  w.change(n - 1, 0, 3);
  for (int s = 0; s < steps; ++s) {
    if (static_cast<int>(w.random() % static_cast<uint64_t>(steps)) < changes)
      w.change(static_cast<int32_t>(w.random() % static_cast<uint64_t>(n)), static_cast<uint32_t>(w.random() % kRails),
               w.random() % 2 ? 255 : static_cast<uint8_t>(w.random() % 200));
    for (size_t r = 0; r < w.ranks.size(); ++r)
      if (w.random() % 3) w.call(r);
    w.step();
  }
  int quiet = 0;
  for (; quiet < 20'000 && !w.agreed(); ++quiet) w.step();
  if (!CHECK(w.agreed())) std::fprintf(stderr, "ranks %d seed %llu\n", n, static_cast<unsigned long long>(seed));
  for (size_t r = 0; r < w.ranks.size(); ++r) w.call(r);
  return w.ranks[0]->epoch();
}

}  // namespace

CASE(one_rank_agrees_with_itself) {
  World w(1, 1, 0);
  w.change(0, 1, 0);
  for (int i = 0; i < 20; ++i) w.step();
  CHECK(w.agreed() && w.ranks[0]->epoch() == 1);
}

CASE(a_change_is_one_epoch_and_the_ranks_of_a_host_share_it) {
  World w(6, 2, 0);
  w.change(2, 0, 0);
  w.change(3, 0, 0);
  for (int i = 0; i < 100; ++i) w.step();
  CHECK(w.agreed());
  for (auto& a : w.ranks) CHECK(a->epoch() == 1);
}

CASE(calls_that_had_begun_keep_their_plan) {
  World w(3, 3, 0);
  for (int i = 0; i < 3; ++i) w.call(1);  // rank 1 is three calls ahead
  w.change(0, 0, 0);
  for (int i = 0; i < 100; ++i) w.step();
  CHECK(w.agreed());
  CHECK(w.ranks[0]->at(0).epoch == 0 && w.ranks[0]->at(2).epoch == 0 && w.ranks[0]->at(3).epoch == 1);
}

CASE(a_rank_that_makes_no_call_for_long_still_answers) {
  World w(4, 4, 20);
  w.change(3, 1, 0);
  for (int i = 0; i < 3000; ++i) {
    w.call(0);
    w.step();
  }
  CHECK(w.agreed() && w.calls[0] >= 3 && w.calls[3] == 0);
}

CASE(any_network_any_order) {
  uint32_t epochs = 0;
  for (uint64_t seed = 0; seed < 400; ++seed)
    for (int32_t n : {2, 3, 5})
      epochs += run(n, seed * 7 + static_cast<uint64_t>(n), static_cast<int>(seed % 5) * 15, 400, 8);
  CHECK(epochs > 2000);
}

CASE(a_tree_of_many_ranks) {
  for (uint64_t seed = 0; seed < 6; ++seed)
    for (int32_t n : {65, 66, 200}) CHECK(run(n, seed, static_cast<int>(seed % 3) * 15, 250, 4) > 0);
}

CASE(ranks_that_leave_are_not_waited_for) {
  for (int32_t n : {5, 90}) {
    World w(n, 6, 10);
    w.change(2, 0, 0);
    for (int i = 0; i < 8; ++i) w.step();
    for (size_t r : {size_t{1}, size_t{4}}) {  // 1 has children in the tree
      w.gone[r] = true;
      for (auto& a : w.ranks) a->leave(static_cast<int32_t>(r));
    }
    w.change(3, 1, 7);
    for (int i = 0; i < 3000 && !w.agreed(); ++i) w.step();
    CHECK(w.agreed());
  }
}

CASE(who_is_waited_for_is_named) {
  World w(3, 7, 0);
  w.gone[2] = true;  // stopped
  w.change(1, 0, 0);
  for (int i = 0; i < 200; ++i) w.step();
  CHECK(w.ranks[0]->frozen() && w.ranks[0]->missing() == std::vector<int32_t>{2});
  CHECK(w.ranks[1]->frozen() && w.ranks[1]->missing() == std::vector<int32_t>{0});
  w.gone[2] = false;
  for (int i = 0; i < 2000 && !w.agreed(); ++i) w.step();
  CHECK(w.agreed());
}

CASE(nonsense_changes_nothing) {
  World w(3, 8, 0);
  const auto send = w.sender(1);
  Agreement& a = *w.ranks[1];
  a.receive(0, {AgreementMessage::kPrepare, 5, 0, std::vector<uint8_t>(3, 1)}, w.now, 0, send);
  a.receive(0, {AgreementMessage::kCommit, 9, 100, {}}, w.now, 0, send);
  a.receive(2, {AgreementMessage::kPrepared, 1, 100, {}}, w.now, 0, send);
  a.receive(2, {AgreementMessage::kCommitted, 0, 0, {}}, w.now, 0, send);
  w.ranks[0]->receive(1, {AgreementMessage::kReport, 0, 1, std::vector<uint8_t>(9, 0)}, w.now, 0, w.sender(0));
  CHECK(!a.frozen() && a.epoch() == 0);
  for (int i = 0; i < 50; ++i) w.step();
  CHECK(w.agreed() && w.ranks[0]->epoch() == 0);
}

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

// What the slow loop tells the engine about lost ranks, and what it learns from it.
#include <unistd.h>

#include <thread>

#include "cases.h"
#include "cluster.h"
#include "fake_peer.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr size_t kCount = 20'000;
constexpr uint8_t kAllReduce = 0;

std::vector<int32_t> lost(Engine& engine) {
  std::vector<int32_t> ranks(8, -1);
  ranks.resize(engine.lost_ranks(ranks.data(), 8));
  return ranks;
}

// Waits until `engine` knows of a loss; false after ten seconds.
bool learns(Engine& engine) {
  for (int i = 0; i < 1000 && lost(engine).empty(); ++i) ::usleep(10'000);
  return !lost(engine).empty();
}

}  // namespace

CASE(a_rank_that_the_slow_loop_finds_dead_is_lost_for_all) {
  // Rank 2 is silent; rank 0's slow loop says why, and rank 1 hears it from rank 0.
  Cluster cluster({.ranks = 3, .rails = 1});
  const Plans plans = direct_all_reduce(3);
  std::thread slow_loop([&] {
    ::usleep(100'000);
    cluster[0].peer_ended(2);
  });
  cluster.each([&](int r) {
    if (r == 2) return;
    std::vector<float> send(kCount, 1.0f), recv(kCount);
    CHECK(run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount), 10) ==
          Status::PEER_LOST);
    CHECK(cluster[r].error_text().find("rank 2 is lost") != std::string::npos);
    CHECK(lost(cluster[r]) == std::vector<int32_t>{2});
  });
  slow_loop.join();
}

CASE(nonsense_about_lost_ranks_changes_nothing) {
  Cluster cluster({.ranks = 2, .rails = 1});
  for (int32_t rank : {-1, 0, 2, 1 << 30}) cluster[0].peer_ended(rank);
  CHECK(cluster[0].status() == Status::OK);
  CHECK(lost(cluster[0]).empty());
}

CASE(a_rank_that_closed_is_lost_and_one_that_failed_is_not) {
  Cluster cluster({.ranks = 3, .rails = 1});
  cluster[1].close(0);
  CHECK(learns(cluster[0]));
  CHECK(lost(cluster[0]) == std::vector<int32_t>{1});
  cluster[2].abort("enough");  // it may be about to look for the other survivors
  ::usleep(200'000);
  CHECK(lost(cluster[0]) == std::vector<int32_t>{1});
}

CASE(whose_loss_it_was_comes_with_the_goodbye_of_those_who_gave_up) {
  // Rank 2 saw the end of rank 1 and could not tell; rank 3 heard of it, and only says goodbye.
  std::vector<std::unique_ptr<FakePeer>> peers;
  auto engine = engine_with(&peers, {.ranks = 4, .rails = 1});
  const std::string words = "rank 1 is lost";
  FrameHeader goodbye{.kind = FrameKind::kGoodbye,
                      .flags = static_cast<uint16_t>(Status::PEER_LOST),
                      .bytes = static_cast<uint32_t>(words.size())};
  for (const uint32_t nonsense : {1u, 5u, 1u << 31, UINT32_MAX}) {  // 1: this rank itself
    goodbye.chunk = nonsense;
    peers[1]->say(peers[1]->control, goodbye, {words.begin(), words.end()});
  }
  ::usleep(100'000);
  CHECK(engine->status() == Status::OK && lost(*engine).empty());
  goodbye.chunk = 2;
  peers[2]->say(peers[2]->control, goodbye, {words.begin(), words.end()});
  CHECK(learns(*engine) && lost(*engine) == std::vector<int32_t>{1});
  CHECK(engine->status() == Status::PEER_LOST);
  CHECK(engine->error_text() == "rank 1 is lost (as another rank reports)");
}

CASE(the_slow_loop_can_be_woken) {
  Cluster cluster({.ranks = 2, .rails = 1});
  cluster[0].wait_links_down(1'000'000);  // takes what the start had to say
  const Nanoseconds begin = monotonic_ns();
  std::thread waker([&] {
    ::usleep(50'000);
    cluster[0].wake_slow_loop();
  });
  CHECK(cluster[0].wait_links_down(20'000'000'000) == 0);
  CHECK(monotonic_ns() - begin < 10'000'000'000u);
  waker.join();
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

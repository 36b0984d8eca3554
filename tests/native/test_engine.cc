// The executor without faults: collectives, send and recv, many calls, several threads, abort, close, peers that
// vanish.
#include <signal.h>

#include <atomic>
#include <chrono>

#include "cases.h"
#include "cluster.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint8_t kAllReduce = 0, kBroadcast = 2, kSend = 8, kBarrier = 10;

double seconds_since(Nanoseconds t) { return static_cast<double>(monotonic_ns() - t) * 1e-9; }

void all_reduces(Cluster& cluster, const Plans& plans, size_t count, uint32_t calls) {
  const int n = cluster.options.ranks;
  cluster.each([&](int r) {
    for (uint32_t c = 0; c < calls; ++c) {
      const auto send = values(r, count, c);
      std::vector<float> recv(count, -1.0f);
      if (!CHECK(run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), count)) ==
                 Status::OK)) {
        std::fprintf(stderr, "  rank %d call %u: %s\n", r, c, cluster[r].error_text().c_str());
        return;
      }
      CHECK(same_bits(recv, sums(n, count, c)));
    }
  });
}

r2ccl_call_args message(const PlanImage& plan, int peer, float* data, uint64_t count) {
  r2ccl_call_args a = call_args(plan, kSend, data, data, count);  // both sides say the same
  a.peer = peer;
  return a;
}

}  // namespace

CASE(all_reduce_over_every_kind_of_link) {
  for (Kind kind : {Kind::kLoopback, Kind::kTcp, Kind::kShm}) {
    for (int n : {2, 3}) {
      Cluster cluster({.ranks = n, .rails = kind == Kind::kShm ? 1u : 2u, .kind = kind});
      for (size_t count : {0, 1, 1000, 50000}) {
        all_reduces(cluster, direct_all_reduce(n), count, 2);
        all_reduces(cluster, ring_all_reduce(n), count, 2);
      }
      for (int r = 0; r < n; ++r) {
        CHECK(cluster.counters(r).replayed_chunks == 0 && cluster.counters(r).refused_frames == 0);
        CHECK(cluster.events_of(r).empty());
      }
    }
  }
}

CASE(without_failover_a_call_needs_no_acknowledgement) {
  Cluster cluster({.ranks = 3, .rails = 2, .failover = false});
  all_reduces(cluster, ring_all_reduce(3), 60000, 5);
}

CASE(broadcasts_whose_root_runs_ahead) {
  for (Kind kind : {Kind::kTcp, Kind::kShm, Kind::kLoopback}) {
    Cluster cluster({.ranks = 3, .rails = 1, .kind = kind, .eager_bytes = 1024});
    const Plans plans = chain_broadcast(3);
    cluster.each([&](int r) {
      for (uint32_t c = 0; c < 60; ++c) {
        const size_t count = 1 + (c * 977) % 9000;
        if (r > 0 && c % 20 == 3) ::usleep(3000);
        std::vector<float> data = r == 0 ? values(0, count, c) : std::vector<float>(count, -1.0f);
        CHECK(run_call(cluster[r], call_args(*plans[r], kBroadcast, nullptr, data.data(), count)) == Status::OK);
        CHECK(same_bits(data, values(0, count, c)));
      }
    });
  }
}

CASE(barriers_of_empty_messages) {
  Cluster cluster({.ranks = 3, .rails = 1, .eager_bytes = 1024});
  const Plans plans = direct_all_reduce(3);
  std::atomic<int> inside{0};
  cluster.each([&](int r) {
    for (int c = 1; c <= 50; ++c) {
      inside.fetch_add(1);
      CHECK(run_call(cluster[r], call_args(*plans[r], kBarrier, nullptr, nullptr, 0)) == Status::OK);
      CHECK(inside.load() >= 3 * c);
    }
  });
}

CASE(calls_submitted_together_are_carried_out_in_order) {
  Cluster cluster({.ranks = 3, .rails = 2});
  const Plans plans = ring_all_reduce(3);
  cluster.each([&](int r) {
    constexpr uint32_t kCalls = 20;
    std::vector<std::vector<float>> send, recv;
    for (uint32_t c = 0; c < kCalls; ++c) {
      send.push_back(values(r, 3000, c));
      recv.emplace_back(3000, -1.0f);
    }
    std::vector<uint64_t> tickets(kCalls);
    for (uint32_t c = 0; c < kCalls; ++c)
      CHECK(cluster[r].submit(call_args(*plans[r], kAllReduce, send[c].data(), recv[c].data(), 3000), false,
                              &tickets[c]) == Status::OK);
    for (uint32_t c = kCalls; c-- > 0;) {
      CHECK(wait_for(cluster[r], tickets[c]) == Status::OK);
      CHECK(same_bits(recv[c], sums(3, 3000, c)));
    }
  });
}

CASE(messages_are_received_in_the_order_sent_however_large_they_are) {
  for (Kind kind : {Kind::kTcp, Kind::kShm}) {
    Cluster cluster({.ranks = 2, .rails = 1, .kind = kind});
    const auto out = message_plan(2, 1, true), in = message_plan(2, 0, false);
    constexpr size_t kCount = 200'000;  // many windows
    cluster.each([&](int r) {
      if (r == 0) {  // two large sends at once
        std::vector<float> a = values(0, kCount, 1), b = values(0, kCount, 2);
        uint64_t first = 0, second = 0;
        CHECK(cluster[0].submit(message(*out, 1, a.data(), kCount), false, &first) == Status::OK);
        CHECK(cluster[0].submit(message(*out, 1, b.data(), kCount), false, &second) == Status::OK);
        CHECK(wait_for(cluster[0], first, 10) == Status::OK);
        CHECK(wait_for(cluster[0], second, 10) == Status::OK);
      } else {  // one receive after the other
        for (uint32_t m : {1u, 2u}) {
          std::vector<float> data(kCount, -1.0f);
          if (!CHECK(run_call(cluster[1], message(*in, 0, data.data(), kCount), 10) == Status::OK))
            std::fprintf(stderr, "  %s\n", cluster[1].error_text().c_str());
          CHECK(same_bits(data, values(0, kCount, m)));
        }
      }
    });
  }
}

CASE(several_threads_wait_while_others_look) {
  Cluster cluster({.ranks = 2, .rails = 2});
  const Plans plans = direct_all_reduce(2);
  std::atomic<bool> stop{false};
  std::thread observer([&] {
    while (!stop.load()) {
      for (int r : {0, 1}) {
        cluster.counters(r);
        r2ccl_link_stats stats[4];
        CHECK(cluster[r].links(stats, 4) == 2);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  cluster.each([&](int r) {
    constexpr uint32_t kCalls = 60;
    std::vector<std::vector<float>> send, recv;
    std::vector<uint64_t> tickets(kCalls);
    for (uint32_t c = 0; c < kCalls; ++c) {
      send.push_back(values(r, 5000, c));
      recv.emplace_back(5000, -1.0f);
      CHECK(cluster[r].submit(call_args(*plans[r], kAllReduce, send[c].data(), recv[c].data(), 5000), c % 2,
                              &tickets[c]) == Status::OK);
    }
    std::vector<std::thread> waiters;
    for (int t = 0; t < 3; ++t)
      waiters.emplace_back([&, t] {
        for (uint32_t c = static_cast<uint32_t>(t); c < kCalls; c += 3)
          CHECK(wait_for(cluster[r], tickets[c]) == Status::OK);
      });
    for (auto& w : waiters) w.join();
    for (uint32_t c = 0; c < kCalls; ++c) CHECK(same_bits(recv[c], sums(2, 5000, c)));
  });
  stop.store(true);
  observer.join();
}

CASE(a_wait_keeps_its_time_whatever_else_happens) {
  Cluster cluster({.ranks = 2, .rails = 1});
  const Plans plans = direct_all_reduce(2);
  std::vector<float> send(1000, 1.0f), recv(1000);
  uint64_t ticket = 0;
  CHECK(cluster[0].submit(call_args(*plans[0], kAllReduce, send.data(), recv.data(), 1000), true, &ticket) ==
        Status::OK);
  const Nanoseconds begin = monotonic_ns();
  CHECK(cluster[0].wait(ticket, 100'000'000, nullptr) == Status::IN_PROGRESS);
  CHECK(seconds_since(begin) >= 0.09 && seconds_since(begin) < 2);
  CHECK(cluster[0].describe(ticket).find("rank 1") != std::string::npos);
  cluster[0].abort("test");
  CHECK(cluster[0].wait(ticket, 1'000'000'000, nullptr) == Status::ABORTED);
}

CASE(abort_from_another_thread_ends_a_wait_soon_and_peers_learn_why) {
  Cluster cluster({.ranks = 3, .rails = 2});
  const Plans plans = ring_all_reduce(3);
  std::vector<float> send(100'000, 1.0f);
  std::vector<std::vector<float>> recv(3, std::vector<float>(100'000));
  Nanoseconds begin = 0;
  cluster.each([&](int r) {
    if (r == 2) {  // never takes part
      ::usleep(100'000);
      begin = monotonic_ns();
      cluster[0].abort("enough");
      return;
    }
    const Status s = run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv[r].data(), 100'000));
    CHECK(r == 0 ? s == Status::ABORTED : s == Status::PEER_LOST);
  });
  CHECK(seconds_since(begin) < 3);
  CHECK(cluster[0].error_text().find("enough") != std::string::npos);
  CHECK(cluster[1].error_text().find("enough") != std::string::npos);
  uint64_t ticket = 0;
  CHECK(cluster[0].submit(call_args(*plans[0], kAllReduce, send.data(), recv[0].data(), 10), true, &ticket) ==
        Status::ABORTED);
}

CASE(close_under_load_is_bounded_and_ends_every_call) {
  for (int round = 0; round < 5; ++round) {
    Cluster cluster({.ranks = 3, .rails = 2});
    const Plans plans = ring_all_reduce(3);
    std::atomic<int> ended{0};
    std::vector<float> send(50'000, 1.0f);
    std::vector<std::vector<float>> recv(3, std::vector<float>(50'000));
    std::thread closer([&] {
      ::usleep(20'000 + 3'000 * static_cast<useconds_t>(round));
      const Nanoseconds begin = monotonic_ns();
      cluster[0].close(0);
      CHECK(seconds_since(begin) < 5);
    });
    cluster.each([&](int r) {
      for (;;) {
        const Status s = run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv[r].data(), 50'000));
        if (s == Status::OK) continue;
        CHECK(r == 0 ? s == Status::ABORTED : s == Status::PEER_LOST || s == Status::ABORTED);
        break;
      }
      ended.fetch_add(1);
    });
    closer.join();
    CHECK(ended.load() == 3);
  }
}

CASE(a_peer_that_closed_after_its_part_costs_nothing) {
  Cluster cluster({.ranks = 3, .rails = 1, .eager_bytes = 4096});
  const Plans plans = chain_broadcast(3);
  cluster.each([&](int r) {
    std::vector<float> data = r == 0 ? values(0, 1000, 1) : std::vector<float>(1000);
    if (r == 2) ::usleep(100'000);
    CHECK(run_call(cluster[r], call_args(*plans[r], kBroadcast, nullptr, data.data(), 1000)) == Status::OK);
    if (r == 0) cluster[0].close(2'000'000'000);  // while the others are still at it
    CHECK(same_bits(data, values(0, 1000, 1)));
  });
  // Ranks 1 and 2 go on without it.
  PlanWriter sends(3, 1), receives(3, 1);
  sends.send(2, R2CCL_BUF_RECV, 0, 1);
  receives.receive(1, 0, 1);
  const auto a = sends.finish(), b = receives.finish();
  cluster.each([&](int r) {
    if (r == 0) return;
    std::vector<float> data = values(1, 5000, 7);
    CHECK(run_call(cluster[r], call_args(r == 1 ? *a : *b, kBroadcast, nullptr, data.data(), 5000)) == Status::OK);
    CHECK(same_bits(data, values(1, 5000, 7)));
  });
}

CASE(a_call_that_needs_a_closed_peer_fails_and_names_it) {
  Cluster cluster({.ranks = 2, .rails = 2});
  const Plans plans = direct_all_reduce(2);
  cluster[1].close(0);
  std::vector<float> send(1000, 1.0f), recv(1000);
  CHECK(run_call(cluster[0], call_args(*plans[0], kAllReduce, send.data(), recv.data(), 1000), 5) == Status::PEER_LOST);
  CHECK(cluster[0].error_text().find("rank 1") != std::string::npos);
}

CASE(ranks_that_disagree_all_hear_of_it) {
  Cluster cluster({.ranks = 3, .rails = 1});
  const Plans plans = ring_all_reduce(3);
  cluster.each([&](int r) {
    const size_t count = r == 1 ? 900 : 1000;
    std::vector<float> send(1000, 1.0f), recv(1000);
    CHECK(run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), count), 5) ==
          Status::MISMATCH);
    CHECK(cluster[r].error_text().find("rank 1 calls all_reduce(count=900") != std::string::npos);
  });
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

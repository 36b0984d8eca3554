// Pairs of ranks that lose every link between them, in the middle of calls: other ranks pass their chunks on, bit for
// bit.
#include <atomic>

#include "cases.h"
#include "cluster.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint8_t kAllReduce = 0, kSend = 9;
constexpr size_t kCount = 60'000;  // 240 KB: dozens of chunks per message
constexpr uint64_t kStallNs = 120'000'000, kOutageNs = 20'000'000'000;
constexpr double kPatienceS = 20;

using Pairs = std::vector<std::pair<int, int>>;

void all_reduces(Cluster& cluster, const Plans& plans, uint32_t calls) {
  std::atomic<bool> good{true};
  cluster.each([&](int r) {
    for (uint32_t c = 0; c < calls && good.load(); ++c) {
      const auto send = values(r, kCount, c);
      std::vector<float> recv(kCount, -1.0f);
      const auto args = call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount);
      const Status s = run_call(cluster[r], args, kPatienceS);
      if (s != Status::OK)
        std::fprintf(stderr, "  rank %d call %u: status %d %s %s\n", r, c, static_cast<int>(s),
                     cluster[r].error_text().c_str(), cluster[r].describe(0).c_str());
      if (!CHECK(s == Status::OK) || !CHECK(same_bits(recv, sums(cluster.options.ranks, kCount, c)))) good.store(false);
    }
  });
}

uint64_t relayed(Cluster& cluster) {
  uint64_t sum = 0;
  for (int r = 0; r < cluster.options.ranks; ++r) sum += cluster.counters(r).relayed_chunks;
  return sum;
}

template <class F>
bool until(F&& condition) {
  const Nanoseconds end = monotonic_ns() + static_cast<Nanoseconds>(kPatienceS * 1e9);
  while (!condition()) {
    if (monotonic_ns() > end) return false;
    ::usleep(1000);
  }
  return true;
}

}  // namespace

CASE(a_pair_that_loses_all_its_links_in_a_call_goes_on_through_a_third_rank) {
  for (const char* fault : {"reset", "blackhole"}) {
    for (const bool control : {true, false}) {
      for (Kind kind : {Kind::kTcp, Kind::kLoopback}) {
        Cluster cluster({.ranks = 3,
                         .rails = 2,
                         .kind = kind,
                         .stall_floor_ns = kStallNs,
                         .outage_ns = kOutageNs,
                         .scripts = {std::string("rail=* peer=1 kind=") + fault + " after_bytes=100000"},
                         .no_control = control ? Pairs{} : Pairs{{0, 1}}});
        const int failed = failures();
        all_reduces(cluster, ring_all_reduce(3), 4);
        all_reduces(cluster, direct_all_reduce(3), 4);
        const r2ccl_counters third = cluster.counters(2);
        CHECK(cluster.counters(0).relayed_chunks > 0 && cluster.counters(1).relayed_chunks > 0);
        CHECK(third.forwarded_chunks > 0 && third.relayed_chunks == 0);
        bool begun = false;
        for (const r2ccl_event& e : cluster.events_of(0)) {
          if (e.kind != kEventRelay) continue;
          begun = true;
          CHECK(e.peer == 1 && e.value == 2);
        }
        CHECK(begun);
        if (failures() != failed)
          std::fprintf(stderr, "  %s, %s, control %d\n", fault, kind == Kind::kTcp ? "tcp" : "loopback", control);
      }
    }
  }
}

CASE(messages_of_send_and_recv_go_round) {
  for (const bool control : {true, false}) {
    Cluster cluster({.ranks = 4,
                     .rails = 1,
                     .eager_bytes = 4096,
                     .outage_ns = kOutageNs,
                     .no_control = control ? Pairs{} : Pairs{{0, 1}},
                     .no_links = {{0, 1}}});
    const auto to = message_plan(4, 1, true), from = message_plan(4, 0, false);
    std::thread receiver([&] {
      for (uint32_t c = 0; c < 20; ++c) {
        const size_t n = c % 2 ? 500 : kCount;  // copied, and not
        std::vector<float> data(n, -1.0f);
        auto args = call_args(*from, kSend, nullptr, data.data(), n);
        args.peer = 0;
        CHECK(run_call(cluster[1], args, kPatienceS) == Status::OK);
        CHECK(same_bits(data, values(0, n, c)));
      }
    });
    for (uint32_t c = 0; c < 20; ++c) {
      const size_t n = c % 2 ? 500 : kCount;
      std::vector<float> data = values(0, n, c);
      auto args = call_args(*to, kSend, data.data(), nullptr, n);
      args.peer = 1;
      CHECK(run_call(cluster[0], args, kPatienceS) == Status::OK);
    }
    receiver.join();
    // Both others had their part.
    CHECK(cluster.counters(2).forwarded_chunks > 0 && cluster.counters(3).forwarded_chunks > 0);
    CHECK(cluster.counters(0).relayed_chunks > 0);
  }
}

CASE(a_neighbour_in_memory_lends_its_links) {
  // Ranks 0 and 2 share a host; only 0 has lost its links to 1.
  Cluster cluster({.ranks = 3,
                   .rails = 2,
                   .stall_floor_ns = kStallNs,
                   .outage_ns = kOutageNs,
                   .scripts = {"rail=* peer=1 kind=reset after_bytes=100000"},
                   .in_memory = {{0, 2}}});
  all_reduces(cluster, direct_all_reduce(3), 6);
  CHECK(cluster.counters(0).relayed_chunks > 0 && cluster.counters(1).relayed_chunks > 0);
  CHECK(cluster.counters(2).forwarded_chunks > 0);
}

CASE(two_ranks_between_are_not_too_many) {
  // All that is left is 0 - 2 - 3 - 1.
  const Pairs cut{{0, 1}, {0, 3}, {1, 2}};
  for (const bool control : {true, false}) {
    Cluster cluster(
        {.ranks = 4, .rails = 1, .outage_ns = kOutageNs, .no_control = control ? Pairs{} : cut, .no_links = cut});
    all_reduces(cluster, direct_all_reduce(4), 3);
    all_reduces(cluster, ring_all_reduce(4), 3);
    for (int r = 0; r < 4; ++r) CHECK(cluster.counters(r).relayed_chunks > 0);
    CHECK(cluster.counters(2).forwarded_chunks > 0 && cluster.counters(3).forwarded_chunks > 0);
  }
}

CASE(where_no_way_leads_round_the_call_ends_after_the_outage) {
  const Pairs cut{{0, 1}, {0, 2}};
  Cluster cluster({.ranks = 3, .rails = 1, .outage_ns = 300'000'000, .no_links = cut});
  const Plans plans = direct_all_reduce(3);
  cluster.each([&](int r) {
    std::vector<float> send(kCount, 1.0f), recv(kCount);
    const Status s = run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount), 10);
    CHECK(s == Status::PEER_UNREACHABLE || s == Status::PEER_LOST);
  });
  for (int r = 0; r < 3; ++r) CHECK(cluster.counters(r).forwarded_chunks == 0);
}

CASE(without_failover_nothing_goes_round) {
  Cluster cluster({.ranks = 3, .rails = 1, .outage_ns = 300'000'000, .failover = false, .no_links = {{0, 1}}});
  const Plans plans = direct_all_reduce(3);
  cluster.each([&](int r) {
    std::vector<float> send(kCount, 1.0f), recv(kCount);
    CHECK(run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount), 10) != Status::OK);
  });
  CHECK(relayed(cluster) == 0);
}

CASE(when_a_link_returns_chunks_go_straight_again) {
  Cluster cluster({.ranks = 3, .rails = 1, .outage_ns = kOutageNs, .no_links = {{0, 1}}});
  const Plans plans = direct_all_reduce(3);
  all_reduces(cluster, plans, 3);
  CHECK(relayed(cluster) > 0);
  std::atomic<bool> up{false};
  std::thread dialer([&] {
    const auto [x, y] = tcp_pair();
    CHECK(cluster[0].reopen(1, 0, x) && cluster[1].reopen(0, 0, y));
    up.store(until([&] {
      r2ccl_link_stats stats[2][2];
      return cluster[0].links(stats[0], 2) == 2 && cluster[1].links(stats[1], 2) == 2 && stats[0][0].state == 0 &&
             stats[1][0].state == 0;
    }));
  });
  for (int i = 0; i < 200 && !up.load(); ++i) all_reduces(cluster, plans, 1);
  dialer.join();
  CHECK(up.load());
  all_reduces(cluster, plans, 1);
  const uint64_t before = relayed(cluster);
  all_reduces(cluster, plans, 5);
  CHECK(relayed(cluster) == before);
  std::vector<uint32_t> story;
  for (const r2ccl_event& e : cluster.events_of(0))
    if (e.kind == kEventRelay) story.push_back(e.detail);
  CHECK((story == std::vector<uint32_t>{1, 0}));
}

// A rank that passes things on loses its own links to one end, in the middle: others take over.
CASE(the_rank_between_loses_its_links) {
  for (const char* fault : {"reset", "blackhole"}) {
    Cluster cluster({.ranks = 4,
                     .rails = 1,
                     .stall_floor_ns = kStallNs,
                     .outage_ns = kOutageNs,
                     .scripts = {"", "", std::string("rail=0 peer=1 kind=") + fault + " after_bytes=200000"},
                     .no_links = {{0, 1}}});
    const int failed = failures();
    all_reduces(cluster, direct_all_reduce(4), 8);
    CHECK(cluster.counters(3).forwarded_chunks > 0);
    if (failures() != failed) std::fprintf(stderr, "  %s\n", fault);
  }
}

CASE(random_pairs_are_cut_as_long_as_all_ranks_hang_together) {
  uint32_t state = 4711;
  auto random = [&](uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
  };
  const char* kinds[] = {"reset", "blackhole", "reset", "tx-drop"};
  uint64_t all = 0;
  for (int round = 0; round < 6; ++round) {
    // A star around some rank stays whole; of the other pairs some are cut, at one end or the other.
    Options o{.ranks = 4, .rails = 1 + random(2), .stall_floor_ns = kStallNs, .outage_ns = kOutageNs, .scripts = {}};
    o.scripts.resize(4);
    const int hub = static_cast<int>(random(4));
    for (int a = 0; a < 4; ++a)
      for (int b = a + 1; b < 4; ++b) {
        if (a == hub || b == hub || random(3) == 0) continue;
        const int end = random(2) ? a : b;
        o.scripts[end] += "rail=* peer=" + std::to_string(a + b - end) + " kind=" + kinds[random(4)] +
                          " after_bytes=" + std::to_string(random(300'000)) + "\n";
        if (random(2)) o.no_control.push_back({a, b});
      }
    Cluster cluster(o);
    const int failed = failures();
    all_reduces(cluster, round % 2 ? ring_all_reduce(4) : direct_all_reduce(4), 6);
    all += relayed(cluster);
    if (failures() != failed) {
      std::fprintf(stderr, "  round %d:\n", round);
      for (const auto& script : o.scripts) std::fprintf(stderr, "%s", script.c_str());
      break;
    }
  }
  CHECK(all > 0);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

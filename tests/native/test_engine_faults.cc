// The executor under faults: links that swallow, lose one direction or break, in the middle of collectives; every link
// lost; peers that vanish, stop for a while, or talk nonsense. Results are compared bit by bit.
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "cases.h"
#include "cluster.h"
#include "fake_peer.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint8_t kAllReduce = 0, kBroadcast = 2;
constexpr size_t kCount = 60'000;  // 240 KB: dozens of chunks per message
// Long enough for a busy machine, short enough for a test.
constexpr uint64_t kStallNs = 120'000'000;

double seconds_since(Nanoseconds t) { return static_cast<double>(monotonic_ns() - t) * 1e-9; }

bool all_reduces(Cluster& cluster, const Plans& plans, size_t count, uint32_t calls, std::atomic<uint32_t>* replayed) {
  const int n = cluster.options.ranks;
  std::atomic<bool> good{true};
  cluster.each([&](int r) {
    for (uint32_t c = 0; c < calls && good.load(); ++c) {
      const auto send = values(r, count, c);
      std::vector<float> recv(count, -1.0f);
      uint32_t again = 0;
      const Status s =
          run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), count), 20, &again);
      if (s != Status::OK) std::fprintf(stderr, "  rank %d call %u: %s\n", r, c, cluster[r].error_text().c_str());
      if (!CHECK(s == Status::OK) || !CHECK(same_bits(recv, sums(n, count, c)))) good.store(false);
      if (replayed) replayed->fetch_add(again);
    }
  });
  return good.load();
}

uint64_t replayed_chunks(Cluster& cluster) {
  uint64_t sum = 0;
  for (int r = 0; r < cluster.options.ranks; ++r) sum += cluster.counters(r).replayed_chunks;
  return sum;
}

// Of one peer and rail: suspected, down, replayed, repaired; once each and in this order. Chunks that are to be
// replayed are sent between the last two.
void events_tell_of_a_repair(const std::vector<r2ccl_event>& events, int32_t peer, int32_t rail) {
  std::vector<uint32_t> kinds, expected{kEventLinkSuspect, kEventLinkDown, kEventReplay};
  for (const auto& e : events) {
    if (e.peer != peer || e.rail != rail || (e.kind > kEventRepaired && e.kind != kEventReplaySent)) continue;
    kinds.push_back(e.kind);
    if (e.kind == kEventReplay && e.value > 0) expected.push_back(kEventReplaySent);
  }
  expected.push_back(kEventRepaired);
  if (!CHECK(kinds == expected)) {
    for (uint32_t k : kinds) std::fprintf(stderr, "  event %u\n", k);
  }
}

bool saw(const std::vector<r2ccl_event>& events, uint32_t kind) {
  return std::any_of(events.begin(), events.end(), [&](const r2ccl_event& e) { return e.kind == kind; });
}

uint64_t bytes_on(Cluster& cluster, int rank, int32_t peer, int32_t rail) {
  r2ccl_link_stats stats[16];
  const uint32_t n = cluster[rank].links(stats, 16);
  for (uint32_t i = 0; i < n; ++i)
    if (stats[i].peer == peer && stats[i].rail == rail) return stats[i].tx_bytes + stats[i].rx_bytes;
  CHECK(!"no such link");
  return 0;
}

}  // namespace

// A fault that waits for bytes on its link may need more of them: which link carries what is a matter of timing.
void go_on_until_repaired(Cluster& cluster, const Plans& plans, uint64_t repairs) {
  for (int i = 0; i < 20 && cluster.counters(0).repairs < repairs; ++i) all_reduces(cluster, plans, kCount, 1, nullptr);
}

CASE(a_link_lost_in_the_middle_costs_no_bit) {
  for (const char* fault : {"blackhole", "tx-drop", "rx-drop", "reset"}) {
    // One run may lose acknowledgements only; all of them together lose chunks.
    uint64_t replayed = 0;
    std::atomic<uint32_t> replayed_of_calls{0};
    for (Kind kind : {Kind::kLoopback, Kind::kTcp}) {
      for (int n : {2, 3}) {
        Cluster cluster({.ranks = n,
                         .rails = 2,
                         .kind = kind,
                         .stall_floor_ns = kStallNs,
                         .scripts = {std::string("rail=1 peer=1 kind=") + fault + " after_bytes=150000"}});
        const int failed = failures();
        const Plans plans = n == 2 ? direct_all_reduce(2) : ring_all_reduce(3);
        if (all_reduces(cluster, plans, kCount, 6, &replayed_of_calls)) {
          go_on_until_repaired(cluster, plans, 1);
          replayed += replayed_chunks(cluster);
          events_tell_of_a_repair(cluster.events_of(0), 1, 1);
          events_tell_of_a_repair(cluster.events_of(1), 0, 1);
          const uint64_t before = bytes_on(cluster, 1, 0, 1);
          all_reduces(cluster, plans, kCount, 1, nullptr);
          const uint64_t after = bytes_on(cluster, 1, 0, 1);
          CHECK(after == before);  // nothing more over the dead link
          for (int r = 0; r < n; ++r) CHECK(cluster.counters(r).duplicate_chunks == 0);
        }
        if (failures() != failed)
          std::fprintf(stderr, "  %s, %d ranks, %s\n", kind == Kind::kTcp ? "tcp" : "loopback", n, fault);
      }
    }
    CHECK(replayed > 0 && replayed_of_calls.load() > 0);
  }
}

CASE(a_second_link_is_lost_down_to_the_last) {
  for (Kind kind : {Kind::kLoopback, Kind::kTcp}) {
    for (const char* faults : {"blackhole reset", "tx-drop rx-drop", "reset reset", "blackhole blackhole"}) {
      const std::string f(faults), first = f.substr(0, f.find(' ')), second = f.substr(f.find(' ') + 1);
      // At either end of the pair, the second while the first is being repaired or soon after.
      Cluster cluster({.ranks = 3,
                       .rails = 3,
                       .kind = kind,
                       .stall_floor_ns = kStallNs,
                       .scripts = {"rail=1 peer=1 kind=" + first + " after_bytes=90000",
                                   "rail=2 peer=0 kind=" + second + " after_bytes=110000"}});
      if (!all_reduces(cluster, ring_all_reduce(3), kCount, 6, nullptr)) {
        std::fprintf(stderr, "  %s\n", faults);
        continue;
      }
      go_on_until_repaired(cluster, ring_all_reduce(3), 2);
      for (int32_t rail : {1, 2}) {
        events_tell_of_a_repair(cluster.events_of(0), 1, rail);
        CHECK(cluster.counters(0).repairs == 2);
        if (rail == 1) break;  // the events are taken once
      }
    }
  }
}

CASE(different_rails_are_lost_by_different_pairs_at_once) {
  Cluster cluster(
      {.ranks = 3,
       .rails = 2,
       .stall_floor_ns = kStallNs,
       .scripts = {"rail=0 peer=1 kind=blackhole after_bytes=100000", "rail=1 peer=2 kind=tx-drop after_bytes=100000",
                   "rail=0 peer=0 kind=reset after_bytes=100000"}});
  CHECK(all_reduces(cluster, ring_all_reduce(3), kCount, 8, nullptr));
  CHECK(replayed_chunks(cluster) > 0);
}

CASE(copies_of_small_messages_are_replayed_after_their_call_has_ended) {
  for (const char* fault : {"tx-drop", "blackhole"}) {
    Cluster cluster({.ranks = 2,
                     .rails = 2,
                     .eager_bytes = 4096,
                     .stall_floor_ns = kStallNs,
                     .scripts = {std::string("rail=0 peer=1 kind=") + fault + " after_bytes=20000"}});
    const Plans plans = chain_broadcast(2);
    cluster.each([&](int r) {
      for (uint32_t c = 0; c < 100; ++c) {
        std::vector<float> data = r == 0 ? values(0, 500, c) : std::vector<float>(500, -1.0f);
        CHECK(run_call(cluster[r], call_args(*plans[r], kBroadcast, nullptr, data.data(), 500), 20) == Status::OK);
        CHECK(same_bits(data, values(0, 500, c)));
        std::fill(data.begin(), data.end(), -5.0f);  // the memory is the caller's again
      }
    });
    CHECK(cluster.counters(0).replayed_chunks + cluster.counters(0).hedged_chunks > 0);
  }
}

CASE(many_random_faults) {
  uint32_t state = 12345;
  auto random = [&](uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
  };
  const char* kinds[] = {"blackhole", "tx-drop", "rx-drop", "reset"};
  for (int round = 0; round < 12; ++round) {
    Options o{.ranks = 3, .rails = 3, .kind = round % 2 ? Kind::kTcp : Kind::kLoopback, .stall_floor_ns = kStallNs};
    std::string all;
    for (int r = 0; r < 3; ++r) {
      // Of each pair at most rails 1 and 2 fail.
      std::string script;
      for (int f = 0; f < 2; ++f)
        script += "rail=" + std::to_string(1 + random(2)) + " peer=" + std::to_string((r + 1 + random(2)) % 3) +
                  " kind=" + kinds[random(4)] + " after_bytes=" + std::to_string(random(300'000)) + "\n";
      all += script;
      o.scripts.push_back(script);
    }
    Cluster cluster(o);
    if (!CHECK(all_reduces(cluster, round % 3 ? ring_all_reduce(3) : direct_all_reduce(3), 30'000, 5, nullptr)))
      std::fprintf(stderr, "  round %d:\n%s", round, all.c_str());
  }
}

CASE(when_every_link_is_lost_the_call_ends_after_the_outage_and_names_the_peer) {
  Cluster cluster({.ranks = 2,
                   .rails = 2,
                   .stall_floor_ns = kStallNs,
                   .outage_ns = 300'000'000,
                   .scripts = {"rail=* peer=1 kind=blackhole after_bytes=100000"}});
  const Plans plans = direct_all_reduce(2);
  const Nanoseconds begin = monotonic_ns();
  cluster.each([&](int r) {
    std::vector<float> send(kCount, 1.0f), recv(kCount);
    const Status s = run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount), 10);
    CHECK(s == Status::PEER_UNREACHABLE || s == Status::PEER_LOST);
    CHECK(cluster[r].error_text().find("rank " + std::to_string(1 - r)) != std::string::npos);
  });
  CHECK(seconds_since(begin) > 0.3 && seconds_since(begin) < 8);
  CHECK(saw(cluster.events_of(0), kEventOutageBegin));
}

CASE(without_failover_a_lost_link_is_an_error) {
  Cluster cluster(
      {.ranks = 2, .rails = 2, .failover = false, .scripts = {"rail=0 peer=1 kind=reset after_bytes=100000"}});
  const Plans plans = direct_all_reduce(2);
  cluster.each([&](int r) {
    std::vector<float> send(kCount, 1.0f), recv(kCount);
    Status s = Status::OK;
    for (int c = 0; c < 20 && s == Status::OK; ++c)
      s = run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount), 10);
    if (!CHECK(s == Status::PEER_UNREACHABLE || s == Status::PEER_LOST))
      std::fprintf(stderr, "  status %d: %s\n", static_cast<int>(s), cluster[r].error_text().c_str());
  });
}

CASE(a_peer_whose_process_ends_is_lost_at_once) {
  std::vector<std::unique_ptr<FakePeer>> peers;
  auto engine = engine_with(&peers, {.ranks = 2, .rails = 2});
  const Plans plans = direct_all_reduce(2);
  std::vector<float> send(kCount, 1.0f), recv(kCount);
  std::thread killer([&] {
    ::usleep(50'000);
    peers[0].reset();
  });
  const Nanoseconds begin = monotonic_ns();
  CHECK(run_call(*engine, call_args(*plans[0], kAllReduce, send.data(), recv.data(), kCount), 10) == Status::PEER_LOST);
  CHECK(seconds_since(begin) < 3);
  killer.join();
}

CASE(a_peer_that_closes_and_resets_its_links_keeps_nobody_busy) {
  // Rank 1 says goodbye and its links end with an error; the call waits for rank 2.
  std::vector<std::unique_ptr<FakePeer>> peers;
  auto engine = engine_with(&peers, {.ranks = 3, .rails = 2});
  PlanWriter w(3, 1);
  w.receive(2, 0, 1);
  const auto plan = w.finish();
  std::vector<float> recv(kCount);
  uint64_t ticket = 0;
  CHECK(engine->submit(call_args(*plan, kBroadcast, nullptr, recv.data(), kCount), true, &ticket) == Status::OK);
  peers[0]->say(peers[0]->control, {.kind = FrameKind::kGoodbye});
  CHECK(engine->wait(ticket, 50'000'000, nullptr) == Status::IN_PROGRESS);
  peers[0]->reset(0);
  peers[0]->reset(1);
  ::close(peers[0]->control);
  peers[0]->control = -1;
  const Nanoseconds begin = monotonic_ns();
  CHECK(engine->wait(ticket, 200'000'000, nullptr) == Status::IN_PROGRESS);
  CHECK(seconds_since(begin) < 3);
  // And the engine's thread sleeps instead of turning round.
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  ::usleep(300'000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double cpu =
      static_cast<double>(after.tv_sec - before.tv_sec) + static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  CHECK(cpu < 0.15);
  engine->abort("");
  engine->wait(ticket, 1'000'000'000, nullptr);
}

CASE(nonsense_from_a_peer_costs_the_link_and_nothing_else) {
  std::vector<std::unique_ptr<FakePeer>> peers;
  auto engine = engine_with(&peers, {.ranks = 2, .rails = 3});
  PlanWriter w(2, 1);
  w.receive(1, 0, 1);
  const auto plan = w.finish();
  std::vector<float> recv(100, -1.0f);
  const auto args = call_args(*plan, kBroadcast, nullptr, recv.data(), 100);
  uint64_t ticket = 0;
  CHECK(engine->submit(args, true, &ticket) == Status::OK);
  FakePeer& peer = *peers[0];
  const std::string junk(100, 'x');
  CHECK(::send(peer.links[0], junk.data(), junk.size(), MSG_NOSIGNAL) == 100);
  // Frames that are well formed and say impossible things.
  for (int fd : {peer.links[1], peer.control}) {
    peer.say(fd, {.kind = FrameKind::kAck, .bytes = 7}, std::vector<uint8_t>(7, 1));
    peer.say(fd, {.kind = FrameKind::kAck, .bytes = 32}, std::vector<uint8_t>(32, 0xff));
    peer.say(fd, {.kind = FrameKind::kCredit, .lane = 200, .freed = 0xffffffffu});
    peer.say(fd, {.kind = FrameKind::kNotice, .bytes = 5, .message = 77, .chunk = 0}, std::vector<uint8_t>(5, 1));
    peer.say(fd, {.kind = FrameKind::kNotice, .message = 1, .chunk = 99});
    peer.say(fd, {.kind = FrameKind::kReply, .bytes = 3, .message = 1}, std::vector<uint8_t>(3, 1));
    peer.say(fd, {.kind = FrameKind::kReply, .message = 0xffffffffu});
    peer.say(fd, {.kind = FrameKind::kLost, .message = 0xffffffffu});
    peer.say(fd, {.kind = FrameKind::kLost, .message = 0});
    peer.say(fd, {.kind = FrameKind::kPong, .token = 5});
    peer.say(fd, {.kind = FrameKind::kQuery});
    peer.say(fd, {.kind = static_cast<FrameKind>(200), .bytes = 3}, std::vector<uint8_t>(3, 1));
  }
  const uint32_t signature = signature_of(args.info);
  auto data = [&](uint32_t message, uint32_t chunk, uint8_t lane, uint32_t bytes) {
    peer.say(peer.links[1],
             {.kind = FrameKind::kData,
              .lane = lane,
              .bytes = bytes,
              .signature = signature,
              .message = message,
              .chunk = chunk},
             std::vector<uint8_t>(bytes, 0));
  };
  data(5, 0, 0, 400);                 // no such message
  data(message_id(9, 0), 0, 9, 400);  // no such lane
  data(message_id(9, 0), 0, 0, 400);  // lane and message disagree
  data(0, 0, 0, 60'000);              // longer than a chunk
  ::usleep(50'000);
  CHECK(engine->wait(ticket, 100'000'000, nullptr) == Status::IN_PROGRESS);
  r2ccl_counters c{};
  engine->counters(&c);
  CHECK(c.refused_frames >= 4);
  const auto right = values(1, 100, 0);
  std::vector<uint8_t> payload(400);
  std::memcpy(payload.data(), right.data(), 400);
  const FrameHeader good{.kind = FrameKind::kData, .bytes = 400, .signature = signature};
  peer.say(peer.links[1], good, payload);
  peer.say(peer.links[1], good, std::vector<uint8_t>(400, 0));  // once more, with other content
  CHECK(wait_for(*engine, ticket, 5) == Status::OK);
  CHECK(same_bits(recv, right));
}

void idle_link_is_found_dead(const std::string& kind) {
  Cluster cluster({.ranks = 2,
                   .rails = 2,
                   .stall_floor_ns = kStallNs,
                   .heartbeat_ns = 100'000'000,
                   .scripts = {"rail=1 kind=" + kind + " after_ms=200"}});
  const Nanoseconds end = monotonic_ns() + 20'000'000'000;
  for (int r = 0; r < 2; ++r) {
    uint32_t down = 0;
    while (down == 0 && monotonic_ns() < end) down = cluster[r].wait_links_down(50'000'000);
    CHECK(down == 1);
  }
  bool by_heartbeat = false;
  for (int r = 0; r < 2; ++r)
    for (const r2ccl_event& e : cluster.events_of(r)) {
      if (e.kind != kEventLinkSuspect) continue;
      CHECK(e.rail == 1);
      by_heartbeat |= e.detail == kCauseHeartbeat;
    }
  CHECK(by_heartbeat);
  CHECK(cluster.counters(0).calls == 0);
}

CASE(an_idle_link_is_found_dead_before_a_call_needs_it) { idle_link_is_found_dead("blackhole"); }

// Only the end that hears nothing can tell: the other one's questions are answered.
CASE(an_idle_link_that_is_dead_one_way_is_found_dead) {
  for (const char* kind : {"rx-drop", "tx-drop"}) idle_link_is_found_dead(kind);
}

CASE(a_peer_that_stops_for_a_while_costs_no_link) {
  const Options o{.ranks = 2, .rails = 2, .stall_floor_ns = 40'000'000};
  int control[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
  const std::pair<int, int> links[] = {tcp_pair(), tcp_pair()};
  const pid_t child = fork();
  const int rank = child == 0 ? 1 : 0;
  bool good = true;
  uint32_t suspicions = 0;
  {
    auto engine = make_engine(o, rank);
    engine->add_control(1 - rank, control[rank], true);
    ::close(control[1 - rank]);
    for (uint32_t rail = 0; rail < 2; ++rail) {
      engine->add_link(make_tcp_link(1 - rank, rail, rank ? links[rail].second : links[rail].first, 64 << 10));
      ::close(rank ? links[rail].first : links[rail].second);
    }
    good &= engine->start() == Status::OK;
    std::thread stopper;
    std::atomic<bool> stop{false};
    if (rank == 0)
      stopper = std::thread([&] {
        for (int i = 0; i < 8 && !stop.load(); ++i) {
          ::usleep(30'000);
          kill(child, SIGSTOP);
          ::usleep(150'000);
          kill(child, SIGCONT);
        }
        stop.store(true);
      });
    const Plans plans = direct_all_reduce(2);
    const auto send = values(rank, kCount, 1);
    // The first word of the result says whether to go on: rank 0 decides.
    for (bool more = true; more && good;) {
      std::vector<float> in = send, recv(kCount);
      in[0] = rank == 0 && stop.load() ? 1.0f : 0.0f;
      good &=
          run_call(*engine, call_args(*plans[static_cast<size_t>(rank)], kAllReduce, in.data(), recv.data(), kCount),
                   20) == Status::OK;
      more = recv[0] == 0.0f;
    }
    stop.store(true);
    if (stopper.joinable()) stopper.join();
    r2ccl_event events[64];
    const uint32_t n = engine->events().take(events, 64);
    for (uint32_t i = 0; i < n; ++i) suspicions += events[i].kind == kEventLinkSuspect;
    engine->close(1'000'000'000);
  }
  if (child == 0) _exit((good ? 0 : 1) | (suspicions ? 2 : 0));
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(good && WIFEXITED(status) && (WEXITSTATUS(status) & 1) == 0);
  CHECK(suspicions == 0);
  CHECK((WEXITSTATUS(status) & 2) == 0);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

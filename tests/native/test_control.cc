// Control sockets that end or fall silent while the peer may live, and those that take their place.
#include <unistd.h>

#include "cases.h"
#include "fake_peer.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;

// Rank 0 of two, on different hosts: control frames go through a TCP socket.
struct Pair {
  FakePeer peer;
  std::unique_ptr<Engine> engine;
  Pair() {
    const Options o{.ranks = 2, .rails = 2, .stall_floor_ns = 60 * kSecond, .outage_ns = 60 * kSecond};
    engine = make_engine(o, 0);
    const auto [mine, theirs] = tcp_pair();
    engine->add_control(1, mine, false);
    peer.control = theirs;
    for (uint32_t rail = 0; rail < o.rails; ++rail) {
      const auto [x, y] = tcp_pair();
      engine->add_link(make_tcp_link(1, rail, x, 64 << 10));
      peer.links.push_back(y);
    }
    CHECK(engine->start() == Status::OK);
  }
  ~Pair() { engine->close(0); }

  void reset_control() {
    const linger now{1, 0};
    setsockopt(peer.control, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close_control();
  }
  void close_control() {
    ::close(peer.control);
    peer.control = -1;
  }
  // Whether another control socket is wanted, within limit_s; *reset: why.
  bool quiet(double limit_s, int32_t* reset) {
    const Nanoseconds end = monotonic_ns() + static_cast<Nanoseconds>(limit_s * 1e9);
    r2ccl_quiet_peer found{};
    do {
      if (engine->quiet_peers(&found, 1) == 1) {
        *reset = found.reset;
        return found.peer == 1;
      }
      ::usleep(1000);
    } while (monotonic_ns() < end);
    return false;
  }
  bool lost(double limit_s) {
    const Nanoseconds end = monotonic_ns() + static_cast<Nanoseconds>(limit_s * 1e9);
    while (engine->status() == Status::OK && monotonic_ns() < end) ::usleep(1000);
    return engine->status() == Status::PEER_LOST;
  }
  // The engine takes a new socket, and answers over it.
  bool adopts() {
    const auto [mine, theirs] = tcp_pair();
    if (!engine->adopt_control(1, mine)) {
      ::close(theirs);
      return false;
    }
    if (peer.control >= 0) ::close(peer.control);
    peer.control = theirs;
    peer.say(peer.control, {.kind = FrameKind::kPing, .token = 7});
    const Nanoseconds end = monotonic_ns() + 5 * kSecond;
    while (monotonic_ns() < end) {
      std::vector<std::vector<uint8_t>> payloads;
      for (const FrameHeader& h : peer.hear(peer.control, &payloads, 20))
        if (h.kind == FrameKind::kPong && h.token == 7) return true;
    }
    return false;
  }
};

}  // namespace

CASE(a_peer_that_does_not_know_that_its_control_socket_leads_nowhere_is_told_over_a_link) {
  Pair pair;
  pair.reset_control();
  const Nanoseconds end = monotonic_ns() + 5 * kSecond;
  size_t told = 0;
  std::vector<std::vector<uint8_t>> payloads;
  while (told == 0 && monotonic_ns() < end)
    for (const int fd : pair.peer.links)
      for (const FrameHeader& h : pair.peer.hear(fd, &payloads, 20)) told += h.kind == FrameKind::kReplaced;
  CHECK(told > 0);
  CHECK(pair.adopts());
}

CASE(a_control_socket_whose_other_end_is_closed_is_replaced) {
  Pair pair;
  int32_t reset = -1;
  CHECK(!pair.quiet(0.2, &reset));
  pair.peer.say(pair.peer.links[1], {.kind = FrameKind::kReplaced});
  CHECK(pair.quiet(2, &reset) && reset == 0);
  CHECK(pair.adopts() && !pair.lost(0.3));
  // One that comes late means the socket before; one that comes later still this one.
  pair.peer.say(pair.peer.links[1], {.kind = FrameKind::kReplaced});
  CHECK(!pair.quiet(0.3, &reset));
  ::usleep(900'000);
  pair.peer.say(pair.peer.links[1], {.kind = FrameKind::kReplaced});
  CHECK(pair.quiet(2, &reset) && pair.adopts() && !pair.lost(0.3));
}

CASE(the_end_of_a_control_socket_is_the_end_of_the_process) {
  Pair p;
  p.close_control();
  CHECK(p.lost(5));
}

CASE(a_reset_is_not_and_another_socket_takes_its_place) {
  Pair p;
  int32_t reset = 0;
  CHECK(!p.adopts());  // nothing is wrong with the first one
  p.reset_control();
  CHECK(p.quiet(5, &reset));
  CHECK(reset == 1);
  CHECK(p.engine->status() == Status::OK);
  CHECK(p.adopts());
  CHECK(p.engine->quiet_peers(nullptr, 0) == 0);
  // Its end says nothing: the peer may have taken yet another one.
  p.close_control();
  CHECK(p.quiet(5, &reset));
  CHECK(p.engine->status() == Status::OK);
  CHECK(p.adopts());
}

CASE(a_socket_gives_way_in_words) {
  Pair p;
  int32_t reset = 1;
  p.peer.reset(0);
  p.peer.reset(1);
  CHECK(p.quiet(5, &reset));
  const int before = ::dup(p.peer.control);
  CHECK(p.adopts());
  std::vector<std::vector<uint8_t>> payloads;
  std::vector<FrameHeader> last;
  for (int i = 0; i < 50 && (last.empty() || last.back().kind != FrameKind::kReplaced); ++i)
    for (const FrameHeader& h : p.peer.hear(before, &payloads, 20)) last.push_back(h);
  CHECK(!last.empty() && last.back().kind == FrameKind::kReplaced);
  ::close(before);
}

CASE(a_socket_that_the_peer_replaced_may_end) {
  Pair p;
  int32_t reset = 1;
  p.peer.say(p.peer.control, {.kind = FrameKind::kReplaced});
  p.close_control();
  CHECK(p.quiet(5, &reset));
  CHECK(reset == 0);
  CHECK(p.engine->status() == Status::OK);
  CHECK(p.adopts());
}

CASE(a_silent_socket_is_replaced_only_where_no_link_is_left) {
  Pair p;
  int32_t reset = 1;
  CHECK(!p.quiet(0.8, &reset));
  p.peer.reset(0);
  CHECK(!p.quiet(0.8, &reset));
  p.peer.reset(1);
  CHECK(p.quiet(5, &reset));
  CHECK(reset == 0);
  CHECK(p.adopts());
}

CASE(a_socket_over_which_the_peer_answers_is_kept_though_no_link_is_left) {
  Pair p;
  int32_t reset = 0;
  p.peer.reset(0);
  p.peer.reset(1);
  const Nanoseconds end = monotonic_ns() + 3 * kSecond / 2;
  bool quiet = false;
  while (monotonic_ns() < end) {
    std::vector<std::vector<uint8_t>> payloads;
    for (const FrameHeader& h : p.peer.hear(p.peer.control, &payloads, 10))
      if (h.kind == FrameKind::kPing) p.peer.say(p.peer.control, {.kind = FrameKind::kPong, .token = h.token});
    quiet |= p.quiet(0, &reset);
  }
  CHECK(!quiet);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

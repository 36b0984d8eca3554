// How much a slow TCP connection may hold in the kernel: the rule, and that the connection keeps to it.
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "cases.h"
#include "flow/backlog.h"
#include "tcp_pair.h"
#include "transport/transport.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr Nanoseconds kMs = 1'000'000;
constexpr double kMBps = 1e-3;  // in bytes per nanosecond

int option(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  CHECK(getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0);
  return value;
}

struct Nothing final : LinkEvents {
  uint8_t* landing(Link&, const FrameHeader&) noexcept override { return nullptr; }
  void arrived(Link&, const FrameHeader&, const uint8_t*, bool) noexcept override {}
  void control(Link&, const FrameHeader&, const uint8_t*) noexcept override {}
  void broken(Link&, int) noexcept override { CHECK(false); }
};

// Bytes that a link takes which nobody reads from at the other end, as its kernel counts those.
int swallowed(Link& link) {
  static const std::vector<uint8_t> payload(64 << 10);
  Nothing events;
  for (int i = 0; i < 1000 && link.ready(); ++i)
    link.write({.kind = FrameKind::kData, .bytes = static_cast<uint32_t>(payload.size())}, payload.data());
  int unsent = -1;
  CHECK(ioctl(link.fd(), SIOCOUTQ, &unsent) == 0);
  return unsent;
}

}  // namespace

// The limit after a connection was seen at these rates, one after the other.
uint64_t after(std::initializer_list<double> rates, uint64_t round_trip_ns) {
  Backlog b;
  uint64_t limit = Backlog::kUnlimited;
  for (double rate : rates) {
    const uint64_t before = limit;
    CHECK(b.update(rate * kMBps, round_trip_ns, &limit) == (limit != before));
  }
  return limit;
}

CASE(slow_connections_have_one_limit) {
  for (double rate : {0.1, 9.0, 19.0, 32.0}) CHECK(after({rate}, 0) == Backlog::kLimit);
  CHECK(after({5}, 10 * kMs) == Backlog::kLimit);
}

CASE(fast_and_far_connections_are_left_to_the_kernel) {
  for (double rate : {34.0, 100.0, 1000.0}) CHECK(after({rate}, 0) == Backlog::kUnlimited);
  CHECK(after({10}, 10 * kMs) == Backlog::kUnlimited);
  CHECK(after({10}, UINT64_MAX) == Backlog::kUnlimited);  // not known
}

CASE(rates_that_wander_about_the_edge_change_nothing) {
  CHECK(after({20, 40, 30, 45}, 0) == Backlog::kLimit);
  CHECK(after({20, 50, 40}, 0) == Backlog::kUnlimited);
  CHECK(after({20, 50, 30}, 0) == Backlog::kLimit);
}

CASE(a_slow_connection_holds_little_until_it_is_fast_again) {
  const auto [mine, theirs] = tcp_pair();
  const auto link = make_tcp_link(1, 0, mine, 1 << 20);
  const int before = option(mine, SO_SNDBUF);
  CHECK(link->least_round_trip_ns() < 1000 * kMs);
  link->limit_backlog(Backlog::kLimit);
  CHECK(before > static_cast<int>(Backlog::kLimit) && option(mine, SO_SNDBUF) == static_cast<int>(Backlog::kLimit));
  CHECK(swallowed(*link) <= static_cast<int>(Backlog::kLimit));
  link->limit_backlog(Backlog::kUnlimited);
#ifdef SO_BUF_LOCK  // the kernel sizes it by itself again; before Linux 5.16 it cannot be asked
  int locked = 0;
  socklen_t size = sizeof locked;
  CHECK(getsockopt(mine, SOL_SOCKET, SO_BUF_LOCK, &locked, &size) != 0 || locked == 0);
#endif
  ::close(theirs);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

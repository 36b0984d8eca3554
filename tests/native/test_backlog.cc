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

CASE(twice_what_the_path_holds_and_two_milliseconds) {
  CHECK(Backlog::bytes(50 * kMBps, 0) == 200'000);
  CHECK(Backlog::bytes(10 * kMBps, 10 * kMs) == 240'000);
  CHECK(Backlog::bytes(1 * kMBps, 0) == Backlog::kLeast);
}

CASE(fast_and_far_connections_are_left_to_the_kernel) {
  CHECK(Backlog::bytes(1000 * kMBps, 0) == Backlog::kUnlimited);
  CHECK(Backlog::bytes(30 * kMBps, 50 * kMs) == Backlog::kUnlimited);
  CHECK(Backlog::bytes(10 * kMBps, UINT64_MAX) == Backlog::kUnlimited);  // not known
}

CASE(small_changes_are_not_worth_a_call) {
  Backlog b;
  uint64_t limit = 1;
  CHECK(!b.update(1000 * kMBps, 0, &limit) && limit == 1);
  CHECK(b.update(50 * kMBps, 0, &limit) && limit == 200'000);
  CHECK(!b.update(45 * kMBps, 0, &limit) && !b.update(60 * kMBps, 0, &limit));
  CHECK(b.update(70 * kMBps, 0, &limit) && limit == 280'000);
  CHECK(b.update(1000 * kMBps, 0, &limit) && limit == Backlog::kUnlimited);
  CHECK(b.update(50 * kMBps, 0, &limit) && limit == 200'000);
}

CASE(a_slow_connection_holds_little_until_it_is_fast_again) {
  const auto [mine, theirs] = tcp_pair();
  const auto link = make_tcp_link(1, 0, mine, 1 << 20);
  const int before = option(mine, SO_SNDBUF);
  CHECK(link->least_round_trip_ns() < 1000 * kMs);
  link->limit_backlog(Backlog::kLeast);
  CHECK(before > static_cast<int>(Backlog::kLeast) && option(mine, SO_SNDBUF) == static_cast<int>(Backlog::kLeast));
  CHECK(swallowed(*link) <= static_cast<int>(Backlog::kLeast));
  link->limit_backlog(Backlog::kUnlimited);
  if (option(mine, SO_BUF_LOCK) >= 0) CHECK(option(mine, SO_BUF_LOCK) == 0);  // the kernel sizes it by itself again
  ::close(theirs);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

// Frames over a socket pair: any size, split anywhere; junk; fences in mid-payload; back-pressure.
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/frame_stream.h"
#include "cases.h"
#include "tcp_pair.h"

using namespace r2ccl;

namespace {

constexpr uint32_t kMax = 1 << 20;
constexpr size_t kWholeBytes = 16 << 10;  // up to here a frame is always delivered whole

struct Got {
  FrameHeader header;
  std::vector<uint8_t> payload;
  bool landed, thrown_away;
};

struct Sink final : FrameSink {
  std::vector<Got> got;
  std::vector<uint8_t> memory = std::vector<uint8_t>(kMax, 0xee);
  bool refuse = false;
  std::function<void()> on_landing, on_frame;
  uint8_t* landing(const FrameHeader&) noexcept override {
    if (on_landing) on_landing();
    return refuse ? nullptr : memory.data();
  }
  void frame(const FrameHeader& h, const uint8_t* payload, bool landed) noexcept override {
    Got g{h, {}, landed, payload == nullptr && h.bytes > 0};
    if (payload) g.payload.assign(payload, payload + h.bytes);
    got.push_back(std::move(g));
    if (on_frame) on_frame();
  }
};

struct Sockets {
  int a = -1, b = -1;
  explicit Sockets(int buffer_bytes = 0) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    a = fds[0];
    b = fds[1];
    if (buffer_bytes)
      for (int fd : fds) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
  }
};

std::vector<uint8_t> pattern(size_t n, uint32_t seed) {
  std::vector<uint8_t> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<uint8_t>((i * 2654435761u + seed * 97u) >> 7);
  return v;
}

FrameHeader data(uint32_t bytes, uint32_t chunk) {
  return {.kind = FrameKind::kData, .bytes = bytes, .message = 1, .chunk = chunk};
}

// As it lies on the wire.
std::vector<uint8_t> bytes_of(const FrameHeader& header, const std::vector<uint8_t>& payload) {
  const FrameHeader h = wire_order(header);
  std::vector<uint8_t> out(sizeof h + payload.size());
  std::memcpy(out.data(), &h, sizeof h);
  if (!payload.empty()) std::memcpy(out.data() + sizeof h, payload.data(), payload.size());
  return out;
}

// Writes to fd in pieces and lets the stream read after each.
int feed(int fd, FrameStream& stream, Sink& sink, const std::vector<uint8_t>& wire,
         const std::function<size_t()>& piece) {
  int rc = 0;
  for (size_t at = 0; at < wire.size() && rc == 0;) {
    const size_t n = std::min(piece(), wire.size() - at);
    const ssize_t sent = ::send(fd, wire.data() + at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) at += static_cast<size_t>(sent);
    rc = stream.read(sink, 1 << 20);
  }
  for (int i = 0; rc == 0 && stream.open() && i < 100; ++i) {
    rc = stream.read(sink, 1 << 20);
    if (stream.drained()) break;
  }
  return rc;
}

void transfer(FrameStream& from, FrameStream& to, Sink& sink) {
  for (int i = 0; i < 100000; ++i) {
    CHECK(from.flush() == 0);
    CHECK(to.read(sink, 1 << 20) == 0);
    if (!from.has_output() && to.drained()) return;
  }
  CHECK(!"a transfer that never ends");
}

}  // namespace

CASE(frames_of_every_size_arrive) {
  Sockets s;
  FrameStream tx(s.a, kMax), rx(s.b, kMax);
  Sink sink;
  uint32_t number = 0;
  for (uint32_t n : {0u, 1u, 39u, 40u, 41u, 1000u, 16343u, 16344u, 16345u, 65495u, 65496u, 65497u, 200000u, kMax}) {
    const auto payload = pattern(n, number);
    CHECK(tx.start(data(n, number), payload.data()) == 0);
    transfer(tx, rx, sink);
    CHECK(tx.idle() && !tx.has_output());
    if (!CHECK(sink.got.size() == number + 1)) return;
    CHECK(sink.got.back().header.bytes == n && sink.got.back().header.chunk == number);
    CHECK(sink.got.back().payload == payload);
    ++number;
  }
  CHECK(tx.tx_bytes == rx.rx_bytes);
}

CASE(frames_may_be_split_at_every_byte) {
  const auto small = bytes_of(data(5, 1), pattern(5, 1));
  const auto empty = bytes_of({.kind = FrameKind::kPing, .token = 9}, {});
  auto wire = small;
  wire.insert(wire.end(), empty.begin(), empty.end());
  wire.insert(wire.end(), small.begin(), small.end());
  for (size_t first = 1; first < wire.size(); ++first) {
    Sockets s;
    FrameStream rx(s.b, kMax);
    Sink sink;
    int piece = 0;
    CHECK(feed(s.a, rx, sink, wire, [&] { return piece++ ? wire.size() : first; }) == 0);
    if (!CHECK(sink.got.size() == 3)) return;
    CHECK(sink.got[0].payload == pattern(5, 1) && sink.got[1].header.token == 9 &&
          sink.got[2].payload == pattern(5, 1));
    ::close(s.a);
  }
}

CASE(random_frames_in_random_pieces) {
  std::mt19937 random(20240607);
  for (int round = 0; round < 30; ++round) {
    Sockets s;
    FrameStream rx(s.b, kMax);
    Sink sink;
    std::vector<uint8_t> wire;
    std::vector<std::vector<uint8_t>> sent;
    for (int i = 0; i < 12; ++i) {
      const uint32_t sizes[] = {0, 7, 1000, 16300, 16400, 50000, 140000};
      const auto n = static_cast<uint32_t>(sizes[random() % 7] + random() % 90);
      sent.push_back(pattern(n, random()));
      const auto frame = bytes_of(data(n, static_cast<uint32_t>(i)), sent.back());
      wire.insert(wire.end(), frame.begin(), frame.end());
    }
    const size_t scale = size_t{1} << random() % 18;
    CHECK(feed(s.a, rx, sink, wire, [&] { return 1 + scale + random() % (scale * 2); }) == 0);
    if (!CHECK(sink.got.size() == sent.size())) return;
    for (size_t i = 0; i < sent.size(); ++i) CHECK(sink.got[i].payload == sent[i]);
    ::close(s.a);
  }
}

CASE(what_nobody_wants_is_read_and_thrown_away) {
  Sockets s;
  FrameStream rx(s.b, kMax);
  Sink sink;
  sink.refuse = true;
  auto wire = bytes_of(data(300000, 1), pattern(300000, 1));
  const auto small = bytes_of(data(9, 2), pattern(9, 2));
  wire.insert(wire.end(), small.begin(), small.end());
  CHECK(feed(s.a, rx, sink, wire, [] { return size_t{30000}; }) == 0);
  if (CHECK(sink.got.size() == 2)) {
    CHECK(sink.got[0].thrown_away && !sink.got[0].landed);
    CHECK(sink.got[1].payload == pattern(9, 2));
  }
  ::close(s.a);
}

CASE(junk_is_refused) {
  Sockets s;
  FrameStream rx(s.b, kMax);
  Sink sink;
  const std::string junk = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
  CHECK(feed(s.a, rx, sink, {junk.begin(), junk.end()}, [] { return size_t{100}; }) == FrameStream::kBadFrame);
  CHECK(sink.got.empty());
  ::close(s.a);
}

CASE(a_length_beyond_the_limit_is_refused_before_anything_is_stored) {
  for (uint32_t n : {kMax + 1, 0x7fffffffu, 0xffffffffu}) {
    Sockets s;
    FrameStream rx(s.b, kMax);
    Sink sink;
    auto wire = bytes_of(data(n, 1), {});
    wire.resize(wire.size() + 100);
    CHECK(feed(s.a, rx, sink, wire, [] { return size_t{1000}; }) == FrameStream::kBadFrame);
    CHECK(sink.got.empty());
    ::close(s.a);
  }
}

CASE(a_truncated_frame_is_never_delivered) {
  for (size_t keep : {size_t{10}, sizeof(FrameHeader), sizeof(FrameHeader) + 100, size_t{100000}}) {
    Sockets s;
    FrameStream rx(s.b, kMax);
    Sink sink;
    auto wire = bytes_of(data(200000, 1), pattern(200000, 1));
    wire.resize(keep);
    CHECK(feed(s.a, rx, sink, wire, [] { return size_t{50000}; }) == 0);
    ::close(s.a);
    CHECK(rx.read(sink, 1 << 20) == FrameStream::kClosed);
    CHECK(sink.got.empty());
  }
}

CASE(after_a_fence_in_mid_payload_the_destination_is_not_written) {
  Sockets s;
  FrameStream rx(s.b, kMax);
  Sink sink;
  auto wire = bytes_of(data(200000, 1), pattern(200000, 1));
  std::vector<uint8_t> begin(wire.begin(), wire.begin() + 60000);
  CHECK(feed(s.a, rx, sink, begin, [] { return size_t{20000}; }) == 0);
  CHECK(std::memcmp(sink.memory.data(), wire.data() + sizeof(FrameHeader), 60000 - sizeof(FrameHeader)) == 0);
  rx.close();
  std::fill(sink.memory.begin(), sink.memory.end(), 0xee);
  (void)::send(s.a, wire.data() + 60000, 50000, MSG_DONTWAIT | MSG_NOSIGNAL);
  CHECK(rx.read(sink, 1 << 20) == 0);
  CHECK(std::all_of(sink.memory.begin(), sink.memory.end(), [](uint8_t b) { return b == 0xee; }));
  CHECK(sink.got.empty() && !rx.open());
  ::close(s.a);
}

CASE(the_sink_may_close_the_stream_from_within) {
  for (bool at_landing : {true, false}) {
    Sockets s;
    FrameStream rx(s.b, kMax);
    Sink sink;
    (at_landing ? sink.on_landing : sink.on_frame) = [&] { rx.close(); };
    auto wire = at_landing ? std::vector<uint8_t>{} : bytes_of(data(10, 1), pattern(10, 1));
    const auto large = bytes_of(data(100000, 2), pattern(100000, 2));
    wire.insert(wire.end(), large.begin(), large.end());
    CHECK(::send(s.a, wire.data(), 50000, MSG_DONTWAIT | MSG_NOSIGNAL) == 50000);
    CHECK(rx.read(sink, 1 << 20) == 0);
    CHECK(sink.got.size() == (at_landing ? 0 : 1));
    CHECK(std::all_of(sink.memory.begin(), sink.memory.end(), [](uint8_t b) { return b == 0xee; }));
    ::close(s.a);
  }
}

CASE(control_frames_go_between_data_frames_never_inside_one) {
  Sockets s(8 << 10);
  FrameStream tx(s.a, kMax), rx(s.b, kMax);
  Sink sink;
  const auto payload = pattern(300000, 5);
  tx.control({.kind = FrameKind::kPing, .token = 1}, nullptr);
  CHECK(tx.start(data(300000, 1), payload.data()) == 0);
  CHECK(!tx.idle());  // the socket is full
  const ChunkId ids[2] = {{1, 2, 3}, {4, 5, 6}};
  tx.control({.kind = FrameKind::kAck, .bytes = sizeof ids}, ids);
  tx.control({.kind = FrameKind::kPing, .token = 2}, nullptr);
  transfer(tx, rx, sink);
  if (!CHECK(sink.got.size() == 4)) return;
  CHECK(sink.got[0].header.token == 1);
  CHECK(sink.got[1].payload == payload);
  CHECK(sink.got[2].header.kind == FrameKind::kAck && std::memcmp(sink.got[2].payload.data(), ids, sizeof ids) == 0);
  CHECK(sink.got[3].header.token == 2);
}

CASE(a_control_frame_up_to_the_whole_limit_needs_no_landing) {
  // Notices and acknowledgements are kept below this, since links and control sockets give them no landing.
  for (uint32_t n : {9000u, static_cast<uint32_t>(kWholeBytes - sizeof(FrameHeader))}) {
    Sockets s(8 << 10);
    FrameStream tx(s.a, kMax), rx(s.b, kMax);
    Sink sink;
    sink.refuse = true;
    const auto payload = pattern(n, 5);
    tx.control({.kind = FrameKind::kAck, .bytes = n}, payload.data());
    transfer(tx, rx, sink);
    if (CHECK(sink.got.size() == 1)) CHECK(sink.got[0].payload == payload);
  }
}

CASE(back_pressure_is_not_an_error_and_nothing_is_lost) {
  Sockets s(8 << 10);
  FrameStream tx(s.a, kMax), rx(s.b, kMax);
  Sink sink;
  for (uint32_t i = 0; i < 5000; ++i) tx.control({.kind = FrameKind::kPing, .token = i}, nullptr);
  for (int i = 0; i < 10; ++i) CHECK(tx.flush() == 0);
  CHECK(tx.has_output());
  transfer(tx, rx, sink);
  CHECK(sink.got.size() == 5000);
  for (uint32_t i = 0; i < sink.got.size(); ++i) CHECK(sink.got[i].header.token == i);
}

CASE(a_reader_that_went_away_is_an_error_and_no_signal) {
  Sockets s;
  FrameStream tx(s.a, kMax);
  ::close(s.b);
  const auto payload = pattern(1000, 1);
  const int rc = tx.start(data(1000, 1), payload.data());
  CHECK(rc == EPIPE || rc == ECONNRESET);
}

CASE(the_read_budget_is_kept_and_what_is_left_comes_later) {
  Sockets s;
  int large = 4 << 20;
  setsockopt(s.a, SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
  FrameStream tx(s.a, kMax), rx(s.b, kMax);
  Sink sink;
  const auto payload = pattern(30000, 1);
  for (uint32_t i = 0; i < 4; ++i) CHECK(tx.start(data(30000, i), payload.data()) == 0);
  CHECK(rx.read(sink, 1) == 0);
  CHECK(sink.got.size() < 4);
  for (int i = 0; i < 10 && sink.got.size() < 4; ++i) CHECK(rx.read(sink, 1) == 0);
  CHECK(sink.got.size() == 4);
}

CASE(fuzzed_streams_are_refused_or_delivered_and_touch_nothing_else) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Sockets s;
    FrameStream rx(s.b, 70000);
    Sink sink;
    sink.refuse = round % 3 == 0;
    std::vector<uint8_t> wire;
    for (int i = 0; i < 6; ++i) {
      const auto n = static_cast<uint32_t>(random() % (i % 2 ? 60 : 60000));
      const auto frame = bytes_of(data(n, static_cast<uint32_t>(i)), pattern(n, random()));
      wire.insert(wire.end(), frame.begin(), frame.end());
    }
    for (int i = 0; i < 3; ++i) {
      const size_t at = random() % wire.size();
      if (random() % 2) {
        wire[at] ^= static_cast<uint8_t>(1u << random() % 8);
      } else {
        wire.erase(wire.begin() + static_cast<long>(at));
      }
    }
    const int rc = feed(s.a, rx, sink, wire, [&] { return 1 + random() % 30000; });
    CHECK(rc == 0 || rc == FrameStream::kBadFrame);
    CHECK(sink.got.size() <= 6 + 3);
    ::close(s.a);
  }
}

CASE(a_reset_that_a_write_was_told_of_is_no_end_in_good_order) {
  for (const bool reset : {true, false}) {
    const auto [mine, theirs] = test::tcp_pair();
    FrameStream stream(mine, kMax);
    const linger how{reset, 0};
    CHECK(setsockopt(theirs, SOL_SOCKET, SO_LINGER, &how, sizeof how) == 0);
    ::close(theirs);
    int written = 0;
    for (int i = 0; i < 100 && written == 0; ++i) {
      stream.control(data(0, 0), nullptr);
      written = stream.flush();
      ::usleep(1000);
    }
    CHECK(written == (reset ? ECONNRESET : EPIPE));
    Sink sink;
    CHECK(stream.read(sink, 1 << 20) == (reset ? ECONNRESET : FrameStream::kClosed));
  }
}

int main(int argc, char** argv) { return r2ccl::test::run_cases(argc, argv); }

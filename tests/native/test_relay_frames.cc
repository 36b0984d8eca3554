// What goes round, frame by frame: an engine between peers that the test drives, at either end of the way or in its
// middle.
#include "cases.h"
#include "fake_peer.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint8_t kSend = 9;
constexpr uint32_t kChunk = 4096;
constexpr int kSoonMs = 3000;

struct Heard {
  FrameHeader header;
  std::vector<uint8_t> payload;
};

using Fakes = std::vector<std::unique_ptr<FakePeer>>;

// Frames of one kind that come over fd until there are so many of them, or none comes for a while.
std::vector<Heard> hear(FakePeer& peer, int fd, FrameKind kind, size_t wanted, int patience_ms = kSoonMs) {
  std::vector<Heard> found;
  const Nanoseconds end = monotonic_ns() + Nanoseconds{1'000'000} * static_cast<Nanoseconds>(patience_ms);
  while (found.size() < wanted && monotonic_ns() < end) {
    std::vector<std::vector<uint8_t>> payloads;
    const auto frames = peer.hear(fd, &payloads, 20);
    for (size_t i = 0; i < frames.size(); ++i)
      if (frames[i].kind == kind) found.push_back({frames[i], payloads[i]});
  }
  return found;
}

FrameHeader relayed(int from, int to, uint32_t chunk, uint32_t passes = 1, uint32_t bytes = kChunk) {
  return {.kind = FrameKind::kRelay,
          .lane = kLaneP2p,
          .flags = kFrameAwaited,
          .bytes = bytes,
          .message = message_id(kLaneP2p, 0),
          .chunk = chunk,
          .freed = passes,
          .token = relay_token(from, to)};
}

// A control frame wrapped for its way round.
std::pair<FrameHeader, std::vector<uint8_t>> wrapped(int from, int to, FrameHeader inner,
                                                     const std::vector<uint8_t>& payload = {}, uint32_t passes = 1) {
  inner.bytes = static_cast<uint32_t>(payload.size());
  const FrameHeader wire = wire_order(inner);
  std::vector<uint8_t> whole(sizeof wire + payload.size());
  std::memcpy(whole.data(), &wire, sizeof wire);
  std::copy(payload.begin(), payload.end(), whole.begin() + sizeof wire);
  return {{.kind = FrameKind::kRelayControl,
           .bytes = static_cast<uint32_t>(whole.size()),
           .freed = passes,
           .token = relay_token(from, to)},
          whole};
}

std::vector<uint8_t> bytes_of(uint32_t chunk, size_t n = kChunk) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + chunk);
  return bytes;
}

r2ccl_counters counters(Engine& engine) {
  r2ccl_counters c{};
  engine.counters(&c);
  return c;
}

// The links to a peer end; the engine has taken that in.
void cut(Engine& engine, FakePeer& peer, int32_t rank) {
  for (size_t l = 0; l < peer.links.size(); ++l) peer.reset(l);
  const Nanoseconds end = monotonic_ns() + Nanoseconds{kSoonMs} * 1'000'000;
  for (bool up = true; up && monotonic_ns() < end;) {
    ::usleep(1000);
    r2ccl_link_stats stats[16];
    const uint32_t n = engine.links(stats, 16);
    up = false;
    for (uint32_t i = 0; i < n; ++i) up |= stats[i].peer == rank && stats[i].state == 0;
  }
}

// A message of some chunks to rank 1, sent by the engine's own thread.
struct Message {
  Message(Engine& engine, int ranks, uint32_t chunks)
      : data(values(0, chunks * kChunk / 4, 1)), plan(message_plan(ranks, 1, true)) {
    auto args = call_args(*plan, kSend, data.data(), nullptr, data.size());
    args.peer = 1;
    CHECK(engine.submit(args, false, &ticket) == Status::OK);
  }
  std::vector<float> data;
  std::unique_ptr<PlanImage> plan;
  uint64_t ticket = 0;
};

// An acknowledgement by rank 1 of a chunk, brought by another rank.
void acknowledge_round(FakePeer& by, const FrameHeader& chunk) {
  const ChunkId id = wire_order(ChunkId{chunk.call, chunk.message, chunk.chunk});
  std::vector<uint8_t> payload(sizeof id);
  std::memcpy(payload.data(), &id, sizeof id);
  const auto [h, whole] = wrapped(1, 0, {.kind = FrameKind::kAck}, payload);
  by.say(by.links[0], h, whole);
}

}  // namespace

CASE(a_rank_between_passes_on_chunks_and_control_frames_as_they_are) {
  Fakes peers;
  auto engine = engine_with(&peers, {.ranks = 3, .rails = 1});
  FakePeer &one = *peers[0], &two = *peers[1];
  for (uint32_t c = 0; c < 5; ++c) one.say(one.links[0], relayed(1, 2, c), bytes_of(c));
  const auto [ping, whole] = wrapped(1, 2, {.kind = FrameKind::kNote, .token = 77}, {1, 2, 3});
  one.say(one.links[0], ping, whole);
  one.say(one.control, ping, whole);  // as ranks of one host do
  std::vector<std::vector<uint8_t>> payloads;
  std::vector<FrameHeader> frames;
  for (const Nanoseconds end = monotonic_ns() + 3'000'000'000u; frames.size() < 7 && monotonic_ns() < end;)
    for (const FrameHeader& h : two.hear(two.links[0], &payloads, 20)) frames.push_back(h);
  uint32_t chunks = 0, controls = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    CHECK(frames[i].token == relay_token(1, 2) && frames[i].freed == 0);
    if (frames[i].kind == FrameKind::kRelay) {
      CHECK(frames[i].chunk == chunks && frames[i].flags == kFrameAwaited && frames[i].lane == kLaneP2p);
      CHECK(payloads[i] == bytes_of(chunks));
      ++chunks;
    } else {
      CHECK(frames[i].kind == FrameKind::kRelayControl && payloads[i] == whole);
      ++controls;
    }
  }
  CHECK(chunks == 5 && controls == 2);
  CHECK(counters(*engine).forwarded_chunks == 5 && counters(*engine).chunks_received == 0);
}

CASE(a_rank_without_a_link_to_the_other_end_says_so) {
  Fakes peers;
  auto engine = engine_with(&peers, {.ranks = 3, .rails = 1});
  FakePeer& one = *peers[0];
  cut(*engine, *peers[1], 2);
  one.say(one.links[0], relayed(1, 2, 3), bytes_of(3));
  const auto [ping, whole] = wrapped(1, 2, {.kind = FrameKind::kPing, .token = 1}, {}, 2);
  one.say(one.links[0], ping, whole);
  const auto refusals = hear(one, one.links[0], FrameKind::kRelayRefused, 2);
  if (!CHECK(refusals.size() == 2)) return;
  CHECK(refusals[0].header.token == relay_token(1, 2) && refusals[0].header.freed == 1);
  CHECK(refusals[0].header.flags == 1 && refusals[0].header.chunk == 3);
  CHECK(refusals[1].header.flags == 0 && refusals[1].header.freed == 2);
  CHECK(counters(*engine).forwarded_chunks == 0);
}

CASE(where_two_passes_are_allowed_the_next_rank_has_one) {
  Fakes peers;
  auto engine = engine_with(&peers, {.ranks = 4, .rails = 1});
  FakePeer &one = *peers[0], &three = *peers[2];
  cut(*engine, *peers[1], 2);
  one.say(one.links[0], relayed(1, 2, 0, 1), bytes_of(0));
  CHECK(hear(one, one.links[0], FrameKind::kRelayRefused, 1).size() == 1);
  one.say(one.links[0], relayed(1, 2, 1, 2), bytes_of(1));
  const auto got = hear(three, three.links[0], FrameKind::kRelay, 1);
  CHECK(got.size() == 1 && got[0].header.freed == 1 && got[0].header.chunk == 1 && got[0].payload == bytes_of(1));
}

CASE(nonsense_is_not_passed_on) {
  Fakes peers;
  auto engine = engine_with(&peers, {.ranks = 3, .rails = 1});
  FakePeer &one = *peers[0], &two = *peers[1];
  const int fd = one.links[0];
  const FrameHeader bad[] = {
      relayed(1, 7, 0),      relayed(7, 2, 0),    relayed(2, 2, 0),        relayed(0, 2, 0),
      relayed(1, 1, 0),      relayed(2, 1, 0),    relayed(1, 2, 0, 99),    relayed(0xffff, 2, 0),
      relayed(1, 0xffff, 0), relayed(1, 2, 0, 0), relayed(1, 0, 0, 1, 12),
  };
  for (const FrameHeader& h : bad) one.say(fd, h, bytes_of(0, h.bytes));
  one.say(fd, relayed(1, 2, 0, 1, 60'000), bytes_of(0, 60'000));  // longer than a chunk
  auto say = [&](const std::pair<FrameHeader, std::vector<uint8_t>>& frame) { one.say(fd, frame.first, frame.second); };
  say(wrapped(1, 0, {.kind = FrameKind::kData}));
  say(wrapped(1, 0, {.kind = FrameKind::kRelayControl}));
  say(wrapped(1, 0, {.kind = FrameKind::kWake}));
  say(wrapped(1, 0, {.magic = 5, .kind = FrameKind::kPing}));
  say(wrapped(7, 0, {.kind = FrameKind::kPing}));
  auto [h, whole] = wrapped(1, 0, {.kind = FrameKind::kAck}, std::vector<uint8_t>(32, 1));
  whole.resize(h.bytes -= 5);
  one.say(fd, h, whole);
  one.say(fd, {.kind = FrameKind::kRelayControl, .bytes = 8, .freed = 1, .token = relay_token(1, 2)},
          std::vector<uint8_t>(8, 1));
  for (uint32_t token : {0u, ~0u, relay_token(0, 1), relay_token(0, 0), relay_token(0, 2), relay_token(1, 2)})
    one.say(fd, {.kind = FrameKind::kRelayRefused, .flags = 1, .freed = 99, .token = token});
  one.say(fd, relayed(1, 2, 4), bytes_of(4));
  const auto got = hear(two, two.links[0], FrameKind::kRelay, 1);
  CHECK(got.size() == 1 && got[0].header.chunk == 4 && got[0].payload == bytes_of(4));
  CHECK(hear(two, two.links[0], FrameKind::kRelayControl, 1, 50).empty());
  CHECK(counters(*engine).forwarded_chunks == 1 && engine->status() == Status::OK);
  CHECK(counters(*engine).refused_frames >= 16);
}

CASE(a_receiver_takes_the_first_copy_and_acknowledges_each) {
  Fakes peers;
  auto engine = engine_with(&peers, {.ranks = 3, .rails = 1});
  FakePeer &one = *peers[0], &two = *peers[1];
  cut(*engine, one, 1);
  const auto plan = message_plan(3, 1, false);
  std::vector<float> recv(kChunk / 4, -1.0f);
  auto args = call_args(*plan, kSend, nullptr, recv.data(), recv.size());
  args.peer = 1;
  const auto right = values(1, recv.size(), 0);
  std::vector<uint8_t> payload(kChunk);
  std::memcpy(payload.data(), right.data(), kChunk);
  FrameHeader h = relayed(1, 0, 0, 0);
  h.signature = signature_of(args.info);
  two.say(two.links[0], h, payload);  // before the call
  CHECK(!hear(two, two.links[0], FrameKind::kRelayControl, 1).empty());
  two.say(two.links[0], h, std::vector<uint8_t>(kChunk, 0));  // once more, with other content
  uint64_t ticket = 0;
  CHECK(engine->submit(args, true, &ticket) == Status::OK);
  CHECK(wait_for(*engine, ticket, 5) == Status::OK);
  two.say(two.links[0], h, std::vector<uint8_t>(kChunk, 0));  // and after it
  uint32_t acks = 0;
  for (const Heard& frame : hear(two, two.links[0], FrameKind::kRelayControl, 100, 300)) {
    CHECK(frame.header.token == relay_token(0, 1));
    FrameHeader inner;
    std::memcpy(&inner, frame.payload.data(), sizeof inner);
    acks += wire_order(inner).kind == FrameKind::kAck;
  }
  CHECK(acks >= 1);
  CHECK(same_bits(recv, right) && counters(*engine).duplicate_chunks == 2);
}

CASE(a_rank_that_refuses_is_not_asked_again) {
  Fakes peers;
  auto engine = engine_with(&peers, {.ranks = 4, .rails = 1});
  cut(*engine, *peers[0], 1);
  Message message(*engine, 4, 6);
  FakePeer* asked = peers[1].get();
  FakePeer* other = peers[2].get();
  auto first = hear(*asked, asked->links[0], FrameKind::kRelay, 1);
  if (!CHECK(!first.empty())) return;
  for (const Heard& chunk : first) {
    FrameHeader no = chunk.header;
    no.kind = FrameKind::kRelayRefused;
    no.flags = 1;
    no.bytes = 0;
    asked->say(asked->links[0], no);
  }
  std::vector<bool> seen(6);
  size_t count = 0;
  for (const Nanoseconds end = monotonic_ns() + 5'000'000'000u; count < 6 && monotonic_ns() < end;) {
    for (const Heard& chunk : hear(*other, other->links[0], FrameKind::kRelay, 1, 50)) {
      CHECK(chunk.header.token == relay_token(0, 1) && chunk.header.chunk < 6);
      count += !seen[chunk.header.chunk];
      seen[chunk.header.chunk] = true;
      acknowledge_round(*other, chunk.header);
    }
    // What it was given before its refusal came may still be there; it refuses that, too.
    for (const Heard& chunk : hear(*asked, asked->links[0], FrameKind::kRelay, 1, 20)) {
      FrameHeader no = chunk.header;
      no.kind = FrameKind::kRelayRefused;
      no.flags = 1;
      no.bytes = 0;
      asked->say(asked->links[0], no);
    }
  }
  CHECK(count == 6);
  CHECK(wait_for(*engine, message.ticket, 5) == Status::OK);
}

CASE(what_is_not_acknowledged_goes_out_again_by_another_rank) {
  Fakes peers;
  auto engine = engine_with(&peers, {.ranks = 4, .rails = 1});
  cut(*engine, *peers[0], 1);
  Message message(*engine, 4, 1);
  std::vector<FrameHeader> copies;
  std::vector<int> by;
  const Nanoseconds begin = monotonic_ns();
  for (const Nanoseconds end = begin + 10'000'000'000u; copies.size() < 2 && monotonic_ns() < end;)
    for (int r : {1, 2})
      for (const Heard& chunk : hear(*peers[r], peers[r]->links[0], FrameKind::kRelay, 1, 20)) {
        copies.push_back(chunk.header);
        by.push_back(r);
      }
  if (!CHECK(copies.size() == 2)) return;
  CHECK(monotonic_ns() - begin > 450'000'000u);
  CHECK(by[0] != by[1] && copies[0].chunk == copies[1].chunk);
  for (int i : {1, 0}) acknowledge_round(*peers[by[i]], copies[i]);  // twice, and the wrong way round
  CHECK(wait_for(*engine, message.ticket, 5) == Status::OK);
  CHECK(counters(*engine).relayed_chunks == 2 && counters(*engine).replayed_chunks == 1);
}

CASE(no_more_than_a_window_waits_for_a_rank_that_does_not_read) {
  Fakes peers;
  const Options o{.ranks = 3, .rails = 1};
  auto engine = engine_with(&peers, o);
  FakePeer &one = *peers[0], &two = *peers[1];
  constexpr uint32_t kMany = 4000;  // 16 MB: more than the kernel's buffers take
  const auto payload = bytes_of(0);
  for (uint32_t c = 0; c < kMany; ++c) one.say(one.links[0], relayed(1, 2, c), payload);
  one.say(one.links[0], {.kind = FrameKind::kPing, .token = 5});
  CHECK(hear(one, one.links[0], FrameKind::kPong, 1, 10'000).size() == 1);  // it has read everything
  const r2ccl_counters full = counters(*engine);
  CHECK(full.forwarded_chunks > 0 && full.forwarded_chunks < kMany);
  CHECK(full.staging_bytes <= o.staging_bytes);
  // All slots come back.
  uint8_t scrap[1 << 16];
  for (pollfd p{two.links[0], POLLIN, 0}; ::poll(&p, 1, 300) > 0;)
    if (::recv(two.links[0], scrap, sizeof scrap, MSG_DONTWAIT) <= 0) break;
  const uint32_t window = static_cast<uint32_t>(o.staging_bytes / (3 * o.chunk_bytes));
  for (uint32_t c = 0; c < window; ++c) one.say(one.links[0], relayed(1, 2, c), payload);
  CHECK(hear(two, two.links[0], FrameKind::kRelay, window).size() == window);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

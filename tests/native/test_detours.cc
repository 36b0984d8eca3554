// Acknowledgements that take another link than their chunk, since their own is slow and busy: they must outlive it.
#include <unistd.h>

#include "cases.h"
#include "fake_peer.h"
#include "flow/detours.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint8_t kSend = 8;
constexpr uint32_t kSlow = 0, kQuick = 1;
constexpr Nanoseconds kSecond = 1'000'000'000;

r2ccl_call_args message(const PlanImage& plan, const void* send, void* recv, uint64_t count) {
  r2ccl_call_args a = call_args(plan, kSend, send, recv, count);
  a.peer = 1;
  return a;
}

// Whether an acknowledgement of the chunk comes over the socket.
bool acknowledged(FakePeer& peer, int socket, const ChunkId& id) {
  const Nanoseconds end = monotonic_ns() + 5 * kSecond;
  while (monotonic_ns() < end) {
    std::vector<std::vector<uint8_t>> payloads;
    const auto frames = peer.hear(socket, &payloads, 20);
    for (size_t i = 0; i < frames.size(); ++i) {
      if (frames[i].kind != FrameKind::kAck) continue;
      for (size_t at = 0; at + sizeof(ChunkId) <= payloads[i].size(); at += sizeof(ChunkId)) {
        ChunkId wire;
        std::memcpy(&wire, payloads[i].data() + at, sizeof wire);
        if (wire_order(wire) == id) return true;
      }
    }
  }
  return false;
}

// asks: the peer wonders about its chunk before it takes a link for dead.
void detour(bool asks) {
  std::vector<std::unique_ptr<FakePeer>> peers;
  auto engine = engine_with(&peers, {.ranks = 2, .rails = 2, .stall_floor_ns = 60 * kSecond});
  FakePeer& peer = *peers[0];
  const auto out = message_plan(2, 1, true), in = message_plan(2, 1, false);
  const std::vector<float> send(64 * 1024, 1.0f), small(100, 2.0f);
  std::vector<float> recv(100, -1.0f);
  uint64_t sending = 0, receiving = 0;
  CHECK(engine->submit(message(*out, send.data(), nullptr, send.size()), false, &sending) == Status::OK);

  // One link confirms at once, the other one chunk after 50 ms and then no more: slow, and busy for long.
  bool slow_confirmed = false;
  uint32_t on_slow = 0, freed = 0;
  const Nanoseconds begin = monotonic_ns();
  while (monotonic_ns() < begin + kSecond / 5) {
    for (uint32_t l : {kSlow, kQuick}) {
      std::vector<std::vector<uint8_t>> payloads;
      for (const FrameHeader& h : peer.hear(peer.links[l], &payloads, 1)) {
        if (h.kind != FrameKind::kData) continue;
        peer.say(peer.control, {.kind = FrameKind::kCredit, .lane = kLaneP2p, .freed = ++freed});
        if (l == kQuick) {
          peer.acknowledge(peer.links[l], {h.call, h.message, h.chunk});
        } else if (++on_slow == 1) {
          ::usleep(50'000);
          peer.acknowledge(peer.links[l], {h.call, h.message, h.chunk});
          slow_confirmed = true;
        }
      }
    }
  }
  CHECK(slow_confirmed && on_slow >= 2);

  // A chunk that comes over the slow link is acknowledged over the quick one.
  const auto args = message(*in, nullptr, recv.data(), recv.size());
  CHECK(engine->submit(args, false, &receiving) == Status::OK);
  const FrameHeader chunk{.kind = FrameKind::kData,
                          .lane = kLaneP2p,
                          .flags = kFrameAwaited,
                          .bytes = 400,
                          .signature = signature_of(args.info),
                          .message = message_id(kLaneP2p, 0)};
  std::vector<uint8_t> payload(400);
  std::memcpy(payload.data(), small.data(), payload.size());
  peer.say(peer.links[kSlow], chunk, payload);
  const ChunkId id{chunk.call, chunk.message, chunk.chunk};
  CHECK(acknowledged(peer, peer.links[kQuick], id));
  CHECK(wait_for(*engine, receiving, 5) == Status::OK && same_bits(recv, small));

  // That one dies, and perhaps the acknowledgement never came: it comes by the way by which the peer asks, or over the
  // slow link when the quick one is given up.
  if (asks) {
    peer.say(peer.control, {.kind = FrameKind::kPing, .token = 7});
    CHECK(acknowledged(peer, peer.control, id));
  } else {
    peer.say(peer.control, {.kind = FrameKind::kNotice, .message = kQuick});
    CHECK(acknowledged(peer, peer.links[kSlow], id));
  }
  engine->abort("");
  wait_for(*engine, sending, 5);
}

}  // namespace

CASE(the_last_few_are_kept) {
  Detours d;
  for (uint32_t c = 0; c < 7; ++c) d.note({1, 0, c}, 4);
  const auto kept = d.take();
  CHECK(kept.size() == 4);
  for (const ChunkId& id : kept) CHECK(id.chunk >= 3);
  CHECK(d.take().empty());
  d.note({1, 0, 9}, 4);
  CHECK(d.take() == std::vector<ChunkId>({ChunkId{1, 0, 9}}));
}

CASE(an_acknowledgement_that_took_another_link_is_told_again_when_that_link_dies) { detour(false); }

CASE(an_acknowledgement_that_took_another_link_is_told_again_when_the_peer_asks) { detour(true); }

int main(int argc, char** argv) { return run_cases(argc, argv); }

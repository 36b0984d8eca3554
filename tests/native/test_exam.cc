// A link failed: what the other links over its rail are taken for, by what comes in over them.
#include <unistd.h>

#include "cases.h"
#include "cluster.h"
#include "fake_peer.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint64_t kFloorNs = 150'000'000;
constexpr uint32_t kChunk = 4096, kStep = 64;
constexpr useconds_t kStepUs = 20'000;  // a chunk takes 1.3 s: longer than any answer is waited for
constexpr uint8_t kBroadcast = 2;

// Ranks 0, 1 and 2 on hosts of their own; rank 1's link over rail 0 fails, while rank 2 is in the middle of a chunk.
struct Scene {
  std::vector<std::unique_ptr<FakePeer>> peers;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<PlanImage> plan;
  std::vector<float> recv = std::vector<float>(kChunk / 4, -1.0f);
  std::vector<uint8_t> frame;
  size_t sent = 0;
  uint64_t ticket = 0;
  uint32_t suspicions = 0;         // of rank 2's link over rail 0
  std::vector<uint64_t> verdicts;  // about rank 1's: the evidence

  explicit Scene(uint64_t heartbeat_ns = 0) {
    engine = engine_with(&peers, {.ranks = 3, .rails = 2, .stall_floor_ns = kFloorNs, .heartbeat_ns = heartbeat_ns});
    for (int r : {1, 2}) engine->set_host(r, r);
    PlanWriter w(3, 1);
    w.receive(2, 0, 1);
    plan = w.finish();
    const auto args = call_args(*plan, kBroadcast, nullptr, recv.data(), recv.size());
    CHECK(engine->submit(args, true, &ticket) == Status::OK);
    const FrameHeader head =
        wire_order(FrameHeader{.kind = FrameKind::kData, .bytes = kChunk, .signature = signature_of(args.info)});
    frame.resize(sizeof head + kChunk);
    std::memcpy(frame.data(), &head, sizeof head);
  }
  ~Scene() { engine->abort(""); }

  // For so many steps: rank 2 moves on in its chunk, if it does; the peers answer over their control connections only.
  void steps(int n, bool moves) {
    for (int i = 0; i < n; ++i, ::usleep(kStepUs)) {
      FakePeer& two = *peers[1];
      const size_t part = std::min<size_t>(moves ? kStep : 0, frame.size() - sent);
      if (part) CHECK(::send(two.links[0], frame.data() + sent, part, MSG_NOSIGNAL) == static_cast<ssize_t>(part));
      sent += part;
      std::vector<std::vector<uint8_t>> payloads;
      for (auto& peer : peers)
        for (const FrameHeader& h : peer->hear(peer->control, &payloads, 0))
          if (h.kind == FrameKind::kPing) peer->say(peer->control, {.kind = FrameKind::kPong, .token = h.token});
      r2ccl_event events[64];
      const uint32_t count = engine->events().take(events, 64);
      for (uint32_t e = 0; e < count; ++e) {
        if (events[e].rail != 0) continue;
        suspicions += events[e].kind == kEventLinkSuspect && events[e].peer == 2;
        if (events[e].kind == kEventVerdict && events[e].peer == 1) verdicts.push_back(events[e].value);
      }
    }
  }
};

constexpr int kWhole = (sizeof(FrameHeader) + kChunk + kStep - 1) / kStep;

}  // namespace

CASE(an_answer_may_wait_behind_a_chunk_that_is_under_way) {
  Scene scene;
  scene.steps(2, true);
  scene.peers[0]->reset(0);
  scene.steps(kWhole, true);
  CHECK(scene.sent == scene.frame.size());
  CHECK(scene.suspicions == 0);
  scene.steps(40, false);  // the other end has its time to say what it finds
  CHECK(scene.verdicts.size() == 1 && (scene.verdicts[0] & 255) == 1);  // one link answered
  CHECK(wait_for(*scene.engine, scene.ticket, 10) == Status::OK);
}

CASE(a_chunk_that_comes_no_further_proves_nothing) {
  Scene scene;
  scene.steps(2, true);
  scene.peers[0]->reset(0);
  scene.steps(5, true);
  scene.steps(100, false);
  CHECK(scene.suspicions == 1);
}

CASE(a_link_that_answers_no_heartbeat_and_carries_a_chunk_is_not_idle) {
  Scene scene(50'000'000);
  scene.steps(kWhole, true);
  CHECK(scene.suspicions == 0);
  scene.steps(100, false);
  CHECK(scene.suspicions == 1);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

// Who gets a rail: peers of a paced plan in proportion to what it sends them, though their links share the rail alike;
// the lanes of a peer in turn; and how much a link may hold that turns out to be slow.
#include <deque>
#include <mutex>

#include "cases.h"
#include "cluster.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

// A rail that carries one chunk at a time, of each link in turn, as links of equal standing share one.
struct Rail {
  std::mutex mutex;
  uint32_t turn = 0, waiting = 0;
  struct Chunk {
    int32_t peer;
    uint8_t lane;
  };
  std::vector<Chunk> carried;
  Nanoseconds pace_ns = 0, next_ns = 0;  // a chunk takes so long
  std::vector<uint64_t> limits;          // that links were given
};

class SharedLink final : public Link {
 public:
  SharedLink(int32_t peer, Rail& rail) noexcept : Link(peer, 0), shared_(rail) {}
  bool ready() const noexcept override { return !fenced_ && queue_.size() < 2; }
  bool write(const FrameHeader& header, const uint8_t*) noexcept override {
    if (!ready()) return false;
    std::lock_guard lock(shared_.mutex);
    if (queue_.empty()) ++shared_.waiting;
    queue_.push_back(header);
    return true;
  }
  void control(const FrameHeader&, const void*) noexcept override {}
  void fence() noexcept override { fenced_ = true; }
  uint64_t progress() noexcept override { return tx_; }
  bool poll(LinkEvents& events) noexcept override {
    FrameHeader h;
    {
      std::lock_guard lock(shared_.mutex);
      if (queue_.empty()) return false;
      const Nanoseconds now = monotonic_ns();
      if (now < shared_.next_ns) return false;
      if (shared_.waiting > 1 && shared_.turn == static_cast<uint32_t>(peer())) return false;  // the other one's turn
      shared_.next_ns = now + shared_.pace_ns;
      h = queue_.front();
      queue_.pop_front();
      if (queue_.empty()) --shared_.waiting;
      shared_.turn = static_cast<uint32_t>(peer());
      shared_.carried.push_back({peer(), h.lane});
    }
    tx_ += h.bytes;
    const ChunkId id = wire_order(ChunkId{h.call, h.message, h.chunk});
    events.control(*this, {.kind = FrameKind::kAck, .bytes = sizeof id}, reinterpret_cast<const uint8_t*>(&id));
    events.control(*this, {.kind = FrameKind::kCredit, .lane = h.lane, .freed = ++freed_[h.lane]}, nullptr);
    return true;
  }
  uint64_t least_round_trip_ns() noexcept override { return 0; }
  void limit_backlog(uint64_t bytes) noexcept override { shared_.limits.push_back(bytes); }
  uint64_t tx_bytes() const noexcept override { return tx_; }
  uint64_t rx_bytes() const noexcept override { return 0; }

 private:
  Rail& shared_;
  std::deque<FrameHeader> queue_;
  uint64_t tx_ = 0;
  uint32_t freed_[2] = {};  // by lane
  bool fenced_ = false;
};

constexpr uint32_t kParts = 4, kChunksPerPart = 100;

// Rank 0 of three sends by this plan.
void carry(const PlanImage& plan, Rail& rail) {
  Options o{.ranks = 3, .rails = 1, .stall_floor_ns = 60'000'000'000};
  auto engine = make_engine(o, 0);
  int control[2][2];
  for (int32_t r = 1; r < 3; ++r) {
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control[r - 1]) == 0);
    engine->add_control(r, control[r - 1][0], true);
    engine->add_link(std::make_unique<SharedLink>(r, rail));
  }
  CHECK(engine->start() == Status::OK);
  const std::vector<float> send(kParts * kChunksPerPart * o.chunk_bytes / sizeof(float), 1.0f);
  r2ccl_call_args args = call_args(plan, 0, send.data(), nullptr, send.size());
  args.chunk_bytes = o.chunk_bytes;
  CHECK(run_call(*engine, args) == Status::OK);
  engine->close(0);
  for (auto& pair : control) ::close(pair[1]);
  CHECK(rail.carried.size() == kParts * kChunksPerPart);
}

// Three times as much for rank 2 as for rank 1: the chunks in the order in which the rail carried them.
std::vector<Rail::Chunk> carried(bool paced) {
  PlanWriter w(3, kParts);
  w.send(1, R2CCL_BUF_SEND, 0, 1);
  for (uint32_t part = 1; part < kParts; ++part) w.send(2, R2CCL_BUF_SEND, part, 1);
  const auto plan = w.finish();
  plan->paced = paced;
  Rail rail;
  carry(*plan, rail);
  return rail.carried;
}

// Of the chunks up to the end of those for rank 1, how many were for rank 2 for each of them.
double others_for_each(const std::vector<Rail::Chunk>& order) {
  size_t one = 0, two = 0;
  for (const Rail::Chunk& chunk : order) {
    one += chunk.peer == 1;
    two += chunk.peer == 2;
    if (one == kChunksPerPart) break;
  }
  return static_cast<double>(two) / static_cast<double>(one);
}

}  // namespace

CASE(links_of_a_paced_plan_get_what_the_plan_sends_over_them) {
  const double ratio = others_for_each(carried(true));
  CHECK(ratio > 2.7 && ratio < 3.1);
}

CASE(without_pacing_links_share_alike) {
  const double ratio = others_for_each(carried(false));
  CHECK(ratio > 0.8 && ratio < 1.3);
}

CASE(lanes_of_a_peer_take_turns_where_a_link_has_room_for_few_chunks) {
  PlanWriter w(3, kParts, 2);
  for (uint32_t part = 0; part < kParts; ++part) w.send(1, R2CCL_BUF_SEND, part, 1, {}, part % 2);
  Rail rail;
  carry(*w.finish(), rail);
  size_t of_lane[2] = {0, 0}, most_apart = 0;
  for (const Rail::Chunk& chunk : rail.carried) {
    ++of_lane[chunk.lane];
    most_apart = std::max(most_apart, std::max(of_lane[0], of_lane[1]) - std::min(of_lane[0], of_lane[1]));
  }
  CHECK(of_lane[0] == of_lane[1] && most_apart <= 2);
}

CASE(a_link_that_turns_out_to_be_slow_may_hold_little) {
  PlanWriter w(3, kParts);
  w.send(1, R2CCL_BUF_SEND, 0, kParts);
  Rail rail{.pace_ns = 300'000};  // 4 KiB each: 14 MB/s, for 120 ms
  carry(*w.finish(), rail);
  CHECK(rail.limits == std::vector<uint64_t>{Backlog::kLimit});
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

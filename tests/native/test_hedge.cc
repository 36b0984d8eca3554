// A chunk on a slow link that is sent over a quicker one as well: its memory may be reused before that one has written
// it.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>

#include "cases.h"
#include "cluster.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

struct Frame {
  FrameHeader header;
  const uint8_t* payload;
};

// Acknowledges what it carries, or holds it until it is told otherwise; meanwhile bytes seem to move.
class HeldLink final : public Link {
 public:
  HeldLink(int32_t peer, uint32_t rail) noexcept : Link(peer, rail) {}
  bool ready() const noexcept override { return !fenced_ && (!writing || held_count() == 0); }
  bool write(const FrameHeader& header, const uint8_t* payload) noexcept override {
    if (!ready()) return false;
    std::lock_guard lock(mutex_);
    frames_.push_back({header, payload});
    tx_ += header.bytes;
    return true;
  }
  void control(const FrameHeader&, const void*) noexcept override {}
  void fence() noexcept override { fenced_ = true; }
  bool written() const noexcept override { return !writing || held_count() == 0; }
  uint64_t progress() noexcept override { return ++moved_; }
  bool poll(LinkEvents& events) noexcept override {
    Frame frame;
    {
      std::lock_guard lock(mutex_);
      if (held || frames_.empty()) return false;
      frame = frames_.front();
      frames_.pop_front();
    }
    const FrameHeader& h = frame.header;
    const ChunkId id = wire_order(ChunkId{h.call, h.message, h.chunk});
    events.control(*this, {.kind = FrameKind::kAck, .bytes = sizeof id}, reinterpret_cast<const uint8_t*>(&id));
    return true;
  }
  uint64_t tx_bytes() const noexcept override { return tx_; }
  uint64_t rx_bytes() const noexcept override { return 0; }

  size_t held_count() const noexcept {
    std::lock_guard lock(mutex_);
    return frames_.size();
  }
  Frame last() const {
    std::lock_guard lock(mutex_);
    return frames_.back();
  }
  // Not acknowledged; and, besides, still being written.
  std::atomic<bool> held{false}, writing{false};

 private:
  mutable std::mutex mutex_;
  std::deque<Frame> frames_;
  uint64_t tx_ = 0, moved_ = 0;
  std::atomic<bool> fenced_{false};
};

bool within(double limit_s, const std::function<bool()>& done) {
  const Nanoseconds end = monotonic_ns() + static_cast<Nanoseconds>(limit_s * 1e9);
  while (monotonic_ns() < end) {
    if (done()) return true;
    ::usleep(500);
  }
  return done();
}

}  // namespace

CASE(the_second_copy_of_a_chunk_does_not_need_the_memory_of_its_call) {
  const Options o{.ranks = 2, .rails = 2, .staging_bytes = 4096 * 96, .stall_floor_ns = 100'000'000};
  auto engine = make_engine(o, 0);
  int control[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
  engine->add_control(1, control[0], true);
  auto slow = std::make_unique<HeldLink>(1, 0), quick = std::make_unique<HeldLink>(1, 1);
  HeldLink &a = *slow, &b = *quick;
  engine->add_link(std::move(slow));
  engine->add_link(std::move(quick));
  CHECK(engine->start() == Status::OK);
  const auto plan = message_plan(2, 1, true);
  auto message = [&](const std::vector<float>& data) {
    r2ccl_call_args args = call_args(*plan, 8, data.data(), nullptr, data.size());
    args.peer = 1;
    args.chunk_bytes = o.chunk_bytes;
    return args;
  };
  const std::vector<float> warm(8 * 1024, 1.0f);  // eight chunks: the links' rates become known
  CHECK(run_call(*engine, message(warm)) == Status::OK);

  std::vector<float> data(2 * 1024, 2.0f);
  a.held = b.held = true;
  uint64_t ticket = 0;
  CHECK(engine->submit(message(data), false, &ticket) == Status::OK);
  CHECK(within(5, [&] { return a.held_count() + b.held_count() == 2; }));
  // One of the two links becomes the quick one: it acknowledges, and then takes long to write what comes.
  HeldLink &late = a.held_count() ? a : b, &other = &late == &a ? b : a;
  other.held = false;
  CHECK(within(5, [&] { return other.held_count() == 0; }));
  other.writing = true;
  other.held = true;
  CHECK(within(10, [&] { return other.held_count() == 1; }));
  r2ccl_counters counters{};
  engine->counters(&counters);
  CHECK(counters.hedged_chunks == 1);
  late.held = false;  // the first one is acknowledged after all: the call is over
  CHECK(wait_for(*engine, ticket, 5) == Status::OK);
  std::fill(data.begin(), data.end(), -1.0f);
  const Frame second = other.last();
  bool kept = second.header.bytes > 0;
  for (size_t i = 0; i < second.header.bytes / sizeof(float); ++i) {
    float value;
    std::memcpy(&value, second.payload + i * sizeof value, sizeof value);
    kept &= value == 2.0f;
  }
  CHECK(kept);
  other.writing = false;
  other.held = false;
  engine->close(0);
  ::close(control[1]);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

// Two ends of a verbs link without engines: flow of slots both ways, counters that wrap, peers that break the protocol.
#include <errno.h>

#include <cstdlib>
#include <functional>

#include "cluster.h"
#include "transport/verbs_link.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

struct End final : LinkEvents {
  uint8_t* landing(Link&, const FrameHeader&) noexcept override { return nullptr; }
  void arrived(Link&, const FrameHeader& h, const uint8_t* payload, bool) noexcept override {
    good &=
        h.chunk == data++ && (h.bytes == 0 || (payload[0] == (h.chunk & 255) && payload[h.bytes - 1] == payload[0]));
    if (keeps) lent.push_back({link->lend(), payload});
  }
  // Answers at once, as the executor does.
  void control(Link& l, const FrameHeader& h, const uint8_t* payload) noexcept override {
    if (h.kind == FrameKind::kPong) return;
    l.say({.kind = FrameKind::kPong});
    good &= h.token == controls++ && (h.bytes == 0 || payload[h.bytes - 1] == (h.token & 255));
  }
  void broken(Link&, int e) noexcept override { error = e; }

  std::unique_ptr<Link> link;
  uint32_t data = 0, controls = 0, data_sent = 0, controls_sent = 0;
  int error = -1;
  bool good = true;
  bool keeps = false;
  std::vector<std::pair<Lent, const uint8_t*>> lent;
};

// Stands in for a GPU's memory.
struct Memory final : DeviceMemory {
  void* allocate(size_t bytes, int* descriptor) noexcept override {
    *descriptor = -1;
    blocks += !none;
    return none ? nullptr : std::aligned_alloc(4096, bytes);
  }
  void release(void* memory) noexcept override {
    --blocks;
    std::free(memory);
  }
  void see_writes() noexcept override { ++looks; }
  bool none = false;
  int blocks = 0, looks = 0;
};

class Pair {
 public:
  // arrivals: of end 1.
  explicit Pair(uint32_t payload = 4096, uint32_t slots = 4, DeviceMemory* arrivals = nullptr)
      : devices_(FAKE_VERBS_LIBRARY) {
    const auto [a, b] = tcp_pair();
    sockets_[0] = a;
    sockets_[1] = b;
    VerbsLinkOptions options;
    options.max_payload = payload;
    options.slots = slots;
    std::string why;
    for (int i = 0; i < 2; ++i) {
      const VerbsPort port{"fake" + std::to_string(i), 1, 0};
      options.answers = i == 1;
      options.arrivals = i == 1 ? arrivals : nullptr;
      ends[i].link = make_verbs_link(1 - i, 0, sockets_[i], devices_.get(port.device, &why), port, options, &why);
      CHECK(why.empty());
    }
  }
  void poll() {
    for (End& end : ends) {
      end.link->on_ready(end, true, false);
      end.link->poll(end);
    }
  }
  // Polls until it holds; false: it never did.
  bool until(const std::function<bool()>& done) {
    const Nanoseconds limit = monotonic_ns() + 20'000'000'000;
    bool well = done();
    for (; !well && monotonic_ns() < limit; well = done()) poll();
    return well;
  }
  bool send_data(int from, uint32_t bytes, FrameKind kind = FrameKind::kData) {
    End& end = ends[from];
    if (!end.link->ready()) return false;
    std::vector<uint8_t> payload(bytes, static_cast<uint8_t>(end.data_sent));
    if (!end.link->write({.kind = kind, .bytes = bytes, .chunk = end.data_sent}, payload.data())) return false;
    ++end.data_sent;
    return true;
  }
  void send_control(int from, uint32_t bytes) {
    End& end = ends[from];
    const std::vector<uint8_t> payload(bytes, static_cast<uint8_t>(end.controls_sent));
    end.link->control({.kind = FrameKind::kPing, .bytes = bytes, .token = end.controls_sent++}, payload.data());
    end.link->flush();
  }

  End ends[2];

 private:
  VerbsDevices devices_;
  int sockets_[2];
};

bool open_both(Pair& pair) {
  return CHECK(pair.until([&] { return pair.ends[0].link->ready() && pair.ends[1].link->ready(); }));
}

// Both ends have more to say than there are slots before either listens: nobody waits for the other for ever.
void both_talk_at_once() {
  Pair pair;
  if (!open_both(pair)) return;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 100; ++i)
      for (int end = 0; end < 2; ++end) {
        pair.send_control(end, static_cast<uint32_t>(i % 7 == 0 ? 10'000 : i));
        pair.send_data(end, static_cast<uint32_t>(i * 40));
      }
    CHECK(pair.until([&] {
      return pair.ends[0].controls == pair.ends[1].controls_sent &&
             pair.ends[1].controls == pair.ends[0].controls_sent && pair.ends[0].data == pair.ends[1].data_sent &&
             pair.ends[1].data == pair.ends[0].data_sent;
    }));
  }
  for (const End& end : pair.ends) CHECK(end.good && end.error == -1 && end.data_sent > 0);
}

// The counters of a credit have 15 bits.
void more_than_the_counters_hold() {
  Pair pair(4096, 8);
  if (!open_both(pair)) return;
  constexpr uint32_t kFrames = 70'000;
  CHECK(pair.until([&] {
    while (pair.ends[0].data_sent < kFrames && pair.send_data(0, 8)) {
    }
    return pair.ends[1].data == kFrames;
  }));
  CHECK(pair.ends[1].good && pair.ends[0].error == -1);
}

void one_slot_and_the_largest_payload() {
  Pair pair(1 << 20, 1);
  if (!open_both(pair)) return;
  const uint64_t before = pair.ends[0].link->progress();
  for (int i = 0; i < 5; ++i)
    CHECK(pair.until([&] { return pair.send_data(0, (1u << 20) - static_cast<uint32_t>(i)); }));
  CHECK(pair.until([&] { return pair.ends[1].data == 5 && pair.ends[0].link->progress() - before > 5'000'000; }));
  CHECK(pair.ends[1].good);
}

// What was said last leaves before the end, and the end is told once, in good order.
void last_words() {
  Pair pair;
  if (!open_both(pair)) return;
  for (int i = 0; i < 50; ++i) pair.send_control(0, 100);
  CHECK(pair.until([&] { return pair.ends[0].link->linger(); }));
  pair.ends[0].link->fence();
  CHECK(pair.until([&] { return pair.ends[1].error == 0; }));
  CHECK(pair.ends[1].controls == 50 && pair.ends[1].good);
  CHECK(!pair.ends[0].link->ready() && pair.ends[0].link->fd() < 0);
}

// Payloads that come to a device's memory and are kept there: slots count as empty in their order, and what is lent
// outlives the link.
void lent_payloads() {
  Memory memory;
  {
    Pair pair(4096, 4, &memory);
    if (!open_both(pair)) return;
    End& end = pair.ends[1];
    CHECK(end.link->delivers_to_device() && !pair.ends[0].link->delivers_to_device() && memory.blocks == 1);
    end.keeps = true;
    while (pair.send_data(0, 3000)) {
    }
    CHECK(pair.until([&] { return end.data == 4; }));
    CHECK(end.good && end.lent.size() == 4 && memory.looks == 4);
    end.lent[1].first.give_back();
    end.lent[2].first.give_back();
    for (int i = 0; i < 200; ++i) pair.poll();
    CHECK(!pair.ends[0].link->ready());  // the oldest is still in use
    end.lent[0].first.give_back();
    CHECK(pair.until([&] { return pair.ends[0].link->ready(); }));
    while (pair.send_data(0, 2000)) {
    }
    CHECK(pair.until([&] { return end.data == 7; }));
    CHECK(end.good && end.lent.size() == 7);
    CHECK(end.lent[3].second[0] == 3 && end.lent[3].second[2999] == 3);  // still what came
    for (size_t i : {3u, 4u, 5u, 6u}) end.lent[i].first.give_back();
    CHECK(pair.until([&] { return pair.ends[0].link->ready(); }));
    for (int i = 0; i < 2; ++i) CHECK(pair.send_data(0, 1000));
    CHECK(pair.until([&] { return end.data == 9; }));
    // Frames without a payload, and a fence while some are lent.
    CHECK(pair.until([&] { return pair.ends[0].link->ready(); }));
    CHECK(pair.send_data(0, 0));
    CHECK(pair.until([&] { return end.data == 10; }));
    // What is only passed on has no business there: the host reads it.
    end.keeps = false;
    const int looks = memory.looks;
    CHECK(pair.until([&] { return pair.ends[0].link->ready(); }));
    CHECK(pair.send_data(0, 500, FrameKind::kRelay));
    CHECK(pair.until([&] { return end.data == 11; }));
    CHECK(end.good && memory.looks == looks);
    end.link->fence();
    CHECK(memory.blocks == 1 && end.lent[8].second[0] == 8);
    end.lent[9].first.give_back();
    end.lent[7].first.give_back();
    CHECK(memory.blocks == 1);
    end.lent[8].first.give_back();
    CHECK(memory.blocks == 0);
  }
  memory.none = true;
  VerbsDevices devices(FAKE_VERBS_LIBRARY);
  const auto [a, b] = tcp_pair();
  std::string why;
  VerbsLinkOptions options;
  options.max_payload = 4096;
  options.arrivals = &memory;
  const auto link = make_verbs_link(1, 0, a, devices.get("fake0", &why), {"fake0", 1, 0}, options, &why);
  CHECK(!link->delivers_to_device() && why.find("GPU") != std::string::npos);
  ::close(b);
}

// The end of the connection before the handshake, and a stranger's words, are errors of the link.
void no_handshake() {
  for (const bool talks : {false, true}) {
    VerbsDevices devices(FAKE_VERBS_LIBRARY);
    const auto [mine, theirs] = tcp_pair();
    End end;
    std::string why;
    end.link = make_verbs_link(1, 0, mine, devices.get("fake0", &why), {"fake0", 1, 0}, {4096, 4, nullptr}, &why);
    const std::vector<uint8_t> nonsense(200, 'x');
    if (talks) CHECK(::send(theirs, nonsense.data(), nonsense.size(), 0) == 200);
    if (!talks) ::close(theirs);
    const Nanoseconds limit = monotonic_ns() + 5'000'000'000;
    while (end.error == -1 && monotonic_ns() < limit) end.link->on_ready(end, true, false);
    CHECK(end.error == (talks ? EPROTO : ECONNREFUSED) || (!talks && end.error == ECONNRESET));
    if (talks) ::close(theirs);
  }
}

}  // namespace

int main() {
  both_talk_at_once();
  more_than_the_counters_hold();
  one_slot_and_the_largest_payload();
  last_words();
  lent_payloads();
  no_handshake();
  return result();
}

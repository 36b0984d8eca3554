// The ring in shared memory: wrap, sizes, a full ring, credits, sleep, corrupted records, two threads at once.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cases.h"
#include "transport/transport.h"

using namespace r2ccl;

namespace {

// Where the ring's words lie; see shm.cc.
constexpr size_t kTailAt = 0, kHeadAt = 64;
constexpr uint32_t kWrap = 0xffffffffu;

struct Ring {
  std::unique_ptr<Link> lower, upper;
  uint8_t* memory = nullptr;
  size_t total = 0;

  explicit Ring(uint64_t ring_bytes) : total(2 * (kShmHeaderBytes + ring_bytes)) {
    const int fd = memfd_create("r2ccl-test", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(total)) == 0);
    memory = static_cast<uint8_t*>(mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    lower = make_shm_link(1, dup(fd), ring_bytes, true);
    upper = make_shm_link(0, fd, ring_bytes, false);
    CHECK(lower && upper);
  }
  ~Ring() { munmap(memory, total); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // The direction from lower to upper.
  uint8_t* data() const { return memory + kShmHeaderBytes; }
  void set_tail(uint64_t tail) {
    reinterpret_cast<std::atomic<uint64_t>*>(memory + kTailAt)->store(tail, std::memory_order_release);
  }
};

struct Sink final : LinkEvents {
  std::function<void(const FrameHeader&, const uint8_t*)> on_arrived;
  int frames = 0, errors = 0;
  uint8_t* landing(Link&, const FrameHeader&) noexcept override { return nullptr; }
  void arrived(Link&, const FrameHeader& h, const uint8_t* payload, bool) noexcept override {
    ++frames;
    if (on_arrived) on_arrived(h, payload);
  }
  void control(Link&, const FrameHeader&, const uint8_t*) noexcept override { CHECK(!"no control frame was sent"); }
  void broken(Link&, int) noexcept override { ++errors; }
};

FrameHeader data(uint32_t bytes, uint32_t chunk) {
  return {.kind = FrameKind::kData, .bytes = bytes, .message = 1, .chunk = chunk};
}
uint8_t byte_of(uint32_t chunk, size_t i) { return static_cast<uint8_t>(chunk * 31 + i * 7 + (i >> 8)); }
std::vector<uint8_t> pattern(uint32_t chunk, size_t n) {
  std::vector<uint8_t> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = byte_of(chunk, i);
  return v;
}

// Runs what might never end in a process of its own. False: it did not end well within some seconds.
bool ends_well(const std::function<bool()>& what) {
  const pid_t child = fork();
  if (child == 0) _exit(what() ? 0 : 1);
  for (int i = 0; i < 500; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    usleep(10000);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return false;
}

}  // namespace

CASE(frames_of_all_sizes_arrive_in_order_across_the_wrap) {
  constexpr uint64_t kRing = 8192;
  Ring ring(kRing);
  Sink sink;
  uint32_t expected = 0;
  std::vector<uint32_t> sizes;
  sink.on_arrived = [&](const FrameHeader& h, const uint8_t* payload) {
    CHECK(h.chunk == expected && h.bytes == sizes[expected]);
    const auto want = pattern(expected, h.bytes);
    CHECK(h.bytes == 0 || std::memcmp(payload, want.data(), h.bytes) == 0);
    ++expected;
  };
  std::mt19937 random(3);
  for (uint32_t c = 0; c < 2000; ++c) {
    sizes.push_back(c < 100 ? c : random() % (kRing / 2 - sizeof(FrameHeader) + 1));
    const auto payload = pattern(c, sizes[c]);
    CHECK(ring.lower->ready());
    CHECK(ring.lower->write(data(sizes[c], c), payload.data()));
    CHECK(ring.upper->poll(sink));
  }
  CHECK(expected == 2000 && sink.errors == 0);
  CHECK(ring.lower->tx_bytes() == ring.upper->rx_bytes());
}

CASE(a_full_ring_takes_nothing_and_loses_nothing) {
  Ring ring(4096);
  Sink sink;
  const auto payload = pattern(0, 1000);
  uint32_t written = 0;
  while (ring.lower->write(data(1000, written), payload.data())) ++written;
  CHECK(written == 3);  // records of 1088 bytes
  CHECK(!ring.lower->write(data(1000, written), payload.data()));
  const uint64_t before = ring.lower->progress();
  while (ring.upper->poll(sink)) {
  }
  CHECK(sink.frames == 3 && ring.lower->progress() > before);
  CHECK(ring.lower->write(data(1000, 9), payload.data()));
  CHECK(ring.upper->poll(sink) && sink.frames == 4);
}

CASE(both_directions_are_independent) {
  Ring ring(4096);
  Sink up, down;
  const auto payload = pattern(0, 100);
  CHECK(ring.lower->write(data(100, 1), payload.data()));
  CHECK(!ring.lower->poll(down));
  CHECK(ring.upper->write(data(100, 2), payload.data()));
  CHECK(ring.lower->poll(down) && down.frames == 1);
  CHECK(ring.upper->poll(up) && up.frames == 1);
}

CASE(credits_are_seen_by_the_other_side_by_lane) {
  Ring ring(4096);
  uint32_t freed = 99;
  CHECK(ring.lower->read_credit(7, &freed) && freed == 0);
  CHECK(ring.upper->publish_credit(7, 42));
  CHECK(ring.upper->publish_credit(255, 0xfffffff0u));
  CHECK(ring.lower->read_credit(7, &freed) && freed == 42);
  CHECK(ring.lower->read_credit(255, &freed) && freed == 0xfffffff0u);
  CHECK(ring.upper->read_credit(7, &freed) && freed == 0);
}

CASE(a_sleeper_is_woken_once) {
  Ring ring(4096);
  const auto payload = pattern(0, 10);
  CHECK(!ring.lower->take_wake_request());
  CHECK(!ring.upper->prepare_sleep());
  CHECK(ring.lower->write(data(10, 1), payload.data()));
  CHECK(ring.lower->take_wake_request());
  CHECK(!ring.lower->take_wake_request());
  CHECK(ring.upper->prepare_sleep());  // something has come: it must not sleep
  ring.upper->awake();
  CHECK(!ring.lower->take_wake_request());
}

CASE(a_fenced_link_neither_writes_nor_reads) {
  Ring ring(4096);
  Sink sink;
  const auto payload = pattern(0, 10);
  CHECK(ring.lower->write(data(10, 1), payload.data()));
  ring.upper->fence();
  ring.lower->fence();
  CHECK(!ring.upper->poll(sink) && sink.frames == 0);
  CHECK(!ring.lower->ready() && !ring.lower->write(data(10, 2), payload.data()));
}

CASE(corrupted_records_are_refused) {
  struct Corruption {
    const char* what;
    std::function<void(Ring&)> apply;
  };
  auto header = [](Ring& r, size_t at) { return reinterpret_cast<FrameHeader*>(r.data() + at); };
  const Corruption corruptions[] = {
      {"magic", [&](Ring& r) { header(r, 0)->magic ^= 1; }},
      {"longer than what was written", [&](Ring& r) { header(r, 0)->bytes = 2000; }},
      {"longer than the ring", [&](Ring& r) { header(r, 0)->bytes = 100000; }},
      {"longer than anything", [&](Ring& r) { header(r, 0)->bytes = 0xffffffffu; }},
      {"a wrap beyond what was written", [&](Ring& r) { header(r, 0)->magic = kWrap; }},
      {"more written than the ring holds",
       [&](Ring& r) {
         header(r, 0)->magic = kWrap;
         r.set_tail(uint64_t{1} << 40);
       }},
  };
  for (const Corruption& c : corruptions) {
    const bool good = ends_well([&] {
      Ring ring(4096);
      Sink sink;
      const auto payload = pattern(0, 1000);
      ring.lower->write(data(1000, 1), payload.data());
      c.apply(ring);
      for (int i = 0; i < 10 && sink.errors == 0; ++i) ring.upper->poll(sink);
      return sink.frames == 0 && sink.errors == 1;
    });
    if (!CHECK(good)) std::fprintf(stderr, "  not refused: %s\n", c.what);
  }
}

CASE(fuzzed_rings_are_refused_or_read_within_bounds) {
  CHECK(ends_well([] {
    std::mt19937 random(11);
    for (int round = 0; round < 3000; ++round) {
      Ring ring(4096);
      Sink sink;
      uint64_t sum = 0;
      sink.on_arrived = [&](const FrameHeader& h, const uint8_t* payload) {
        for (uint32_t i = 0; payload && i < h.bytes; ++i) sum += payload[i];
      };
      const auto payload = pattern(0, 500);
      for (uint32_t c = 0; c < 5; ++c) ring.lower->write(data(c * 100, c), payload.data());
      for (int i = 0; i < 4; ++i) {
        const uint32_t record[] = {0, 64, 192, 448, 832};
        ring.data()[record[random() % 5] + random() % 12] = static_cast<uint8_t>(random());
      }
      if (random() % 4 == 0) ring.set_tail(random() % 9000);
      for (int i = 0; i < 10 && sink.errors == 0; ++i) ring.upper->poll(sink);
    }
    return true;
  }));
}

CASE(two_threads_exchange_every_byte) {
#if defined(__SANITIZE_THREAD__)
  constexpr uint32_t kFrames = 20000;
#else
  constexpr uint32_t kFrames = 100000;
#endif
  Ring ring(16384);
  std::thread producer([&] {
    std::mt19937 random(5);
    for (uint32_t c = 0; c < kFrames; ++c) {
      const auto n = static_cast<uint32_t>(random() % 600);
      const auto payload = pattern(c, n);
      while (!ring.lower->write(data(n, c), payload.data())) std::this_thread::yield();
      uint32_t freed = 0;
      ring.lower->read_credit(3, &freed);
      CHECK(freed <= c + 1);
    }
  });
  Sink sink;
  uint32_t expected = 0;
  std::mt19937 random(5);
  sink.on_arrived = [&](const FrameHeader& h, const uint8_t* payload) {
    bool same = h.chunk == expected && h.bytes == random() % 600;
    for (uint32_t i = 0; same && i < h.bytes; ++i) same = payload[i] == byte_of(expected, i);
    CHECK(same);
    ++expected;
    ring.upper->publish_credit(3, expected);
  };
  while (expected < kFrames && sink.errors == 0)
    if (!ring.upper->poll(sink)) std::this_thread::yield();
  producer.join();
  CHECK(expected == kFrames && sink.errors == 0);
}

int main(int argc, char** argv) { return r2ccl::test::run_cases(argc, argv); }

// Two ranks of one host: a byte ring in shared memory per direction. The sender copies a chunk into the ring, the
// receiver reduces or stores it from there, so that both touch it while it is in the cache.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "transport/transport.h"

namespace r2ccl {

namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t align_line(uint64_t n) noexcept { return (n + kLine - 1) & ~(kLine - 1); }

// At the head of each direction. Only the producer writes `tail`; only the consumer writes the rest.
struct RingHeader {
  alignas(kLine) std::atomic<uint64_t> tail;
  alignas(kLine) std::atomic<uint64_t> head;
  alignas(kLine) std::atomic<uint32_t> sleeping;
  alignas(kLine) std::atomic<uint32_t> freed[256];  // credits, by lane
  alignas(kLine) std::atomic<uint32_t> returned[Link::kMostWindowSlots];
};
static_assert(sizeof(RingHeader) <= kShmHeaderBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// A record is a FrameHeader and its payload, padded to whole lines. kWrap fills the rest of the ring.
constexpr uint32_t kWrap = 0xffffffffu;
uint64_t payload_of(const FrameHeader& h) noexcept { return h.flags & kFrameInWindow ? 0 : h.bytes; }

struct Half {
  RingHeader* header;
  uint8_t* data;
};

class ShmLink final : public Link {
 public:
  ShmLink(int32_t peer, uint8_t* base, uint64_t ring_bytes, bool lower) noexcept
      : Link(peer, kShmRail), base_(base), size_(ring_bytes) {
    const uint64_t half = kShmHeaderBytes + ring_bytes;
    Half a{reinterpret_cast<RingHeader*>(base), base + kShmHeaderBytes};
    Half b{reinterpret_cast<RingHeader*>(base + half), base + half + kShmHeaderBytes};
    out_ = lower ? a : b;
    in_ = lower ? b : a;
  }
  ~ShmLink() override { munmap(base_, 2 * (kShmHeaderBytes + size_)); }

  // Room for the largest record twice, so that a wrap never blocks; the exact check is write's.
  bool ready() const noexcept override { return !fenced_; }
  bool write(const FrameHeader& header, const uint8_t* payload) noexcept override {
    if (fenced_) return false;
    const uint64_t bytes = payload_of(header);
    const uint64_t need = align_line(sizeof(FrameHeader) + bytes);
    const uint64_t at = tail_ % size_;
    const uint64_t to_end = size_ - at;
    const uint64_t pad = need > to_end ? to_end : 0;
    if (tail_ + pad + need - head_seen_ > size_) {
      head_seen_ = out_.header->head.load(std::memory_order_acquire);
      if (tail_ + pad + need - head_seen_ > size_) return false;
    }
    if (pad) {
      reinterpret_cast<FrameHeader*>(out_.data + at)->magic = kWrap;
      tail_ += pad;
    }
    uint8_t* to = out_.data + tail_ % size_;
    std::memcpy(to, &header, sizeof header);
    if (bytes) std::memcpy(to + sizeof header, payload, bytes);
    tail_ += need;
    tx_ += need;
    out_.header->tail.store(tail_, std::memory_order_release);
    return true;
  }
  // Control frames between ranks of one host go through the control socket or through memory.
  void control(const FrameHeader&, const void*) noexcept override {}
  void fence() noexcept override { fenced_ = true; }
  uint64_t progress() noexcept override { return out_.header->head.load(std::memory_order_relaxed); }
  bool lossless() const noexcept override { return true; }
  bool arms() const noexcept override { return true; }
  bool publish_credit(uint8_t lane, uint32_t freed) noexcept override {
    in_.header->freed[lane].store(freed, std::memory_order_release);
    return true;
  }
  bool read_credit(uint8_t lane, uint32_t* freed) noexcept override {
    *freed = out_.header->freed[lane].load(std::memory_order_acquire);
    return true;
  }

  void return_slot(uint32_t slot) noexcept override {
    auto& count = in_.header->returned[slot];  // only this side writes it
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  bool slot_returned(uint32_t slot, uint32_t count) noexcept override {
    return out_.header->returned[slot].load(std::memory_order_acquire) == count;
  }

  bool poll(LinkEvents& events) noexcept override {
    if (fenced_) return false;
    const uint64_t tail = in_.header->tail.load(std::memory_order_acquire);
    if (tail == head_) return false;
    if (tail - head_ > size_ || tail % kLine != 0) {
      events.broken(*this, EPROTO_);
      return true;
    }
    int records = 0;
    while (head_ != tail && records < kRecordsPerPoll) {
      const uint64_t at = head_ % size_;
      FrameHeader h;
      std::memcpy(&h, in_.data + at, sizeof h);
      if (h.magic == kWrap && size_ - at <= tail - head_) {
        head_ += size_ - at;
        continue;
      }
      const uint64_t record = align_line(sizeof h + payload_of(h));
      if (h.magic != kFrameMagic || at + record > size_ || record > tail - head_) {
        events.broken(*this, EPROTO_);
        return true;
      }
      events.arrived(*this, h, h.flags & kFrameInWindow ? nullptr : in_.data + at + sizeof h, false);
      head_ += record;
      rx_ += record;
      ++records;
      in_.header->head.store(head_, std::memory_order_release);
    }
    in_.header->head.store(head_, std::memory_order_release);
    return true;
  }
  bool prepare_sleep() noexcept override {
    in_.header->sleeping.store(1, std::memory_order_relaxed);
    // Before the look at the ring below, so that either we see the record or the writer sees us sleep.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return !fenced_ && in_.header->tail.load(std::memory_order_relaxed) != head_;
  }
  void awake() noexcept override { in_.header->sleeping.store(0, std::memory_order_relaxed); }
  bool take_wake_request() noexcept override {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return out_.header->sleeping.load(std::memory_order_relaxed) != 0 &&
           out_.header->sleeping.exchange(0, std::memory_order_relaxed) != 0;
  }

  uint64_t tx_bytes() const noexcept override { return tx_; }
  uint64_t rx_bytes() const noexcept override { return rx_; }

 private:
  static constexpr uint32_t kShmRail = 0xffffu;
  static constexpr int EPROTO_ = 71;
  static constexpr int kRecordsPerPoll = 16;

  uint8_t* base_;
  uint64_t size_;
  Half out_{}, in_{};
  uint64_t tail_ = 0, head_seen_ = 0, head_ = 0;
  uint64_t tx_ = 0, rx_ = 0;
  bool fenced_ = false;
};

}  // namespace

std::unique_ptr<Link> make_shm_link(int32_t peer, int memfd, uint64_t ring_bytes, bool lower) noexcept {
  const uint64_t total = 2 * (kShmHeaderBytes + ring_bytes);
  void* base = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  ::close(memfd);
  if (base == MAP_FAILED) return nullptr;
  return std::make_unique<ShmLink>(peer, static_cast<uint8_t*>(base), ring_bytes, lower);
}

}  // namespace r2ccl

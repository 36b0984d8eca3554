// Two ends in one process: what tests use to run several engines without a socket.
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace r2ccl {

namespace {

struct Message {
  FrameHeader header;
  std::vector<uint8_t> payload;
};

struct Pipe {
  std::mutex mutex;
  std::deque<Message> queue;
  uint64_t taken = 0;
  bool closed = false;
};

constexpr size_t kDepth = 4;

class LoopbackLink final : public Link {
 public:
  LoopbackLink(int32_t peer, uint32_t rail, std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in) noexcept
      : Link(peer, rail), out_(std::move(out)), in_(std::move(in)) {}
  ~LoopbackLink() override { fence(); }

  bool ready() const noexcept override {
    if (fenced_) return false;
    std::lock_guard lock(out_->mutex);
    return out_->queue.size() < kDepth;
  }
  bool write(const FrameHeader& header, const uint8_t* payload) noexcept override {
    if (!ready()) return false;
    push(header, payload);
    return true;
  }
  void control(const FrameHeader& header, const void* payload) noexcept override {
    if (!fenced_) push(header, static_cast<const uint8_t*>(payload));
  }
  void fence() noexcept override {
    fenced_ = true;
    std::lock_guard lock(out_->mutex);
    out_->closed = true;
  }
  uint64_t progress() noexcept override {
    std::lock_guard lock(out_->mutex);
    return out_->taken;
  }
  bool poll(LinkEvents& events) noexcept override {
    bool any = false;
    for (int i = 0; i < 16 && !fenced_; ++i) {
      Message m;
      {
        std::lock_guard lock(in_->mutex);
        if (in_->queue.empty()) {
          if (!in_->closed) return any;
        } else {
          m = std::move(in_->queue.front());
          in_->queue.pop_front();
          if (carries_chunk(m.header.kind)) ++in_->taken;
        }
      }
      if (m.header.kind == FrameKind{}) {
        if (!reported_) events.broken(*this, 0);
        reported_ = true;
        return any;
      }
      any = true;
      rx_ += m.header.bytes;
      if (carries_chunk(m.header.kind)) {
        events.arrived(*this, m.header, m.payload.data(), false);
      } else {
        events.control(*this, m.header, m.payload.data());
      }
    }
    return any;
  }
  bool arms() const noexcept override { return true; }
  uint64_t tx_bytes() const noexcept override { return tx_; }
  uint64_t rx_bytes() const noexcept override { return rx_; }

 private:
  void push(const FrameHeader& header, const uint8_t* payload) noexcept {
    std::lock_guard lock(out_->mutex);
    out_->queue.push_back({header, std::vector<uint8_t>(payload, payload + header.bytes)});
    tx_ += header.bytes;
  }

  std::shared_ptr<Pipe> out_, in_;
  uint64_t tx_ = 0, rx_ = 0;
  bool fenced_ = false, reported_ = false;
};

}  // namespace

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_loopback_links(int32_t a, int32_t b, uint32_t rail) {
  auto ab = std::make_shared<Pipe>();
  auto ba = std::make_shared<Pipe>();
  return {std::make_unique<LoopbackLink>(b, rail, ab, ba), std::make_unique<LoopbackLink>(a, rail, ba, ab)};
}

}  // namespace r2ccl

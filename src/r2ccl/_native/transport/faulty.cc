// A link that fails on demand. The script (Config.fault_script, written by r2ccl.testing.FaultScript) has a fault a
// line:
//   rail=1 peer=* kind=blackhole after_bytes=1000000
//   rail=0 peer=2 kind=reset after_ms=500
#include <errno.h>

#include <cstdlib>
#include <optional>
#include <sstream>

#include "base/clock.h"
#include "transport/transport.h"

namespace r2ccl {

namespace {

enum class FaultKind { kBlackhole, kTxDrop, kRxDrop, kReset, kDevice };

struct Fault {
  FaultKind kind{};
  uint64_t after_bytes = 0;  // of data payload written and read on the link
  uint64_t after_ns = 0;     // since the link was made
};

std::optional<Fault> fault_of_line(const std::string& line, int32_t peer, uint32_t rail) {
  Fault fault;
  bool matches = false;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const auto eq = word.find('=');
    if (eq == std::string::npos) continue;
    const std::string key = word.substr(0, eq), value = word.substr(eq + 1);
    if (key == "rail") {
      if (value != "*" && static_cast<uint32_t>(std::atoi(value.c_str())) != rail) return std::nullopt;
    } else if (key == "peer") {
      if (value != "*" && std::atoi(value.c_str()) != peer) return std::nullopt;
    } else if (key == "kind") {
      matches = true;
      fault.kind = value == "reset"          ? FaultKind::kReset
                   : value == "device-error" ? FaultKind::kDevice
                   : value == "tx-drop"      ? FaultKind::kTxDrop
                   : value == "rx-drop"      ? FaultKind::kRxDrop
                                             : FaultKind::kBlackhole;
    } else if (key == "after_bytes") {
      fault.after_bytes = std::strtoull(value.c_str(), nullptr, 10);
    } else if (key == "after_ms") {
      fault.after_ns = std::strtoull(value.c_str(), nullptr, 10) * 1'000'000u;
    }
  }
  return matches ? std::optional(fault) : std::nullopt;
}

class FaultyLink final : public Link, LinkEvents {
 public:
  FaultyLink(std::unique_ptr<Link> inner, Fault fault, bool broken) noexcept
      : Link(inner->peer(), inner->rail()),
        inner_(std::move(inner)),
        fault_(fault),
        born_(monotonic_ns()),
        broken_(broken) {}

  bool ready() const noexcept override { return inner_->ready(); }
  bool write(const FrameHeader& header, const uint8_t* payload) noexcept override {
    if (!inner_->ready()) return false;
    if (drops_output()) return true;  // swallowed
    moved_ += header.bytes;
    return inner_->write(header, payload);
  }
  void control(const FrameHeader& header, const void* payload) noexcept override {
    if (!drops_output()) inner_->control(header, payload);
  }
  void flush() noexcept override { inner_->flush(); }
  void fence() noexcept override { inner_->fence(); }
  void discard_incoming() noexcept override { inner_->discard_incoming(); }
  uint64_t progress() noexcept override { return inner_->progress(); }
  uint64_t round_trip_ns() noexcept override { return inner_->round_trip_ns(); }
  uint64_t least_round_trip_ns() noexcept override { return inner_->least_round_trip_ns(); }
  void limit_backlog(uint64_t bytes) noexcept override { inner_->limit_backlog(bytes); }
  bool written() const noexcept override { return inner_->written(); }
  uint32_t unwritten() const noexcept override { return inner_->unwritten(); }
  bool linger() noexcept override { return inner_->linger(); }
  bool arms() const noexcept override { return inner_->arms(); }
  bool prepare_sleep() noexcept override { return inner_->prepare_sleep(); }
  void awake() noexcept override { inner_->awake(); }
  bool lossless() const noexcept override { return false; }
  bool delivers_to_device() const noexcept override { return inner_->delivers_to_device(); }
  Lent lend() noexcept override { return inner_->lend(); }
  int fd() const noexcept override { return inner_->fd(); }
  void on_ready(LinkEvents& events, bool readable, bool writable) noexcept override {
    events_ = &events;
    reset_if_due();
    if (inner_->fd() >= 0) inner_->on_ready(*this, readable, writable);
    note_input();
  }
  bool poll(LinkEvents& events) noexcept override {
    events_ = &events;
    reset_if_due();
    const bool any = inner_->poll(*this);
    note_input();
    return any;
  }
  // Resets do not last: what comes back works.
  bool struck() const noexcept override { return !breaks_once() && fired(); }
  uint64_t tx_bytes() const noexcept override { return inner_->tx_bytes(); }
  uint64_t rx_bytes() const noexcept override { return rx_bytes_; }

 private:
  bool fired() const noexcept {
    if (broken_) return true;
    if (fault_.after_ns) return monotonic_ns() - born_ >= fault_.after_ns;
    return moved_ >= fault_.after_bytes;
  }
  bool breaks_once() const noexcept { return fault_.kind == FaultKind::kReset || fault_.kind == FaultKind::kDevice; }
  // A device that fails drops by itself.
  bool drops_output() const noexcept {
    return fired() && fault_.kind != FaultKind::kRxDrop && fault_.kind != FaultKind::kDevice;
  }
  bool drops_input() const noexcept {
    return fired() && fault_.kind != FaultKind::kTxDrop && fault_.kind != FaultKind::kDevice;
  }
  // What is dropped has not come.
  void note_input() noexcept {
    if (!drops_input()) rx_bytes_ = inner_->rx_bytes();
  }
  void reset_if_due() noexcept {
    if (!breaks_once() || reset_ || !fired()) return;
    reset_ = true;
    if (fault_.kind == FaultKind::kDevice && inner_->fail_device()) return;
    events_->broken(*this, ECONNRESET);
  }

  uint8_t* landing(Link&, const FrameHeader& header) noexcept override {
    return drops_input() ? nullptr : events_->landing(*this, header);
  }
  void arrived(Link&, const FrameHeader& header, const uint8_t* payload, bool landed) noexcept override {
    // A frame whose landing was granted before the fault is complete: it has arrived.
    if (drops_input() && !landed) return;
    note_input();  // before it may be what the fault waited for
    moved_ += header.bytes;
    events_->arrived(*this, header, payload, landed);
  }
  void control(Link&, const FrameHeader& header, const uint8_t* payload) noexcept override {
    if (!drops_input()) events_->control(*this, header, payload);
  }
  void broken(Link&, int error) noexcept override {
    if (!drops_input()) events_->broken(*this, error);
  }

  std::unique_ptr<Link> inner_;
  Fault fault_;
  uint64_t born_;
  uint64_t moved_ = 0, rx_bytes_ = 0;
  bool broken_;
  bool reset_ = false;
  LinkEvents* events_ = nullptr;
};

}  // namespace

std::unique_ptr<Link> make_faulty_link(std::unique_ptr<Link> inner, const std::string& script, bool broken) noexcept {
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);) {
    if (auto fault = fault_of_line(line, inner->peer(), inner->rail()))
      return std::make_unique<FaultyLink>(std::move(inner), *fault, broken);
  }
  return inner;
}

}  // namespace r2ccl

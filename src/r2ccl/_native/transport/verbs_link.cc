#include "transport/verbs_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "transport/verbs_arrivals.h"
#include "transport/verbs_sender.h"

namespace r2ccl {

namespace {

constexpr uint32_t kControlSlots = 16, kControlSlotBytes = 4096;
constexpr int kPollAtOnce = 16;
// Receives beyond one per slot: for credits, and for what is reposted only at the end of a round.
constexpr uint32_t kMoreReceives = 8 + kPollAtOnce;
constexpr uint32_t kMostControlPayload = 64 << 10;
constexpr uint64_t kSocket = 0, kCompletions = 1, kDevice = 2;

uint32_t little(const uint8_t* at) noexcept {
  return at[0] | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 | uint32_t{at[3]} << 24;
}
SlotHead read_head(const uint8_t* at) noexcept { return {little(at), little(at + 4), little(at + 8), 0}; }
FrameHeader read_frame(const uint8_t* at) noexcept {
  FrameHeader h;
  std::memcpy(&h, at, sizeof h);
  return wire_order(h);
}

class VerbsLink final : public Link, DeviceListener {
 public:
  VerbsLink(int32_t peer, uint32_t rail, int fd) noexcept : Link(peer, rail), socket_(fd) {}
  ~VerbsLink() override { fence(); }

  // 0 or errno.
  int begin(std::shared_ptr<VerbsDevice> device, const VerbsPort& port, const VerbsLinkOptions& options,
            std::string* warning) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0 || !watch(socket_, EPOLLIN | EPOLLRDHUP, kSocket)) return errno;
    if (!device) return ENODEV;
    answers_ = options.answers;
    if (const int rc = make_slots(device, options, warning); rc != 0) return rc;
    if (options.arrivals) make_arrivals(device, options, warning);
    const uint32_t receives = slots_->layout().data_slots + kControlSlots + kMoreReceives;
    int error = 0;
    queue_ = VerbsQueue::create(device, port, VerbsSender::depth(slots_->layout()), receives, &error);
    if (!queue_) {
      *warning = std::string("a queue pair on ") + device->name() + " cannot be made: " + std::strerror(error);
      return error;
    }
    sender_ = std::make_unique<VerbsSender>(*queue_, std::move(bounce_), options.registered);
    if (!watch(queue_->channel_fd(), EPOLLIN, kCompletions) || !watch(device->context()->async_fd, EPOLLIN, kDevice))
      return errno;
    if (error = queue_->post_receives(receives); error != 0) return error;
    device->add(this);
    listening_ = true;
    queue_->describe(&mine_);
    mine_.psn = std::random_device{}() & 0xffffff;
    const VerbsSlots::Layout& layout = slots_->layout();
    mine_.data_slots = layout.data_slots;
    mine_.data_slot_bytes = layout.data_slot_bytes;
    mine_.control_slots = layout.control_slots;
    mine_.control_slot_bytes = layout.control_slot_bytes;
    mine_.rkey = slots_->rkey();
    mine_.data_address = reinterpret_cast<uint64_t>(slots_->data(0));
    mine_.control_address = reinterpret_cast<uint64_t>(slots_->control(0));
    if (arrivals_) {
      mine_.payload_address = reinterpret_cast<uint64_t>(arrivals_->slot(0));
      mine_.payload_slot_bytes = arrivals_->slot_bytes();
      mine_.payload_rkey = arrivals_->rkey();
    }
    uint8_t blob[VerbsBlob::kBytes];
    mine_.write(blob);
    to_say_.assign(blob, blob + sizeof blob);
    return speak();
  }
  void fail(int error) noexcept { note(error); }

  bool ready() const noexcept override { return open_ && !error_ && sender_->room(); }
  bool write(const FrameHeader& header, const uint8_t* payload) noexcept override {
    if (!open_ || error_) return false;
    flush();
    if (!ready()) return false;
    note(sender_->write(header, payload, used()));
    return error_ == 0;
  }
  void control(const FrameHeader& header, const void* payload) noexcept override {
    if (sender_) sender_->control(header, payload);
  }
  void flush() noexcept override {
    if (open_ && !error_ && sender_->control_waits()) note(sender_->flush(used()));
  }

  void fence() noexcept override {
    open_ = false;
    if (sender_) counted_ = sender_->posted_bytes();
    if (listening_) queue_->device().remove(this);
    listening_ = false;
    if (queue_ && !queue_->destroy()) {
      slots_->abandon();
      if (arrivals_) arrivals_->abandon();
      if (sender_) sender_->bounce().abandon();
    }
    if (epoll_ >= 0) ::close(epoll_);
    if (socket_ >= 0) ::close(socket_);
    epoll_ = socket_ = -1;
    if (delivering_) return;  // the frame that is being delivered lies in a slot
    sender_.reset();
    queue_.reset();
    slots_.reset();
    bounce_.reset();
    arrivals_.reset();  // but for what is lent
  }
  bool linger() noexcept override {
    if (!open_ || error_) return true;
    flush();
    if (!confirming_ && !sender_->control_waits()) {
      note(sender_->credit(used(), true, &confirming_));
      last_words_ = sender_->posted();
    }
    // What comes is not wanted any more, but for the slots that come back with it.
    struct Deaf final : LinkEvents {
      uint8_t* landing(Link&, const FrameHeader&) noexcept override { return nullptr; }
      void arrived(Link&, const FrameHeader&, const uint8_t*, bool) noexcept override {}
      void control(Link&, const FrameHeader&, const uint8_t*) noexcept override {}
      void broken(Link&, int) noexcept override {}
    } deaf;
    receive(deaf);
    return !open_ || error_ != 0 || (confirming_ && sender_->passed(last_words_));
  }

  uint64_t progress() noexcept override { return sender_ ? sender_->done_bytes() : 0; }
  uint32_t unwritten() const noexcept override { return sender_ ? sender_->unwritten() : 0; }
  bool written() const noexcept override { return unwritten() == 0; }
  int fd() const noexcept override { return epoll_; }
  bool arms() const noexcept override { return true; }
  bool delivers_to_device() const noexcept override { return arrivals_ != nullptr; }
  Lent lend() noexcept override { return arrivals_ ? Lent{arrivals_, arrivals_->lend()} : Lent{}; }
  bool fail_device() noexcept override { return queue_ && queue_->stop(); }

  void on_ready(LinkEvents& events, bool, bool) noexcept override {
    epoll_event ready[3];
    const int n = epoll_ >= 0 ? ::epoll_wait(epoll_, ready, 3, 0) : 0;
    bool ended = false;
    for (int i = 0; i < n; ++i) {
      if (ready[i].data.u64 == kSocket) {
        ended = listen();
      } else if (ready[i].data.u64 == kCompletions) {
        queue_->take_notices();
      } else {
        queue_->device().read_events();
      }
    }
    // What came before the peer's end is here already: a write is confirmed only when it has arrived.
    poll(events);
    if (!ended || epoll_ < 0 || told_) return;
    told_ = true;
    events.broken(*this, error_ ? error_ : open_ ? 0 : ECONNREFUSED);
  }

  bool poll(LinkEvents& events) noexcept override {
    if (epoll_ < 0) return false;
    if (device_error_.load(std::memory_order_relaxed)) note(device_error_.load());
    bool any = false;
    if (open_ && !error_) any = receive(events);
    if (epoll_ >= 0 && error_ && !told_) {
      told_ = any = true;
      events.broken(*this, error_);
    }
    return any;
  }

  bool prepare_sleep() noexcept override {
    if (!open_ || error_) return error_ != 0 && !told_;
    if (arrivals_ && slots_due()) return true;  // since a device was done with some
    if (!queue_->arm()) return false;
    // What came before it was armed makes no notice.
    kept_count_ += queue_->poll(kept_ + kept_count_, kPollAtOnce - kept_count_);
    return kept_count_ > 0;
  }

  uint64_t tx_bytes() const noexcept override { return sender_ ? sender_->posted_bytes() : counted_; }
  uint64_t rx_bytes() const noexcept override { return rx_bytes_; }

 private:
  int make_slots(const std::shared_ptr<VerbsDevice>& device, const VerbsLinkOptions& options, std::string* warning) {
    VerbsSlots::Layout layout{options.slots, (kDataHeadBytes + options.max_payload + 63) / 64 * 64, kControlSlots,
                              kControlSlotBytes};
    for (int error = 0;; layout.data_slots /= 2) {
      if (layout.data_slots == 0) {
        *warning = "memory for " + device->name() + " cannot be registered: " + std::strerror(error) + kRemedy;
        return error;
      }
      slots_ = VerbsSlots::make(device, layout, true, &error);
      if (slots_) bounce_ = VerbsSlots::make(device, layout, false, &error);
      if (bounce_) break;
      slots_.reset();
    }
    if (layout.data_slots < options.slots)
      *warning = device->name() + " has " + std::to_string(layout.data_slots) + " slots for a peer instead of " +
                 std::to_string(options.slots) + kRemedy;
    return 0;
  }

  // Without them payloads come through the host.
  void make_arrivals(const std::shared_ptr<VerbsDevice>& device, const VerbsLinkOptions& options,
                     std::string* warning) {
    int error = 0;
    const VerbsSlots::Layout& layout = slots_->layout();
    arrivals_ = VerbsArrivals::make(device, *options.arrivals, layout.data_slots,
                                    layout.data_slot_bytes - kDataHeadBytes, &error);
    if (!arrivals_ && warning->empty())
      *warning =
          device->name() + " cannot write the GPU's memory (" + std::strerror(error) +
          "): what arrives is copied through the host; the drivers of both must offer DMA-BUF (Linux 5.12, CUDA 11.7), "
          "or nvidia-peermem be loaded";
  }

  bool watch(int fd, uint32_t what, uint64_t tag) noexcept {
    epoll_event e{};
    e.events = what;
    e.data.u64 = tag;
    return ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e) == 0;
  }

  // ---- handshake

  // A new connection's buffer takes all of it. 0 or errno.
  int speak() noexcept {
    while (!to_say_.empty()) {
      const ssize_t sent = ::send(socket_, to_say_.data(), to_say_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno;
      to_say_.erase(to_say_.begin(), to_say_.begin() + sent);
    }
    return 0;
  }

  // Reads from the socket; true: the peer has ended it.
  bool listen() noexcept {
    for (;;) {
      uint8_t scrap;
      const bool more = heard_bytes_ < sizeof heard_;
      const ssize_t got =
          ::recv(socket_, more ? heard_ + heard_bytes_ : &scrap, more ? sizeof heard_ - heard_bytes_ : 1, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
      if (got < 0) note(errno);
      if (got <= 0) return true;
      if (!more) {
        note(EPROTO);
        return false;
      }
      const size_t before = heard_bytes_;
      heard_bytes_ += static_cast<size_t>(got);
      if (error_) continue;
      if (before < VerbsBlob::kBytes && heard_bytes_ >= VerbsBlob::kBytes) note(meet());
      if (!error_ && heard_bytes_ == sizeof heard_) {
        note(go());
        if (!error_) flush();
      }
    }
  }

  // The peer's blob is here.
  int meet() noexcept {
    if (!VerbsBlob::read(heard_, &theirs_)) return EPROTO;
    if (theirs_.link_layer != mine_.link_layer || theirs_.data_slot_bytes != mine_.data_slot_bytes ||
        theirs_.control_slot_bytes < sizeof(SlotHead) + sizeof(FrameHeader) ||
        (theirs_.payload_address != 0 && theirs_.payload_slot_bytes < theirs_.data_slot_bytes - kDataHeadBytes))
      return EPROTO;
    if (!answers_) return 0;
    // What the peer offers, as far as this device can do it; what came of it is known when it is connected.
    const bool kin = mine_.ece.vendor_id != 0 && mine_.ece.vendor_id == theirs_.ece.vendor_id;
    if (!kin || queue_->agree(theirs_.ece) != 0) queue_->agree({});
    return connect();
  }

  // The peer can receive; it has said with which options.
  int go() noexcept {
    VerbsReady ready;
    if (!VerbsReady::read(heard_ + VerbsBlob::kBytes, &ready)) return EPROTO;
    if (!answers_) {
      if (const int rc = queue_->agree(ready.ece); rc != 0) {
        queue_->device().mark_ece_failed();
        return rc;
      }
      if (const int rc = connect(); rc != 0) return rc;
    }
    open_ = true;
    return 0;
  }

  // From now on this end receives.
  int connect() noexcept {
    if (const int rc = queue_->connect(mine_, theirs_); rc != 0) return rc;
    sender_->begin(theirs_);
    uint8_t ready[VerbsReady::kBytes];
    VerbsReady{queue_->agreed()}.write(ready);
    to_say_.insert(to_say_.end(), ready, ready + sizeof ready);
    return speak();
  }

  // ---- receiving

  bool receive(LinkEvents& events) noexcept {
    ibv::Wc done[kPollAtOnce];
    int n = kept_count_;
    std::copy(kept_, kept_ + n, done);
    kept_count_ = 0;
    if (n == 0) n = queue_->poll(done, kPollAtOnce);
    if (n < 0) note(EIO);
    uint32_t taken = 0;
    for (int i = 0; i < n && open_ && !error_; ++i) {
      if (done[i].status != ibv::kSuccess) {
        note(error_of_completion(done[i].status));
      } else if (!(done[i].opcode & ibv::kWcRecv)) {
        sender_->completed(done[i].wr_id);
      } else {
        ++taken;
        delivering_ = true;
        note(take(events, done[i]));
        delivering_ = false;
        if (epoll_ < 0) {  // fenced meanwhile
          fence();
          return true;
        }
      }
    }
    if (!open_ || error_) return n > 0;
    if (taken) note(queue_->post_receives(taken));
    return_slots();
    if (sender_->control_waits()) flush();
    return n > 0;
  }

  // 0 or errno.
  int take(LinkEvents& events, const ibv::Wc& wc) noexcept {
    if (!(wc.wc_flags & ibv::kWcWithImm)) return EPROTO;
    const uint32_t imm = ntohl(wc.imm_data);
    switch (static_cast<Immediate>(imm >> 30)) {
      case Immediate::kData:
        // An immediate that was lost shows here: the next one is not the one whose turn it is.
        if ((imm & kSlotMask) != data_got_ % slots_->layout().data_slots) return EPROTO;
        return take_data(events, slots_->data(data_got_));
      case Immediate::kControl:
        if ((imm & kSlotMask) != control_got_ % kControlSlots) return EPROTO;
        return take_control(events, slots_->control(control_got_));
      case Immediate::kCredit:
        return sender_->used_up_low(imm >> kCounterBits & kCounterMask, imm & kCounterMask) ? 0 : EPROTO;
    }
    return EPROTO;
  }

  int take_data(LinkEvents& events, const uint8_t* slot) noexcept {
    const SlotHead head = read_head(slot);
    const FrameHeader h = read_frame(slot + sizeof head);
    if (h.magic != kFrameMagic || !carries_chunk(h.kind) ||
        h.bytes > slots_->layout().data_slot_bytes - kDataHeadBytes ||
        !sender_->used_up(head.data_used, head.control_used))
      return EPROTO;
    rx_bytes_ += kDataHeadBytes + h.bytes;
    const auto arrivals = arrivals_;  // a fence gives up the link's own
    const bool apart = arrivals && h.kind == FrameKind::kData && h.bytes > 0;
    if (apart) arrivals->see_writes();
    events.arrived(*this, h, apart ? arrivals->slot(data_got_) : slot + kDataHeadBytes, false);
    if (arrivals) arrivals->delivered();
    ++data_got_;
    return 0;
  }

  // A piece of the stream of control frames, which begin and end anywhere in it.
  int take_control(LinkEvents& events, const uint8_t* slot) noexcept {
    const SlotHead head = read_head(slot);
    if (head.bytes > kControlSlotBytes - sizeof head || !sender_->used_up(head.data_used, head.control_used))
      return EPROTO;
    rx_bytes_ += sizeof head + head.bytes;
    stream_.insert(stream_.end(), slot + sizeof head, slot + sizeof head + head.bytes);
    ++control_got_;
    size_t at = 0;
    while (stream_.size() - at >= sizeof(FrameHeader)) {
      const FrameHeader h = read_frame(stream_.data() + at);
      if (h.magic != kFrameMagic || carries_chunk(h.kind) || h.bytes > kMostControlPayload) return EPROTO;
      if (stream_.size() - at - sizeof h < h.bytes) break;
      events.control(*this, h, stream_.data() + at + sizeof h);
      if (!open_) return 0;
      at += sizeof h + h.bytes;
    }
    stream_.erase(stream_.begin(), stream_.begin() + static_cast<ptrdiff_t>(at));
    return 0;
  }

  uint32_t data_emptied() const noexcept { return arrivals_ ? arrivals_->emptied() : data_got_; }
  SlotHead used() const noexcept { return {data_emptied(), control_got_, 0, 0}; }
  // The peer learns of empty slots with every frame, and without one when half of them are.
  bool slots_due() const noexcept {
    const SlotHead& told = sender_->told();
    const uint32_t data_half = std::max(1u, slots_->layout().data_slots / 2);
    return data_emptied() - told.data_used >= data_half || control_got_ - told.control_used >= kControlSlots / 2;
  }
  void return_slots() noexcept {
    if (!slots_due()) return;
    bool sent = false;
    if (!error_) note(sender_->credit(used(), false, &sent));
  }

  // ---- errors

  void note(int error) noexcept {
    if (error != 0 && !error_) error_ = error;
  }
  void device_event(const ibv::AsyncEvent& event) noexcept override {
    if (!queue_->concerns(event)) return;
    int error = EIO;
    switch (event.event_type) {
      case ibv::kEventDeviceFatal:
        error = ENODEV;
        break;
      case ibv::kEventPortErr:
        error = ENETDOWN;
        break;
      case ibv::kEventGidChange:
      case ibv::kEventLidChange:
        error = queue_->check_port();
        break;
      case ibv::kEventPkeyChange:
        error = 0;
        break;
      default:
        break;
    }
    if (error) device_error_.store(error, std::memory_order_relaxed);
  }

  static constexpr const char* kRemedy =
      "; a larger limit of locked memory helps (ulimit -l unlimited, LimitMEMLOCK=infinity), or a smaller "
      "staging_bytes";

  int socket_;
  int epoll_ = -1;
  std::unique_ptr<VerbsSlots> slots_;   // the peer writes here
  std::unique_ptr<VerbsSlots> bounce_;  // the sender's copies, until it has them
  std::shared_ptr<VerbsArrivals> arrivals_;
  std::unique_ptr<VerbsQueue> queue_;
  std::unique_ptr<VerbsSender> sender_;
  VerbsBlob mine_, theirs_;
  std::vector<uint8_t> to_say_;
  uint8_t heard_[VerbsBlob::kBytes + VerbsReady::kBytes];
  size_t heard_bytes_ = 0;
  bool answers_ = false;
  bool open_ = false;  // both ends can receive
  bool listening_ = false, told_ = false, delivering_ = false, confirming_ = false;
  int error_ = 0;
  std::atomic<int> device_error_{0};
  ibv::Wc kept_[kPollAtOnce];
  int kept_count_ = 0;
  uint32_t data_got_ = 0, control_got_ = 0;
  std::vector<uint8_t> stream_;
  uint64_t rx_bytes_ = 0, counted_ = 0, last_words_ = 0;
};

}  // namespace

std::unique_ptr<Link> make_verbs_link(int32_t peer, uint32_t rail, int fd, std::shared_ptr<VerbsDevice> device,
                                      const VerbsPort& port, const VerbsLinkOptions& options, std::string* warning) {
  auto link = std::make_unique<VerbsLink>(peer, rail, fd);
  if (fd >= 0)
    if (const int error = link->begin(std::move(device), port, options, warning); error != 0) link->fail(error);
  return link;
}

}  // namespace r2ccl

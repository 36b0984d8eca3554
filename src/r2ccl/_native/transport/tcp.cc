// A TCP connection as a link. The payload of a large frame is read straight into its destination.
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>  // its tcp_info has more than that of netinet/tcp.h
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/frame_stream.h"
#include "transport/transport.h"

namespace r2ccl {

namespace {

// Bytes that wait in the kernel unsent: small, so that a slow rail does not swallow chunks that another could carry.
constexpr int kNotsentLowatBytes = 128 << 10;
constexpr size_t kReadBudgetBytes = 1 << 20;
#ifndef SO_BUF_LOCK
constexpr int SO_BUF_LOCK = 72;  // headers before Linux 5.16
#endif

class TcpLink final : public Link {
 public:
  TcpLink(int32_t peer, uint32_t rail, int fd, uint32_t max_payload) noexcept
      : Link(peer, rail), stream_(fd, max_payload) {
    if (fd < 0) return;  // not connected yet
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int lowat = kNotsentLowatBytes;
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat);
  }

  bool ready() const noexcept override { return stream_.open() && stream_.idle() && !error_; }
  bool write(const FrameHeader& header, const uint8_t* payload) noexcept override {
    if (!ready()) return false;
    note(stream_.start(header, payload));
    return true;
  }
  void control(const FrameHeader& header, const void* payload) noexcept override { stream_.control(header, payload); }
  void flush() noexcept override { note(stream_.flush()); }
  void fence() noexcept override { stream_.close(); }
  void discard_incoming() noexcept override { stream_.discard_incoming(); }
  bool written() const noexcept override { return stream_.idle(); }
  int fd() const noexcept override { return stream_.fd(); }

  // Bytes that the peer's kernel has confirmed, control frames behind the last chunk left out: those go on moving on a
  // link that loses chunks only.
  uint64_t progress() noexcept override {
    int unconfirmed = 0;
    if (!stream_.open() || ioctl(stream_.fd(), SIOCOUTQ, &unconfirmed) != 0) return 0;
    const auto left = static_cast<uint64_t>(unconfirmed);
    return std::min(stream_.tx_bytes > left ? stream_.tx_bytes - left : 0, stream_.data_mark());
  }

  uint64_t round_trip_ns() noexcept override {
    tcp_info info{};
    return ask(&info) ? uint64_t{info.tcpi_rtt} * 1000 : 0;
  }

  uint64_t least_round_trip_ns() noexcept override {
    tcp_info info{};
    return ask(&info) && info.tcpi_min_rtt != UINT32_MAX ? uint64_t{info.tcpi_min_rtt} * 1000 : UINT64_MAX;
  }

  void limit_backlog(uint64_t bytes) noexcept override {
    if (!stream_.open()) return;
    if (bytes == 0) {
      // The kernel sizes the buffer by itself again; before Linux 5.16 it will not, and gets the most it allows.
      const int locked = 0;
      if (setsockopt(stream_.fd(), SOL_SOCKET, SO_BUF_LOCK, &locked, sizeof locked) == 0) return;
      bytes = std::numeric_limits<int>::max();
    }
    const int half = static_cast<int>(bytes / 2);  // the kernel doubles what it is told
    setsockopt(stream_.fd(), SOL_SOCKET, SO_SNDBUF, &half, sizeof half);
  }

  void on_ready(LinkEvents& events, bool readable, bool writable) noexcept override {
    if (writable && stream_.open()) note(stream_.flush());
    if (readable && stream_.open() && !error_ && !closed_) {
      Adapter sink{*this, events};
      int rc = stream_.read(sink, kReadBudgetBytes);
      more_ = rc == 0 && !stream_.drained();
      if (rc == FrameStream::kClosed) {
        closed_ = true;
      } else if (rc == FrameStream::kBadFrame) {
        note(EPROTO);
      } else {
        note(rc);
      }
    }
    if (stream_.open() && (error_ || closed_)) events.broken(*this, error_);
  }
  // The descriptor is watched edge-triggered: what a read left over its budget is read from here, and an error met
  // while writing is reported from here, not from inside write.
  bool poll(LinkEvents& events) noexcept override {
    if (!stream_.open() || (!error_ && !more_)) return false;
    on_ready(events, more_, false);
    return true;
  }

  uint64_t tx_bytes() const noexcept override { return stream_.tx_bytes; }
  uint64_t rx_bytes() const noexcept override { return stream_.rx_bytes; }

 private:
  struct Adapter final : FrameSink {
    Adapter(TcpLink& l, LinkEvents& e) noexcept : link(l), events(e) {}
    uint8_t* landing(const FrameHeader& h) noexcept override {
      return carries_chunk(h.kind) ? events.landing(link, h) : nullptr;
    }
    void frame(const FrameHeader& h, const uint8_t* payload, bool landed) noexcept override {
      if (carries_chunk(h.kind)) {
        events.arrived(link, h, payload, landed);
      } else if (payload || h.bytes == 0) {
        events.control(link, h, payload);
      }
    }
    TcpLink& link;
    LinkEvents& events;
  };

  bool ask(tcp_info* info) noexcept {
    socklen_t size = sizeof *info;
    return stream_.open() && getsockopt(stream_.fd(), IPPROTO_TCP, TCP_INFO, info, &size) == 0;
  }

  void note(int rc) noexcept {
    if (rc != 0 && !error_) error_ = rc;
  }

  FrameStream stream_;
  int error_ = 0;
  bool closed_ = false;
  bool more_ = false;
};

}  // namespace

std::unique_ptr<Link> make_tcp_link(int32_t peer, uint32_t rail, int fd, uint32_t max_payload) noexcept {
  return std::make_unique<TcpLink>(peer, rail, fd, max_payload);
}

}  // namespace r2ccl

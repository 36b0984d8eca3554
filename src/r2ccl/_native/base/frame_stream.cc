#include "base/frame_stream.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace r2ccl {

namespace {
constexpr size_t kInBytes = 64 << 10;
}

FrameStream::FrameStream(int fd, uint32_t max_payload) noexcept
    : fd_(fd), max_payload_(max_payload), in_(new uint8_t[kInBytes]) {}

FrameStream::~FrameStream() { close(); }

void FrameStream::close() noexcept {
  if (fd_ >= 0) {
    // Unread bytes would turn the end of the connection into a reset, which may take with it what was written last.
    uint8_t scrap[4096];
    for (int i = 0; i < 256 && ::recv(fd_, scrap, sizeof scrap, MSG_DONTWAIT) > 0; ++i) {
    }
    ::close(fd_);
  }
  fd_ = -1;
  data_active_ = false;
  in_payload_ = false;
  ctl_.clear();
  ctl_offset_ = 0;
}

int FrameStream::start(const FrameHeader& header, const uint8_t* payload) noexcept {
  data_header_ = wire_order(header);
  data_payload_ = payload;
  data_sent_ = 0;
  data_active_ = true;
  return flush();
}

void FrameStream::control(const FrameHeader& header, const void* payload) noexcept {
  if (!open()) return;
  if (ctl_offset_ == ctl_.size()) {
    ctl_.clear();
    ctl_offset_ = 0;
  }
  const FrameHeader h = wire_order(header);
  const auto* p = reinterpret_cast<const uint8_t*>(&h);
  ctl_.insert(ctl_.end(), p, p + sizeof h);
  const auto* q = static_cast<const uint8_t*>(payload);
  ctl_.insert(ctl_.end(), q, q + header.bytes);
}

int FrameStream::flush() noexcept {
  while (open() && has_output()) {
    iovec iov[3];
    int n = 0;
    size_t ctl_left = ctl_.size() - ctl_offset_;
    const size_t frame_bytes = data_active_ ? sizeof(FrameHeader) + wire_order(data_header_).bytes : 0;
    // A data frame that has begun is finished before control frames; otherwise control goes first.
    const bool data_first = data_active_ && data_sent_ > 0;
    if (!data_first && ctl_left) iov[n++] = {ctl_.data() + ctl_offset_, ctl_left};
    if (data_active_) {
      if (data_sent_ < sizeof(FrameHeader)) {
        iov[n++] = {reinterpret_cast<uint8_t*>(&data_header_) + data_sent_, sizeof(FrameHeader) - data_sent_};
        if (frame_bytes > sizeof(FrameHeader))
          iov[n++] = {const_cast<uint8_t*>(data_payload_), frame_bytes - sizeof(FrameHeader)};
      } else {
        const size_t at = data_sent_ - sizeof(FrameHeader);
        iov[n++] = {const_cast<uint8_t*>(data_payload_) + at, frame_bytes - data_sent_};
      }
    }
    msghdr msg{};
    msg.msg_iov = iov;
    msg.msg_iovlen = static_cast<size_t>(n);
    ssize_t sent = ::sendmsg(fd_, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
      // The kernel tells a reset once, and whoever reads afterwards finds an end in good order. (EPIPE: so it was.)
      if (write_error_ == 0 && errno != EPIPE) write_error_ = errno;
      return errno;
    }
    tx_bytes += static_cast<uint64_t>(sent);
    auto left = static_cast<size_t>(sent);
    if (!data_first) {
      const size_t take = std::min(left, ctl_left);
      ctl_offset_ += take;
      left -= take;
    }
    data_sent_ += left;
    if (data_active_ && data_sent_ == frame_bytes) {
      data_active_ = false;
      data_sent_ = 0;
      data_mark_ = tx_bytes;
    }
  }
  return 0;
}

bool FrameStream::valid(const FrameHeader& h) const noexcept {
  return h.magic == kFrameMagic && h.bytes <= max_payload_;
}

// Delivers every whole frame in the buffer and begins the payload of a last, incomplete one.
int FrameStream::parse(FrameSink& sink) noexcept {
  while (in_end_ - in_begin_ >= sizeof(FrameHeader)) {
    FrameHeader h;
    std::memcpy(&h, in_.get() + in_begin_, sizeof h);
    h = wire_order(h);
    if (!valid(h)) return kBadFrame;
    const size_t have = in_end_ - in_begin_ - sizeof h;
    const uint8_t* body = in_.get() + in_begin_ + sizeof h;
    if (have >= h.bytes) {
      in_begin_ += sizeof h + h.bytes;
      sink.frame(h, body, false);
      if (!open()) return 0;  // the sink closed us
      continue;
    }
    // Small incomplete frames wait in the buffer; large ones are stored as they come.
    if (sizeof h + h.bytes <= kInBytes / 4) break;
    in_header_ = h;
    in_landing_ = sink.landing(h);
    if (!open()) return 0;
    if (in_landing_) std::memcpy(in_landing_, body, have);
    in_got_ = have;
    in_payload_ = true;
    in_begin_ = in_end_ = 0;
    return 0;
  }
  if (in_begin_ == in_end_) {
    in_begin_ = in_end_ = 0;
  } else if (in_begin_ > 0) {
    std::memmove(in_.get(), in_.get() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  return 0;
}

int FrameStream::read(FrameSink& sink, size_t budget) noexcept {
  size_t total = 0;
  drained_ = false;
  while (open() && total < budget) {
    iovec iov[2];
    int n = 0;
    size_t want = 0;
    const size_t rest = in_payload_ ? in_header_.bytes - in_got_ : 0;
    if (rest && in_landing_) {
      iov[n++] = {in_landing_ + in_got_, rest};
      want += rest;
    }
    iov[n++] = {in_.get() + in_end_, kInBytes - in_end_};
    want += kInBytes - in_end_;
    msghdr msg{};
    msg.msg_iov = iov;
    msg.msg_iovlen = static_cast<size_t>(n);
    ssize_t got = ::recvmsg(fd_, &msg, MSG_DONTWAIT);
    if (got == 0) return write_error_ ? write_error_ : kClosed;
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        drained_ = true;
        return 0;
      }
      return errno;
    }
    rx_bytes += static_cast<uint64_t>(got);
    total += static_cast<size_t>(got);
    auto left = static_cast<size_t>(got);
    if (rest && in_landing_) {
      const size_t take = std::min(left, rest);
      in_got_ += take;
      left -= take;
      in_end_ += left;
    } else {
      in_end_ += left;
      if (rest) {  // thrown away
        const size_t take = std::min(in_end_ - in_begin_, rest);
        in_got_ += take;
        in_begin_ += take;
      }
    }
    if (in_payload_ && in_got_ == in_header_.bytes) {
      in_payload_ = false;
      sink.frame(in_header_, in_landing_, in_landing_ != nullptr);
      if (!open()) return 0;
    }
    if (!in_payload_) {
      if (int rc = parse(sink); rc != 0) return rc;
    } else if (in_begin_ == in_end_) {
      in_begin_ = in_end_ = 0;
    }
    if (static_cast<size_t>(got) < want) {
      drained_ = true;
      return 0;
    }
  }
  return 0;
}

}  // namespace r2ccl

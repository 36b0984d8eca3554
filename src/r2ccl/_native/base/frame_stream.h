// Frames over one connected stream socket (TCP or AF_UNIX), non-blocking. Used by TCP links and control sockets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/frame.h"

namespace r2ccl {

// Receives what a stream reads. Called on the thread that polls, never re-entered.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Where a payload that is not yet complete shall be stored (`bytes` of it); nullptr: it is read and thrown away.
  // A frame that arrived whole is handed to `frame` directly, without asking.
  virtual uint8_t* landing(const FrameHeader& header) noexcept = 0;
  // A whole frame. landed: the payload lies where `landing` said; else it is a view that lasts for this call.
  // payload is nullptr when it was thrown away (or is empty).
  virtual void frame(const FrameHeader& header, const uint8_t* payload, bool landed) noexcept = 0;
};

// One data frame is under way at a time ("links pull"); control frames queue and go between data frames.
class FrameStream {
 public:
  FrameStream(int fd, uint32_t max_payload) noexcept;
  ~FrameStream();
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  int fd() const noexcept { return fd_; }
  bool open() const noexcept { return fd_ >= 0; }
  // No data frame is under way: `start` may be called.
  bool idle() const noexcept { return !data_active_; }
  bool has_output() const noexcept { return data_active_ || ctl_offset_ < ctl_.size(); }

  // Begins a data frame. The payload stays valid until the frame is written (`idle` again) or the stream is closed.
  // Returns 0, or an errno. Pending control frames leave with it.
  int start(const FrameHeader& header, const uint8_t* payload) noexcept;
  // Queues a control frame (copied). It leaves with the next `flush` or data frame.
  void control(const FrameHeader& header, const void* payload) noexcept;
  // Writes what it can; 0 or errno.
  int flush() noexcept;
  // Reads and delivers up to about budget bytes; 0, errno, or kClosed when the peer ended the stream in good order.
  int read(FrameSink& sink, size_t budget) noexcept;
  // The last read took all there was, as far as is known.
  bool drained() const noexcept { return drained_; }
  void close() noexcept;
  // The payload that is being stored shall be thrown away from here on.
  void discard_incoming() noexcept {
    if (in_payload_) in_landing_ = nullptr;
  }

  // Bytes written up to the end of the last data frame, or all while one is under way.
  uint64_t data_mark() const noexcept { return data_active_ ? tx_bytes : data_mark_; }

  uint64_t tx_bytes = 0;
  uint64_t rx_bytes = 0;

  static constexpr int kClosed = -1;
  static constexpr int kBadFrame = -2;

 private:
  bool valid(const FrameHeader& header) const noexcept;
  int parse(FrameSink& sink) noexcept;

  int fd_;
  uint32_t max_payload_;

  std::vector<uint8_t> ctl_;
  size_t ctl_offset_ = 0;
  bool data_active_ = false;
  FrameHeader data_header_{};
  const uint8_t* data_payload_ = nullptr;
  size_t data_sent_ = 0;  // of header and payload together
  uint64_t data_mark_ = 0;
  int write_error_ = 0;

  std::unique_ptr<uint8_t[]> in_;
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
  bool in_payload_ = false;  // inside a payload that did not arrive whole
  FrameHeader in_header_{};
  uint8_t* in_landing_ = nullptr;
  size_t in_got_ = 0;
  bool drained_ = true;
};

}  // namespace r2ccl

// The control socket of a pair of ranks: notices, alarms, wake-ups. It carries no data, and losing it costs no data.
#pragma once
#include <sys/socket.h>

#include <cstdint>

#include "base/frame_stream.h"

namespace r2ccl {

class ControlEvents {
 public:
  virtual ~ControlEvents() = default;
  virtual void on_control(int32_t peer, const FrameHeader& header, const uint8_t* payload) noexcept = 0;
};

class ControlSocket {
 public:
  static constexpr uint32_t kMaxPayload = 60 << 10;

  ControlSocket(int32_t peer, int fd, bool same_host, bool later = false) noexcept
      : peer_(peer), same_host_(same_host), later_(later), stream_(fd, kMaxPayload) {}

  int32_t peer() const noexcept { return peer_; }
  int fd() const noexcept { return stream_.fd(); }
  bool open() const noexcept { return stream_.open(); }
  // The other process is on this host, so the end of the socket is the end of the process.
  bool same_host() const noexcept { return same_host_; }
  // It took the place of another one. The peer may take yet another, so its end says nothing about the process.
  bool later() const noexcept { return later_; }
  // The peer says that it takes another one instead.
  void expect_end() noexcept { replaced_ = true; }
  bool replaced() const noexcept { return replaced_; }
  // Closes for another one, in a way that the peer cannot take for the end of this process.
  void give_way() noexcept {
    if (!open()) return;
    send({.kind = FrameKind::kReplaced});
    if (has_output()) {  // the network takes nothing: a reset is no proof of anything either
      const linger now{1, 0};
      setsockopt(fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    close();
  }
  bool has_output() const noexcept { return stream_.has_output(); }

  // Queued and sent at once as far as the socket takes it; never blocks. False: the socket is broken.
  bool send(const FrameHeader& header, const void* payload = nullptr) noexcept {
    stream_.control(header, payload);
    return stream_.flush() == 0;
  }
  bool flush() noexcept { return stream_.flush() == 0; }
  // Delivers what has come. 0; or FrameStream's error, kClosed included.
  int read(ControlEvents& events) noexcept {
    struct Adapter final : FrameSink {
      Adapter(ControlSocket& s, ControlEvents& e) noexcept : socket(s), events(e) {}
      uint8_t* landing(const FrameHeader&) noexcept override { return nullptr; }
      void frame(const FrameHeader& h, const uint8_t* payload, bool) noexcept override {
        if (payload || h.bytes == 0) events.on_control(socket.peer(), h, payload);
      }
      ControlSocket& socket;
      ControlEvents& events;
    } sink{*this, events};
    return stream_.read(sink, 1 << 20);
  }
  void close() noexcept { stream_.close(); }

 private:
  int32_t peer_;
  bool same_host_, later_, replaced_ = false;
  FrameStream stream_;
};

}  // namespace r2ccl

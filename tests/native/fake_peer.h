// The other end of an engine's connections, driven by the test itself.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <map>
#include <memory>
#include <vector>

#include "cluster.h"

namespace r2ccl::test {

// Rank 1 of 2, or of 3: says what the test tells it to, and shows what it hears.
struct FakePeer {
  int control = -1;
  std::vector<int> links;
  void say(int fd, const FrameHeader& header, const std::vector<uint8_t>& payload = {}) const {
    const FrameHeader h = wire_order(header);
    CHECK(::send(fd, &h, sizeof h, MSG_NOSIGNAL) == sizeof h);
    if (!payload.empty())
      CHECK(::send(fd, payload.data(), payload.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(payload.size()));
  }
  // Frames that have come over fd and were not yet taken, within wait_ms for the first.
  std::vector<FrameHeader> hear(int fd, std::vector<std::vector<uint8_t>>* payloads, int wait_ms) {
    std::vector<uint8_t>& in = heard_[fd];
    for (pollfd p{fd, POLLIN, 0}; ::poll(&p, 1, wait_ms) > 0; wait_ms = 0) {
      uint8_t part[65536];
      const ssize_t n = ::recv(fd, part, sizeof part, MSG_DONTWAIT);
      if (n <= 0) break;
      in.insert(in.end(), part, part + n);
    }
    std::vector<FrameHeader> frames;
    for (size_t at = 0;; at = 0) {
      FrameHeader h;
      if (in.size() < sizeof h) return frames;
      std::memcpy(&h, in.data(), sizeof h);
      h = wire_order(h);
      at = sizeof h + h.bytes;
      if (in.size() < at) return frames;
      frames.push_back(h);
      payloads->emplace_back(in.begin() + sizeof h, in.begin() + static_cast<ptrdiff_t>(at));
      in.erase(in.begin(), in.begin() + static_cast<ptrdiff_t>(at));
    }
  }
  void acknowledge(int fd, const ChunkId& id) const {
    const ChunkId wire = wire_order(id);
    std::vector<uint8_t> payload(sizeof wire);
    std::memcpy(payload.data(), &wire, sizeof wire);
    say(fd, {.kind = FrameKind::kAck, .bytes = sizeof wire}, payload);
  }
  void reset(size_t link) {
    const linger now{1, 0};
    setsockopt(links[link], SOL_SOCKET, SO_LINGER, &now, sizeof now);
    ::close(links[link]);
    links[link] = -1;
  }
  FakePeer() = default;
  FakePeer(const FakePeer&) = delete;
  FakePeer& operator=(const FakePeer&) = delete;
  ~FakePeer() {
    if (control >= 0) ::close(control);
    for (int fd : links)
      if (fd >= 0) ::close(fd);
  }

 private:
  std::map<int, std::vector<uint8_t>> heard_;
};

inline std::unique_ptr<Engine> engine_with(std::vector<std::unique_ptr<FakePeer>>* peers, const Options& o) {
  auto engine = make_engine(o, 0);
  add_rails(*engine, o);
  for (int r = 1; r < o.ranks; ++r) {
    auto fake = std::make_unique<FakePeer>();
    int control[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
    engine->add_control(r, control[0], true);
    fake->control = control[1];
    for (uint32_t rail = 0; rail < o.rails; ++rail) {
      const auto [x, y] = tcp_pair();
      engine->add_link(make_tcp_link(r, rail, x, 64 << 10));
      fake->links.push_back(y);
    }
    peers->push_back(std::move(fake));
  }
  CHECK(engine->start() == Status::OK);
  return engine;
}

}  // namespace r2ccl::test

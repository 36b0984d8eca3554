// Tells when a network interface loses its link, its address or itself: netlink says it in milliseconds, while the
// sockets on it say nothing for minutes.
#pragma once
#include <cstdint>
#include <functional>

namespace r2ccl {

class LinkWatch {
 public:
  LinkWatch() noexcept;
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  // For epoll; -1 where netlink is not to be had (then the stall rule alone serves).
  int fd() const noexcept { return fd_; }
  // Reads what has come. changed(ifindex, up).
  void read(const std::function<void(uint32_t ifindex, bool up)>& changed) noexcept;

 private:
  int fd_;
};

}  // namespace r2ccl

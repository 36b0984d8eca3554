// Tells when a network interface loses its link, an address or itself: netlink says it in milliseconds, while the
// sockets on it say nothing for minutes.
#pragma once
#include <cstdint>

namespace r2ccl {

// An address as the kernel has it.
struct InterfaceAddress {
  uint8_t bytes[16] = {};
  uint8_t length = 0;  // 4 or 16; 0: none

  // Numeric text, with or without a scope; anything else gives none.
  static InterfaceAddress parse(const char* text) noexcept;
  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

class InterfaceEvents {
 public:
  virtual ~InterfaceEvents() = default;
  virtual void interface_changed(uint32_t ifindex, bool up) noexcept = 0;
  virtual void address_changed(uint32_t ifindex, const InterfaceAddress& address, bool present) noexcept = 0;
};

class LinkWatch {
 public:
  LinkWatch() noexcept;
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  // For epoll; -1 where netlink is not to be had (then the stall rule alone serves).
  int fd() const noexcept { return fd_; }
  // Reads what has come.
  void read(InterfaceEvents& events) noexcept;

 private:
  void ask() noexcept;

  int fd_;
};

}  // namespace r2ccl

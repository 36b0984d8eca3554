// Two ends of a TCP connection in this process.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "check.h"

namespace r2ccl::test {

// A connection over 127.0.0.1.
inline std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(listener, 1) == 0);
  CHECK(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const int a = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(::connect(a, reinterpret_cast<sockaddr*>(&address), size) == 0);
  const int b = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  CHECK(b >= 0);
  ::close(listener);
  return {a, b};
}

}  // namespace r2ccl::test

#include "transport/link_watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace r2ccl {

InterfaceAddress InterfaceAddress::parse(const char* text) noexcept {
  InterfaceAddress a;
  char bare[64] = {};
  if (!text) return a;
  std::strncpy(bare, text, sizeof bare - 1);
  if (char* scope = std::strchr(bare, '%')) *scope = '\0';
  if (::inet_pton(AF_INET, bare, a.bytes) == 1) {
    a.length = 4;
  } else if (::inet_pton(AF_INET6, bare, a.bytes) == 1) {
    a.length = 16;
  }
  return a;
}

LinkWatch::LinkWatch() noexcept : fd_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  if (fd_ < 0) return;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

LinkWatch::~LinkWatch() {
  if (fd_ >= 0) ::close(fd_);
}

// How all interfaces are: after events were lost.
void LinkWatch::ask() noexcept {
  struct {
    nlmsghdr header;
    ifinfomsg info;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = RTM_GETLINK;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.info.ifi_family = AF_UNSPEC;
  [[maybe_unused]] ssize_t n = ::send(fd_, &request, sizeof request, MSG_DONTWAIT);
}

void LinkWatch::read(InterfaceEvents& events) noexcept {
  alignas(nlmsghdr) char buffer[16384];
  for (;;) {
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == ENOBUFS) {
      ask();
      continue;
    }
    if (got <= 0) return;
    auto left = static_cast<unsigned>(got);
    for (auto* h = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
      if (h->nlmsg_type == RTM_NEWLINK || h->nlmsg_type == RTM_DELLINK) {
        const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(h));
        const bool up = h->nlmsg_type == RTM_NEWLINK && (info->ifi_flags & IFF_UP) && (info->ifi_flags & IFF_RUNNING);
        events.interface_changed(static_cast<uint32_t>(info->ifi_index), up);
      } else if (h->nlmsg_type == RTM_NEWADDR || h->nlmsg_type == RTM_DELADDR) {
        const auto* info = static_cast<const ifaddrmsg*>(NLMSG_DATA(h));
        InterfaceAddress address;
        int size = static_cast<int>(IFA_PAYLOAD(h));
        for (auto* a = IFA_RTA(info); RTA_OK(a, size); a = RTA_NEXT(a, size)) {
          // On point-to-point interfaces IFA_ADDRESS is the other end.
          const size_t n = RTA_PAYLOAD(a);
          if ((a->rta_type != IFA_LOCAL && (a->rta_type != IFA_ADDRESS || address.length)) || (n != 4 && n != 16))
            continue;
          std::memcpy(address.bytes, RTA_DATA(a), n);
          address.length = static_cast<uint8_t>(n);
        }
        if (address.length) events.address_changed(info->ifa_index, address, h->nlmsg_type == RTM_NEWADDR);
      }
    }
  }
}

}  // namespace r2ccl

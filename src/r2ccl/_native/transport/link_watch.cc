#include "transport/link_watch.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

namespace r2ccl {

LinkWatch::LinkWatch() noexcept : fd_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  if (fd_ < 0) return;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

LinkWatch::~LinkWatch() {
  if (fd_ >= 0) ::close(fd_);
}

void LinkWatch::read(const std::function<void(uint32_t, bool)>& changed) noexcept {
  alignas(nlmsghdr) char buffer[16384];
  for (;;) {
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == ENOBUFS) {  // events were lost: ask how all interfaces are
      struct {
        nlmsghdr header;
        ifinfomsg info;
      } ask{};
      ask.header.nlmsg_len = sizeof ask;
      ask.header.nlmsg_type = RTM_GETLINK;
      ask.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
      ask.info.ifi_family = AF_UNSPEC;
      if (::send(fd_, &ask, sizeof ask, MSG_DONTWAIT) < 0) return;
      continue;
    }
    if (got <= 0) return;
    auto left = static_cast<unsigned>(got);
    for (auto* h = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
      if (h->nlmsg_type != RTM_NEWLINK && h->nlmsg_type != RTM_DELLINK) continue;
      const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(h));
      const bool up = h->nlmsg_type == RTM_NEWLINK && (info->ifi_flags & IFF_UP) && (info->ifi_flags & IFF_RUNNING);
      changed(static_cast<uint32_t>(info->ifi_index), up);
    }
  }
}

}  // namespace r2ccl

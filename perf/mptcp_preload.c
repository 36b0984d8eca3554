/* Makes every TCP socket of a program a Multipath TCP one: LD_PRELOAD for programs that do not ask for it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif
#define KIND(type) ((type) & ~(SOCK_CLOEXEC | SOCK_NONBLOCK))

int socket(int domain, int type, int protocol) {
  static int (*next)(int, int, int);
  if (!next) next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
  const int tcp = (domain == AF_INET || domain == AF_INET6) && KIND(type) == SOCK_STREAM &&
                  (protocol == 0 || protocol == IPPROTO_TCP);
  return next(domain, type, tcp ? IPPROTO_MPTCP : protocol);
}

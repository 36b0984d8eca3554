#!/bin/sh
# What the guest needs, all of it packages of Debian. Root installs them where apt-get is; anybody else is told.
# Fails when something is missing afterwards: tests that need the guest must not pass for want of it.
set -u
PATH=$PATH:/usr/sbin:/sbin
packages=""

have() { # have COMMAND PACKAGE
  command -v "$1" >/dev/null 2>&1 || packages="$packages $2"
}
look() {
  packages=""
  have qemu-system-x86_64 qemu-system-x86
  [ -x /bin/busybox ] && [ "$(/bin/busybox 2>/dev/null | grep -cw insmod)" != 0 ] || packages="$packages busybox-static"
  have cpio cpio
  have zstd zstd
  have modprobe kmod
  have ip iproute2
  have rdma iproute2
  have nft nftables
  have ib_write_bw perftest
  [ -e /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so ] || ls /usr/lib/*/libibverbs/librxe-*.so >/dev/null 2>&1 ||
    packages="$packages ibverbs-providers"
  [ -d /usr/lib/python3/dist-packages/pyverbs ] || packages="$packages python3-pyverbs"
}

if [ "$(uname -m)" != x86_64 ]; then
  echo "rdma_guest: needs an x86-64 machine: the guest runs this machine's own programs (this is $(uname -m))" >&2
  exit 1
fi
look
[ -z "$packages" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing$packages (for the guest with soft RDMA)"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086  # a list of packages
  apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages </dev/null >/dev/null
  look
  [ -z "$packages" ] && exit 0
fi
echo "rdma_guest: missing$packages; on Debian, as root: apt-get update && apt-get install -y --no-install-recommends$packages" >&2
exit 1

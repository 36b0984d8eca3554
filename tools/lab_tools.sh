#!/bin/sh
# The emulated cluster needs ip (iproute2) and nft (nftables). Root installs them where apt-get is; anybody else is told.
# Never fails: without the tools the lab tests skip and say why.
set -u
PATH=$PATH:/usr/sbin:/sbin
packages=""
command -v ip >/dev/null 2>&1 || packages="$packages iproute2"
command -v nft >/dev/null 2>&1 || packages="$packages nftables"
[ -z "$packages" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing$packages (for the emulated cluster)"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086  # a list of packages
  apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages </dev/null && exit 0
fi
echo "note: the emulated cluster (r2ccl-lab) needs$packages; install it as root, e.g. apt-get install -y$packages" >&2
exit 0

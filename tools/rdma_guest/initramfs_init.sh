#!/bin/busybox sh
# The guest's first program: the host's files, read-only, under an overlay in memory; then start.sh of the job.
/bin/busybox mount -t proc proc /proc
for module in $(cat /modules/order); do insmod "/modules/$module"; done
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $options,ro,cache=loose root /lower
mount -t tmpfs -o size=90% up /up
mkdir /up/upper /up/work
mount -t overlay -o lowerdir=/lower,upperdir=/up/upper,workdir=/up/work overlay /new
cd /new
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mount -t tmpfs run run
mkdir -p dev/pts dev/shm run/guest
mount -t devpts devpts dev/pts
mount -t tmpfs shm dev/shm
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
mount -t 9p -o $options job run/guest
until [ -e dev/guest-out ] && [ -e dev/guest-err ]; do # the ports get their names a little later than their devices
  for port in sys/class/virtio-ports/*; do
    read -r name <"$port/name" && ln -sf "${port##*/}" "dev/guest-$name"
  done
done 2>/dev/null
umount /proc
exec /bin/busybox switch_root /new /bin/busybox sh /run/guest/start.sh

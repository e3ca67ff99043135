#!/bin/sh
# Boots one machine. Started by machines.py as the first process of mount, PID and network namespaces of its own, so
# that nothing of what it mounts or starts outlives it. Arguments: further options for systemd-nspawn.
#
# INGOT_CGROUPS  cgroup.procs files to enter       INGOT_RUN    directory with root/, layers/, hypervisor/, cgroup/
# INGOT_REGION   netns of the region's bridge      INGOT_STATE  directory with upper/ and work/
# INGOT_LINK     name of the link on the bridge    INGOT_MAC    address of the machine's NIC
# INGOT_LOWER    lowerdir, relative to layers/     INGOT_NAME   name for systemd-nspawn
set -eu
for procs in $INGOT_CGROUPS; do
    echo 0 > "$procs"
done

nsenter --net="$INGOT_REGION" ip link add "$INGOT_LINK" type veth \
    peer name ens5 address "$INGOT_MAC" netns $$
nsenter --net="$INGOT_REGION" ip link set "$INGOT_LINK" master br0 up

# Relative names: the kernel takes one page of options, too little for the absolute paths of many layers. Everything is
# said explicitly, since a layer must mean the same whatever the host's defaults for overlayfs are.
cd "$INGOT_RUN/layers"
mount -t overlay overlay "$INGOT_RUN/root" -o "lowerdir=$INGOT_LOWER,upperdir=$INGOT_STATE/upper,\
workdir=$INGOT_STATE/work,redirect_dir=off,index=off,metacopy=off,xino=off"
cd /

# systemd-nspawn's locks and sockets stay in here and end with this namespace.
mkdir -p /run/systemd/nspawn
mount -t tmpfs tmpfs /run/systemd/nspawn

# It looks for the NIC in /sys, which has to be the one of this network namespace; read-only means "no udev to wait for".
mount --rbind /sys/fs/cgroup "$INGOT_RUN/cgroup"
mount -t sysfs -o ro sysfs /sys
mount --rbind "$INGOT_RUN/cgroup" /sys/fs/cgroup

export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_TMPFS_TMP=0
exec systemd-nspawn --quiet --register=no --keep-unit --directory="$INGOT_RUN/root" --machine="$INGOT_NAME" \
    --network-interface=ens5 --link-journal=no --resolv-conf=off --timezone=off --console=read-only \
    --kill-signal=SIGRTMIN+3 --bind-ro="$INGOT_RUN/hypervisor:/sys/hypervisor" "$@" /sys/hypervisor/boot

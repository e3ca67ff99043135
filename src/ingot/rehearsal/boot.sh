#!/bin/sh
# First process of a machine, before its init: what a hypervisor does for a virtual machine and systemd-nspawn does not.
# Runs with the machine's own shell, at every boot, also at one that the machine itself asked for.

# A copy of a directory of kernel settings over the original: on a virtual machine they can be written and read back,
# and here that must not reach the host's kernel. Settings that belong to a namespace are in the same place; a copy has
# no effect there either, which no service of ours depends on.
own() {
    [ -d "$1" ] || return 0
    original=/run/original
    mkdir -p "$original"
    mount --rbind "$1" "$original"
    mount --make-rprivate "$original"  # else unmounting it below would unmount what it is a copy of
    mount -t tmpfs -o mode=0755,size=1m tmpfs "$1"
    for entry in "$original"/*; do
        [ -f "$entry" ] && cat "$entry" > "$1/${entry##*/}" 2> /dev/null
    done
    for kept in $2; do
        if [ -d "$original/$kept" ]; then
            mkdir "$1/$kept"
        else
            : > "$1/$kept"
        fi
        mount --rbind "$original/$kept" "$1/$kept"
    done
    umount --lazy "$original"
    rmdir "$original"
}

mount --bind /sys/hypervisor/meminfo /proc/meminfo
if [ -e /sys/hypervisor/cpuinfo ]; then
    mount --bind /sys/hypervisor/cpuinfo /proc/cpuinfo
fi
own /proc/sys/vm ""
own /proc/sys/kernel "random hostname domainname shmall shmmax shmmni msgmax msgmnb msgmni sem"
own /proc/sys/net/core ""
# In a network namespace other than the host's the kernel leaves these out; a virtual machine has them.
for setting in rmem_default=212992 rmem_max=212992 wmem_default=212992 wmem_max=212992 netdev_max_backlog=1000; do
    [ -e "/proc/sys/net/core/${setting%%=*}" ] || echo "${setting#*=}" > "/proc/sys/net/core/${setting%%=*}"
done
own /sys/kernel/mm/transparent_hugepage "khugepaged"

# On an emulated processor: qemu takes the core from each process's environment, units from the manager's, sessions from
# /etc/environment. It knows of netlink only links and addresses, so the network services are left out for this boot,
# and the one address is set here. Managers of users are left out as well: systemd asks a peer for its groups until they
# fit, and qemu does not say how many there are.
emulated() {
    mkdir -p /run/systemd/system /run/systemd/system.conf.d /run/systemd/resolved.conf.d
    echo "[Manager]
DefaultEnvironment=QEMU_CPU=$QEMU_CPU" > /run/systemd/system.conf.d/emulated.conf
    sed -i "/^QEMU_CPU=/d" /etc/environment
    echo "QEMU_CPU=$QEMU_CPU" >> /etc/environment
    echo 'Defaults env_keep += "QEMU_CPU"' > /etc/sudoers.d/emulated  # its sessions have what sudo lets through
    chmod 0440 /etc/sudoers.d/emulated
    for unit in systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service \
        user@.service; do
        ln -sf /dev/null "/run/systemd/system/$unit"
    done
    cat /proc/cpuinfo > /run/cpuinfo  # qemu's answer, for what runs natively
    mount --bind /run/cpuinfo /proc/cpuinfo
    read -r address gateway dns < /sys/hypervisor/address
    ip -batch - << IP
link set lo up
link set ens5 up
address add $address dev ens5
route add default via $gateway
IP
    echo "[Resolve]
DNS=$dns
Domains=ec2.internal" > /run/systemd/resolved.conf.d/emulated.conf
}

if [ -e /sys/hypervisor/core ]; then
    emulated
    LD_PRELOAD=/sys/hypervisor/emulated.so exec /sbin/init
fi
exec /sbin/init

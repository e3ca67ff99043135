#!/bin/sh
# Makes a freshly bootstrapped Debian tree what Debian's own cloud image is on EC2: cloud-init with the Ec2 data
# source, DHCP by systemd-networkd, the default user `admin`, no identity of its own.
# Called by mmdebstrap as a customize hook with the tree as its argument; part of the base's cache key.
set -eu
root=$1

: > "$root/etc/machine-id"
rm -f "$root/etc/hostname" "$root"/etc/ssh/ssh_host_* "$root/var/lib/dbus/machine-id"
cat > "$root/etc/hosts" <<'HOSTS'
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
HOSTS

# One NIC, DHCPv4 only, as in a default VPC. Without IPv6 there is no duplicate address detection to wait for.
cat > "$root/etc/systemd/network/10-ec2.network" <<'NETWORK'
[Match]
Name=ens* eth*

[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no

[DHCPv4]
ClientIdentifier=mac
UseDomains=yes
NETWORK
# A VPC has no multicast: without this every name of one label costs seconds, and cloud-init asks for some at each boot.
mkdir -p "$root/etc/systemd/resolved.conf.d"
printf '[Resolve]\nLLMNR=no\nMulticastDNS=no\n' > "$root/etc/systemd/resolved.conf.d/ec2.conf"
ln -sf ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"

cat > "$root/etc/cloud/cloud.cfg.d/01_debian_cloud.cfg" <<'CLOUD'
datasource_list: [ Ec2 ]
network: { config: disabled }
manage_etc_hosts: true
apt: { preserve_sources_list: true }
disable_root: true
ssh_pwauth: false
system_info:
  default_user:
    name: admin
    sudo: [ "ALL=(ALL) NOPASSWD:ALL" ]
    shell: /bin/bash
    lock_passwd: true
    gecos: Debian
    groups: [ adm, audio, cdrom, dialout, dip, floppy, plugdev, sudo, video ]
CLOUD

# Real machines keep their journal over a reboot.
mkdir -p "$root/var/log/journal"

systemctl --root="$root" enable systemd-networkd.service systemd-resolved.service ssh.service
# The certificate authorities that the host trusts in addition (a company's proxy, say): machines go out through the host.
if [ -n "${INGOT_EXTRA_CA:-}" ]; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp "$INGOT_EXTRA_CA"/*.crt "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates
fi

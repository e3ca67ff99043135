#!/bin/sh
# Makes a repository on the machine with packages of the set's names in a version above all, and one more, installed in an
# older version, that shows whether the repository is heard at all. $1 is the release of the kernel.
set -eu
place=/var/tmp/newer
mkdir -p "$place"
make() { # NAME VERSION
    tree=$(mktemp -d)
    mkdir "$tree/DEBIAN"
    printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: Ingot\nDescription: stands for a newer version\n' \
        "$1" "$2" > "$tree/DEBIAN/control"
    dpkg-deb --build "$tree" "$place/$1_$2.deb"
    rm -r "$tree"
}
make ingot-control 1
dpkg --install "$place/ingot-control_1.deb"
rm "$place/ingot-control_1.deb"
make ingot-control 2
# A dependency as NVIDIA's repository would have it, with the branch in its name and nothing of it in the table.
make libnvidia-extra-550 550.163.01-1ubuntu1
make libnvidia-extra-550 550.999-1ubuntu1
for name in nvidia-open-kernel-dkms libcuda1 libnvidia-ml1 nvidia-smi nvidia-persistenced firmware-nvidia-gsp \
    nvidia-alternative dkms "linux-image-$1" "linux-headers-$1"; do
    make "$name" 999
done
cd "$place"
for package in *.deb; do
    dpkg-deb --field "$package"
    printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$package" "$(stat -c %s "$package")" \
        "$(sha256sum "$package" | cut -d ' ' -f 1)"
done > Packages
echo "deb [trusted=yes] file:$place ./" > /etc/apt/sources.list.d/newer.list

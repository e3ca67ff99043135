#!/bin/bash
# Stub: stands for efa_installer.sh of AWS's EFA installer. It takes its options, looks for packages where that does, installs
# them by apt and leaves the same record. The packages are stubs, too (stub_installer.py).
set -eu
# shellcheck source=/dev/null
. ./env.sh
minimal=0 kmod=1
for option in "$@"; do
    case $option in
    -y | --yes | -n | --no-verify | -l | --skip-limit-conf | --skip-mpi) ;;
    -k | --skip-kmod) kmod=0 ;;
    -m | --minimal) minimal=1 ;;
    *)
        echo "efa_installer.sh: unknown option $option" >&2
        exit 1
        ;;
    esac
done
# shellcheck source=/dev/null
. /etc/os-release
system=${ID^^}${VERSION_ID//./}
directory=DEBS/$system/$(uname -m)
if [ ! -d "$directory" ]; then
    echo "Unsupported operating system." >&2
    exit 1
fi
packages=("$directory"/rdma-core/*.deb)
[ "$minimal" = 1 ] || packages+=("$directory"/*.deb)
[ "$kmod" = 0 ] || packages+=("$directory"/efa-driver/*.deb)
for package in "${packages[@]}"; do
    if ! grep -Fxq "$package" package_list.txt; then
        echo "Error: unknown package found: $package"
        exit 1
    fi
done
echo "= Starting Amazon Elastic Fabric Adapter Installation Script ="
echo "= EFA Installer Version: $EFA_INSTALLER_VERSION ="
DEBIAN_FRONTEND=noninteractive apt-get install --yes "${packages[@]/#/./}" || {
    echo "Error: Failed to install packages." >&2
    exit 1
}
mkdir -p /opt/amazon
{
    echo "# EFA installer version: $EFA_INSTALLER_VERSION"
    echo "# Debug packages installed: no"
    echo "# Packages installed:"
    basename -a -s .deb "${packages[@]}" | tr '\n' ' '
    echo
} > /opt/amazon/efa_installed_packages

# shellcheck shell=sh
# What the preflight wants to know of a node, one fact a line. Run by `raw`, for it must work with no Python at all.
# Wants PORTS (what this node would listen on) and PATHS (what would not be fetched again) as assignments before it.
echo "machine $(uname -m)"
echo "cores $(nproc)"
echo "python $(/usr/bin/python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"

# Arithmetic is the shell's: awk's is 32 bits wide in some.
memory=$(($(awk '$1 == "MemTotal:" { print $2 }' /proc/meminfo) * 1024))
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null)
case $limit in '' | max) ;; *) [ "$limit" -lt "$memory" ] && memory=$limit ;; esac
echo "memory $memory"
echo "disk $(($(df -Pk / | awk 'NR == 2 { print $4 }') * 1024))"

# Interfaces of EFA, of Amazon's PCI devices.
efa=0
for device in "${SYS:-/sys}"/bus/pci/devices/*; do
    case $(cat "$device/vendor" "$device/device" 2>/dev/null | tr '\n' ' ') in
    "0x1d0f 0xefa"*) efa=$((efa + 1)) ;;
    esac
done
echo "efa $efa"

# The Ray of the engine's environment, and the Python that it is for.
for package in "${VENV:-/opt/ingot/venvs/vllm}"/lib/python3.*/site-packages/ray-*.dist-info; do
    [ -e "$package" ] || continue
    version=${package##*/ray-}
    python=${package%/site-packages/*}
    echo "ray ${version%.dist-info} ${python##*/python}"
done

echo "inputs $(cat /usr/share/ingot/inputs.json 2>/dev/null)"
# Beside those, what was compiled for Neuron chips: each directory is called like the key of what went into it.
for path in $PATHS "${NEURON:-/opt/ingot/neuron}"/*; do
    [ -e "$path" ] && echo "path $path"
done

# Who listens: `ss` prints users:(("haproxy",pid=812,fd=7)); the cgroup of that process ends in its unit.
for port in $PORTS; do
    ss -Hltnp "sport = :$port" 2>/dev/null | sed -n 's/.*users:(("\([^"]*\)",pid=\([0-9]*\).*/\1 \2/p' |
        sort -u | while read -r process pid; do
        unit=$(sed -n 's#.*/\([^/]*\.\(service\|scope\)\).*#\1#p' "${PROC:-/proc}/$pid/cgroup" | head -n 1)
        echo "port $port $process $unit"
    done
done

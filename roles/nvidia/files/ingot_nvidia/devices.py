"""What NVIDIA devices are on the PCI bus. Asked of /sys, so that no driver has to be loaded."""

from __future__ import annotations

from pathlib import Path

VENDOR = "0x10de"
DISPLAY = "0x03"  # class: VGA and 3D controllers
BRIDGE = "0x0680"  # class: "other bridge", which NVSwitch is: 10de:1af1 (A100), 10de:22a3 (H100, H200)
# From NVLink 5 on (B200) a guest sees no switch, but an InfiniBand device that manages them, with this in
# its VPD.
MANAGEMENT = b"SW_MNG"


def _classes(sys: Path) -> list[str]:
    return [
        (device / "class").read_text().strip()
        for device in (sys / "bus/pci/devices").glob("*")
        if (device / "vendor").read_text().strip() == VENDOR
    ]


def gpus(sys: Path = Path("/sys")) -> int:
    """How many GPUs."""
    return sum(name.startswith(DISPLAY) for name in _classes(sys))


def nvswitch(sys: Path = Path("/sys")) -> bool:
    """Whether GPUs are joined by NVSwitch, so that nothing runs without the fabric manager."""
    if any(name.startswith(BRIDGE) for name in _classes(sys)):
        return True
    return any(
        MANAGEMENT in vpd.read_bytes()
        for vpd in (sys / "class/infiniband").glob("*/device/vpd")
        if vpd.is_file()
    )

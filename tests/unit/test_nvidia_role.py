"""The files that the role nvidia writes: pins, exclusions, patches by kernel, units in their order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from role_templates import ROOT, evaluate, render

KERNEL = "6.12.118+deb13-cloud-amd64"
DEBIAN = {"nvidia_driver_set": "debian13-550", "nvidia_kernel": KERNEL}
UBUNTU = {"nvidia_driver_set": "ubuntu2404-580"}


def text(template: str, choice: dict[str, Any], *installed: str, **more: Any) -> str:
    """A template for a machine with these kernels, without comments."""
    boot = {"files": [{"path": f"/boot/vmlinuz-{release}"} for release in installed]}
    rendered = render("nvidia", template, {**choice, "__nvidia_boot": boot, **more})
    return "\n".join(
        line for line in rendered.splitlines() if line and not line.startswith(("#", "//", "/*", " *"))
    )


def probe(expression: str, choice: dict[str, Any], *installed: str) -> Any:
    """One of the role's own variables."""
    loader = DataLoader()
    values: dict[str, Any] = {"role_path": str(ROOT / "roles/nvidia")}
    for part in ("defaults", "vars"):
        values |= loader.load_from_file(
            str(ROOT / "roles/nvidia" / part / "main.yml"), trusted_as_template=True
        )
    boot = {"files": [{"path": f"/boot/vmlinuz-{release}"} for release in installed]}
    return evaluate(expression, {**values, **choice, "__nvidia_boot": boot})


def daemons_of(choice: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = probe("__nvidia_daemons", choice)
    return found


def wanted_of(choice: dict[str, Any], *installed: str) -> list[str]:
    found: list[str] = probe("__nvidia_kernel_wanted", choice, *installed)
    return found


def test_each_package_has_one_version_and_no_other() -> None:
    pins = text("preferences.j2", DEBIAN)
    for name, version in (("libcuda1", "550.163.01-2"), (f"linux-headers-{KERNEL}", "6.12.118-1")):
        assert f"Package: {name}\nPin: version {version}\nPin-Priority: 1001\n" in pins
        # The first record that matches a version decides, so the order of the two matters.
        assert f"Pin-Priority: 1001\nPackage: {name}\nPin: version *\nPin-Priority: -1" in pins
    assert "Package: *nvidia*-550*\nPin: version 550.163.01-*\nPin-Priority: 1001" in pins


@pytest.mark.parametrize("choice", [DEBIAN, UBUNTU], ids=["debian", "ubuntu"])
def test_unattended_upgrades_get_nothing_of_the_set_nor_of_the_kernel(choice: dict[str, Any]) -> None:
    patterns = re.findall(r'^    "(.+)";$', text("unattended.conf.j2", choice), flags=re.MULTILINE)
    pinned = re.findall(r"^Package: ([^*\n]+)$", text("preferences.j2", choice), flags=re.MULTILINE)
    moved_by_upgrades = [
        "linux-image-aws",
        "linux-headers-6.14.0-1018-aws",
        "linux-image-cloud-amd64",
        "dkms",
    ]
    for name in [*pinned, *moved_by_upgrades, "nvidia-fabricmanager", "libnvidia-nscq"]:
        assert any(re.match(pattern, name) for pattern in patterns), name
    for name in ("openssl", "python3", "linux-libc-dev", "nvme-cli", "libc6"):
        assert not any(re.match(pattern, name) for pattern in patterns), name


def test_dkms_is_told_of_the_patch_in_its_own_words() -> None:
    """As bash reads it, and as DKMS then matches: ``[[ $kernel =~ $PATCH_MATCH ]]``."""
    conf = text("dkms.conf.j2", DEBIAN)
    assert 'PATCH[0]="pci-resize-resource.patch"' in conf
    match = re.search(r'PATCH_MATCH\[0\]="(.+)"', conf)
    assert match and re.match(match[1], KERNEL)
    assert text("dkms.conf.j2", UBUNTU) == ""


def test_the_repository_is_believed_by_one_key_only() -> None:
    assert "Signed-By: /usr/share/keyrings/ingot-nvidia.asc" in text("repository.sources.j2", UBUNTU)
    assert "Components" not in text("repository.sources.j2", UBUNTU)
    debian = text("repository.sources.j2", DEBIAN)
    assert "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" in debian
    assert "Components: contrib non-free non-free-firmware" in debian


def test_the_fabric_manager_is_for_nvswitch_alone_and_comes_before_what_serves() -> None:
    assert [one["unit"] for one in daemons_of(UBUNTU)] == [
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
        "ingot-nvidia-cdi.service",
    ]
    item = next(one for one in daemons_of(UBUNTU) if "fabric" in one["unit"])
    unit = text("daemon.conf.j2", UBUNTU, item=item)
    assert re.search(r"^ExecCondition=.*nvidia_node.py has nvswitch$", unit, flags=re.MULTILINE)
    assert re.search(r"^Before=.*vllm.service", unit, flags=re.MULTILINE)
    serving = text("serving.conf.j2", UBUNTU)
    assert "Requires=nvidia-fabricmanager.service" in serving
    assert "After=nvidia-persistenced.service nvidia-fabricmanager.service" in serving


def test_a_set_without_a_fabric_manager_names_none() -> None:
    assert [one["unit"] for one in daemons_of(DEBIAN)] == ["nvidia-persistenced.service"]
    assert "fabric" not in text("serving.conf.j2", DEBIAN)


def test_headers_are_installed_for_every_kernel_and_an_image_for_the_one_that_is_asked_for() -> None:
    wanted = wanted_of(DEBIAN, KERNEL.replace("118", "117"))
    assert wanted == [
        "linux-headers-6.12.117+deb13-cloud-amd64=6.12.117-1",
        f"linux-headers-{KERNEL}=6.12.118-1",
        f"linux-image-{KERNEL}=6.12.118-1",
        "dkms",
    ]
    # A set without pairs takes the kernel of the base image, in the version that it has.
    assert wanted_of(UBUNTU, "6.14.0-1018-aws") == ["linux-headers-6.14.0-1018-aws", "dkms"]


def test_mig_is_left_alone() -> None:
    for path in (ROOT / "roles/nvidia").rglob("*"):
        if path.is_file() and path.suffix in (".yml", ".j2", ".py"):
            assert not re.search(r"\bmig\b", path.read_text(), flags=re.IGNORECASE), path

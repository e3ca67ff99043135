"""Role base: what a user of the node relies on."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from testinfra.host import Host


@pytest.mark.install
def test_the_service_user_cannot_log_in(host: Host) -> None:
    user = host.user("ingot")
    assert user.shell == "/usr/sbin/nologin"
    assert user.home == "/var/lib/ingot"
    assert user.uid < 1000, "a system user: its id must not collide with people's"
    assert user.password in ("!", "!*", "*"), "the account must have no password"


@pytest.mark.install
@pytest.mark.parametrize(
    ("path", "owner", "mode"),
    [
        ("/opt/ingot/venvs", "root", 0o755),
        ("/opt/ingot/models", "root", 0o755),
        ("/var/cache/ingot", "ingot", 0o750),
        ("/var/lib/ingot", "ingot", 0o750),
        ("/etc/ingot/credentials", "root", 0o700),
        ("/usr/share/ingot", "root", 0o755),
    ],
)
def test_the_layout_has_the_right_owners(host: Host, path: str, owner: str, mode: int) -> None:
    directory = host.file(path)
    assert directory.is_directory
    assert (directory.user, directory.mode) == (owner, mode)


@pytest.mark.install
def test_the_service_user_can_write_its_cache_and_not_its_code(host: Host) -> None:
    def as_service(command: str) -> int:
        return int(host.run("runuser -u ingot -- sh -c %s", command).rc)

    assert as_service("touch /var/cache/ingot/.test && rm /var/cache/ingot/.test") == 0
    assert as_service("touch /opt/ingot/venvs/.test") != 0
    assert as_service("ls /etc/ingot/credentials") != 0


@pytest.mark.install
@pytest.mark.parametrize(
    "unit", ["apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service"]
)
def test_the_node_does_not_upgrade_itself(host: Host, unit: str) -> None:
    assert host.check_output("systemctl show --property=LoadState --value %s", unit) == "masked"
    assert host.check_output("systemctl show --property=ActiveState --value %s", unit) == "inactive"


@pytest.mark.install
def test_apt_waits_for_a_lock_that_another_one_holds(host: Host) -> None:
    """The cause of most failed bakes: unattended-upgrades holds the lock for a while at first boot."""
    assert host.check_output("apt-config shell WAIT DPkg::Lock::Timeout") == "WAIT='300'"
    held = host.run("flock /var/lib/dpkg/lock-frontend sleep 3 & sleep 1; apt-get install --yes procps; wait")
    assert held.rc == 0, held.stderr


@pytest.mark.install
def test_the_journal_survives_a_reboot(host: Host) -> None:
    identity = host.check_output("cat /etc/machine-id")
    assert host.file(f"/var/log/journal/{identity}").is_directory
    settings = host.check_output("systemd-analyze cat-config systemd/journald.conf")
    assert {"Storage=persistent", "SystemMaxUse=1G"} <= set(settings.splitlines())


@pytest.mark.install
def test_a_session_of_the_service_user_has_its_limits(host: Host) -> None:
    files, cores = host.check_output("runuser -u ingot -- sh -c 'ulimit -n; ulimit -H -c'").split()
    assert cores == "0", "a core dump holds keys and prompts"
    most = host.check_output("awk '/^Max open files/ {print $5}' /proc/1/limits")
    if int(most) < 1048576:
        pytest.skip(f"the machine's own init may open {most} files only")
    assert files == "1048576"


@pytest.mark.install
def test_time_comes_from_the_providers_own_server(host: Host) -> None:
    settings = host.check_output("systemd-analyze cat-config systemd/timesyncd.conf")
    assert "NTP=169.254.169.123" in settings.splitlines()


@pytest.mark.install
def test_cloud_init_will_not_undo_the_names(host: Host) -> None:
    assert host.file("/etc/cloud/cloud.cfg.d/95-ingot.cfg").contains("^manage_etc_hosts: false$")
    assert not host.file("/etc/hosts").contains(r"^127\.0\.1\.1")


@pytest.mark.configure
def test_the_nodes_name_is_its_private_address(host: Host) -> None:
    """Ray tells this address to the other nodes: loopback would lead them to themselves."""
    name = host.check_output("uname -n")
    answers = host.check_output("getent ahostsv4 %s", name).splitlines()
    addresses = {ip_address(line.split()[0]) for line in answers}
    own = {ip_address(address) for address in host.check_output("hostname --all-ip-addresses").split()}
    assert addresses and addresses <= own
    assert not any(address.is_loopback for address in addresses)


@pytest.mark.configure
def test_nothing_failed_while_booting(host: Host) -> None:
    assert host.check_output("systemctl list-units --state=failed --no-legend --plain") == ""

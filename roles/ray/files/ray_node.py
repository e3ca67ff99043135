"""Become a Ray node: check what `ray start` would only stumble over, then run it.

    ray_node.py head  --lock FILE -- ray start --head …
    ray_node.py worker --lock FILE --head ADDRESS:PORT -- ray start --address …
    ray_node.py publish --lock FILE --head ADDRESS:PORT     the head's lock hash, for workers to compare
    ray_node.py joined --address ADDRESS --head ADDRESS:PORT  wait until this node is alive in the cluster

Run with the Python of the environment that holds Ray. A refusal is one line that begins with
``ingot: refused:`` and ends with status 78, after which the unit does not restart: a wrong token or another
environment does not mend itself. A head that does not answer is waited for, and then tried again by systemd
(status 75).
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

EX_TEMPFAIL = 75
EX_CONFIG = 78
KEY = b"lock"
NAMESPACE = b"ingot"
SESSIONS_KEPT = 2  # the running one and the last one, for whoever looks into a failure
WAIT = 60.0
CALL_TIMEOUT = 10


def refuse(what: str, do: str) -> NoReturn:
    """End for good."""
    print(f"ingot: refused: {what}. Do: {do}", file=sys.stderr, flush=True)
    raise SystemExit(EX_CONFIG)


def read_lock(path: Path) -> str:
    """The hash that the environment was made from."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        refuse(
            f"{path} cannot be read ({error.strerror})", "launch from an image whose environment Ingot made"
        )


def ended(main: str) -> bool:
    """Whether the unit's main process (its id, or nothing) has ended.

    Of such a one the reason is its own last line, which nothing that runs beside it must follow.
    """
    return bool(main) and not Path("/proc", main).exists()


def wait_for_port(address: str, timeout: float = WAIT, main: str = "") -> None:
    """Wait until the head accepts connections: Ray's own client would need 40 s for every vain attempt."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=3).close()
        except OSError as error:
            if ended(main):
                raise SystemExit(EX_TEMPFAIL) from None
            if time.monotonic() >= deadline:
                print(f"ingot: the head {address} does not answer ({error})", file=sys.stderr, flush=True)
                raise SystemExit(EX_TEMPFAIL) from None
            time.sleep(1)
        else:
            return


def connect(address: str) -> Any:
    """A client of the head's GCS; a refused token ends here."""
    from ray._raylet import GcsClient
    from ray.exceptions import AuthenticationError

    try:
        return GcsClient(address=address)
    except AuthenticationError:
        refuse(
            f"the head {address} does not accept this node's Ray token",
            "put the head's token into /etc/ingot/credentials/ray-token (site.yml does) and restart the unit",
        )


def head_lock(client: Any, timeout: float = WAIT) -> str:
    """What the head published; it does so a moment after its port opens."""
    deadline = time.monotonic() + timeout
    while True:
        value: bytes | None = client.internal_kv_get(KEY, NAMESPACE, timeout=CALL_TIMEOUT)
        if value is not None:
            return value.decode()
        if time.monotonic() >= deadline:
            print("ingot: the head does not answer with its lock (is its unit ray-head?)", file=sys.stderr)
            raise SystemExit(EX_TEMPFAIL)
        time.sleep(1)


def compare(own: str, head: str, address: str) -> None:
    """One environment on all nodes: Ray itself compares only its own version and Python's."""
    if own != head:
        refuse(
            f"the environment of this node was made from lock {own} and the head's ({address}) from {head}",
            "launch both from the same image, or run site.yml against all nodes",
        )


def remove_old_sessions(root: Path) -> None:
    """Ray leaves the folder of every session behind; logs of the last one stay for the doctor."""
    sessions = sorted(root.glob("session_2*"), key=lambda path: path.name)
    for path in sessions[: 1 - SESSIONS_KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def become(command: list[str]) -> NoReturn:
    """Replace this process by Ray."""
    root = command[command.index("--temp-dir") + 1] if "--temp-dir" in command else None
    if root:
        remove_old_sessions(Path(root))
    sys.stderr.flush()
    os.execvp(command[0], command)


def publish(client: Any, lock: str) -> None:
    """Make the head's lock known."""
    client.internal_kv_put(KEY, lock.encode(), True, NAMESPACE, timeout=CALL_TIMEOUT)


def joined(client: Any, address: str, timeout: float = WAIT, main: str = "") -> None:
    """Wait until the cluster counts this node as alive, or until ``main`` has ended."""
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if ended(main):
            raise SystemExit(EX_TEMPFAIL)
        for node in client.get_all_node_info(timeout=CALL_TIMEOUT).values():
            if node.node_manager_address == address and node.state == GcsNodeInfo.ALIVE:
                return
        time.sleep(0.5)
    print(f"ingot: {address} has not joined the cluster after {timeout:.0f} s", file=sys.stderr, flush=True)
    raise SystemExit(EX_TEMPFAIL)


def outlive(main: str, timeout: float = WAIT) -> None:
    """Wait until ``main`` has ended.

    systemd judges by the main process's status whether a unit is started again. Were this process, which runs
    beside it, to fail first, the main one would be ended by a signal, and its refusal for good would be lost.
    """
    deadline = time.monotonic() + timeout
    while main and not ended(main) and time.monotonic() < deadline:
        time.sleep(0.2)


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and the command after ``--``."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", choices=["head", "worker", "publish", "joined"])
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--head", default="")
    parser.add_argument("--address", default="")
    own, command = split(sys.argv[1:])
    options = parser.parse_args(own)

    if options.step == "head":
        read_lock(options.lock)
        become(command)
    main_process = os.environ.get("MAINPID", "")  # systemd sets it for what runs after the start
    try:
        wait_for_port(options.head, main=main_process)
        client = connect(options.head)
    except SystemExit:
        outlive(main_process)
        raise
    if options.step == "joined":
        joined(client, options.address, main=main_process)
        return
    lock = read_lock(options.lock)
    if options.step == "publish":
        publish(client, lock)
        return
    compare(lock, head_lock(client), options.head)
    become(command)


if __name__ == "__main__":
    main()

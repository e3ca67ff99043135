"""Run an ansible-playbook command and demand that it changes nothing: ``changed=0`` on every host."""

from __future__ import annotations

import re
import subprocess
import sys

RECAP = re.compile(r"^(\S+)\s+:\s+ok=\d+\s+changed=(\d+)\s", re.MULTILINE)


def changed_hosts(output: str) -> dict[str, int]:
    """Tasks that changed something, by host, as the play recap counts them."""
    return {host: int(count) for host, count in RECAP.findall(output)}


def main(argv: list[str]) -> int:
    """Pass the command's output on; 1 when something changed or no host was reached."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode != 0:
        return process.returncode
    counts = changed_hosts("".join(lines))
    changed = [f"{host} ({count})" for host, count in counts.items() if count]
    if not counts or changed:
        print(f"changed on a second run: {', '.join(changed)}" if changed else "no host was reached")
        return 1
    print(f"nothing changed on {len(counts)} hosts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

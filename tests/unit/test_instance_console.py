"""The console of an instance, as boto3 gives it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from program import load

console = load(Path(__file__).resolve().parents[2] / "plugins/modules/instance_console.py")


class Client:
    def __init__(self, output: str | None) -> None:
        self.output = output

    def get_console_output(self, InstanceId: str) -> dict[str, str | None]:  # noqa: N803  (boto3's name)
        return {"InstanceId": InstanceId, "Output": self.output}


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        ("Debian GNU/Linux 13 login:", b"Debian GNU/Linux 13 login:"),
        (base64.b64encode(b"\xffkernel panic").decode(), b"\xffkernel panic"),
        (None, b""),
    ],
)
def test_it_is_kept_for_its_owner_alone(tmp_path: Path, output: str | None, kept: bytes) -> None:
    path = tmp_path / "console"
    assert console.keep(Client(output), "i-1", path) == len(kept)
    assert path.read_bytes() == kept
    assert path.stat().st_mode & 0o777 == 0o600

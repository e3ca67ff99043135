"""Role model_store: whole weights that the service user can read and cannot change."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

MODEL = "/opt/ingot/models/HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.mark.install
def test_every_file_has_the_hash_that_the_image_says(host: Host) -> None:
    facts = json.loads(host.file("/usr/share/ingot/facts.d/model_store.json").content_string)
    files = facts["HuggingFaceTB/SmolLM2-135M-Instruct"]["sha256"]
    assert "model.safetensors" in files
    for name, sha256 in files.items():
        assert host.file(f"{MODEL}/{name}").sha256sum == sha256, name


@pytest.mark.install
def test_the_service_user_can_read_and_not_write(host: Host) -> None:
    with host.sudo():
        read = host.run(f"runuser -u ingot -- cat {MODEL}/config.json")
        written = host.run(f"runuser -u ingot -- touch {MODEL}/config.json {MODEL}/new")
    assert json.loads(read.stdout)["model_type"] == "llama"
    assert written.rc != 0


@pytest.mark.install
def test_nothing_is_left_of_downloads(host: Host) -> None:
    with host.sudo():
        assert host.check_output("find /opt/ingot/models -path '*/.incoming/*' -type f") == ""
        assert host.check_output("find /opt/ingot/models -name '*.partial'") == ""

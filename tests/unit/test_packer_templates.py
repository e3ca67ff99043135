"""The templates are one text: what differs is found, and written anew."""

from __future__ import annotations

from pathlib import Path

import pytest

import packer_templates

SOURCE = """\
# The text of all.

locals {
  name = "x86" # of x86_64 machines
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    packer = tmp_path / "packer"
    packer.mkdir()
    (packer / "images.yml").write_text("images: {x86: {}, graviton3: {}}\n")
    (packer / "x86.pkr.hcl").write_text(SOURCE)
    return tmp_path


def test_only_the_name_and_the_head_differ(root: Path) -> None:
    assert packer_templates.main(["--check"], root) == 1  # it is not there
    assert packer_templates.main([], root) == 0
    written = (root / "packer/graviton3.pkr.hcl").read_text()
    assert written.endswith('\n\nlocals {\n  name = "graviton3" # of x86_64 machines\n}\n')
    assert written.startswith("# Bakes the image `graviton3`")
    assert packer_templates.main(["--check"], root) == 0
    assert (root / "packer/x86.pkr.hcl").read_text() == SOURCE


@pytest.mark.parametrize(("file", "change"), [("graviton3", "locals {"), ("x86", "locals {")])
def test_a_change_to_one_template_is_found(
    root: Path, file: str, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    packer_templates.main([], root)
    template = root / f"packer/{file}.pkr.hcl"
    template.write_text(template.read_text().replace(change, "locals { # mine"))
    capsys.readouterr()
    assert packer_templates.main(["--check"], root) == 1
    said = capsys.readouterr().out
    assert "packer/graviton3.pkr.hcl is not packer/x86.pkr.hcl with its own name" in said
    assert "# mine" in said


def test_a_source_that_names_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin with a comment"):
        packer_templates.text_of("graviton3", "locals {}\n")

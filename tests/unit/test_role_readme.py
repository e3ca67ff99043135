"""tools/role_readme.py: a role's table of variables comes from its argument specs and cannot drift."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import role_readme

SPECS = {
    "argument_specs": {
        "main": {
            "short_description": "Both phases.",
            "options": {
                "demo_user": {"type": "str", "default": "ingot", "description": ["Who | what", "runs it."]},
                "demo_key": {"type": "str", "required": True, "description": "Secret."},
                "demo_mode": {"type": "str", "choices": ["a", "b"], "default": "", "description": "Way."},
                "demo_big": {
                    "type": "list",
                    "elements": "int",
                    "default": list(range(40)),
                    "description": "Many.",
                },
                "demo_dirs": {
                    "type": "list",
                    "elements": "dict",
                    "default": [],
                    "description": "Directories.",
                    "options": {"path": {"type": "path", "required": True, "description": "Where."}},
                },
            },
        },
        "install": {"short_description": "Bake."},
    }
}


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    (tmp_path / "demo/meta").mkdir(parents=True)
    (tmp_path / "demo/meta/argument_specs.yml").write_text(yaml.safe_dump(SPECS, sort_keys=False))
    (tmp_path / "demo/README.md").write_text(
        f"# demo\n\n{role_readme.BEGIN}\n{role_readme.END}\n\n## Notes\n"
    )
    return tmp_path


def test_the_table_has_every_option_and_keeps_the_authors_text(roles: Path) -> None:
    assert role_readme.main([], roles) == 0
    page = (roles / "demo/README.md").read_text()
    assert page.startswith("# demo\n") and page.endswith("\n\n## Notes\n")
    for row in (
        "| `demo_user` | str | `ingot` | Who \\| what runs it. |",
        "| `demo_key` | str | *required* | Secret. |",
        '| `demo_mode` | str: `a`, `b` | `""` | Way. |',
        "| `demo_big` | list of int | see `defaults/main.yml` | Many. |",
        "| `demo_dirs[].path` | path | *required* | Where. |",
        "| `install` | Bake. |",
    ):
        assert row in page


def test_a_second_run_changes_nothing(roles: Path) -> None:
    role_readme.main([], roles)
    page = (roles / "demo/README.md").read_text()
    assert role_readme.main(["--check"], roles) == 0
    assert role_readme.main(["demo"], roles) == 0
    assert (roles / "demo/README.md").read_text() == page


def test_check_names_the_stale_page_and_leaves_it(roles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (roles / "demo/README.md").read_text()
    assert role_readme.main(["--check"], roles) == 1
    message = capsys.readouterr().err
    assert "demo/README.md is stale" in message and "+| `demo_user`" in message
    assert (roles / "demo/README.md").read_text() == page


def test_a_page_without_markers_is_refused_with_what_to_add(
    roles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (roles / "demo/README.md").write_text("# demo\n")
    assert role_readme.main([], roles) == 1
    assert role_readme.BEGIN in capsys.readouterr().err


def test_an_option_without_description_is_refused_by_name(
    roles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = {"argument_specs": {"main": {"short_description": "x", "options": {"demo_x": {"type": "str"}}}}}
    (roles / "demo/meta/argument_specs.yml").write_text(yaml.safe_dump(specs))
    assert role_readme.main([], roles) == 1
    assert "demo_x has no description" in capsys.readouterr().err

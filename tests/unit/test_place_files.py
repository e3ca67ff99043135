"""The module place_files: a program of several files comes to a machine in one run."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from program import load

FILES = {"main.py": "import package\n", "package/__init__.py": "", "package/part.py": "A = 'ä'\n"}


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load(Path(__file__).parents[2] / "plugins/modules/place_files.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lib/ingot"


def place(module: ModuleType, root: Path, files: dict[str, str] = FILES, *, check: bool = False) -> list[str]:
    """The names that were written."""
    result: dict[str, Any] = module.place(root, files, check_mode=check)
    assert [entry["after"] for entry in result["diff"]] == [files[name] for name in result["changed_files"]]
    assert result["changed"] or not result["changed_files"]
    written: list[str] = result["changed_files"]
    return written


def found(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_all_files_come_in_one_run_and_a_second_changes_nothing(module: ModuleType, root: Path) -> None:
    before = os.umask(0o077)
    try:
        assert place(module, root) == sorted(FILES)
    finally:
        os.umask(before)
    assert found(root) == FILES
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*.py")} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in (root.parent, root, root / "package")} == {0o755}
    assert module.place(root, FILES, check_mode=False)["changed"] is False


def test_what_was_changed_by_hand_alone_is_put_right(module: ModuleType, root: Path) -> None:
    place(module, root)
    (root / "main.py").write_text("import evil\n")
    (root / "package/part.py").chmod(0o666)
    (root / "package/part.pyc").touch()
    untouched = (root / "package/__init__.py").stat().st_ino
    assert place(module, root) == ["main.py", "package/part.py"]
    assert found(root) == {**FILES, "package/part.pyc": ""}
    assert (root / "package/part.py").stat().st_mode & 0o777 == 0o644
    assert (root / "package/__init__.py").stat().st_ino == untouched


def test_a_directory_that_others_may_write_is_a_change_too(module: ModuleType, root: Path) -> None:
    place(module, root)
    (root / "package").chmod(0o777)
    assert module.place(root, FILES, check_mode=True)["changed"] is True
    assert module.place(root, FILES, check_mode=False)["changed"] is True
    assert (root / "package").stat().st_mode & 0o777 == 0o755


def test_a_link_is_replaced_and_not_followed(module: ModuleType, root: Path, tmp_path: Path) -> None:
    root.mkdir(parents=True)
    target = tmp_path / "target"
    target.write_text(FILES["main.py"])
    (root / "main.py").symlink_to(target)
    assert "main.py" in place(module, root)
    assert not (root / "main.py").is_symlink()


def test_a_check_says_what_would_be_written_and_writes_nothing(module: ModuleType, root: Path) -> None:
    assert place(module, root, check=True) == sorted(FILES)
    assert not root.exists()
    place(module, root)
    changed = {**FILES, "main.py": "new\n"}
    diff = module.place(root, changed, check_mode=True)["diff"]
    assert [(entry["before"], entry["after"]) for entry in diff] == [(FILES["main.py"], "new\n")]
    assert found(root) == FILES


@pytest.mark.parametrize("name", ["../etc/passwd", "/etc/passwd", "a//b", ".hidden", "a/../../b", ""])
def test_a_name_that_leaves_the_directory_is_refused(module: ModuleType, root: Path, name: str) -> None:
    with pytest.raises(module.RefusedError, match="is refused: it would leave"):
        module.place(root, {"good.py": "", name: ""}, check_mode=False)
    assert not root.exists()

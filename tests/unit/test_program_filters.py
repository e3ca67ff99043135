"""What roles put on machines, as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ingot.filters.programs import texts


def test_each_file_has_the_name_that_it_has_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "package/more").mkdir(parents=True)
    for name in ("main.py", "package/a.py", "package/b.py", "package/b.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    assert texts(["main.py", "package/*.py"], str(tmp_path)) == {
        "main.py": "main.py\n",
        "package/a.py": "package/a.py\n",
        "package/b.py": "package/b.py\n",
    }


def test_a_pattern_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        AnsibleFilterError, match=r"no file matches lost\.py below .*: this checkout is not whole"
    ):
        texts(["lost.py"], str(tmp_path))

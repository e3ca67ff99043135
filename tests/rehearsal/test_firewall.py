"""A host whose firewall drops what it forwards, as Docker has it, lets the region's packets through."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

# In a network namespace of its own, so that the real host's firewall is left alone.
SCRIPT = """
import json, subprocess
from ingot.rehearsal.config import Settings
from ingot.rehearsal.network import Network, _nft, _ruleset

_nft('table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }')
_nft('table ip other { chain through { type filter hook forward priority 0; policy accept; }; }')
network = Network(Settings(name="firewall", cache="/nowhere"))
network._pass_firewall(3)
network._pass_firewall(3)
opened = _ruleset("rule")
network._close_firewall()
print(json.dumps({"opened": opened, "closed": _ruleset("rule")}))
"""


def test_rules_are_added_to_dropping_chains_and_removed() -> None:
    command = ["unshare", "--net", sys.executable, "-c", SCRIPT]
    answer: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert [rule["chain"] for rule in answer["opened"]] == ["FORWARD", "FORWARD"]
    matched = {rule["expr"][0]["match"]["left"]["meta"]["key"] for rule in answer["opened"]}
    assert matched == {"iifname", "oifname"}
    assert {rule["expr"][0]["match"]["right"] for rule in answer["opened"]} == {"ingot3"}
    assert answer["closed"] == []

"""Ask an HTTP server from a node: with its Python, since images carry no curl."""

from __future__ import annotations

import json
from typing import Any

from testinfra.host import Host

PROGRAM = """
import json, sys, urllib.error, urllib.request
url, headers, body, key_file = json.loads(sys.stdin.read())
if key_file:
    headers["Authorization"] = "Bearer " + open(key_file).readline().strip()
data = None if body is None else json.dumps(body).encode()
request = urllib.request.Request(url, headers=headers, data=data)
try:
    with urllib.request.urlopen(request, timeout=180) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
except OSError as error:
    print(json.dumps([0, str(error)]))
"""


def ask(host: Host, url: str, body: Any = None, *, key: str = "", key_file: str = "") -> tuple[int, Any]:
    """Status and content (parsed where it is JSON); status 0 when nobody answers.

    A key that works is the first line of a file on the node: what Ansible runs is in the journal.
    """
    sent = {"Content-Type": "application/json"}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    asked = json.dumps([url, sent, body, key_file])
    status, text = json.loads(host.check_output("printf %%s %s | python3 -c %s", asked, PROGRAM))
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text

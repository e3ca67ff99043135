"""What the playbooks print: lines of text from what EC2 and the nodes answered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ingot import instance_types

QUESTION = "What is the capital of France?"
"""What site.yml and `ingot rehearse` ask the endpoint."""

ANSWER = "Paris"
"""What an engine in order says of it, whatever its number format and batch."""


def question(model: str) -> dict[str, Any]:
    """The request for it. Bounded: a small model that is left to sample may go on for minutes."""
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": model, "messages": messages, "max_tokens": 32, "temperature": 0}


def text_of(reply: Mapping[str, Any]) -> str:
    """What the model said, in a reply as the module ask_endpoint gives it; else what came instead."""
    try:
        return str(reply["answer"]["choices"][0]["message"]["content"]).strip()
    except (KeyError, IndexError, TypeError):
        return str(reply.get("content", ""))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Left-aligned columns as wide as their widest cell."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def price(types: Sequence[str]) -> str:
    """The sum of list prices, or why there is none."""
    prices = [
        instance_types.load()[name].usd_hour if name in instance_types.load() else None for name in types
    ]
    known = [figure for figure in prices if figure is not None]
    if not known:
        return "price: not in files/instance-types.csv"
    total = (
        f"price: ${sum(known):.4f} an hour while they run ({instance_types.PRICE_BASIS}; volumes come on top)"
    )
    return (
        total
        if len(known) == len(prices)
        else f"{total}, without {len(prices) - len(known)} of unknown price"
    )


def planned(image: Mapping[str, Any], type_name: str, workers: int) -> list[str]:
    """What launch.yml says before it makes anything."""
    return [
        f"1 head and {workers} workers, {type_name}, of {image['image_id']} ({image['name']})",
        price([type_name] * (workers + 1)),
    ]


def launched(instances: Sequence[Mapping[str, Any]], image: Mapping[str, Any]) -> list[str]:
    """What launch.yml says at the end; instances of another image than the newest are marked."""
    rows = [
        (
            node["tags"].get("Name", ""),
            node["instance_id"],
            node["instance_type"],
            node["private_ip_address"],
            node.get("public_ip_address") or "-",
            node["image_id"] + ("" if node["image_id"] == image["image_id"] else " (not the newest)"),
        )
        for node in sorted(
            instances, key=lambda node: (node["tags"].get("ingot:role", ""), node["instance_id"])
        )
    ]
    return [
        *table(("name", "instance", "type", "private", "public", "image"), rows),
        price([node["instance_type"] for node in instances]),
        "next: ansible-playbook site.yml; to end it: ansible-playbook playbooks/destroy.yml",
    ]


def to_destroy(
    instances: Sequence[Mapping[str, Any]],
    templates: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    keys: Sequence[Mapping[str, Any]],
) -> list[str]:
    """What destroy.yml would remove, a line each; none when nothing is left."""
    lines = [
        f"instance {node['instance_id']} {node['tags'].get('Name', '')}"
        f" ({node['instance_type']}, {node['private_ip_address']}, {node['state']['name']})"
        for node in instances
    ]
    lines += [
        f"launch template {item['launch_template_id']} {item['launch_template_name']}" for item in templates
    ]
    lines += [f"security group {item['group_id']} {item['group_name']}" for item in groups]
    lines += [f"key pair {item['key_pair_id']} {item['key_name']}" for item in keys]
    return lines


def answered(
    nodes: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    endpoint: Mapping[str, str],
    answer: Mapping[str, Any],
) -> list[str]:
    """What site.yml says at the end. The command works as printed, wherever the gateway can be reached.

    ``endpoint`` is where it is (``ingot.certificates.Endpoint``).
    """
    rows = []
    for name in nodes:
        node = variables[name]
        role = "head" if "ray_head" in node["group_names"] else "worker"
        address = node["ansible_facts"]["default_ipv4"]["address"]
        rows.append((name, role, address, node.get("ec2_instance_type", "-")))
    model, key_file = variables[nodes[0]]["serving_model_id"], variables[nodes[0]]["ingot_api_key_file"]
    url, address, certificate = endpoint["url"], endpoint["address"], endpoint["certificate_file"]
    there = urlsplit(url)
    options, named = "", []
    if certificate:
        options += f" --cacert {certificate}"
        named += [
            f"certificate: {certificate}, until {endpoint['certificate_until']};"
            " clients that trust its issuer need no file"
        ]
    if there.hostname != address.lower():
        at = f"[{address}]" if ":" in address else address
        options += f" --connect-to {there.netloc}:{at}:{there.port}"
        named += [f"name: {there.hostname} must lead clients to {address}"]
    return [
        *table(("node", "role", "address", "type"), rows),
        f"endpoint: {url}/v1",
        *named,
        f"model: {model}",
        f"key: in {key_file}",
        f"asked: {QUESTION}",
        f"answered: {answer['choices'][0]['message']['content'].strip()}",
        f'try: curl -s{options} {url}/v1/chat/completions -H "Authorization: Bearer $(cat {key_file})"'
        f" -H 'Content-Type: application/json' -d '{json.dumps(question(model))}'",
    ]

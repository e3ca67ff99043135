"""What speaks against configuring a node, by what it says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ingot import images, sizing
from ingot.preflight import devices, fit, nccl, programs
from ingot.preflight.refusal import Refusal

MODELS = "/opt/ingot/models"
UNITS = frozenset(f"{name}.service" for name in ("ray-head", "ray-worker", "vllm", "ingot-serve", "haproxy"))
"""The units that Ingot runs: a port that one of them holds is not taken by somebody else."""


def refusals(
    probe: str,
    host: str,
    variables: Mapping[str, Any],
    ports: Mapping[str, str],
    minimum: Sequence[int],
    core: str,
) -> list[Refusal]:
    """What speaks against configuring one node, from its answer to ``playbooks/files/probe.sh``.

    ``ports`` maps each port that the node would listen on to who wants it.
    """
    answer = parse_probe(probe)
    model_id = variables["serving_model_id"]
    model = fit.catalog_of(variables).models[model_id]
    found = images.of_groups(variables["group_names"])
    assert found, "of a node of no image site.yml never comes to ask"
    image, made_of = found
    type_name = variables.get("ec2_instance_type", "")  # of a static inventory nothing is known
    needed, parts = fit.SPARE_BYTES, ["1 GiB to spare"]
    for path, size, part in (
        (f"{MODELS}/{model_id}", int(model.size * fit.SPARE), model_id),
        ("/opt/ingot/venvs/vllm", fit.VENV_BYTES, "virtual environment"),
    ):
        if path not in answer["paths"]:
            needed += size
            parts.append(part)
    return [
        *check_python(host, answer["python"], (minimum[0], minimum[1]), core),
        *fit.check_architecture(host, answer["machine"], image, made_of.architecture),
        *fit.check_core(f"{host} ({type_name})", type_name, image, made_of.core, images.load().cores),
        *devices.check_device(f"{host} ({type_name})", type_name, image, made_of, images.load().images),
        *devices.check_memory(
            host,
            type_name,
            made_of.accelerator,
            sizing.Host(int(answer["cores"]), int(answer["memory"])),
            model_id,
            model,
            variables,
        ),
        *(
            programs.check_programs(host, type_name, model_id, model, variables, answer["paths"])
            if made_of.accelerator == "neuron"
            else []
        ),
        *(
            nccl.check_efa(host, type_name, int(answer.get("efa", 0)))
            if int(variables.get("nccl_efa_engine_nodes", 1)) > 1
            else []
        ),
        *fit.check_disk(
            f"free space on the root disk of {host}", int(answer["disk"]), needed, " and ".join(parts)
        ),
        *check_ports(host, {int(port): who for port, who in ports.items()}, answer["ports"]),
    ]


def parse_probe(text: str) -> dict[str, Any]:
    """Read the answer of ``playbooks/files/probe.sh``: a ``key value`` a line."""
    answer: dict[str, Any] = {"ports": [], "paths": []}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if key == "port":
            port, process, unit = (*value.split(" "), "", "")[:3]
            answer["ports"].append({"port": port, "process": process, "unit": unit})
        elif key == "path":
            answer["paths"].append(value)
        elif key:
            answer[key] = value
    return answer


def check_python(host: str, found: str, minimum: tuple[int, int], core: str) -> list[Refusal]:
    """Modules of this ansible-core run on the node's Python. ``found`` is ``3.13``, or empty."""
    need = ".".join(map(str, minimum))
    if not found:
        return [
            Refusal(
                "no-python",
                f"{host} has no /usr/bin/python3",
                f"Install python3 (>= {need}) there, or launch the node from an Ingot image",
            )
        ]
    if tuple(int(part) for part in found.split(".")[:2]) >= minimum:
        return []
    return [
        Refusal(
            "python-too-old",
            f"{host} has Python {found}; the modules of ansible-core {core} need {need} or newer",
            "Launch it from an Ingot image, or install a newer Python and set ansible_python_interpreter",
        )
    ]


def check_ports(host: str, wanted: Mapping[int, str], held: Iterable[Mapping[str, str]]) -> list[Refusal]:
    """``held`` has a record for each listening socket: port, process, unit."""
    refusals = []
    for record in held:
        port = int(record["port"])
        if port in wanted and record["unit"] not in UNITS:
            refusals.append(
                Refusal(
                    "port-taken",
                    f"port {port} of {host}, wanted by {wanted[port]}, is held by {record['process']}"
                    f" ({record['unit'] or 'no unit'})",
                    "Stop it there, or choose another port",
                )
            )
    return list(dict.fromkeys(refusals))

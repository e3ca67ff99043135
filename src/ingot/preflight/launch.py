"""What speaks against a launch, before anything is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingot import accelerators, instance_types, sizing, values
from ingot import images as images_table
from ingot.preflight import ami, devices, engine, fit, formats
from ingot.preflight.fit import GIB
from ingot.preflight.refusal import Refusal
from ingot.preflight.variables import refusals as check_variables


def refusals(
    variables: Mapping[str, Any], images: Sequence[Mapping[str, Any]], subnets: Sequence[Mapping[str, Any]]
) -> list[Refusal]:
    """``images`` and ``subnets`` are what EC2 found for what was asked."""
    tables = [*images_table.check_catalog(), *fit.check_catalog(variables)]
    if found := [*check_variables(variables), *tables]:
        return found  # the rest reads them
    catalog = fit.catalog_of(variables)
    type_name = str(variables["launch_instance_type"])
    found = [
        *check_cidr("launch_ssh_cidr", variables["launch_ssh_cidr"]),
        *check_cidr("launch_client_cidr", variables["launch_client_cidr"]),
        *check_instance_type(type_name),
        *fit.check_model_id(variables["serving_model_id"], catalog),
    ]
    if not subnets:
        found.append(
            Refusal(
                "no-subnet",
                f"there is no subnet {variables['launch_subnet_id'] or 'in a default VPC'}",
                "Set launch_subnet_id to one of this region (AWS_REGION)",
            )
        )
    if not images:
        known = images_table.load().images
        template = variables["launch_image"] if variables["launch_image"] in known else "<image>"
        asked = variables["launch_image_id"] or f"tagged ingot:image={variables['launch_image']}"
        found.append(
            Refusal(
                "no-image",
                f"this account has no image {asked} in this region",
                f"Bake it (packer build packer/{template}.pkr.hcl), or set launch_image_id",
            )
        )
    if found:
        return found
    image = max(images, key=lambda candidate: str(candidate["creation_date"]))
    if "ingot:image" not in image["tags"]:
        return [
            Refusal(
                "not-an-ingot-image",
                f"image {image['image_id']} ({image['name']}) has no tag ingot:image",
                "Bake one (packer build packer/x86.pkr.hcl) and launch that",
            )
        ]
    chosen = instance_types.get(type_name)
    cores = images_table.load().cores
    made_from = image["tags"]["ingot:image"]
    # One of an older bake has no such tag.
    compiled_for = image["tags"].get("ingot:core", cores.get(made_from, ""))
    table = images_table.load().images
    row = table.get(made_from)  # none of an image that the table had once
    accelerator = row.accelerator if row else ""
    model_id = variables["serving_model_id"]
    model = catalog.models[model_id]
    what = f"instance type {type_name}"
    named = f"{image['image_id']} ({made_from})"
    volume = int(variables["launch_volume_gib"]) * GIB
    image_volume = max(
        (int(device["ebs"].get("volume_size") or 0) for device in image["block_device_mappings"]), default=0
    )
    return [
        *ami.check_ami(image, imdsv2_only=True),
        *fit.check_architecture(what, chosen.arch, image["image_id"], image["architecture"]),
        *fit.check_core(what, type_name, named, compiled_for, cores),
        *(devices.check_device(what, type_name, named, row, table) if row else []),
        *(
            (engine.check(named, row, variables) if row else [])
            or formats.check(what, type_name, accelerator, model_id, model, variables)
        ),
        *devices.check_memory(
            what,
            type_name,
            accelerator,
            sizing.Host(chosen.vcpu, chosen.memory_bytes),
            model_id,
            model,
            variables,
        ),
        *fit.check_disk(
            "launch_volume_gib", volume, image_volume * GIB, f"the image's own volume: {image['image_id']}"
        ),
        *fit.check_disk(
            "launch_volume_gib",
            volume,
            fit.disk_needed(model.size),
            f"system, virtual environment, {model_id}, and some to spare",
        ),
    ]


def check_instance_type(name: str) -> list[Refusal]:
    if why := accelerators.unsupported(name):
        return [
            Refusal(
                "unsupported-accelerator",
                f"no image is for the accelerator of {name}: {why}",
                "Choose a type of another family; files/accelerators.yml has those that are supported",
            )
        ]
    try:
        instance_types.get(name)
    except instance_types.UnknownInstanceType as error:
        return [
            Refusal(
                "unknown-instance-type",
                str(error),
                "Set launch_instance_type to one of files/instance-types.csv (a new type is one line there)",
            )
        ]
    return []


def check_cidr(name: str, cidr: str) -> list[Refusal]:
    """Who may reach the cluster is said, not assumed."""
    if not cidr:
        return [
            Refusal(
                "no-cidr",
                f"{name} is empty, so that nobody could reach the nodes",
                f"Set {name} to the network that you come from, such as your own address followed by /32",
            )
        ]
    if cidr in values.EVERYWHERE:
        return [
            Refusal(
                "open-to-the-world",
                f"{name} is {cidr}",
                "Name a network: a VPN's, an office's, or your own address followed by /32",
            )
        ]
    return []

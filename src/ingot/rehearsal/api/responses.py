"""How EC2 calls are read and answered where moto's own handlers drop parameters or invent the answer."""

from __future__ import annotations

import base64
from copy import copy
from typing import Any, cast

from moto.core.responses import ActionResult, EmptyResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2.responses import EC2Response
from moto.ec2.utils import convert_tag_spec

from ingot.rehearsal.api import errors
from ingot.rehearsal.api.backend import LaunchOptions, launching


class LocalResponse(EC2Response):
    """The handlers of one EC2 call."""

    def run_instances(self) -> ActionResult:
        max_count = self._get_int_param("MaxCount") or 1
        if max_count < int(self._get_param("MinCount", 1)):
            raise errors.invalid_value(
                "Invalid value for maxCount: it must be greater than or equal to minCount"
            )
        options = LaunchOptions(
            max_count=max_count,
            client_token=self._get_param("ClientToken"),
            disable_api_termination=bool(self._get_bool_param("DisableApiTermination", False)),
        )
        with launching(options):
            return super().run_instances()

    def _parse_block_device_mapping(self) -> list[dict[str, Any]]:
        """All of a mapping; moto drops the throughput and refuses one that leaves the size to the image."""
        mappings: list[dict[str, Any]] = self._get_param("BlockDeviceMappings", [])
        for mapping in mappings:
            if not mapping.get("DeviceName"):
                raise errors.missing_parameter("deviceName")
        return mappings

    def delete_key_pair(self) -> ActionResult:
        """By its id too; moto takes the name only, and says true to the rest."""
        self.error_on_dryrun()
        name, pair_id = self._get_param("KeyName"), self._get_param("KeyPairId")
        if name is None:
            pairs = self.ec2_backend.key_pairs.values()
            name = next((pair.key_name for pair in pairs if pair.id == pair_id), None)
        if name is None:
            raise errors.key_pair_not_found(str(pair_id))
        deleted = self.ec2_backend.delete_key_pair(name)
        return ActionResult({"Return": True, "KeyPairId": deleted.id if deleted else None})

    def stop_instances(self) -> ActionResult:
        self.error_on_dryrun()
        force = bool(self._get_bool_param("Force", False))
        stopped = self.ec2_backend.stop_instances(self._get_param("InstanceIds", []), force=force)
        return ActionResult({"StoppingInstances": _changes(stopped)})

    def start_instances(self) -> ActionResult:
        self.error_on_dryrun()
        started = self.ec2_backend.start_instances(self._get_param("InstanceIds", []))
        return ActionResult({"StartingInstances": _changes(started)})

    def terminate_instances(self) -> ActionResult:
        """moto says shutting-down also of what ended long ago."""
        instances = self.ec2_backend.get_multi_instances_by_id(self._get_param("InstanceIds", []))
        before = [(instance, copy(instance.instance_state)) for instance in instances]
        super().terminate_instances()
        return ActionResult({"TerminatingInstances": _changes(before)})

    def describe_snapshots(self) -> ActionResult:
        """moto shows those of all accounts, whichever owner is asked for."""
        owners = {
            self.current_account if owner == "self" else owner for owner in self._get_param("OwnerIds", [])
        }
        snapshots = self.ec2_backend.describe_snapshots(
            snapshot_ids=self._get_param("SnapshotIds", []), filters=self._filters_from_querystring()
        )
        wanted = [snapshot for snapshot in snapshots if not owners or snapshot.owner_id in owners]
        return ActionResult({"Snapshots": wanted})

    def create_image(self) -> ActionResult:
        self.error_on_dryrun()
        image = self.ec2_backend.create_image(
            self._get_param("InstanceId"),
            self._get_param("Name"),
            self._get_param("Description", ""),
            tag_specifications=self._get_param("TagSpecifications", []),
            no_reboot=bool(self._get_bool_param("NoReboot", False)),
        )
        return ActionResult({"ImageId": image.id})

    def copy_image(self) -> ActionResult:
        """moto drops the tags."""
        result = super().copy_image()
        image_id = cast("dict[str, str]", result.result)["ImageId"]
        image = self.ec2_backend.describe_images(ami_ids=[image_id])[0]
        tags = convert_tag_spec(self._get_param("TagSpecifications", []))
        image.add_tags(tags.get("image", {}))
        image.ebs_snapshot.add_tags(tags.get("snapshot", {}))
        return result

    def deregister_image(self) -> ActionResult:
        """moto ignores DeleteAssociatedSnapshots."""
        images = self.ec2_backend.describe_images(ami_ids=[self._get_param("ImageId")])
        result = super().deregister_image()
        if self._get_bool_param("DeleteAssociatedSnapshots", False):
            for image in images:
                self.ec2_backend.delete_snapshot(image.ebs_snapshot.id)
        return result

    def attach_volume(self) -> ActionResult:
        raise errors.no_data_volumes(self._get_param("Device"))

    def modify_image_attribute(self) -> ActionResult:
        """ImdsSupport and Description too; moto takes launch permissions only and says true to the rest."""
        imds_support = self._get_param("ImdsSupport.Value")
        description = self._get_param("Description.Value")
        if imds_support is None and description is None:
            return super().modify_image_attribute()
        self.error_on_dryrun()
        image = self.ec2_backend.describe_images(ami_ids=[self._get_param("ImageId")])[0]
        if imds_support is not None:
            if imds_support != "v2.0":
                raise errors.invalid_value(
                    f"Value ({imds_support}) for imdsSupport is invalid. Expected: 'v2.0'."
                )
            image.imds_support = imds_support
        if description is not None:
            image.description = description
        return EmptyResult()

    def delete_launch_template_versions(self) -> ActionResult:
        """Not in moto."""
        self.error_on_dryrun()
        name, template_id = self._get_param("LaunchTemplateName"), self._get_param("LaunchTemplateId")
        find = self.ec2_backend.get_launch_template_by_name if name else self.ec2_backend.get_launch_template
        template = find(name or template_id)
        deleted = [
            {
                "LaunchTemplateId": template.id,
                "LaunchTemplateName": template.name,
                "VersionNumber": version.number,
            }
            for version in template.delete_versions(self._get_param("Versions", []))
        ]
        return ActionResult({"SuccessfullyDeletedLaunchTemplateVersions": deleted})

    def get_console_output(self) -> ActionResult:
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        console = instance.region.host.console(instance.id)
        result = {
            "InstanceId": instance.id,
            "Timestamp": utcnow(),
            "Output": Base64EncodedString.from_encoded_bytes(base64.b64encode(console)),
        }
        return ActionResult(result)


def _changes(instances: list[Any]) -> list[dict[str, Any]]:
    return [
        {"InstanceId": instance.id, "CurrentState": instance.instance_state, "PreviousState": previous}
        for instance, previous in instances
    ]

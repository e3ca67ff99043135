"""moto's EC2 with the parts replaced that would otherwise answer without a machine behind the answer."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from moto.ec2 import urls
from moto.ec2.exceptions import InvalidLaunchTemplateNameAlreadyExistsError
from moto.ec2.models import EC2Backend
from moto.ec2.models.amis import Ami
from moto.ec2.models.instances import Instance, MetadataOptions, Reservation
from moto.ec2.utils import convert_tag_spec

from ingot.rehearsal.api import errors, images
from ingot.rehearsal.api.catalogue import InstanceSize, instance_size
from ingot.rehearsal.api.images import LocalAmi, RootVolume
from ingot.rehearsal.api.instances import LocalInstance
from ingot.rehearsal.api.templates import LocalLaunchTemplate
from ingot.rehearsal.model import MachineError, MachineState, NoCapacity

log = logging.getLogger(__name__)

METADATA_TAG_KEY = re.compile(r"[0-9a-zA-Z\-_+=,.@:]{1,255}")
USER_DATA_LIMIT = 16384  # bytes, before base64


@dataclass
class LaunchOptions:
    """What RunInstances says and moto's handler does not hand on."""

    max_count: int | None = None
    client_token: str | None = None
    disable_api_termination: bool = False


launch_options: ContextVar[LaunchOptions | None] = ContextVar("launch_options", default=None)


@contextmanager
def launching(options: LaunchOptions) -> Iterator[None]:
    """Make ``options`` known to the ``run_instances`` inside the block."""
    token = launch_options.set(options)
    try:
        yield
    finally:
        launch_options.reset(token)


@dataclass
class LaunchPlan:
    """A launch with the launch template merged in and everything looked up."""

    image: LocalAmi
    size: InstanceSize
    key_name: str | None
    mappings: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    template_profile: dict[str, str] = field(default_factory=dict)


class LocalBackend(EC2Backend):
    """EC2 of the local region. ``region`` is set by ``Region.attach`` and never stored."""

    region: Any = None

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.frozen_layers: set[Path] = set()
        self.client_tokens: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "region"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A subnet keeps its place among the free addresses in a cache of moto's that is not stored. It starts
        # from the first again, skipping those in use, but not the router's and the two that AWS keeps.
        for subnets in self.subnets.values():
            for subnet in subnets.values():
                subnet._reserved_ips |= subnet.aws_reserved_ips

    @property
    def _url_module(self) -> Any:
        # moto finds the routes of a backend by the name of its module
        return urls

    def create_launch_template(
        self, name: str, description: str, template_data: dict[str, Any], tag_spec: dict[str, Any]
    ) -> LocalLaunchTemplate:
        if name in self.launch_template_name_to_ids:
            raise InvalidLaunchTemplateNameAlreadyExistsError()
        template = LocalLaunchTemplate(self, name, template_data, description, tag_spec)  # type: ignore[abstract]
        self.launch_templates[template.id] = template
        self.launch_template_name_to_ids[template.name] = template.id
        self.launch_template_insert_order.append(template.id)
        return template

    # -- instances ---------------------------------------------------------------------------------------

    def run_instances(
        self, image_id: str, count: int, user_data: Any, security_group_names: list[str], **kwargs: Any
    ) -> Reservation:
        """Book instances as moto does, after EC2's checks, and boot their machines.

        Reached by RunInstances and by whatever launches inside moto: autoscaling groups, fleets, spot
        requests.
        """
        if self.region is None:
            raise errors.unsupported(
                f"The local EC2 has machines in one region only, not in {self.region_name}"
            )
        options = launch_options.get() or LaunchOptions(max_count=count)
        if options.client_token and options.client_token in self.client_tokens:
            # A client that retries gets the answer to its first call: EC2's idempotency.
            return self.reservations[self.client_tokens[options.client_token]]
        plan = self._plan(image_id, user_data, kwargs)
        kwargs |= {
            "block_device_mappings": _plain_mappings(plan.mappings),
            "metadata_options": plan.metadata,
            "disable_api_termination": options.disable_api_termination,
        }
        wanted = max(options.max_count or count, count)
        reservation = super().run_instances(image_id, wanted, user_data, security_group_names, **kwargs)
        self._attach_profile(reservation, plan, kwargs)
        self._boot(reservation, plan, minimum=count)
        if options.client_token:
            self.client_tokens[options.client_token] = reservation.id
        self.region.changed()
        return reservation

    def _plan(self, image_id: str, user_data: Any, kwargs: dict[str, Any]) -> LaunchPlan:
        template: dict[str, Any] = {}
        if kwargs.get("launch_template"):
            template = self._get_template_from_args(kwargs["launch_template"]).data
        self._merge_template(template, kwargs)
        image = self._launchable_image(image_id or template.get("ImageId", ""))
        type_name: str = kwargs["instance_type"]
        if kwargs.get("is_instance_type_default"):
            type_name = template.get("InstanceType", type_name)
        size = instance_size(type_name)
        size.require(str(image.architecture))
        key_name = kwargs.get("key_name") or template.get("KeyName")
        if key_name and key_name not in self.key_pairs:
            raise errors.key_pair_not_found(key_name)
        script = user_data if user_data is not None else template.get("UserData")
        if script is not None and len(base64.b64decode(str(script))) > USER_DATA_LIMIT:
            raise errors.invalid_value(f"User data is limited to {USER_DATA_LIMIT} bytes")
        self._require_network(kwargs)
        metadata = template.get("MetadataOptions", {}) | (kwargs.get("metadata_options") or {})
        # IMDSv2 is the only one spoken here, so that is what DescribeInstances says, whatever was asked for.
        metadata["HttpTokens"] = "required"
        if metadata.get("InstanceMetadataTags") == "enabled":
            _check_tag_keys(kwargs["tags"]["instance"])
        mappings = _merged_mappings(
            image.block_device_mappings,
            template.get("BlockDeviceMappings", []),
            kwargs.get("block_device_mappings", []),
        )
        _check_devices(image, mappings)
        return LaunchPlan(image, size, key_name, mappings, metadata, template.get("IamInstanceProfile") or {})

    def _merge_template(self, template: dict[str, Any], kwargs: dict[str, Any]) -> None:
        """What moto leaves out of a launch template: interfaces, shutdown behaviour, volume tags."""
        if not kwargs.get("nics") and template.get("NetworkInterfaces") and not kwargs.get("subnet_id"):
            kwargs["nics"] = deepcopy(template["NetworkInterfaces"])
        if not kwargs.get("instance_initiated_shutdown_behavior"):
            kwargs["instance_initiated_shutdown_behavior"] = template.get("InstanceInitiatedShutdownBehavior")
        tags = convert_tag_spec(template.get("TagSpecifications", []))
        asked = kwargs.get("tags") or {}
        kwargs["tags"] = {
            kind: tags.get(kind, {}) | asked.get(kind, {}) for kind in {"instance", "volume", *tags, *asked}
        }

    def _attach_profile(self, reservation: Reservation, plan: LaunchPlan, kwargs: dict[str, Any]) -> None:
        """moto gives the profile of a request to the first instance only, and that of a template to none."""
        name, arn = kwargs.get("iam_instance_profile_name"), kwargs.get("iam_instance_profile_arn")
        missing = reservation.instances[1:] if name or arn else reservation.instances
        name, arn = name or plan.template_profile.get("Name"), arn or plan.template_profile.get("Arn")
        if name or arn:
            for instance in missing:
                self.associate_iam_instance_profile(
                    instance.id, iam_instance_profile_name=name, iam_instance_profile_arn=arn
                )

    def _launchable_image(self, image_id: str) -> LocalAmi:
        if not image_id:
            raise errors.missing_parameter("ImageId")
        if not image_id.startswith("ami-"):
            raise errors.image_malformed(image_id)
        image = self.amis.get(image_id)
        if not isinstance(image, LocalAmi):
            raise errors.image_not_found(image_id)
        if image.state != "available":
            raise errors.image_unavailable(image_id, image.state)
        return image

    def _require_network(self, kwargs: dict[str, Any]) -> None:
        if not kwargs.get("subnet_id") and not kwargs.get("nics"):  # moto would take an address from anywhere
            subnets = self.get_default_subnets()
            zone = kwargs.get("placement") or min(subnets)
            if zone not in subnets:
                raise errors.invalid_value(f"Invalid availability zone: [{zone}]")
            kwargs["subnet_id"] = subnets[zone].id
        subnet_ids = [kwargs.get("subnet_id"), *(n.get("SubnetId") for n in kwargs.get("nics") or [])]
        for subnet_id in filter(None, subnet_ids):
            if self.get_subnet(subnet_id).vpc_id != self.default_vpc.id:
                raise errors.unsupported(
                    f"Subnet {subnet_id}: only the default VPC {self.default_vpc.id} "
                    f"({self.default_vpc.cidr_block}) has a network on the local EC2"
                )

    def _boot(self, reservation: Reservation, plan: LaunchPlan, minimum: int) -> None:
        """Start the machines; without capacity for ``minimum`` of them none stays, as on EC2."""
        key = self.key_pairs.get(plan.key_name) if plan.key_name else None
        public_key = f"{key.public_key.strip()}" if key else None
        for instance in reservation.instances:
            ours = LocalInstance.adopt(instance, plan.image.layers, public_key)
            ours.key_name = plan.key_name
            _mend_volumes(ours, plan.mappings)
        instances = cast("list[LocalInstance]", reservation.instances)
        for number, instance in enumerate(list(instances)):
            try:
                instance.boot()
            except NoCapacity as error:
                for other in instances[number:]:
                    self._unbook(other)
                del instances[number:]
                if number >= minimum:
                    return
                for other in instances:
                    other.terminate()
                if not instances:
                    del self.reservations[reservation.id]
                raise errors.insufficient_capacity(str(error)) from error

    def _unbook(self, instance: LocalInstance) -> None:
        """Take back an instance that never had a machine: its address, interfaces, volumes and tags."""
        Instance.terminate(instance)
        instance.layers = ()
        self.tags.pop(instance.id, None)

    def forget_instance(self, instance: LocalInstance) -> None:
        """Let a terminated instance disappear from the answers."""
        self.tags.pop(instance.id, None)
        for reservation in list(self.reservations.values()):
            if instance in reservation.instances:
                reservation.instances = [i for i in reservation.instances if i is not instance]
                if not reservation.instances:
                    del self.reservations[reservation.id]
                    self.client_tokens = {
                        token: known for token, known in self.client_tokens.items() if known != reservation.id
                    }

    def stop_instances(self, instance_ids: list[str], force: bool = False) -> list[Any]:
        if not force:
            return super().stop_instances(instance_ids)
        instances = cast("list[LocalInstance]", self.get_multi_instances_by_id(instance_ids))
        return [(instance, instance.stop(force=True)) for instance in instances]

    def modify_instance_attribute(self, instance_id: str, key: str, value: Any) -> Instance:
        """What a machine cannot follow is refused: its limits are those that it was made with."""
        if key == "instance_type":
            size = instance_size(value)
            raise errors.unsupported(
                f"{instance_id} cannot become {size.name}: the local EC2 keeps the type of an instance; "
                "launch another one from an image of it"
            )
        return super().modify_instance_attribute(instance_id, key, value)

    def modify_instance_metadata_options(
        self,
        instance_id: str,
        http_tokens: str | None = None,
        hop_limit: int | None = None,
        http_endpoint: str | None = None,
        dry_run: bool | None = False,
        http_protocol: str | None = None,
        metadata_tags: str | None = None,
    ) -> MetadataOptions:
        """Change what was said and keep the rest; moto sets everything else back to its default."""
        current = self.get_instance(instance_id).metadata_options
        if http_tokens == "optional":
            raise errors.unsupported("The local EC2 speaks IMDSv2 only: HttpTokens cannot be 'optional'")
        asked = {
            "http_put_response_hop_limit": hop_limit,
            "http_endpoint": http_endpoint,
            "http_protocol_ipv6": http_protocol,
            "instance_metadata_tags": metadata_tags,
        }
        for name, value in asked.items():
            if value is not None:
                setattr(current, name, value)
        self.region.changed()
        return current

    # -- images ------------------------------------------------------------------------------------------

    def create_image(
        self,
        instance_id: str,
        name: str,
        description: str,
        tag_specifications: list[dict[str, Any]],
        no_reboot: bool = False,
    ) -> Ami:
        """Freeze the root of an instance into a new AMI, in the background.

        moto answers 500 to a ``TagSpecification`` for snapshots, which Packer always sends.
        """
        instance = cast("LocalInstance", self.get_instance(instance_id))
        images.check_name(name, self.amis.values(), self.account_id)
        if instance.now not in (MachineState.RUNNING, MachineState.STOPPED):
            raise errors.incorrect_instance_state(
                f"The instance '{instance_id}' is not in a state from which an image can be created: "
                f"{instance.state}"
            )
        tags = convert_tag_spec(tag_specifications)
        for kind in tags:
            if kind not in ("image", "snapshot"):
                raise errors.invalid_value(
                    f"'{kind}' is not a valid taggable resource type for this operation."
                )
        image = images.image_of_instance(self, instance, name, description, _root_volume(instance))
        image.add_tags(tags.get("image", {}))
        image.ebs_snapshot.add_tags(tags.get("snapshot", {}))
        reboot = instance.now is MachineState.RUNNING and not no_reboot
        self.region.queues.submit(instance_id, lambda: self._freeze(instance, image, reboot=reboot))
        return image

    def _freeze(self, instance: LocalInstance, image: LocalAmi, *, reboot: bool) -> None:
        host = self.region.host
        try:
            if reboot:
                host.stop(instance.id)
            layers = host.freeze(instance.id, image.ebs_snapshot.id)
        except (MachineError, NoCapacity, OSError) as error:
            log.error("CreateImage %s of %s: %s", image.id, instance.id, error)
            with self.region.lock:
                image.fail(str(error))
        else:
            with self.region.lock:
                self.frozen_layers |= set(layers) - set(instance.layers)
                image.complete(layers)
                # A stopped machine goes on above the layer that its root has become.
                if instance.alive:
                    instance.layers = tuple(dict.fromkeys((*layers, *instance.layers)))
        finally:
            if reboot:
                self._restart(instance)
            with self.region.lock:
                self.region.changed()

    def _restart(self, instance: LocalInstance) -> None:
        try:
            self.region.host.start(instance.id)
        except (MachineError, NoCapacity) as error:
            log.error("restart of %s after CreateImage: %s", instance.id, error)

    def copy_image(
        self,
        source_image_id: str,
        source_region: str,
        name: str | None = None,
        description: str | None = None,
    ) -> Ami:
        if source_region != self.region_name:
            raise errors.unsupported(
                f"The local EC2 has images in {self.region_name} only, not in {source_region}"
            )
        source = self._launchable_image(source_image_id)
        name = images.check_name(name, self.amis.values(), self.account_id)
        return images.image_copy(self, source, name, description)

    def register_image(self, name: str | None = None, description: str | None = None) -> Ami:
        raise errors.unsupported("RegisterImage: on the local EC2 images come from CreateImage and CopyImage")

    def delete_snapshot(self, snapshot_id: str) -> Any:
        snapshot = super().delete_snapshot(snapshot_id)
        self.tags.pop(snapshot_id, None)
        self.region.discard_unused_layers()
        return snapshot

    # -- keys --------------------------------------------------------------------------------------------

    def create_key_pair(self, name: str, key_type: str, tags: dict[str, str]) -> Any:
        """As moto's; the private key is kept, so that ``ingot local ssh`` can use it."""
        pair = super().create_key_pair(name, key_type, tags)
        if self.region is not None:
            self.region.keys.write(name, pair.key_material)
        return pair

    def delete_key_pair(self, name: str) -> Any:
        if self.region is not None:
            self.region.keys.remove(name)
        return super().delete_key_pair(name)


def _merged_mappings(*sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Block devices of image, template and request; a later source overrides an earlier one by name."""
    merged: dict[str, dict[str, Any]] = {}
    for source in sources:
        for mapping in source:
            name = mapping["DeviceName"]
            if mapping.get("NoDevice") is not None:
                merged.pop(name, None)
                continue
            ebs = {key: value for key, value in (mapping.get("Ebs") or {}).items() if value is not None}
            merged[name] = {"DeviceName": name, "Ebs": merged.get(name, {}).get("Ebs", {}) | ebs}
    return list(merged.values())


def _plain_mappings(mappings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without type and rates, which moto checks against each other before it forgets half of them."""
    dropped = ("VolumeType", "Iops", "Throughput")
    return [
        {
            "DeviceName": mapping["DeviceName"],
            "Ebs": {key: value for key, value in mapping["Ebs"].items() if key not in dropped},
        }
        for mapping in mappings
    ]


def _check_tag_keys(tags: dict[str, str]) -> None:
    """The metadata service cannot show every key that a tag may have: EC2 refuses the launch then."""
    for key in tags:
        if not METADATA_TAG_KEY.fullmatch(key) or key in (".", "..", "_index"):
            raise errors.invalid_value(
                f"'{key}' is not a valid tag key. Tag keys must match pattern "
                "([0-9a-zA-Z\\-_+=,.@:]{1,255}), and must not be a reserved name ('.', '..', '_index')"
            )


def _check_devices(image: LocalAmi, mappings: list[dict[str, Any]]) -> None:
    for mapping in mappings:
        if mapping["DeviceName"] != image.root_device_name:
            raise errors.no_data_volumes(mapping["DeviceName"])
        size = mapping["Ebs"].get("VolumeSize")
        if size is not None and int(size) < image.root.size:
            raise errors.volume_too_small(int(size), image.ebs_snapshot.id, image.root.size)


def _mend_volumes(instance: LocalInstance, mappings: list[dict[str, Any]]) -> None:
    """Give the volumes the type and rates that were asked for; moto drops throughput and iops."""
    for mapping in mappings:
        attachment = instance.block_device_mapping.get(mapping["DeviceName"])
        if attachment is None:
            continue
        volume = instance.ec2_backend.get_volume(attachment.volume_id)
        ebs = mapping["Ebs"]
        volume.volume_type = ebs.get("VolumeType", "gp3")
        volume.size = int(volume.size)
        gp3 = volume.volume_type == "gp3"
        volume.iops = ebs.get("Iops", 3000 if gp3 else None)
        volume.throughput = ebs.get("Throughput", 125 if gp3 else None) if gp3 else None
        attachment.delete_on_termination = bool(ebs.get("DeleteOnTermination", True))


def _root_volume(instance: LocalInstance) -> RootVolume:
    volume = instance.root_volume
    return RootVolume(
        size=volume.size,
        volume_type=volume.volume_type,
        iops=volume.iops,
        throughput=volume.throughput,
        encrypted=volume.encrypted,
        kms_key_id=volume.kms_key_id,
        delete_on_termination=instance.block_device_mapping[instance.root_device_name].delete_on_termination,
    )

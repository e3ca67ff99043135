"""The instance metadata service: IMDSv2 on 169.254.169.254, answering by the address of the caller.

What is served, and how a directory is listed, follows the EC2 user guide ("Instance metadata categories").
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from moto.iam.exceptions import NotFoundException
from moto.iam.models import iam_backends
from werkzeug.wrappers import Request, Response

from ingot.rehearsal.api.instances import LocalInstance
from ingot.rehearsal.api.region import Region

log = logging.getLogger(__name__)

VERSIONS = (
    "1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15", "2008-02-01", "2008-09-01",
    "2009-04-04", "2011-01-01", "2011-05-01", "2012-01-12", "2014-02-25", "2014-11-05", "2015-10-20",
    "2016-04-19", "2016-06-30", "2016-09-02", "2018-03-28", "2018-08-17", "2018-09-24", "2019-10-01",
    "2020-10-27", "2021-01-03", "2021-03-23", "2021-07-15", "2022-09-24", "2024-04-11", "latest",
)  # fmt: skip
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
MAX_TTL = 21600

# A tree of the metadata: a dict is a directory.
Tree = dict[str, Any]


class MetadataService:
    """WSGI application."""

    def __init__(self, region: Region, clock: Callable[[], float] = time.time) -> None:
        self._region = region
        self._clock = clock
        self._tokens: dict[str, tuple[str, float]] = {}  # token -> (instance id, expiry)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        response = self._answer(request)
        response.headers["Server"] = "EC2ws"
        log.debug("imds %s %s %s %s", request.remote_addr, request.method, request.path, response.status_code)
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        with self._region.lock:
            instance = self._region.by_address(request.remote_addr or "")
            if instance is None:
                return _error(404, f"no instance has the address {request.remote_addr}")
            if instance.metadata_options.http_endpoint == "disabled":
                return _error(403, "the metadata service of this instance is turned off")
            if request.method == "PUT":
                return self._token(request, instance)
            if request.method not in ("GET", "HEAD"):
                return _error(405, "Method Not Allowed")
            if not self._authorized(request, instance):
                return _error(401, "Unauthorized")
            return self._get(request.path, instance)

    def _token(self, request: Request, instance: LocalInstance) -> Response:
        if request.path.rstrip("/") != "/latest/api/token":
            return _error(404, "Not Found")
        if "X-Forwarded-For" in request.headers:
            return _error(403, "Forbidden")
        ttl = request.headers.get(TTL_HEADER, "")
        if not ttl.isdigit() or not 1 <= int(ttl) <= MAX_TTL:
            return _error(400, "Bad Request")
        now = self._clock()
        self._tokens = {token: entry for token, entry in self._tokens.items() if entry[1] > now}
        token = secrets.token_urlsafe(40)
        self._tokens[token] = (instance.id, now + int(ttl))
        return Response(token, headers={TTL_HEADER: ttl}, mimetype="text/plain")

    def _authorized(self, request: Request, instance: LocalInstance) -> bool:
        owner, expiry = self._tokens.get(request.headers.get(TOKEN_HEADER, ""), ("", 0.0))
        return owner == instance.id and expiry > self._clock()

    def _get(self, path: str, instance: LocalInstance) -> Response:
        parts = [part for part in path.split("/") if part]
        if not parts:
            return _text("\n".join(VERSIONS))
        if parts[0] not in VERSIONS:
            return _error(404, "Not Found")
        node: Any = root(instance)
        for part in parts[1:]:
            # "public-keys" lists "0=name" and is asked for "0"
            node = node.get(part) if isinstance(node, dict) else None
            if node is None:
                return _error(404, "Not Found")
        if isinstance(node, dict):
            if parts[-1] == "public-keys":
                return _text(f"0={instance.key_name}")
            return _text("\n".join(_listing(node)))
        if isinstance(node, bytes):
            return Response(node, mimetype="application/octet-stream")
        return _text(node)


def root(instance: LocalInstance) -> Tree:
    """Everything an instance can read about itself."""
    tree: Tree = {
        "dynamic": {"instance-identity": {"document": json.dumps(identity_document(instance), indent=2)}},
        "meta-data": metadata(instance),
    }
    user_data = instance.user_data_bytes
    if user_data:
        tree["user-data"] = user_data
    return tree


def identity_document(instance: LocalInstance) -> dict[str, Any]:
    return {
        "accountId": instance.owner_id,
        "architecture": instance.architecture,
        "availabilityZone": instance.availability_zone,
        "billingProducts": None,
        "devpayProductCodes": None,
        "imageId": instance.image_id,
        "instanceId": instance.id,
        "instanceType": instance.instance_type,
        "kernelId": None,
        "marketplaceProductCodes": None,
        "pendingTime": instance.launch_time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": instance.private_ip,
        "ramdiskId": None,
        "region": instance.region_name,
        "version": "2017-09-30",
    }


def metadata(instance: LocalInstance) -> Tree:
    nic = instance.nics[0]
    groups = list(instance.security_groups)
    zone = instance.availability_zone or ""
    tree: Tree = {
        "ami-id": instance.image_id,
        "ami-launch-index": str(instance.ami_launch_index),
        "ami-manifest-path": "(unknown)",
        "block-device-mapping": {"ami": instance.root_device_name, "root": instance.root_device_name},
        "events": {"maintenance": {"history": "[]", "scheduled": "[]"}},
        "hostname": instance.private_dns_name,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": instance.private_dns_name,
        "local-ipv4": instance.private_ip,
        "mac": nic.mac_address,
        "network": {
            "interfaces": {"macs": {n.mac_address: _interface(instance, n) for n in instance.nics.values()}}
        },
        "placement": {
            "availability-zone": zone,
            "availability-zone-id": _zone_id(instance, zone),
            "region": instance.region_name,
        },
        "profile": "default-hvm",
        "reservation-id": _reservation_id(instance),
        "security-groups": "\n".join(group.name for group in groups),
        "services": {"domain": "amazonaws.com", "partition": "aws"},
    }
    if instance.public_key:
        tree["public-keys"] = {"0": {"openssh-key": instance.public_key}}
    if instance.metadata_options.instance_metadata_tags == "enabled":
        tree["tags"] = {"instance": {tag["key"]: tag["value"] for tag in instance.get_tags()}}
    if instance.iam_instance_profile:
        tree["iam"] = _iam(instance)
    if instance.spot_notice:
        action = json.dumps({"action": "terminate", "time": instance.spot_notice})
        tree["spot"] = {"instance-action": action, "termination-time": instance.spot_notice}
    return tree


def _interface(instance: LocalInstance, nic: Any) -> Tree:
    vpc = instance.ec2_backend.get_vpc(nic.subnet.vpc_id)
    groups = list(nic.group_set)
    return {
        "device-number": str(nic.device_index),
        "interface-id": nic.id,
        "local-hostname": instance.private_dns_name,
        "local-ipv4s": nic.private_ip_address,
        "mac": nic.mac_address,
        "owner-id": instance.owner_id,
        "security-group-ids": "\n".join(group.id for group in groups),
        "security-groups": "\n".join(group.name for group in groups),
        "subnet-id": nic.subnet.id,
        "subnet-ipv4-cidr-block": nic.subnet.cidr_block,
        "vpc-id": vpc.id,
        "vpc-ipv4-cidr-block": vpc.cidr_block,
        "vpc-ipv4-cidr-blocks": vpc.cidr_block,
    }


def _iam(instance: LocalInstance) -> Tree:
    """The instance profile, with credentials that are as good as any for an API that checks none."""
    association = cast("dict[str, str]", instance.iam_instance_profile)
    arn = association["Arn"]
    updated = time.gmtime()
    tree: Tree = {
        "info": json.dumps(
            {
                "Code": "Success",
                "LastUpdated": time.strftime("%Y-%m-%dT%H:%M:%SZ", updated),
                "InstanceProfileArn": arn,
                "InstanceProfileId": association["Id"],
            }
        )
    }
    try:
        profile = iam_backends[instance.owner_id]["aws"].get_instance_profile(arn.rsplit("/", 1)[1])
    except NotFoundException:
        return tree
    expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + MAX_TTL))
    credentials = {
        "Code": "Success",
        "LastUpdated": time.strftime("%Y-%m-%dT%H:%M:%SZ", updated),
        "Type": "AWS-HMAC",
        "AccessKeyId": f"ASIA{instance.id[2:].upper():0<16.16}",
        "SecretAccessKey": "local-ec2",
        "Token": "local-ec2",
        "Expiration": expiry,
    }
    tree["security-credentials"] = {role.name: json.dumps(credentials, indent=2) for role in profile.roles}
    return tree


def _zone_id(instance: LocalInstance, zone: str) -> str:
    found = instance.ec2_backend.get_zone_by_name(zone)
    return str(found.zone_id) if found else ""


def _reservation_id(instance: LocalInstance) -> str:
    for reservation in instance.ec2_backend.reservations.values():
        if any(other is instance for other in reservation.instances):
            return str(reservation.id)
    return ""


def _listing(node: Tree) -> list[str]:
    """Names in a directory; one that is a directory itself ends in a slash."""
    return [name + "/" if isinstance(child, dict) else name for name, child in sorted(node.items())]


def _text(content: str) -> Response:
    return Response(content, mimetype="text/plain")


def _error(status: int, message: str) -> Response:
    page = f"<html><body><h1>{status} - {message}</h1></body></html>\n"
    return Response(page, status=status, mimetype="text/html")

"""EC2's own errors for calls that moto lets through.

Codes and wording follow the EC2 API reference, since tools match on them. All are client errors (status 400),
so that an SDK reports them at once instead of retrying: also insufficient capacity, for which EC2 itself
answers 500, because a retry against one small host cannot succeed.
"""

from __future__ import annotations

from moto.ec2.exceptions import EC2ClientError


def missing_parameter(name: str) -> EC2ClientError:
    return EC2ClientError("MissingParameter", f"The request must contain the parameter {name}")


def invalid_value(message: str) -> EC2ClientError:
    return EC2ClientError("InvalidParameterValue", message)


def image_malformed(image_id: str) -> EC2ClientError:
    return EC2ClientError("InvalidAMIID.Malformed", f'Invalid id: "{image_id}" (expecting "ami-...")')


def image_not_found(image_id: str) -> EC2ClientError:
    return EC2ClientError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")


def image_unavailable(image_id: str, state: str) -> EC2ClientError:
    return EC2ClientError(
        "InvalidAMIID.Unavailable", f"The image ID '{image_id}' is not available: its state is '{state}'"
    )


def image_name_duplicate(name: str, image_id: str) -> EC2ClientError:
    return EC2ClientError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {image_id}")


def image_name_malformed(name: str) -> EC2ClientError:
    return EC2ClientError(
        "InvalidAMIName.Malformed",
        f"AMI name '{name}' must be between 3 and 128 characters long, and may contain letters, numbers, "
        "'(', ')', '.', '-', '/', '_', '[', ']', '@', apostrophes and spaces",
    )


def architecture_mismatch(type_architecture: str, image_architecture: str) -> EC2ClientError:
    return invalid_value(
        f"The architecture '{type_architecture}' of the specified instance type does not match the "
        f"architecture '{image_architecture}' of the specified AMI. Specify an instance type and an AMI that "
        "have matching architectures, and try again. You can use 'describe-instance-types' or "
        "'describe-images' to discover the architecture of the instance type or AMI."
    )


def unknown_instance_type(name: str) -> EC2ClientError:
    return invalid_value(f"Invalid value '{name}' for InstanceType.")


def insufficient_capacity(message: str) -> EC2ClientError:
    return EC2ClientError("InsufficientInstanceCapacity", message)


def key_pair_not_found(name: str) -> EC2ClientError:
    return EC2ClientError("InvalidKeyPair.NotFound", f"The key pair '{name}' does not exist")


def incorrect_instance_state(message: str) -> EC2ClientError:
    return EC2ClientError("IncorrectInstanceState", message)


def volume_too_small(size: int, snapshot_id: str, minimum: int) -> EC2ClientError:
    return EC2ClientError(
        "InvalidBlockDeviceMapping",
        f"Volume of size {size}GB is smaller than snapshot '{snapshot_id}', expect size >= {minimum}GB",
    )


def snapshot_without_machine(snapshot_id: str) -> EC2ClientError:
    return EC2ClientError(
        "InvalidSnapshot.NotFound",
        f"The snapshot '{snapshot_id}' holds no root device: on the local EC2 only CreateImage makes one",
    )


def no_data_volumes(device: str) -> EC2ClientError:
    return unsupported(f"{device}: machines of the local EC2 have their root device only")


def unsupported(message: str) -> EC2ClientError:
    return EC2ClientError("UnsupportedOperation", message)

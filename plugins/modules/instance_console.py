#!/usr/bin/python
# Copyright: Ingot contributors
# Apache-2.0
"""Keep what an instance of EC2 wrote on its console."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: instance_console
short_description: The console of an instance, in a file of this machine
description:
  - Runs on the controller, with its boto3 and its credentials. The file is replaced, with mode 0600.
options:
  instance_id:
    description: The instance.
    type: str
    required: true
  path:
    description: The file.
    type: path
    required: true
author: Ingot
"""

EXAMPLES = r"""
- name: Keep the console
  instance_console:
    instance_id: i-0a1b2c3d
    path: /tmp/console
"""

RETURN = r"""
size:
  description: How many bytes there were.
  type: int
  returned: always
"""


def keep(client: Any, instance_id: str, path: Path) -> int:
    """What there is of it, decoded; how much that was."""
    answer = client.get_console_output(InstanceId=instance_id)
    output = str(answer.get("Output") or "")
    text = base64.b64decode(output) if _coded(output) else output.encode()
    path.write_bytes(text)
    path.chmod(0o600)
    return len(text)


def _coded(output: str) -> bool:
    """boto3 decodes it as a rule, and leaves what is no UTF-8."""
    try:
        return bool(output) and base64.b64encode(base64.b64decode(output, validate=True)).decode() == output
    except ValueError:
        return False


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instance_id": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    import boto3  # the controller's, which the modules of amazon.aws take as well
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = boto3.client("ec2", region_name=os.environ.get("AWS_REGION"))
        size = keep(client, module.params["instance_id"], Path(module.params["path"]))
    except (BotoCoreError, ClientError, OSError) as error:
        module.fail_json(msg=f"the console of {module.params['instance_id']} cannot be kept: {error}")
    module.exit_json(changed=True, size=size)


if __name__ == "__main__":
    main()

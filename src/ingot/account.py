"""Whether the environment says which region and whose account: asked before the inventory asks EC2."""

from __future__ import annotations

import re

from ingot.preflight.refusal import Refusal

REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
REHEARSAL = "(the rehearsal's is set by `ingot local run -- ansible-playbook ...`)"


def refusals(region: str) -> list[Refusal]:
    """What keeps EC2 from being asked, the first thing only: the second needs the first."""
    if not REGION.fullmatch(region):
        why = f"AWS_REGION is {region!r}, which is no region" if region else "AWS_REGION is not set"
        return [Refusal("no-region", why, f"Set it to the cluster's region, such as eu-west-1 {REHEARSAL}")]
    # Not at the top: a third of a second that other filters need not pay.
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    do = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in (aws sso login)"
    try:
        found = Session().get_credentials()
    except BotoCoreError as error:
        return [Refusal("no-credentials", str(error).rstrip("."), do)]
    if found is None:
        return [Refusal("no-credentials", "there are no credentials of AWS in the environment", do)]
    return []

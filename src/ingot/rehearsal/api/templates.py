"""Launch templates whose versions can be deleted.

moto finds a version by its place in the list, EC2 by its number.
"""

from __future__ import annotations

from typing import Any

from moto.ec2.exceptions import InvalidLaunchTemplateVersionNotFound
from moto.ec2.models.launch_templates import LaunchTemplate, LaunchTemplateVersion

from ingot.rehearsal.api import errors


class LocalLaunchTemplate(LaunchTemplate):
    """A launch template that keeps the numbers of its versions when others are deleted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.created_versions = 0
        super().__init__(*args, **kwargs)

    def create_version(self, data: dict[str, Any], description: str) -> LaunchTemplateVersion:
        # What the call tags itself with is no part of the template; moto keeps it, and the next call that
        # gives the same data then seems to give other data.
        specifications = [
            item for item in data.get("TagSpecifications", []) if item["ResourceType"] != "launch-template"
        ]
        data = {name: value for name, value in data.items() if name != "TagSpecifications"}
        if specifications:
            data["TagSpecifications"] = specifications
        self.created_versions += 1
        version = LaunchTemplateVersion(self, self.created_versions, data, description)
        self.versions.append(version)
        return version

    def get_version(self, num: Any) -> LaunchTemplateVersion:
        wanted = {"$latest": self.latest_version().number, "$default": self.default_version_number}.get(
            str(num).lower(), num
        )
        for version in self.versions:
            if str(version.number) == str(wanted):
                return version
        raise InvalidLaunchTemplateVersionNotFound(template_id=self.id, version=num)

    def default_version(self) -> LaunchTemplateVersion:
        return self.get_version(self.default_version_number)

    def delete_versions(self, numbers: list[str]) -> list[LaunchTemplateVersion]:
        """Delete some; the default one can only go with the template."""
        doomed = [self.get_version(number) for number in numbers]
        if any(self.is_default(version) for version in doomed):
            raise errors.invalid_value(
                "The default version of a launch template cannot be deleted; make another one the default"
            )
        self.versions = [version for version in self.versions if version not in doomed]
        return doomed

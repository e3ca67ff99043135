"""What the schemas of tables of driver sets have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ingot.table import Strict

Version = Annotated[str, Field(pattern=r"^([0-9]+:)?[0-9][A-Za-z0-9.+~-]*$")]
PackageName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]
Packages = dict[PackageName, Version]
Url = Annotated[str, Field(pattern=r"^https://\S+$")]
Reason = Annotated[str, Field(min_length=20)]


class System(Strict):
    """What the packages are made for, in the words of Ansible's facts."""

    name: Literal["Debian", "Ubuntu"]
    version: Annotated[str, Field(pattern=r"^[0-9]+$")]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Repository(Strict):
    """Where the packages come from. The key is one of the base image, or is held against a fingerprint.

    So a mirror's key may come by http: another one is refused.
    """

    uri: Annotated[str, Field(pattern=r"^https?://\S+[^/\s]$")]
    suite: Annotated[str, Field(min_length=1)]
    components: list[str] = Field(default_factory=list)
    keyring: Annotated[str, Field(pattern=r"^(/\S+)?$")] = ""
    key: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    fingerprint: Annotated[str, Field(pattern=r"^([0-9A-F]{40})?$")] = ""

    @model_validator(mode="after")
    def _signed(self) -> Repository:
        if bool(self.keyring) == bool(self.key) or bool(self.key) != bool(self.fingerprint):
            raise ValueError(
                "give keyring, or key with fingerprint: packages without a known key are refused"
            )
        return self

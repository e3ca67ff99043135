"""Names, places and addresses of one local region: the only module that knows how they are spelt."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ingot.rehearsal.places import GIB, STATE_ROOT, cache_of
from ingot.table import problems

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")


class SettingsError(ValueError):
    """A setting from the environment cannot be used; the message names it and says what is allowed."""


class Settings(BaseModel):
    """One local region. Several may exist side by side, told apart by ``name``."""

    model_config = ConfigDict(frozen=True)

    name: str = "default"
    cache: Path
    state_root: Path = STATE_ROOT
    runtime_root: Path = Path("/run/ingot-local")
    memory_scale: float = Field(default=0.75, gt=0, le=1)
    cpu_scale: float = Field(default=1.0, gt=0, le=4)
    host_reserve_bytes: int = 3 * GIB
    vpc: IPv4Network = IPv4Network("172.31.0.0/16")  # moto's default VPC
    imds_address: IPv4Address = IPv4Address("169.254.169.254")
    dns_address: IPv4Address = IPv4Address("169.254.169.253")
    endpoint_address: IPv4Address = IPv4Address("169.254.169.252")
    region: str = "us-east-1"

    @field_validator("name")
    @classmethod
    def _name_fits_everywhere(cls, name: str) -> str:
        # The name becomes part of a path, a cgroup, a network namespace and an nft table.
        if not NAME_PATTERN.fullmatch(name):
            raise ValueError(f"{name!r} is not 1 to 20 lower-case letters, digits and dashes")
        return name

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings as the environment has them.

        Raises:
            SettingsError: a variable holds something else than it may.
        """
        env = os.environ if environ is None else environ
        values: dict[str, object] = {"cache": cache_of(env)}
        for variable, field in _VARIABLES.items():
            if env.get(variable):
                values[field] = env[variable]
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            named = {field: variable for variable, field in _VARIABLES.items()}
            text = "; ".join(f"{named[name]}: {said}" for name, said in problems(error).items())
            raise SettingsError(text) from error

    @property
    def state(self) -> Path:
        """What survives ``down``: machines' roots, snapshots, the API's records."""
        return self.state_root / self.name

    @property
    def purged(self) -> Path:
        """What a state is called while it is removed; no region's name begins with a dot."""
        return self.state_root / f".{self.name}.purged"

    @property
    def runtime(self) -> Path:
        """What exists only while the region is up."""
        return self.runtime_root / self.name

    @property
    def instances(self) -> Path:
        return self.state / "instances"

    @property
    def snapshots(self) -> Path:
        return self.state / "snapshots"

    @property
    def daemon_log(self) -> Path:
        return self.state / "daemon.log"

    @property
    def netns(self) -> str:
        return f"ingot-{self.name}"

    @property
    def netns_path(self) -> Path:
        return Path("/run/netns") / self.netns

    @property
    def cgroup(self) -> str:
        """Name of the cgroup, below the root of each hierarchy, that holds every process of the region."""
        return f"ingot-{self.name}"

    @property
    def nft_table(self) -> str:
        return f"ingot_{self.name.replace('-', '_')}"

    @property
    def gateway(self) -> IPv4Address:
        """The VPC's router: the bridge's own address."""
        return self.vpc[1]

    @property
    def endpoint_url(self) -> str:
        return f"http://{self.endpoint_address}"

    @property
    def mirror_url(self) -> str:
        return f"{self.endpoint_url}/_mirror/"

    @property
    def mirror(self) -> Path:
        """Directory that the daemon serves below ``mirror_url``."""
        return self.cache / "mirror"

    @property
    def bases(self) -> Path:
        return self.cache / "base"


_VARIABLES = {
    "INGOT_LOCAL_NAME": "name",
    "INGOT_LOCAL_MEMORY_SCALE": "memory_scale",
    "INGOT_LOCAL_CPU_SCALE": "cpu_scale",
}

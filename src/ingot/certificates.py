"""The gateway's certificate: what can be said of it before a node has it, and how its clients ask for it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ingot.preflight.refusal import Refusal

BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----\n?", re.DOTALL)
PUBLIC_FILE = "gateway-certificate.pem"
"""Name of the file, in the cluster's folder, that clients get: the certificates without the key."""


class CertificateError(Exception):
    """It cannot serve; ``refusal`` has the reason."""

    def __init__(self, name: str, why: str, do: str) -> None:
        super().__init__(why)
        self.refusal = Refusal(name, f"gateway_tls_certificate: {why}", do)


@dataclass(frozen=True)
class Certificate:
    """What clients see of it."""

    chain: str  # PEM, without the key
    names: tuple[str, ...]  # host names, then addresses
    until: datetime

    def covers(self, host: str) -> bool:
        """Whether a client that asks for ``host`` accepts it; a * stands for one label, the first."""
        wanted = host.lower()
        return any(
            wanted == name or (name.startswith("*.") and wanted.partition(".")[2] == name[2:])
            for name in self.names
        )

    def host(self, label: str) -> str:
        """A host that it is for, ``label`` in the place of a *."""
        return self.names[0].replace("*", label)


@dataclass(frozen=True)
class Endpoint:
    """Where clients find the gateway, and where it is reached from here."""

    url: str
    address: str
    certificates: str = ""  # PEM of what it must show
    certificate_file: str = ""
    certificate_until: str = ""


def read(path: str, now: datetime | None = None) -> Certificate:
    """The certificate of the file.

    Raises:
        CertificateError: HAProxy could not serve with it, or no client would accept it.
    """
    file = Path(path).expanduser()
    give = "Give the path from / or ~ of a PEM file with the certificate, its chain and its private key"
    if not file.is_absolute():
        raise CertificateError("no-certificate", f"{path} is not a path from / or ~", give)
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise CertificateError("no-certificate", f"{path} cannot be read ({error})", give) from error
    blocks = [(match[1], match[0]) for match in BLOCK.finditer(text)]
    public = [block for kind, block in blocks if kind == "CERTIFICATE"]
    private = [block for kind, block in blocks if kind.endswith("PRIVATE KEY")]
    if not public or not private:
        lacks = " and ".join(
            word for word, there in (("certificate", public), ("private key", private)) if not there
        )
        raise CertificateError("bad-certificate", f"{path} has no {lacks}", give)
    try:
        leaf = x509.load_pem_x509_certificate(public[0].encode())
        key = load_pem_private_key(private[0].encode(), password=None)
    except (ValueError, TypeError) as error:  # a TypeError: the key has a passphrase
        raise CertificateError(
            "bad-certificate", f"{path} cannot be used ({error})", f"{give}, without a passphrase"
        ) from error
    if leaf.public_key() != key.public_key():
        raise CertificateError(
            "bad-certificate", f"the first certificate of {path} is not the private key's", give
        )
    start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not start <= (now or datetime.now(UTC)) <= end:
        raise CertificateError(
            "expired-certificate",
            f"{path} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d} only",
            "Have it renewed, and set the clock of this machine if that is what is wrong",
        )
    if not (names := _names(leaf)):
        raise CertificateError(
            "nameless-certificate",
            f"{path} names no host (subjectAltName), so that every client refuses it",
            "Have it issued for the name or address that clients use",
        )
    return Certificate("".join(block.rstrip("\n") + "\n" for block in public), names, end)


def refusals(path: str) -> list[Refusal]:
    """What speaks against the certificate; nothing where none is given."""
    try:
        if path:
            read(path)
    except CertificateError as error:
        return [error.refusal]
    return []


def endpoint(head: Mapping[str, Any]) -> Endpoint:
    """The gateway, from the variables of the head.

    With TLS clients ask for a host that the certificate is for, be it that the address is none.
    """
    address, port = str(head.get("ansible_host", head["inventory_hostname"])), head["gateway_port"]
    path = head.get("gateway_tls_certificate", "")
    if not path:
        return Endpoint(f"http://{_in_url(address)}:{port}", address)
    certificate = read(path)
    host = address if certificate.covers(address) else certificate.host(head["cluster_name"])
    return Endpoint(
        f"https://{_in_url(host)}:{port}",
        address,
        certificate.chain,
        f"{head['ingot_config_dir']}/{PUBLIC_FILE}",
        f"{certificate.until:%Y-%m-%d}",
    )


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts = [name.lower() for name in found.get_values_for_type(x509.DNSName)]
    return (*hosts, *(str(address) for address in found.get_values_for_type(x509.IPAddress)))


def _in_url(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host

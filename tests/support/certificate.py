"""Certificates as somebody who runs a gateway has them: issued by an authority of one's own, or by itself."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def private(self, passphrase: str = "") -> str:
        lock: KeySerializationEncryption = NoEncryption()
        if passphrase:
            lock = BestAvailableEncryption(passphrase.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock).decode()


def issue(*names: str, by: Issued | None = None, authority: bool = False, days: int = 30) -> Issued:
    """A certificate for hosts and addresses; a negative number of days is one that has expired."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority" if authority else "a host")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if names:
        general = [
            x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
            for name in names
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(general), critical=False)
    return Issued(builder.sign(by.key if by else key, hashes.SHA256()), key)

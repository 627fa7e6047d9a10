"""Certificates made for a test, and files of them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "retriever.test"
"""The servers' name, beside localhost and 127.0.0.1."""


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self._key_pem(serialization.NoEncryption())

    @property
    def encrypted_key_pem(self) -> bytes:
        return self._key_pem(serialization.BestAvailableEncryption(b"a passphrase"))

    def _key_pem(self, encryption: serialization.KeySerializationEncryption) -> bytes:
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def authority(name: str = "authority") -> Issued:
    return _issue(name, None, (-1, 10))


def issued_by(
    issuer: Issued, name: str = NAME, *, expired: bool = False, dns_names: Sequence[str] = (NAME, "localhost")
) -> Issued:
    return _issue(name, issuer, (-10, -1) if expired else (-1, 10), dns_names)


def _issue(
    common_name: str, issuer: Issued | None, days: tuple[int, int], dns_names: Sequence[str] = (NAME, "localhost")
) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [*map(x509.DNSName, dns_names), x509.IPAddress(IPv4Address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key if issuer is None else issuer.key, hashes.SHA256())
    )
    return Issued(certificate, key)


def put(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """Writes or replaces a file as one step."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    beside.chmod(mode)
    return beside.replace(path)


def put_pair(folder: Path, pair: Issued, stem: str = "server") -> tuple[Path, Path]:
    return put(folder / f"{stem}.pem", pair.pem), put(folder / f"{stem}.key", pair.key_pem)

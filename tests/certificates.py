"""Certificates of servers for tests."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def create_certificate(
    folder: Path, *hosts: str, lifetime: datetime.timedelta = datetime.timedelta(days=1)
) -> Path:
    """Create a certificate of hosts that is its own authority; return the file with its key.

    Args:
        lifetime: the time from now to its expiry; negative for one that has expired.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=30))
        .not_valid_after(now + lifetime)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "certificate.pem"
    path.write_bytes(private + certificate.public_bytes(pem))
    return path

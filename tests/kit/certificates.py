"""Certificates of servers for tests."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import threading
from collections.abc import Iterator
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
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "certificate.pem"
    path.write_bytes(private + certificate.public_bytes(pem))
    return path


@contextlib.contextmanager
def serve_tls_alerts(certificate: Path, response: bytes = b"") -> Iterator[str]:
    """Serve TLS connections that break after a request; yield the URL, with the host localhost.

    Args:
        response: bytes that are sent before.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    alert = b"\x15\x03\x03\x00\x02\x02\x28"

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with (
                    contextlib.suppress(OSError),
                    context.wrap_socket(connection, server_side=True) as secure,
                ):
                    secure.recv(65_536)
                    secure.sendall(response)
                    os.write(secure.fileno(), alert)
                    secure.recv(1)  # until the client closes the connection

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()

"""A key pair in two files: the private key for its owner only, the public one beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentctl.cli.files import refuse_existing, write_new

__all__ = ["KeyPair", "public_path", "write_key_pair"]


@dataclass(frozen=True, slots=True)
class KeyPair:
    """What was written. `public` is None for a shared secret, which has no public half."""

    private: Path
    public: Path | None
    key_id: str


def public_path(private: Path) -> Path:
    """`signing.pub.pem` for `signing.pem`."""
    return private.with_name(private.name.removesuffix(".pem") + ".pub.pem")


def write_key_pair(private: Path, algorithm: str) -> KeyPair:
    """Make a key and write it to `private` (0600) and `public_path(private)` (0644).

    Raises:
        Conflict: one of the files is there already.
        InvalidKey: no such algorithm, or a file cannot be written; nothing is left behind.
    """
    from agentctl.auth import keys

    public = None if algorithm.startswith("HS") else public_path(private)
    refuse_existing(private, *([public] if public else []))
    secret = keys.generate(algorithm)
    keys.write_private_key(private, secret)
    try:
        if public is not None:
            write_new(public, keys.public_pem(secret, algorithm))
    except BaseException:
        private.unlink(missing_ok=True)
        raise
    return KeyPair(private, public, keys.thumbprint(secret, algorithm))

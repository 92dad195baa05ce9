"""Folders with a configuration and keys, as `agentctl init` makes them."""

from __future__ import annotations

from pathlib import Path

from agentctl.cli.files import write_key_pair

__all__ = ["make_project"]


def make_project(folder: Path, algorithm: str = "ES256", extra: str = "", rest: str = "") -> Path:
    """A small configuration with a fresh key pair. ES256: its keys are made at once.

    Args:
        folder: made when it is not there.
        extra: lines for [authorization].
        rest: further tables.
    """
    pair = write_key_pair(folder / "keys" / "signing.pem", algorithm)
    file = folder / "agentctl.toml"
    file.write_text(
        f'[authorization]\nalgorithm = "{algorithm}"\n'
        f'verification_key_files = ["{pair.public or pair.private}"]\n{extra}\n{rest}\n'
    )
    return file

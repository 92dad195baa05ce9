"""A keyring for tests: a file, which is locked if the folder has a file named `locked`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked

__all__ = ["FileKeyring"]


class FileKeyring(KeyringBackend):
    """Secrets in the folder TEST_KEYRING."""

    priority = 5  # type: ignore[assignment]

    def _read(self) -> dict[str, str]:
        folder = Path(os.environ["TEST_KEYRING"])
        if (folder / "locked").exists():
            raise KeyringLocked("a text that no command shows")
        file = folder / "secrets.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def _write(self, secrets: dict[str, str]) -> None:
        (Path(os.environ["TEST_KEYRING"]) / "secrets.json").write_text(json.dumps(secrets))

    def get_password(self, service: str, username: str) -> str | None:
        """Return a secret."""
        return self._read().get(f"{service} {username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        """Keep a secret."""
        self._write(self._read() | {f"{service} {username}": password})

    def delete_password(self, service: str, username: str) -> None:
        """Delete a secret."""
        secrets = self._read()
        del secrets[f"{service} {username}"]
        self._write(secrets)

"""How a PostgreSQL database is copied and restored: by its own programs."""

from __future__ import annotations

import shlex
from pathlib import Path

from agentctl.config.settings import Database

__all__ = ["dump_line", "restore_line"]


def dump_line(entry: Database, file: Path) -> str:
    """The command that writes a copy to a file. The password is not in it: libpq reads it from
    PGPASSWORD or the file that PGPASSFILE names."""
    words = ["pg_dump", "--format=custom", "--no-owner", f"--file={file}"]
    if entry.search_path:
        words.append(f"--schema={entry.search_path}")
    return shlex.join([*words, f"--dbname={entry.url}"])


def restore_line(entry: Database, file: Path) -> str:
    """The command that puts a copy into an empty database."""
    words = ["pg_restore", "--exit-on-error", "--single-transaction", "--no-owner"]
    return shlex.join([*words, f"--dbname={entry.url}", str(file)])

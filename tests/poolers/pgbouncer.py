"""PgBouncer for tests: that of the system, or one unpacked by `python -m tests.poolers.fetch`."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests.kit.conditions import PATIENCE

MINIMUM = (1, 21)
"""The first version that keeps prepared statements in transaction mode."""

KEEPS_STATEMENTS = (1, 24)
"""The first version that does so by default."""

FOLDER = Path(__file__).parents[2] / ".peers" / "pgbouncer"
"""The folder of the unpacked program."""

MISSING = "needs PgBouncer 1.21: make .peers/pgbouncer/pgbouncer, or apt install pgbouncer"


@functools.cache
def find_pgbouncer() -> str | None:
    """Return a program of at least the minimum version."""
    for program in (shutil.which("pgbouncer"), str(FOLDER / "pgbouncer")):
        if program and Path(program).exists() and read_version(program) >= MINIMUM:
            return program
    return None


@functools.cache
def find_old_pgbouncer() -> str | None:
    """Return a program that is older than the minimum version."""
    program = shutil.which("pgbouncer")
    return program if program and read_version(program) < MINIMUM else None


def read_version(program: str) -> tuple[int, ...]:
    """Return the version of a program, such as (1, 24)."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"PgBouncer (\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else (0,)


class PgBouncer:
    """A PgBouncer in transaction mode, in front of one server.

    Attributes:
        url: its URL, for the user and the database of the server's URL.
    """

    def __init__(
        self, program: str, url: str, users: Sequence[str], settings: Sequence[str]
    ) -> None:
        parts = urlsplit(url)
        host = dict(parse_qsl(parts.query)).get("host") or parts.hostname or ""
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="agentctl-pooler-"))
        self._folder.chmod(0o777)
        self._config = self._folder / "pgbouncer.ini"
        self._config.write_text(
            f"[databases]\n* = host={host} port={parts.port or 5432}\n"
            f"[pgbouncer]\npool_mode = transaction\nauth_type = trust\n"
            f"auth_file = {self._folder}/users\nunix_socket_dir = {self._folder}\n"
            f"listen_addr =\nlogfile = {self._folder}/log\n" + "".join(f"{s}\n" for s in settings)
        )
        (self._folder / "users").write_text("".join(f'"{user}" ""\n' for user in users))
        self.url = parts._replace(query=f"host={self._folder}&port=6432").geturl()

    def log(self) -> str:
        """Return the log of the program."""
        return (self._folder / "log").read_text()

    def start(self) -> None:
        """Start the program. Return when it accepts connections."""
        unprivileged = ("-u", "nobody") if os.geteuid() == 0 else ()
        self._process = subprocess.Popen(
            [self._program, *unprivileged, str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE
        while not (self._folder / ".s.PGSQL.6432").exists():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        """End the program and its connections at once.

        The signals that do so differ by version, and some are ignored if a shell has started the
        tests in the background.
        """
        self._process.kill()
        self._process.wait(PATIENCE)
        (self._folder / ".s.PGSQL.6432").unlink(missing_ok=True)

    def close(self) -> None:
        """End the program and delete its folder."""
        self.stop()
        shutil.rmtree(self._folder)


@contextmanager
def running_pgbouncer(
    program: str, url: str, *settings: str, users: Sequence[str] = ("postgres",)
) -> Iterator[PgBouncer]:
    """Run a PgBouncer in transaction mode, with its default settings for the rest.

    Args:
        program: the path of the program.
        url: the URL of the server, with a host that is a folder, and a user.
        settings: lines for the section [pgbouncer] of its configuration.
        users: the users that may connect.
    """
    if MINIMUM <= read_version(program) < KEEPS_STATEMENTS:
        settings = (*settings, "max_prepared_statements = 200")
    pooler = PgBouncer(program, url, users, settings)
    pooler.start()
    try:
        yield pooler
    finally:
        pooler.close()

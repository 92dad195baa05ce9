"""How a configured database is: there, of which schema, how large."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentctl.config.databases import shown_url
from agentctl.config.settings import Database
from agentctl.errors import AgentctlError, Unavailable
from agentctl.store.migrating import engine_of, stored_version
from agentctl.store.schema import MIGRATE, SCHEMA_VERSION, check_version, migrations, pending
from agentctl.store.sizes import sizes_of

__all__ = ["State", "Status", "status_of"]

State = Literal["ok", "missing", "old", "new", "unavailable"]


@dataclass(slots=True)
class Status:
    """A configured database, for people and programs.

    Attributes:
        url: where it is; it holds no password.
        schema: number of its last migration; None when there is none, or it cannot be asked.
        pending: names of the migrations that it lacks.
        bytes, wal_bytes: of the file, or of the tables; of the write-ahead log of a file.
        sessions, runs: rows, estimated where they are very many.
        failure: why it cannot be used.
    """

    db_id: str
    engine: str
    url: str
    state: State = "ok"
    schema: int | None = None
    newest: int = SCHEMA_VERSION
    pending: list[str] = field(default_factory=list)
    bytes: int | None = None
    wal_bytes: int | None = None
    sessions: int | None = None
    runs: int | None = None
    estimated: bool = False
    failure: AgentctlError | None = None

    def record(self) -> dict[str, object]:
        """What is shown: everything but how the failure is raised."""
        names = [name for name in self.__slots__ if name != "failure"]
        failure = None if self.failure is None else self.failure.detail
        return {name: getattr(self, name) for name in names} | {"problem": failure}


async def status_of(entry: Database) -> Status:
    """Look at a database; what keeps it from being used is told as `failure`, not raised."""
    status = Status(entry.id, engine_of(entry), entry.url)
    try:
        status.schema = await stored_version(entry)
        if status.schema is None:
            status.state = "missing"
            status.pending = [each.name for each in migrations(engine_of(entry))]
            status.failure = _missing(entry)
            return status
        sizes = await sizes_of(entry)
        status.bytes, status.wal_bytes, status.sessions, status.runs, status.estimated = sizes
        _judge(status, entry)
    except AgentctlError as failure:
        status.state, status.failure = "unavailable", failure
    return status


def _judge(status: Status, entry: Database) -> None:
    assert status.schema is not None
    status.pending = [each.name for each in pending(engine_of(entry), status.schema)]
    try:
        check_version(status.schema, shown_url(entry.url))
    except AgentctlError as failure:
        status.state = "old" if status.pending else "new"
        status.failure = failure


def _missing(entry: Database) -> Unavailable:
    return Unavailable(
        "There is no database yet", cause=f"{shown_url(entry.url)} has none", hint=MIGRATE
    )

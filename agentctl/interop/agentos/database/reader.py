"""Sessions, runs and memories of an AgentOS database, in the records of this interface.

A row that cannot be decoded is returned with its `problem`; the other rows are not affected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import field
from typing import Any, TypeVar

import orjson

from agentctl.interface.requests import SessionFilter
from agentctl.interop.agentos import mapping
from agentctl.interop.agentos.database.source import Layout, Row, Source
from agentctl.interop.agentos.values import parse_moment
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.times import format_optional_time

Record = dict[str, Any]
T = TypeVar("T")

MAXIMUM_NAME = 60
"""Characters of the name of a session that was derived from its first message."""

ALL_SESSIONS = SessionFilter()

_ENCODINGS = 3
"""JSON texts in each other: AgentOS 2 encodes its columns twice."""

_KEYS = ("session_id", "session_type", "agent_id", "team_id", "workflow_id", "user_id")
_DATA = ("session_data", "agent_data", "team_data", "workflow_data", "metadata", "summary")
_TIMES = ("created_at", "updated_at")


class UnreadableRow(Exception):
    """A column that does not have the form that AgentOS writes: the text names it."""


@dataclass(slots=True)
class StoredSession:
    """A session of the database.

    Attributes:
        keys: session id, component ids and user id; None without one.
        data: the decoded objects of its JSON columns; None without one.
        created_at, updated_at: microseconds UTC; None if unknown.
        legacy_runs: the runs in the row of the session, of release 2.
        problem: the reason why the row cannot be read as a whole; None: it can.
    """

    kind: ComponentKind
    keys: dict[str, str | None]
    data: dict[str, Record | None] = field(default_factory=dict)
    created_at: int | None = None
    updated_at: int | None = None
    legacy_runs: list[Any] = field(default_factory=list)
    problem: str | None = None

    @property
    def session_id(self) -> str:
        return self.keys["session_id"] or ""

    @property
    def component_id(self) -> str | None:
        """The id of the component of its type."""
        return self.keys[KINDS[self.kind].id_field]

    def name(self, runs: Sequence[Record]) -> str:
        """Return its name, else the beginning of the message of its first run."""
        given = (self.data.get("session_data") or {}).get("session_name")
        if isinstance(given, str):
            return given
        texts = (run["input"] for run in runs if not run["parent_run_id"] and run["input"])
        return " ".join(next(texts, "").split())[:MAXIMUM_NAME]


class AgentOSReader:
    """Reads one database."""

    def __init__(self, source: Source, layout: Layout) -> None:
        self.source = source
        self.layout = layout
        # SQLite returns any bytes as text; apsw fails for those that are not UTF-8.
        self._text_type = "TEXT" if layout.schema else "BLOB"

    def _text(self, name: str) -> str:
        return f"CAST({name} AS {self._text_type})"

    async def count_sessions(self, filter: SessionFilter = ALL_SESSIONS) -> int:
        """Return the number of sessions that match a filter; names are not compared."""
        where, values = _build_condition(filter)
        table = self.layout.quote(self.layout.sessions)
        return int((await self.source.read(f"SELECT count(*) FROM {table}{where}", values))[0][0])

    async def list_sessions(
        self, limit: int, offset: int, filter: SessionFilter = ALL_SESSIONS
    ) -> list[StoredSession]:
        """Return a page of the sessions that match a filter; names are not compared.

        The filter also has the order; sessions of the same time are ordered by their id.
        """
        where, values = _build_condition(filter)
        way = "DESC" if filter.page.sort_order == "desc" else "ASC"
        by_update = filter.page.sort_by == "updated_at"
        order = "coalesce(updated_at, created_at)" if by_update else "created_at"
        rows = await self.source.read(
            f"SELECT {self._columns()} FROM {self.layout.quote(self.layout.sessions)}{where}"
            f" ORDER BY {order} {way}, session_id {way} LIMIT {int(limit)} OFFSET {int(offset)}",
            values,
        )
        return [self._parse_session(row) for row in rows]

    def _columns(self) -> str:
        names = [*_KEYS, *_DATA, *(["runs"] if self.layout.has_legacy_runs else [])]
        return ", ".join([*map(self._text, names), *_TIMES])

    async def find_session(self, session_id: str) -> StoredSession | None:
        """Return a session, None if there is none."""
        table = self.layout.quote(self.layout.sessions)
        rows = await self.source.read(
            f"SELECT {self._columns()} FROM {table} WHERE session_id = ?", [session_id]
        )
        return self._parse_session(rows[0]) if rows else None

    def _parse_session(self, row: Row) -> StoredSession:
        keys = {name: _decode_text(value) for name, value in zip(_KEYS, row, strict=False)}
        created = row[-2]
        updated = row[-1]
        kind = mapping.find_session_kind({name: value for name, value in keys.items() if value})
        session = StoredSession(
            kind, keys, created_at=parse_moment(created), updated_at=parse_moment(updated)
        )
        problems = []
        for name, value in zip(_DATA, row[len(_KEYS) :], strict=False):
            try:
                session.data[name] = _decode(name, value, dict)
            except UnreadableRow as failure:
                session.data[name] = None
                problems.append(str(failure))
        if self.layout.has_legacy_runs:
            try:
                session.legacy_runs = _decode("runs", row[len(_KEYS) + len(_DATA)], list) or []
            except UnreadableRow as failure:
                problems.append(str(failure))
        if keys["session_type"] not in KINDS and not any(
            keys[names.id_field] for names in KINDS.values()
        ):
            problems.append("session_type is not a type")
        if session.created_at is None:
            problems.append("created_at is not a time")
        session.problem = "; ".join(problems) or None
        return session

    async def list_runs(self, session: StoredSession) -> list[Record]:
        """Return the run records of a session, oldest first, members before their team.

        The table of release 3 precedes the runs in the row of the session, which a migration keeps.
        A run that cannot be decoded has the status `UNREADABLE`.
        """
        runs: list[Record] = []
        if self.layout.runs is not None:
            rows = await self.source.read(
                f"SELECT {self._text('run_id')}, {self._text('run_data')}"
                f" FROM {self.layout.quote(self.layout.runs)} WHERE session_id = ?"
                " ORDER BY coalesce(run_index, 0), created_at, run_id",
                [session.session_id],
            )
            for encoded_id, encoded in rows:
                run_id = _decode_text(encoded_id) or ""
                try:
                    data = _decode("run_data", encoded, dict) or {}
                    runs.append(mapping.read_run({"run_id": run_id, **data}, session.session_id))
                except UnreadableRow as failure:
                    runs.append(_build_unreadable_run(run_id, session, str(failure)))
        known = {run["run_id"] for run in runs}
        legacy = [
            mapping.read_run(run, session.session_id)
            if isinstance(run, dict)
            else _build_unreadable_run("", session, "an element of runs is not an object")
            for run in session.legacy_runs
            if run is not None
        ]
        return [run for run in legacy if run["run_id"] not in known] + runs

    async def list_memories(self) -> AsyncIterator[Record]:
        """Yield the memory records, each with `problem` if it cannot be read."""
        if self.layout.memories is None:
            return
        names = ("memory_id", "memory", "topics", "agent_id", "team_id", "user_id")
        texts = ", ".join(map(self._text, names))
        rows = await self.source.read(
            f"SELECT {texts}, created_at, updated_at FROM {self.layout.quote(self.layout.memories)}"
            " ORDER BY memory_id"
        )
        for row in rows:
            yield _parse_memory(dict(zip((*names, *_TIMES), row, strict=True)))

    async def count_rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        rows = await self.source.read(f"SELECT count(*) FROM {self.layout.quote(table)}")
        return int(rows[0][0])


def _build_condition(filter: SessionFilter) -> tuple[str, list[str]]:
    conditions = {
        "session_type = ?": filter.where.type,
        "user_id = ?": filter.where.user_id,
        f"? IN ({', '.join(names.id_field for names in KINDS.values())})": filter.component_id,
    }
    present = {sql: value for sql, value in conditions.items() if value is not None}
    return (" WHERE " + " AND ".join(present) if present else ""), [*present.values()]


def _build_unreadable_run(run_id: str, session: StoredSession, reason: str) -> Record:
    run = mapping.read_run(
        {"run_id": run_id, KINDS[session.kind].id_field: session.component_id}, session.session_id
    )
    return run | {"status": "UNREADABLE", "error": {"code": "UNREADABLE", "detail": reason}}


def _parse_memory(row: Record) -> Record:
    texts = {name: _decode_text(row[name]) for name in ("memory_id", "agent_id", "team_id")}
    built: Record = {**texts, "user_id": _decode_text(row["user_id"])}
    problem = None
    try:
        memory = _decode_json("memory", row["memory"])
        # Memories of early releases are objects with the text.
        built["memory"] = memory.get("memory") if isinstance(memory, dict) else memory
        built["topics"] = _decode("topics", row["topics"], list) or []
    except UnreadableRow as failure:
        problem = str(failure)
    built |= {name: row[name] for name in _TIMES}
    return mapping.read_memory(built) | {"problem": problem}


def _decode_text(value: object) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _decode_json(name: str, value: object) -> Any:
    """Decode a JSON column, which may be encoded several times; JSON null is None."""
    decoded = value
    for level in range(_ENCODINGS):
        if not isinstance(decoded, str | bytes):
            break
        try:
            decoded = orjson.loads(decoded)
        except orjson.JSONDecodeError:
            if level:  # a JSON string is a value, too
                break
            raise UnreadableRow(f"{name} is not JSON") from None
    return decoded


def _decode(name: str, value: object, kind: type[T]) -> T | None:
    decoded = _decode_json(name, value)
    if decoded is not None and not isinstance(decoded, kind):
        noun = "an object" if kind is dict else "an array"
        raise UnreadableRow(f"{name} is not {noun}")
    return decoded


def build_session_record(session: StoredSession, runs: Sequence[Record]) -> Record:
    """Build a session of a list, with the number, state and tokens of its runs.

    The stored totals are not used: AgentOS loses runs that end at the same time there.
    """
    top_level = [run for run in runs if not run["parent_run_id"]]
    tokens = sum(run["metrics"]["total_tokens"] for run in runs)
    known = {
        "session_id": session.session_id,
        "session_name": session.name(runs),
        "session_type": session.kind,
        "user_id": session.keys["user_id"],
        KINDS[session.kind].id_field: session.component_id,
        "total_tokens": tokens,
    }
    record = mapping.read_session(known) | {
        "run_count": len(runs),
        "last_status": top_level[-1]["status"] if top_level else None,
        "last_run": mapping.build_last_run(top_level[-1]) if top_level else None,
        "created_at": format_optional_time(session.created_at),
        "updated_at": format_optional_time(session.updated_at or session.created_at),
    }
    if session.problem is not None:
        record |= {"last_status": "UNREADABLE", "last_run": None, "problem": session.problem}
    return record

"""The operations that read a database of AgentOS, as those of the local backend.

They need no server and no configuration of the components. Nothing is ever written there.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agentctl import errors
from agentctl.config.databases import SQLITE_SCHEME, check_database_url
from agentctl.config.places import Place
from agentctl.config.settings import Database
from agentctl.interop.agentos.database.reader import (
    AgentOSReader,
    StoredSession,
    build_session_record,
)
from agentctl.interop.agentos.database.source import open_source
from agentctl.interop.agentos.records import build_chat_history, sum_counters, view_run
from agentctl.operations import PartialOperations
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS
from agentctl.records.times import format_rfc3339, parse_rfc3339
from agentctl.requests import (
    DEFAULT_LOCATOR,
    FIRST_RUNS,
    FULL_VIEW,
    ExportFormat,
    MemoryFilter,
    Page,
    RunFilter,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
)
from agentctl.transcripts.export import export_session

Record = dict[str, Any]

_NAMED_PAGE = 500
"""Sessions that are read at a time to search their names, most of which are derived."""

_STATED_PAGE = 50
"""Sessions whose runs are a page of a list of runs."""


def build_database_entry(url: str, folder: Path) -> Database:
    """Build the settings of a database from a URL or the path of a file.

    Args:
        url: `sqlite:///…`, `postgresql://…`, or a path.
        folder: the folder of relative paths.

    Raises:
        errors.InvalidConfiguration: the URL is not valid.
    """
    given = url if "://" in url else f"{SQLITE_SCHEME}{url}"
    # SQLAlchemy names the driver in the URL, and this is the form that users of AgentOS have.
    scheme, _, rest = given.partition("://")
    given = f"{scheme.partition('+')[0]}://{rest}"
    place = Place("--database")
    return Database(id="agentos", url=check_database_url(given, folder, place), layout="agentos")


@contextlib.asynccontextmanager
async def open_agentos_database(
    entry: Database, table: str | None = None
) -> AsyncIterator[AgentOSDatabase]:
    """Open a database of AgentOS for reading.

    Args:
        entry: its settings.
        table: the table of sessions; None: `agno_sessions`.

    Raises:
        errors.Unavailable: it cannot be opened.
        errors.UsageError: it has no tables of AgentOS.
    """
    async with open_source(entry, table) as (source, layout):
        yield AgentOSDatabase(AgentOSReader(source, layout))


class AgentOSDatabase(PartialOperations):
    """The `operations.Operations` on sessions, runs and memories that read."""

    def __init__(self, reader: AgentOSReader) -> None:
        super().__init__(f"a database of {reader.layout.name}", reader.layout.place)
        self.reader = reader

    async def get_sessions(self, filter: SessionFilter) -> Document[Any]:
        page = filter.page
        number = int(page.cursor) if page.cursor and page.cursor.isdecimal() else page.page
        offset = (number - 1) * page.limit
        conditions = {
            name: value
            for name, value in (
                ("session_type", filter.where.type),
                ("user_id", filter.where.user_id),
            )
            if value is not None
        }
        if filter.session_name:
            records = await self._find_named(filter, conditions)
            total = len(records)
            records = records[offset : offset + page.limit]
        else:
            total = await self.reader.count_matching(conditions, filter.component_id)
            found = await self._list(filter, conditions, page.limit, offset)
            records = [await self._summarize(session) for session in found]
        return build_document({"data": records, "meta": _build_meta(page, number, total)})

    async def _list(
        self, filter: SessionFilter, conditions: dict[str, str], limit: int, offset: int
    ) -> list[StoredSession]:
        return await self.reader.list_sessions(
            limit=limit,
            offset=offset,
            sort_by=filter.page.sort_by,
            descending=filter.page.sort_order == "desc",
            conditions=conditions,
            component_id=filter.component_id,
        )

    async def _find_named(self, filter: SessionFilter, conditions: dict[str, str]) -> list[Record]:
        prefix, found, offset = (filter.session_name or "").lower(), list[Record](), 0
        while sessions := await self._list(filter, conditions, _NAMED_PAGE, offset):
            for session in sessions:
                record = await self._summarize(session)
                if record["session_name"].lower().startswith(prefix):
                    found.append(record)
            offset += _NAMED_PAGE
        return found

    async def _summarize(self, session: StoredSession) -> Record:
        return build_session_record(session, await self.reader.list_runs(session))

    async def get_session_by_id(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[Any]:
        session = await self._require_session(session_id, where)
        runs = await self.reader.list_runs(session)
        return build_document(_build_detail(session, runs))

    async def _require_session(self, session_id: str, where: SessionLocator) -> StoredSession:
        session = await self.reader.find_session(session_id)
        if (
            session is None
            or where.type not in (None, session.kind)
            or where.user_id not in (None, session.keys["user_id"])
        ):
            raise errors.NotFound("Session not found")
        return session

    def export_session(
        self,
        session_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        format: ExportFormat = "jsonl",
    ) -> AsyncIterator[bytes]:
        return export_session(self, session_id, where, format)

    async def get_session_runs(
        self, session_id: str, query: SessionRunsQuery = FIRST_RUNS
    ) -> Document[Any]:
        session = await self._require_session(session_id, query.where)
        found = runs = await self.reader.list_runs(session)
        if query.after is not None:
            ids = [run["run_id"] for run in runs]
            if query.after not in ids:
                raise errors.NotFound("Run not found")
            found = runs[ids.index(query.after) + 1 :]
        page = [view_run(run, query.form, runs) for run in found[: query.limit]]
        return build_document(page)

    async def get_runs(self, filter: RunFilter) -> Document[Any]:
        """Return matching runs, session by session, the newest session first.

        A page has all matching runs of its sessions. A session without one is not a page.
        """
        if filter.session_id is not None:
            session = await self._require_session(filter.session_id, DEFAULT_LOCATOR)
            runs = await self.reader.list_runs(session)
            return _build_runs_page([run for run in runs if _matches(run, session, filter)], None)
        offset = int(filter.page.cursor or 0)
        while sessions := await self.reader.list_sessions(limit=_STATED_PAGE, offset=offset):
            offset += len(sessions)
            found = [
                run
                for session in sessions
                for run in await self.reader.list_runs(session)
                if _matches(run, session, filter)
            ]
            if found:
                return _build_runs_page(found, str(offset))
        return _build_runs_page([], None)

    async def get_session_run(
        self,
        session_id: str,
        run_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        form: RunView = FULL_VIEW,
    ) -> Document[Any]:
        session = await self._require_session(session_id, where)
        runs = await self.reader.list_runs(session)
        for run in runs:
            if run["run_id"] == run_id:
                return build_document(view_run(run, form, runs))
        raise errors.NotFound("Run not found")

    async def get_memories(self, filter: MemoryFilter) -> Document[Any]:
        found = [
            memory
            async for memory in self.reader.list_memories()
            if filter.user_id in (None, memory["user_id"])
        ]
        page = filter.page
        number = int(page.cursor) if page.cursor and page.cursor.isdecimal() else page.page
        offset = (number - 1) * page.limit
        meta = _build_meta(page, number, len(found))
        return build_document({"data": found[offset : offset + page.limit], "meta": meta})


def _build_detail(session: StoredSession, runs: list[Record]) -> Record:
    data = session.data.get("session_data") or {}
    counters = sum_counters(run["metrics"] for run in runs)
    id_field = KINDS[session.kind].id_field
    detail: Record = {
        "session_id": session.session_id,
        "session_name": session.name(runs),
        "user_id": session.keys["user_id"],
        id_field: session.component_id,
        "session_state": data.get("session_state"),
        f"{session.kind}_data": session.data.get(f"{session.kind}_data"),
        "metadata": session.data.get("metadata"),
        "created_at": _format_time(session.created_at),
        "updated_at": _format_time(session.updated_at or session.created_at),
    }
    if session.kind == "workflow":
        named = (session.data.get("workflow_data") or {}).get("name")
        detail |= {"workflow_name": named, "session_data": session.data.get("session_data")}
    else:
        detail |= {
            "session_summary": session.data.get("summary"),
            "metrics": counters,
            "total_tokens": counters["total_tokens"],
            "chat_history": build_chat_history(runs),
        }
    if session.kind == "agent":
        detail["agent_session_id"] = session.session_id
    return detail | ({"problem": session.problem} if session.problem else {})


def _matches(run: Record, session: StoredSession, filter: RunFilter) -> bool:
    names = KINDS.values() if filter.component_type is None else (KINDS[filter.component_type],)
    created = parse_rfc3339(run["created_at"]) if run["created_at"] else 0
    return (
        filter.status in (None, run["status"])
        and filter.user_id in (None, run["user_id"] or session.keys["user_id"])
        and (
            filter.component_id is None
            or filter.component_id in (run.get(each.id_field) for each in names)
        )
        and (filter.created_after is None or created >= filter.created_after)
        and (filter.created_before is None or created < filter.created_before)
    )


def _build_runs_page(runs: list[Record], cursor: str | None) -> Document[Any]:
    return build_document({"data": runs, "meta": {"next_cursor": cursor}})


def _build_meta(page: Page, number: int, total: int) -> Record:
    pages = -(-total // page.limit)
    return {
        "page": number,
        "limit": page.limit,
        "total_count": total,
        "total_pages": pages,
        "total_is_capped": False,
        "next_cursor": str(number + 1) if number < pages else None,
    }


def _format_time(microseconds: int | None) -> str | None:
    return None if microseconds is None else format_rfc3339(microseconds)

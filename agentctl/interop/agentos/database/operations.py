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
from agentctl.interface import requests
from agentctl.interface.requests.lists import check_text_filters, is_text_match
from agentctl.interface.requests.memories import MemoryFilter
from agentctl.interop.agentos import backend
from agentctl.interop.agentos.database.reader import (
    AgentOSReader,
    Record,
    StoredSession,
    build_session_record,
)
from agentctl.interop.agentos.database.source import open_source
from agentctl.interop.agentos.mapping import build_history
from agentctl.interop.agentos.values import sum_counters
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS
from agentctl.records.sessions import SessionView
from agentctl.records.times import format_optional_time

_NAMED_PAGE = 500
"""Sessions that are read at a time to select some: most names and statuses are derived."""

_STATED_PAGE = 50
"""Sessions whose runs are a page of a list of runs."""


def build_database_entry(url: str, folder: Path) -> Database:
    """Build the settings of a database from a URL or the path of a file, relative to a folder.

    Raises:
        errors.InvalidConfiguration: the URL is not valid.
    """
    whole = url if "://" in url else f"{SQLITE_SCHEME}{url}"
    # SQLAlchemy names the driver in the URL, and this is the form that users of AgentOS have.
    scheme, _, rest = whole.partition("://")
    url = check_database_url(f"{scheme.partition('+')[0]}://{rest}", folder, Place("--database"))
    return Database(id="agentos", url=url, layout="agentos")


@contextlib.asynccontextmanager
async def open_agentos_database(
    entry: Database, table: str | None = None
) -> AsyncIterator[AgentOSDatabase]:
    """Open a database of AgentOS for reading; see `open_source`."""
    async with open_source(entry, table) as (source, layout):
        yield AgentOSDatabase(AgentOSReader(source, layout))


class AgentOSDatabase(backend.AgentOSBackend):
    """The `interface.operations.Operations` on sessions, runs and memories that read."""

    def __init__(self, reader: AgentOSReader) -> None:
        super().__init__(f"a database of {reader.layout.name}", reader.layout.place)
        self.reader = reader

    async def get_sessions(self, filter: requests.SessionFilter) -> Document[Any]:
        page = filter.page
        self.refuse_search(filter)
        check_text_filters(filter.metadata, filter.tag, filter.error)
        if filter.session_name or any(getattr(filter, name) for name in backend.SESSION_FILTERS):
            matching = list[Record]()
            offset = 0
            while sessions := await self.reader.list_sessions(_NAMED_PAGE, offset, filter):
                for session in sessions:
                    runs = await self.reader.list_runs(session)
                    row = build_session_record(session, runs)
                    if _is_match(session, row, runs, filter):
                        matching.append(row)
                offset += _NAMED_PAGE
            return backend.build_page(matching, page)
        number = backend.read_page_number(page)
        total = await self.reader.count_sessions(filter)
        offset = (number - 1) * page.limit
        sessions = await self.reader.list_sessions(page.limit, offset, filter)
        records = [
            build_session_record(session, await self.reader.list_runs(session))
            for session in sessions
        ]
        return build_document({"data": records, "meta": backend.build_meta(page, number, total)})

    async def get_session_by_id(
        self,
        session_id: str,
        where: requests.SessionLocator = requests.DEFAULT_LOCATOR,
        *,
        view: SessionView = "full",
    ) -> Document[Any]:
        session = await self._require_session(session_id, where)
        runs = await self.reader.list_runs(session)
        data = session.data.get("session_data") or {}

        if view == "summary":
            turns = sum(1 for run in runs if not run["parent_run_id"])
            return build_document(
                build_session_record(session, runs)
                | {
                    "turn_count": turns,
                    "metrics": sum_counters(run["metrics"] for run in runs),
                    "session_summary": session.data.get("summary"),
                    "session_state": data.get("session_state"),
                    "metadata": session.data.get("metadata"),
                }
            )

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
            "created_at": format_optional_time(session.created_at),
            "updated_at": format_optional_time(session.updated_at or session.created_at),
        }

        if session.kind == "workflow":
            named = (session.data.get("workflow_data") or {}).get("name")
            detail |= {"workflow_name": named, "session_data": session.data.get("session_data")}
        else:
            detail |= {
                "session_summary": session.data.get("summary"),
                "metrics": counters,
                "total_tokens": counters["total_tokens"],
                "chat_history": build_history(runs),
            }
        if session.kind == "agent":
            detail["agent_session_id"] = session.session_id
        detail |= {"problem": session.problem} if session.problem else {}

        return build_document(detail)

    async def _require_session(
        self, session_id: str, where: requests.SessionLocator
    ) -> StoredSession:
        session = await self.reader.find_session(session_id)
        if session is None:
            raise errors.NotFound("Session not found")
        backend.check_session(where, session.kind, session.keys["user_id"])
        return session

    async def get_session_runs(
        self, session_id: str, query: requests.SessionRunsQuery = requests.FIRST_RUNS
    ) -> Document[Any]:
        session = await self._require_session(session_id, query.where)
        runs = await self.reader.list_runs(session)
        return build_document(backend.select_runs(runs, query))

    async def get_runs(self, filter: requests.RunFilter) -> Document[Any]:
        """Return matching runs, session by session, the newest session first.

        A page has all matching runs of its sessions. A session without one is not a page.
        """
        self.refuse_search(filter)
        if filter.session_id is not None:
            session = await self._require_session(filter.session_id, requests.DEFAULT_LOCATOR)
            return backend.build_runs_page(await self._list_runs_of_user(session, filter), filter)
        offset = int(filter.page.cursor or 0)
        while sessions := await self.reader.list_sessions(_STATED_PAGE, offset):
            offset += len(sessions)
            runs = [
                run
                for session in sessions
                for run in await self._list_runs_of_user(session, filter)
                if backend.is_match(run, filter)
            ]
            if runs:
                return build_document({"data": runs, "meta": {"next_cursor": str(offset)}})
        return build_document({"data": [], "meta": {"next_cursor": None}})

    async def _list_runs_of_user(
        self, session: StoredSession, filter: requests.RunFilter
    ) -> list[Record]:
        runs = await self.reader.list_runs(session)
        owner = session.keys["user_id"]
        return [run for run in runs if filter.user_id in (None, run["user_id"] or owner)]

    async def get_session_run(
        self,
        session_id: str,
        run_id: str,
        where: requests.SessionLocator = requests.DEFAULT_LOCATOR,
        *,
        form: requests.RunView = requests.FULL_VIEW,
    ) -> Document[Any]:
        session = await self._require_session(session_id, where)
        runs = await self.reader.list_runs(session)
        for run in runs:
            if run["run_id"] == run_id:
                return build_document(backend.view_run(run, form, runs))
        raise errors.NotFound("Run not found")

    async def get_memories(self, filter: MemoryFilter) -> Document[Any]:
        memories = [
            memory
            async for memory in self.reader.list_memories()
            if filter.user_id in (None, memory["user_id"])
        ]
        return backend.build_page(memories, filter.page)


def _is_match(
    session: StoredSession, row: Record, runs: list[Record], filter: requests.SessionFilter
) -> bool:
    """Return True if a session matches its name, and the filters of `SESSION_FILTERS`."""
    last_run = next((run for run in reversed(runs) if not run["parent_run_id"]), None)
    error = last_run and last_run["error"]
    texts = {"metadata": session.data.get("metadata"), "error": error}
    return (
        row["session_name"].lower().startswith((filter.session_name or "").lower())
        and filter.status in (None, row["last_status"])
        and backend.is_between(row["created_at"], filter.created_after, filter.created_before)
        and backend.is_between(row["updated_at"], filter.updated_after, filter.updated_before)
        and is_text_match(texts, filter.metadata, filter.tag, filter.error)
    )

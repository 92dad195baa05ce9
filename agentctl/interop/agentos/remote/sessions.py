"""Sessions, memories and service accounts of an AgentOS server, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from agentctl import errors
from agentctl.interface.declarations import find_declaration
from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    FIRST_RUNS,
    FULL_VIEW,
    BulkDeletion,
    Page,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
    memories,
)
from agentctl.interface.requests.administration import AccountFilter
from agentctl.interop.agentos import backend, mapping
from agentctl.interop.agentos.remote.server import AgentOS
from agentctl.interop.agentos.values import read_count
from agentctl.records.document import Document, build_document
from agentctl.records.sessions import SessionView
from agentctl.records.times import now
from agentctl.remote.connection import Connection, ReceivedDocument, Request, Shape, build_path
from agentctl.remote.queries import Pairs, build_query, build_request, query_of

Record = dict[str, Any]


_CONCURRENT_REQUESTS = 8


class AgentOSSessions(backend.AgentOSBackend):
    """Requests to an AgentOS server, and the operations on sessions."""

    def __init__(self, connection: Connection, server: AgentOS) -> None:
        super().__init__(str(server), server.url)
        self.connection = connection
        self.server = server

    def build(self, name: str, **arguments: Any) -> Request:
        """Build the request of an operation from its declaration and all of its arguments."""
        declared = find_declaration(getattr(Operations, name), arguments.get("kind"))
        return build_request(declared, arguments)

    async def read_object(self, request: Request) -> Record:
        """Send a request and return the JSON object of the response."""
        record: Record = await self._read(request, "object", dict[str, Any])
        return record

    async def read_list(self, request: Request, expected: Any = list[Record]) -> list[Record]:
        """Send a request and return the JSON array of the response, by default of objects."""
        records: list[Record] = await self._read(request, "array", expected)
        return records

    async def _read(self, request: Request, shape: Shape, expected: Any) -> Any:
        try:
            return ReceivedDocument(await self.connection.fetch(request, shape), expected).value
        except errors.AgentctlError as failure:
            raise self.server.add_name(failure) from None

    async def send(self, request: Request) -> None:
        """Send a request whose response has no content that matters."""
        try:
            await self.connection.send(request)
        except errors.AgentctlError as failure:
            raise self.server.add_name(failure) from None

    async def read_page(self, path: str, query: Pairs, page: Page) -> tuple[list[Record], Record]:
        """Return the rows and the `meta` of a page of a list, which AgentOS numbers.

        It has no cursors, so the cursor is the number of the next page.
        """
        cursor = page.cursor
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise self.build_missing_error(
                "cursors of this form", "its lists have page numbers: use --page NUMBER"
            )
        number = max(1, backend.read_page_number(page))
        paging = (("limit", str(page.limit)), ("page", str(number)))
        found = await self.read_object(Request("GET", path, (*query, *paging)))
        rows = found.get("data")
        meta = found.get("meta")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self.server.add_name(
                errors.InvalidResponse(
                    "The response of the server is not what agentctl expects",
                    cause="data is missing or of another type",
                )
            )
        counts = meta if isinstance(meta, dict) else {}
        total, pages = (read_count(counts.get(name)) for name in ("total_count", "total_pages"))
        built = backend.build_meta(page, number, total, pages)
        return rows, built if rows else built | {"next_cursor": None}

    async def get_sessions(self, filter: SessionFilter) -> Document[Any]:
        self.refuse_search(filter)
        if given := [name for name in backend.SESSION_FILTERS if getattr(filter, name)]:
            raise self.build_missing_error(
                f"a filter of sessions by {given[0]}",
                "read its database: agentctl sessions list --database URL",
            )
        # AgentOS compares names that were set, not those that it shows: the first message.
        query = query_of(filter, without=("limit", "page", "cursor", "session_name"))
        path = build_path("get_sessions")
        rows, meta = await self.read_page(path, query, filter.page)
        sessions = [mapping.read_session(row) for row in rows]
        if filter.session_name:
            prefix = filter.session_name.lower()
            sessions = [row for row in sessions if row["session_name"].lower().startswith(prefix)]
            meta["searched"] = "page"
        return build_document({"data": sessions, "meta": meta})

    async def get_session_by_id(
        self,
        session_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: SessionView = "full",
    ) -> Document[Any]:
        return build_document(view_session(await self._read_session(session_id, where), view))

    async def _read_session(self, session_id: str, where: SessionLocator) -> Record:
        # With the wrong `type` AgentOS parses a session as another kind.
        request = self.build(
            "get_session_by_id", session_id=session_id, where=omit_type(where), view="full"
        )
        session = await self.read_object(request)
        backend.check_session(where, mapping.find_session_kind(session), where.user_id)
        session.setdefault("session_id", session_id)
        session["session_name"] = str(session.get("session_name") or "")
        history = session.get("chat_history")
        if isinstance(history, list):  # AgentOS has an empty line for each call of a tool
            session["chat_history"] = [line for line in history if line.get("content")]
        return session

    async def update_session(
        self,
        session_id: str,
        patch: SessionPatch,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: SessionView = "full",
    ) -> Document[Any]:
        await self._read_session(session_id, where)
        request = self.build(
            "update_session",
            session_id=session_id,
            patch=patch,
            where=omit_type(where),
            view="full",
        )
        return build_document(view_session(await self.read_object(request), view))

    async def delete_session(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR, *, cancel: bool = False
    ) -> None:
        if cancel:
            raise self.build_missing_error(
                "a deletion that cancels runs", "cancel them first with: agentctl runs cancel"
            )
        # AgentOS answers 204 for a session that does not exist, or of another user.
        await self._require_sessions((session_id,), where)
        where = omit_type(where)
        await self.send(
            self.build("delete_session", session_id=session_id, where=where, cancel=False)
        )

    async def delete_sessions(self, deletion: BulkDeletion) -> None:
        where = SessionLocator(db_id=deletion.db_id)
        kinds = await self._require_sessions(deletion.session_ids, where)
        body = {"session_ids": list(deletion.session_ids), "session_types": kinds}
        query = build_query(db_id=deletion.db_id)
        await self.send(Request("DELETE", build_path("delete_sessions"), query, body))

    async def _require_sessions(
        self, session_ids: tuple[str, ...], where: SessionLocator
    ) -> list[str]:
        semaphore = asyncio.Semaphore(_CONCURRENT_REQUESTS)

        async def read(session_id: str) -> str:
            async with semaphore:
                return mapping.find_session_kind(await self._read_session(session_id, where))

        return list(await asyncio.gather(*map(read, session_ids)))

    async def get_session_runs(
        self, session_id: str, query: SessionRunsQuery = FIRST_RUNS
    ) -> Document[Any]:
        """Return the runs of a session; AgentOS has no pages of them, so they are selected here."""
        runs = await self.read_session_runs(session_id, query.where)
        return build_document(backend.select_runs(runs, query))

    async def read_session_runs(self, session_id: str, where: SessionLocator) -> list[Record]:
        """Return the records of all runs of a session, in the order of the server."""
        path = build_path("get_session_runs", session_id=session_id)
        runs = await self.read_list(Request("GET", path, query_of(where)))
        return [mapping.read_run(run, session_id) for run in runs]

    async def get_session_run(
        self,
        session_id: str,
        run_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        form: RunView = FULL_VIEW,
    ) -> Document[Any]:
        run = await self._read_session_run(session_id, run_id, where)
        children = list[Record]()
        for child in run["member_runs"] if form.view == "items" else ():
            with suppress(errors.NotFound):
                children.append(await self._read_session_run(session_id, child, where))
        return build_document(backend.view_run(run, form, children))

    async def _read_session_run(
        self, session_id: str, run_id: str, where: SessionLocator
    ) -> Record:
        request = self.build(
            "get_session_run", session_id=session_id, run_id=run_id, where=where, form=FULL_VIEW
        )
        return mapping.read_run(await self.read_object(request), session_id)

    # Memories

    async def get_memories(self, filter: memories.MemoryFilter) -> Document[Any]:
        skipped = ("limit", "page", "cursor", "topics")
        query = query_of(filter, without=(*skipped, "sort_by"))
        query += build_query(sort_by=filter.page.sort_by)
        # AgentOS takes a list as a repeated parameter.
        query += tuple(("topics", topic) for topic in filter.topics)
        rows, meta = await self.read_page(build_path("get_memories"), query, filter.page)
        return build_document({"data": [mapping.read_memory(row) for row in rows], "meta": meta})

    async def create_memory(self, memory: memories.NewMemory) -> Document[Any]:
        if memory.user_id is None and self.server.auth_mode != "jwt":
            raise errors.ValidationFailed(
                f"{self.name} needs the user of a memory",
                cause=f"{self.place} does not identify its callers",
                hint="pass --user ID",
            )
        record = await self.read_object(self.build("create_memory", memory=memory))
        return build_document(mapping.read_memory(record))

    async def update_memory(self, memory_id: str, patch: memories.MemoryPatch) -> Document[Any]:
        stored = await self.read_object(self.build("get_memory", memory_id=memory_id))
        # AgentOS replaces the whole memory, and finds it by its user too.
        whole = {name: stored.get(name) for name in ("memory", "topics", "user_id")}
        request = self.build("update_memory", memory_id=memory_id, patch=patch)
        request = replace(request, body=whole | (request.body or {}))
        return build_document(mapping.read_memory(await self.read_object(request)))

    async def delete_memory(self, memory_id: str) -> None:
        await self.read_object(self.build("get_memory", memory_id=memory_id))
        await self.send(self.build("delete_memory", memory_id=memory_id))

    async def delete_memories(self, deletion: memories.MemoryDeletion) -> None:
        if deletion.all:
            raise self.build_missing_error(
                "a deletion of all memories of a user",
                "list them with `agentctl memories list -o name` and delete them by id",
            )
        for memory_id in deletion.memory_ids:
            await self.read_object(self.build("get_memory", memory_id=memory_id))
        await self.send(self.build("delete_memories", deletion=deletion))

    async def get_memory_topics(self, *, user_id: str | None = None) -> Document[Any]:
        request = self.build("get_memory_topics", user_id=user_id)
        topics: list[Any] = await self.read_list(request, list[Any])
        return build_document(sorted({str(topic) for topic in topics}))

    # Service accounts

    async def list_service_accounts(self, filter: AccountFilter) -> Document[Any]:
        query = build_query(sort_order=filter.page.sort_order)
        path = build_path("list_service_accounts")
        rows, meta = await self.read_page(path, query, filter.page)
        moment = now()
        accounts = [mapping.read_account(row, moment) for row in rows]
        if filter.name is not None:  # AgentOS has no filter by name
            accounts = [account for account in accounts if account["name"] == filter.name]
            meta["searched"] = "page"
        return build_document({"data": accounts, "meta": meta})

    async def revoke_service_account(self, account_id: str) -> None:
        await self.send(self.build("revoke_service_account", account_id=account_id))


def view_session(session: Record, view: SessionView) -> Record:
    """Return a session in a view, for which AgentOS has no parameter."""
    return session if view == "full" else mapping.read_session_head(session)


def omit_type(where: SessionLocator) -> SessionLocator:
    """Return a locator without the type: with the wrong one AgentOS 2.7 deletes runs."""
    return replace(where, type=None)


def build_json_fields(**objects: Mapping[str, Any] | None) -> Pairs:
    """Build the fields of a form that have JSON as their value; None omits a field."""
    return tuple(
        (name, orjson.dumps(value).decode()) for name, value in objects.items() if value is not None
    )

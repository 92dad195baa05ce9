"""Requests to an AgentOS server and its responses, parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from agentctl import errors
from agentctl.interface.declarations import find_declaration
from agentctl.interface.operations import Operations
from agentctl.interface.requests import Page
from agentctl.interop.agentos.backend import AgentOSBackend, build_meta, read_page_number
from agentctl.interop.agentos.remote.server import AgentOS
from agentctl.interop.agentos.values import read_count
from agentctl.remote.connection import Connection, ReceivedDocument, Request, Shape
from agentctl.remote.queries import Pairs, build_request

Record = dict[str, Any]


class AgentOSRequests(AgentOSBackend):
    """The requests that all operations on an AgentOS server share."""

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
        return cast(Record, await self._read(request, "object", dict[str, Any]))

    async def read_list(self, request: Request, expected: Any = list[Record]) -> list[Record]:
        """Send a request and return the JSON array of the response, by default of objects."""
        return cast(list[Record], await self._read(request, "array", expected))

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
        number = max(1, read_page_number(page))
        paging = (("limit", str(page.limit)), ("page", str(number)))
        found = await self.read_object(Request("GET", path, (*query, *paging)))
        rows, meta = found.get("data"), found.get("meta")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self.server.add_name(
                errors.InvalidResponse(
                    "The response of the server is not what agentctl expects",
                    cause="data is missing or of another type",
                )
            )
        counts = meta if isinstance(meta, dict) else {}
        total, pages = (read_count(counts.get(name)) for name in ("total_count", "total_pages"))
        built = build_meta(page, number, total, pages)
        return rows, built if rows else built | {"next_cursor": None}


def build_json_fields(**objects: Mapping[str, Any] | None) -> Pairs:
    """Build the fields of a form that have JSON as their value; None omits a field."""
    return tuple(
        (name, orjson.dumps(value).decode()) for name, value in objects.items() if value is not None
    )

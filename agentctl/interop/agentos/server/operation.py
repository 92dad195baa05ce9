"""Operations with the requests and responses of AgentOS, and their parts, such as kept bodies."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

import orjson
from starlette.responses import Response

from agentctl.errors import NotFound, ValidationFailed
from agentctl.interface.declarations import Query
from agentctl.interface.requests import MAXIMUM_LIMIT, MAXIMUM_OFFSET, Page, StreamEvent
from agentctl.interop.agentos.server.directory import Directory
from agentctl.records.document import Document
from agentctl.records.routes import INTERFACE_HEADER
from agentctl.server.answers import BytesResponse, Call, document_response, json_response
from agentctl.server.content import parse_pairs
from agentctl.server.routing import Endpoint, Operation

_INTERFACE_FIELD = INTERFACE_HEADER.lower().encode("ascii")

_EMPTY_MEANS_ABSENT = frozenset({"db_id", "table", "session_id"})
"""Query parameters that clients send empty for no value."""

_MISSING = re.compile(r"(\w+) is required")
_NAMED = re.compile(r"([a-z_]+)(?:\[\d+\][\w.]*)? ")

Portion = list[StreamEvent]

Seconds = Annotated[int | None, Query("Seconds since the epoch")]

MAXIMUM_BYTES = 8 << 20
"""Bytes of all kept bodies and of their documents, in one process."""

MAXIMUM_ENTRY_BYTES = 256 << 10
"""Bytes of a document and its body; larger ones are not kept."""


class AdaptedOperation(Operation):
    """An operation in the interface of AgentOS.

    A request with the header field of `INTERFACE_HEADER` is handled by the native operation. The
    command line and the console send it.

    Args:
        native: the operation of the contract, with the same policy.
        endpoint: the function that handles a call of a client of AgentOS; None for that of
            `native`.
        changes: further arguments of `Operation` that differ from those of `native`.
    """

    def __init__(self, native: Operation, endpoint: Endpoint | None, **changes: Any) -> None:
        same = {
            "body": native.body,
            "adapt_body": native.adapt_body,
            "signature": native.signature if endpoint is None else None,
        }

        super().__init__(
            endpoint or native.execute,
            name=native.operation,
            tag=native.tag,
            path_names=None if "route" in changes else native.path_names,
            in_document=False,
            **(same | changes),
        )

        self._native = native
        self._is_added = "route" in changes

    async def handle_call(self, call: Call) -> Response:
        """Handle a call; an invalid value gets the error body of AgentOS."""
        if any(name == _INTERFACE_FIELD for name, _ in call.scope["headers"]):
            if self._is_added:
                raise call.caller.failure or NotFound("Not found")
            return await self._native.handle_call(call)

        query = call.scope["query_string"]
        if b"=&" in query or query.endswith(b"="):
            pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
            kept = [pair for pair in pairs if pair[1] or pair[0] not in _EMPTY_MEANS_ABSENT]
            call.scope["query_string"] = urlencode(kept).encode("ascii")

        try:
            return await super().handle_call(call)
        except ValidationFailed as error:
            place = "query" if call.scope["method"] == "GET" else "body"
            return json_response({"detail": [_build_detail(error.detail, place)]}, error.status)


def _build_detail(text: str, place: str) -> dict[str, object]:
    """Return an entry of a list of errors, with the parameter or field that the text begins with.

    Values of requests are not repeated, so `input` is null.
    """
    missing = _MISSING.match(text)
    if missing:
        return {
            "type": "missing",
            "loc": [place, missing[1]],
            "msg": "Field required",
            "input": None,
        }

    named = _NAMED.match(text)
    loc = [place, named[1]] if named else [place]
    return {"type": "value_error", "loc": loc, "msg": text, "input": None}


async def translate_portions(
    events: AsyncGenerator[Portion], translate: Callable[[Portion], Portion]
) -> AsyncGenerator[Portion]:
    """Yield each portion of a stream as `translate` returns it, without empty ones."""
    try:
        async for portion in events:
            if translated := translate(portion):
                yield translated
    finally:
        await events.aclose()


def read_repeated(call: Call, name: str) -> tuple[str, ...]:
    """Return all values of a query parameter that can be repeated."""
    pairs = parse_pairs(call.scope["query_string"])
    return tuple(text for key, text in pairs if key == name and text)


def build_page(rows: list[Any], total: int, page: int, size: int) -> dict[str, Any]:
    """Return a page of a list."""
    meta = {
        "page": page,
        "limit": size,
        "total_pages": -(-total // size),
        "total_count": total,
        "search_time_ms": 0.0,
    }
    return {"data": rows, "meta": meta}


async def list_rows(
    read: Callable[[Any], Awaitable[Document[Any]]], filter: Any, size: int
) -> tuple[list[Any], int]:
    """Return the rows of a page that can be larger than those of the contract, and their total.

    Args:
        read: the operation of the list, for a filter with a page of the contract.
        size: rows of a page.

    Raises:
        ValidationFailed: the page is beyond the rows that can be read.
    """
    page: Page = filter.page

    if size <= MAXIMUM_LIMIT:
        page_record = (await read(filter)).value
        return page_record["data"], page_record["meta"]["total_count"]

    offset = (page.page - 1) * size
    if offset > MAXIMUM_OFFSET:
        raise ValidationFailed(f"page must not reach beyond row {MAXIMUM_OFFSET:,}")

    skipped = offset % MAXIMUM_LIMIT
    part = replace(page, limit=MAXIMUM_LIMIT, page=offset // MAXIMUM_LIMIT + 1)

    rows = list[Any]()
    while True:
        page_record = (await read(replace(filter, page=part))).value
        rows += page_record["data"]
        cursor = page_record["meta"]["next_cursor"]
        if cursor is None or len(rows) >= skipped + size:
            return rows[skipped : skipped + size], page_record["meta"]["total_count"]
        part = replace(part, cursor=cursor)


class BuiltBodies:
    """The bodies that were used last, in the shapes of AgentOS, by the documents that they show.

    Clients read the same components, sessions and runs again and again, and a document that has not
    changed has the same body. So it is neither parsed nor built again.

    Attributes:
        size: bytes of the kept documents and bodies.
    """

    def __init__(self) -> None:
        self.size = 0
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()

    def respond(self, key: tuple[Hashable, ...], build: Callable[[], Any]) -> BytesResponse:
        """Return the response with the body for a key.

        Args:
            key: everything that the body depends on: the name of the shape, the bytes of the
                documents, and parameters of the request.
            build: returns the value of the body, if it is not kept.
        """
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
            return document_response(Document(body))

        body = orjson.dumps(build())

        size = _count_bytes(key, body)
        if size <= MAXIMUM_ENTRY_BYTES:
            self._bodies[key] = body
            self.size += size
            while self.size > MAXIMUM_BYTES:
                self.size -= _count_bytes(*self._bodies.popitem(last=False))

        return document_response(Document(body))


class Endpoints:
    """The base of endpoints."""

    def __init__(self, directory: Directory, bodies: BuiltBodies) -> None:
        self._directory = directory
        self._bodies = bodies


def _count_bytes(key: Any, body: bytes) -> int:
    return len(body) + sum(len(part) for part in key if isinstance(part, bytes))

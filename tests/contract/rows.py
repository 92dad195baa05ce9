"""The rows of the contract table: an operation, asked once, and its answer at every target."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentctl.interface.operations import Operations
from agentctl.interface.requests import StreamEvent

__all__ = [
    "FORBIDDEN",
    "INVALID",
    "NOT_FOUND",
    "Call",
    "Ids",
    "Row",
    "fill",
    "read_bytes",
    "read_events",
]

Ids = Mapping[str, str]
"""The ids that earlier rows have kept, by name."""

Call = Callable[[Operations, Ids], Awaitable[Any]]

NOT_FOUND = ('"error_code":"NOT_FOUND"',)
INVALID = ('"error_code":"VALIDATION_ERROR"',)
FORBIDDEN = ('"error_code":"FORBIDDEN"',)


@dataclass(frozen=True)
class Row:
    """An operation that is asked once, and what must come out.

    The rows of a table are a story: each target starts without data and asks them in their order.
    `{name}` in the request, the body and the texts stands for the id that a row kept.
    """

    operation: str
    """Its id."""

    request: str
    """Method, and path with query. The remote client sends exactly this request."""

    call: Call | None = None
    """The same call of the interface; None for a request that only a client of HTTP can send."""

    who: str = "me"
    status: int = 200

    has: tuple[str, ...] = ()
    """Texts that the answer must have: the document, or the body of the error."""

    lacks: tuple[str, ...] = ()

    body: Any = None
    """The body as JSON, or bytes."""

    form: Mapping[str, str] = field(default_factory=dict)
    """The fields of a form, instead of a body."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """Further header fields, names in lower case."""

    keeps: Mapping[str, str] = field(default_factory=dict)
    """Ids for later rows by name: the place in the document, such as `tools.0.tool_call_id`."""

    is_same: bool = True
    """False if the moment of the request changes the answer: targets are not compared with it."""

    def __str__(self) -> str:
        return f"{self.operation} {self.request} as {self.who}: {self.status}"


def fill(text: str, ids: Ids) -> str:
    """Return a text with the names of kept ids replaced by the ids."""
    for name, value in ids.items():
        text = text.replace(f"{{{name}}}", value)
    return text


async def read_bytes(parts: Any) -> bytes:
    """Return the bytes of a file."""
    return b"".join([part async for part in parts])


async def read_events(events: Any) -> list[StreamEvent]:
    """Return the events of a stream."""
    return [event async for event in events]

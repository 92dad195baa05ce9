"""Stories: operations one after another, whose answers are compared between the engines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from agentctl import errors
from agentctl.interface.operations import Operations
from agentctl.interface.requests import BEFORE_FIRST_EVENT, StreamEvent
from agentctl.records.document import Document
from agentctl.service.service import Service
from tests.kit.deployment import Deployment

__all__ = ["OperationCall", "Outcome", "Stage", "call_operation", "normalize", "read_events"]

OperationCall = Callable[[Operations], Awaitable[Any]]

Outcome = tuple[str, object]

_TIME = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+Z|\d{10,}")
"""Times in RFC 3339, and in seconds. A random hint of a token can begin with digits as well."""

_CHANGING = re.compile(
    rb'(?P<request>(?<="request_id":")[0-9a-f-]{36})'
    rb"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
    rb"|sha256:[0-9a-f]{64}"
    rb'|(?<="created_at":)\d{10}'
    rb"|(?:pyd_ai|call)_[0-9A-Za-z]+"
    rb"|agentctl_pat_[0-9A-Za-z]{49}"
    rb'|(?<="token_hint":")[0-9A-Za-z]{4}'
    rb'|(?<="next_cursor":")[\w-]+'
    rb'|(?P<size>(?<="bytes":)\d+)'  # the times of runs have different numbers of digits
)


@dataclass(frozen=True)
class Stage:
    """A deployment on one engine. `results` is shared by the stages of a test run."""

    deployment: Deployment
    engine: str
    results: dict[str, Any]

    def compare_engines(self, name: str, result: Any) -> None:
        """Check that the result equals that of the other engine, once both are known."""
        assert self.results.setdefault(name, result) == result, f"{name}, on {self.engine}"

    @contextlib.asynccontextmanager
    async def open(self, subject: str, *scopes: str) -> AsyncIterator[Operations]:
        """Open a service as a caller with some scopes."""
        principal = self.deployment.principal(self.deployment.token(subject, *scopes))
        async with Service.open(self.deployment.settings, create=True) as service:
            yield service.operations_for(principal)


async def call_operation(operations: Operations, call: OperationCall) -> Outcome:
    """Call an operation; return the bytes of its document, or its error."""
    try:
        answer = await call(operations)
    except errors.AgentctlError as failure:
        return "failed", (failure.error_code, failure.detail, failure.exit_code)
    return "answered", answer.raw if isinstance(answer, Document) else answer


async def read_events(
    stream: AsyncIterator[StreamEvent], after: int = BEFORE_FIRST_EVENT
) -> list[bytes]:
    """Return name and data of all events, with adjacent texts of a run joined.

    The texts that arrive in one read of a model's answer are one event: the number of events
    depends on the time. The numbers continue from `after` without a gap.
    """
    found: list[bytes] = []
    last: dict[str, Any] | None = None
    async for event in stream:
        after += 1
        assert event.seq == after
        data = event.data
        fields = None
        if event.name.endswith("Content"):
            fields = orjson.loads(data)
            if last is not None and last["run_id"] == fields["run_id"]:
                fields["content"] = last["content"] + fields["content"]
                found.pop()
            data = orjson.dumps(fields)
        found.append(b"%s %b" % (event.name.encode(), data))
        last = fields
    return found


def normalize(outcome: Outcome) -> Outcome:
    """Replace ids and times by numbers in the order of their appearance."""
    kind, result = outcome
    seen: dict[bytes, bytes] = {}

    def numbered(found: re.Match[bytes]) -> bytes:
        text = found[0]
        if found["request"]:  # one for each request over HTTP, one for all calls of a command
            return b"<request>"
        if found["size"]:
            return b"0"
        if _TIME.fullmatch(text):
            return b"<time>"
        return seen.setdefault(text, b"<id %d>" % len(seen))

    if isinstance(result, bytes):
        return kind, _CHANGING.sub(numbered, result)
    if isinstance(result, list):
        return kind, _CHANGING.sub(numbered, b"\n".join(result))
    if isinstance(result, tuple):
        return kind, _CHANGING.sub(numbered, repr(result).encode())
    return kind, result

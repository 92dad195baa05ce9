"""Asking the same of both doors, and comparing what they answer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentctl import errors
from agentctl.operations import Operations
from agentctl.records.document import Document
from agentctl.remote import RemoteOperations
from agentctl.service.service import Service
from tests.deployment import Deployment

__all__ = ["Ask", "Doors", "Outcome", "asked", "normal"]

Ask = Callable[[Operations], Awaitable[Any]]

Outcome = tuple[str, object]

_CHANGING = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
    rb'|(?<="created_at":)\d{10}'
    rb"|(?:pyd_ai|call)_[0-9A-Za-z]+"
    rb"|agentctl_pat_[0-9A-Za-z]{49}"
    rb'|(?<="token_hint":")[0-9A-Za-z]{4}'
    rb'|(?<="next_cursor":")[\w-]+'
)


@dataclass(frozen=True)
class Doors:
    """Two doors: the local one to `here`, the remote one to `there`, served at `url`; both to
    databases of one engine. `told` is the same for all doors of a run of the tests."""

    here: Deployment
    there: Deployment
    url: str
    engine: str
    told: dict[str, Any]

    def hold(self, name: str, told: Any) -> None:
        """See that on the other engine, once it has been asked there too, the same was told."""
        assert self.told.setdefault(name, told) == told, f"{name}, on {self.engine}"

    @contextlib.asynccontextmanager
    async def local(self, token: str) -> AsyncIterator[Operations]:
        """The port on this machine, as the bearer of a token of `here`."""
        async with Service.open(self.here.settings, create=True) as service:
            yield service.operations_for(self.here.principal(token))

    @contextlib.asynccontextmanager
    async def remote(self, token: str | None) -> AsyncIterator[Operations]:
        """The port over HTTP, as the bearer of a token of `there`."""
        async with RemoteOperations(self.url, token) as operations:
            yield operations


async def asked(operations: Operations, ask: Ask) -> Outcome:
    """What came of it: the document's bytes, or the failure as both doors must tell it."""
    try:
        answer = await ask(operations)
    except errors.AgentctlError as failure:
        return "failed", (failure.error_code, failure.detail, failure.exit_code)
    return "answered", answer.raw if isinstance(answer, Document) else answer


def normal(outcome: Outcome) -> Outcome:
    """The outcome with ids and times numbered in the order of their appearance."""
    kind, told = outcome
    seen: dict[bytes, bytes] = {}

    def numbered(found: re.Match[bytes]) -> bytes:
        text = found[0]
        if text[:4].isdigit() and b"-" not in text[:4] and (b"T" in text or text.isdigit()):
            return b"<time>"
        return seen.setdefault(text, b"<id %d>" % len(seen))

    if isinstance(told, bytes):
        return kind, _CHANGING.sub(numbered, told)
    if isinstance(told, list):
        return kind, _CHANGING.sub(numbered, b"\n".join(told))
    if isinstance(told, tuple):
        return kind, _CHANGING.sub(numbered, repr(told).encode())
    return kind, told

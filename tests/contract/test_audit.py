"""Audit entries of both backends: equal except ids, times and `via`."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agentctl.interface.operations import Operations
from agentctl.interface.requests.administration import AuditFilter
from tests.contract.backends import Backends, Outcome, call_operation, normalize
from tests.contract.test_changes import (
    WRITER,
    Story,
    cancel_story,
    repeated_story,
    resume_story,
    runs_story,
    sessions_story,
)
from tests.kit.deployment import ADMIN

_OF_THE_DOOR = ("via", "request_id")

STORIES: tuple[Story, ...] = (
    sessions_story,
    runs_story,
    repeated_story,
    cancel_story,
    resume_story,
)
"""The stories in order; each starts with the data of the previous ones."""

CALLERS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    # With the read scope no operation of the stories is denied: a service counts repeated denials.
    "writer": ((*WRITER, "teams:read"), {"allowed", "failed"}),
    "administrator": ((ADMIN,), {"allowed", "failed"}),
}
"""Scopes and the required outcomes."""


async def _read_entries(operations: Operations) -> list[dict[str, Any]]:
    """Return all entries, oldest first, without `via`."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = (await operations.audit.list(AuditFilter(limit=100, cursor=cursor))).value
        found += [{k: v for k, v in row.items() if k not in _OF_THE_DOOR} for row in page["data"]]
        cursor = page["meta"]["next_cursor"]
        if cursor is None:
            return found[::-1]


async def _entries_of_stories(
    backends: Backends, scopes: tuple[str, ...], user: str = "me"
) -> list[list[dict[str, Any]]]:
    """Return the entries of all stories for each backend."""
    # A caller that may not start a run has none to cancel.
    stories = [story for story in STORIES if scopes or story is not cancel_story]
    for story in stories:
        async with backends.local(backends.here.token(user, *scopes)) as operations:
            await story(operations)
        async with backends.remote(backends.there.token(user, *scopes)) as operations:
            await story(operations)
    async with backends.local(backends.here.token("eve", "audit:read")) as operations:
        here = await _read_entries(operations)
    async with backends.remote(backends.there.token("eve", "audit:read")) as operations:
        return [here, await _read_entries(operations)]


@pytest.mark.parametrize("caller", CALLERS)
async def test_both_backends_write_the_same_entries(separate: Backends, caller: str) -> None:
    scopes, outcomes = CALLERS[caller]
    here, there = await _entries_of_stories(separate, scopes)
    assert len(here) == len(there)
    for one, other in zip(here, there, strict=True):
        assert normalize(("row", orjson.dumps(one))) == normalize(("row", orjson.dumps(other)))
    whole = [normalize(("rows", [orjson.dumps(row) for row in rows])) for rows in (here, there)]
    assert whole[0] == whole[1]
    separate.compare_engines(f"the audit of what {caller} did", whole[0])
    assert {row["outcome"] for row in here} == outcomes


async def test_both_backends_record_the_same_denials(separate: Backends) -> None:
    """A service writes the counts of repeated denials later; `here` has one for each story."""
    # The server has counted those of other tests, which may have run before.
    here, there = await _entries_of_stories(separate, (), "stranger")
    first = {row["operation"]: row for row in reversed(here)}
    assert len(there) == len(first) < len(here) < sum(row["count"] for row in here)
    for row in there:
        one = first[row["operation"]]
        assert {**row, "at": "", "seq": 0} == {**one, "at": "", "seq": 0}
        assert (row["outcome"], row["count"]) == ("denied", 1)


async def test_both_backends_page_and_reject_alike(separate: Backends) -> None:
    async def story(operations: Operations) -> list[Outcome]:
        wrong = (
            AuditFilter(limit=0),
            AuditFilter(cursor="x"),
            AuditFilter(principal="\0"),
            AuditFilter(since=4_000_000_000_000_001),
            AuditFilter(operation="none", outcome="denied", principal="é"),
        )
        return [
            await call_operation(operations, lambda p, given=given: p.audit.list(given))
            for given in wrong
        ]

    for scopes in (("audit:read",), (ADMIN,), ("sessions:read",)):
        async with separate.local(separate.here.token("eve", *scopes)) as operations:
            here = await story(operations)
        async with separate.remote(separate.there.token("eve", *scopes)) as operations:
            assert await story(operations) == here

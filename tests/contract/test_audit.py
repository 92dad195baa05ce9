"""What every story leaves in the audit: the same through both doors, but for ids, times and via."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agentctl.operations import AuditFilter, Operations
from tests.contract.doors import Doors, Outcome, asked, normal
from tests.contract.test_changes import (
    WRITER,
    Story,
    cancel_story,
    repeated_story,
    resume_story,
    runs_story,
    sessions_story,
)
from tests.deployment import ADMIN

_OF_THE_DOOR = ("via", "request_id")

STORIES: tuple[Story, ...] = (
    sessions_story,
    runs_story,
    repeated_story,
    cancel_story,
    resume_story,
)
"""One after the other, each on what the ones before it have left."""

CALLERS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "writer": (WRITER, {"allowed", "failed"}),
    "administrator": ((ADMIN,), {"allowed", "failed"}),
    "powerless": ((), {"denied"}),
}
"""Scopes, and the outcomes that there must be."""


async def _audit(port: Operations) -> list[dict[str, Any]]:
    """All rows, oldest first, without what tells one door from the other."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = (await port.get_audit(AuditFilter(limit=100, cursor=cursor))).value
        found += [{k: v for k, v in row.items() if k not in _OF_THE_DOOR} for row in page["data"]]
        cursor = page["meta"]["next_cursor"]
        if cursor is None:
            return found[::-1]


async def _left(doors: Doors, scopes: tuple[str, ...]) -> list[list[dict[str, Any]]]:
    """What the stories leave behind each door."""
    # Who may not start a run has none to cancel.
    stories = [story for story in STORIES if scopes or story is not cancel_story]
    for story in stories:
        async with doors.local(doors.here.token("me", *scopes)) as port:
            await story(port)
        async with doors.remote(doors.there.token("me", *scopes)) as port:
            await story(port)
    async with doors.local(doors.here.token("eve", "audit:read")) as port:
        here = await _audit(port)
    async with doors.remote(doors.there.token("eve", "audit:read")) as port:
        return [here, await _audit(port)]


@pytest.mark.parametrize("caller", CALLERS)
async def test_both_doors_leave_the_same_rows(twins: Doors, caller: str) -> None:
    scopes, outcomes = CALLERS[caller]
    here, there = await _left(twins, scopes)
    assert len(here) == len(there)
    for one, other in zip(here, there, strict=True):
        assert normal(("row", orjson.dumps(one))) == normal(("row", orjson.dumps(other)))
    whole = [normal(("rows", [orjson.dumps(row) for row in rows])) for rows in (here, there)]
    assert whole[0] == whole[1]
    twins.hold(f"the audit of what {caller} did", whole[0])
    assert {row["outcome"] for row in here} == outcomes


async def test_both_doors_page_and_refuse_alike(twins: Doors) -> None:
    async def story(port: Operations) -> list[Outcome]:
        wrong = (
            AuditFilter(limit=0),
            AuditFilter(cursor="x"),
            AuditFilter(principal="\0"),
            AuditFilter(since=4_000_000_000_000_001),
            AuditFilter(operation="none", outcome="denied", principal="é"),
        )
        return [await asked(port, lambda p, given=given: p.get_audit(given)) for given in wrong]

    for scopes in (("audit:read",), (ADMIN,), ("sessions:read",)):
        async with twins.local(twins.here.token("eve", *scopes)) as port:
            here = await story(port)
        async with twins.remote(twins.there.token("eve", *scopes)) as port:
            assert await story(port) == here

"""Values at which engines could differ: texts in any script, numbers at their bounds, orders and
cursors. Both engines return the same.
"""

from __future__ import annotations

from typing import Any

import orjson

from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    BulkDeletion,
    NewSession,
    Page,
    RunFilter,
    RunRequest,
    SessionFilter,
    SessionLocator,
    SessionPatch,
)
from agentctl.interface.requests.administration import AuditFilter
from tests.contract.stories import OperationCall, Outcome, Stage, call_operation, normalize
from tests.kit.deployment import ADMIN

NAMES = (
    "Zebra", "apple", "Äpfel", "äpfel", "Apfel", "İstanbul", "straße", "STRASSE", "ss", "\ufb01ne",
    "fine", "日本", "😀 last", "\uffff", "a_b", "a%b", "a\\b", "a'b", 'a"b', "$1", ":name", "a b",
    "a\u0301", "á", " a", "a\tb", "a\nb", "x" * 255, "é" * 255, "10", "9", "NULL", "", "\u200b",
    "\x01", "\x7f", "--", "/* */", "';DROP TABLE runs;--", "\ud7ff", "\ue000",
)  # fmt: skip

PREFIXES = (
    *(name[:3] for name in NAMES),
    "A",
    "s",
    "ST",
    "É",
    "Á",
    "%",
    "_",
    "a_",
    "\ufb01",
    "X" * 256,
)

REFUSED = ("a\0b", "\0", "\ud800", "a\udfffb")

STATES: tuple[dict[str, Any], ...] = (
    {"n": 2**63 - 1}, {"n": -(2**63)}, {"n": 2**64 - 1}, {"n": 1.5e308}, {"n": 5e-324},
    {"n": 0.1 + 0.2}, {"n": -0.0}, {"n": 1e16}, {"b": True, "a": None, "": {"$": ":x"}},
    {"é": "\u2028", "\x00".join("ab"): 1}, {"s": "\0"}, {"s": "\ud800"},
    {"deep": [[[[[[[[[[]]]]]]]]]]}, {"long": "ü" * 70_000},
)  # fmt: skip


async def names_story(operations: Operations) -> list[Outcome]:
    """Create sessions with every name; list them in every order, by prefix, page by page."""
    asks: list[OperationCall] = []
    for number, name in enumerate((*NAMES, *REFUSED, "y" * 256)):
        new = NewSession(session_id=f"s{number}", session_name=name)
        asks.append(lambda p, new=new: p.sessions.create(new))  # type: ignore[misc]
    for prefix in (*PREFIXES, *REFUSED):
        given = SessionFilter(session_name=prefix, page=Page(limit=100))
        asks.append(lambda p, given=given: p.sessions.list(given))  # type: ignore[misc]
    ids = ("S1", "s1 ", "é", "s1'", "s" * 200)
    asks += [lambda p, each=each: p.sessions.get(each) for each in ids]  # type: ignore[misc]
    asks += [lambda p, each=each: p.sessions.rename("s1", each) for each in REFUSED]  # type: ignore[misc]
    return [await call_operation(operations, ask) for ask in asks]


async def orders_story(operations: Operations) -> list[Outcome]:
    """Read a list in each order, by cursors and by page numbers."""
    found = list[Outcome]()
    for number in range(7):
        await operations.sessions.create(NewSession(session_id=f"o{number}"))
    for number in (3, 0, 5):
        await operations.sessions.rename(f"o{number}", "again")
    for sort in ("created_at", "updated_at"):
        for order in ("asc", "desc"):
            found += await _read_pages(operations, sort, order)
    return found


async def _read_pages(operations: Operations, sort: Any, order: Any) -> list[Outcome]:
    found = list[Outcome]()
    cursor = None
    for number in range(5):
        page = Page(limit=3, sort_by=sort, sort_order=order, cursor=cursor)
        page_record = (await operations.sessions.list(SessionFilter(page=page))).value
        ids: list[Any] = [each["session_id"] for each in page_record["data"]]  # type: ignore[index]
        numbered = Page(limit=3, page=number + 1, sort_by=sort, sort_order=order)
        again = (await operations.sessions.list(SessionFilter(page=numbered))).value
        assert [each["session_id"] for each in again["data"]] == ids  # type: ignore[index]
        found.append(("answered", orjson.dumps(ids)))
        cursor = page_record["meta"]["next_cursor"]  # type: ignore[index]
        if cursor is None:
            break
    return found


async def states_story(operations: Operations) -> list[Outcome]:
    """Store and read JSON of every kind, and messages and ids of every kind."""
    asks: list[OperationCall] = [lambda p: p.sessions.create(NewSession(session_id="s1"))]
    for state in STATES:
        patch = SessionPatch({"session_state": state, "metadata": state})
        asks.append(lambda p, patch=patch: p.sessions.update("s1", patch))  # type: ignore[misc]
    asks.append(lambda p: p.sessions.get("s1"))
    for message in (*NAMES[3::7], *REFUSED[1:3], "m" * 100_000):
        request = RunRequest(message, "s2")
        asks.append(lambda p, request=request: p.runs.create("agent", "echo", request))  # type: ignore[misc]
    asks += [
        lambda p: p.sessions.get("s2"),
        lambda p: p.runs.list(RunFilter(session_id="s2\0")),
        lambda p: p.runs.list(RunFilter(session_id="\ud800")),
        lambda p: p.runs.list(RunFilter(user_id="é'")),
        lambda p: p.runs.list(RunFilter(created_after=0, created_before=4_000_000_000_000_000)),
        lambda p: p.runs.list(RunFilter(created_after=-1)),
        lambda p: p.sessions.list(SessionFilter(SessionLocator(user_id="\0"))),
        lambda p: p.sessions.list(SessionFilter(page=Page(limit=1, page=2**31))),
        lambda p: p.sessions.delete_several(BulkDeletion(("s1", "\0"))),
        lambda p: p.audit.list(AuditFilter(principal="é'", limit=1)),
        lambda p: p.audit.list(AuditFilter(operation="\ud800", limit=1)),
    ]
    return [await call_operation(operations, ask) for ask in asks]


async def test_stored_values_are_equal(stage: Stage) -> None:
    for story in (names_story, orders_story, states_story):
        async with stage.open("me", ADMIN) as operations:
            outcomes = [normalize(outcome) for outcome in await story(operations)]
        for number, outcome in enumerate(outcomes):
            stage.compare_engines(f"step {number} of {story.__name__}", outcome)

"""Filters of lists by status, age, metadata, tags and errors, on both engines."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    NewSession,
    Page,
    RunFilter,
    RunRequest,
    SessionFilter,
    SessionPatch,
)
from agentctl.records.times import parse_rfc3339
from agentctl.store import compared
from tests.contract.stories import Stage
from tests.kit.deployment import ADMIN

USER = ("agents:read", "agents:run", "sessions:read", "sessions:write")

METADATA: dict[str, dict[str, Any]] = {
    "a": {"tags": ["prod", "é"], "ticket": "4711", "n": 3, "paid": True},
    "b": {"tags": ["prod", "beta"], "ticket": 4711, "n": 3.5, "paid": "true", "none": None},
    "c": {"tags": "prod", "ticket": "471", "a b.c": {"d": 1}},
    "d": {"tags": {"prod": "prod"}, "ticket": "x=y", "tag": "prod"},
    "e": {"tags": [["prod"], 1], "text": 'é"\\\n', "n": "3"},
    "f": {"tags": ["prod"], "large": "x" * 9_000},
}
"""The metadata of sessions and of runs with these ids."""

MATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "one tag": ({"tag": ("prod",)}, "abc"),
    "an array in the tags": ({"tag": ('["prod"]',)}, ""),
    "a number in the tags": ({"tag": ("1",)}, ""),
    "two tags": ({"tag": ("prod", "beta")}, "b"),
    "a tag of a script": ({"tag": ("é",)}, "a"),
    "no such tag": ({"tag": ("pro",)}, ""),
    "a text or a number": ({"metadata": ("ticket=4711",)}, "ab"),
    "a number": ({"metadata": ("n=3",)}, "ae"),
    "a fraction": ({"metadata": ("n=3.5",)}, "b"),
    "true": ({"metadata": ("paid=true",)}, "ab"),
    "null": ({"metadata": ("none=null",)}, "b"),
    "a value with =": ({"metadata": ("ticket=x=y",)}, "d"),
    "a key with a dot": ({"metadata": ('a b.c={"d":1}',)}, "c"),
    "escaped letters": ({"metadata": ('text=é"\\\n',)}, "e"),
    "both": ({"metadata": ("n=3", "paid=true"), "tag": ("é",)}, "a"),
    "no such key": ({"metadata": ("missing=1",)}, ""),
    "like is not used": ({"metadata": ("ticket=471%",)}, ""),
    "large metadata": ({"tag": ("prod",), "metadata": (f"large={'x' * 250}",)}, ""),
}

REFUSED: dict[str, dict[str, Any]] = {
    "metadata must be KEY=VALUE": {"metadata": ("key",)},
    "metadata must be KEY=VALUE,": {"metadata": ("=value",)},
    "metadata must be KEY=VALUE, with": {"metadata": ('a"b=1',)},
    "metadata must be KEY=VALUE, with a": {"metadata": ("a\\b=1",)},
    "metadata must be KEY=VALUE, with a key": {"metadata": (f"{'k' * 65}=1",)},
    "the value of metadata must be at most 256": {"metadata": (f"k={'v' * 257}",)},
    "metadata can be given at most 4 times": {"metadata": ("a=1",) * 5},
    "metadata must not contain NUL": {"metadata": ("a=\0",)},
    "tag can be given at most 4 times": {"tag": ("a",) * 5},
    "tag must be 1 to 256": {"tag": ("",)},
    "tag must not contain NUL": {"tag": ("\0",)},
    "error must be 1 to 200": {"error": "x" * 201},
}


async def list_sessions(operations: Operations, **filters: Any) -> str:
    """Return the ids of all matching sessions in order, each of one letter."""
    page = Page(limit=2, sort_order="asc", sort_by=filters.pop("sort_by", "created_at"))
    found: list[str] = []
    while True:
        part = (await operations.sessions.list(SessionFilter(page=page, **filters))).value
        found += [row["session_id"] for row in part["data"]]
        cursor = part["meta"]["next_cursor"]
        if cursor is None:
            assert part["meta"]["total_count"] == len(found)
            assert not part["meta"]["total_is_capped"]
            return "".join(found)
        page = Page(limit=2, sort_order="asc", sort_by=page.sort_by, cursor=cursor)


async def list_runs(operations: Operations, **filters: Any) -> str:
    """Return the ids of the sessions of all matching runs in order."""
    page = Page(limit=2, sort_order="asc")
    found: list[str] = []
    while True:
        part = (await operations.runs.list(RunFilter(page=page, **filters))).value
        found += [row["session_id"] for row in part["data"]]
        cursor = part["meta"]["next_cursor"]
        if cursor is None:
            assert part["meta"]["total_count"] == len(found)
            return "".join(found)
        page = Page(limit=2, sort_order="asc", cursor=cursor)


async def check_story(operations: Operations, stranger: Operations) -> None:
    """Create sessions and runs, and compare the lists with them."""
    for name, metadata in METADATA.items():
        request = RunRequest("hello", name, metadata=metadata)
        await operations.runs.create("agent", "echo", request)
        await operations.sessions.update(name, SessionPatch({"metadata": metadata}))
    await operations.runs.create("agent", "http-500", RunRequest("fail", "a"))
    await operations.runs.create("agent", "http-500", RunRequest("fail", "b"))
    await operations.runs.create("agent", "echo", RunRequest("again", "b"))
    await operations.sessions.create(NewSession(session_id="g"))
    for name, (filters, expected) in MATCHES.items():
        assert await list_sessions(operations, **filters) == expected, name
        assert await list_runs(operations, **filters, parent="none") == expected, name
        assert await list_sessions(stranger, **filters) == "", name
        assert await list_runs(stranger, **filters) == "", name
    for problem, filters in REFUSED.items():
        with pytest.raises(errors.ValidationFailed, match=problem):
            await operations.sessions.list(SessionFilter(**filters))
        with pytest.raises(errors.ValidationFailed, match=problem):
            await operations.runs.list(RunFilter(**filters))
    await check_states(operations, stranger)


async def check_states(operations: Operations, stranger: Operations) -> None:
    """Compare the lists by status, error and time."""
    assert await list_sessions(operations, status="COMPLETED") == "bcdef"
    assert await list_sessions(operations, status="ERROR") == "a"
    assert await list_sessions(operations, status="ERROR", tag=("prod",)) == "a"
    assert await list_sessions(operations, status="RUNNING") == ""
    assert await list_sessions(stranger, status="ERROR") == ""
    for text in ("model_UNAVAILABLE", "The Model", "unavailable t"):
        # A session has the error of its newest run, a run its own.
        assert await list_sessions(operations, error=text) == "a", text
        assert await list_runs(operations, error=text) == "ab", text
        assert await list_runs(operations, error=text, error_code="MODEL_UNAVAILABLE") == "ab"
    for text in ("%", "_", "nothing", "\\"):
        assert await list_sessions(operations, error=text) == ("a" if text == "_" else ""), text
    rows = (await operations.sessions.list(SessionFilter())).value["data"]
    at = {row["session_id"]: parse_rfc3339(row["created_at"]) for row in rows}
    used = {row["session_id"]: parse_rfc3339(row["updated_at"]) for row in rows}
    assert used["a"] > at["c"]
    for sort_by, order in (("created_at", "abcdefg"), ("updated_at", "cdefabg")):
        for name, times, expected in (
            ("created after", {"created_after": at["c"]}, "cdefg"),
            ("created before", {"created_before": at["c"]}, "ab"),
            ("used after", {"updated_after": used["a"]}, "abg"),
            ("used before", {"updated_before": used["a"]}, "cdef"),
            ("both", {"created_after": at["b"], "updated_before": used["g"]}, "bcdef"),
            ("range", {"created_after": at["b"], "created_before": at["d"]}, "bc"),
            ("tagged", {"created_after": at["b"], "tag": ("prod",)}, "bc"),
        ):
            ordered = "".join(sorted(expected, key=order.index))
            assert await list_sessions(operations, sort_by=sort_by, **times) == ordered, name


async def test_engines_filter_alike(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage.open("owner", *USER) as operations, stage.open("stranger", *USER) as stranger:
        await check_story(operations, stranger)

    async with stage.open("boss", ADMIN) as boss:
        filters = SessionFilter(tag=("prod",))
        meta = (await boss.sessions.list(filters)).value["meta"]
        assert meta["total_count"] == 3
        assert "searched_until" not in meta

        newest = (await boss.sessions.list(SessionFilter(page=Page(limit=2)))).value["data"]
        monkeypatch.setattr(compared, "MAXIMUM_READ", 2)
        meta = (await boss.sessions.list(filters)).value["meta"]
        assert meta["searched_until"] == newest[1]["created_at"]
        assert (meta["total_count"], meta["total_is_capped"]) == (0, True)

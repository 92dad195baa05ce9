"""Rows about sessions: their changes, their runs, their end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentctl.interface.requests import (
    BulkDeletion,
    NewSession,
    Page,
    RunRequest,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
)
from agentctl.interface.requests.administration import IdleFilter, PruneRequest
from tests.contract.rows import FORBIDDEN, INVALID, NOT_FOUND, Row, read_bytes

__all__ = ["session_rows"]

MINE = SessionLocator("agent", "me", "main", "sessions")
QUERY = "type=agent&user_id=me&db_id=main&table=sessions"


def session_rows() -> Iterator[Row]:
    yield from _creation_rows()
    yield from _read_rows()
    yield from _wrong_read_rows()
    yield from _run_rows()
    yield from _change_rows()
    yield from _hold_rows()
    yield from _retention_rows()
    yield from _deletion_rows()


def _creation_rows() -> Iterator[Row]:
    operation = "create_session"
    yield Row(
        operation,
        "POST /sessions?type=agent",
        lambda o, at: o.sessions.create(NewSession()),
        status=201,
        has=('"session_name":""', '"user_id":"me"'),
        body={},
        keeps={"unnamed_session": "session_id"},
    )

    yield Row(
        operation,
        "POST /sessions?type=team&db_id=main",
        lambda o, at: o.sessions.create(
            NewSession("team", "named", "Named", {"a": 1}, {"é": [2.5, None]}, "me", "crew", "main")
        ),
        status=201,
        has=('"team_id":"crew"', '"session_name":"Named"', '"é":[2.5,null]'),
        body={
            "session_id": "named",
            "session_name": "Named",
            "session_state": {"a": 1},
            "metadata": {"é": [2.5, None]},
            "user_id": "me",
            "team_id": "crew",
        },
    )

    for name in ("bulk-1", "bulk-2"):
        yield Row(
            operation,
            "POST /sessions?type=agent",
            lambda o, at, name=name: o.sessions.create(NewSession(session_id=name)),  # type: ignore[misc]
            status=201,
            body={"session_id": name},
        )

    refusals: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (409, "CONFLICT", {"session_id": "mine"}),
        (404, "NOT_FOUND", {"agent_id": "nothing"}),
        (422, "session_id", {"session_id": "a b"}),
        (403, "FORBIDDEN", {"user_id": "other"}),
    )

    for status, text, body in refusals:
        new = NewSession(
            session_id=body.get("session_id"),
            component_id=body.get("agent_id"),
            user_id=body.get("user_id"),
        )

        yield Row(
            operation,
            "POST /sessions?type=agent",
            lambda o, at, new=new: o.sessions.create(new),  # type: ignore[misc]
            status=status,
            has=(text,),
            body=body,
        )


def _read_rows() -> Iterator[Row]:
    operation = "get_session_by_id"
    mine = ('"agent_session_id":"mine"', '"chat_history":[{')
    yield Row(operation, "GET /sessions/mine", lambda o, at: o.sessions.get("mine"), has=mine)

    yield Row(
        operation,
        "GET /sessions/mine",
        lambda o, at: o.sessions.get("mine"),
        "one session",
        has=mine,
    )

    yield Row(
        operation,
        f"GET /sessions/mine?{QUERY}&view=summary",
        lambda o, at: o.sessions.get("mine", MINE, view="summary"),
        has=('"mine"',),
        lacks=("chat_history",),
    )

    yield Row(
        operation,
        "GET /sessions/mine?type=team",
        lambda o, at: o.sessions.get("mine", SessionLocator("team")),
        status=404,
        has=NOT_FOUND,
    )

    yield Row(
        operation,
        "GET /sessions/mine",
        lambda o, at: o.sessions.get("mine"),
        "other",
        404,
        NOT_FOUND,
    )

    yield Row(
        operation,
        "GET /sessions/a%20b%C3%BC%3F%25",
        lambda o, at: o.sessions.get("a bü?%"),
        "admin",
        404,
        NOT_FOUND,
    )

    operation = "get_sessions"
    yield Row(
        operation,
        "GET /sessions?limit=100",
        lambda o, at: o.sessions.list(SessionFilter(page=Page(limit=100))),
        has=('"mine"', '"named"', "{unnamed_session}"),
    )

    yield Row(
        operation,
        "GET /sessions?type=team&user_id=me&db_id=main&table=sessions&component_id=crew"
        "&session_name=nAM&limit=5&page=2&sort_by=updated_at&sort_order=asc&id_prefix=named"
        "&status=COMPLETED",
        lambda o, at: o.sessions.list(
            SessionFilter(
                SessionLocator("team", "me", "main", "sessions"),
                "crew",
                "nAM",
                Page(5, 2, None, "updated_at", "asc"),
                "named",
                "COMPLETED",
            )
        ),
        status=422,
        has=("id_prefix",),
    )

    yield Row(
        operation,
        "GET /sessions?type=team&component_id=crew&session_name=nAM",
        lambda o, at: o.sessions.list(SessionFilter(SessionLocator("team"), "crew", "nAM")),
        has=('"named"', '"total_count":1'),
    )

    yield Row(
        operation,
        "GET /sessions?limit=1&sort_by=updated_at&sort_order=asc",
        lambda o, at: o.sessions.list(
            SessionFilter(page=Page(limit=1, sort_by="updated_at", sort_order="asc"))
        ),
        has=('"mine"', '"next_cursor":"'),
    )

    yield Row(
        operation,
        "GET /sessions?limit=0",
        lambda o, at: o.sessions.list(SessionFilter(page=Page(limit=0))),
        status=422,
        has=("limit", *INVALID),
    )

    yield Row(
        operation,
        "GET /sessions?table=users",
        lambda o, at: o.sessions.list(SessionFilter(SessionLocator(table="users"))),
        status=404,
        has=NOT_FOUND,
    )

    yield Row(
        operation,
        "GET /sessions",
        lambda o, at: o.sessions.list(SessionFilter()),
        "other",
        has=('"data":[]',),
    )


def _wrong_read_rows() -> Iterator[Row]:
    """Yield lookups of what there is not, and filters that are no filters."""
    yield Row(
        "get_session_by_id",
        "GET /sessions/nothing",
        lambda o, at: o.sessions.get("nothing"),
        status=404,
        has=("Session not found", *NOT_FOUND),
    )

    yield Row(
        "get_session_by_id",
        "GET /sessions/mine?db_id=nothing",
        lambda o, at: o.sessions.get("mine", SessionLocator(db_id="nothing")),
        status=404,
        has=("Database not found", *NOT_FOUND),
    )

    yield Row(
        "get_session_by_id",
        "GET /sessions/mine?table=users",
        lambda o, at: o.sessions.get("mine", SessionLocator(table="users")),
        status=404,
        has=("Table not found", *NOT_FOUND),
    )

    yield Row(
        "get_sessions",
        "GET /sessions?page=600",
        lambda o, at: o.sessions.list(SessionFilter(page=Page(page=600))),
        status=422,
        has=("cursor", *INVALID),
    )

    yield Row(
        "get_sessions",
        "GET /sessions?cursor=x",
        lambda o, at: o.sessions.list(SessionFilter(page=Page(cursor="x"))),
        status=422,
        has=("cursor", *INVALID),
    )

    yield Row(
        "get_sessions",
        "GET /sessions?metadata=vip",
        lambda o, at: o.sessions.list(SessionFilter(metadata=("vip",))),
        status=422,
        has=("metadata must be KEY=VALUE", *INVALID),
    )


def _run_rows() -> Iterator[Row]:
    """Yield reads of the runs of one session, and of the file of it."""
    operation = "get_session_runs"
    path = "GET /sessions/mine/runs"
    yield Row(operation, path, lambda o, at: o.sessions.list_runs("mine"), has=("{agent_run}",))

    yield Row(
        operation,
        f"{path}?db_id=main&limit=3&after={{agent_run}}&parent=none&view=summary",
        lambda o, at: o.sessions.list_runs(
            "mine",
            SessionRunsQuery(
                SessionLocator(db_id="main"),
                3,
                at["agent_run"],
                parent="none",
                form=RunView("summary"),
            ),
        ),
        lacks=('"run_id":"{agent_run}"',),
    )

    yield Row(
        operation,
        f"{path}?before=nothing&order=desc",
        lambda o, at: o.sessions.list_runs(
            "mine", SessionRunsQuery(before="nothing", order="desc")
        ),
        status=422,
        has=("before",),
    )

    yield Row(operation, path, lambda o, at: o.sessions.list_runs("mine"), "other", 404, NOT_FOUND)

    operation = "get_session_run"
    path = "GET /sessions/mine/runs/{agent_run}"
    yield Row(
        operation,
        path,
        lambda o, at: o.sessions.get_run("mine", at["agent_run"]),
        has=("{agent_run}",),
    )

    yield Row(
        operation,
        f"{path}?{QUERY}&view=items",
        lambda o, at: o.sessions.get_run("mine", at["agent_run"], MINE, form=RunView("items")),
        has=("{agent_run}", '"items":['),
    )

    yield Row(
        operation,
        "GET /sessions/mine/runs/{team_run}",
        lambda o, at: o.sessions.get_run("mine", at["team_run"]),
        status=404,
        has=NOT_FOUND,
    )

    operation = "export_session"
    path = "GET /sessions/mine-team/export"
    yield Row(
        operation,
        f"{path}?type=team&format=markdown&model_calls=true",
        lambda o, at: read_bytes(
            o.sessions.export(
                "mine-team", SessionLocator("team"), format="markdown", model_calls=True
            )
        ),
        has=("\n## 1. me, ",),
        is_same=False,
    )

    yield Row(
        operation,
        path,
        lambda o, at: read_bytes(o.sessions.export("mine-team")),
        has=("{team_run}",),
    )

    yield Row(
        operation,
        path,
        lambda o, at: read_bytes(o.sessions.export("mine-team")),
        "other",
        404,
        NOT_FOUND,
    )


def _change_rows() -> Iterator[Row]:
    operation = "update_session"
    path = "PATCH /sessions/named"
    yield Row(
        operation,
        f"{path}?db_id=main&view=summary",
        lambda o, at: o.sessions.update(
            "named", SessionPatch({"metadata": None}), SessionLocator(db_id="main"), view="summary"
        ),
        "writer",
        has=('"metadata":null', '"named"'),
        body={"metadata": None},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.sessions.update("named", SessionPatch({"session_state": {"k": [1]}})),
        has=('"k":[1]',),
        body={"session_state": {"k": [1]}},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.sessions.update("named", SessionPatch({"session_name": "x" * 256})),
        status=422,
        has=("session_name",),
        body={"session_name": "x" * 256},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.sessions.update("named", SessionPatch({"metadata": {}})),
        "other",
        404,
        NOT_FOUND,
        body={"metadata": {}},
    )

    operation = "rename_session"
    yield Row(
        operation,
        "POST /sessions/named/rename?type=team&view=summary",
        lambda o, at: o.sessions.rename(
            "named", "New name", SessionLocator("team"), view="summary"
        ),
        has=('"session_name":"New name"',),
        body={"session_name": "New name"},
    )

    yield Row(
        operation,
        "POST /sessions/nothing/rename",
        lambda o, at: o.sessions.rename("nothing", ""),
        status=404,
        has=NOT_FOUND,
        body={"session_name": ""},
    )

    operation = "summarize_session"
    yield Row(
        "create_agent_run",
        "POST /agents/summed/runs",
        lambda o, at: o.runs.create("agent", "summed", RunRequest("hello", "summed")),
        body={"message": "hello", "stream": False, "session_id": "summed"},
    )

    yield Row(
        operation,
        "POST /sessions/summed/summarize?type=agent&view=summary",
        lambda o, at: o.sessions.summarize("summed", SessionLocator("agent"), view="summary"),
        has=('"covered_runs":',),
    )

    yield Row(
        operation,
        "POST /sessions/mine/summarize",
        lambda o, at: o.sessions.summarize("mine"),
        status=400,
        has=("BAD_REQUEST", "makes summaries"),
    )

    yield Row(
        operation,
        "POST /sessions/mine/summarize?type=team",
        lambda o, at: o.sessions.summarize("mine", SessionLocator("team")),
        status=404,
        has=NOT_FOUND,
    )


def _hold_rows() -> Iterator[Row]:
    """Yield a hold, the deletions that it refuses, and its end."""
    held = ("HELD", '"session_ids":["named"]')
    yield Row(
        "release_session",
        "DELETE /sessions/named/hold",
        lambda o, at: o.sessions.release("named"),
        "admin",
        409,
        ("CONFLICT", "not held"),
    )

    hold = "POST /sessions/named/hold"
    yield Row(
        "hold_session",
        f"{hold}?db_id=main",
        lambda o, at: o.sessions.hold("named", "claim 17", SessionLocator(db_id="main")),
        "admin",
        has=('"reason":"claim 17"',),
        body={"reason": "claim 17"},
    )

    for who, status, reason, text in (
        ("admin", 409, "again", "held already"),
        ("admin", 422, " ", "reason"),
        ("me", 403, "mine", "FORBIDDEN"),
    ):
        yield Row(
            "hold_session",
            hold,
            lambda o, at, reason=reason: o.sessions.hold("named", reason),  # type: ignore[misc]
            who,
            status,
            (text,),
            body={"reason": reason},
        )

    yield Row(
        "delete_session",
        "DELETE /sessions/named",
        lambda o, at: o.sessions.delete("named"),
        status=409,
        has=held,
    )

    yield Row(
        "delete_sessions",
        "DELETE /sessions",
        lambda o, at: o.sessions.delete_several(BulkDeletion(("bulk-1", "named"))),
        status=409,
        has=held,
        body={"session_ids": ["bulk-1", "named"]},
    )

    yield Row(
        "release_session",
        "DELETE /sessions/named/hold",
        lambda o, at: o.sessions.release("named"),
        "me",
        403,
        FORBIDDEN,
    )

    yield Row(
        "release_session",
        "DELETE /sessions/named/hold",
        lambda o, at: o.sessions.release("named"),
        "admin",
        204,
    )


def _retention_rows() -> Iterator[Row]:
    operation = "get_idle_sessions"
    path = "GET /retention/sessions"
    yield Row(
        operation,
        f"{path}?idle_days=9&component_type=agent&component_id=a%2Fb&db_id=main&limit=2",
        lambda o, at: o.sessions.list_idle(IdleFilter(9, "agent", "a/b", "main", 2)),
        "admin",
        has=('"data":[]',),
    )

    yield Row(
        operation,
        f"{path}?idle_days=0",
        lambda o, at: o.sessions.list_idle(IdleFilter(0)),
        "admin",
        422,
        ("idle_days",),
    )

    yield Row(
        operation,
        f"{path}?idle_days=9",
        lambda o, at: o.sessions.list_idle(IdleFilter(9)),
        "me",
        403,
        FORBIDDEN,
    )

    operation = "prune_sessions"
    path = "POST /retention/sessions/prune"
    ids = {"idle_days": 1, "session_ids": ["mine", "nothing"]}
    yield Row(
        operation,
        f"{path}?db_id=main",
        lambda o, at: o.sessions.prune(PruneRequest(1, ("mine", "nothing"), "main")),
        "admin",
        has=('"removed":[]', '"used":["mine"]', '"missing":["nothing"]'),
        body=ids,
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.sessions.prune(PruneRequest(1, ())),
        "admin",
        422,
        ("session_ids",),
        body={"idle_days": 1, "session_ids": []},
    )

    yield Row(
        operation,
        path,
        lambda o, at: o.sessions.prune(PruneRequest(1, ("mine", "nothing"))),
        "me",
        403,
        FORBIDDEN,
        body=ids,
    )


def _deletion_rows() -> Iterator[Row]:
    operation = "delete_sessions"
    for who, status, ids in (
        ("me", 404, ("bulk-1", "nothing")),
        ("other", 404, ("bulk-1", "bulk-2")),
        ("writer", 403, ("bulk-1", "bulk-2")),
        ("me", 422, ()),
        ("me", 204, ("bulk-1", "bulk-2")),
    ):
        yield Row(
            operation,
            "DELETE /sessions?db_id=main",
            lambda o, at, ids=ids: o.sessions.delete_several(BulkDeletion(ids, "main")),  # type: ignore[misc]
            who,
            status,
            body={"session_ids": list(ids)},
        )

    operation = "delete_session"
    whole = SessionLocator("team", "me", "main", "sessions")
    path = "DELETE /sessions/named?type=team&user_id=me&db_id=main&table=sessions&cancel=true"
    for who, status in (("other", 404), ("writer", 403), ("me", 204), ("me", 404)):
        yield Row(
            operation,
            path,
            lambda o, at: o.sessions.delete("named", whole, cancel=True),
            who,
            status,
        )

    yield Row(
        "get_sessions",
        "GET /sessions?limit=100",
        lambda o, at: o.sessions.list(SessionFilter(page=Page(limit=100))),
        has=('"mine"',),
        lacks=('"named"', '"bulk-1"'),
    )

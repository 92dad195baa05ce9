"""Rows about runs: their start, their events, their end, and what is read of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentctl.interface.requests import (
    CancelRequest,
    ForkRequest,
    MessageRequest,
    Page,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
    RunView,
)
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from tests.contract.rows import FORBIDDEN, INVALID, NOT_FOUND, Row, read_events

__all__ = ["run_rows"]

WHOLE = {"message": "hello", "stream": False}
PREFIXES: dict[ComponentKind, str] = {"agent": "Run", "team": "TeamRun", "workflow": "Workflow"}
FAMILIES: tuple[tuple[ComponentKind, str, str], ...] = (
    ("agent", "echo", "mine"),
    ("team", "desk", "mine-team"),
    ("workflow", "line", "mine-workflow"),
)
"""A component of each kind, and the session of its runs."""


def run_rows() -> Iterator[Row]:
    for kind, name, session in FAMILIES:
        yield from _start_rows(kind, name, session)
        yield from _event_rows(kind, name, session)
        yield from _read_rows(kind, name, session)
        yield from _cancel_rows(kind, name, session)
        yield from _repeat_rows(kind, name, session)

    yield from _special_start_rows()
    yield from _live_rows()
    yield from _failure_rows()
    yield from _list_rows()
    yield from _detail_rows()


def _start_rows(kind: ComponentKind, name: str, session: str) -> Iterator[Row]:
    ids = operation_ids(kind)
    runs = f"POST /{KINDS[kind].path}/{name}/runs"
    body = {**WHOLE, "session_id": session}
    kept = {f"{kind}_run": "run_id"}
    if kind == "team":
        kept["team_call"] = "tools.0.tool_call_id"

    yield Row(
        ids.create_run,
        runs,
        lambda o, at: o.runs.create(kind, name, RunRequest("hello", session)),
        has=('"status":"COMPLETED"', f'"session_id":"{session}"'),
        body=body,
        keeps=kept,
    )

    # The number of events depends on the reads of the model's answer.
    yield Row(
        ids.create_run,
        runs,
        lambda o, at: read_events(o.runs.stream(kind, name, RunRequest("hello", session))),
        has=(f"{PREFIXES[kind]}Started", f"{PREFIXES[kind]}Completed"),
        body={**body, "stream": True},
        is_same=False,
    )

    yield Row(
        ids.create_run,
        f"POST /{KINDS[kind].path}/nothing/runs",
        lambda o, at: o.runs.create(kind, "nothing", RunRequest("hello")),
        status=404,
        has=NOT_FOUND,
        body=WHOLE,
    )


def _event_rows(kind: ComponentKind, name: str, session: str) -> Iterator[Row]:
    """Yield requests for the events of a run without a stream: its content, and its end."""
    ids = operation_ids(kind)
    run = f"{kind}_run"
    where = f"/{KINDS[kind].path}/{name}/runs/{{{run}}}"
    content = f"{PREFIXES[kind]}Content"
    end = f"{PREFIXES[kind]}Completed"

    def resume(**options: Any) -> Any:
        request = ResumeRequest(**options)
        return lambda o, at: read_events(o.runs.resume(kind, name, at[run], request))

    def follow(**options: Any) -> Any:
        request = ResumeRequest(**options)
        return lambda o, at: read_events(o.runs.follow(kind, name, at[run], request))

    for operation, call, request in (
        (ids.resume_run, resume, f"POST {where}/resume"),
        (ids.follow_run, follow, f"GET {where}/events"),
    ):
        inside = f"{request}?session_id={session}"
        yield Row(operation, inside, call(session_id=session), has=(content, end))

        yield Row(
            operation,
            f"{inside}&last_event_index=0",
            call(session_id=session, after=0),
            has=(end,),
            lacks=(content,),
        )

        yield Row(
            operation,
            f"{request}?session_id=theirs",
            call(session_id="theirs"),
            status=404,
            has=NOT_FOUND,
        )

        yield Row(
            operation,
            f"{inside}&last_event_index=-2",
            call(session_id=session, after=-2),
            status=422,
            has=("last_event_index",),
        )

    yield Row(ids.resume_run, f"POST {where}/resume", resume(), "admin", has=(content, end))
    yield Row(ids.resume_run, f"POST {where}/resume", resume(), status=400, has=("session_id",))
    yield Row(ids.follow_run, f"GET {where}/events", follow(), has=(content, end))
    yield Row(ids.follow_run, f"GET {where}/events", follow(), "other", 404, NOT_FOUND)


def _read_rows(kind: ComponentKind, name: str, session: str) -> Iterator[Row]:
    ids = operation_ids(kind)
    run = f"{kind}_run"
    component = f"/{KINDS[kind].path}/{name}"
    yield Row(
        ids.get_run,
        f"GET {component}/runs/{{{run}}}",
        lambda o, at: o.runs.get_of_component(kind, name, at[run]),
        has=('"status":"COMPLETED"', f"{{{run}}}"),
    )

    yield Row(
        ids.get_run,
        f"GET {component}/runs/{{{run}}}?session_id={session}&view=summary",
        lambda o, at: o.runs.get_of_component(
            kind, name, at[run], session_id=session, form=RunView("summary")
        ),
        has=(f"{{{run}}}",),
        lacks=('"messages"',),
    )

    yield Row(
        ids.get_run,
        f"GET {component}/runs/{{{run}}}",
        lambda o, at: o.runs.get_of_component(kind, name, at[run]),
        "other",
        404,
        NOT_FOUND,
    )

    yield Row(
        ids.list_runs,
        f"GET {component}/runs?status=COMPLETED&session_id={session}&user_id=me&db_id=main"
        "&limit=5&sort_order=asc&created_after=1970-01-01T00%3A00%3A00.000000Z&view=summary",
        lambda o, at: o.runs.list_of_component(
            kind,
            name,
            RunFilter(
                "COMPLETED",
                session_id=session,
                user_id="me",
                db_id="main",
                created_after=0,
                page=Page(limit=5, sort_order="asc"),
                form=RunView("summary"),
            ),
        ),
        has=(f"{{{run}}}", '"total_count":2'),
    )

    yield Row(
        ids.list_runs,
        f"GET {component}/runs",
        lambda o, at: o.runs.list_of_component(kind, name, RunFilter()),
        "other",
        has=('"data":[]',),
    )

    tool = f"GET {component}/runs/{{{run}}}/tools"
    yield Row(
        ids.get_tool_call,
        f"{tool}/call%3F1?session_id={session}",
        lambda o, at: o.runs.get_tool_call(kind, name, at[run], "call?1", session_id=session),
        status=404,
        has=NOT_FOUND,
    )

    if kind == "team":
        yield Row(
            ids.get_tool_call,
            f"{tool}/{{team_call}}",
            lambda o, at: o.runs.get_tool_call(kind, name, at[run], at["team_call"]),
            has=("{team_call}", '"result":"hello"'),
        )


def _cancel_rows(kind: ComponentKind, name: str, session: str) -> Iterator[Row]:
    ids = operation_ids(kind)
    run = f"{kind}_run"
    cancel = f"POST /{KINDS[kind].path}/{name}/runs/{{{run}}}/cancel"
    yield Row(
        ids.cancel_run,
        f"{cancel}?session_id={session}&wait=0.5&reason=no%20more",
        lambda o, at: o.runs.cancel(kind, name, at[run], CancelRequest(session, 0.5, "no more")),
        has=('"cancel":"already_final"', '"status":"COMPLETED"'),
    )

    yield Row(
        ids.cancel_run,
        cancel,
        lambda o, at: o.runs.cancel(kind, name, at[run], CancelRequest()),
        "admin",
        has=('"cancel":"already_final"',),
    )

    yield Row(
        ids.cancel_run,
        cancel,
        lambda o, at: o.runs.cancel(kind, name, at[run], CancelRequest()),
        status=400,
        has=("BAD_REQUEST", "session_id"),
    )

    yield Row(
        ids.cancel_run,
        f"{cancel}?session_id={session}&wait=31",
        lambda o, at: o.runs.cancel(kind, name, at[run], CancelRequest(session, 31)),
        status=422,
        has=("wait",),
    )


def _repeat_rows(kind: ComponentKind, name: str, session: str) -> Iterator[Row]:
    ids = operation_ids(kind)
    run = f"{kind}_run"
    where = f"POST /{KINDS[kind].path}/{name}/runs"
    origin = (f'"origin_run_id":"{{{run}}}"', "COMPLETED")
    yield Row(
        ids.retry_run,
        f"{where}/{{{run}}}/retry",
        lambda o, at: o.runs.retry(kind, name, at[run], RetryRequest()),
        has=(*origin, '"origin_kind":"retry"'),
        body={"stream": False},
    )

    yield Row(
        ids.retry_run,
        f"{where}/nothing/retry",
        lambda o, at: o.runs.retry(
            kind,
            name,
            "nothing",
            RetryRequest(
                background=True, confirm="h", dependencies={"d": 4}, idempotency_key="key"
            ),
        ),
        status=404,
        has=NOT_FOUND,
        body={"stream": False, "background": True, "confirm": "h", "dependencies": {"d": 4}},
        headers={"idempotency-key": "key"},
    )

    yield Row(
        ids.fork_run,
        f"{where}/{{{run}}}/fork",
        lambda o, at: o.runs.fork(
            kind, name, at[run], ForkRequest(at=0, message="again", session_id=f"fork-{kind}")
        ),
        has=(*origin, '"origin_kind":"fork"', f'"session_id":"fork-{kind}"'),
        body={"stream": False, "at": 0, "message": "again", "session_id": f"fork-{kind}"},
    )

    # A second retry needs a confirmation.
    yield Row(
        ids.retry_run,
        f"{where}/{{{run}}}/retry",
        lambda o, at: read_events(
            o.runs.stream_retried(kind, name, at[run], RetryRequest(confirm="x"))
        ),
        status=409,
        has=("NEEDS_CONFIRMATION", '"plan":{'),
        body={"stream": True, "confirm": "x"},
    )

    yield Row(
        ids.fork_run,
        f"{where}/{{{run}}}/fork",
        lambda o, at: read_events(
            o.runs.stream_forked(kind, name, at[run], ForkRequest(at=0, message="hello"))
        ),
        has=(f"{PREFIXES[kind]}Completed",),
        body={"stream": True, "at": 0, "message": "hello"},
        is_same=False,
    )

    yield Row(
        ids.fork_run,
        f"{where}/{{{run}}}/fork",
        lambda o, at: o.runs.fork(kind, name, at[run], ForkRequest(at=1_000)),
        status=422,
        has=("at must be",),
        body={"stream": False, "at": 1_000},
    )


def _special_start_rows() -> Iterator[Row]:
    """Yield starts with all fields, with a key, and with errors."""
    runs = "POST /agents/echo/runs"
    yield Row(
        "create_agent_run",
        runs,
        lambda o, at: o.runs.create(
            "agent",
            "echo",
            RunRequest(
                "hi",
                "full",
                "me",
                metadata={"é": [1, 2.5]},
                session_state={"n": 1},
                idempotency_key="one",
            ),
        ),
        has=('"metadata":{"é":[1,2.5]}',),
        body={
            **WHOLE,
            "message": "hi",
            "session_id": "full",
            "user_id": "me",
            "metadata": {"é": [1, 2.5]},
            "session_state": {"n": 1},
        },
        headers={"idempotency-key": "one"},
        keeps={"keyed_run": "run_id"},
    )

    # Another component continues the conversation; the events are those of its kind.
    yield Row(
        "fork_agent_run",
        "POST /agents/echo/runs/{keyed_run}/fork",
        lambda o, at: read_events(
            o.runs.stream_forked(
                "agent",
                "echo",
                at["keyed_run"],
                ForkRequest(at=2, message="m", team_id="desk", session_id="moved", confirm="h"),
            )
        ),
        has=("TeamRunCompleted", '"session_id":"moved"'),
        body={
            "stream": True,
            "at": 2,
            "message": "m",
            "team_id": "desk",
            "session_id": "moved",
            "confirm": "h",
        },
        is_same=False,
    )

    repeated: Any = {"message": "hi", "session_id": "full", "idempotency_key": "two"}
    for text, status, has in (
        ("hi", 200, ('"content":"hi"',)),
        ("hi", 200, ("{repeated_run}",)),
        ("else", 422, ("was used for another request",)),
    ):
        yield Row(
            "create_agent_run",
            runs,
            lambda o, at, text=text: o.runs.create(  # type: ignore[misc]
                "agent", "echo", RunRequest(**{**repeated, "message": text})
            ),
            status=status,
            has=has,
            body={**WHOLE, "message": text, "session_id": "full"},
            headers={"idempotency-key": "two"},
            keeps={"repeated_run": "run_id"} if status == 200 else {},
        )

    # The second one streams the events of the run that the first one has started.
    streamed: Any = {**repeated, "idempotency_key": "three"}
    for _ in range(2):
        yield Row(
            "create_agent_run",
            runs,
            lambda o, at: read_events(o.runs.stream("agent", "echo", RunRequest(**streamed))),
            has=("RunCompleted",),
            body={"stream": True, "message": "hi", "session_id": "full"},
            headers={"idempotency-key": "three"},
            is_same=False,
        )

    yield Row(
        "create_agent_run",
        runs,
        lambda o, at: o.runs.create("agent", "echo", RunRequest("x", "mine-team", background=True)),
        status=409,
        has=("CONFLICT",),
        body={**WHOLE, "message": "x", "background": True, "session_id": "mine-team"},
    )

    # An invalid key is sent as an empty one, which the server refuses.
    yield Row(
        "create_agent_run",
        runs,
        lambda o, at: o.runs.create("agent", "echo", RunRequest("hi", idempotency_key="a b")),
        status=422,
        has=("Idempotency-Key",),
        body={**WHOLE, "message": "hi"},
        headers={"idempotency-key": ""},
    )

    yield Row(
        "create_agent_run",
        runs,
        lambda o, at: o.runs.create("agent", "echo", RunRequest(input={"é": [1]})),
        status=422,
        has=INVALID,
        body={"input": {"é": [1]}, "stream": False},
    )

    yield Row(
        "create_agent_run",
        runs,
        lambda o, at: o.runs.create("agent", "echo", RunRequest("hi", "a b")),
        status=422,
        has=("session_id", *INVALID),
        body={"message": "hi", "stream": False, "session_id": "a b"},
    )

    yield Row(
        "create_agent_run",
        runs,
        lambda o, at: o.runs.create("agent", "echo", RunRequest("")),
        status=422,
        has=("message", *INVALID),
        body={"message": "", "stream": False},
    )

    yield Row(
        "create_agent_run",
        runs,
        lambda o, at: o.runs.create("agent", "echo", RunRequest("hi \ud800")),
        status=422,
        has=INVALID,
        body={**WHOLE, "message": "hi \ud800"},
    )


def _live_rows() -> Iterator[Row]:
    """Yield the cancel and the deletion of a run that hangs."""
    yield Row(
        "create_agent_run",
        "POST /agents/hang/runs",
        lambda o, at: o.runs.create("agent", "hang", RunRequest("x", "live", background=True)),
        status=202,
        body={"message": "x", "stream": False, "background": True, "session_id": "live"},
        keeps={"live_run": "run_id"},
        is_same=False,
    )

    yield Row(
        "delete_session",
        "DELETE /sessions/live",
        lambda o, at: o.sessions.delete("live"),
        status=409,
        has=("CONFLICT",),
    )

    yield Row(
        "cancel_agent_run",
        "POST /agents/hang/runs/{live_run}/cancel?session_id=live&wait=30.0&reason=enough",
        lambda o, at: o.runs.cancel(
            "agent", "hang", at["live_run"], CancelRequest("live", 30.0, "enough")
        ),
        has=('"cancel":"stopped"', '"status":"CANCELLED"'),
        is_same=False,
    )

    yield Row(
        "get_run",
        "GET /runs/{live_run}",
        lambda o, at: o.runs.get(at["live_run"]),
        has=('"cancel_reason":"enough"',),
        is_same=False,
    )

    yield Row(
        "delete_session",
        "DELETE /sessions/live",
        lambda o, at: o.sessions.delete("live"),
        status=204,
    )


def _failure_rows() -> Iterator[Row]:
    yield Row(
        "create_agent_run",
        "POST /agents/http-500/runs",
        lambda o, at: o.runs.create("agent", "http-500", RunRequest("fail", "failed")),
        has=('"status":"ERROR"', "MODEL_UNAVAILABLE"),
        body={"message": "fail", "stream": False, "session_id": "failed"},
        keeps={"failed_run": "run_id"},
    )

    yield Row(
        "get_run_causes",
        "GET /runs/{failed_run}/causes?db_id=main",
        lambda o, at: o.runs.get_causes(at["failed_run"], db_id="main"),
        "admin",
        has=("{failed_run}", '"causes":['),
    )

    yield Row(
        "get_run_causes",
        "GET /runs/{failed_run}/causes",
        lambda o, at: o.runs.get_causes(at["failed_run"]),
        "me",
        403,
        ("runs:debug", *FORBIDDEN),
    )

    yield Row(
        "get_failures",
        "GET /failures?component_id=http-500&error=MODEL",
        lambda o, at: o.runs.list_failures(RunFilter(component_id="http-500", error="MODEL")),
        "admin",
        has=("{failed_run}", '"total_count":1'),
    )


def _list_rows() -> Iterator[Row]:
    yield Row(
        "get_runs",
        "GET /runs?limit=100",
        lambda o, at: o.runs.list(RunFilter(page=Page(limit=100))),
        has=("{agent_run}", "{team_run}", "{workflow_run}"),
    )

    yield Row(
        "get_runs", "GET /runs", lambda o, at: o.runs.list(RunFilter()), "other", has=('"data":[]',)
    )

    yield Row(
        "get_runs",
        "GET /runs?status=COMPLETED&component_type=team&component_id=desk&session_id=mine-team"
        "&user_id=me&db_id=main&limit=1&sort_order=asc"
        "&created_after=2001-01-01T00%3A00%3A00.000001Z&view=phase&parent=none",
        lambda o, at: o.runs.list(
            RunFilter(
                "COMPLETED",
                "team",
                "desk",
                "mine-team",
                "me",
                "main",
                Page(limit=1, sort_order="asc"),
                created_after=978_307_200_000_001,
                parent="none",
                form=RunView("phase"),
            )
        ),
        has=('"run_id":"{team_run}"', '"words":"completed"'),
    )

    yield Row(
        "get_runs",
        "GET /runs?live=true",
        lambda o, at: o.runs.list(RunFilter(live=True)),
        has=('"data":[]',),
    )

    yield Row(
        "get_runs",
        "GET /runs?limit=5&metadata=%C3%A9%3D%5B1%2C2.5%5D",
        lambda o, at: o.runs.list(RunFilter(metadata=("é=[1,2.5]",), page=Page(limit=5))),
        has=("{keyed_run}", '"total_count":2'),
    )

    yield Row(
        "get_runs",
        "GET /runs?metadata=a%3D1&metadata=b%3D2&tag=x%20y&tag=z",
        lambda o, at: o.runs.list(RunFilter(metadata=("a=1", "b=2"), tag=("x y", "z"))),
        has=('"data":[]',),
    )

    yield Row(
        "get_runs",
        "GET /runs?status=RUNNING&live=true",
        lambda o, at: o.runs.list(RunFilter("RUNNING", live=True)),
        status=422,
        has=("live and status", *INVALID),
    )

    yield Row(
        "get_runs",
        "GET /runs?db_id=nothing",
        lambda o, at: o.runs.list(RunFilter(db_id="nothing")),
        status=404,
        has=NOT_FOUND,
    )

    wrong_filters = (
        ("tag=", RunFilter(tag=("",)), "tag must be 1 to 256 characters"),
        ("error=", RunFilter(error=""), "error must be 1 to 200 characters"),
        ("cursor=x", RunFilter(page=Page(cursor="x")), "cursor must be the next_cursor"),
        ("metadata=vip", RunFilter(metadata=("vip",)), "metadata must be KEY=VALUE"),
    )
    for query, wrong_filter, text in wrong_filters:
        yield Row(
            "get_runs",
            f"GET /runs?{query}",
            lambda o, at, wrong=wrong_filter: o.runs.list(wrong),  # type: ignore[misc]
            status=422,
            has=(text, *INVALID),
        )

    yield Row(
        "get_failures",
        "GET /failures?cursor=x",
        lambda o, at: o.runs.list_failures(RunFilter(page=Page(cursor="x"))),
        "admin",
        status=422,
        has=("cursor must be the next_cursor", *INVALID),
    )


def _detail_rows() -> Iterator[Row]:
    yield Row(
        "get_run",
        "GET /runs/nothing",
        lambda o, at: o.runs.get("nothing"),
        status=404,
        has=("Run not found", *NOT_FOUND),
    )

    yield Row(
        "get_run",
        "GET /runs/{agent_run}",
        lambda o, at: o.runs.get(at["agent_run"]),
        has=("{agent_run}",),
    )

    yield Row(
        "get_run",
        "GET /runs/{team_run}?db_id=main&view=items&cut=9",
        lambda o, at: o.runs.get(at["team_run"], db_id="main", form=RunView("items", 9)),
        has=("{team_run}", '"items":['),
    )

    yield Row(
        "get_run",
        "GET /runs/{agent_run}",
        lambda o, at: o.runs.get(at["agent_run"]),
        "other",
        404,
        NOT_FOUND,
    )

    yield Row(
        "get_run_model_calls",
        "GET /runs/{agent_run}/model-calls?db_id=main&limit=7",
        lambda o, at: o.runs.list_model_calls(at["agent_run"], db_id="main", limit=7),
        has=("{agent_run}", '"total":1'),
    )

    yield Row(
        "get_run_model_calls",
        "GET /runs/{agent_run}/model-calls?after=model-9",
        lambda o, at: o.runs.list_model_calls(at["agent_run"], after="model-9"),
        status=404,
        has=NOT_FOUND,
    )

    yield Row(
        "get_run_model_call",
        "GET /runs/{agent_run}/model-calls/model-1?db_id=main&cut=3",
        lambda o, at: o.runs.get_model_call(at["agent_run"], "model-1", db_id="main", cut=3),
        has=("{agent_run}", '"state":"complete"'),
    )

    yield Row(
        "get_run_model_call",
        "GET /runs/{agent_run}/model-calls/model-9",
        lambda o, at: o.runs.get_model_call(at["agent_run"], "model-9"),
        status=404,
        has=NOT_FOUND,
    )

    yield Row(
        "get_run_messages",
        "GET /runs/{agent_run}/messages?limit=7",
        lambda o, at: o.runs.list_messages(at["agent_run"], limit=7),
        has=("{agent_run}", '"messages":[]'),
    )

    yield Row(
        "get_run_messages",
        "GET /runs/{agent_run}/messages?after=nothing",
        lambda o, at: o.runs.list_messages(at["agent_run"], after="nothing"),
        status=404,
        has=NOT_FOUND,
    )

    yield Row(
        "send_message",
        "POST /runs/{agent_run}/messages",
        lambda o, at: o.runs.send_message(at["agent_run"], MessageRequest("stop", "refuse", "k")),
        status=409,
        has=("The run had ended as COMPLETED",),
        body={"message": "stop", "late": "refuse"},
        headers={"idempotency-key": "k"},
    )

    yield Row(
        "send_message",
        "POST /runs/{agent_run}/messages",
        lambda o, at: o.runs.send_message(at["agent_run"], MessageRequest("stop")),
        "other",
        404,
        NOT_FOUND,
        body={"message": "stop"},
    )

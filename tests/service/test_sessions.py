"""Sessions on the local backend: fields, pages, changes and deletion."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import pytest

from agentctl import errors
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
from agentctl.records.kinds import ComponentKind
from agentctl.records.sessions import SessionHead
from agentctl.runs.engine.cancel import Canceller
from agentctl.runs.workers.liveness import identify_this_process
from agentctl.service.operations import sessions as service_sessions
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.repositories import runs, workers
from agentctl.store.repositories.workers import WorkerRow
from tests.kit.clock import pass_time_until
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.rows import a_run
from tests.kit.service import admin, open_service, streamed_run, user

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

COUNTERS = {
    "input_tokens", "output_tokens", "total_tokens", "audio_input_tokens", "audio_output_tokens",
    "audio_total_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens",
}  # fmt: skip

FIELDS: dict[ComponentKind, dict[str, type | None]] = {
    "agent": {
        "agent_session_id": str, "session_id": str, "session_name": str, "user_id": str,
        "session_summary": None, "session_state": dict, "agent_id": str, "total_tokens": int,
        "agent_data": dict, "metrics": dict, "metadata": dict, "chat_history": list,
        "created_at": str, "updated_at": str, "cost": None, "unpriced_tokens": int,
    },
    "team": {
        "session_id": str, "session_name": str, "user_id": str, "team_id": str,
        "session_summary": None, "session_state": dict, "metrics": dict, "team_data": dict,
        "metadata": dict, "chat_history": list, "created_at": str, "updated_at": str,
        "total_tokens": int, "cost": None, "unpriced_tokens": int,
    },
    "workflow": {
        "session_id": str, "session_name": str, "user_id": str, "workflow_id": str,
        "workflow_name": str, "session_data": dict, "session_state": dict, "workflow_data": dict,
        "metadata": dict, "created_at": str, "updated_at": str,
        "cost": None, "unpriced_tokens": int,
    },
}  # fmt: skip
"""The fields of each schema and their values (docs/contract.md "Session records")."""

COMPONENT: dict[ComponentKind, str] = {"agent": "echo", "team": "crew", "workflow": "line"}


@pytest.mark.parametrize("kind", FIELDS)
async def test_session_has_every_field_with_its_type(
    deployment: Deployment, kind: ComponentKind
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create(kind, COMPONENT[kind], RunRequest("ask  echo\n please", "s1"))
        await operations.sessions.update(
            "s1", SessionPatch({"session_state": {"step": 1}, "metadata": {"origin": "test"}})
        )
        session: dict[str, Any] = dict((await operations.sessions.get("s1")).value)  # type: ignore[arg-type]
    assert {*session} == {*FIELDS[kind]}
    for name, expected in FIELDS[kind].items():
        assert session[name] is None if expected is None else type(session[name]) is expected, name
    assert session["session_name"] == "ask echo please"
    assert session["user_id"] == "me"
    assert TIME.fullmatch(session["created_at"])
    assert TIME.fullmatch(session["updated_at"])
    assert session["session_state"] == {"step": 1}
    assert session["metadata"] == {"origin": "test"}
    _check_content(kind, session)


def _check_content(kind: ComponentKind, session: dict[str, Any]) -> None:
    data = session[f"{kind}_data"]
    assert data[f"{kind}_id"] == session[f"{kind}_id"] == COMPONENT[kind]
    assert data["name"]
    if kind == "workflow":
        assert {*session["session_data"]} == {"session_name", "session_state", "session_metrics"}
        assert {*session["session_data"]["session_metrics"]} == COUNTERS
        return
    assert {*data["model"]} == {"name", "model", "provider"}
    assert {*session["metrics"]} == COUNTERS
    assert session["metrics"]["total_tokens"] == session["total_tokens"] > 0
    for message in session["chat_history"]:
        assert message["role"] in ("system", "user", "assistant")
        assert type(message["content"]) is str
        assert message["from_history"] is False
        assert type(message["stop_after_tool_call"]) is bool
        assert type(message["created_at"]) is int
        assert ("metrics" in message) == (message["role"] == "assistant")


@pytest.mark.parametrize("kind", FIELDS)
async def test_empty_session_has_the_same_fields(
    deployment: Deployment, kind: ComponentKind
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        made = (await operations.sessions.create(NewSession(type=kind))).value
        found = (await operations.sessions.get(made["session_id"])).value
        assert made == found
        assert {*found} == {*FIELDS[kind]}
        assert found["session_name"] == ""


@pytest.mark.parametrize("kind", FIELDS)
async def test_summary_of_a_session_has_counts_and_no_history(
    deployment: Deployment, kind: ComponentKind
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.sessions.create(NewSession(kind, "empty"))
        empty: Any = (await operations.sessions.get("empty", view="summary")).value
        assert (empty["turn_count"], empty["run_count"], empty["last_run"]) == (0, 0, None)
        for _ in range(2):
            run: Any = (
                await operations.runs.create(kind, COMPONENT[kind], RunRequest("x", "s1"))
            ).value
        await operations.sessions.update("s1", SessionPatch({"metadata": {"é": 1}}))
        head: Any = (await operations.sessions.get("s1", view="summary")).value
        assert {*head} == {*SessionHead.__annotations__} - {"hold", "match"}
        assert head["turn_count"] == 2
        assert head["run_count"] == {"agent": 2, "team": 4, "workflow": 8}[kind]
        assert (head["metadata"], head["session_state"]) == ({"é": 1}, None)
        assert head["last_run"]["run_id"] == run["run_id"]
        assert head["last_run"]["phase"]["words"] == "completed"
        (listed, _) = (await operations.sessions.list(SessionFilter())).value["data"]
        assert {name: head[name] for name in listed} == listed


async def test_first_run_names_an_empty_session(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.sessions.create(NewSession(session_id="s1", metadata={"kept": True}))
        await operations.runs.create("agent", "echo", RunRequest("x" * 100, "s1"))
        session: Any = (await operations.sessions.get("s1")).value
        assert session["agent_id"] == "echo"
        assert session["session_name"] == f"{'x' * 59}…"
        assert session["metadata"] == {"kept": True}


async def test_given_name_is_kept(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.sessions.create(NewSession(session_id="s1", session_name="given"))
        await operations.runs.create("agent", "echo", RunRequest("hello", "s1"))
        assert (await operations.sessions.get("s1")).value["session_name"] == "given"
        renamed = (await operations.sessions.rename("s1", "again")).value
        assert renamed["session_name"] == "again"
        assert (await operations.sessions.get("s1")).value == renamed


async def test_session_must_match_the_locator(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        await operations.runs.create("agent", "echo", RunRequest("x", "s1", "me"))
        for where in (
            SessionLocator(type="team"),
            SessionLocator(user_id="other"),
            SessionLocator(db_id="second"),
        ):
            with pytest.raises(errors.NotFound, match="Session not found"):
                await operations.sessions.get("s1", where)
        with pytest.raises(errors.NotFound, match="Database not found"):
            await operations.sessions.get("s1", SessionLocator(db_id="third"))
        with pytest.raises(errors.NotFound, match="Table not found"):
            await operations.sessions.get("s1", SessionLocator(table="runs"))
        right = SessionLocator(type="agent", user_id="me", db_id="main", table="sessions")
        assert (await operations.sessions.get("s1", right)).value["session_id"] == "s1"


async def _list_ids(operations: ServiceOperations, **filters: Any) -> list[str]:
    page = (await operations.sessions.list(SessionFilter(**filters))).value
    return [row["session_id"] for row in page["data"]]


async def test_session_list_has_filters_and_orders(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        await operations.runs.create("agent", "echo", RunRequest("Alpha one", "s1", "a"))
        await operations.runs.create("team", "crew", RunRequest("alpha two", "s2", "b"))
        await operations.runs.create("agent", "history", RunRequest("beta", "s3", "a"))
        await operations.sessions.rename("s1", "Alpha renamed")
        assert await _list_ids(operations) == ["s3", "s2", "s1"]
        assert await _list_ids(operations, page=Page(sort_order="asc")) == ["s1", "s2", "s3"]
        assert await _list_ids(operations, page=Page(sort_by="updated_at")) == ["s1", "s3", "s2"]
        assert await _list_ids(operations, where=SessionLocator(type="team")) == ["s2"]
        assert await _list_ids(operations, where=SessionLocator(user_id="a")) == ["s3", "s1"]
        assert await _list_ids(operations, component_id="history") == ["s3"]
        assert await _list_ids(operations, session_name="ALPHA") == ["s2", "s1"]
        assert await _list_ids(operations, session_name="lpha") == []
        assert await _list_ids(operations, session_name="%") == []


async def test_pages_and_cursors_return_every_session_once(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        made = [f"s{number}" for number in range(7)]
        for session_id in made:
            await operations.sessions.create(NewSession(session_id=session_id))
        numbered = [
            found
            for page in (1, 2, 3, 4)
            for found in await _list_ids(operations, page=Page(limit=2, page=page))
        ]
        assert numbered == made[::-1]
        followed: list[str] = []
        cursor: str | None = None
        while True:
            page = Page(limit=3, cursor=cursor)
            answer = (await operations.sessions.list(SessionFilter(page=page))).value
            followed += [row["session_id"] for row in answer["data"]]
            cursor = answer["meta"]["next_cursor"]
            if cursor is None:
                break
        assert followed == made[::-1]
        assert answer["meta"]["total_count"] == 7
        assert answer["meta"]["total_pages"] == 3


@pytest.mark.parametrize(
    ("page", "named"),
    [
        (Page(limit=0), "limit"),
        (Page(limit=101), "limit"),
        (Page(page=0), "page"),
        (Page(limit=100, page=102), "cursor"),
        (Page(cursor="nonsense"), "cursor"),
        (Page(cursor="é"), "cursor"),
    ],
)
async def test_invalid_page_is_rejected(deployment: Deployment, page: Page, named: str) -> None:
    async with open_service(deployment) as service:
        with pytest.raises(errors.ValidationFailed, match=named):
            await user(service).sessions.list(SessionFilter(page=page))


async def test_cursor_is_bound_to_its_list_and_order(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for session_id in ("s1", "s2"):
            await operations.sessions.create(NewSession(session_id=session_id))
        answer = (await operations.sessions.list(SessionFilter(page=Page(limit=1)))).value
        cursor = answer["meta"]["next_cursor"]
        turned = Page(limit=1, cursor=cursor, sort_order="asc")
        with pytest.raises(errors.ValidationFailed, match="cursor"):
            await operations.sessions.list(SessionFilter(page=turned))
        with pytest.raises(errors.ValidationFailed, match="cursor"):
            await operations.runs.list(RunFilter(page=Page(limit=1, cursor=cursor)))


FORGED = [
    "", "sessions", "sessions:created_at:desc", "sessions:created_at:desc:1",
    "sessions:created_at:desc:one:s1", "sessions:created_at:desc:1e3:s1",
    f"sessions:created_at:desc:{2**63}:s1", f"sessions:created_at:desc:{'9' * 5000}:s1",
    "sessions:created_at:desc:1:s\x001", "sessions:session_id:desc:1:s1", "a:b:c:d:e:f",
]  # fmt: skip


async def test_forged_cursor_is_rejected(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        for text in FORGED:
            cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
            for wrong in (cursor, f"{cursor}!", f" {cursor}"):
                with pytest.raises(errors.ValidationFailed, match="cursor"):
                    await user(service).sessions.list(SessionFilter(page=Page(cursor=wrong)))


async def test_session_with_a_live_run_is_not_deleted(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            task,
        ):
            with pytest.raises(errors.Conflict, match=run["run_id"]):
                await operations.sessions.delete("s1")
            await operations.sessions.delete("s1", cancel=True)
            await task
        with pytest.raises(errors.NotFound):
            await operations.sessions.get("s1")
        with pytest.raises(errors.NotFound):
            await operations.runs.get(run["run_id"])


async def start_runs_of_a_deaf_worker(service: Service, session_id: str) -> list[str]:
    """Store four runs of a live worker that ends no run; return their ids."""
    run_ids = ["r1", "r2", "r3", "r4"]
    database = service.hosting.databases["main"]
    deaf = WorkerRow("deaf", *identify_this_process(), beat=1, started_at=1)
    await database.write(workers.register(deaf))
    for run_id in run_ids:
        run = a_run(run_id, session_id, user_id="me", owner="deaf")
        await database.write(runs.create(run))
        await database.write(runs.claim(run_id, 1, "deaf", run.created_at))
    return run_ids


@pytest.fixture
def cancel_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The begins and ends of all cancels of runs."""
    steps = list[str]()
    cancel = Canceller.cancel

    async def record_steps(*arguments: Any, **options: Any) -> Any:
        steps.append("begin")
        try:
            return await cancel(*arguments, **options)
        finally:
            steps.append("end")

    monkeypatch.setattr(Canceller, "cancel", record_steps)
    return steps


async def test_deletion_waits_for_all_runs_together(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, cancel_steps: list[str]
) -> None:
    """The deletion waits once for all runs of a live worker that does not end them."""
    monkeypatch.setattr(service_sessions, "DELETION_WAIT", 10.0)
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.sessions.create(NewSession(session_id="s1"))
        run_ids = await start_runs_of_a_deaf_worker(service, "s1")

        deletion = asyncio.create_task(operations.sessions.delete("s1", cancel=True))
        await wait_until(lambda: cancel_steps == ["begin"] * 4)
        await pass_time_until(deletion.done, 1.0)

        with pytest.raises(errors.Conflict, match=", ".join(run_ids)):
            await deletion
        stored = (await operations.sessions.list_runs("s1")).value
        assert {run["cancel_reason"] for run in stored} == {"The session is deleted"}


async def test_bulk_deletion_is_all_or_nothing(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for session_id in ("s1", "s2"):
            await operations.sessions.create(NewSession(session_id=session_id))
        with pytest.raises(errors.NotFound):
            await operations.sessions.delete_several(BulkDeletion(("s1", "missing", "s2")))
        assert await _list_ids(operations) == ["s2", "s1"]
        await operations.sessions.delete_several(BulkDeletion(("s1", "s2", "s1")))
        assert await _list_ids(operations) == []
        for wrong in ((), tuple(f"s{number}" for number in range(101))):
            with pytest.raises(errors.ValidationFailed, match="session_ids"):
                await operations.sessions.delete_several(BulkDeletion(wrong))


@pytest.mark.parametrize(
    "patch",
    [
        {"session_name": "a\0b"},
        {"session_name": "x" * 256},
        {"session_state": {"a": ["x\0"]}},
        {"metadata": {"\ud800": 1}},
    ],
)
async def test_value_that_cannot_be_stored_is_rejected(
    deployment: Deployment, patch: dict[str, Any]
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        before = (await operations.sessions.create(NewSession(session_id="s1"))).raw
        with pytest.raises(errors.ValidationFailed):
            await operations.sessions.update("s1", SessionPatch(patch))
        assert (await operations.sessions.get("s1")).raw == before

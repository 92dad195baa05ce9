"""Who did what, and what was refused to whom: no record, no change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import apsw
import pytest

from agentctl import errors
from agentctl.auth.principal import Principal, local_principal
from agentctl.config.settings import Audit
from agentctl.operations import (
    AuditFilter,
    BulkDeletion,
    CancelRequest,
    NewSession,
    ResumeRequest,
    RunFilter,
    RunRequest,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
)
from agentctl.records.audit import AuditRecord
from agentctl.records.routes import ROUTES
from agentctl.records.times import format_rfc3339, now, parse_rfc3339
from agentctl.runs.sweep import delete_expired
from agentctl.service.audit_log import CHANGING_OPERATIONS, MAXIMUM_TEXT
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.repositories import idempotency
from tests.deployment import Deployment
from tests.service.doors import ALL, boss, collect, hosted, started, user

Row = dict[str, Any]

IN_SECOND = SessionRunsQuery(SessionLocator(db_id="second"))


async def rows(service: Service, **wanted: Any) -> list[Row]:
    """The audit, oldest first, read beside the operations that are looked at."""
    found: list[AuditRecord] = []
    cursor: str | None = None
    while True:
        asked = AuditFilter(limit=100, cursor=cursor, **wanted)
        page = (await service.operations_for(local_principal("auditor")).get_audit(asked)).value
        found += page["data"]
        cursor = page["meta"]["next_cursor"]
        if cursor is None:
            return [dict(row) for row in reversed(found)]


def brief(row: Row) -> tuple[Any, ...]:
    return row["operation"], row["resource"], row["outcome"], row["status"], row["reason"]


async def told(service: Service) -> list[tuple[Any, ...]]:
    return [brief(row) for row in await rows(service)]


@contextlib.asynccontextmanager
async def auditing_reads(deployment: Deployment) -> AsyncIterator[Service]:
    settings = replace(deployment.settings, audit=Audit(reads=True))
    async with Service.open(settings, create=True) as service:
        yield service


@contextlib.contextmanager
def in_the_file(deployment: Deployment, name: str = "main") -> Iterator[apsw.Connection]:
    """The database's file, behind the back of the service."""
    with contextlib.closing(apsw.Connection(str(deployment.folder / f"{name}.db"))) as connection:
        connection.set_busy_timeout(5_000)
        yield connection


BREAKS = {
    "refusing": "CREATE TRIGGER no BEFORE INSERT ON audit_log BEGIN SELECT RAISE(ABORT, 'no'); END",
    "gone": "ALTER TABLE audit_log RENAME TO elsewhere",
}
MENDS = {"refusing": "DROP TRIGGER no", "gone": "ALTER TABLE elsewhere RENAME TO audit_log"}


async def test_every_change_of_a_session_has_a_row(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        await port.create_session(NewSession(session_id="s1"))
        made = (await port.create_session(NewSession())).value["agent_session_id"]
        await port.rename_session("s1", "secret name")
        await port.update_session("s1", SessionPatch({"metadata": {"secret": 1}}))
        await port.delete_session("s1")
        await port.delete_sessions(BulkDeletion((made, made)))
        ok = ("allowed", None, None)
        assert await told(service) == [
            ("create_session", "session:s1", *ok),
            ("create_session", f"session:{made}", *ok),
            ("rename_session", "session:s1", *ok),
            ("update_session", "session:s1", *ok),
            ("delete_session", "session:s1", *ok),
            ("delete_sessions", f"session:{made}", *ok),
        ]
        assert "secret" not in str(await rows(service))


async def test_a_row_says_who_and_through_which_door_and_when(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        began = format_rfc3339(now())
        await service.operations_for(Principal("me", ALL), "request-1").create_session(NewSession())
        one = service.operations_for(local_principal("ann"))
        await one.create_session(NewSession())
        await one.create_session(NewSession())
        await service.operations_for(local_principal("ann", acting_for="bob")).create_session(
            NewSession()
        )
        await service.operations_for(Principal(None, ALL)).create_session(NewSession())
        found = await rows(service)
        assert [(row["principal"], row["via"]) for row in found] == [
            ("me", "http"),
            ("local:ann", "local"),
            ("local:ann", "local"),
            ("local:ann", "local"),
            ("anonymous", "http"),
        ]
        ids = [row["request_id"] for row in found]
        assert ids[0] == "request-1"
        assert ids[1] == ids[2]
        assert len(set(ids)) == 4
        assert began <= found[0]["at"] <= found[-1]["at"] <= format_rfc3339(now())
        assert [row["seq"] for row in found] == sorted({row["seq"] for row in found})


async def test_a_run_has_one_row_with_its_id_and_its_session(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service, session_id="claimed")
        run = (await port.create_run("agent", "echo", RunRequest("secret text"))).value
        await collect(port, "team", "crew", message="ask echo", session_id="t1")
        first, second = await rows(service)
        assert brief(first)[:3] == (
            "create_agent_run",
            f"agent:echo,session:claimed,run:{run['run_id']}",
            "allowed",
        )
        assert brief(second)[0] == "create_team_run"
        assert second["resource"].startswith("team:crew,session:t1,run:")
        assert "secret" not in str([first, second])


async def test_a_repeated_request_is_no_second_run_and_has_no_second_row(
    deployment: Deployment,
) -> None:
    request = RunRequest("x", "s1", idempotency_key="k")
    async with hosted(deployment) as service:
        for agent in ("echo", "apart"):
            for _ in range(3):
                await user(service).create_run("agent", agent, request)
            with pytest.raises(errors.ValidationFailed):
                await user(service).create_run("agent", agent, replace(request, message="y"))
            request = replace(request, session_id="s2", idempotency_key="l")
        found = await rows(service)
        assert [row["outcome"] for row in found] == ["allowed", "failed"] * 2
        (run,) = (await user(service).get_session_runs("s2", IN_SECOND)).value
        about = f"agent:apart,session:s2,database:second,run:{run['run_id']}"
        assert found[2]["resource"] == about


async def test_a_key_that_is_forgotten_meanwhile_starts_no_run_without_a_row(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RunRequest("x", "s1", idempotency_key="k")
    async with hosted(deployment) as service:
        port = user(service)
        await port.create_run("agent", "apart", request)
        with in_the_file(deployment, "second") as file:
            expired = now() - idempotency.KEY_LIFETIME - 1
            file.execute("UPDATE idempotency SET created_at = ?", (expired,))
        # The clock of who looks first is behind that of who decides.
        with monkeypatch.context() as patched:
            patched.setattr("agentctl.service.runs.now", lambda: now() - 10_000_000)
            with pytest.raises(errors.Unavailable):
                await port.create_run("agent", "apart", request)
        assert len((await port.get_session_runs("s1", IN_SECOND)).value) == 1
        await port.create_run("agent", "apart", request)
        assert len((await port.get_session_runs("s1", IN_SECOND)).value) == 2
        outcomes = [(row["outcome"], row["status"]) for row in await rows(service)]
        assert outcomes == [("allowed", None), ("failed", 503), ("allowed", None)]


async def test_a_cancel_has_a_row_whatever_it_stops(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, _):
            run_id = run["run_id"]
            await port.cancel_run("agent", "hang", run_id, CancelRequest("s1", 10, "my secret"))
            await port.cancel_run("agent", "hang", run_id, CancelRequest("s1"))
            for wrong in (CancelRequest("s2"), CancelRequest(), CancelRequest("s1", 31)):
                with pytest.raises(errors.AgentctlError):
                    await port.cancel_run("agent", "hang", run_id, wrong)
        found = [row for row in await told(service) if row[0] == "cancel_agent_run"]
        about = f"agent:hang,run:{run_id}"
        assert found == [
            ("cancel_agent_run", f"{about},session:s1", "allowed", None, None),
            ("cancel_agent_run", f"{about},session:s1", "allowed", None, None),
            ("cancel_agent_run", f"{about},session:s2", "failed", 404, "NOT_FOUND"),
            ("cancel_agent_run", about, "failed", 400, "BAD_REQUEST"),
            ("cancel_agent_run", f"{about},session:s1", "failed", 422, "VALIDATION_ERROR"),
        ]


async def test_a_deletion_that_cancels_has_one_row_before_the_cancels(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "hang", message="x", session_id="s1"):
            with pytest.raises(errors.Conflict):
                await port.delete_session("s1")
            await port.delete_session("s1", cancel=True)
        found = [brief(row)[:4] for row in await rows(service, operation="delete_session")]
        assert found == [
            ("delete_session", "session:s1", "failed", 409),
            ("delete_session", "session:s1", "allowed", None),
        ]
        assert len(await rows(service)) == 3


async def test_what_fails_has_a_row_and_nothing_says_that_it_was_allowed(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        await port.create_session(NewSession(session_id="s1"))
        asks: list[Callable[[], Awaitable[Any]]] = [
            lambda: port.create_session(NewSession(session_id="s1")),
            lambda: port.create_session(NewSession(session_id="not one")),
            lambda: port.create_session(NewSession(db_id="none")),
            lambda: port.rename_session("none", "x"),
            lambda: port.rename_session("s1", "x" * 256),
            lambda: port.update_session("s1", SessionPatch({"metadata": {"a": "\0"}})),
            lambda: port.delete_sessions(BulkDeletion(("s1", "none"))),
            lambda: port.delete_sessions(BulkDeletion(())),
            lambda: port.create_run("agent", "none", RunRequest("x")),
            lambda: port.create_run("agent", "echo", RunRequest("", "s1")),
            lambda: port.create_run("team", "crew", RunRequest("x", "s1")),
            lambda: port.create_run("agent", "echo", RunRequest("x", "s1", idempotency_key="")),
        ]
        for ask in asks:
            with pytest.raises(errors.AgentctlError):
                await ask()
        assert (await told(service))[1:] == [
            ("create_session", "session:s1", "failed", 409, "CONFLICT"),
            ("create_session", None, "failed", 422, "VALIDATION_ERROR"),
            ("create_session", None, "failed", 404, "NOT_FOUND"),
            ("rename_session", "session:none", "failed", 404, "NOT_FOUND"),
            ("rename_session", "session:s1", "failed", 422, "VALIDATION_ERROR"),
            ("update_session", "session:s1", "failed", 422, "VALIDATION_ERROR"),
            ("delete_sessions", "session:s1,session:none", "failed", 404, "NOT_FOUND"),
            ("delete_sessions", None, "failed", 422, "VALIDATION_ERROR"),
            ("create_agent_run", "agent:none", "failed", 404, "NOT_FOUND"),
            ("create_agent_run", "agent:echo", "failed", 422, "VALIDATION_ERROR"),
            ("create_team_run", "team:crew,session:s1", "failed", 409, "CONFLICT"),
            ("create_agent_run", "agent:echo", "failed", 422, "VALIDATION_ERROR"),
        ]


async def test_a_change_in_another_database_has_its_row_before_it(deployment: Deployment) -> None:
    second = SessionLocator(db_id="second")
    async with hosted(deployment) as service:
        port = user(service)
        other = await user(service, "other").create_run("agent", "apart", RunRequest("x", "theirs"))
        await port.create_session(NewSession(session_id="s1", db_id="second"))
        await port.rename_session("s1", "x", second)
        with pytest.raises(errors.NotFound):
            await port.rename_session("none", "x", second)
        with pytest.raises(errors.NotFound):
            await port.create_run("agent", "apart", RunRequest("x", "theirs"))
        place = "database:second"
        *found, before, failed = await told(service)
        about = f"agent:apart,session:theirs,{place},run:{other.value['run_id']}"
        assert found == [
            ("create_agent_run", about, "allowed", None, None),
            ("create_session", f"session:s1,{place}", "allowed", None, None),
            ("rename_session", f"session:s1,{place}", "allowed", None, None),
            ("rename_session", f"session:none,{place}", "allowed", None, None),
            ("rename_session", f"session:none,{place}", "failed", 404, "NOT_FOUND"),
        ]
        assert (before[1], before[2], failed[2:]) == (
            failed[1],
            "allowed",
            ("failed", 404, "NOT_FOUND"),
        )


async def test_every_denial_has_a_row_reads_too(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = service.operations_for(Principal("me", frozenset({"agents:echo:read"})))
        asks: list[Callable[[], Awaitable[Any]]] = [
            lambda: port.get_session_by_id("s1"),
            lambda: port.get_components("team"),
            lambda: port.get_component("agent", "hang"),
            lambda: port.get_config(),
            lambda: port.get_audit(AuditFilter()),
            lambda: port.rename_session("a,session:b\n", "x"),
            lambda: port.create_run("agent", "echo", RunRequest("x")),
            lambda: port.open_resumed_stream("agent", "echo", "r", ResumeRequest()),
        ]
        for ask in asks:
            with pytest.raises(errors.Forbidden):
                await ask()
        await port.get_component("agent", "echo")
        found = await told(service)
        assert found == [
            (name, about, "denied", 403, reason)
            for name, about, reason in (
                ("get_session_by_id", "session:s1", _one("sessions", "s1", "read")),
                ("get_teams", None, "teams:*:read, teams:read"),
                ("get_agent", "agent:hang", _one("agents", "hang", "read")),
                ("get_config", None, "config:read, system:read"),
                ("get_audit", None, "audit:read"),
                (
                    "rename_session",
                    "session:a%2Csession%3Ab%0A",
                    "sessions:*:write, sessions:write",
                ),
                ("create_agent_run", "agent:echo", _one("agents", "echo", "run")),
                ("resume_agent_run_stream", "agent:echo,run:r", _one("agents", "echo", "run")),
            )
        ]


def _one(resource: str, id: str, action: str) -> str:
    return f"{resource}:{id}:{action}, {resource}:*:{action}, {resource}:{action}"


async def test_ids_cannot_pass_for_others_and_are_cut(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        for name in ("a,run:b", "é\ud800\0", "x" * 2_000):
            with pytest.raises(errors.AgentctlError):
                await port.rename_session(name, "x")
        with pytest.raises(errors.NotFound):
            await port.delete_sessions(BulkDeletion(tuple(f"{n:030}" for n in range(100))))
        about = [row["resource"] for row in await rows(service)]
        assert about[:2] == ["session:a%2Crun%3Ab", "session:%C3%A9%ED%A0%80%00"]
        assert about[2] == f"session:{'x' * (MAXIMUM_TEXT - 11)}..."
        assert len(about[3]) == MAXIMUM_TEXT
        assert about[3].startswith(f"session:{0:030},session:{1:030},")


@pytest.mark.parametrize("broken", BREAKS)
async def test_no_record_no_change(deployment: Deployment, broken: str) -> None:
    """The audit is in the way of every change, in whichever database, and of nothing else."""
    second = SessionLocator(db_id="second")
    async with hosted(deployment) as service:
        port = user(service)
        for where in (None, "second"):
            await port.create_session(NewSession(session_id="s1", session_name="old", db_id=where))
        before = await _state(service)
        async with started(port, "agent", "hang", message="x", session_id="busy") as (run, _):
            with in_the_file(deployment) as file:
                file.execute(BREAKS[broken])
            asks: list[Callable[[], Awaitable[Any]]] = [
                lambda: port.create_session(NewSession(session_id="s2")),
                lambda: port.create_session(NewSession(session_id="s2", db_id="second")),
                lambda: port.rename_session("s1", "new"),
                lambda: port.rename_session("s1", "new", second),
                lambda: port.update_session("s1", SessionPatch({"metadata": {"a": 1}})),
                lambda: port.delete_session("s1"),
                lambda: port.delete_session("s1", second, cancel=True),
                lambda: port.delete_session("busy", cancel=True),
                lambda: port.delete_sessions(BulkDeletion(("s1",))),
                lambda: port.create_run("agent", "echo", RunRequest("x", "s3")),
                lambda: port.create_run("agent", "apart", RunRequest("x", "s3")),
                lambda: collect(port, "workflow", "line", message="x", session_id="s3"),
                lambda: port.cancel_run("agent", "hang", run["run_id"], CancelRequest("busy")),
            ]
            for number, ask in enumerate(asks):
                with pytest.raises(errors.Unavailable) as refused:
                    await ask()
                assert refused.value.status == 503, number
                assert refused.value.detail.startswith("The audit log cannot be written"), number
            # What changes nothing goes on, and what is refused is refused.
            with pytest.raises(errors.Forbidden):
                await service.operations_for(Principal("me")).get_session_by_id("s1")
            with pytest.raises(errors.NotFound):
                await port.rename_session("none", "x")
            still = (await port.get_run(run["run_id"])).value
            assert (still["status"], still["cancel_requested_at"]) == ("RUNNING", None)
            with in_the_file(deployment) as file:
                file.execute(MENDS[broken])
            await port.delete_session("busy", cancel=True)
        assert await _state(service) == before
        await port.rename_session("s1", "new")
        assert (await rows(service))[-1]["operation"] == "rename_session"


async def _state(service: Service) -> list[bytes]:
    port = boss(service)
    found = []
    for place in ("main", "second"):
        found.append((await port.get_sessions(SessionFilter(SessionLocator(db_id=place)))).raw)
        found.append((await port.get_runs(RunFilter(db_id=place))).raw)
    return found


async def test_a_change_and_its_row_are_one_transaction(deployment: Deployment) -> None:
    """Many at once, of which each fails or not: a row for each, and only of what was done."""
    async with hosted(deployment) as service:
        port = user(service)

        async def create(number: int) -> None:
            with contextlib.suppress(errors.Conflict):
                await port.create_session(NewSession(session_id=f"s{number % 50}"))

        await asyncio.gather(*(create(number) for number in range(200)))
        found = await rows(service)
        allowed = [row["resource"] for row in found if row["outcome"] == "allowed"]
        assert sorted(allowed) == sorted(f"session:s{number}" for number in range(50))
        assert [row["outcome"] for row in found].count("failed") == 150


async def test_a_caller_that_goes_away_leaves_a_row_with_its_change(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        for number in range(15):
            task = asyncio.create_task(port.create_session(NewSession(session_id=f"s{number}")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # What was handed over is written in order, so behind this all of it is.
        await port.create_session(NewSession(session_id="last"))
        page = (await port.get_sessions(SessionFilter())).value
        there = {row["session_id"] for row in page["data"]}
        assert {row["resource"] for row in await rows(service)} == {f"session:{s}" for s in there}


async def test_a_fault_of_ours_is_a_failure(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        await port.create_session(NewSession(session_id="s1"))
        with pytest.raises(TypeError):
            await port.update_session("s1", SessionPatch({"metadata": {"secret": object()}}))
        assert (await told(service))[1:] == [
            ("update_session", "session:s1", "failed", 500, "INTERNAL_SERVER_ERROR")
        ]


async def test_reads_have_rows_when_that_is_configured(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        await user(service).get_components("agent")
        await user(service).get_sessions(SessionFilter())
        assert await rows(service) == []
    async with auditing_reads(deployment) as service:
        port = user(service)
        run = (await port.create_run("agent", "echo", RunRequest("x", "s1"))).value["run_id"]
        await port.get_health()
        await port.get_info()
        await port.get_me()
        await port.get_components("agent")
        await port.get_session_by_id("s1")
        await port.get_session_run("s1", run)
        with pytest.raises(errors.NotFound):
            await port.get_run("none")
        request = ResumeRequest("s1")
        assert [event.name async for event in port.resume_run("agent", "echo", run, request)]
        found = [row[:4] for row in await told(service)]
        assert found[1:] == [
            ("get_me", None, "allowed", None),
            ("get_agents", None, "allowed", None),
            ("get_session_by_id", "session:s1", "allowed", None),
            ("get_session_run", f"session:s1,run:{run}", "allowed", None),
            ("get_run", "run:none", "failed", 404),
            ("resume_agent_run_stream", f"agent:echo,run:{run}", "allowed", None),
        ]
        assert (await told(service))[-1][0] == "get_audit"


@pytest.mark.parametrize("broken", BREAKS)
async def test_no_record_no_answer_where_reads_are_recorded(
    deployment: Deployment, broken: str
) -> None:
    async with auditing_reads(deployment) as service:
        port = user(service)
        run = (await port.create_run("agent", "echo", RunRequest("x", "s1"))).value["run_id"]
        with in_the_file(deployment) as file:
            file.execute(BREAKS[broken])
        asks: list[Callable[[], Awaitable[Any]]] = [
            lambda: port.get_session_by_id("s1"),
            lambda: port.get_sessions(SessionFilter()),
            lambda: port.get_components("agent"),
            lambda: port.open_resumed_stream("agent", "echo", run, ResumeRequest("s1")),
        ]
        for ask in asks:
            with pytest.raises(errors.Unavailable):
                await ask()
        assert (await port.get_health()).value["status"] == "ok"
        with in_the_file(deployment) as file:
            file.execute(MENDS[broken])


async def test_pages_filters_and_cursors(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port, other = user(service), user(service, "other")
        for number in range(5):
            await port.create_session(NewSession(session_id=f"s{number}"))
            with pytest.raises(errors.NotFound):
                await other.rename_session(f"s{number}", "x")
        seen = []
        cursor = None
        while True:
            page = (await boss(service).get_audit(AuditFilter(limit=3, cursor=cursor))).value
            seen += [row["seq"] for row in page["data"]]
            cursor = page["meta"]["next_cursor"]
            if cursor is None:
                break
        assert seen == sorted(seen, reverse=True)
        assert len(seen) == 10
        assert len(await rows(service, principal="me")) == 5
        assert len(await rows(service, outcome="failed", principal="other")) == 5
        assert await rows(service, outcome="failed", principal="me") == []
        assert len(await rows(service, operation="rename_session")) == 5
        assert await rows(service, operation="no such") == []
        middle = (await rows(service))[6]
        later = await rows(service, since=parse_rfc3339(middle["at"]))
        assert [row["seq"] for row in later] == seen[::-1][6:]


async def test_everybody_with_the_scope_reads_all_of_it(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        await user(service).create_session(NewSession())
        auditor = service.operations_for(Principal("eve", frozenset({"audit:read"})))
        page = (await auditor.get_audit(AuditFilter())).value
        assert [row["principal"] for row in page["data"]] == ["me"]
        for wrong in (
            AuditFilter(limit=0),
            AuditFilter(limit=101),
            AuditFilter(cursor="x"),
            AuditFilter(principal="\0"),
            AuditFilter(operation="\ud800"),
        ):
            with pytest.raises(errors.ValidationFailed):
                await auditor.get_audit(wrong)


async def test_old_rows_are_removed(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        for number in range(3):
            await user(service).create_session(NewSession(session_id=f"s{number}"))
        with in_the_file(deployment) as file:
            file.execute("UPDATE audit_log SET at = at - 40 * 86400000000 WHERE seq < 3")
        databases = service.hosting.databases
        await delete_expired(databases)
        await delete_expired(databases, audit_days=41)
        assert len(await rows(service)) == 3
        await delete_expired(databases, audit_days=39)
        assert [row["resource"] for row in await rows(service)] == ["session:s2"]
        await user(service).create_session(NewSession())
        assert [row["seq"] for row in await rows(service)] == [3, 4]


def test_every_operation_that_is_not_a_get_is_a_change_or_known_to_be_none() -> None:
    posts = {name for name, route in ROUTES.items() if route.method != "GET"}
    assert posts - CHANGING_OPERATIONS == {
        "explain_auth",
        "resume_agent_run_stream",
        "resume_team_run_stream",
        "resume_workflow_run_stream",
    }


async def test_a_local_user_who_acts_for_another_is_named(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port: ServiceOperations = service.operations_for(local_principal("ann", acting_for="bob"))
        run = (await port.create_run("agent", "echo", RunRequest("x", "s1"))).value
        assert run["user_id"] == "bob"
        (row,) = await rows(service)
        assert (row["principal"], row["via"]) == ("local:ann", "local")

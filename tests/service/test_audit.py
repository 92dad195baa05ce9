"""The audit log: entries of changes, denials and failures; no change without an entry."""

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
from agentctl.interface.operations import ROUTES
from agentctl.interface.requests import (
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
from agentctl.interface.requests.administration import AuditFilter, PruneRequest
from agentctl.records.audit import AuditRecord
from agentctl.records.sessions import hash_ids
from agentctl.records.times import format_rfc3339, now, parse_rfc3339
from agentctl.runs.jobs.cleanup import Ages, delete_expired
from agentctl.service.audit_log import MAXIMUM_TEXT, list_changing_operations
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.repositories import idempotency
from tests.kit.deployment import Deployment
from tests.kit.service import ALL, admin, collect_run_events, open_service, streamed_run, user

Row = dict[str, Any]

SECOND = SessionLocator(db_id="second")

IN_SECOND = SessionRunsQuery(SECOND)

Request = Callable[[ServiceOperations], Awaitable[Any]]
"""A request of a caller."""

OK = ("allowed", None, None)
"""The outcome, status and reason of a change that was made."""

NOT_FOUND = ("failed", 404, "NOT_FOUND")

INVALID = ("failed", 422, "VALIDATION_ERROR")

CONFLICT = ("failed", 409, "CONFLICT")


async def read_entries(service: Service, **wanted: Any) -> list[Row]:
    """Return the entries, oldest first, without the entry of this read."""
    found: list[AuditRecord] = []
    cursor: str | None = None
    while True:
        asked = AuditFilter(limit=100, cursor=cursor, **wanted)
        page = (await service.operations_for(local_principal("auditor")).audit.list(asked)).value
        found += page["data"]
        cursor = page["meta"]["next_cursor"]
        if cursor is None:
            return [dict(row) for row in reversed(found)]


def summarize(row: Row) -> tuple[Any, ...]:
    return row["operation"], row["resource"], row["outcome"], row["status"], row["reason"]


async def summaries(service: Service) -> list[tuple[Any, ...]]:
    return [summarize(row) for row in await read_entries(service)]


@contextlib.asynccontextmanager
async def auditing_reads(deployment: Deployment) -> AsyncIterator[Service]:
    settings = replace(deployment.settings, audit=Audit(reads=True))
    async with Service.open(settings, create=True) as service:
        yield service


@contextlib.contextmanager
def database_file(deployment: Deployment, name: str = "main") -> Iterator[apsw.Connection]:
    """Open the file of a database without the service."""
    with contextlib.closing(apsw.Connection(str(deployment.folder / f"{name}.db"))) as connection:
        connection.set_busy_timeout(5_000)
        yield connection


FAILED_CHANGES: list[tuple[Request, tuple[Any, ...]]] = [
    (
        lambda me: me.sessions.create(NewSession(session_id="s1")),
        ("create_session", "session:s1", *CONFLICT),
    ),
    (
        lambda me: me.sessions.create(NewSession(session_id="not one")),
        ("create_session", None, *INVALID),
    ),
    (lambda me: me.sessions.create(NewSession(db_id="none")), ("create_session", None, *NOT_FOUND)),
    (lambda me: me.sessions.rename("none", "x"), ("rename_session", "session:none", *NOT_FOUND)),
    (lambda me: me.sessions.rename("s1", "x" * 256), ("rename_session", "session:s1", *INVALID)),
    (
        lambda me: me.sessions.update("s1", SessionPatch({"metadata": {"a": "\0"}})),
        ("update_session", "session:s1", *INVALID),
    ),
    (
        lambda me: me.sessions.delete_several(BulkDeletion(("s1", "none"))),
        ("delete_sessions", "session:s1,session:none", *NOT_FOUND),
    ),
    (lambda me: me.sessions.delete_several(BulkDeletion(())), ("delete_sessions", None, *INVALID)),
    (
        lambda me: me.runs.create("agent", "none", RunRequest("x")),
        ("create_agent_run", "agent:none", *NOT_FOUND),
    ),
    (
        lambda me: me.runs.create("agent", "echo", RunRequest("", "s1")),
        ("create_agent_run", "agent:echo", *INVALID),
    ),
    (
        lambda me: me.runs.create("team", "crew", RunRequest("x", "s1")),
        ("create_team_run", "team:crew,session:s1", *CONFLICT),
    ),
    (
        lambda me: me.runs.create("agent", "echo", RunRequest("x", "s1", idempotency_key="")),
        ("create_agent_run", "agent:echo", *INVALID),
    ),
]
"""Requests of a user who has the session `s1`, with the entries of their failures."""


def _format_scopes(resource: str, id: str, action: str) -> str:
    return f"{resource}:{id}:{action}, {resource}:*:{action}, {resource}:{action}"


DENIED_REQUESTS: list[tuple[Request, tuple[str, str | None, str]]] = [
    (
        lambda me: me.sessions.get("s1"),
        ("get_session_by_id", "session:s1", _format_scopes("sessions", "s1", "read")),
    ),
    (lambda me: me.components.list("team"), ("get_teams", None, "teams:*:read, teams:read")),
    (
        lambda me: me.components.get("agent", "hang"),
        ("get_agent", "agent:hang", _format_scopes("agents", "hang", "read")),
    ),
    (lambda me: me.system.get_config(), ("get_config", None, "config:read, system:read")),
    (lambda me: me.audit.list(AuditFilter()), ("get_audit", None, "audit:read")),
    (
        lambda me: me.sessions.rename("a,session:b\n", "x"),
        ("rename_session", "session:a%2Csession%3Ab%0A", "sessions:*:write, sessions:write"),
    ),
    (
        lambda me: me.runs.create("agent", "echo", RunRequest("x")),
        ("create_agent_run", "agent:echo", _format_scopes("agents", "echo", "run")),
    ),
    (
        lambda me: me.runs.open_stream("resume", "agent", "echo", "r", ResumeRequest()),
        ("resume_agent_run_stream", "agent:echo,run:r", _format_scopes("agents", "echo", "run")),
    ),
]
"""Requests of a user who may only read the agent `echo`, with the scopes that each lacks."""


CHANGES: list[Request] = [
    lambda me: me.sessions.create(NewSession(session_id="s2")),
    lambda me: me.sessions.create(NewSession(session_id="s2", db_id="second")),
    lambda me: me.sessions.rename("s1", "new"),
    lambda me: me.sessions.rename("s1", "new", SECOND),
    lambda me: me.sessions.update("s1", SessionPatch({"metadata": {"a": 1}})),
    lambda me: me.sessions.delete("s1"),
    lambda me: me.sessions.delete("s1", SECOND, cancel=True),
    lambda me: me.sessions.delete("busy", cancel=True),
    lambda me: me.sessions.delete_several(BulkDeletion(("s1",))),
    lambda me: me.runs.create("agent", "echo", RunRequest("x", "s3")),
    lambda me: me.runs.create("agent", "apart", RunRequest("x", "s3")),
    lambda me: collect_run_events(me, "workflow", "line", message="x", session_id="s3"),
]
"""Changes of a user who has the session `s1` in both databases, and `busy` with a live run."""


BREAKS = {
    "refusing": "CREATE TRIGGER no BEFORE INSERT ON audit_log BEGIN SELECT RAISE(ABORT, 'no'); END",
    "gone": "ALTER TABLE audit_log RENAME TO elsewhere",
}
MENDS = {"refusing": "DROP TRIGGER no", "gone": "ALTER TABLE elsewhere RENAME TO audit_log"}


@contextlib.contextmanager
def broken_audit_log(deployment: Deployment, broken: str) -> Iterator[None]:
    """Refuse every new entry of the audit log of the first database within the block."""
    with database_file(deployment) as file:
        file.execute(BREAKS[broken])
    yield
    with database_file(deployment) as file:
        file.execute(MENDS[broken])


async def test_every_session_change_has_an_entry(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.sessions.create(NewSession(session_id="s1"))
        made = (await operations.sessions.create(NewSession())).value["agent_session_id"]
        await operations.sessions.rename("s1", "secret name")
        await operations.sessions.update("s1", SessionPatch({"metadata": {"secret": 1}}))
        await operations.sessions.delete("s1")
        await operations.sessions.delete_several(BulkDeletion((made, made)))
        assert await summaries(service) == [
            ("create_session", "session:s1", *OK),
            ("create_session", f"session:{made}", *OK),
            ("rename_session", "session:s1", *OK),
            ("update_session", "session:s1", *OK),
            ("delete_session", "session:s1", *OK),
            ("delete_sessions", f"session:{made}", *OK),
        ]
        assert "secret" not in str(await read_entries(service))


async def test_entry_names_principal_backend_and_time(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        remote = service.operations_for(Principal("me", ALL), "request-1")
        local = service.operations_for(local_principal("ann"))
        acting = service.operations_for(local_principal("ann", acting_for="bob"))
        nobody = service.operations_for(Principal(None, ALL))

        began = format_rfc3339(now())
        for operations in (remote, local, local, acting, nobody):
            await operations.sessions.create(NewSession())

        found = await read_entries(service)
        assert [(row["principal"], row["via"]) for row in found] == [
            ("me", "http"),
            ("local:ann", "local"),
            ("local:ann", "local"),
            ("local:ann", "local"),
            ("anonymous", "http"),
        ]
        assert began <= found[0]["at"] <= found[-1]["at"] <= format_rfc3339(now())
        assert [row["seq"] for row in found] == sorted({row["seq"] for row in found})

        # A command is one request, although it calls several operations.
        request_ids = [row["request_id"] for row in found]
        assert request_ids[0] == "request-1"
        assert request_ids[1] == request_ids[2]
        assert len(set(request_ids)) == 4


async def test_new_run_has_one_entry_with_its_session(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service, session_id="claimed")
        run = (await operations.runs.create("agent", "echo", RunRequest("secret text"))).value
        await collect_run_events(operations, "team", "crew", message="ask echo", session_id="t1")

        first, second = await read_entries(service)
        assert summarize(first)[:3] == (
            "create_agent_run",
            f"agent:echo,session:claimed,run:{run['run_id']}",
            "allowed",
        )
        assert summarize(second)[0] == "create_team_run"
        assert second["resource"].startswith("team:crew,session:t1,run:")
        assert "secret" not in str([first, second])


async def test_repeated_request_has_no_second_entry(deployment: Deployment) -> None:
    request = RunRequest("x", "s1", idempotency_key="k")
    async with open_service(deployment) as service:
        for agent in ("echo", "apart"):
            for _ in range(3):
                await user(service).runs.create("agent", agent, request)
            with pytest.raises(errors.ValidationFailed):
                await user(service).runs.create("agent", agent, replace(request, message="y"))
            request = replace(request, session_id="s2", idempotency_key="l")
        found = await read_entries(service)
        assert [row["outcome"] for row in found] == ["allowed", "failed"] * 2
        (run,) = (await user(service).sessions.list_runs("s2", IN_SECOND)).value
        about = f"agent:apart,session:s2,database:second,run:{run['run_id']}"
        assert found[2]["resource"] == about


async def test_expired_key_starts_no_run_without_an_entry(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RunRequest("x", "s1", idempotency_key="k")
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create("agent", "apart", request)
        with database_file(deployment, "second") as file:
            expired = now() - idempotency.KEY_LIFETIME - 1
            file.execute("UPDATE idempotency SET created_at = ?", (expired,))
        # The first reader has an earlier clock than the one that decides.
        with monkeypatch.context() as patched:
            patched.setattr("agentctl.service.family.now", lambda: now() - 10_000_000)
            with pytest.raises(errors.Unavailable):
                await operations.runs.create("agent", "apart", request)
        assert len((await operations.sessions.list_runs("s1", IN_SECOND)).value) == 1
        await operations.runs.create("agent", "apart", request)
        assert len((await operations.sessions.list_runs("s1", IN_SECOND)).value) == 2
        outcomes = [(row["outcome"], row["status"]) for row in await read_entries(service)]
        assert outcomes == [("allowed", None), ("failed", 503), ("allowed", None)]


async def test_every_cancel_has_an_entry(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            _,
        ):
            run_id = run["run_id"]
            await operations.runs.cancel(
                "agent", "hang", run_id, CancelRequest("s1", 30, "my secret")
            )
            await operations.runs.cancel("agent", "hang", run_id, CancelRequest("s1", wait=30))
            for wrong in (CancelRequest("s2"), CancelRequest(wait=30), CancelRequest("s1", 31)):
                with pytest.raises(errors.AgentctlError):
                    await operations.runs.cancel("agent", "hang", run_id, wrong)
        found = [row for row in await summaries(service) if row[0] == "cancel_agent_run"]
        about = f"agent:hang,run:{run_id}"
        assert found == [
            ("cancel_agent_run", f"{about},session:s1", "allowed", None, None),
            ("cancel_agent_run", f"{about},session:s1", "allowed", None, None),
            ("cancel_agent_run", f"{about},session:s2", "failed", 404, "NOT_FOUND"),
            ("cancel_agent_run", about, "failed", 400, "BAD_REQUEST"),
            ("cancel_agent_run", f"{about},session:s1", "failed", 422, "VALIDATION_ERROR"),
        ]


async def test_deletion_entry_is_committed_before_its_cancels(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1"):
            with pytest.raises(errors.Conflict):
                await operations.sessions.delete("s1")
            await operations.sessions.delete("s1", cancel=True)
        found = [
            summarize(row)[:4] for row in await read_entries(service, operation="delete_session")
        ]
        assert found == [
            ("delete_session", "session:s1", "failed", 409),
            ("delete_session", "session:s1", "allowed", None),
        ]
        assert len(await read_entries(service)) == 3


async def test_failed_change_has_only_a_failed_entry(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.sessions.create(NewSession(session_id="s1"))

        for request, _ in FAILED_CHANGES:
            with pytest.raises(errors.AgentctlError):
                await request(operations)

        _, *found = await summaries(service)
        assert found == [entry for _, entry in FAILED_CHANGES]


async def test_change_in_another_database_has_its_entry_first(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        other = await user(service, "other").runs.create(
            "agent", "apart", RunRequest("x", "theirs")
        )
        await operations.sessions.create(NewSession(session_id="s1", db_id="second"))
        await operations.sessions.rename("s1", "x", SECOND)
        with pytest.raises(errors.NotFound):
            await operations.sessions.rename("none", "x", SECOND)
        with pytest.raises(errors.NotFound):
            await operations.runs.create("agent", "apart", RunRequest("x", "theirs"))
        place = "database:second"
        *found, before, failed = await summaries(service)
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


async def test_second_entry_has_what_a_change_in_another_database_did(
    deployment: Deployment,
) -> None:
    async with open_service(deployment) as service:
        for session_id in ("idle", "used"):
            await user(service).sessions.create(NewSession(session_id=session_id, db_id="second"))
        with database_file(deployment, "second") as connection:
            connection.execute("UPDATE sessions SET updated_at = 0 WHERE session_id = 'idle'")

        await admin(service).sessions.prune(PruneRequest(1, ("idle", "used"), "second"))
        assert [row[1:3] for row in (await summaries(service))[-2:]] == [
            (f"database:second,sessions:{hash_ids(['idle', 'used'])}", "allowed"),
            (f"database:second,sessions:{hash_ids(['idle'])}", "allowed"),
        ]

        # A change that was complete needs no second entry.
        with database_file(deployment, "second") as connection:
            connection.execute("UPDATE sessions SET updated_at = 0")
        await admin(service).sessions.prune(PruneRequest(1, ("used",), "second"))
        operations = [row[0] for row in await summaries(service)]
        assert operations.count("prune_sessions") == 3


async def test_every_denial_has_an_entry(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = service.operations_for(Principal("me", frozenset({"agents:echo:read"})))

        for request, _ in DENIED_REQUESTS:
            with pytest.raises(errors.Forbidden):
                await request(operations)
        # A read that is allowed has no entry.
        await operations.components.get("agent", "echo")

        assert await summaries(service) == [
            (operation, about, "denied", 403, lacking_scopes)
            for _, (operation, about, lacking_scopes) in DENIED_REQUESTS
        ]


async def test_ids_in_entries_are_quoted_and_truncated(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for name in ("a,run:b", "é\ud800\0", "x" * 2_000):
            with pytest.raises(errors.AgentctlError):
                await operations.sessions.rename(name, "x")
        with pytest.raises(errors.NotFound):
            await operations.sessions.delete_several(
                BulkDeletion(tuple(f"{n:030}" for n in range(100)))
            )
        about = [row["resource"] for row in await read_entries(service)]
        assert about[:2] == ["session:a%2Crun%3Ab", "session:%C3%A9%ED%A0%80%00"]
        assert about[2] == f"session:{'x' * (MAXIMUM_TEXT - 11)}..."
        assert len(about[3]) == MAXIMUM_TEXT
        assert about[3].startswith(f"session:{0:030},session:{1:030},")


@pytest.mark.parametrize("broken", BREAKS)
async def test_change_is_refused_without_its_entry(deployment: Deployment, broken: str) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for where in (None, "second"):
            session = NewSession(session_id="s1", session_name="old", db_id=where)
            await operations.sessions.create(session)
        before = await _read_state(service)

        start = streamed_run(operations, "agent", "hang", message="x", session_id="busy")
        async with start as (run, _):
            cancel = CancelRequest("busy", wait=30)
            changes: list[Request] = [
                *CHANGES,
                lambda me: me.runs.cancel("agent", "hang", run["run_id"], cancel),
            ]
            with broken_audit_log(deployment, broken):
                for number, change in enumerate(changes):
                    with pytest.raises(errors.Unavailable) as refused:
                        await change(operations)
                    assert refused.value.status == 503, number
                    detail = refused.value.detail
                    assert detail.startswith("The audit log cannot be written"), number

                still = (await operations.runs.get(run["run_id"])).value
                assert (still["status"], still["cancel_requested_at"]) == ("RUNNING", None)

            await operations.sessions.delete("busy", cancel=True)

        assert await _read_state(service) == before


@pytest.mark.parametrize("broken", BREAKS)
async def test_broken_audit_log_prevents_no_reads_and_no_denials(
    deployment: Deployment, broken: str
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.sessions.create(NewSession(session_id="s1", session_name="old"))

        with broken_audit_log(deployment, broken):
            session = (await operations.sessions.get("s1")).value
            assert session["session_name"] == "old"
            with pytest.raises(errors.Forbidden):
                await service.operations_for(Principal("me")).sessions.get("s1")
            with pytest.raises(errors.NotFound):
                await operations.sessions.rename("none", "x")

        # The log works again, and so do changes.
        await operations.sessions.rename("s1", "new")
        assert (await read_entries(service))[-1]["operation"] == "rename_session"


async def _read_state(service: Service) -> list[bytes]:
    operations = admin(service)
    found = []
    for place in ("main", "second"):
        found.append(
            (await operations.sessions.list(SessionFilter(SessionLocator(db_id=place)))).raw
        )
        found.append((await operations.runs.list(RunFilter(db_id=place))).raw)
    return found


async def test_change_and_entry_are_one_transaction(deployment: Deployment) -> None:
    """Concurrent changes that may fail have one entry each, for committed changes only."""
    async with open_service(deployment) as service:
        operations = user(service)

        async def create(number: int) -> None:
            with contextlib.suppress(errors.Conflict):
                await operations.sessions.create(NewSession(session_id=f"s{number % 50}"))

        await asyncio.gather(*(create(number) for number in range(200)))
        found = await read_entries(service)
        allowed = [row["resource"] for row in found if row["outcome"] == "allowed"]
        assert sorted(allowed) == sorted(f"session:s{number}" for number in range(50))
        assert [row["outcome"] for row in found].count("failed") == 150


async def test_change_of_a_disconnected_caller_has_its_entry(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for number in range(15):
            task = asyncio.create_task(
                operations.sessions.create(NewSession(session_id=f"s{number}"))
            )
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # Writes are in order, so after this write all earlier ones are committed.
        await operations.sessions.create(NewSession(session_id="last"))
        page = (await operations.sessions.list(SessionFilter())).value
        there = {row["session_id"] for row in page["data"]}
        assert {row["resource"] for row in await read_entries(service)} == {
            f"session:{s}" for s in there
        }


async def test_internal_error_is_a_failed_entry(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.sessions.create(NewSession(session_id="s1"))
        with pytest.raises(TypeError):
            await operations.sessions.update("s1", SessionPatch({"metadata": {1: "secret"}}))
        assert (await summaries(service))[1:] == [
            ("update_session", "session:s1", "failed", 500, "INTERNAL_SERVER_ERROR")
        ]


async def test_reads_have_no_entries_by_default(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await user(service).components.list("agent")
        await user(service).sessions.list(SessionFilter())

        assert await read_entries(service) == []


async def test_reads_have_entries_if_configured(deployment: Deployment) -> None:
    async with auditing_reads(deployment) as service:
        operations = user(service)
        run = (await operations.runs.create("agent", "echo", RunRequest("x", "s1"))).value["run_id"]

        # The first two need no permission, and are not recorded.
        await operations.system.get_health()
        await operations.system.get_info()
        await operations.system.get_me()
        await operations.components.list("agent")
        await operations.sessions.get("s1")
        await operations.sessions.get_run("s1", run)
        with pytest.raises(errors.NotFound):
            await operations.runs.get("none")
        request = ResumeRequest("s1")
        assert [event.name async for event in operations.runs.resume("agent", "echo", run, request)]

        _, *found = await summaries(service)
        assert [row[:4] for row in found] == [
            ("get_me", None, "allowed", None),
            ("get_agents", None, "allowed", None),
            ("get_session_by_id", "session:s1", "allowed", None),
            ("get_session_run", f"session:s1,run:{run}", "allowed", None),
            ("get_run", "run:none", "failed", 404),
            ("resume_agent_run_stream", f"agent:echo,run:{run}", "allowed", None),
        ]
        assert (await summaries(service))[-1][0] == "get_audit"


@pytest.mark.parametrize("broken", BREAKS)
async def test_recorded_read_fails_without_its_entry(deployment: Deployment, broken: str) -> None:
    async with auditing_reads(deployment) as service:
        operations = user(service)
        run = (await operations.runs.create("agent", "echo", RunRequest("x", "s1"))).value["run_id"]
        reads: list[Request] = [
            lambda me: me.sessions.get("s1"),
            lambda me: me.sessions.list(SessionFilter()),
            lambda me: me.components.list("agent"),
            lambda me: me.runs.open_stream("resume", "agent", "echo", run, ResumeRequest("s1")),
        ]

        with broken_audit_log(deployment, broken):
            for read in reads:
                with pytest.raises(errors.Unavailable):
                    await read(operations)

            assert (await operations.system.get_health()).value["status"] == "ok"


@contextlib.asynccontextmanager
async def ten_entries(deployment: Deployment) -> AsyncIterator[Service]:
    """Open a service in which `me` made five sessions, and `other` could not rename them."""
    async with open_service(deployment) as service:
        for number in range(5):
            await user(service).sessions.create(NewSession(session_id=f"s{number}"))
            with pytest.raises(errors.NotFound):
                await user(service, "other").sessions.rename(f"s{number}", "x")
        yield service


async def test_pages_of_the_audit_log_begin_with_the_newest(deployment: Deployment) -> None:
    async with ten_entries(deployment) as service:
        seqs = []
        cursor = None
        while True:
            page = (await admin(service).audit.list(AuditFilter(limit=3, cursor=cursor))).value
            seqs += [row["seq"] for row in page["data"]]
            cursor = page["meta"]["next_cursor"]
            if cursor is None:
                break

    assert seqs == sorted(seqs, reverse=True)
    assert len(seqs) == 10


async def test_audit_log_is_filtered_by_its_fields(deployment: Deployment) -> None:
    async with ten_entries(deployment) as service:
        assert len(await read_entries(service, principal="me")) == 5
        assert len(await read_entries(service, outcome="failed", principal="other")) == 5
        assert await read_entries(service, outcome="failed", principal="me") == []
        assert len(await read_entries(service, operation="rename_session")) == 5
        assert await read_entries(service, operation="no such") == []

        entries = await read_entries(service)
        later = await read_entries(service, since=parse_rfc3339(entries[6]["at"]))
        assert [row["seq"] for row in later] == [row["seq"] for row in entries[6:]]


async def test_audit_scope_reads_entries_of_all_principals(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await user(service).sessions.create(NewSession())
        auditor = service.operations_for(Principal("eve", frozenset({"audit:read"})))

        page = (await auditor.audit.list(AuditFilter())).value

        assert [row["principal"] for row in page["data"]] == ["me"]


async def test_wrong_filters_of_the_audit_log_are_refused(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        for wrong in (
            AuditFilter(limit=0),
            AuditFilter(limit=101),
            AuditFilter(cursor="x"),
            AuditFilter(principal="\0"),
            AuditFilter(operation="\ud800"),
        ):
            with pytest.raises(errors.ValidationFailed):
                await admin(service).audit.list(wrong)


async def test_old_entries_are_removed(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        databases = service.hosting.databases
        for number in range(3):
            await user(service).sessions.create(NewSession(session_id=f"s{number}"))
        with database_file(deployment) as file:
            file.execute("UPDATE audit_log SET at = at - 40 * 86400000000 WHERE seq < 3")

        await delete_expired(databases)
        await delete_expired(databases, ages=Ages(41))
        assert len(await read_entries(service)) == 3

        await delete_expired(databases, ages=Ages(39))
        kept, deletion = await read_entries(service)
        assert kept["resource"] == "session:s2"
        assert (deletion["principal"], deletion["via"]) == ("system:cleanup", "local")
        assert (deletion["operation"], deletion["count"]) == ("expire_audit", 2)
        assert deletion["reason"].startswith("older than 20")

        # A cleanup that removes nothing has no entry, and numbers are not used again.
        await delete_expired(databases, ages=Ages(39))
        await user(service).sessions.create(NewSession())
        assert [row["seq"] for row in await read_entries(service)] == [3, 4, 5]


def test_every_operation_other_than_get_is_classified() -> None:
    posts = {name for name, route in ROUTES.items() if route.method != "GET"}
    assert posts - list_changing_operations() == {
        "explain_auth",
        "resume_agent_run_stream",
        "resume_team_run_stream",
        "resume_workflow_run_stream",
        "start_console_sign_in",
        "finish_console_sign_in",
        "create_sign_in_link",
        "use_sign_in_link",
        "keep_console_token",
        "forget_console_token",
    }


def test_operations_that_get_do_not_change_data() -> None:
    reads = {name for name in ROUTES if name.startswith("get_")}
    assert {ROUTES[name].method for name in reads} == {"GET"}
    assert not reads & list_changing_operations()


async def test_entry_names_the_local_user_that_acts_for_another(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations: ServiceOperations = service.operations_for(
            local_principal("ann", acting_for="bob")
        )
        run = (await operations.runs.create("agent", "echo", RunRequest("x", "s1"))).value
        assert run["user_id"] == "bob"
        (row,) = await read_entries(service)
        assert (row["principal"], row["via"]) == ("local:ann", "local")

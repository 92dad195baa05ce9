"""Changes on both backends, each with its own data: equal except ids and times."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    BulkDeletion,
    CancelRequest,
    ForkRequest,
    NewSession,
    Page,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
    SessionFilter,
    SessionLocator,
    SessionPatch,
)
from agentctl.interface.requests.administration import (
    AccountFilter,
    Grant,
    IdleFilter,
    NewAccount,
    PruneRequest,
)
from agentctl.interface.requests.files import FileContent, FileFilter, FileUpload
from agentctl.interface.requests.memories import (
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
)
from agentctl.records.kinds import ComponentKind
from tests.contract.backends import (
    Backends,
    OperationCall,
    Outcome,
    call_operation,
    normalize,
    read_events,
)
from tests.contract.engines import age_sessions
from tests.kit.conditions import wait_until
from tests.kit.deployment import ADMIN

WRITER = (
    "agents:run", "agents:read", "teams:run", "workflows:run", "sessions:read", "sessions:write",
    "sessions:delete",
)  # fmt: skip

Story = Callable[[Operations], Awaitable[list[Outcome]]]


async def sessions_story(operations: Operations) -> list[Outcome]:
    """Create, change and delete sessions, with every error."""
    calls: list[OperationCall] = [
        lambda p: p.sessions.create(NewSession(session_id="s1", session_name="One")),
        lambda p: p.sessions.create(NewSession(session_id="s1")),
        lambda p: p.sessions.create(NewSession(type="team", session_id="s2", component_id="crew")),
        lambda p: p.sessions.create(
            NewSession(type="workflow", session_id="s3", metadata={"a": 1})
        ),
        lambda p: p.sessions.create(NewSession(component_id="missing")),
        lambda p: p.sessions.create(NewSession(session_id="not allowed")),
        lambda p: p.sessions.create(NewSession(db_id="missing")),
        lambda p: p.sessions.create(NewSession(session_id="s1", db_id="second")),
        lambda p: p.sessions.create(NewSession()),
        lambda p: p.sessions.rename("s1", "Renamed"),
        lambda p: p.sessions.rename("s1", ""),
        lambda p: p.sessions.rename("missing", "x"),
        lambda p: p.sessions.rename("s1", "x", SessionLocator(type="team")),
        lambda p: p.sessions.update("s2", SessionPatch({"session_state": {"k": [1, None]}})),
        lambda p: p.sessions.update("s2", SessionPatch({"session_state": None, "metadata": {}})),
        lambda p: p.sessions.update("s2", SessionPatch({})),
        lambda p: p.sessions.update("missing", SessionPatch({"metadata": {}})),
        lambda p: p.sessions.list(SessionFilter()),
        lambda p: p.sessions.delete("missing"),
        lambda p: p.sessions.delete("s1", SessionLocator(table="nothing")),
        lambda p: p.sessions.delete("s1"),
        lambda p: p.sessions.delete("s1"),
        lambda p: p.sessions.delete_several(BulkDeletion(("s2", "missing"))),
        lambda p: p.sessions.delete_several(BulkDeletion(("s2", "s3"))),
        lambda p: p.sessions.delete_several(BulkDeletion(())),
        lambda p: p.sessions.list(SessionFilter()),
    ]
    return [await call_operation(operations, call) for call in calls]


async def runs_story(operations: Operations) -> list[Outcome]:
    """Execute runs of every kind, with failures, and read their sessions."""
    calls: list[OperationCall] = [
        lambda p: p.runs.create("agent", "echo", RunRequest("hello", "s1")),
        lambda p: p.runs.create("agent", "tool-add", RunRequest('{"a": 1, "b": 2}', "s1")),
        lambda p: p.runs.create("agent", "http-500", RunRequest("x", "s1")),
        lambda p: p.runs.create("agent", "missing", RunRequest("x", "s1")),
        lambda p: p.runs.create("team", "crew", RunRequest("x", "s1")),
        lambda p: p.runs.create("agent", "echo", RunRequest("x", "not allowed")),
        lambda p: p.runs.create("agent", "echo", RunRequest("x" * 262_145, "s1")),
        lambda p: p.runs.create(
            "agent", "echo", RunRequest("x", "s1", metadata={"é": [1, 2.5]}, session_state={"n": 1})
        ),
        lambda p: p.runs.create(
            "agent", "echo", RunRequest("x", "s1", metadata={"a": "b" * 65_536})
        ),
        lambda p: p.runs.create("agent", "echo", RunRequest("x", "s1", metadata={"a": "\0"})),
        lambda p: p.runs.create("agent", "echo", RunRequest("x", "s1", session_state={"n": 2**64})),
        lambda p: p.runs.create("agent", "echo", RunRequest(input={"a": 1})),
        lambda p: p.runs.create("agent", "echo", RunRequest()),
        lambda p: p.runs.create("team", "crew", RunRequest("ask echo", "t1")),
        lambda p: p.runs.create("team", "desk", RunRequest("to echo", "t2")),
        lambda p: p.runs.create("workflow", "line", RunRequest("go", "w1")),
        lambda p: p.runs.create("workflow", "broken", RunRequest("go", "w2")),
        lambda p: p.sessions.get("s1"),
        lambda p: p.sessions.list_runs("t1"),
        lambda p: p.sessions.list_runs("w1"),
        lambda p: p.sessions.get("w2"),
        lambda p: stream_events(p, "agent", "echo", RunRequest("a b c", "s2")),
        lambda p: stream_events(p, "agent", "http-401", RunRequest("a", "s2")),
        lambda p: stream_events(p, "agent", "missing", RunRequest("a", "s2")),
        lambda p: stream_events(p, "team", "crew", RunRequest("ask echo", "t1")),
        lambda p: stream_events(p, "workflow", "line", RunRequest("go", "w1")),
    ]
    return [await call_operation(operations, call) for call in calls]


async def stream_events(
    operations: Operations, kind: ComponentKind, component: str, request: RunRequest
) -> Any:
    """Return name and data of all events of a run."""
    return await read_events(operations.runs.stream(kind, component, request))


async def resume_events(
    operations: Operations, kind: ComponentKind, component: str, run_id: str, request: ResumeRequest
) -> Any:
    """Return the events of a run after a position."""
    return await read_events(
        operations.runs.resume(kind, component, run_id, request), request.after
    )


async def follow_events(
    operations: Operations, kind: ComponentKind, component: str, run_id: str, request: ResumeRequest
) -> Any:
    """Return the events of a run, as a caller reads them that may not run its component."""
    return await read_events(
        operations.runs.follow(kind, component, run_id, request), request.after
    )


async def resume_story(operations: Operations) -> list[Outcome]:
    """Resume streams of runs with and without events, at valid and invalid positions."""
    first = await call_operation(
        operations, lambda p: stream_events(p, "team", "crew", RunRequest("ask echo", "s1"))
    )
    run = str(_first_event_data(first)["run_id"])
    middle = _count_events_before_text(first) - 1
    plain = await call_operation(
        operations, lambda p: p.runs.create("agent", "echo", RunRequest("x", "s2"))
    )
    other = orjson.loads(plain[1])["run_id"] if plain[0] == "answered" else "none"  # type: ignore[arg-type]
    calls: list[OperationCall] = [
        lambda p: resume_events(p, "team", "crew", run, ResumeRequest("s1")),
        lambda p: resume_events(p, "team", "crew", run, ResumeRequest("s1", 0)),
        lambda p: resume_events(p, "team", "crew", run, ResumeRequest("s1", middle)),
        lambda p: resume_events(p, "team", "crew", run, ResumeRequest("s1", 10**6)),
        lambda p: resume_events(p, "team", "crew", run, ResumeRequest()),
        lambda p: resume_events(p, "team", "crew", run, ResumeRequest("s2")),
        lambda p: resume_events(p, "team", "desk", run, ResumeRequest("s1")),
        lambda p: resume_events(p, "team", "missing", run, ResumeRequest("s1")),
        lambda p: resume_events(p, "team", "crew", "missing", ResumeRequest("s1")),
        lambda p: resume_events(p, "team", "crew", run, ResumeRequest("s1", -2)),
        lambda p: resume_events(p, "agent", "echo", other, ResumeRequest("s2")),
        lambda p: resume_events(p, "agent", "echo", other, ResumeRequest("s2", 0)),
        lambda p: resume_events(p, "agent", "echo", other, ResumeRequest("s2", 1)),
        lambda p: follow_events(p, "team", "crew", run, ResumeRequest()),
        lambda p: follow_events(p, "team", "crew", run, ResumeRequest(None, middle)),
        lambda p: follow_events(p, "team", "crew", run, ResumeRequest("s2")),
        lambda p: follow_events(p, "team", "crew", run, ResumeRequest("s1", -2)),
    ]
    return [first, plain, *[await call_operation(operations, call) for call in calls]]


def _first_event_data(outcome: Outcome) -> dict[str, Any]:
    """Return the data of the first event of a stream; empty values after an error."""
    if outcome[0] == "failed":
        return {"run_id": "none"}
    lines: Any = outcome[1]
    found: dict[str, Any] = orjson.loads(lines[0].split(b" ", 1)[1])
    return found


def _count_events_before_text(outcome: Outcome) -> int:
    """Return the number of events before the first text, which all streams of a run have."""
    if outcome[0] == "failed":
        return 1
    lines: Any = outcome[1]
    return next(number for number, line in enumerate(lines) if b"Content " in line[:30])


async def repeated_story(operations: Operations) -> list[Outcome]:
    """Repeat requests with the same, another and an invalid key."""

    def keyed(message: str, key: str, session: str = "s1", background: bool = False) -> RunRequest:
        return RunRequest(message, session, background=background, idempotency_key=key)

    calls: list[OperationCall] = [
        lambda p: p.runs.create("agent", "echo", keyed("x", "one")),
        lambda p: p.runs.create("agent", "echo", keyed("x", "one")),
        lambda p: p.runs.create("agent", "echo", keyed("y", "one")),
        lambda p: p.runs.create("agent", "echo", keyed("x", "one", background=True)),
        lambda p: p.runs.create("agent", "echo", keyed("x", "two")),
        lambda p: stream_events(p, "agent", "echo", keyed("x y", "three")),
        lambda p: stream_events(p, "agent", "echo", keyed("x y", "three")),
        lambda p: stream_events(p, "agent", "echo", keyed("x", "one")),
        lambda p: p.runs.create("agent", "echo", keyed("x", "")),
        lambda p: p.runs.create("agent", "echo", keyed("x", "a b")),
        lambda p: stream_events(p, "agent", "echo", keyed("x", "x" * 256)),
        lambda p: p.runs.create("agent", "echo", keyed("x", "four", "s2")),
        lambda p: p.sessions.delete("s2"),
        lambda p: p.runs.create("agent", "echo", keyed("x", "four", "s2")),
        lambda p: p.sessions.list_runs("s1"),
    ]
    return [await call_operation(operations, call) for call in calls]


async def accounts_story(operations: Operations) -> list[Outcome]:
    """Create, list and revoke service accounts, with every error."""

    def named(name: str, *scopes: str, **given: Any) -> NewAccount:
        return NewAccount(name, tuple(Grant(scope) for scope in scopes), **given)

    def making(account: NewAccount) -> OperationCall:
        return lambda p: p.accounts.create(account)

    first = await call_operation(operations, making(named("ci", "agents:echo:read", "agents:read")))
    made = str(orjson.loads(first[1])["id"]) if first[0] == "answered" else "none"  # type: ignore[arg-type]
    calls: list[OperationCall] = [
        making(named("ci", "agents:read")),
        making(named("long", "agents:read", expires_in_days=3650)),
        making(named("ever", "agents:read", never_expires=True)),
        making(named("meant", "service_accounts:read", allow_privileged_scopes=True)),
        making(named("unmeant", "service_accounts:read")),
        making(named("unheld", "agents:read", "teams:run", ADMIN, allow_privileged_scopes=True)),
        making(named("near", "agents:raed")),
        making(named("form", "agents read")),
        making(named("none")),
        making(named("not allowed", "agents:read")),
        making(named("days", "agents:read", expires_in_days=0)),
        making(named("both", "agents:read", expires_in_days=1, never_expires=True)),
        making(NewAccount("deny", (Grant("agents:read", "deny"),))),
        lambda p: p.accounts.list(AccountFilter()),
        lambda p: p.accounts.list(AccountFilter("ever")),
        lambda p: p.accounts.list(AccountFilter(page=Page(limit=1, page=2))),
        lambda p: p.accounts.list(AccountFilter(page=Page(limit=101))),
        lambda p: p.accounts.list(AccountFilter(page=Page(cursor="x"))),
        lambda p: p.accounts.revoke(made),
        lambda p: p.accounts.revoke(made),
        lambda p: p.accounts.revoke("missing"),
        making(named("ci", "agents:read")),
        lambda p: p.accounts.list(AccountFilter("ci", Page(sort_order="asc"))),
    ]
    return [first, *[await call_operation(operations, call) for call in calls]]


async def memories_story(operations: Operations) -> list[Outcome]:
    """Create, search, change and delete memories, with every error."""

    def adding(memory: str, *topics: str, **given: Any) -> OperationCall:
        return lambda p: p.memories.create(NewMemory(memory, topics, **given))

    def listing(**given: Any) -> OperationCall:
        return lambda p: p.memories.list(MemoryFilter(**given))

    first = await call_operation(operations, adding("Likes GREEN tea, straße", "food", "é"))
    made = str(orjson.loads(first[1])["memory_id"]) if first[0] == "answered" else "none"  # type: ignore[arg-type]
    calls: list[OperationCall] = [
        adding("Lives in Rome", agent_id="echo", team_id="crew"),
        adding("Teaches", "food", "work", user_id="somebody"),
        adding(" "),
        adding("x", "a,b"),
        adding("x\0"),
        lambda p: p.memories.get(made),
        lambda p: p.memories.get("missing"),
        listing(),
        listing(search_content="TEA"),
        listing(search_content="Strasse likes"),
        listing(search_content="tea rome"),
        listing(search_content="?"),
        listing(topics=("food",)),
        listing(topics=("food", "é")),
        listing(user_id="me", agent_id="echo"),
        listing(user_id="stranger"),
        listing(page=Page(limit=1, sort_by="created_at")),
        listing(page=Page(limit=1, page=2, sort_by="updated_at", sort_order="asc")),
        listing(page=Page(limit=0)),
        listing(page=Page(cursor="x")),
        lambda p: p.memories.list_topics(),
        lambda p: p.memories.list_topics(user_id="stranger"),
        lambda p: p.memories.update(made, MemoryPatch("Likes coffee")),
        lambda p: p.memories.update(made, MemoryPatch(None, ("drinks",))),
        lambda p: p.memories.update(made, MemoryPatch("")),
        lambda p: p.memories.update("missing", MemoryPatch("x")),
        listing(search_content="tea"),
        listing(search_content="coffee", topics=("drinks",)),
        lambda p: p.memories.delete_several(MemoryDeletion((made, "missing"))),
        lambda p: p.memories.delete_several(MemoryDeletion()),
        lambda p: p.memories.delete_several(MemoryDeletion((made,), all=True)),
        lambda p: p.memories.delete(made),
        lambda p: p.memories.delete(made),
        lambda p: p.memories.delete_several(MemoryDeletion(user_id="me", all=True)),
        listing(user_id="me"),
    ]
    return [first, *[await call_operation(operations, call) for call in calls]]


async def files_story(operations: Operations) -> list[Outcome]:
    """Upload, list, read and delete files, with every error."""

    def adding(name: str, content: bytes, media_type: str = "", **given: Any) -> OperationCall:
        upload = FileUpload(name, **given)
        body = FileContent(content)
        return lambda p: p.files.upload(upload, body, media_type=media_type, size=body.size)

    def reading(file_id: str, byte_range: str | None = None) -> OperationCall:
        async def read(p: Operations) -> bytes:
            parts = p.files.get_content(file_id, byte_range=byte_range)
            return b"".join([part async for part in parts])

        return read

    def listing(**given: Any) -> OperationCall:
        return lambda p: p.files.list(FileFilter(**given))

    await call_operation(operations, lambda p: p.sessions.create(NewSession(session_id="s1")))
    first = await call_operation(operations, adding("naïve.txt", b"0123456789", session_id="s1"))
    made = str(orjson.loads(first[1])["file_id"]) if first[0] == "answered" else "none"  # type: ignore[arg-type]
    calls: list[OperationCall] = [
        adding("naïve.txt", b"other", "text/markdown", session_id="s1"),
        adding("a.json", b"{}", "application/json"),
        adding("a.txt", b"x", user_id="somebody"),
        adding("a/b.txt", b"x"),
        adding("a\0.txt", b"x"),
        adding("a.txt", b""),
        adding("a.txt", b"<svg/>"),
        adding("a.txt", b"x", "image/png"),
        adding("a.txt", b"x", session_id="missing"),
        adding("a.txt", b"x", db_id="missing"),
        lambda p: p.files.get(made),
        lambda p: p.files.get("missing"),
        lambda p: p.files.get(made, db_id="second"),
        reading(made),
        reading(made, "bytes=2-4"),
        reading(made, "bytes=-2"),
        reading(made, "bytes=99-"),
        reading("missing"),
        listing(),
        listing(session_id="s1", page=Page(limit=1, sort_order="asc")),
        listing(user_id="stranger"),
        listing(page=Page(limit=0)),
        lambda p: p.files.delete(made),
        lambda p: p.files.delete(made),
        lambda p: p.sessions.delete("s1"),
        listing(),
    ]
    return [first, *[await call_operation(operations, call) for call in calls]]


async def cancel_story(operations: Operations) -> list[Outcome]:
    """Cancel a hanging run, and send every cancel that stops nothing."""
    task = asyncio.create_task(
        call_operation(
            operations, lambda p: stream_events(p, "agent", "hang", RunRequest("x", "s1"))
        )
    )
    run_id = await _wait_for_running(operations)
    calls: list[OperationCall] = [
        lambda p: p.runs.cancel("agent", "hang", run_id, CancelRequest(wait=30)),
        lambda p: p.runs.cancel("agent", "hang", run_id, CancelRequest("s2")),
        lambda p: p.runs.cancel("agent", "echo", run_id, CancelRequest("s1", wait=30)),
        lambda p: p.runs.cancel("agent", "hang", "missing", CancelRequest("s1", wait=30)),
        lambda p: p.runs.cancel("agent", "missing", run_id, CancelRequest("s1", wait=30)),
        lambda p: p.runs.cancel("agent", "hang", run_id, CancelRequest("s1", wait=31)),
        lambda p: p.runs.cancel(
            "agent", "hang", run_id, CancelRequest("s1", wait=30, reason="x" * 501)
        ),
        lambda p: p.sessions.delete("s1"),
        lambda p: p.runs.cancel("agent", "hang", run_id, CancelRequest("s1", 30, "enough")),
        lambda p: p.runs.cancel("agent", "hang", run_id, CancelRequest("s1", wait=30)),
        lambda p: p.runs.get(run_id),
    ]
    outcomes = [await call_operation(operations, call) for call in calls]
    return [*outcomes, await task]


async def _wait_for_running(operations: Operations) -> str:
    async def look() -> list[Any]:
        return list(
            orjson.loads((await operations.runs.list(RunFilter(status="RUNNING"))).raw)["data"]
        )

    return str((await wait_until(look))[0]["run_id"])


async def _run_on_both(
    backends: Backends, story: Story, *scopes: str
) -> tuple[list[Outcome], list[Outcome]]:
    async with backends.local(backends.here.token("me", *scopes)) as local:
        here = [normalize(outcome) for outcome in await story(local)]
    async with backends.remote(backends.there.token("me", *scopes)) as remote:
        there = [normalize(outcome) for outcome in await story(remote)]
    return here, there


async def _compare_backends(backends: Backends, story: Story, *scopes: str) -> list[Outcome]:
    here, there = await _run_on_both(backends, story, *scopes)
    for number, (one, other) in enumerate(zip(here, there, strict=True)):
        assert one == other, f"step {number} of {story.__name__}"
        backends.compare_engines(f"step {number} of {story.__name__} with {scopes}", one)
    return here


async def test_session_changes_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, sessions_story, *WRITER)
    assert [kind for kind, _ in outcomes].count("answered") > 12


async def holds_story(operations: Operations) -> list[Outcome]:
    """Hold and release a session, and try to delete it by every way in between."""
    calls: list[OperationCall] = [
        lambda p: p.sessions.create(NewSession(session_id="s1", user_id="me")),
        lambda p: p.sessions.create(NewSession(session_id="s2", user_id="me")),
        lambda p: p.sessions.hold("s1", " "),
        lambda p: p.sessions.hold("s1", "x" * 501),
        lambda p: p.sessions.hold("s1", "x", SessionLocator(type="team")),
        lambda p: p.sessions.hold("missing", "x"),
        lambda p: p.sessions.release("s1"),
        lambda p: p.sessions.hold("s1", "claim é"),
        lambda p: p.sessions.hold("s1", "another claim"),
        lambda p: p.sessions.get("s1"),
        lambda p: p.sessions.get("s1", view="summary"),
        lambda p: p.sessions.rename("s1", "renamed", view="summary"),
        lambda p: p.sessions.delete("s1"),
        lambda p: p.sessions.delete("s1", cancel=True),
        lambda p: p.sessions.delete_several(BulkDeletion(("s2", "s1"))),
        lambda p: p.sessions.list(SessionFilter()),
        lambda p: p.sessions.release("s1"),
        lambda p: p.sessions.get("s1", view="summary"),
        lambda p: p.sessions.delete_several(BulkDeletion(("s2", "s1"))),
    ]
    return [await call_operation(operations, call) for call in calls]


async def test_holds_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, holds_story, ADMIN)
    assert _list_codes(outcomes) == {
        **dict.fromkeys((2, 3), "VALIDATION_ERROR"),
        **dict.fromkeys((4, 5), "NOT_FOUND"),
        **dict.fromkeys((6, 8), "CONFLICT"),
        **dict.fromkeys((12, 13, 14), "HELD"),
    }


def _list_codes(outcomes: list[Outcome]) -> dict[int, str]:
    """Return the error codes by the numbers of the steps that failed."""
    return {
        number: ast.literal_eval(bytes(found).decode())[0]  # type: ignore[call-overload]
        for number, (kind, found) in enumerate(outcomes)
        if kind == "failed"
    }


async def test_only_administrators_hold_sessions(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, holds_story, *WRITER)
    assert {*_list_codes(outcomes[2:9]).values()} == {"FORBIDDEN"}


async def idle_story(operations: Operations) -> list[Outcome]:
    """Create the sessions of `prune_story`."""
    calls: list[OperationCall] = [
        *(
            lambda p, name=name: p.runs.create("agent", "echo", RunRequest("x", name))  # type: ignore[misc]
            for name in ("s1", "s2", "s3")
        ),
        lambda p: p.runs.create("agent", "payer", RunRequest("other", "waits")),
        lambda p: p.runs.create("team", "crew", RunRequest("ask echo", "t1")),
        lambda p: p.sessions.create(NewSession(session_id="s4", db_id="second")),
        lambda p: p.sessions.hold("s2", "claim"),
    ]
    return [await call_operation(operations, call) for call in calls]


async def prune_story(operations: Operations) -> list[Outcome]:
    """Find and remove idle sessions, with every error, after all were idle for 3 days."""

    def prune(*ids: str, days: int = 2, db: str | None = None) -> OperationCall:
        return lambda p: p.sessions.prune(PruneRequest(days, ids, db))

    def find(days: int = 2, **given: Any) -> OperationCall:
        return lambda p: p.sessions.list_idle(IdleFilter(days, **given))

    calls: list[OperationCall] = [
        find(0),
        find(36_501),
        find(limit=0),
        find(cursor="x"),
        find(db_id="missing"),
        find(component_id="\0"),
        find(4),
        find(),
        find(limit=2),
        find(component_type="team"),
        find(component_type="agent", component_id="echo"),
        find(db_id="second"),
        lambda p: p.sessions.rename("s3", "used again", view="summary"),
        prune("s1", days=0),
        prune(),
        prune(*map(str, range(101))),
        prune("s1", "\0"),
        prune("s1", db="missing"),
        prune("s1", days=4),
        prune("missing", "s3", "waits", "s2", "s1", "s1"),
        prune("s1", "s2"),
        prune("s4", "s1", db="second"),
        prune("t1"),
        find(),
        lambda p: p.sessions.get("s1"),
        lambda p: p.sessions.list(SessionFilter()),
    ]
    return [await call_operation(operations, call) for call in calls]


async def test_removals_of_idle_sessions_are_equal(separate: Backends) -> None:
    await _compare_backends(separate, idle_story, ADMIN)
    await age_sessions(separate.here, 3)
    await age_sessions(separate.there, 3)
    outcomes = await _compare_backends(separate, prune_story, ADMIN)
    assert [number for number, (kind, _) in enumerate(outcomes) if kind == "failed"] == [
        *range(6),
        *range(13, 18),
        24,
    ]
    states = {row["session_id"]: row["state"] for row in _read_rows(outcomes[7])}
    assert states == {"s1": "idle", "s2": "held", "s3": "idle", "waits": "busy", "t1": "idle"}
    assert [row["session_id"] for row in _read_rows(outcomes[9])] == ["t1"]
    assert orjson.loads(outcomes[19][1]) == {  # type: ignore[arg-type]
        "removed": ["s1"], "held": ["s2"], "busy": ["waits"], "used": ["s3"],
        "missing": ["missing"],
    }  # fmt: skip


def _read_rows(outcome: Outcome) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = orjson.loads(outcome[1])["data"]  # type: ignore[arg-type]
    return rows


async def test_only_administrators_remove_idle_sessions(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, prune_story, *WRITER)
    assert {*_list_codes(outcomes[:12]).values()} == {"FORBIDDEN"}
    assert {*_list_codes(outcomes[13:24]).values()} == {"FORBIDDEN"}


async def repeats_story(operations: Operations) -> list[Outcome]:
    """Retry and fork runs in every way, with errors."""
    outcomes = list[Outcome]()

    async def do(call: OperationCall) -> None:
        outcomes.append(await call_operation(operations, call))

    agent: tuple[ComponentKind, str] = ("agent", "tool-add")
    request = RunRequest('{"a": 1, "b": 2}', "s1")
    await do(lambda p: p.runs.create(*agent, request))
    kind, raw = outcomes[0]
    run = orjson.loads(raw)["run_id"] if kind == "answered" else "none"  # type: ignore[arg-type]
    await do(lambda p: p.runs.retry(*agent, run, RetryRequest()))
    await do(lambda p: read_events(p.runs.stream_retried(*agent, run, RetryRequest(confirm="x"))))
    await do(lambda p: p.runs.retry("agent", "echo", run, RetryRequest()))
    await do(lambda p: p.runs.retry(*agent, "missing", RetryRequest()))
    await do(lambda p: p.runs.fork(*agent, run, ForkRequest(at=1)))
    await do(lambda p: p.runs.fork(*agent, run, ForkRequest(at=9)))
    await do(lambda p: p.runs.fork(*agent, run, ForkRequest(at=5, agent_id="missing")))
    forked = ForkRequest(at=5, message="next", agent_id="echo", session_id="s2")
    await do(lambda p: p.runs.fork(*agent, run, forked))
    await do(lambda p: p.runs.fork(*agent, run, forked))
    to_team = ForkRequest(at=5, message="ask echo", team_id="crew", idempotency_key="k")
    await do(lambda p: read_events(p.runs.stream_forked(*agent, run, to_team)))
    await do(lambda p: read_events(p.runs.stream_forked(*agent, run, to_team)))
    again = ForkRequest(at=5, message="other", team_id="crew", idempotency_key="k")
    await do(lambda p: read_events(p.runs.stream_forked(*agent, run, again)))
    await do(lambda p: p.sessions.list_runs("s1"))
    await do(lambda p: p.sessions.get("s2"))
    return outcomes


async def test_repeats_of_runs_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, repeats_story, *WRITER)
    assert [number for number, (kind, _) in enumerate(outcomes) if kind == "failed"] == [
        2, 3, 4, 5, 6, 7, 9, 12,
    ]  # fmt: skip
    assert outcomes[10] == outcomes[11]


async def test_runs_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, runs_story, *WRITER)
    assert [kind for kind, _ in outcomes].count("answered") > 12


async def test_resumed_streams_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, resume_story, *WRITER)
    assert outcomes[2] == outcomes[0]
    assert [kind for kind, _ in outcomes] == [
        *["answered"] * 6, *["failed"] * 6, *["answered"] * 3, *["failed"] * 4,
    ]  # fmt: skip


async def test_resumed_streams_of_an_administrator_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, resume_story, ADMIN)
    assert outcomes[6] == outcomes[0]
    assert outcomes[15] == outcomes[0]
    assert outcomes[16] == outcomes[4]


async def test_repeated_requests_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, repeated_story, *WRITER)
    assert outcomes[0] == outcomes[1]
    assert outcomes[5] == outcomes[6]
    assert [number for number, (kind, _) in enumerate(outcomes) if kind == "failed"] == [
        2, 3, 7, 8, 9, 10, 13,
    ]  # fmt: skip


async def test_account_changes_are_equal(separate: Backends) -> None:
    managing = (f"service_accounts:{action}" for action in ("read", "write", "delete"))
    outcomes = await _compare_backends(separate, accounts_story, "agents:read", *managing)
    assert [number for number, (kind, _) in enumerate(outcomes) if kind == "failed"] == [
        1,
        *range(5, 14),
        17,
        18,
        20,
        21,
    ]
    assert b'"token":"<id ' in outcomes[0][1]  # type: ignore[operator]


async def test_memory_changes_are_equal(separate: Backends) -> None:
    managing = [f"memories:{action}" for action in ("read", "write", "delete")]
    outcomes = await _compare_backends(separate, memories_story, *managing)
    assert [number for number, (kind, _) in enumerate(outcomes) if kind == "failed"] == [
        2, 3, 4, 5, 7, 12, 19, 20, 25, 26, 29, 30, 31, 33,
    ]  # fmt: skip
    assert b'"data":[]' in outcomes[-1][1]  # type: ignore[operator]


async def test_file_changes_are_equal(separate: Backends) -> None:
    scopes = [f"sessions:{action}" for action in ("read", "write", "delete")]
    outcomes = await _compare_backends(separate, files_story, *scopes)
    assert [number for number, (kind, _) in enumerate(outcomes) if kind == "failed"] == [
        3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 17, 18, 22, 24,
    ]  # fmt: skip
    assert [outcomes[number][1] for number in (14, 15, 16)] == [b"0123456789", b"234", b"89"]
    assert outcomes[-1][1].count(b'"file_id"') == 1  # type: ignore[attr-defined]


async def test_memory_changes_of_an_administrator_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, memories_story, ADMIN)
    assert b'"user_id":"somebody"' in outcomes[2][1]  # type: ignore[operator]


async def test_cancel_results_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, cancel_story, *WRITER)
    assert b'"cancel":"stopped"' in outcomes[8][1]  # type: ignore[operator]
    assert b"RunCancelled" in outcomes[-1][1]  # type: ignore[operator]


async def test_cancels_of_an_administrator_are_equal(separate: Backends) -> None:
    outcomes = await _compare_backends(separate, cancel_story, ADMIN)
    assert b'"cancel":"stopped"' in outcomes[0][1]  # type: ignore[operator]


async def test_errors_are_equal(separate: Backends) -> None:
    for story in (
        sessions_story,
        runs_story,
        resume_story,
        repeated_story,
        accounts_story,
        memories_story,
    ):
        outcomes = await _compare_backends(separate, story)
        assert {kind for kind, _ in outcomes} == {"failed"}

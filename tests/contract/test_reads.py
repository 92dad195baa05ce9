"""Reads of both backends on the same data: equal bytes and errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    Page,
    RunFilter,
    RunRequest,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
)
from agentctl.interface.requests.administration import (
    AccountFilter,
    Grant,
    NewAccount,
    OverviewFilter,
    UsageFilter,
)
from agentctl.interface.requests.memories import MemoryFilter, NewMemory
from agentctl.records.sessions import ExportFormat
from tests.contract.backends import Backends, OperationCall, Outcome, call_operation, normalize
from tests.deployment import ADMIN

READER = (
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "config:read", "memories:read",
)  # fmt: skip

CALLERS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "owner": ("owner", READER),
    "stranger": ("stranger", READER),
    "nobody": (None, READER),
    "powerless": ("owner", ()),
    "narrow": ("owner", ("agents:echo:read", "teams:crew:read", "sessions:a1:read")),
    "admin": ("admin", (ADMIN,)),
}


@pytest.fixture(scope="module")
def filled_sessions(shared: Backends) -> dict[str, str]:
    """Create sessions of every type with real runs; return the ids of their first runs."""

    async def fill() -> dict[str, str]:
        async with shared.remote(shared.there.token("owner", *READER)) as operations:
            made: dict[str, Any] = {
                "a1": await operations.create_run("agent", "echo", RunRequest("hello", "a1")),
                "t1": await operations.create_run("team", "crew", RunRequest("ask echo", "t1")),
                "w1": await operations.create_run("workflow", "line", RunRequest("go", "w1")),
                "e1": await operations.create_run("agent", "http-500", RunRequest("fail", "e1")),
            }
            patch = SessionPatch({"session_state": {"n": 1}, "metadata": {"é": [1, 2.5, None]}})
            await operations.update_session("a1", patch)
            async with shared.remote(shared.there.token("admin", ADMIN)) as boss:
                grants = (Grant("agents:read"), Grant("teams:crew:read"))
                await boss.create_service_account(NewAccount("ci", grants))
                new = NewMemory("Likes tea", ("food",), "owner")
                memory = (await boss.create_memory(new)).value["memory_id"]
            runs = {name: document.value["run_id"] for name, document in made.items()}
            return {**runs, "memory": memory}

    return asyncio.run(fill())


SUMMARY = RunView("summary")
ITEMS = RunView("items")


async def read_export(
    operations: Operations, session_id: str, form: ExportFormat = "json"
) -> bytes:
    """Return the whole file of a session."""
    return b"".join([part async for part in operations.export_session(session_id, format=form)])


def reads(ids: dict[str, str]) -> dict[str, OperationCall]:
    """Return every read operation, with resources that exist and that do not."""
    everything: dict[str, OperationCall] = {
        "get_api": lambda operations: operations.get_api(),
        "get_health": lambda operations: operations.get_health(),
        "get_readiness": lambda operations: operations.get_readiness(),
        "get_info": lambda operations: operations.get_info(),
        "get_config": lambda operations: operations.get_config(),
        "get_models": lambda operations: operations.get_models(),
        "get_me": lambda operations: operations.get_me(),
        "list_service_accounts": lambda operations: operations.list_service_accounts(
            AccountFilter()
        ),
        "list_service_accounts name": lambda operations: operations.list_service_accounts(
            AccountFilter("é")
        ),
        "get_memories": lambda operations: operations.get_memories(MemoryFilter()),
        "get_memories search": lambda operations: operations.get_memories(
            MemoryFilter(search_content="tea", topics=("food",))
        ),
        "get_memory": lambda operations: operations.get_memory(ids["memory"]),
        "get_memory_topics": lambda operations: operations.get_memory_topics(),
        "get_agents": lambda operations: operations.get_components("agent"),
        "get_teams": lambda operations: operations.get_components("team"),
        "get_workflows": lambda operations: operations.get_components("workflow"),
        "get_agent": lambda operations: operations.get_component("agent", "echo"),
        "get_team": lambda operations: operations.get_component("team", "crew"),
        "get_workflow": lambda operations: operations.get_component("workflow", "line"),
        "get_agent missing": lambda operations: operations.get_component("agent", "missing"),
        "get_sessions": lambda operations: operations.get_sessions(SessionFilter()),
        "get_sessions page": lambda operations: operations.get_sessions(
            SessionFilter(page=Page(limit=2, page=2, sort_by="updated_at", sort_order="asc"))
        ),
        "get_sessions filter": lambda operations: operations.get_sessions(
            SessionFilter(SessionLocator(type="agent", user_id="owner"), "echo", "HEL")
        ),
        "get_sessions bad page": lambda operations: operations.get_sessions(
            SessionFilter(page=Page(page=0))
        ),
        "get_sessions bad cursor": lambda operations: operations.get_sessions(
            SessionFilter(page=Page(cursor="x"))
        ),
        "get_sessions deep page": lambda operations: operations.get_sessions(
            SessionFilter(page=Page(limit=100, page=200))
        ),
        "get_sessions no database": lambda operations: operations.get_sessions(
            SessionFilter(SessionLocator(db_id="none"))
        ),
        "get_session_by_id other type": lambda operations: operations.get_session_by_id(
            "a1", SessionLocator(type="team")
        ),
        "get_session_by_id table": lambda operations: operations.get_session_by_id(
            "a1", SessionLocator(table="x")
        ),
        "get_session_by_id second database": lambda operations: operations.get_session_by_id(
            "a1", SessionLocator(db_id="second")
        ),
        **{
            f"get_session_by_id {session} summary": lambda operations, s=session: (
                operations.get_session_by_id(s, view="summary")
            )
            for session in ("a1", "t1", "w1", "e1", "none")
        },
        "get_runs at work": lambda operations: operations.get_runs(RunFilter(at_work=True)),
        "get_budgets": lambda operations: operations.get_budgets(),
        "get_run_causes": lambda operations: operations.get_run_causes(ids["e1"]),
        "get_failures": lambda operations: operations.get_failures(RunFilter()),
        "get_run_messages": lambda operations: operations.get_run_messages(ids["a1"]),
        "get_run_messages absent": lambda operations: operations.get_run_messages("none"),
        "get_run_messages after": lambda operations: operations.get_run_messages(
            ids["a1"], after="none", limit=1
        ),
        "get_run_model_calls": lambda operations: operations.get_run_model_calls(ids["a1"]),
        "get_run_model_calls page": lambda operations: operations.get_run_model_calls(
            ids["a1"], after="model-1", limit=1
        ),
        "get_run_model_calls absent": lambda operations: operations.get_run_model_calls("none"),
        "get_run_model_call": lambda operations: operations.get_run_model_call(
            ids["a1"], "model-1", cut=3
        ),
        "get_run_model_call absent": lambda operations: operations.get_run_model_call(
            ids["a1"], "model-9"
        ),
        "get_usage": lambda operations: operations.get_usage(
            UsageFilter(by=("user", "component", "model"))
        ),
        "get_usage no group": lambda operations: operations.get_usage(UsageFilter(by=())),
        "get_usage_overview": lambda operations: operations.get_usage_overview(
            OverviewFilter("day", "model", user_id="nobody")  # the times of runs differ
        ),
        "get_runs failed": lambda operations: operations.get_runs(
            RunFilter(error_code="MODEL_UNAVAILABLE", parent="none", finished_before=2**52)
        ),
        "get_runs ended": lambda operations: operations.get_runs(RunFilter(finished_after=1)),
        "get_session_by_id odd id": lambda operations: operations.get_session_by_id("b c%é?x=1"),
        "get_session_runs part": lambda operations: operations.get_session_runs(
            "t1", SessionRunsQuery(limit=1, after=ids["t1"])
        ),
        "get_session_runs last": lambda operations: operations.get_session_runs(
            "t1",
            SessionRunsQuery(limit=2, before=ids["t1"], parent="none", order="desc", form=SUMMARY),
        ),
        "get_session_runs bad before": lambda operations: operations.get_session_runs(
            "t1", SessionRunsQuery(before="missing")
        ),
        "get_runs summaries": lambda operations: operations.get_runs(RunFilter(form=SUMMARY)),
        "get_runs prefix": lambda operations: operations.get_runs(
            RunFilter(id_prefix=ids["a1"][:13], form=RunView(cut=2))
        ),
        "get_runs short prefix": lambda operations: operations.get_runs(
            RunFilter(id_prefix="0123456")
        ),
        "get_sessions prefix": lambda operations: operations.get_sessions(
            SessionFilter(id_prefix="missing-one")
        ),
        "get_session_runs items": lambda operations: operations.get_session_runs(
            "t1", SessionRunsQuery(form=RunView("items", 10))
        ),
        "get_session_run items": lambda operations: operations.get_session_run(
            "w1", ids["w1"], form=ITEMS
        ),
        "get_runs phases": lambda operations: operations.get_runs(RunFilter(form=RunView("phase"))),
        "get_team_run items": lambda operations: operations.get_component_run(
            "team", "crew", ids["t1"], form=ITEMS
        ),
        "get_run items of a failure": lambda operations: operations.get_run(ids["e1"], form=ITEMS),
        "export_session": lambda operations: read_export(operations, "t1"),
        "export_session missing": lambda operations: read_export(operations, "missing"),
        "get_run summary": lambda operations: operations.get_run(ids["t1"], form=SUMMARY),
        "get_run cut": lambda operations: operations.get_run(ids["t1"], form=RunView(cut=1)),
        "get_run bad cut": lambda operations: operations.get_run(ids["t1"], form=RunView(cut=0)),
        "get_session_runs bad after": lambda operations: operations.get_session_runs(
            "t1", SessionRunsQuery(after=ids["a1"])
        ),
        "get_session_run": lambda operations: operations.get_session_run("a1", ids["a1"]),
        "get_session_run of another": lambda operations: operations.get_session_run(
            "a1", ids["t1"]
        ),
        "get_runs": lambda operations: operations.get_runs(RunFilter()),
        "get_runs filter": lambda operations: operations.get_runs(
            RunFilter("ERROR", "agent", "http-500", "e1", "owner", "main", Page(limit=1))
        ),
        "get_runs live": lambda operations: operations.get_runs(RunFilter(live=True)),
        "get_runs of a time": lambda operations: operations.get_runs(
            RunFilter(created_after=1_700_000_000_000_000, created_before=4_000_000_000_000_001)
        ),
        "get_runs live and status": lambda operations: operations.get_runs(
            RunFilter("RUNNING", live=True)
        ),
        "list_agent_runs live and status": lambda operations: operations.list_component_runs(
            "agent", "echo", RunFilter("ERROR", live=True)
        ),
        "list_agent_runs of a time": lambda operations: operations.list_component_runs(
            "agent", "echo", RunFilter(created_before=1)
        ),
        "get_run missing": lambda operations: operations.get_run("missing"),
        "list_agent_runs": lambda operations: operations.list_component_runs(
            "agent", "echo", RunFilter()
        ),
        "list_team_runs": lambda operations: operations.list_component_runs(
            "team", "crew", RunFilter()
        ),
        "list_workflow_runs": lambda operations: operations.list_component_runs(
            "workflow", "line", RunFilter(status="COMPLETED")
        ),
        "list_agent_runs missing": lambda operations: operations.list_component_runs(
            "agent", "missing", RunFilter()
        ),
        "get_agent_run": lambda operations: operations.get_component_run(
            "agent", "echo", ids["a1"]
        ),
        "get_agent_run session": lambda operations: operations.get_component_run(
            "agent", "echo", ids["a1"], session_id="a1"
        ),
        "get_agent_run other session": lambda operations: operations.get_component_run(
            "agent", "echo", ids["a1"], session_id="t1"
        ),
        "get_team_run": lambda operations: operations.get_component_run("team", "crew", ids["t1"]),
        "get_workflow_run": lambda operations: operations.get_component_run(
            "workflow", "line", ids["w1"]
        ),
    }
    for session in (*ids, "missing"):
        everything |= _reads_of(session, ids.get(session, session))
    return everything


def _reads_of(session: str, run: str) -> dict[str, OperationCall]:
    return {
        f"get_session_by_id {session}": lambda operations: operations.get_session_by_id(session),
        f"get_session_runs {session}": lambda operations: operations.get_session_runs(session),
        f"get_run {session}": lambda operations: operations.get_run(run),
    }


@pytest.mark.parametrize("caller", CALLERS)
async def test_reads_are_equal(
    shared: Backends, filled_sessions: dict[str, str], caller: str
) -> None:
    subject, scopes = CALLERS[caller]
    token = shared.there.token(subject, *scopes)
    async with shared.local(token) as local, shared.remote(token) as remote:
        outcomes: dict[str, tuple[Outcome, Outcome]] = {}
        for name, ask in reads(filled_sessions).items():
            outcomes[name] = await call_operation(local, ask), await call_operation(remote, ask)
    for name, (here, there) in outcomes.items():
        assert here == there, name
        shared.compare_engines(f"{name} as {caller}", normalize(here))
    kinds = {here[0] for here, _ in outcomes.values()}
    assert kinds == {"answered", "failed"}


async def test_transcripts_are_equal(shared: Backends, filled_sessions: dict[str, str]) -> None:
    token = shared.there.token("owner", *READER)
    async with shared.local(token) as local, shared.remote(token) as remote:
        for session in filled_sessions.keys() - {"memory"}:
            here = await read_export(local, session, "markdown")
            assert here == await read_export(remote, session, "markdown")
            assert here.startswith(b"# ")


async def test_reads_of_an_owner_are_not_empty(
    shared: Backends, filled_sessions: dict[str, str]
) -> None:
    """The comparison above does not compare errors with errors."""
    async with shared.remote(shared.there.token("owner", *READER)) as operations:
        for session in filled_sessions.keys() - {"memory"}:
            assert (
                await call_operation(
                    operations, lambda operations, s=session: operations.get_session_by_id(s)
                )
            )[0] == ("answered")

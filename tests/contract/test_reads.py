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
from tests.kit.deployment import ADMIN

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
                "a1": await operations.runs.create("agent", "echo", RunRequest("hello", "a1")),
                "t1": await operations.runs.create("team", "crew", RunRequest("ask echo", "t1")),
                "w1": await operations.runs.create("workflow", "line", RunRequest("go", "w1")),
                "e1": await operations.runs.create("agent", "http-500", RunRequest("fail", "e1")),
            }
            patch = SessionPatch({"session_state": {"n": 1}, "metadata": {"é": [1, 2.5, None]}})
            await operations.sessions.update("a1", patch)
            async with shared.remote(shared.there.token("admin", ADMIN)) as boss:
                grants = (Grant("agents:read"), Grant("teams:crew:read"))
                await boss.accounts.create(NewAccount("ci", grants))
                new = NewMemory("Likes tea", ("food",), "owner")
                memory = (await boss.memories.create(new)).value["memory_id"]
            runs = {name: document.value["run_id"] for name, document in made.items()}
            return {**runs, "memory": memory}

    return asyncio.run(fill())


SUMMARY = RunView("summary")
ITEMS = RunView("items")


async def read_export(
    operations: Operations, session_id: str, form: ExportFormat = "json"
) -> bytes:
    """Return the whole file of a session."""
    return b"".join([part async for part in operations.sessions.export(session_id, format=form)])


def reads(ids: dict[str, str]) -> dict[str, OperationCall]:
    """Return every read operation, with resources that exist and that do not."""
    everything: dict[str, OperationCall] = {
        "get_api": lambda operations: operations.system.get_api(),
        "get_health": lambda operations: operations.system.get_health(),
        "get_readiness": lambda operations: operations.system.get_readiness(),
        "get_info": lambda operations: operations.system.get_info(),
        "get_config": lambda operations: operations.system.get_config(),
        "get_models": lambda operations: operations.system.get_models(),
        "get_me": lambda operations: operations.system.get_me(),
        "list_service_accounts": lambda operations: operations.accounts.list(AccountFilter()),
        "list_service_accounts name": lambda operations: operations.accounts.list(
            AccountFilter("é")
        ),
        "get_memories": lambda operations: operations.memories.list(MemoryFilter()),
        "get_memories search": lambda operations: operations.memories.list(
            MemoryFilter(search_content="tea", topics=("food",))
        ),
        "get_memory": lambda operations: operations.memories.get(ids["memory"]),
        "get_memory_topics": lambda operations: operations.memories.list_topics(),
        "get_agents": lambda operations: operations.components.list("agent"),
        "get_teams": lambda operations: operations.components.list("team"),
        "get_workflows": lambda operations: operations.components.list("workflow"),
        "get_agent": lambda operations: operations.components.get("agent", "echo"),
        "get_team": lambda operations: operations.components.get("team", "crew"),
        "get_workflow": lambda operations: operations.components.get("workflow", "line"),
        "get_agent missing": lambda operations: operations.components.get("agent", "missing"),
        "get_sessions": lambda operations: operations.sessions.list(SessionFilter()),
        "get_sessions page": lambda operations: operations.sessions.list(
            SessionFilter(page=Page(limit=2, page=2, sort_by="updated_at", sort_order="asc"))
        ),
        "get_sessions filter": lambda operations: operations.sessions.list(
            SessionFilter(SessionLocator(type="agent", user_id="owner"), "echo", "HEL")
        ),
        "get_sessions bad page": lambda operations: operations.sessions.list(
            SessionFilter(page=Page(page=0))
        ),
        "get_sessions bad cursor": lambda operations: operations.sessions.list(
            SessionFilter(page=Page(cursor="x"))
        ),
        "get_sessions deep page": lambda operations: operations.sessions.list(
            SessionFilter(page=Page(limit=100, page=200))
        ),
        "get_sessions no database": lambda operations: operations.sessions.list(
            SessionFilter(SessionLocator(db_id="none"))
        ),
        "get_session_by_id other type": lambda operations: operations.sessions.get(
            "a1", SessionLocator(type="team")
        ),
        "get_session_by_id table": lambda operations: operations.sessions.get(
            "a1", SessionLocator(table="x")
        ),
        "get_session_by_id second database": lambda operations: operations.sessions.get(
            "a1", SessionLocator(db_id="second")
        ),
        **{
            f"get_session_by_id {session} summary": lambda operations, s=session: (
                operations.sessions.get(s, view="summary")
            )
            for session in ("a1", "t1", "w1", "e1", "none")
        },
        "get_runs at work": lambda operations: operations.runs.list(RunFilter(at_work=True)),
        "get_budgets": lambda operations: operations.usage.list_budgets(),
        "get_run_causes": lambda operations: operations.runs.get_causes(ids["e1"]),
        "get_failures": lambda operations: operations.runs.list_failures(RunFilter()),
        "get_run_messages": lambda operations: operations.runs.list_messages(ids["a1"]),
        "get_run_messages absent": lambda operations: operations.runs.list_messages("none"),
        "get_run_messages after": lambda operations: operations.runs.list_messages(
            ids["a1"], after="none", limit=1
        ),
        "get_run_model_calls": lambda operations: operations.runs.list_model_calls(ids["a1"]),
        "get_run_model_calls page": lambda operations: operations.runs.list_model_calls(
            ids["a1"], after="model-1", limit=1
        ),
        "get_run_model_calls absent": lambda operations: operations.runs.list_model_calls("none"),
        "get_run_model_call": lambda operations: operations.runs.get_model_call(
            ids["a1"], "model-1", cut=3
        ),
        "get_run_model_call absent": lambda operations: operations.runs.get_model_call(
            ids["a1"], "model-9"
        ),
        "get_usage": lambda operations: operations.usage.get(
            UsageFilter(by=("user", "component", "model"))
        ),
        "get_usage no group": lambda operations: operations.usage.get(UsageFilter(by=())),
        "get_usage_overview": lambda operations: operations.usage.get_overview(
            OverviewFilter("day", "model", user_id="nobody")  # the times of runs differ
        ),
        "get_runs failed": lambda operations: operations.runs.list(
            RunFilter(error_code="MODEL_UNAVAILABLE", parent="none", finished_before=2**52)
        ),
        "get_runs ended": lambda operations: operations.runs.list(RunFilter(finished_after=1)),
        "get_session_by_id odd id": lambda operations: operations.sessions.get("b c%é?x=1"),
        "get_session_runs part": lambda operations: operations.sessions.list_runs(
            "t1", SessionRunsQuery(limit=1, after=ids["t1"])
        ),
        "get_session_runs last": lambda operations: operations.sessions.list_runs(
            "t1",
            SessionRunsQuery(limit=2, before=ids["t1"], parent="none", order="desc", form=SUMMARY),
        ),
        "get_session_runs bad before": lambda operations: operations.sessions.list_runs(
            "t1", SessionRunsQuery(before="missing")
        ),
        "get_runs summaries": lambda operations: operations.runs.list(RunFilter(form=SUMMARY)),
        "get_runs prefix": lambda operations: operations.runs.list(
            RunFilter(id_prefix=ids["a1"][:13], form=RunView(cut=2))
        ),
        "get_runs short prefix": lambda operations: operations.runs.list(
            RunFilter(id_prefix="0123456")
        ),
        "get_sessions prefix": lambda operations: operations.sessions.list(
            SessionFilter(id_prefix="missing-one")
        ),
        "get_session_runs items": lambda operations: operations.sessions.list_runs(
            "t1", SessionRunsQuery(form=RunView("items", 10))
        ),
        "get_session_run items": lambda operations: operations.sessions.get_run(
            "w1", ids["w1"], form=ITEMS
        ),
        "get_runs phases": lambda operations: operations.runs.list(
            RunFilter(form=RunView("phase"))
        ),
        "get_team_run items": lambda operations: operations.runs.get_of_component(
            "team", "crew", ids["t1"], form=ITEMS
        ),
        "get_run items of a failure": lambda operations: operations.runs.get(ids["e1"], form=ITEMS),
        "export_session": lambda operations: read_export(operations, "t1"),
        "export_session missing": lambda operations: read_export(operations, "missing"),
        "get_run summary": lambda operations: operations.runs.get(ids["t1"], form=SUMMARY),
        "get_run cut": lambda operations: operations.runs.get(ids["t1"], form=RunView(cut=1)),
        "get_run bad cut": lambda operations: operations.runs.get(ids["t1"], form=RunView(cut=0)),
        "get_session_runs bad after": lambda operations: operations.sessions.list_runs(
            "t1", SessionRunsQuery(after=ids["a1"])
        ),
        "get_session_run": lambda operations: operations.sessions.get_run("a1", ids["a1"]),
        "get_session_run of another": lambda operations: operations.sessions.get_run(
            "a1", ids["t1"]
        ),
        "get_runs": lambda operations: operations.runs.list(RunFilter()),
        "get_runs filter": lambda operations: operations.runs.list(
            RunFilter("ERROR", "agent", "http-500", "e1", "owner", "main", Page(limit=1))
        ),
        "get_runs live": lambda operations: operations.runs.list(RunFilter(live=True)),
        "get_runs of a time": lambda operations: operations.runs.list(
            RunFilter(created_after=1_700_000_000_000_000, created_before=4_000_000_000_000_001)
        ),
        "get_runs live and status": lambda operations: operations.runs.list(
            RunFilter("RUNNING", live=True)
        ),
        "list_agent_runs live and status": lambda operations: operations.runs.list_of_component(
            "agent", "echo", RunFilter("ERROR", live=True)
        ),
        "list_agent_runs of a time": lambda operations: operations.runs.list_of_component(
            "agent", "echo", RunFilter(created_before=1)
        ),
        "get_run missing": lambda operations: operations.runs.get("missing"),
        "list_agent_runs": lambda operations: operations.runs.list_of_component(
            "agent", "echo", RunFilter()
        ),
        "list_team_runs": lambda operations: operations.runs.list_of_component(
            "team", "crew", RunFilter()
        ),
        "list_workflow_runs": lambda operations: operations.runs.list_of_component(
            "workflow", "line", RunFilter(status="COMPLETED")
        ),
        "list_agent_runs missing": lambda operations: operations.runs.list_of_component(
            "agent", "missing", RunFilter()
        ),
        "get_agent_run": lambda operations: operations.runs.get_of_component(
            "agent", "echo", ids["a1"]
        ),
        "get_agent_run session": lambda operations: operations.runs.get_of_component(
            "agent", "echo", ids["a1"], session_id="a1"
        ),
        "get_agent_run other session": lambda operations: operations.runs.get_of_component(
            "agent", "echo", ids["a1"], session_id="t1"
        ),
        "get_team_run": lambda operations: operations.runs.get_of_component(
            "team", "crew", ids["t1"]
        ),
        "get_workflow_run": lambda operations: operations.runs.get_of_component(
            "workflow", "line", ids["w1"]
        ),
    }
    for session in (*ids, "missing"):
        everything |= _reads_of(session, ids.get(session, session))
    return everything


def _reads_of(session: str, run: str) -> dict[str, OperationCall]:
    return {
        f"get_session_by_id {session}": lambda operations: operations.sessions.get(session),
        f"get_session_runs {session}": lambda operations: operations.sessions.list_runs(session),
        f"get_run {session}": lambda operations: operations.runs.get(run),
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
                    operations, lambda operations, s=session: operations.sessions.get(s)
                )
            )[0] == ("answered")

"""Every read, through both doors on the same state: the same bytes, the same failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl.operations import (
    AccountFilter,
    Grant,
    NewAccount,
    Page,
    RunFilter,
    RunRequest,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
)
from tests.contract.doors import Ask, Doors, Outcome, asked, normal
from tests.deployment import ADMIN

READER = (
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "config:read",
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
def filled(shared: Doors) -> dict[str, str]:
    """Sessions of every type, made by real runs; the ids of their first runs."""

    async def fill() -> dict[str, str]:
        async with shared.remote(shared.there.token("owner", *READER)) as port:
            made: dict[str, Any] = {
                "a1": await port.create_run("agent", "echo", RunRequest("hello", "a1")),
                "t1": await port.create_run("team", "crew", RunRequest("ask echo", "t1")),
                "w1": await port.create_run("workflow", "line", RunRequest("go", "w1")),
                "e1": await port.create_run("agent", "http-500", RunRequest("fail", "e1")),
            }
            patch = SessionPatch({"session_state": {"n": 1}, "metadata": {"é": [1, 2.5, None]}})
            await port.update_session("a1", patch)
            async with shared.remote(shared.there.token("admin", ADMIN)) as boss:
                grants = (Grant("agents:read"), Grant("teams:crew:read"))
                await boss.create_service_account(NewAccount("ci", grants))
            return {name: document.value["run_id"] for name, document in made.items()}

    return asyncio.run(fill())


def reads(ids: dict[str, str]) -> dict[str, Ask]:
    """Every read of the port, with what is there and what is not."""
    everything: dict[str, Ask] = {
        "get_api": lambda port: port.get_api(),
        "get_health": lambda port: port.get_health(),
        "get_readiness": lambda port: port.get_readiness(),
        "get_info": lambda port: port.get_info(),
        "get_config": lambda port: port.get_config(),
        "get_models": lambda port: port.get_models(),
        "get_me": lambda port: port.get_me(),
        "list_service_accounts": lambda port: port.list_service_accounts(AccountFilter()),
        "list_service_accounts name": lambda port: port.list_service_accounts(AccountFilter("é")),
        "get_agents": lambda port: port.get_components("agent"),
        "get_teams": lambda port: port.get_components("team"),
        "get_workflows": lambda port: port.get_components("workflow"),
        "get_agent": lambda port: port.get_component("agent", "echo"),
        "get_team": lambda port: port.get_component("team", "crew"),
        "get_workflow": lambda port: port.get_component("workflow", "line"),
        "get_agent missing": lambda port: port.get_component("agent", "missing"),
        "get_sessions": lambda port: port.get_sessions(SessionFilter()),
        "get_sessions page": lambda port: port.get_sessions(
            SessionFilter(page=Page(limit=2, page=2, sort_by="updated_at", sort_order="asc"))
        ),
        "get_sessions filter": lambda port: port.get_sessions(
            SessionFilter(SessionLocator(type="agent", user_id="owner"), "echo", "HEL")
        ),
        "get_sessions bad page": lambda port: port.get_sessions(SessionFilter(page=Page(page=0))),
        "get_sessions bad cursor": lambda port: port.get_sessions(
            SessionFilter(page=Page(cursor="x"))
        ),
        "get_sessions deep page": lambda port: port.get_sessions(
            SessionFilter(page=Page(limit=100, page=200))
        ),
        "get_sessions no database": lambda port: port.get_sessions(
            SessionFilter(SessionLocator(db_id="none"))
        ),
        "get_session_by_id other type": lambda port: port.get_session_by_id(
            "a1", SessionLocator(type="team")
        ),
        "get_session_by_id table": lambda port: port.get_session_by_id(
            "a1", SessionLocator(table="x")
        ),
        "get_session_by_id second database": lambda port: port.get_session_by_id(
            "a1", SessionLocator(db_id="second")
        ),
        "get_session_by_id odd id": lambda port: port.get_session_by_id("b c%é?x=1"),
        "get_session_runs part": lambda port: port.get_session_runs(
            "t1", SessionRunsQuery(limit=1, after=ids["t1"])
        ),
        "get_session_runs bad after": lambda port: port.get_session_runs(
            "t1", SessionRunsQuery(after=ids["a1"])
        ),
        "get_session_run": lambda port: port.get_session_run("a1", ids["a1"]),
        "get_session_run of another": lambda port: port.get_session_run("a1", ids["t1"]),
        "get_runs": lambda port: port.get_runs(RunFilter()),
        "get_runs filter": lambda port: port.get_runs(
            RunFilter("ERROR", "agent", "http-500", "e1", "owner", "main", Page(limit=1))
        ),
        "get_runs live": lambda port: port.get_runs(RunFilter(live=True)),
        "get_runs of a time": lambda port: port.get_runs(
            RunFilter(created_after=1_700_000_000_000_000, created_before=4_000_000_000_000_001)
        ),
        "get_runs live and status": lambda port: port.get_runs(RunFilter("RUNNING", live=True)),
        "list_agent_runs live and status": lambda port: port.list_component_runs(
            "agent", "echo", RunFilter("ERROR", live=True)
        ),
        "list_agent_runs of a time": lambda port: port.list_component_runs(
            "agent", "echo", RunFilter(created_before=1)
        ),
        "get_run missing": lambda port: port.get_run("missing"),
        "list_agent_runs": lambda port: port.list_component_runs("agent", "echo", RunFilter()),
        "list_team_runs": lambda port: port.list_component_runs("team", "crew", RunFilter()),
        "list_workflow_runs": lambda port: port.list_component_runs(
            "workflow", "line", RunFilter(status="COMPLETED")
        ),
        "list_agent_runs missing": lambda port: port.list_component_runs(
            "agent", "missing", RunFilter()
        ),
        "get_agent_run": lambda port: port.get_component_run("agent", "echo", ids["a1"]),
        "get_agent_run session": lambda port: port.get_component_run(
            "agent", "echo", ids["a1"], session_id="a1"
        ),
        "get_agent_run other session": lambda port: port.get_component_run(
            "agent", "echo", ids["a1"], session_id="t1"
        ),
        "get_team_run": lambda port: port.get_component_run("team", "crew", ids["t1"]),
        "get_workflow_run": lambda port: port.get_component_run("workflow", "line", ids["w1"]),
    }
    for session in (*ids, "missing"):
        everything |= _of(session, ids.get(session, session))
    return everything


def _of(session: str, run: str) -> dict[str, Ask]:
    return {
        f"get_session_by_id {session}": lambda port: port.get_session_by_id(session),
        f"get_session_runs {session}": lambda port: port.get_session_runs(session),
        f"get_run {session}": lambda port: port.get_run(run),
    }


@pytest.mark.parametrize("caller", CALLERS)
async def test_both_doors_answer_alike(shared: Doors, filled: dict[str, str], caller: str) -> None:
    subject, scopes = CALLERS[caller]
    token = shared.there.token(subject, *scopes)
    async with shared.local(token) as local, shared.remote(token) as remote:
        told: dict[str, tuple[Outcome, Outcome]] = {}
        for name, ask in reads(filled).items():
            told[name] = await asked(local, ask), await asked(remote, ask)
    for name, (here, there) in told.items():
        assert here == there, name
        shared.hold(f"{name} as {caller}", normal(here))
    kinds = {here[0] for here, _ in told.values()}
    assert kinds == {"answered", "failed"}


async def test_what_an_owner_reads_is_there(shared: Doors, filled: dict[str, str]) -> None:
    """So that the comparison above does not compare failures with failures."""
    async with shared.remote(shared.there.token("owner", *READER)) as port:
        for session in filled:
            assert (await asked(port, lambda port, s=session: port.get_session_by_id(s)))[0] == (
                "answered"
            )

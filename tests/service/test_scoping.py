"""Whose data a caller sees: in the SQL itself, and a foreign thing reads like a missing one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentctl import errors
from agentctl.auth.principal import Principal, local_principal
from agentctl.operations import (
    BulkDeletion,
    CancelRequest,
    NewSession,
    RunFilter,
    RunRequest,
    SessionFilter,
    SessionLocator,
    SessionPatch,
)
from agentctl.service.service import ServiceOperations
from tests.deployment import Deployment
from tests.service.doors import ALL, boss, hosted, user

Touch = Callable[[ServiceOperations, str], Awaitable[Any]]

TOUCHES: dict[str, Touch] = {
    "get": lambda port, session: port.get_session_by_id(session),
    "get as its owner": lambda port, session: port.get_session_by_id(
        session, SessionLocator(user_id="owner")
    ),
    "rename": lambda port, session: port.rename_session(session, "mine"),
    "update": lambda port, session: port.update_session(session, SessionPatch({"metadata": {}})),
    "delete": lambda port, session: port.delete_session(session),
    "delete with cancel": lambda port, session: port.delete_session(session, cancel=True),
    "delete in bulk": lambda port, session: port.delete_sessions(BulkDeletion((session,))),
    "runs": lambda port, session: port.get_session_runs(session),
    "run": lambda port, session: port.create_run("agent", "echo", RunRequest("x", session)),
}


@pytest.mark.parametrize("owner", ["owner", None])
@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
async def test_a_foreign_session_reads_like_a_missing_one(
    deployment: Deployment, touch: Touch, owner: str | None
) -> None:
    async with hosted(deployment) as service:
        await user(service, owner).create_run("agent", "echo", RunRequest("x", "theirs"))
        before = (await boss(service).get_session_by_id("theirs")).raw
        stranger = user(service, "stranger")
        with pytest.raises(errors.NotFound) as foreign:
            await touch(stranger, "theirs")
        assert (await boss(service).get_session_by_id("theirs")).raw == before
        if touch is not TOUCHES["run"]:
            with pytest.raises(errors.NotFound) as missing:
                await touch(stranger, "missing")
            assert foreign.value.body() == missing.value.body()


async def test_lists_show_the_callers_own_and_user_id_narrows(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        for owner in ("a", "b", None):
            port = user(service, owner)
            await port.create_run("agent", "echo", RunRequest("x", f"of-{owner}"))
        for owner in ("a", "b", None):
            assert await _sessions(user(service, owner)) == {f"of-{owner}"}
            assert await _runs(user(service, owner)) == {f"of-{owner}"}
        assert await _sessions(boss(service)) == {"of-a", "of-b", "of-None"}
        assert await _sessions(boss(service), "a") == {"of-a"}
        assert await _sessions(user(service, "a"), "b") == set()
        assert await _runs(user(service, "a"), "b") == set()


async def _sessions(port: ServiceOperations, user_id: str | None = None) -> set[str]:
    page = await port.get_sessions(SessionFilter(where=SessionLocator(user_id=user_id)))
    return {row["session_id"] for row in page.value["data"]}


async def _runs(port: ServiceOperations, user_id: str | None = None) -> set[str]:
    page = await port.get_runs(RunFilter(user_id=user_id))
    return {row["session_id"] for row in page.value["data"]}


async def test_only_an_administrator_says_who_owns_a_run(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        mine = await user(service).create_run("agent", "echo", RunRequest("x", "s1", "other"))
        assert mine.value["user_id"] == "me"
        theirs = await boss(service).create_run("agent", "echo", RunRequest("x", "s2", "other"))
        assert theirs.value["user_id"] == "other"
        assert await _sessions(user(service, "other")) == {"s2"}
        with pytest.raises(errors.NotFound):
            await boss(service).create_run("agent", "echo", RunRequest("x", "s1", "other"))


@pytest.mark.parametrize("owner", ["", "x" * 256, "a\0b"])
async def test_nobody_can_be_named_so(deployment: Deployment, owner: str) -> None:
    async with hosted(deployment) as service:
        port = boss(service)
        with pytest.raises(errors.ValidationFailed, match="user_id"):
            await port.create_run("agent", "echo", RunRequest("x", "s1", owner))
        with pytest.raises(errors.ValidationFailed, match="user_id"):
            await port.create_session(NewSession(session_id="s1", user_id=owner))
        assert await _sessions(port) == set()


async def test_what_an_administrator_runs_in_a_session_is_its_owners(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port = user(service, "owner")
        await port.create_run("agent", "echo", RunRequest("mine", "s1"))
        run = (await boss(service).create_run("agent", "echo", RunRequest("help", "s1"))).value
        assert run["user_id"] == "owner"
        assert (await port.get_run(run["run_id"])).value == run


async def test_a_session_without_an_owner_is_used_but_never_taken_over(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        await user(service, None).create_run("agent", "echo", RunRequest("x", "s1"))
        await boss(service).create_run("agent", "echo", RunRequest("x", "s1"))
        session = (await boss(service).get_session_by_id("s1")).value
        assert session["user_id"] is None


async def test_a_taken_id_is_a_conflict_whoever_has_it(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        await user(service, "owner").create_session(NewSession(session_id="s1"))
        before = (await boss(service).get_session_by_id("s1")).raw
        for subject in ("owner", "stranger", None):
            with pytest.raises(errors.Conflict):
                await user(service, subject).create_session(NewSession(session_id="s1"))
        assert (await boss(service).get_session_by_id("s1")).raw == before


async def test_acting_for_a_user_locally_scopes_reads_and_owns_runs(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        await user(service, "other").create_run("agent", "echo", RunRequest("x", "theirs"))
        port = service.operations_for(local_principal("boss", acting_for="me"))
        run = await port.create_run("agent", "echo", RunRequest("x", "mine"))
        assert run.value["user_id"] == "me"
        assert await _sessions(port) == {"mine"}


async def test_without_isolation_a_caller_sees_everybody(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        await user(service, "other").create_run("agent", "echo", RunRequest("x", "theirs"))
        port = service.operations_for(Principal("me", ALL, sees_all_users=True))
        assert await _sessions(port) == {"theirs"}
        run = await port.create_run("agent", "echo", RunRequest("x", "mine", user_id="other"))
        assert run.value["user_id"] == "me"


UNSPEAKABLE: dict[str, Touch] = {
    **{name: touch for name, touch in TOUCHES.items() if name != "get as its owner"},
    "a run": lambda port, text: port.get_run(text),
    "a component's run": lambda port, text: port.get_component_run("agent", "echo", text),
    "a component": lambda port, text: port.get_component("agent", text),
    "cancel": lambda port, text: port.cancel_run("agent", "echo", text, CancelRequest("s1")),
    "owner": lambda port, text: port.get_sessions(
        SessionFilter(where=SessionLocator(user_id=text))
    ),
    "name": lambda port, text: port.get_sessions(SessionFilter(session_name=text)),
    "runs of": lambda port, text: port.get_runs(RunFilter(session_id=text)),
}


@pytest.mark.parametrize("touch", UNSPEAKABLE.values(), ids=UNSPEAKABLE)
async def test_text_that_no_database_takes_is_refused(deployment: Deployment, touch: Touch) -> None:
    async with hosted(deployment) as service:
        await user(service).create_session(NewSession(session_id="s1"))
        with pytest.raises(errors.ValidationFailed, match=r"surrogates|session_id must be"):
            await touch(user(service), "\udcff")


@pytest.mark.parametrize("scopes", [(), ("agents:read",), ("sessions:s2:read",)])
async def test_the_policy_holds_at_the_port_itself(
    deployment: Deployment, scopes: tuple[str, ...]
) -> None:
    async with hosted(deployment) as service:
        port = service.operations_for(Principal("me", frozenset(scopes)))
        for refused in (
            port.get_session_by_id("s1"),
            port.get_sessions(SessionFilter()),
            port.create_run("agent", "echo", RunRequest("x")),
            port.get_config(),
            port.get_components("team"),
        ):
            with pytest.raises(errors.Forbidden) as refusal:
                await refused
            assert refusal.value.required_scopes


async def test_a_list_shows_what_single_scopes_allow(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = service.operations_for(Principal("me", frozenset({"agents:echo:read"})))
        assert [agent["id"] for agent in (await port.get_components("agent")).value] == ["echo"]
        assert (await port.get_component("agent", "echo")).value["id"] == "echo"
        with pytest.raises(errors.Forbidden):
            await port.get_component("agent", "hang")

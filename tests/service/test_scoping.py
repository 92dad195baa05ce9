"""Data scoping: SQL limits reads, and foreign data equals missing data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentctl import errors
from agentctl.auth.principal import Principal, local_principal
from agentctl.interface.requests import (
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
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import ALL, admin, open_service, user

Touch = Callable[[ServiceOperations, str], Awaitable[Any]]

TOUCHES: dict[str, Touch] = {
    "get": lambda operations, session: operations.sessions.get(session),
    "get as its owner": lambda operations, session: operations.sessions.get(
        session, SessionLocator(user_id="owner")
    ),
    "rename": lambda operations, session: operations.sessions.rename(session, "mine"),
    "update": lambda operations, session: operations.sessions.update(
        session, SessionPatch({"metadata": {}})
    ),
    "delete": lambda operations, session: operations.sessions.delete(session),
    "delete with cancel": lambda operations, session: operations.sessions.delete(
        session, cancel=True
    ),
    "delete in bulk": lambda operations, session: operations.sessions.delete_several(
        BulkDeletion((session,))
    ),
    "runs": lambda operations, session: operations.sessions.list_runs(session),
    "run": lambda operations, session: operations.runs.create(
        "agent", "echo", RunRequest("x", session)
    ),
}


@pytest.mark.parametrize("owner", ["owner", None])
@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
async def test_foreign_session_equals_a_missing_one(
    deployment: Deployment, touch: Touch, owner: str | None
) -> None:
    async with open_service(deployment) as service:
        await user(service, owner).runs.create("agent", "echo", RunRequest("x", "theirs"))
        before = (await admin(service).sessions.get("theirs")).raw
        stranger = user(service, "stranger")
        with pytest.raises(errors.NotFound) as foreign:
            await touch(stranger, "theirs")
        assert (await admin(service).sessions.get("theirs")).raw == before
        if touch is not TOUCHES["run"]:
            with pytest.raises(errors.NotFound) as missing:
                await touch(stranger, "missing")
            assert foreign.value.body() == missing.value.body()


async def test_lists_return_own_data_and_user_id_narrows(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        for owner in ("a", "b", None):
            operations = user(service, owner)
            await operations.runs.create("agent", "echo", RunRequest("x", f"of-{owner}"))
        for owner in ("a", "b", None):
            assert await _list_sessions(user(service, owner)) == {f"of-{owner}"}
            assert await _list_runs(user(service, owner)) == {f"of-{owner}"}
        assert await _list_sessions(admin(service)) == {"of-a", "of-b", "of-None"}
        assert await _list_sessions(admin(service), "a") == {"of-a"}
        assert await _list_sessions(user(service, "a"), "b") == set()
        assert await _list_runs(user(service, "a"), "b") == set()


async def _list_sessions(operations: ServiceOperations, user_id: str | None = None) -> set[str]:
    page = await operations.sessions.list(SessionFilter(where=SessionLocator(user_id=user_id)))
    return {row["session_id"] for row in page.value["data"]}


async def _list_runs(operations: ServiceOperations, user_id: str | None = None) -> set[str]:
    page = await operations.runs.list(RunFilter(user_id=user_id))
    return {row["session_id"] for row in page.value["data"]}


async def test_only_administrators_set_the_owner_of_a_run(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        mine = await user(service).runs.create("agent", "echo", RunRequest("x", "s1", "other"))
        assert mine.value["user_id"] == "me"
        theirs = await admin(service).runs.create("agent", "echo", RunRequest("x", "s2", "other"))
        assert theirs.value["user_id"] == "other"
        assert await _list_sessions(user(service, "other")) == {"s2"}
        with pytest.raises(errors.NotFound):
            await admin(service).runs.create("agent", "echo", RunRequest("x", "s1", "other"))


@pytest.mark.parametrize("owner", ["", "x" * 256, "a\0b"])
async def test_invalid_user_id_is_rejected(deployment: Deployment, owner: str) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        with pytest.raises(errors.ValidationFailed, match="user_id"):
            await operations.runs.create("agent", "echo", RunRequest("x", "s1", owner))
        with pytest.raises(errors.ValidationFailed, match="user_id"):
            await operations.sessions.create(NewSession(session_id="s1", user_id=owner))
        assert await _list_sessions(operations) == set()


async def test_administrator_run_belongs_to_the_session_owner(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service, "owner")
        await operations.runs.create("agent", "echo", RunRequest("mine", "s1"))
        run = (await admin(service).runs.create("agent", "echo", RunRequest("help", "s1"))).value
        assert run["user_id"] == "owner"
        assert (await operations.runs.get(run["run_id"])).value == run


async def test_session_without_an_owner_keeps_no_owner(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await user(service, None).runs.create("agent", "echo", RunRequest("x", "s1"))
        await admin(service).runs.create("agent", "echo", RunRequest("x", "s1"))
        session = (await admin(service).sessions.get("s1")).value
        assert session["user_id"] is None


async def test_taken_session_id_is_a_conflict_for_any_owner(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await user(service, "owner").sessions.create(NewSession(session_id="s1"))
        before = (await admin(service).sessions.get("s1")).raw
        for subject in ("owner", "stranger", None):
            with pytest.raises(errors.Conflict):
                await user(service, subject).sessions.create(NewSession(session_id="s1"))
        assert (await admin(service).sessions.get("s1")).raw == before


async def test_acting_for_a_user_limits_reads_and_sets_owner(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await user(service, "other").runs.create("agent", "echo", RunRequest("x", "theirs"))
        operations = service.operations_for(local_principal("boss", acting_for="me"))
        run = await operations.runs.create("agent", "echo", RunRequest("x", "mine"))
        assert run.value["user_id"] == "me"
        assert await _list_sessions(operations) == {"mine"}


async def test_caller_sees_all_users_without_isolation(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await user(service, "other").runs.create("agent", "echo", RunRequest("x", "theirs"))
        operations = service.operations_for(Principal("me", ALL, sees_all_users=True))
        assert await _list_sessions(operations) == {"theirs"}
        run = await operations.runs.create(
            "agent", "echo", RunRequest("x", "mine", user_id="other")
        )
        assert run.value["user_id"] == "me"


UNSPEAKABLE: dict[str, Touch] = {
    **{name: touch for name, touch in TOUCHES.items() if name != "get as its owner"},
    "a run": lambda operations, text: operations.runs.get(text),
    "a component's run": lambda operations, text: operations.runs.get_of_component(
        "agent", "echo", text
    ),
    "a component": lambda operations, text: operations.components.get("agent", text),
    "cancel": lambda operations, text: operations.runs.cancel(
        "agent", "echo", text, CancelRequest("s1")
    ),
    "owner": lambda operations, text: operations.sessions.list(
        SessionFilter(where=SessionLocator(user_id=text))
    ),
    "name": lambda operations, text: operations.sessions.list(SessionFilter(session_name=text)),
    "runs of": lambda operations, text: operations.runs.list(RunFilter(session_id=text)),
}


@pytest.mark.parametrize("touch", UNSPEAKABLE.values(), ids=UNSPEAKABLE)
async def test_text_that_no_database_stores_is_rejected(
    deployment: Deployment, touch: Touch
) -> None:
    async with open_service(deployment) as service:
        await user(service).sessions.create(NewSession(session_id="s1"))
        with pytest.raises(errors.ValidationFailed, match=r"surrogates|session_id must be"):
            await touch(user(service), "\udcff")


@pytest.mark.parametrize("scopes", [(), ("agents:read",), ("sessions:s2:read",)])
async def test_local_backend_enforces_the_policy(
    deployment: Deployment, scopes: tuple[str, ...]
) -> None:
    async with open_service(deployment) as service:
        operations = service.operations_for(Principal("me", frozenset(scopes)))
        for refused in (
            operations.sessions.get("s1"),
            operations.sessions.list(SessionFilter()),
            operations.runs.create("agent", "echo", RunRequest("x")),
            operations.system.get_config(),
            operations.components.list("team"),
        ):
            with pytest.raises(errors.Forbidden) as refusal:
                await refused
            assert refusal.value.required_scopes


async def test_component_list_has_the_allowed_ids_only(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = service.operations_for(Principal("me", frozenset({"agents:echo:read"})))
        assert [agent["id"] for agent in (await operations.components.list("agent")).value] == [
            "echo"
        ]
        assert (await operations.components.get("agent", "echo")).value["id"] == "echo"
        with pytest.raises(errors.Forbidden):
            await operations.components.get("agent", "hang")


async def test_lists_show_holds_to_administrators_only(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    search = "[search]\nenabled = true\n"
    place = create_deployment(tmp_path, model_endpoint.base_url, extra=search)
    async with open_service(place) as service:
        await user(service).runs.create("agent", "echo", RunRequest("quokka", "s1"))
        await admin(service).sessions.hold("s1", "claim 17")
        for listed in (SessionFilter(), SessionFilter(search="quokka")):
            (seen,) = (await admin(service).sessions.list(listed)).value["data"]
            assert seen.pop("hold")["reason"] == "claim 17"
            (own,) = (await user(service).sessions.list(listed)).value["data"]
            assert own == seen

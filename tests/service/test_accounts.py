"""Service accounts behind the port: what is granted, to whom, and what becomes of a token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from agentctl import errors
from agentctl.auth.principal import Principal, anonymous_principal, local_principal
from agentctl.auth.tokens.account_tokens import generate_account_token, hash_token
from agentctl.operations import (
    AccountFilter,
    AuditFilter,
    CancelRequest,
    Grant,
    NewAccount,
    NewSession,
    Page,
    RunFilter,
    RunRequest,
    SessionFilter,
)
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.database import Sql, Statement, Steps, unit
from tests.deployment import ADMIN, Deployment
from tests.loops import wait_until
from tests.service.doors import boss, hosted

MANAGER = frozenset(
    {"service_accounts:read", "service_accounts:write", "service_accounts:delete", "agents:read"}
)


def an_account(*scopes: str, name: str = "ci", **given: Any) -> NewAccount:
    return NewAccount(name, tuple(Grant(scope) for scope in scopes or ("agents:read",)), **given)


async def made(port: ServiceOperations, *scopes: str, **given: Any) -> dict[str, Any]:
    document = await port.create_service_account(an_account(*scopes, **given))
    return dict(document.value)


async def listed(port: ServiceOperations, **given: Any) -> list[dict[str, Any]]:
    page = await port.list_service_accounts(AccountFilter(**given))
    return [dict(record) for record in page.value["data"]]


async def bearer(service: Service, token: str) -> ServiceOperations:
    """The port as whoever sends the token."""
    return service.operations_for(await service.verifier.identify(f"Bearer {token}"))


async def check(service: Service, token: str) -> str:
    """The check that a token fails."""
    with pytest.raises(errors.InvalidToken) as refusal:
        await bearer(service, token)
    return refusal.value.check


def manager(service: Service, *scopes: str) -> ServiceOperations:
    return service.operations_for(Principal("me", MANAGER | {*scopes}))


async def test_an_account_is_made_and_told_once(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = boss(service)
        record = await made(port, "agents:read", "agents:run", "agents:read")
        token = record.pop("token")
        assert token.startswith("agentctl_pat_")
        assert record["token_hint"] == token[-4:]
        assert record["scopes"] == [
            {"scope": "agents:read", "effect": "allow"},
            {"scope": "agents:run", "effect": "allow"},
        ]
        assert (record["name"], record["created_by"]) == ("ci", "local:boss")
        assert (record["state"], record["last_used_at"], record["revoked_at"]) == (
            "active", None, None,
        )  # fmt: skip
        assert await listed(port) == [record]
        assert token not in repr(await listed(port))


@pytest.mark.parametrize(
    ("given", "days"),
    [({}, 90), ({"expires_in_days": 1}, 1), ({"expires_in_days": 3650}, 3650),
     ({"never_expires": True}, None)],
)  # fmt: skip
async def test_how_long_it_is_good_for(
    deployment: Deployment, given: dict[str, Any], days: int | None
) -> None:
    async with hosted(deployment) as service:
        record = await made(boss(service), **given)
        if days is None:
            assert record["expires_at"] is None
            return
        span = datetime.fromisoformat(record["expires_at"]) - datetime.fromisoformat(
            record["created_at"]
        )
        assert span == timedelta(days=days)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": ""}, "name must be 1 to 64"),
        ({"name": "a" * 65}, "name must be 1 to 64"),
        ({"name": "-a"}, "name must be 1 to 64"),
        ({"name": "a b"}, "name must be 1 to 64"),
        ({"name": "a\n"}, "name must be 1 to 64"),
        ({"name": "é"}, "name must be 1 to 64"),
        ({"scopes": ()}, "scopes must hold 1 to 256"),
        ({"scopes": (Grant("agents:read"),) * 257}, "scopes must hold 1 to 256"),
        ({"scopes": (Grant("agents:read", "deny"),)}, "scopes[0].effect must be allow"),
        ({"scopes": (Grant("agents:reed"),)}, "did you mean agents:read"),
        ({"scopes": (Grant("agents:read"), Grant("x"))}, "scopes[1].scope must have the form"),
        ({"expires_in_days": 0}, "expires_in_days"),
        ({"expires_in_days": 3651}, "expires_in_days"),
        ({"expires_in_days": -1}, "expires_in_days"),
        ({"expires_in_days": 5, "never_expires": True}, "exclude each other"),
    ],
)
async def test_what_is_not_allowed_is_refused(
    deployment: Deployment, given: dict[str, Any], told: str
) -> None:
    async with hosted(deployment) as service:
        with pytest.raises(errors.ValidationFailed) as refusal:
            await boss(service).create_service_account(replace(an_account(), **given))
        assert told in refusal.value.detail
        assert await listed(boss(service)) == []


async def test_nobody_grants_what_they_do_not_hold(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        me = manager(service)
        await made(me, "agents:echo:read")
        for scopes in (("agents:run",), ("agents:read", "sessions:read"), (ADMIN,)):
            for allow in (False, True):
                with pytest.raises(errors.Forbidden) as refusal:
                    await made(me, *scopes, name="x", allow_privileged_scopes=allow)
                assert refusal.value.required_scopes == scopes[-1:]
        assert [record["name"] for record in await listed(me)] == ["ci"]
        assert (await listed(me))[0]["created_by"] == "me"


async def test_an_account_cannot_make_a_stronger_one(deployment: Deployment) -> None:
    """F10: what an account makes is a part of what it is."""
    async with hosted(deployment) as service:
        scopes = ("service_accounts:write", "agents:echo:read")
        parent = await made(boss(service), *scopes, allow_privileged_scopes=True)
        port = await bearer(service, parent["token"])
        child = await made(port, "agents:echo:read", name="child")
        assert child["created_by"] == f"sa:{parent['id']}"
        for scope in ("agents:read", "agents:apart:read", "sessions:write", ADMIN):
            with pytest.raises(errors.Forbidden):
                await made(port, scope, name="x", allow_privileged_scopes=True)
        with pytest.raises(errors.Forbidden):
            await listed(port)


async def test_privileged_scopes_have_to_be_meant(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        for scope in ("sessions:write", "sessions:s1:delete", "service_accounts:read", ADMIN):
            with pytest.raises(errors.BadRequest) as refusal:
                await made(boss(service), "agents:read", scope)
            assert refusal.value.detail.endswith(f": {scope}")
            await made(
                boss(service), scope, name=scope.replace(":", "."), allow_privileged_scopes=True
            )


@pytest.mark.parametrize("scope", sorted(MANAGER))
async def test_each_operation_has_a_scope_of_its_own(deployment: Deployment, scope: str) -> None:
    async with hosted(deployment) as service:
        account = await made(boss(service))
        port = service.operations_for(Principal("me", frozenset({scope, "agents:run"})))
        asked = {
            "service_accounts:read": listed(port),
            "service_accounts:write": made(port, "agents:run", name="other"),
            "service_accounts:delete": port.revoke_service_account(account["id"]),
        }
        for needed, ask in asked.items():
            if needed == scope:
                await ask
            else:
                with pytest.raises(errors.Forbidden) as refusal:
                    await ask
                assert refusal.value.required_scopes == (needed,)


async def test_an_account_has_its_own_data_and_nothing_else(deployment: Deployment) -> None:
    everything = ("agents:run", "agents:read", "sessions:read", "sessions:write")
    async with hosted(deployment) as service:
        await boss(service).create_session(NewSession(session_id="theirs"))
        for number, scopes in enumerate((everything, (ADMIN,))):
            account = await made(
                boss(service), *scopes, name=f"n{number}", allow_privileged_scopes=True
            )
            port = await bearer(service, account["token"])
            mine = f"mine-{number}"
            run = (await port.create_run("agent", "echo", RunRequest("x", mine))).value
            assert run["user_id"] == f"sa:{account['id']}"
            other = RunRequest("x", f"for-{number}", user_id="somebody")
            assert (await port.create_run("agent", "echo", other)).value["user_id"] == (
                f"sa:{account['id']}"
            )
            page = (await port.get_sessions(SessionFilter())).value["data"]
            assert {row["session_id"] for row in page} == {mine, f"for-{number}"}
            assert len((await port.get_runs(RunFilter())).value["data"]) == 2
            with pytest.raises(errors.NotFound):
                await port.get_session_by_id("theirs")
            with pytest.raises(errors.NotFound):
                await port.cancel_run("agent", "echo", "nothing", CancelRequest(mine))


async def test_a_name_that_is_given_again_does_not_inherit(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        scopes = ("sessions:read", "sessions:write")
        first = await made(boss(service), *scopes, allow_privileged_scopes=True)
        with pytest.raises(errors.Conflict):
            await made(boss(service))
        old = await bearer(service, first["token"])
        await old.create_session(NewSession(session_id="old"))
        await boss(service).revoke_service_account(first["id"])
        second = await made(boss(service), *scopes, allow_privileged_scopes=True)
        new = await bearer(service, second["token"])
        assert (await new.get_sessions(SessionFilter())).value["data"] == []
        with pytest.raises(errors.NotFound):
            await new.get_session_by_id("old")
        with pytest.raises(errors.Conflict):
            await new.create_session(NewSession(session_id="old"))


async def test_a_revoked_token_is_dead_at_once_here(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        account, other = await made(boss(service)), await made(boss(service), name="other")
        for each in (account, other):
            await bearer(service, each["token"])
        await boss(service).revoke_service_account(account["id"])
        assert await check(service, account["token"]) == "account.revoked"
        await bearer(service, other["token"])
        for account_id in (account["id"], "missing", "", "x" * 5_000):
            with pytest.raises(errors.NotFound):
                await boss(service).revoke_service_account(account_id)
        with pytest.raises(errors.ValidationFailed):
            await boss(service).revoke_service_account("a\x00")
        states = {record["name"]: record["state"] for record in await listed(boss(service))}
        assert states == {"ci": "revoked", "other": "active"}


async def test_a_revoked_token_is_dead_within_a_second_elsewhere(deployment: Deployment) -> None:
    async with hosted(deployment) as here, hosted(deployment) as there:
        account = await made(boss(here))
        await bearer(there, account["token"])
        await boss(here).revoke_service_account(account["id"])
        revoked_at = time.monotonic()

        async def refused() -> bool:
            try:
                await bearer(there, account["token"])
            except errors.InvalidToken as failure:
                return failure.check == "account.revoked"
            assert time.monotonic() - revoked_at < 5
            return False

        await wait_until(refused)


async def test_unknown_tokens_are_rationed_and_an_account_in_use_does_not_notice(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        account = await made(boss(service))
        await bearer(service, account["token"])
        began = time.monotonic()
        for _ in range(300):
            assert await check(service, generate_account_token("agentctl")) == "account.known"
        looked_up = len(service.hosting.accounts._unknown)
        assert looked_up <= 20 * (2 + time.monotonic() - began)
        service.hosting.accounts._monotonic = lambda: time.monotonic() + 1
        await bearer(service, account["token"])


async def test_the_last_use_is_written_once_a_minute_and_not_waited_for(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        account = await made(boss(service))

        async def last_used() -> Any:
            return (await listed(boss(service)))[0]["last_used_at"]

        await bearer(service, account["token"])
        await wait_until(last_used)
        first = await last_used()
        for _ in range(3):
            service.hosting.accounts.forget(account["id"])
            await bearer(service, account["token"])
        await asyncio.sleep(0.05)
        assert await last_used() == first


async def test_a_use_that_cannot_be_written_keeps_nobody_out(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    async with hosted(deployment) as service:
        account = await made(boss(service))
        await execute(
            service,
            "CREATE TRIGGER unused BEFORE UPDATE OF last_used_at ON service_accounts"
            " BEGIN SELECT RAISE(ABORT, 'it is not to be'); END",
        )
        with caplog.at_level(logging.WARNING, "agentctl.service"):
            await bearer(service, account["token"])
            await wait_until(lambda: "not written" in caplog.text)
    assert account["token"][13:] not in caplog.text
    assert account["id"] in caplog.text


async def execute(service: Service, sql: str) -> None:
    """Change the database behind the service's back."""

    @unit
    def work() -> Steps[None]:
        yield Statement(Sql(sql))

    await service.hosting.databases.system.write(work())


@contextlib.asynccontextmanager
async def _gone(deployment: Deployment) -> AsyncIterator[None]:
    """The database's file is not there for a while."""
    moved = {
        path: path.with_name(f"{path.name}.away") for path in deployment.folder.glob("main.db*")
    }
    for path, away in moved.items():
        path.rename(away)
    try:
        yield
    finally:
        for path, away in moved.items():
            away.rename(path)


async def test_without_the_database_nobody_can_tell(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        account = await made(boss(service))
    async with _gone(deployment), Service.open(deployment.settings) as service:
        for token in (account["token"], generate_account_token("agentctl")):
            with pytest.raises(errors.Unavailable):
                await bearer(service, token)
        assert await check(service, account["token"][:-1]) == "account.form"


async def test_the_files_hold_no_token(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """K05: what is stored of a token does not open anything."""
    with caplog.at_level(logging.DEBUG):
        async with hosted(deployment) as service:
            account = await made(boss(service))
            token = account["token"]
            await bearer(service, token)
            await check(service, token + "x")
            rows = (await boss(service).get_audit(AuditFilter())).raw
    stored = b"".join(
        path.read_bytes() for path in deployment.folder.glob("main.db*") if path.is_file()
    )
    assert hash_token(token).encode() in stored
    for text in (token, token[13:], token[13:40], token[-10:]):
        assert text.encode() not in stored
        assert text not in caplog.text
        assert text.encode() not in rows


async def test_lists_have_pages(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = boss(service)
        for number in range(5):
            record = await made(port, name=f"n{number % 2}")
            await port.revoke_service_account(record["id"])
        names = [record["id"] for record in await listed(port)]
        first = (await port.list_service_accounts(AccountFilter(page=Page(limit=2)))).value
        assert [row["id"] for row in first["data"]] == names[:2]
        assert (first["meta"]["total_count"], first["meta"]["total_pages"]) == (5, 3)
        cursor = first["meta"]["next_cursor"]
        assert [
            row["id"] for row in await listed(port, page=Page(limit=100, cursor=cursor))
        ] == names[2:]
        assert [row["id"] for row in await listed(port, page=Page(limit=2, page=3))] == names[4:]
        ordered = await listed(port, page=Page(sort_order="asc"))
        assert [row["id"] for row in ordered] == names[::-1]
        assert {row["name"] for row in await listed(port, name="n1")} == {"n1"}
        assert await listed(port, name="N1") == []
        for page in (Page(limit=0), Page(limit=101), Page(page=0), Page(cursor="x")):
            with pytest.raises(errors.ValidationFailed):
                await listed(port, page=page)
        with pytest.raises(errors.ValidationFailed):
            await listed(port, name="a\x00")


async def test_an_expired_account_says_so_and_gives_its_name_back(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        account = await made(boss(service))
        await execute(service, "UPDATE service_accounts SET expires_at = created_at + 1")
        assert await check(service, account["token"]) == "account.expired"
        assert [record["state"] for record in await listed(boss(service))] == ["expired"]
        await made(boss(service))
        await boss(service).revoke_service_account(account["id"])
        states = [record["state"] for record in await listed(boss(service))]
        assert states == ["active", "revoked"]


async def test_changes_and_denials_are_in_the_audit(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = boss(service)
        account = await made(port)
        for failing in (
            made(port),
            made(port, "sessions:write", name="x"),
            made(manager(service), "agents:run", name="x"),
            port.revoke_service_account("missing"),
        ):
            with pytest.raises(errors.AgentctlError):
                await failing
        await port.revoke_service_account(account["id"])
        rows = (await port.get_audit(AuditFilter())).value["data"]
        told = [
            (row["operation"].partition("_")[0], row["outcome"], row["status"], row["resource"])
            for row in reversed(rows)
        ]
        this = f"service_account:{account['id']}"
        conflict = told.pop(1)
        assert conflict[:3] == ("create", "failed", 409)
        assert told == [
            ("create", "allowed", None, this),
            ("create", "failed", 400, None),
            ("create", "denied", 403, None),
            ("revoke", "failed", 404, "service_account:missing"),
            ("revoke", "allowed", None, this),
        ]


async def test_with_authorization_off_accounts_are_managed_locally(deployment: Deployment) -> None:
    given = replace(deployment.settings.authorization, enabled=False)
    settings = replace(deployment.settings, authorization=given)
    async with Service.open(settings, create=True) as service:
        nobody, operator = (
            service.operations_for(anonymous_principal()),
            service.operations_for(local_principal("boss")),
        )
        account = await made(operator)
        for ask in (
            made(nobody, name="x"),
            listed(nobody),
            nobody.revoke_service_account(account["id"]),
        ):
            with pytest.raises(errors.Forbidden) as refusal:
                await ask
            assert "locally" in refusal.value.detail
        assert [record["name"] for record in await listed(operator)] == ["ci"]
        await operator.revoke_service_account(account["id"])


async def test_tokens_begin_as_configured(deployment: Deployment) -> None:
    given = replace(deployment.settings.authorization, token_prefix="acme")
    settings = replace(deployment.settings, authorization=given)
    async with hosted(deployment) as before:
        old = (await made(boss(before)))["token"]
    async with Service.open(settings) as service:
        new = (await made(boss(service), name="new"))["token"]
        assert new.startswith("acme_pat_")
        await bearer(service, new)
        assert await check(service, old) == "form"

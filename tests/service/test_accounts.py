"""Service accounts: grants, tokens, revocation and expiry."""

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
from agentctl.auth.tokens.account_tokens import (
    CACHE_SECONDS,
    UNKNOWN_LOOKUPS_PER_SECOND,
    generate_account_token,
    hash_token,
)
from agentctl.interface.requests import (
    CancelRequest,
    NewSession,
    Page,
    RunFilter,
    RunRequest,
    SessionFilter,
)
from agentctl.interface.requests.administration import AccountFilter, AuditFilter, Grant, NewAccount
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.database import Sql, Statement, Steps, unit
from tests.kit.conditions import wait_until
from tests.kit.deployment import ADMIN, Deployment
from tests.kit.service import admin, open_service

MANAGER = frozenset(
    {"service_accounts:read", "service_accounts:write", "service_accounts:delete", "agents:read"}
)


def build_account(*scopes: str, name: str = "ci", **given: Any) -> NewAccount:
    return NewAccount(name, tuple(Grant(scope) for scope in scopes or ("agents:read",)), **given)


async def create_account(
    operations: ServiceOperations, *scopes: str, **given: Any
) -> dict[str, Any]:
    document = await operations.accounts.create(build_account(*scopes, **given))
    return dict(document.value)


async def list_accounts(operations: ServiceOperations, **given: Any) -> list[dict[str, Any]]:
    page = await operations.accounts.list(AccountFilter(**given))
    return [dict(record) for record in page.value["data"]]


async def operations_of_token(service: Service, token: str) -> ServiceOperations:
    """Return the operations of the principal of a token."""
    return service.operations_for(await service.hosting.verifier().identify(f"Bearer {token}"))


async def failed_check(service: Service, token: str) -> str:
    """Return the name of the check that a token fails."""
    with pytest.raises(errors.InvalidToken) as refusal:
        await operations_of_token(service, token)
    return refusal.value.check


def account_manager(service: Service, *scopes: str) -> ServiceOperations:
    return service.operations_for(Principal("me", MANAGER | {*scopes}))


async def test_new_account_returns_its_token_once(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        record = await create_account(operations, "agents:read", "agents:run", "agents:read")
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
        assert await list_accounts(operations) == [record]
        assert token not in repr(await list_accounts(operations))


@pytest.mark.parametrize(
    ("given", "days"),
    [
        ({}, 90),
        ({"expires_in_days": 1}, 1),
        ({"expires_in_days": 3650}, 3650),
        ({"never_expires": True}, None),
    ],
)
async def test_account_expires_as_requested(
    deployment: Deployment, given: dict[str, Any], days: int | None
) -> None:
    async with open_service(deployment) as service:
        record = await create_account(admin(service), **given)
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
        ({"scopes": (Grant("agents:read", "deny"),)}, "scopes[0].effect must be one of: allow"),
        ({"scopes": (Grant("agents:reed"),)}, "did you mean agents:read"),
        ({"scopes": (Grant("agents:read"), Grant("x"))}, "scopes[1].scope must have the form"),
        ({"expires_in_days": 0}, "expires_in_days"),
        ({"expires_in_days": 3651}, "expires_in_days"),
        ({"expires_in_days": -1}, "expires_in_days"),
        ({"expires_in_days": 5, "never_expires": True}, "cannot be used together"),
    ],
)
async def test_invalid_account_is_rejected(
    deployment: Deployment, given: dict[str, Any], told: str
) -> None:
    async with open_service(deployment) as service:
        with pytest.raises(errors.ValidationFailed) as refusal:
            await admin(service).accounts.create(replace(build_account(), **given))
        assert told in refusal.value.detail
        assert await list_accounts(admin(service)) == []


async def test_caller_cannot_grant_a_missing_scope(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        me = account_manager(service)
        await create_account(me, "agents:echo:read")
        for scopes in (("agents:run",), ("agents:read", "sessions:read"), (ADMIN,)):
            for allow in (False, True):
                with pytest.raises(errors.Forbidden) as refusal:
                    await create_account(me, *scopes, name="x", allow_privileged_scopes=allow)
                assert refusal.value.required_scopes == scopes[-1:]
        assert [record["name"] for record in await list_accounts(me)] == ["ci"]
        assert (await list_accounts(me))[0]["created_by"] == "me"


async def test_account_cannot_create_a_stronger_account(deployment: Deployment) -> None:
    """F10: the scopes of a new account are a subset of those of its creator."""
    async with open_service(deployment) as service:
        scopes = ("service_accounts:write", "agents:echo:read")
        parent = await create_account(admin(service), *scopes, allow_privileged_scopes=True)
        operations = await operations_of_token(service, parent["token"])
        child = await create_account(operations, "agents:echo:read", name="child")
        assert child["created_by"] == f"sa:{parent['id']}"
        for scope in ("agents:read", "agents:apart:read", "sessions:write", ADMIN):
            with pytest.raises(errors.Forbidden):
                await create_account(operations, scope, name="x", allow_privileged_scopes=True)
        with pytest.raises(errors.Forbidden):
            await list_accounts(operations)


async def test_privileged_scopes_need_the_flag(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        for scope in ("sessions:write", "sessions:s1:delete", "service_accounts:read", ADMIN):
            with pytest.raises(errors.BadRequest) as refusal:
                await create_account(admin(service), "agents:read", scope)
            assert refusal.value.detail.endswith(f": {scope}")
            await create_account(
                admin(service), scope, name=scope.replace(":", "."), allow_privileged_scopes=True
            )


@pytest.mark.parametrize("scope", sorted(MANAGER))
async def test_each_account_operation_has_its_own_scope(deployment: Deployment, scope: str) -> None:
    async with open_service(deployment) as service:
        account = await create_account(admin(service))
        operations = service.operations_for(Principal("me", frozenset({scope, "agents:run"})))
        asked = {
            "service_accounts:read": list_accounts(operations),
            "service_accounts:write": create_account(operations, "agents:run", name="other"),
            "service_accounts:delete": operations.accounts.revoke(account["id"]),
        }
        for needed, ask in asked.items():
            if needed == scope:
                await ask
            else:
                with pytest.raises(errors.Forbidden) as refusal:
                    await ask
                assert refusal.value.required_scopes == (needed,)


async def test_account_sees_only_its_own_data(deployment: Deployment) -> None:
    everything = ("agents:run", "agents:read", "sessions:read", "sessions:write")
    async with open_service(deployment) as service:
        await admin(service).sessions.create(NewSession(session_id="theirs"))
        for number, scopes in enumerate((everything, (ADMIN,))):
            account = await create_account(
                admin(service), *scopes, name=f"n{number}", allow_privileged_scopes=True
            )
            operations = await operations_of_token(service, account["token"])
            mine = f"mine-{number}"
            run = (await operations.runs.create("agent", "echo", RunRequest("x", mine))).value
            assert run["user_id"] == f"sa:{account['id']}"
            other = RunRequest("x", f"for-{number}", user_id="somebody")
            assert (await operations.runs.create("agent", "echo", other)).value["user_id"] == (
                f"sa:{account['id']}"
            )
            page = (await operations.sessions.list(SessionFilter())).value["data"]
            assert {row["session_id"] for row in page} == {mine, f"for-{number}"}
            assert len((await operations.runs.list(RunFilter())).value["data"]) == 2
            with pytest.raises(errors.NotFound):
                await operations.sessions.get("theirs")
            with pytest.raises(errors.NotFound):
                await operations.runs.cancel("agent", "echo", "nothing", CancelRequest(mine))


async def test_reused_name_inherits_no_data(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        scopes = ("sessions:read", "sessions:write")
        first = await create_account(admin(service), *scopes, allow_privileged_scopes=True)
        with pytest.raises(errors.Conflict):
            await create_account(admin(service))
        old = await operations_of_token(service, first["token"])
        await old.sessions.create(NewSession(session_id="old"))
        await admin(service).accounts.revoke(first["id"])
        second = await create_account(admin(service), *scopes, allow_privileged_scopes=True)
        new = await operations_of_token(service, second["token"])
        assert (await new.sessions.list(SessionFilter())).value["data"] == []
        with pytest.raises(errors.NotFound):
            await new.sessions.get("old")
        with pytest.raises(errors.Conflict):
            await new.sessions.create(NewSession(session_id="old"))


async def test_revoked_token_is_rejected_at_once(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        account = await create_account(admin(service))
        other = await create_account(admin(service), name="other")
        for each in (account, other):
            await operations_of_token(service, each["token"])
        await admin(service).accounts.revoke(account["id"])
        assert await failed_check(service, account["token"]) == "account.revoked"
        await operations_of_token(service, other["token"])
        for account_id in (account["id"], "missing", "", "x" * 5_000):
            with pytest.raises(errors.NotFound):
                await admin(service).accounts.revoke(account_id)
        with pytest.raises(errors.ValidationFailed):
            await admin(service).accounts.revoke("a\x00")
        states = {record["name"]: record["state"] for record in await list_accounts(admin(service))}
        assert states == {"ci": "revoked", "other": "active"}


async def test_revoked_token_is_rejected_elsewhere(deployment: Deployment) -> None:
    async with open_service(deployment) as here, open_service(deployment) as there:
        account = await create_account(admin(here))
        moment = time.monotonic()
        there.hosting.account_tokens._monotonic = lambda: moment
        await operations_of_token(there, account["token"])

        await admin(here).accounts.revoke(account["id"])
        there.hosting.account_tokens._monotonic = lambda: moment + CACHE_SECONDS
        assert await failed_check(there, account["token"]) == "account.revoked"


async def test_unknown_tokens_are_rate_limited(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        account = await create_account(admin(service))
        await operations_of_token(service, account["token"])
        tokens = service.hosting.account_tokens
        moment = time.monotonic()
        tokens._monotonic = lambda: moment
        for _ in range(30):
            assert await failed_check(service, generate_account_token()) == "account.known"
        assert len(tokens._unknown_until) == UNKNOWN_LOOKUPS_PER_SECOND

        tokens._monotonic = lambda: moment + 1
        await operations_of_token(service, account["token"])


async def test_last_use_is_written_once_a_minute(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        account = await create_account(admin(service))

        async def last_used() -> Any:
            return (await list_accounts(admin(service)))[0]["last_used_at"]

        await operations_of_token(service, account["token"])
        await wait_until(last_used)
        first = await last_used()
        for _ in range(3):
            service.hosting.account_tokens.forget(account["id"])
            await operations_of_token(service, account["token"])
        await asyncio.sleep(0.05)
        assert await last_used() == first


async def test_failed_write_of_a_use_is_logged(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service(deployment) as service:
        account = await create_account(admin(service))
        await execute(
            service,
            "CREATE TRIGGER unused BEFORE UPDATE OF last_used_at ON service_accounts"
            " BEGIN SELECT RAISE(ABORT, 'it is not to be'); END",
        )
        with caplog.at_level(logging.WARNING, "agentctl.service"):
            await operations_of_token(service, account["token"])
            await wait_until(lambda: "not written" in caplog.text)
    assert account["token"][13:] not in caplog.text
    assert account["id"] in caplog.text


async def execute(service: Service, sql: str) -> None:
    """Change the database without the service."""

    @unit
    def work() -> Steps[None]:
        yield Statement(Sql(sql))

    await service.hosting.databases.system.write(work())


@contextlib.asynccontextmanager
async def _database_moved_away(deployment: Deployment) -> AsyncIterator[None]:
    """Move the file of the database away for the duration of the block."""
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


async def test_account_token_without_a_database_is_unavailable(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        account = await create_account(admin(service))
    async with _database_moved_away(deployment), Service.open(deployment.settings) as service:
        for token in (account["token"], generate_account_token()):
            with pytest.raises(errors.Unavailable):
                await operations_of_token(service, token)
        assert await failed_check(service, account["token"][:-1]) == "account.form"


async def test_database_files_contain_no_token(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """K05: the stored form of a token is not a credential."""
    with caplog.at_level(logging.DEBUG):
        async with open_service(deployment) as service:
            account = await create_account(admin(service))
            token = account["token"]
            await operations_of_token(service, token)
            await failed_check(service, token + "x")
            rows = (await admin(service).audit.list(AuditFilter())).raw
    stored = b"".join(
        path.read_bytes() for path in deployment.folder.glob("main.db*") if path.is_file()
    )
    assert hash_token(token).encode() in stored
    for text in (token, token[13:], token[13:40], token[-10:]):
        assert text.encode() not in stored
        assert text not in caplog.text
        assert text.encode() not in rows


async def test_account_list_has_pages(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        for number in range(5):
            record = await create_account(operations, name=f"n{number % 2}")
            await operations.accounts.revoke(record["id"])
        names = [record["id"] for record in await list_accounts(operations)]
        first = (await operations.accounts.list(AccountFilter(page=Page(limit=2)))).value
        assert [row["id"] for row in first["data"]] == names[:2]
        assert (first["meta"]["total_count"], first["meta"]["total_pages"]) == (5, 3)
        cursor = first["meta"]["next_cursor"]
        assert [
            row["id"]
            for row in await list_accounts(operations, page=Page(limit=100, cursor=cursor))
        ] == names[2:]
        assert [
            row["id"] for row in await list_accounts(operations, page=Page(limit=2, page=3))
        ] == names[4:]
        ordered = await list_accounts(operations, page=Page(sort_order="asc"))
        assert [row["id"] for row in ordered] == names[::-1]
        assert {row["name"] for row in await list_accounts(operations, name="n1")} == {"n1"}
        assert await list_accounts(operations, name="N1") == []
        for page in (Page(limit=0), Page(limit=101), Page(page=0), Page(cursor="x")):
            with pytest.raises(errors.ValidationFailed):
                await list_accounts(operations, page=page)
        with pytest.raises(errors.ValidationFailed):
            await list_accounts(operations, name="a\x00")


async def test_expired_account_releases_its_name(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        account = await create_account(admin(service))
        await execute(service, "UPDATE service_accounts SET expires_at = created_at + 1")
        assert await failed_check(service, account["token"]) == "account.expired"
        assert [record["state"] for record in await list_accounts(admin(service))] == ["expired"]
        await create_account(admin(service))
        await admin(service).accounts.revoke(account["id"])
        states = [record["state"] for record in await list_accounts(admin(service))]
        assert states == ["active", "revoked"]


async def test_account_changes_and_denials_are_audited(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        account = await create_account(operations)
        for failing in (
            create_account(operations),
            create_account(operations, "sessions:write", name="x"),
            create_account(account_manager(service), "agents:run", name="x"),
            operations.accounts.revoke("missing"),
        ):
            with pytest.raises(errors.AgentctlError):
                await failing
        await operations.accounts.revoke(account["id"])
        rows = (await operations.audit.list(AuditFilter())).value["data"]
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


async def test_accounts_are_local_only_without_authorization(deployment: Deployment) -> None:
    given = replace(deployment.settings.authorization, enabled=False)
    settings = replace(deployment.settings, authorization=given)
    async with Service.open(settings, create=True) as service:
        nobody = service.operations_for(anonymous_principal())
        operator = service.operations_for(local_principal("boss"))
        account = await create_account(operator)
        for ask in (
            create_account(nobody, name="x"),
            list_accounts(nobody),
            nobody.accounts.revoke(account["id"]),
        ):
            with pytest.raises(errors.Forbidden) as refusal:
                await ask
            assert "locally" in refusal.value.detail
        assert [record["name"] for record in await list_accounts(operator)] == ["ci"]
        await operator.accounts.revoke(account["id"])

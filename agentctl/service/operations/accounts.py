"""Service account operations and stored tokens (docs/contract.md "Service accounts")."""

from __future__ import annotations

import logging
import re

import orjson

from agentctl import errors
from agentctl.auth import principal as scope_names
from agentctl.auth.tokens.account_tokens import (
    HINT_CHARACTERS,
    StoredAccount,
    generate_account_token,
    hash_token,
)
from agentctl.interface.operations.accounts import AccountsFamily
from agentctl.interface.requests.administration import (
    DEFAULT_ACCOUNT_DAYS,
    MAXIMUM_ACCOUNT_DAYS,
    AccountFilter,
    NewAccount,
)
from agentctl.records.accounts import (
    ACCOUNT_NAME,
    AccountPage,
    AccountRecord,
    AccountState,
    NewAccountRecord,
    ScopeGrant,
)
from agentctl.records.authorization import MAXIMUM_SCOPES
from agentctl.records.document import Document, build_document
from agentctl.records.text import new_id
from agentctl.records.times import DAY, now
from agentctl.service.documents import documents, paging
from agentctl.service.documents.documents import RecordWriter
from agentctl.service.family import OperationFamily
from agentctl.store.database import Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import accounts
from agentctl.store.repositories.accounts import AccountRow
from agentctl.work.event_loop import Tasks

_log = logging.getLogger("agentctl.service")

_ACCOUNT = RecordWriter(AccountRecord, AccountRow, computed=["scopes"])

LAST_USE_INTERVAL = 60 * 1_000_000
"""Microseconds between two writes of an account's last use."""

_MAXIMUM_TRACKED = 4_096
"""Accounts whose last write is remembered."""

_NAME = re.compile(ACCOUNT_NAME)


class AccountOperations(OperationFamily, AccountsFamily):
    """Operations on service accounts."""

    async def create(self, account: NewAccount) -> Document[NewAccountRecord]:
        async with self.audit("create_service_account") as call:
            self.lookups.require_account_management()
            rules = self.hosting.settings.authorization
            scopes, days = _check_account(account)
            scope_names.check_known_scopes(scopes, rules.admin_scope)
            scopes = list(dict.fromkeys(scopes))
            scope_names.check_held_scopes(scopes, self.principal, rules.admin_scope)
            allowed = account.allow_privileged_scopes
            scope_names.check_privileged_scopes(scopes, rules.admin_scope, allowed=allowed)

            token = generate_account_token()
            moment = now()
            row = AccountRow(
                id=new_id(),
                name=account.name,
                token_hash=hash_token(token),
                token_hint=token[-HINT_CHARACTERS:],
                scopes=orjson.dumps(scopes).decode(),
                created_by=self.principal.identity,
                created_at=moment,
                expires_at=None if days is None else moment + days * DAY,
                last_used_at=None,
                revoked_at=None,
            )

            call.add_created("service_account", row.id)
            await call.write(self.hosting.databases.system, _insert(row))
            return build_document(
                NewAccountRecord(**_build_record(row, row.created_at), token=token)
            )

    async def list(self, filter: AccountFilter) -> Document[AccountPage]:
        async with self.audit("list_service_accounts"):
            self.lookups.require_account_management()
            page = filter.page
            paging.check_filter(filter)
            work = accounts.list_page(filter, paging.build_slice("service accounts", page))
            rows = await self.hosting.databases.system.read(work, size="large")
            moment = now()
            items = (orjson.dumps(_build_record(row, moment)) for row in rows.rows)
            return Document(documents.build_page_document("service accounts", items, page, rows))

    async def revoke(self, account_id: str) -> None:
        """Revoke an account: at once in this process, within a second in other processes."""
        async with self.audit("revoke_service_account", account_id=account_id) as call:
            self.lookups.require_account_management()
            await call.write(self.hosting.databases.system, _revoke(account_id))
            self.hosting.account_tokens.forget(account_id)


@unit
def _insert(row: AccountRow) -> Steps[None]:
    if not (yield from accounts.create(row)):
        raise errors.Conflict("An active service account has this name")


@unit
def _revoke(account_id: str) -> Steps[None]:
    if not (yield from accounts.revoke(account_id, now())):
        raise errors.NotFound("Service account not found")


def _build_record(row: AccountRow, moment: int) -> AccountRecord:
    state: AccountState = "active"
    if row.revoked_at is not None:
        state = "revoked"
    elif row.expires_at is not None and moment >= row.expires_at:
        state = "expired"

    scopes = [ScopeGrant(scope=scope, effect="allow") for scope in granted_scopes(row)]
    record: AccountRecord = _ACCOUNT.build(row, {"scopes": scopes, "state": state})
    return record


def _check_account(account: NewAccount) -> tuple[list[str], int | None]:
    """Return the scopes of a new account, and the days until it expires; None if it never does.

    Raises:
        ValidationFailed: a value is not allowed, or two values exclude each other.
    """
    if not 1 <= len(account.scopes) <= MAXIMUM_SCOPES:
        raise errors.ValidationFailed(f"scopes must hold 1 to {MAXIMUM_SCOPES} scopes")

    for place, grant in enumerate(account.scopes):
        if grant.effect != "allow":
            raise errors.ValidationFailed(f"scopes[{place}].effect must be one of: allow")

    if _NAME.fullmatch(account.name) is None:
        raise errors.ValidationFailed(
            "name must be 1 to 64 characters of A-Z, a-z, 0-9 and . _ -,"
            " starting with a letter or a digit"
        )

    days = account.expires_in_days
    if account.never_expires:
        if days is not None:
            raise errors.ValidationFailed(
                "expires_in_days and never_expires cannot be used together"
            )
    elif days is None:
        days = DEFAULT_ACCOUNT_DAYS
    elif not 1 <= days <= MAXIMUM_ACCOUNT_DAYS:
        raise errors.ValidationFailed(
            f"expires_in_days must be a number from 1 to {MAXIMUM_ACCOUNT_DAYS}"
        )

    return [grant.scope for grant in account.scopes], days


class StoredAccounts:
    """The accounts of the system database, for the verification of their tokens."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._writes = Tasks()
        self._last_written = dict[str, int]()

    async def find(self, token_hash: str) -> StoredAccount | None:
        """Return the account whose token has this hash.

        Raises:
            Unavailable: the database does not respond.
        """
        try:
            row = await self._databases.system.read(accounts.get_by_token_hash(token_hash))
        except errors.Unavailable:
            raise
        except errors.AgentctlError as error:
            raise errors.Unavailable("Service accounts cannot be looked up now") from error

        if row is None:
            return None
        return StoredAccount(
            id=row.id,
            token_hash=row.token_hash,
            scopes=frozenset(granted_scopes(row)),
            expires_at=row.expires_at,
            last_used_at=row.last_used_at,
            revoked_at=row.revoked_at,
        )

    def record_use(self, account: StoredAccount) -> None:
        """Write the time of use of an account in the background, at most once a minute.

        A failure is logged.
        """
        moment = now()
        last_write = max(account.last_used_at or 0, self._last_written.get(account.id, 0))
        if last_write >= moment - LAST_USE_INTERVAL:
            return

        if len(self._last_written) >= _MAXIMUM_TRACKED:
            self._last_written.clear()
        self._last_written[account.id] = moment
        self._writes.start(self._write_use(account.id, moment))

    async def close(self, seconds: float = 2.0) -> None:
        """Wait for pending writes, at most `seconds`."""
        await self._writes.wait_until_empty(seconds)
        await self._writes.cancel_all()

    async def _write_use(self, account_id: str, moment: int) -> None:
        # Another process may have written a use in the last minute.
        due = moment - LAST_USE_INTERVAL
        try:
            await self._databases.system.write(accounts.record_use(account_id, moment, due=due))
        except errors.AgentctlError as failure:
            _log.warning(
                "the last use of service account %s was not written: %s", account_id, failure
            )


def granted_scopes(row: AccountRow) -> list[str]:
    """Return the scopes of an account in the order of the grants."""
    scopes: list[str] = orjson.loads(row.scopes)
    return scopes

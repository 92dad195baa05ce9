"""What a caller can do with service accounts (contract.md 6)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from agentctl import errors
from agentctl.auth import grants
from agentctl.auth.tokens.account_tokens import HINT_CHARACTERS, generate_account_token, hash_token
from agentctl.operations import (
    DEFAULT_ACCOUNT_DAYS,
    MAXIMUM_ACCOUNT_DAYS,
    AccountFilter,
    Grant,
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
from agentctl.records.document import Document, build_document
from agentctl.records.ids import new_id
from agentctl.records.times import format_rfc3339, now
from agentctl.service import documents, paging
from agentctl.service.access import Access, check_text
from agentctl.service.directory import granted_scopes
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import accounts
from agentctl.store.repositories.accounts import AccountRow

__all__ = ["AccountOperations"]

MAXIMUM_SCOPES = 256
"""As many as count in a token (contract.md 6)."""

_DAY = 24 * 60 * 60 * 1_000_000
_NAME = re.compile(ACCOUNT_NAME)


class AccountOperations(Access):
    """The service accounts family."""

    async def create_service_account(self, account: NewAccount) -> Document[NewAccountRecord]:
        """Make an account, and tell its token this once.

        Raises:
            ValidationFailed: a value that is not allowed.
            Forbidden: a scope that the principal does not hold.
            BadRequest: a privileged scope that is not said to be meant.
            Conflict: another account that is good has the name.
        """
        async with self.audit("create_service_account") as record:
            self._require_authenticated()
            row, token = self._new_account(account)
            record.add_created("service_account", row.id)
            await record.write(self.hosting.databases.system, _insert(row))
            return build_document(
                NewAccountRecord(**_build_record(row, row.created_at), token=token)
            )

    def _new_account(self, account: NewAccount) -> tuple[AccountRow, str]:
        given = self.hosting.settings.authorization
        scopes = _check_scopes(account.scopes)
        name, days = _check_name(account.name), _check_days(account)
        grants.check_known_scopes(scopes, given.admin_scope)
        scopes = list(dict.fromkeys(scopes))
        grants.check_held_scopes(scopes, self.principal, given.admin_scope)
        allowed = account.allow_privileged_scopes
        grants.check_privileged_scopes(scopes, given.admin_scope, allowed=allowed)
        token, moment = generate_account_token(given.token_prefix), now()
        row = AccountRow(
            id=new_id(),
            name=name,
            token_hash=hash_token(token),
            token_hint=token[-HINT_CHARACTERS:],
            scopes=orjson.dumps(scopes).decode(),
            created_by=self.principal.identity,
            created_at=moment,
            expires_at=None if days is None else moment + days * _DAY,
            last_used_at=None,
            revoked_at=None,
        )
        return row, token

    async def list_service_accounts(self, filter: AccountFilter) -> Document[AccountPage]:
        """A page of the accounts, of whomever, in whatever state; their tokens are kept nowhere."""
        async with self.audit("list_service_accounts"):
            self._require_authenticated()
            page = filter.page
            work = accounts.list_page(
                name=None if filter.name is None else check_text("name", filter.name),
                order=page.sort_order,
                limit=page.limit,
                offset=paging.page_offset(page),
                after=paging.decode_cursor("service accounts", page),
            )
            found = await self.hosting.databases.system.read(work, large=True)
            moment = now()
            items = (orjson.dumps(_build_record(row, moment)) for row in found.rows)
            return Document(documents.build_page_document("service accounts", items, page, found))

    async def revoke_service_account(self, account_id: str) -> None:
        """End an account: at once here, within a second where else its token is in use.

        Raises:
            NotFound: there is none of this id, or it is revoked already.
        """
        async with self.audit("revoke_service_account", account_id=account_id) as record:
            self._require_authenticated()
            await record.write(self.hosting.databases.system, _revoke(account_id))
            self.hosting.accounts.forget(account_id)

    def _require_authenticated(self) -> None:
        """Refuse what comes over HTTP from nobody in particular.

        With authorization off everybody is an administrator, and would be one still, with a token
        that was made meanwhile, when it is on again.

        Raises:
            Forbidden: it does.
        """
        if self.principal.via == "http" and not self.hosting.settings.authorization.enabled:
            raise errors.Forbidden(
                "Service accounts are managed locally while authorization is off"
            )


@unit
def _insert(row: AccountRow) -> Steps[None]:
    if not (yield from accounts.create(row)):
        raise errors.Conflict("An active service account has this name")


@unit
def _revoke(account_id: str) -> Steps[None]:
    if not (yield from accounts.revoke(account_id, now())):
        raise errors.NotFound("Service account not found")


def _build_record(row: AccountRow, moment: int) -> AccountRecord:
    return AccountRecord(
        id=row.id,
        name=row.name,
        scopes=[ScopeGrant(scope=scope, effect="allow") for scope in granted_scopes(row)],
        token_hint=row.token_hint,
        created_by=row.created_by,
        created_at=format_rfc3339(row.created_at),
        expires_at=_format_optional_time(row.expires_at),
        last_used_at=_format_optional_time(row.last_used_at),
        revoked_at=_format_optional_time(row.revoked_at),
        state=_account_state(row, moment),
    )


def _account_state(row: AccountRow, moment: int) -> AccountState:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and moment >= row.expires_at else "active"


def _format_optional_time(microseconds: int | None) -> str | None:
    return None if microseconds is None else format_rfc3339(microseconds)


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise errors.ValidationFailed(
            "name must be 1 to 64 characters of A-Z, a-z, 0-9 and . _ -,"
            " starting with a letter or a digit"
        )
    return name


def _check_scopes(given: Sequence[Grant]) -> list[str]:
    if not 1 <= len(given) <= MAXIMUM_SCOPES:
        raise errors.ValidationFailed(f"scopes must hold 1 to {MAXIMUM_SCOPES} scopes")
    for place, grant in enumerate(given):
        if grant.effect != "allow":
            raise errors.ValidationFailed(f"scopes[{place}].effect must be allow")
    return [grant.scope for grant in given]


def _check_days(account: NewAccount) -> int | None:
    """How many days the account is good for; None: for ever."""
    days = account.expires_in_days
    if account.never_expires:
        if days is not None:
            raise errors.ValidationFailed("expires_in_days and never_expires exclude each other")
        return None
    if days is None:
        return DEFAULT_ACCOUNT_DAYS
    if not 1 <= days <= MAXIMUM_ACCOUNT_DAYS:
        raise errors.ValidationFailed(
            f"expires_in_days must be a number from 1 to {MAXIMUM_ACCOUNT_DAYS}"
        )
    return days

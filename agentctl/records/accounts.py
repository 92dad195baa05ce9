"""Service accounts: the callers that are machines (contract.md 6)."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.sessions import PageMeta
from agentctl.records.times import Timestamp

__all__ = [
    "ACCOUNT_NAME",
    "AccountPage",
    "AccountRecord",
    "AccountState",
    "NewAccountRecord",
    "ScopeGrant",
]

ACCOUNT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names of service accounts. They are for people; what an account does belongs to its id."""

AccountState = Literal["active", "expired", "revoked"]


class ScopeGrant(TypedDict):
    """A scope that is granted."""

    scope: str
    effect: Literal["allow"]


class AccountRecord(TypedDict):
    """A service account. Requests with its token have the principal `sa:<id>`.

    `token_hint` is the end of the token, which is kept nowhere; `last_used_at` is to the minute.
    """

    id: str
    name: str
    scopes: list[ScopeGrant]
    token_hint: str
    created_by: str | None
    created_at: Timestamp
    expires_at: Timestamp | None
    last_used_at: Timestamp | None
    revoked_at: Timestamp | None
    state: AccountState


class NewAccountRecord(AccountRecord):
    """A service account that was just made: nobody is told its `token` again."""

    token: str


class AccountPage(TypedDict):
    """A page of service accounts."""

    data: list[AccountRecord]
    meta: PageMeta

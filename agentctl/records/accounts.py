"""Service account records (docs/contract.md "Service accounts")."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.sessions import PageMeta
from agentctl.records.times import Timestamp

ACCOUNT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""The grammar of account names. Names are for people; data belongs to the id."""

AccountState = Literal["active", "expired", "revoked"]


class ScopeGrant(TypedDict):
    """A granted scope."""

    scope: str
    effect: Literal["allow"]


class AccountRecord(TypedDict):
    """A service account. Requests with its token have the principal `sa:<id>`.

    `token_hint` is the end of the token, which is not stored; `last_used_at` has a precision
    of one minute.
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
    """A new service account with its `token`, which is not shown again."""

    token: str


class AccountPage(TypedDict):
    """A page of service accounts."""

    data: list[AccountRecord]
    meta: PageMeta

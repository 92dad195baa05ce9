"""Requests of the operations on service accounts; see `agentctl.interface.requests`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from agentctl.interface.declarations import Option, Query
from agentctl.interface.requests import Page
from agentctl.light_dataclass import dataclass

MAXIMUM_SCOPES = 256
"""Scopes of a token or a service account; a JWT with more grants nothing."""

DEFAULT_ACCOUNT_DAYS = 90
MAXIMUM_ACCOUNT_DAYS = 3_650
"""Days until a service account expires."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A scope of a service account. `effect` is `allow`, the only value."""

    scope: str
    effect: str = "allow"


@dataclass(frozen=True, slots=True)
class NewAccount:
    """A service account to create (docs/contract.md "Service accounts").

    `name` is unique among active accounts. `expires_in_days` None is `DEFAULT_ACCOUNT_DAYS`, not
    together with `never_expires`. Scopes that write, delete, administer or manage service accounts
    need `allow_privileged_scopes`.
    """

    name: str
    scopes: tuple[Grant, ...]
    expires_in_days: int | None = None
    never_expires: bool = False
    allow_privileged_scopes: bool = False


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """The filter of a list of service accounts, revoked ones included, by `created_at`."""

    name: Annotated[
        str | None,
        Query("Only accounts with this name"),
        Option("--name", "NAME", "Filter by name"),
    ] = None
    page: Page = field(default_factory=Page)
